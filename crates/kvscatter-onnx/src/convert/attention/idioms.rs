//! The table of what a node may do to a cache, to scores or to weights.
//!
//! A new idiom is a row, its function, and a case in `tests.rs`. The function returns `None` for another node, or
//! [`declines`](super::walk::Walk::decline) with a reason for one that it is meant for. It changes nothing before it
//! knows that the node fits. What it returns must be right in a static cache whose unused slots contain any numbers,
//! also if the nodes stay separate: only a fusion is proved. A value of each row that is computed from all slots needs
//! another state, or must come after every mask.
//!
//! What else is needed depends on what the node does:
//!
//! | it | also |
//! |---|---|
//! | moves elements | nothing, but [`passing`](crate::passing) if the decoder must follow it too |
//! | reads scores | a row of [`OnScores`](crate::passing::OnScores), because the decoder follows scores to prove roles |
//! | changes scores | a [`Form`](super::Form), and its meaning in `fusion/operands.rs` |
//! | masks scores | a [`MaskKind`](super::MaskKind), and its elements in `masks.rs` |
//! | gives a value another meaning | a [`State`](super::walk::State) |
//! | is another softmax | `comes_from_softmax` in `decoder/part.rs` |
//!
//! Masks, proofs and the new graph then follow, if `fold/ops` evaluates the operator. `tests/onnx/fusion.rs` converts
//! each form, and `python-tests/test_fuse.py` runs it in ONNX Runtime.

mod cap;
mod factors;
mod masks;
mod moves;
mod operator;
mod products;
mod rows;
mod sink;
mod softmax;
#[cfg(test)]
mod tests;

use super::walk::Idiom;

/// The idioms.
pub(in crate::convert) const IDIOMS: &[Idiom] = &[
    Idiom {
        name: "elements are moved, repeated or cast",
        operators: &[
            "Identity",
            "Cast",
            "CastLike",
            "Dropout",
            "Transpose",
            "Unsqueeze",
            "Squeeze",
            "Expand",
            "Reshape",
            "Flatten",
            "Tile",
        ],
        next: moves::moved,
    },
    Idiom { name: "a cache is split into keys and values", operators: &["Split"], next: moves::split },
    Idiom { name: "rows are multiplied with weights", operators: &["MatMul"], next: rows::projected },
    Idiom { name: "a constant is added to rows", operators: &["Add"], next: rows::biased },
    Idiom {
        name: "rows are normalised",
        operators: &["RMSNormalization", "LayerNormalization"],
        next: rows::normalised,
    },
    Idiom { name: "rows are joined", operators: &["Concat"], next: rows::joined },
    Idiom { name: "everything is multiplied", operators: &["Mul", "Div"], next: factors::scaled },
    Idiom { name: "scores are capped", operators: &["Tanh"], next: cap::capped },
    Idiom { name: "queries are multiplied with keys", operators: &["MatMul"], next: products::of_keys },
    Idiom { name: "weights are multiplied with values", operators: &["MatMul"], next: products::of_values },
    Idiom { name: "a mask or a number is added to scores", operators: &["Add"], next: masks::added },
    Idiom { name: "hidden scores are replaced", operators: &["Where"], next: masks::replaced },
    Idiom { name: "hidden scores are kept finite", operators: &["Max"], next: masks::floored },
    Idiom { name: "the score of a sink is appended", operators: &["Concat"], next: sink::appended },
    Idiom {
        name: "the largest score of a row is subtracted",
        operators: &["ReduceMax", "Sub"],
        next: sink::subtracted,
    },
    Idiom { name: "scores become weights", operators: &["Softmax"], next: softmax::weighted },
    Idiom { name: "the weight of a sink is dropped", operators: &["Slice"], next: sink::dropped },
    Idiom {
        name: "weights that are not numbers are replaced",
        operators: &["IsNaN", "Not", "Where"],
        next: softmax::cleared,
    },
    Idiom { name: "an Attention reads keys and values", operators: &["Attention"], next: operator::attended },
];
