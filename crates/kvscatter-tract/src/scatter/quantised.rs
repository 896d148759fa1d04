//! The operator that quantises new rows, and writes the codes and scales of several int8 caches: all of them or none.
//!
//! Only [`Tract`](crate::Tract) makes such nodes. For each cache, a node takes the codes, the scales and the new rows
//! in float32, and returns the codes and the scales. The indices come last.

use kvscatter::quantize::quantize_row;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use super::{Scatter, ScatterState, WritesCaches, as_int64};

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let caches = node.output.len() / 2;
    Ok((expand(QuantisedScatter { scatter: Scatter::new(node, 3 * caches)?, caches }), vec![]))
}

/// The operator of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuantisedScatter {
    scatter: Scatter,
    /// The number of caches, each of which has codes and scales.
    caches: usize,
}

impl WritesCaches for QuantisedScatter {
    fn run(&self, state: &mut ScatterState, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (mut held, mut rows, mut indices) = (Vec::new(), Vec::new(), None);
        for (index, input) in inputs.into_iter().enumerate() {
            match index % 3 {
                _ if index == 3 * self.caches => indices = Some(input),
                2 => rows.push(input),
                _ => held.push(input),
            }
        }
        state.hold(held);
        let updates = rows.iter().map(|rows| quantise(rows)).collect::<TractResult<Vec<_>>>()?;
        state.write(&self.scatter, &updates.iter().flatten().collect::<Vec<_>>(), indices.as_deref())
    }
}

/// Returns the codes and the scales of rows.
fn quantise(rows: &Tensor) -> TractResult<[Tensor; 2]> {
    let shape = rows.shape();
    let size = shape.last().copied().context("rows have a size")?;
    let mut codes = Tensor::zero::<i8>(shape)?;
    let mut scales = Tensor::zero::<f32>(&with_last(shape, 1))?;
    {
        let rows = rows.try_as_plain_ram()?;
        let (mut codes, mut scales) = (codes.try_as_plain_ram_mut()?, scales.try_as_plain_ram_mut()?);
        let codes = codes.as_slice_mut::<i8>()?.chunks_exact_mut(size.max(1));
        let quantised = rows.as_slice::<f32>()?.chunks_exact(size.max(1)).zip(codes);
        for (scale, (row, codes)) in scales.as_slice_mut::<f32>()?.iter_mut().zip(quantised) {
            *scale = quantize_row(row, codes);
        }
    }
    Ok([codes, scales])
}

/// Returns a shape with another last size.
fn with_last<T: Clone>(shape: &[T], size: T) -> TVec<T> {
    let mut shape: TVec<T> = shape.into();
    if let Some(last) = shape.last_mut() {
        *last = size;
    }
    shape
}

impl Expansion for QuantisedScatter {
    fn name(&self) -> StaticName {
        "QuantisedScatter".into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(2 * self.caches)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 3 * self.caches + usize::from(self.scatter.takes_indices))?;
        check_output_arity(outputs, 2 * self.caches)?;
        for (caches, presents) in inputs.chunks_exact(3).zip(outputs.chunks_exact(2)) {
            for (cache, present) in caches.iter().zip(presents) {
                solver.equals(&cache.datum_type, &present.datum_type)?;
                solver.equals(&cache.shape, &present.shape)?;
            }
        }
        Ok(())
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut inputs: TVec<OutletId> = inputs.into();
        if let Some(indices) = inputs.get_mut(3 * self.caches) {
            *indices = as_int64(&format!("{prefix}.write_indices"), model, *indices)?;
        }
        model.wire_node(prefix, self.clone(), &inputs)
    }
}

impl Op for QuantisedScatter {
    fn name(&self) -> StaticName {
        "QuantisedScatter".into()
    }

    op_as_typed_op!();
}

impl TypedOp for QuantisedScatter {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let indices = inputs.get(3 * self.caches);
        let mut facts = TVec::new();
        for caches in inputs.chunks_exact(3) {
            let [codes, scales, rows] = caches else { bail!("inputs are missing") };
            let new_codes = i8::fact(rows.shape.dims());
            let new_scales = f32::fact(&*with_last(rows.shape.dims(), 1.to_dim()));
            for (cache, update) in [(codes, new_codes), (scales, new_scales)] {
                let all: TVec<&TypedFact> = [*cache, &update].into_iter().chain(indices.copied()).collect();
                self.scatter.check(&all)?;
                facts.push(cache.without_value());
            }
        }
        Ok(facts)
    }

    as_op!();
}

impl EvalOp for QuantisedScatter {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        Ok(Some(self.run(&mut ScatterState::new::<Self>(), inputs)?))
    }

    fn state(&self, _: &EvalContext<'_>) -> TractResult<Option<Box<dyn OpState>>> {
        Ok(Some(Box::new(ScatterState::new::<Self>())))
    }
}
