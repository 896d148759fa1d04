//! One call, and what is kept for the next call of the same shape.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Layout, NegativeIndex, RawBuffer, WritePlan};
use kvscatter_attention::{Attention, Float, GroupQuery, Inputs, Mask, Outputs, Prepared, Scratch, Shapes};

use super::inputs::{Sizes, Slots, StepInputs, Tensors};
use super::new_rows::{arrange, memory};
use super::present::{Present, copy_past};
use super::scales::{CacheRows, CacheScales};
use crate::context::Context;
use crate::input::range;
use crate::operators::attention::call::MIN_SHARED;
use crate::operators::attention::memory::{OutputMemory, check_separate};
use crate::status::CallError;
use crate::threads::thread_count;
use crate::workspace::{Workspace, words};

/// A call that is prepared for the types and shapes of its inputs.
pub(super) struct PreparedStep {
    operator: Attention,
    attention: Prepared,
    /// The write of new keys, and of new values.
    write: kvscatter::Prepared,
    /// The numbers of slots and of columns of the bias that `attention` and `write` are prepared for.
    lengths: [usize; 2],
    slots: Slots,
    /// Zeros, the scores of the sinks of `smooth_softmax`.
    sinks: Vec<u64>,
    scales: CacheScales,
}

/// The memory of the calls of a node.
#[derive(Clone, Copy)]
pub(super) struct StepMemory<'a> {
    pub(super) workspace: &'a Workspace,
    /// Whether the node has the caches after the call as outputs.
    pub(super) has_present: bool,
}

/// Where the caches after a call are.
#[derive(Clone, Copy)]
enum Presents {
    /// They are outputs.
    Outputs,
    /// They are the inputs, because the call has no new rows.
    Pasts,
    /// They are in this memory, which is valid until the call returns.
    Memory([RawBuffer; 2]),
}

impl PreparedStep {
    /// Prepares a call. Returns an error if the runtime's memory for an input has another size than its shape requires,
    /// or if a tensor is too large.
    pub(super) fn new<T: Float, C: CacheRows>(
        node: &GroupQuery,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
        call: &StepInputs<'_, T>,
    ) -> Result<Self, CallError> {
        let Sizes { heads, kv_heads, .. } = call.sizes;
        let operator = node.operator.heads(heads, kv_heads).cache_by_head().cache_element(C::ELEMENT);
        let has_sinks = node.is_smooth || call.sinks.is_some();
        let operator = if has_sinks { operator.sinks() } else { operator };
        check_memory(context, tensors)?;
        let attention = prepare_attention(&operator, call)?;
        Ok(Self {
            operator,
            attention,
            write: prepare_write::<C, T>(call)?,
            lengths: lengths(call),
            slots: Slots::default(),
            sinks: vec![0; if node.is_smooth { words(heads) } else { 0 }],
            scales: CacheScales::default(),
        })
    }

    /// Prepares the call for other numbers of slots and of columns of the bias, as each call with a growing cache has.
    fn resize<T: Float, C: CacheRows>(
        &mut self,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
        call: &StepInputs<'_, T>,
    ) -> Result<(), CallError> {
        if self.lengths == lengths(call) {
            return Ok(());
        }
        check_memory(context, tensors)?;
        let (attention, write) = (prepare_attention(&self.operator, call)?, prepare_write::<C, T>(call)?);
        (self.attention, self.write, self.lengths) = (attention, write, lengths(call));
        Ok(())
    }

    /// Executes a call. Returns an error if an input does not fit, and has written nothing then.
    pub(super) fn run<T: Float, C: CacheRows>(
        &mut self,
        step_memory: StepMemory<'_>,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
        call: &StepInputs<'_, T>,
    ) -> Result<(), CallError> {
        self.resize::<T, C>(context, tensors, call)?;
        call.find_slots(&mut self.slots)?;
        call.check_positions(&self.slots)?;
        if let Some([key, value]) = &call.scales {
            self.scales.set([key, value], call.sizes.kv_heads * call.sizes.size);
        }
        let [query, key, value] = memory::<T, C::Row>(call);
        let Sizes { batch, new, kv_heads, size, .. } = call.sizes;
        let codes = CacheScales::memory::<C>(batch * new * kv_heads * size);
        // A node without presents attends to caches that no output has. Without new rows, these are the pasts.
        let present = match step_memory.has_present || call.sizes.new == 0 {
            true => 0,
            false => words(cache_len(call)),
        };
        step_memory.workspace.with(
            [query, key, value, codes, codes, present, present],
            |[query, key, value, of_key, of_value, one, other]| {
                let presents = match (step_memory.has_present, call.sizes.new) {
                    (true, _) => Presents::Outputs,
                    (false, 0) => Presents::Pasts,
                    (false, _) => {
                        Presents::Memory([one, other].map(|memory| buffer::<C>(memory, cache_len(call))))
                    }
                };
                let make = || self.attention.scratch(thread_count()).share_from(MIN_SHARED);
                let memory = ([query, key, value], [of_key, of_value]);
                step_memory.workspace.with_scratch(&self.attention, make, |scratch| {
                    self.run_in::<T, C>(context, tensors, call, memory, presents, scratch)
                })
            },
        )
    }

    /// Executes a call in this memory.
    fn run_in<T: Float, C: CacheRows>(
        &self,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
        call: &StepInputs<'_, T>,
        (memory, [of_key, of_value]): ([&mut [u64]; 3], [&mut [u64]; 2]),
        presents: Presents,
        scratch: &mut Scratch,
    ) -> Result<(), CallError> {
        let Sizes { batch, rows, new, heads, kv_heads, size, .. } = call.sizes;
        let (slots, threads) = (call.slots(), context.threads());
        let plan = self.write.plan(self.slots.starts.as_slice())?.with_executor(&threads);
        self.attention.check_valid(self.slots.valid())?;

        let shape = [batch, rows, heads * size].map(|size| size as i64);
        let output = OutputMemory::<T, _>::request(context, 0, GroupQuery::OUTPUTS[0], &shape)?;
        let pasts = [tensors.past[0].memory()?, tensors.past[1].memory()?];
        let present_memory = match presents {
            Presents::Memory(memory) => memory,
            Presents::Pasts => pasts,
            Presents::Outputs => {
                let shape = [batch, kv_heads, slots, size].map(|size| size as i64);
                let request = |index: usize| {
                    OutputMemory::<C, _>::request(context, index, GroupQuery::OUTPUTS[index], &shape)
                };
                [request(1)?.buffer(), request(2)?.buffer()]
            }
        };
        let presents = [0, 1].map(|part| Present { past: pasts[part], memory: present_memory[part] });
        check_outputs(&output, presents, tensors, new > 0)?;

        // Everything is checked, so the errors below cannot occur.
        let (queries, [key, value]) = arrange::<T, C::Row>(call, &self.slots, memory, &threads)?;
        let news = [self.scales.stored::<C>(0, key, of_key), self.scales.stored::<C>(1, value, of_value)];
        // SAFETY: The pasts have the sizes of the call, are initialised and valid until the call returns (R2). The
        // presents have these sizes too: `OutputMemory` and `cache_len` compute them. `check_outputs` has compared
        // their memory with that of everything else.
        unsafe { copy_past(presents, call.sizes, slots, &self.slots, size_of::<C>(), &threads) };
        if new > 0 {
            write(&plan, presents, news)?;
        }
        let [key, value] = presents.map(|present| {
            // SAFETY: The present is initialised: its slots are copied, written or filled, or it is the past. It has
            // whole elements, and nothing writes to it until the call returns.
            unsafe { crate::input::elements_at::<C>(present.memory) }
        });
        let zeros = bytemuck::cast_slice::<u64, T>(&self.sinks).get(..heads);
        let inputs = Inputs {
            mask: call.bias.as_deref().map(Mask::Float),
            valid: self.slots.valid(),
            scales: self.scales.as_scales(),
            sinks: call.sinks.as_deref().or(zeros),
            ..Inputs::new(queries, &key, &value)
        };
        // SAFETY: `check_outputs` has accepted the memory, which is used only here.
        let mut outputs = Outputs::uninit(unsafe { output.into_slice() });
        Ok(self.attention.run(&inputs, &mut outputs, scratch, Some(&threads))?)
    }
}

/// Writes new keys and values, all or none.
fn write(plan: &WritePlan<'_>, presents: [Present; 2], news: [&[u8]; 2]) -> Result<(), CallError> {
    let pairs = [0, 1].map(|part| {
        let new = news[part];
        (presents[part].memory, RawBuffer { ptr: new.as_ptr().cast_mut(), len: new.len() })
    });
    // SAFETY: The presents are valid for reads and writes until the call returns, and the new rows for reads. The core
    // refuses buffers that overlap. Nothing else uses the presents.
    let _ = unsafe { plan.write_many_raw(pairs) }?;
    Ok(())
}

/// Checks that the outputs share no memory with an input or with each other, except that a cache may be written in
/// place. In place, a call without new rows writes nothing, so the cache is only an input.
fn check_outputs<T>(
    output: &OutputMemory<T, &'static str>,
    presents: [Present; 2],
    tensors: &Tensors<'_>,
    has_new: bool,
) -> Result<(), CallError> {
    let [_, key, value, _] = GroupQuery::OUTPUTS;
    let written = presents.map(|present| match has_new || !present.is_in_place() {
        true => range(present.memory),
        false => 0..0,
    });
    let [of_key, of_value] = written;
    let outputs = [output.addresses(), (key, of_key), (value, of_value)];
    // A past that is written in place is compared as an output.
    let in_place = presents.map(|present| has_new && present.is_in_place());
    let mut inputs = [const { ("", 0..0) }; GroupQuery::INPUTS.len()];
    for (place, tensor) in inputs.iter_mut().zip(tensors.all()) {
        *place = (tensor.role.0, tensor.addresses()?);
    }
    let in_place = [0, 1].map(|part| (tensors.past[part].role.0, in_place[part]));
    let inputs = inputs.iter().filter(|(name, _)| !in_place.contains(&(*name, true))).cloned();
    check_separate(outputs.into_iter(), inputs)
}

fn check_memory(context: &Context<'_>, tensors: &Tensors<'_>) -> Result<(), CallError> {
    tensors.all().try_for_each(|tensor| context.check_memory(tensor))
}

/// Returns the numbers of slots and of columns of the bias.
fn lengths<T: Float>(call: &StepInputs<'_, T>) -> [usize; 2] {
    [call.slots(), call.bias_shape.map_or(0, |[.., total]| total)]
}

/// Returns the number of elements of a present.
fn cache_len<T: Float>(call: &StepInputs<'_, T>) -> usize {
    let Sizes { batch, kv_heads, size, .. } = call.sizes;
    batch * kv_heads * call.slots() * size
}

/// Returns memory of so many elements of a cache.
fn buffer<C: CacheRows>(memory: &mut [u64], elements: usize) -> RawBuffer {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
    RawBuffer { ptr: bytes.as_mut_ptr(), len: elements * size_of::<C>() }
}

fn prepare_attention<T: Float>(
    operator: &Attention,
    call: &StepInputs<'_, T>,
) -> Result<Prepared, CallError> {
    let Sizes { batch, rows, heads, kv_heads, size, .. } = call.sizes;
    let cache = [batch, kv_heads, call.slots(), size];
    let shapes = Shapes {
        element: T::ELEMENT,
        query: &[batch, rows, heads * size],
        key: &cache,
        value: &cache,
        mask: call.bias_shape.as_ref().map(<[usize; 4]>::as_slice),
        past: None,
    };
    Ok(operator.prepare(&shapes)?)
}

/// Prepares the write of new rows, which are token after token.
fn prepare_write<C: CacheRows, T: Float>(call: &StepInputs<'_, T>) -> Result<kvscatter::Prepared, CallError> {
    let Sizes { batch, new, kv_heads, size, .. } = call.sizes;
    let update = [batch, kv_heads, new, size];
    let strides = [new * kv_heads * size, size, kv_heads * size, 1].map(|stride| stride as isize);
    let layout = if new > 1 { Layout::strided(&update, &strides) } else { Layout::dense(&update) };
    let operator = TensorScatter::new().axis(2).negative_index(NegativeIndex::Reject);
    Ok(operator.prepare(C::ELEMENT, &[batch, kv_heads, call.slots(), size], layout)?)
}
