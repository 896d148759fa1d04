//! `Attention` of operator sets 23 to 25, over tensors as they lie: no key is copied, transposed or repeated.
//!
//! What a query may see is decided as ONNX's own reference does it: query `i` of a causal node sees key `j` if
//! `j <= i + offset`, where `offset` is the length of the past, or `nonpad_kv_seqlen` less the number of queries.

mod kernel;
mod mask;
mod operands;
mod shapes;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::attributes::{Attributes, place};
use crate::error::{NodeError, label};
use crate::scatter::as_int64;

/// Makes the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(Attention::of(node)?), vec![]))
}

/// The operator.
#[derive(Clone, Debug, PartialEq)]
struct Attention {
    node: String,
    /// Of query, and of key and value, where the inputs have rank 3.
    heads: Option<(usize, usize)>,
    scale: Option<f32>,
    /// 0 for none.
    softcap: f32,
    window: Window,
    softmax_in_f64: bool,
    inputs: Inputs,
    outputs: Outputs,
}

/// Floats are compared by `==`, which is what two nodes being the same asks for.
impl Eq for Attention {}

/// How far from its own place a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    is_causal: bool,
    left: Option<usize>,
    right: Option<usize>,
}

/// Where the optional inputs lie among those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inputs {
    count: usize,
    mask: Option<usize>,
    past: Option<(usize, usize)>,
    nonpad_kv_seqlen: Option<usize>,
}

/// Where the optional outputs lie among those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outputs {
    count: usize,
    present_key: Option<usize>,
    present_value: Option<usize>,
    scores: Option<(usize, Scores)>,
}

/// What `qk_matmul_output` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scores {
    Raw,
    Capped,
    Biased,
    Weights,
}

impl Attention {
    fn of(node: &NodeProto) -> Result<Self, NodeError> {
        let refused = |why: &str| NodeError::of(node, why);
        let known = [
            "is_causal",
            "kv_num_heads",
            "left_window_size",
            "q_num_heads",
            "qk_matmul_output_mode",
            "right_window_size",
            "scale",
            "softcap",
            "softmax_precision",
        ];
        let attributes = Attributes::of(node, &known)?;
        let heads = |name: &str| match attributes.integer(name)?.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(heads)) if heads > 0 => Ok(Some(heads)),
            Some(_) => Err(refused(&format!("attribute {name:?} must be positive"))),
        };
        let heads = match (heads("q_num_heads")?, heads("kv_num_heads")?) {
            (Some(query), Some(key)) => Some((query, key)),
            (None, None) => None,
            _ => return Err(refused("q_num_heads and kv_num_heads go together")),
        };
        let bound = |name: &str| match attributes.integer(name)?.unwrap_or(-1) {
            -1 => Ok(None),
            bound => usize::try_from(bound)
                .map(Some)
                .map_err(|_| refused(&format!("attribute {name:?} must be at least -1, got {bound}"))),
        };
        let softmax_in_f64 = match attributes.integer("softmax_precision")? {
            // Float32 is what all of it is computed in, which is no less than float16 and bfloat16 ask for.
            None | Some(1 | 10 | 16) => false,
            Some(11) => true,
            Some(code) => {
                return Err(refused(&format!("softmax_precision {code} is no floating-point type")));
            }
        };
        let mode = attributes.integer("qk_matmul_output_mode")?.unwrap_or(0);
        Ok(Self {
            node: label(node),
            heads,
            scale: attributes.float("scale")?,
            softcap: attributes.float("softcap")?.unwrap_or(0.0),
            window: Window {
                is_causal: attributes.integer("is_causal")?.unwrap_or(0) != 0,
                left: bound("left_window_size")?,
                right: bound("right_window_size")?,
            },
            softmax_in_f64,
            inputs: Inputs::of(node)?,
            outputs: Outputs::of(node, mode)?,
        })
    }

    fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: "Attention".to_owned(), why: why.to_string() }
    }
}

impl Inputs {
    fn of(node: &NodeProto) -> Result<Self, NodeError> {
        let at = |index| place(&node.input, index);
        if (0..3).any(|index| at(index).is_none()) || node.input.len() > 7 {
            return Err(NodeError::of(node, format!("takes 3 to 7 inputs, got {}", node.input.len())));
        }
        let past = match (at(4), at(5)) {
            (Some(key), Some(value)) => Some((key, value)),
            (None, None) => None,
            _ => return Err(NodeError::of(node, "past_key and past_value go together")),
        };
        let nonpad_kv_seqlen = at(6);
        if past.is_some() && nonpad_kv_seqlen.is_some() {
            return Err(NodeError::of(node, "nonpad_kv_seqlen does not go with past_key and past_value"));
        }
        let count = node.input.iter().filter(|name| !name.is_empty()).count();
        Ok(Self { count, mask: at(3), past, nonpad_kv_seqlen })
    }
}

impl Outputs {
    fn of(node: &NodeProto, mode: i64) -> Result<Self, NodeError> {
        let at = |index| place(&node.output, index);
        if at(0).is_none() || node.output.len() > 4 {
            return Err(NodeError::of(node, format!("has 1 to 4 outputs, got {}", node.output.len())));
        }
        let scores = match mode {
            0 => Scores::Raw,
            1 => Scores::Capped,
            2 => Scores::Biased,
            3 => Scores::Weights,
            mode => return Err(NodeError::of(node, format!("qk_matmul_output_mode is 0 to 3, got {mode}"))),
        };
        Ok(Self {
            count: node.output.iter().filter(|name| !name.is_empty()).count(),
            present_key: at(1),
            present_value: at(2),
            scores: at(3).map(|place| (place, scores)),
        })
    }

    fn presents(&self) -> impl Iterator<Item = usize> {
        self.present_key.into_iter().chain(self.present_value)
    }
}

impl Expansion for Attention {
    fn name(&self) -> StaticName {
        "Attention".into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(self.outputs.count)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, self.inputs.count)?;
        check_output_arity(outputs, self.outputs.count)?;
        let ([query, key, value, ..], [y, ..]) = (inputs, outputs) else { bail!("inputs are missing") };
        for same in [key, value].into_iter().chain(outputs) {
            solver.equals(&query.datum_type, &same.datum_type)?;
        }
        for same in [key, value, y] {
            solver.equals(&query.rank, &same.rank)?;
        }
        for place in self.outputs.presents().chain(self.outputs.scores.map(|(place, _)| place)) {
            if let Some(output) = outputs.get(place) {
                solver.equals(&output.rank, 4)?;
            }
        }
        solver.equals(&query.shape[0], &y.shape[0])?;
        solver.equals(&query.shape[1], &y.shape[1])?;
        solver.given(&query.rank, move |solver, rank| match (rank, self.heads) {
            (4, _) => {
                solver.equals(&query.shape[2], &y.shape[2])?;
                solver.equals(&value.shape[3], &y.shape[3])
            }
            (3, Some((queries, keys))) => solver.given(&value.shape[2], move |solver, hidden| {
                solver.equals(&y.shape[2], hidden / keys * queries)
            }),
            _ => Ok(()),
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut inputs: TVec<OutletId> = inputs.into();
        if let Some(lengths) = self.inputs.nonpad_kv_seqlen.and_then(|place| inputs.get_mut(place)) {
            *lengths = as_int64(&format!("{prefix}.nonpad_kv_seqlen"), model, *lengths)?;
        }
        model.wire_node(prefix, self.clone(), &inputs)
    }
}

impl Op for Attention {
    fn name(&self) -> StaticName {
        "Attention".into()
    }

    op_as_typed_op!();
}

impl TypedOp for Attention {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(shapes::facts(self, inputs).map_err(|why| self.error(why))?)
    }

    as_op!();
}

impl EvalOp for Attention {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        Ok(Some(self.eval(&EvalContext::out_of_plan(), inputs)?))
    }

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        Ok(operands::run(self, &inputs).map_err(|why| self.error(why))?)
    }
}
