//! The evaluation itself: types, placement, then node by node.

use std::collections::BTreeMap;

use kvscatter::{Starts, WritePlan};

use super::placement::place;
use super::{
    Evaluation, Evaluator, Feed, NodeReport, NotInPlace, Op, Outcome, OutputCopy, Placement, Report,
    TensorType, Types, add,
};
use crate::{Data, DataMut, Error, Node, Tensor, storage_len};

/// Values during evaluation. Several names may stand for one buffer.
struct Values<'a> {
    buffers: Vec<Buffer<'a>>,
    buffer_of: BTreeMap<&'a str, usize>,
    memory: Memory,
}

enum Buffer<'a> {
    Borrowed(&'a Tensor),
    Owned(Tensor),
    /// Now the output of this number.
    Output(usize),
}

/// Bytes that may still be allocated.
struct Memory {
    limit: usize,
    left: usize,
}

pub(super) fn run<'a, 'm>(
    evaluator: &'a Evaluator<'m>,
    feeds: BTreeMap<&str, Feed<'a>>,
    placement: Placement,
    observe: &mut dyn FnMut(&Node<'m>, &WritePlan<'_>),
) -> Result<Evaluation, Error> {
    let mut feeds = feeds;
    let types = evaluator.infer(&feed_types(evaluator, &feeds)?)?;
    let is_donated = |name: &str| feeds.get(name).map(|feed| matches!(feed, Feed::Donated(_)));
    let reasons = place(evaluator, is_donated, placement)?;

    let mut values = Values {
        buffers: Vec::new(),
        buffer_of: BTreeMap::new(),
        memory: Memory { limit: evaluator.memory_limit, left: evaluator.memory_limit },
    };
    for (&name, tensor) in &evaluator.constants {
        values.add(name, Buffer::Borrowed(tensor));
    }
    for input in &evaluator.inputs {
        match feeds.remove(input.name) {
            Some(Feed::Borrowed(tensor)) => values.add(input.name, Buffer::Borrowed(tensor)),
            Some(Feed::Donated(tensor)) => values.add(input.name, Buffer::Owned(tensor)),
            None => {}
        }
    }
    let mut report = Report::default();
    for ((node, op), reason) in evaluator.graph.nodes().iter().zip(&evaluator.ops).zip(reasons) {
        let moved = values
            .run_node(op, &types, reason, &mut |plan| observe(node, plan))
            .map_err(|error| node.error(error))?;
        report.nodes.push(NodeReport {
            node: node.label(),
            output: op.output().to_owned(),
            outcome: moved.outcome,
            planned_bytes: moved.planned,
            moved_bytes: moved.moved,
        });
    }
    let outputs = values.into_outputs(evaluator, &mut report)?;
    Ok(Evaluation { outputs, report })
}

fn feed_types<'m>(
    evaluator: &Evaluator<'m>,
    feeds: &BTreeMap<&str, Feed<'_>>,
) -> Result<BTreeMap<&'m str, TensorType>, Error> {
    let mut types = BTreeMap::new();
    for input in &evaluator.inputs {
        match feeds.get(input.name) {
            Some(Feed::Borrowed(tensor)) => types.insert(input.name, TensorType::of(tensor)),
            Some(Feed::Donated(tensor)) => types.insert(input.name, TensorType::of(tensor)),
            None => None,
        };
    }
    match feeds.keys().find(|&&name| !types.contains_key(name)) {
        Some(&name) => Err(Error::InputUnknown { name: name.to_owned() }),
        None => Ok(types),
    }
}

/// A `TensorScatter` whose positions are checked.
struct Scatter<'p, 'a> {
    plan: WritePlan<'p>,
    past_cache: &'a str,
    update: &'a str,
    present_cache: &'a str,
    /// Bytes of the update.
    planned: usize,
}

/// What a node did.
struct Moved {
    outcome: Outcome,
    planned: usize,
    moved: usize,
}

impl Moved {
    fn nothing(outcome: Outcome) -> Self {
        Self { outcome, planned: 0, moved: 0 }
    }
}

impl<'a> Values<'a> {
    fn add(&mut self, name: &'a str, buffer: Buffer<'a>) {
        self.buffer_of.insert(name, self.buffers.len());
        self.buffers.push(buffer);
    }

    fn get(&self, name: &str) -> Result<&Tensor, Error> {
        let buffer = self.buffer_of.get(name).and_then(|&buffer| self.buffers.get(buffer));
        match buffer {
            Some(Buffer::Borrowed(tensor)) => Ok(tensor),
            Some(Buffer::Owned(tensor)) => Ok(tensor),
            Some(Buffer::Output(_)) | None => Err(Error::ValueMissing { name: name.to_owned() }),
        }
    }

    fn run_node(
        &mut self,
        op: &Op<'a>,
        types: &Types<'_>,
        reason: Option<NotInPlace>,
        observe: &mut dyn FnMut(&WritePlan<'_>),
    ) -> Result<Moved, Error> {
        match *op {
            Op::Constant { .. } => Ok(Moved::nothing(Outcome::Constant)),
            Op::Identity { input, output } => {
                if let Some(&buffer) = self.buffer_of.get(input) {
                    self.buffer_of.insert(output, buffer);
                }
                Ok(Moved::nothing(Outcome::Alias))
            }
            Op::Add { left, right, output } => {
                let ty = types.get(output).ok_or_else(|| missing(output))?;
                let len = storage_len(ty.element, &ty.shape)?;
                // The sum, and both operands at its size.
                self.memory.take(len.saturating_mul(3))?;
                let bytes = add::add(self.get(left)?, self.get(right)?, ty);
                let sum = Tensor::new(ty.element, ty.shape.to_vec(), Data::Bytes(bytes))?;
                self.add(output, Buffer::Owned(sum));
                Ok(Moved { outcome: Outcome::Computed, planned: 0, moved: len })
            }
            Op::TensorScatter { past_cache, update, write_indices, present_cache, .. } => {
                let starts = write_indices.map(|name| self.get(name).map(int64s)).transpose()?;
                let starts = starts.as_ref().map_or(Starts::Zero, Starts::from);
                let prepared = types.prepared(present_cache).ok_or_else(|| missing(present_cache))?;
                let scatter = Scatter {
                    plan: prepared.plan(starts)?,
                    past_cache,
                    update,
                    present_cache,
                    planned: size(self.get(update)?),
                };
                observe(&scatter.plan);
                match reason {
                    None => self.write_in_place(&scatter),
                    Some(reason) => self.write_copy(&scatter, reason),
                }
            }
        }
    }

    fn write_in_place(&mut self, scatter: &Scatter<'_, 'a>) -> Result<Moved, Error> {
        let &Scatter { ref plan, past_cache, update, present_cache, planned } = scatter;
        if plan.bytes().is_none() {
            // Strings are cloned, and may be longer than those they replace.
            self.memory.take(planned)?;
        }
        let buffer = self.buffer_of.get(past_cache).copied();
        let slot = buffer.and_then(|buffer| self.buffers.get_mut(buffer));
        // Taken out while it is written, so that the update can be read from its neighbours.
        let taken = slot.map(|slot| std::mem::replace(slot, Buffer::Output(0)));
        let (Some(buffer), Some(Buffer::Owned(mut cache))) = (buffer, taken) else {
            return Err(missing(past_cache));
        };
        let past_address = address(&cache);
        match (cache.data_mut(), self.get(update)?.data()) {
            (DataMut::Bytes(cache), Data::Bytes(update)) => plan.write_bytes(cache, update)?,
            (DataMut::Strings(cache), Data::Strings(update)) => plan.write_cloned(cache, update)?,
            _ => return Err(missing(update)),
        };
        let present_address = address(&cache);
        if let Some(slot) = self.buffers.get_mut(buffer) {
            *slot = Buffer::Owned(cache);
        }
        self.buffer_of.insert(present_cache, buffer);
        Ok(Moved {
            outcome: Outcome::InPlace { past_address, present_address },
            planned,
            moved: plan.bytes().unwrap_or(planned),
        })
    }

    fn write_copy(&mut self, scatter: &Scatter<'_, 'a>, reason: NotInPlace) -> Result<Moved, Error> {
        let &Scatter { ref plan, past_cache, update, present_cache, planned } = scatter;
        // A present cache is at most its past and its update together: strings may be longer than those they replace.
        self.memory.take(footprint(self.get(past_cache)?))?;
        self.memory.take(footprint(self.get(update)?))?;
        let past = self.get(past_cache)?;
        let data = match (past.data(), self.get(update)?.data()) {
            (Data::Bytes(past), Data::Bytes(update)) => {
                let mut present = vec![0; past.len()];
                plan.into_present_bytes(past, update, &mut present)?;
                Data::Bytes(present)
            }
            (Data::Strings(past), Data::Strings(update)) => {
                let mut present = vec![Vec::new(); past.len()];
                plan.into_present_cloned(past, update, &mut present)?;
                Data::Strings(present)
            }
            _ => return Err(missing(update)),
        };
        let present = Tensor::new(past.element(), past.shape().to_vec(), data)?;
        let moved = size(&present);
        self.add(present_cache, Buffer::Owned(present));
        Ok(Moved { outcome: Outcome::Copied { reason }, planned, moved })
    }

    /// Moves the buffers out; copies what does not belong to the evaluation, and what several outputs share.
    fn into_outputs(
        mut self,
        evaluator: &Evaluator<'_>,
        report: &mut Report,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let mut outputs: Vec<(String, Tensor)> = Vec::new();
        for output in &evaluator.outputs {
            let buffer = self.buffer_of.get(output.name).copied();
            let slot = buffer.and_then(|buffer| self.buffers.get_mut(buffer));
            let slot = slot.ok_or_else(|| missing(output.name))?;
            let shared = match std::mem::replace(slot, Buffer::Output(outputs.len())) {
                Buffer::Owned(tensor) => {
                    outputs.push((output.name.to_owned(), tensor));
                    continue;
                }
                Buffer::Borrowed(tensor) => {
                    *slot = Buffer::Borrowed(tensor);
                    Some(tensor)
                }
                Buffer::Output(earlier) => {
                    *slot = Buffer::Output(earlier);
                    outputs.get(earlier).map(|(_, tensor)| tensor)
                }
            };
            let shared = shared.ok_or_else(|| missing(output.name))?;
            self.memory.take(footprint(shared))?;
            report.output_copies.push(OutputCopy { output: output.name.to_owned(), bytes: size(shared) });
            outputs.push((output.name.to_owned(), shared.clone()));
        }
        Ok(outputs)
    }
}

impl Memory {
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let limit = self.limit;
        self.left = self.left.checked_sub(bytes).ok_or(Error::MemoryLimit { limit })?;
        Ok(())
    }
}

fn missing(name: &str) -> Error {
    Error::ValueMissing { name: name.to_owned() }
}

fn int64s(tensor: &Tensor) -> Vec<i64> {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect(),
        Data::Strings(_) => Vec::new(),
    }
}

/// Bytes of the values.
fn size(tensor: &Tensor) -> usize {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.len(),
        Data::Strings(strings) => strings.iter().map(Vec::len).fold(0, usize::saturating_add),
    }
}

/// Bytes of the values in memory.
fn footprint(tensor: &Tensor) -> usize {
    let strings = match tensor.data() {
        Data::Bytes(_) => 0,
        Data::Strings(strings) => strings.len().saturating_mul(size_of::<Vec<u8>>()),
    };
    size(tensor).saturating_add(strings)
}

fn address(tensor: &Tensor) -> usize {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.as_ptr().addr(),
        Data::Strings(strings) => strings.as_ptr().addr(),
    }
}
