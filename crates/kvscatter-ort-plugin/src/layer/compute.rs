//! One call of the node of a layer.
//!
//! The call rotates the new queries and keys, writes keys and values to the caches, and attends to them. If it returns
//! an error, no cache has changed. So everything that can fail comes first: every index, length and position is
//! checked, all outputs are requested, and their memory is compared with that of all inputs. Only then are the writes
//! executed.

use std::sync::Arc;

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{CacheElement, Float, Inputs, Operand, Outputs, Scales, Shapes};

use super::arrange::{Arrangement, by_token};
use super::call::{Cache, LayerCall};
use super::heads::{Heads, reshaped};
use super::stored_rows::{PreparedRows, RequestedRows};
use super::{Layer, Storage, Write};
use crate::context::Context;
use crate::input::{InputTensor, elements_at, range};
use crate::operators::attention::call::{MaskElements, PreparedCall};
use crate::operators::attention::declaration::Declaration;
use crate::operators::attention::memory::{OutputMemory, check_separate};
use crate::operators::{Attention, Operator, TensorScatter};
use crate::recent::RecentlyPrepared;
use crate::status::CallError;
use crate::workspace::{Workspace, elements_mut, words};

/// A layer whose values are inputs and outputs of a node, and what was prepared for its last calls.
pub(super) struct LayerKernel {
    layer: Layer,
    declaration: Declaration,
    names: Names,
    recent: RecentlyPrepared<PreparedLayer>,
    workspace: Arc<Workspace>,
}

/// The names of a node's inputs and outputs.
pub(super) struct Names {
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
}

impl LayerKernel {
    pub(super) fn new(
        layer: Layer,
        declaration: Declaration,
        names: Names,
        workspace: Arc<Workspace>,
    ) -> Self {
        Self { layer, declaration, names, recent: RecentlyPrepared::new(), workspace }
    }

    /// Executes one call. Returns an error if an input does not fit. Nothing has been written then.
    pub(super) fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let call = LayerCall::read(&self.layer, context)?;
        let query = call.query.element().map_err(Attention::with_operator_name)?;
        let cache = call.key.past.element().map_err(TensorScatter::with_operator_name)?;
        // An input of another type is refused by its type.
        match (self.layer.key.storage, query, cache) {
            (Storage::Codes { .. }, ..) => self.compute_as::<f32, i8>(context, &call),
            (Storage::Half, _, ElementType::Float16) => self.compute_as::<f32, f16>(context, &call),
            (Storage::Half, ..) => self.compute_as::<f32, bf16>(context, &call),
            (Storage::Same, ElementType::Float16, _) => self.compute_as::<f16, f16>(context, &call),
            (Storage::Same, ElementType::BFloat16, _) => self.compute_as::<bf16, bf16>(context, &call),
            (Storage::Same, ..) => self.compute_as::<f32, f32>(context, &call),
        }
    }

    fn compute_as<T: Float, C: CacheElement>(
        &self,
        context: &Context<'_>,
        call: &LayerCall<'_>,
    ) -> Result<(), CallError> {
        let prepare = || PreparedLayer::new::<T, C>(self, context, call);
        let mut prepared = self.recent.get(call.signatures(), prepare)?;
        self.workspace.with(prepared.sizes, |memory| prepared.run::<T, C>(self, context, call, memory))
    }

    /// Checks that the outputs share no memory with an input or with each other, except that a cache may be written in
    /// place.
    fn check_separate<T>(
        &self,
        call: &LayerCall<'_>,
        writes: [&RequestedRows<'_>; 2],
        output: &OutputMemory<T>,
    ) -> Result<(), CallError> {
        let Self { layer, names, .. } = self;
        let writes =
            || [&layer.key, &layer.value].into_iter().zip(writes).flat_map(|(of, rows)| rows.writes(of));
        let outputs = writes().map(|(_, index, requested)| (index, range(requested.present())));
        let outputs = outputs.chain([(layer.output, output.addresses().1)]);
        let outputs = outputs.map(|(index, memory)| (name(&names.outputs, index), memory));
        // A past that is written in place is the memory of an output, with which the others are compared. `find` has
        // checked that it is no other input of the layer.
        let is_in_place =
            |index: usize| writes().any(|(past, _, requested)| past == index && requested.is_in_place());
        let inputs = call.addresses()?;
        let inputs = inputs.iter().enumerate().filter(|(index, _)| !is_in_place(*index));
        let inputs = inputs.map(|(index, memory)| (name(&names.inputs, index), memory.clone()));
        check_separate(outputs, inputs).map_err(|failure| CallError::fail(format!("kvscatter: {failure}")))
    }
}

fn name(names: &[String], index: usize) -> &str {
    names.get(index).map_or("", String::as_str)
}

/// A layer that is prepared for the types and shapes of its inputs.
struct PreparedLayer {
    query: Arrangement,
    keys: PreparedRows,
    values: PreparedRows,
    attention: PreparedCall,
    /// The rows of the output of attention.
    output: Heads,
    /// The shape of the output of the node.
    output_shape: Vec<i64>,
    /// The sizes of the working memory for queries, the three parts of keys, those of values, and the output of
    /// attention. See [`PreparedRows::memory`].
    sizes: [usize; 8],
}

impl PreparedLayer {
    fn new<T: Float, C: CacheElement>(
        kernel: &LayerKernel,
        context: &Context<'_>,
        call: &LayerCall<'_>,
    ) -> Result<Self, CallError> {
        let LayerKernel { layer, declaration, .. } = kernel;
        call.check_memory(context)?;
        let rows = call.heads(&layer.query, &call.query).map_err(Attention::with_operator_name)?;
        let query = Arrangement::new(&layer.query, rows, false);
        let prepare = |write: &Write, cache: &Cache<'_>| {
            PreparedRows::new(write, context, call, cache).map_err(TensorScatter::with_operator_name)
        };
        let (keys, values) = (prepare(&layer.key, &call.key)?, prepare(&layer.value, &call.value)?);
        let prepare = || {
            let caches = [(&call.key, Operand::Key), (&call.value, Operand::Value)];
            let [key, value] = caches.map(|(cache, operand)| {
                let past = cache.past.with_role(operand);
                past.check_element(const { &[C::ELEMENT] })?;
                past.sizes()
            });
            let mask = call.mask.as_ref().map(InputTensor::sizes).transpose()?;
            let shapes = Shapes {
                element: T::ELEMENT,
                query: &[rows.batch, rows.heads, rows.tokens, rows.size],
                key: &key?,
                value: &value?,
                mask: mask.as_deref(),
                past: None,
            };
            PreparedCall::for_shapes(declaration.operator.cache_element(C::ELEMENT), &shapes)
        };
        let attention = prepare().map_err(Attention::with_operator_name)?;
        let output = rows.output(values.arrangement.rows.size, layer.is_output_by_token);
        let output_shape = match &call.output_shape {
            Some(shape) => reshaped(shape, &output.shape())?,
            None => Vec::from(output.shape()),
        };
        let of_output = if output.keeps_order(false) { 0 } else { output.len() };
        let ([k0, k1, k2], [v0, v1, v2]) = (keys.memory(), values.memory());
        let sizes = [query.memory(), k0, k1, k2, v0, v1, v2, of_output];
        Ok(Self { query, keys, values, attention, output, output_shape, sizes: sizes.map(words) })
    }

    fn run<T: Float, C: CacheElement>(
        &mut self,
        kernel: &LayerKernel,
        context: &Context<'_>,
        call: &LayerCall<'_>,
        [query_memory, k0, k1, k2, v0, v1, v2, by_head]: [&mut [u64]; 8],
    ) -> Result<(), CallError> {
        let LayerKernel { layer, .. } = kernel;
        let Self { query, keys, values, attention, output: rows, output_shape, .. } = self;

        attention.check_valid(call.valid()).map_err(Attention::with_operator_name)?;
        let mask = call.mask.as_ref().map(MaskElements::<T>::read).transpose();
        let mask = mask.map_err(Attention::with_operator_name)?;
        let queries = call.query.floats::<T>().map_err(Attention::with_operator_name)?;
        let queries = query.apply(call, &layer.query, &queries, query_memory)?;
        let new_keys = call.key.rows.floats::<T>().map_err(TensorScatter::with_operator_name)?;
        let new_keys = keys.new_rows(call, &layer.key, &new_keys, [k0, k1, k2])?;
        let new_values = call.value.rows.floats::<T>().map_err(TensorScatter::with_operator_name)?;
        let new_values = values.new_rows(call, &layer.value, &new_values, [v0, v1, v2])?;
        let request = || {
            let of_keys = keys.request(context, &layer.key, &call.key, &new_keys)?;
            Ok((of_keys, values.request(context, &layer.value, &call.value, &new_values)?))
        };
        let (of_keys, of_values) = request().map_err(TensorScatter::with_operator_name)?;
        let output = OutputMemory::<T>::request(context, layer.output, Operand::Output, output_shape);
        let output = output.map_err(Attention::with_operator_name)?;
        kernel.check_separate(call, [&of_keys, &of_values], &output)?;

        // Nothing below fails. The core refuses only buffers of other lengths, impossible addresses and buffers that
        // overlap, and attention only slices of other lengths. `request` and `check_separate` have excluded them.
        // SAFETY: `check_separate` has compared the outputs with all inputs. Only a past may be the same memory, which
        // nothing borrows.
        let [key, key_scales] = unsafe { of_keys.execute() }.map_err(TensorScatter::with_operator_name)?;
        // SAFETY: As for the keys, whose memory nothing borrows yet.
        let [value, value_scales] =
            unsafe { of_values.execute() }.map_err(TensorScatter::with_operator_name)?;
        // SAFETY: The write has initialised its output, which is valid until this call returns (R2). No other output
        // of this call shares its memory, as `check_separate` has checked.
        let key = unsafe { elements_at::<C>(key) };
        // SAFETY: As for the keys.
        let value = unsafe { elements_at::<C>(value) };
        // SAFETY: As for the keys.
        let key_scales = unsafe { elements_at::<f32>(key_scales) };
        // SAFETY: As for the keys.
        let value_scales = unsafe { elements_at::<f32>(value_scales) };
        let inputs = Inputs {
            mask: mask.as_ref().map(MaskElements::as_mask),
            valid: call.valid(),
            scales: matches!(layer.key.storage, Storage::Codes { .. })
                .then_some(Scales::Rows { key: &key_scales, value: &value_scales }),
            ..Inputs::new(queries, &key, &value)
        };
        // SAFETY: `check_separate` has accepted the memory, which is used only here.
        let output = unsafe { output.into_slice() };
        let mut compute = |outputs: &mut Outputs<'_, T, C>| {
            attention.compute(context, &inputs, outputs).map_err(Attention::with_operator_name)
        };
        if rows.keeps_order(false) {
            return compute(&mut Outputs::uninit(output));
        }
        let by_head = elements_mut::<T>(by_head, rows.len());
        compute(&mut Outputs::new(by_head))?;
        by_token(*rows, by_head, output);
        Ok(())
    }
}
