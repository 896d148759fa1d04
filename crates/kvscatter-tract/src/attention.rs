//! The `Attention` operator of operator sets 23 to 25, which [`kvscatter_attention`] computes.
//!
//! This module translates tract's nodes, types and tensors. The kernels read tensors in place, so no key is
//! copied, transposed or repeated.

mod facts;
mod narrow;
mod operator;
mod state;
mod valid_columns;

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::scatter::as_int64;
use operator::AttentionNode;
use state::AttentionState;

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(AttentionNode::new(node, false)?), vec![]))
}

/// Builds the operator of a node that reads float16 or int8 caches with float32 queries.
pub(crate) fn build_narrow(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(AttentionNode::new(node, true)?), vec![]))
}

impl Expansion for AttentionNode {
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
        let cached = [key, value].into_iter().filter(|_| !self.reads_narrow);
        for same in cached.chain(outputs) {
            solver.equals(&query.datum_type, &same.datum_type)?;
        }
        for same in [key, value, y] {
            solver.equals(&query.rank, &same.rank)?;
        }
        for output in outputs.iter().skip(1) {
            solver.equals(&output.rank, 4)?;
        }
        solver.equals(&query.shape[0], &y.shape[0])?;
        solver.equals(&query.shape[1], &y.shape[1])?;
        solver.given(&query.rank, move |solver, rank| match (rank, self.op.head_counts()) {
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

impl Op for AttentionNode {
    fn name(&self) -> StaticName {
        "Attention".into()
    }

    op_as_typed_op!();
}

impl TypedOp for AttentionNode {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(facts::facts(self, inputs).map_err(|why| self.error(why))?)
    }

    fn declutter(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        narrow::narrow(model, node)
    }

    as_op!();
}

impl EvalOp for AttentionNode {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        Ok(Some(AttentionState::default().run(self, &inputs)?))
    }

    fn state(&self, _: &EvalContext<'_>) -> TractResult<Option<Box<dyn OpState>>> {
        Ok(Some(Box::new(AttentionState::default())))
    }
}
