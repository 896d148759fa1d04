//! One call of the node of a layer.
//!
//! The call rotates the new queries and keys, writes keys and values to the caches, and attends to them. If it returns
//! an error, no cache has changed. So everything that can fail comes first: every index, length and position is
//! checked, all outputs are requested, and their memory is compared with that of all inputs. Only then are the writes
//! executed.

use std::sync::Arc;

use half::{bf16, f16};
use kvscatter::{ElementType, Layout, Prepared, WritePlan};
use kvscatter_attention::{Float, Inputs, Operand, Outputs, Shapes};

use super::arrange::{Arrangement, by_token};
use super::call::{Cache, LayerCall};
use super::heads::{Heads, reshaped};
use super::{Layer, Write};
use crate::context::Context;
use crate::input::{InputTensor, elements_at, range};
use crate::operators::attention::call::{MaskElements, PreparedCall};
use crate::operators::attention::declaration::Declaration;
use crate::operators::attention::memory::{OutputMemory, check_separate};
use crate::operators::{Attention, Operator, TensorScatter};
use crate::recent::RecentlyPrepared;
use crate::status::CallError;
use crate::workspace::{Workspace, elements_mut, words};
use crate::write::{CheckedWrite, RequestedWrite, check_memory, common_element};

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
        match call.query.element().map_err(Attention::with_operator_name)? {
            ElementType::Float16 => self.compute_as::<f16>(context, &call),
            ElementType::BFloat16 => self.compute_as::<bf16>(context, &call),
            // An input of another type is refused by its type.
            _ => self.compute_as::<f32>(context, &call),
        }
    }

    fn compute_as<T: Float>(&self, context: &Context<'_>, call: &LayerCall<'_>) -> Result<(), CallError> {
        let prepare = || PreparedLayer::new::<T>(self, context, call);
        let mut prepared = self.recent.get(call.signatures(), prepare)?;
        self.workspace.with(prepared.sizes, |memory| prepared.run::<T>(self, context, call, memory))
    }

    /// Checks that the outputs share no memory with an input or with each other, except that a cache may be written in
    /// place.
    fn check_separate<T>(
        &self,
        call: &LayerCall<'_>,
        keys: &RequestedWrite<'_>,
        values: &RequestedWrite<'_>,
        output: &OutputMemory<T>,
    ) -> Result<(), CallError> {
        let Self { layer, names, .. } = self;
        let outputs = [
            (layer.key.present, range(keys.present())),
            (layer.value.present, range(values.present())),
            (layer.output, output.addresses().1),
        ];
        let outputs = outputs.map(|(index, memory)| (name(&names.outputs, index), memory));
        // A past that is written in place is the memory of an output, with which the others are compared. `find` has
        // checked that it is no other input of the layer.
        let in_place = [(&layer.key, keys), (&layer.value, values)]
            .map(|(write, requested)| requested.is_in_place().then_some(write.past));
        let inputs = call.addresses()?;
        let inputs = inputs.iter().enumerate().filter(|(index, _)| !in_place.contains(&Some(*index)));
        let inputs = inputs.map(|(index, memory)| (name(&names.inputs, index), memory.clone()));
        check_separate(outputs.into_iter(), inputs)
            .map_err(|failure| CallError::fail(format!("kvscatter: {failure}")))
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
    /// The sizes of the working memory for queries, keys, values and the output of attention.
    sizes: [usize; 4],
}

struct PreparedRows {
    arrangement: Arrangement,
    write: Prepared,
}

impl PreparedLayer {
    fn new<T: Float>(
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
                past.check_element(const { &[T::ELEMENT] })?;
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
            PreparedCall::for_shapes(declaration, &shapes)
        };
        let attention = prepare().map_err(Attention::with_operator_name)?;
        let output = rows.output(values.arrangement.rows.size, layer.is_output_by_token);
        let output_shape = match &call.output_shape {
            Some(shape) => reshaped(shape, &output.shape())?,
            None => Vec::from(output.shape()),
        };
        let of_output = if output.keeps_order(false) { 0 } else { output.len() };
        let sizes = [query.memory(), keys.arrangement.memory(), values.arrangement.memory(), of_output];
        Ok(Self { query, keys, values, attention, output, output_shape, sizes: sizes.map(words) })
    }

    fn run<T: Float>(
        &mut self,
        kernel: &LayerKernel,
        context: &Context<'_>,
        call: &LayerCall<'_>,
        [query_memory, key_memory, value_memory, by_head]: [&mut [u64]; 4],
    ) -> Result<(), CallError> {
        let LayerKernel { layer, .. } = kernel;
        let Self { query, keys, values, attention, output: rows, output_shape, .. } = self;

        attention.check_valid(call.valid()).map_err(Attention::with_operator_name)?;
        let mask = call.mask.as_ref().map(MaskElements::<T>::read).transpose();
        let mask = mask.map_err(Attention::with_operator_name)?;
        let queries = call.query.floats::<T>().map_err(Attention::with_operator_name)?;
        let queries = query.apply(call, &layer.query, &queries, query_memory)?;
        let new_keys = call.key.rows.floats::<T>().map_err(TensorScatter::with_operator_name)?;
        let new_keys = keys.arrangement.apply(call, &layer.key.rows, &new_keys, key_memory)?;
        let new_values = call.value.rows.floats::<T>().map_err(TensorScatter::with_operator_name)?;
        let new_values = values.arrangement.apply(call, &layer.value.rows, &new_values, value_memory)?;
        let request = || {
            let of_keys = keys.request(context, &call.key, new_keys, layer.key.present)?;
            Ok((of_keys, values.request(context, &call.value, new_values, layer.value.present)?))
        };
        let ((key_plan, key_write), (value_plan, value_write)) =
            request().map_err(TensorScatter::with_operator_name)?;
        let output = OutputMemory::<T>::request(context, layer.output, Operand::Output, output_shape);
        let output = output.map_err(Attention::with_operator_name)?;
        kernel.check_separate(call, &key_write, &value_write, &output)?;

        // Nothing below fails. The core refuses only buffers of other lengths, impossible addresses and buffers that
        // overlap, and attention only slices of other lengths. `request` and `check_separate` have excluded them.
        // SAFETY: `check_separate` has compared the output with all inputs. Only the past may be the same memory, which
        // nothing borrows.
        let key = unsafe { key_write.execute(&key_plan) }.map_err(TensorScatter::with_operator_name)?;
        // SAFETY: As for the keys, whose memory nothing borrows yet.
        let value = unsafe { value_write.execute(&value_plan) }.map_err(TensorScatter::with_operator_name)?;
        // SAFETY: The write has initialised its output, which is valid until this call returns (R2). No other output
        // of this call shares its memory, as `check_separate` has checked.
        let key = unsafe { elements_at::<T>(key) };
        // SAFETY: As for the keys.
        let value = unsafe { elements_at::<T>(value) };
        let inputs = Inputs {
            mask: mask.as_ref().map(MaskElements::as_mask),
            valid: call.valid(),
            ..Inputs::new(queries, &key, &value)
        };
        // SAFETY: `check_separate` has accepted the memory, which is used only here.
        let output = unsafe { output.into_slice() };
        let mut compute = |outputs: &mut Outputs<'_, T>| {
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

impl PreparedRows {
    fn new(
        write: &Write,
        context: &Context<'_>,
        call: &LayerCall<'_>,
        cache: &Cache<'_>,
    ) -> Result<Self, CallError> {
        let rows = call.heads(&write.rows, &cache.rows)?;
        let Heads { batch, heads, tokens, size, is_by_token, .. } = rows;
        let shape = [batch, heads, tokens, size];
        let strides = [tokens * heads * size, size, heads * size, 1].map(|stride| stride as isize);
        let layout = match is_by_token && tokens > 1 {
            true => Layout::strided(&shape, &strides),
            false => Layout::dense(&shape),
        };
        let element = common_element(&cache.past, &cache.rows)?;
        let prepared = write.operator.prepare(element, &cache.past.sizes()?, layout)?;
        check_memory(context, &cache.past, prepared.geometry().cache_bytes())?;
        Ok(Self { arrangement: Arrangement::new(&write.rows, rows, is_by_token), write: prepared })
    }

    /// Plans a write of these rows, and requests its output.
    fn request<'a, T: Float>(
        &'a self,
        context: &'a Context<'a>,
        cache: &'a Cache<'a>,
        rows: &'a [T],
        output: usize,
    ) -> Result<(WritePlan<'a>, RequestedWrite<'a>), CallError> {
        let indices = cache.indices.as_deref();
        let plan = self.write.plan_with_lengths(indices, None::<&[i64]>)?;
        let rows = bytemuck::cast_slice(rows);
        Ok((plan, CheckedWrite::new(&self.write, context, &cache.past, rows, output).request()?))
    }
}
