//! A node's state between runs, and one call of the operator on tract's tensors. The state keeps the prepared call and
//! its scratch.

use half::f16;
use kvscatter_attention::{CacheElement, Float, Inputs, Mask, Outputs, Prepared, Scales, Scratch, Valid};
use tract_onnx::tract_hir::internal::*;

use super::facts;
use super::operator::{AttentionNode, Operands};
use crate::threads::Threads;

/// The state of a node between runs.
#[derive(Debug, Default)]
pub(super) struct AttentionState {
    last: Option<PreparedCall>,
}

/// What was prepared for the shapes of the last call.
#[derive(Debug)]
struct PreparedCall {
    /// The shapes of all inputs.
    shapes: TVec<TVec<usize>>,
    threads: usize,
    prepared: Prepared,
    scratch: Scratch,
}

/// A copy prepares its calls itself, because a scratch serves one call at a time.
impl Clone for AttentionState {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl OpState for AttentionState {
    fn eval(&mut self, _: &EvalContext<'_>, op: &dyn Op, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let node = op.downcast_ref::<AttentionNode>().context("the state of an Attention")?;
        self.run(node, &inputs)
    }

    fn reset_lanes(&mut self, _: &[LaneId]) -> TractResult<()> {
        Ok(())
    }
}

impl AttentionState {
    /// Runs the operator. An error does not change the inputs, because the operator writes only to new tensors.
    pub(super) fn run(&mut self, node: &AttentionNode, inputs: &[TValue]) -> TractResult<TVec<TValue>> {
        let [query, key] =
            [inputs.first(), inputs.get(1)].map(|input| input.map(|tensor| tensor.datum_type()));
        match (query, key) {
            (Some(DatumType::F16), _) => self.attend::<f16, f16>(node, inputs),
            (_, Some(DatumType::F16)) => self.attend::<f32, f16>(node, inputs),
            (_, Some(DatumType::I8)) => self.attend::<f32, i8>(node, inputs),
            _ => self.attend::<f32, f32>(node, inputs),
        }
    }

    fn attend<T: Float + Datum, C: CacheElement + Datum>(
        &mut self,
        node: &AttentionNode,
        inputs: &[TValue],
    ) -> TractResult<TVec<TValue>> {
        let operands = node.inputs.select(inputs).context("an input is missing")?;
        let inputs_of_call = translate::<T, C>(&operands)?;
        let threads = Threads::current();
        let PreparedCall { prepared, scratch, .. } =
            self.prepare(node, inputs, &operands, threads.count())?;
        let mut output = zeros::<T>(&prepared.output_shape())?;
        let mut presents = match node.outputs.has_presents {
            [false, false] => None,
            _ => {
                let [key, value] = prepared.present_shapes();
                Some([zeros::<C>(&key)?, zeros::<C>(&value)?])
            }
        };
        let mut scores = node.op.has_scores().then(|| zeros::<T>(&prepared.scores_shape())).transpose()?;
        {
            let mut output = output.try_as_plain_ram_mut()?;
            let mut outputs = Outputs::new(output.as_slice_mut::<T>()?);
            let mut of_presents = match &mut presents {
                Some([key, value]) => Some([key.try_as_plain_ram_mut()?, value.try_as_plain_ram_mut()?]),
                None => None,
            };
            if let Some([key, value]) = &mut of_presents {
                outputs = outputs.present(key.as_slice_mut()?, value.as_slice_mut()?);
            }
            let mut of_scores = scores.as_mut().map(Tensor::try_as_plain_ram_mut).transpose()?;
            if let Some(scores) = &mut of_scores {
                outputs = outputs.scores(scores.as_slice_mut()?);
            }
            let ran = prepared.run(&inputs_of_call, &mut outputs, scratch, threads.executor());
            ran.map_err(|error| node.error(error))?;
        }
        let presents = presents.into_iter().flatten().zip(node.outputs.has_presents);
        let presents = presents.filter_map(|(present, is_given)| is_given.then_some(present));
        Ok([output].into_iter().chain(presents).chain(scores).map(Tensor::into_tvalue).collect())
    }

    /// Returns the call that is prepared for the shapes of these inputs.
    fn prepare(
        &mut self,
        node: &AttentionNode,
        inputs: &[TValue],
        operands: &Operands<'_, TValue>,
        threads: usize,
    ) -> TractResult<&mut PreparedCall> {
        let is_same = |last: &PreparedCall| {
            last.threads == threads
                && last.shapes.iter().map(|shape| &**shape).eq(inputs.iter().map(|tensor| tensor.shape()))
        };
        let last = match self.last.take().filter(is_same) {
            Some(last) => last,
            None => {
                let elements = facts::elements(node, operands, |tensor| tensor.datum_type());
                let [element, cached] = elements.map_err(|why| node.error(why))?;
                let shapes = operands.shapes(element, |tensor| Some(tensor.shape()));
                let shapes = shapes.context("a tensor has a shape")?;
                let prepared = node.operator(cached).prepare(&shapes).map_err(|error| node.error(error))?;
                let scratch = prepared.scratch(threads);
                let shapes = inputs.iter().map(|tensor| tensor.shape().into()).collect();
                PreparedCall { shapes, threads, prepared, scratch }
            }
        };
        Ok(self.last.insert(last))
    }
}

/// Returns the inputs of a call as slices.
fn translate<'a, T: Float + Datum, C: Datum>(
    operands: &Operands<'a, TValue>,
) -> TractResult<Inputs<'a, T, C>> {
    let mask = match operands.mask {
        Some(mask) if mask.datum_type() == DatumType::Bool => {
            Some(Mask::Bool(mask.try_as_plain_ram()?.as_bytes()))
        }
        Some(mask) => Some(Mask::Float(slice(mask)?)),
        None => None,
    };
    let past = match operands.past {
        Some([key, value]) => Some([slice(key)?, slice(value)?]),
        None => None,
    };
    let valid = operands.lengths.map_or(Ok(Valid::All), |lengths| slice(lengths).map(Valid::Lengths))?;
    let scales = match operands.scales {
        Some([key, value]) => Some(Scales::Rows { key: slice(key)?, value: slice(value)? }),
        None => None,
    };
    let [key, value] = [operands.key, operands.value].map(|tensor| slice(tensor));
    Ok(Inputs { mask, past, valid, scales, ..Inputs::new(slice(operands.query)?, key?, value?) })
}

fn slice<T: Datum>(tensor: &Tensor) -> TractResult<&[T]> {
    tensor.try_as_plain_ram()?.as_slice()
}

fn zeros<T: Datum>(shape: &[usize]) -> TractResult<Tensor> {
    Tensor::zero_dt(T::datum_type(), shape)
}
