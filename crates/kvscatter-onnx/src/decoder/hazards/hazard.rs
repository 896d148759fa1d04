//! The hazards as data.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::cache::WriterStyle;
use crate::decoder::roles::InputRole;

/// One thing that keeps a cache from being written in place, or makes its use go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hazard {
    /// Past is read by something beside its writer: in place, it may meet old rows or new ones.
    PastReadElsewhere {
        /// The cache.
        past: String,
        /// Who reads it.
        reader: NodeLabel,
    },
    /// Present is read by something that is no attention.
    PresentReadElsewhere {
        /// The cache.
        present: String,
        /// Who reads it.
        reader: NodeLabel,
    },
    /// Present is given as more than one output: one of them is a copy.
    PresentGivenTwice {
        /// The cache.
        present: String,
        /// The other outputs.
        copies: Vec<String>,
    },
    /// Two nodes write to one past, each on its own: the rows of one are lost, or the cache is copied.
    WrittenTwice {
        /// The cache.
        past: String,
        /// The writer that makes the present.
        first: NodeLabel,
        /// The other.
        second: NodeLabel,
    },
    /// A node writes to what another has written.
    WrittenInTurn {
        /// The cache.
        past: String,
        /// The earlier writer.
        first: NodeLabel,
        /// The later one.
        second: NodeLabel,
    },
    /// A ring is read by an attention that hides slots by their index: `nonpad_kv_seqlen`, or `is_causal`. The slots
    /// of a ring are not in the order of their tokens.
    CircularPrefixMask {
        /// The cache.
        past: String,
        /// The attention.
        attention: NodeLabel,
        /// What hides slots by their index.
        by: PrefixMask,
    },
    /// A node between past and present makes another tensor of the cache's size.
    Between {
        /// The cache.
        past: String,
        /// The node.
        node: NodeLabel,
    },
    /// Past and present are of different types, so that they cannot share memory.
    TypesDiffer {
        /// The cache.
        past: String,
        /// Its present.
        present: String,
        /// The type of past.
        past_type: ElementType,
        /// The type of present.
        present_type: ElementType,
    },
    /// Present is longer than past by the new rows, so that they cannot share memory.
    Grows {
        /// The cache.
        past: String,
        /// Its present.
        present: String,
    },
    /// An operator of ONNX Runtime writes the cache itself, and copies it whole unless past and present share memory.
    OperatorWrites {
        /// The cache.
        past: String,
        /// The operator.
        writer: NodeLabel,
    },
    /// Caches of one model are written in different ways.
    MixedStyles {
        /// Each way, with a cache that is written so and the number of those.
        styles: Vec<(WriterStyle, String, usize)>,
    },
    /// Static caches of one model have different capacities.
    MixedCapacities {
        /// Each capacity, with a cache that has it and the number of those.
        capacities: Vec<(usize, String, usize)>,
    },
    /// Caches of one model are written at different positions.
    MixedWriteIndices {
        /// A cache.
        past: String,
        /// Where it is written; `None` is position 0.
        write_indices: Option<String>,
        /// Another cache.
        other: String,
        /// Where that is written.
        other_write_indices: Option<String>,
    },
    /// A static cache without `write_indices`: every step overwrites the first rows.
    NoWriteIndices {
        /// The cache.
        past: String,
        /// The writer.
        writer: NodeLabel,
    },
    /// One input is taken for two different positions: a start, a length after the write, or that length less 1.
    TwoConventions {
        /// The input.
        input: String,
        /// What one node takes it for.
        first: InputRole,
        /// That node.
        first_node: NodeLabel,
        /// What another takes it for.
        second: InputRole,
        /// That node.
        second_node: NodeLabel,
    },
    /// One scale is computed from all samples and tokens of a step. So the numbers of a sample depend on its
    /// neighbours in the batch, on padding, and on how its prompt is cut into steps.
    TensorWideScale {
        /// The node that computes the scale.
        node: NodeLabel,
    },
    /// A runtime has a known bug that affects a node of this model.
    RuntimeBug {
        /// The bug.
        bug: RuntimeBug,
        /// The first such node.
        node: NodeLabel,
    },
}

/// How an attention hides slots by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefixMask {
    /// Input `nonpad_kv_seqlen`.
    NonpadKvSeqlen,
    /// Attribute `is_causal`.
    IsCausal,
}

/// A known bug of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuntimeBug {
    /// ONNX Runtime before 1.25 has no kernel of `TensorScatter`.
    NoKernel,
    /// ONNX Runtime's kernel has 13 of the 24 types: no strings, complex numbers, 8-bit floats and 4-bit types.
    NoKernelForType(ElementType),
    /// ONNX Runtime up to 1.29 refuses an index after it has written the samples before.
    RowsLeftWritten,
    /// ONNX Runtime's CUDA kernel moves an index that is out of range into the range, and overwrites other rows.
    IndexClamped,
    /// ONNX Runtime 1.25 aligns the mask of a causal `Attention` with `nonpad_kv_seqlen` at the top left, which is
    /// wrong for several rows in the middle of a cache.
    MaskTopLeft,
    /// onnx up to 1.22 evaluates `mode = circular` modulo the capacity in every coordinate.
    ModuloEverywhere,
}
