//! The `Attention` operator of operator sets 23 to 25. It reads tensors in place, so no key is copied,
//! transposed or repeated.
//!
//! Causal masking follows ONNX's own reference. Query `i` of a causal node attends to key `j` if `j <= i +
//! offset`. The offset is the length of the past, or `nonpad_kv_seqlen` less the number of queries.

mod float;
mod kernel;
mod mask;
mod operands;
mod operator;
mod shapes;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::scatter::as_int64;
use operator::Attention;

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(Attention::of(node)?), vec![]))
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
        for index in self.outputs.presents().chain(self.outputs.scores.map(|(index, _)| index)) {
            if let Some(output) = outputs.get(index) {
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
        if let Some(lengths) = self.inputs.nonpad_kv_seqlen.and_then(|index| inputs.get_mut(index)) {
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
