//! Runs an evaluation: determines types and placement, then computes node by node.

use std::collections::BTreeMap;

use kvscatter::{Positions, WritePlan};

use super::evaluator::Evaluator;
use super::feed::Feed;
use super::memory::size;
use super::op::Op;
use super::placement::{Placement, place};
use super::report::{NodeReport, NotInPlace, Outcome, OutputCopy, Report};
use super::types::{TensorType, Types, missing};
use super::{add, memory};
use crate::{Data, EvalError, Node, OnnxError, Tensor};

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The graph's outputs with their names, in the order of the graph.
    pub outputs: Vec<(String, Tensor)>,
    /// How each node was evaluated, and where its output was written.
    pub report: Report,
}

impl<'m> Evaluator<'m> {
    /// Evaluates the graph.
    ///
    /// All types, shapes, placements and the required memory are checked before anything is computed.
    ///
    /// # Errors
    /// * Returns [`EvalError::InputMissing`] or [`EvalError::InputUnknown`] if the names of the feeds are not
    ///   those of the graph's inputs.
    /// * Returns [`EvalError::ValueType`], [`EvalError::ValueRank`], [`EvalError::ValueDim`],
    ///   [`EvalError::SymbolConflict`] or [`EvalError::RankTooLarge`] if a feed or an output does not match
    ///   its declaration.
    /// * Returns [`kvscatter::Error`], [`EvalError::AddType`], [`EvalError::AddTypes`],
    ///   [`EvalError::Broadcast`] or [`EvalError::NotInPlace`], wrapped in [`OnnxError::InNode`], if a node
    ///   cannot be evaluated.
    /// * Returns [`EvalError::MemoryLimit`] if the evaluation needs more memory than the limit.
    pub fn run(
        &self,
        feeds: BTreeMap<&str, Feed<'_>>,
        placement: Placement,
    ) -> Result<Evaluation, OnnxError> {
        self.run_observed(feeds, placement, &mut |_, _| {})
    }

    /// Evaluates the graph like [`run`](Self::run), and calls `observe` with the plan of every
    /// `TensorScatter` node just before the write.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    pub fn run_observed(
        &self,
        mut feeds: BTreeMap<&str, Feed<'_>>,
        placement: Placement,
        observe: &mut dyn FnMut(&Node<'m>, &WritePlan<'_>),
    ) -> Result<Evaluation, OnnxError> {
        let types = self.infer(&self.feed_types(&feeds)?)?;
        let is_donated = |name: &str| feeds.get(name).map(|feed| matches!(feed, Feed::Donated(_)));
        let placed = place(self, is_donated, placement)?;
        memory::check(self, &feeds, &types, &placed)?;

        let mut values = Values::default();
        for (&name, tensor) in &self.constants {
            values.add(name, ValueBuffer::Borrowed(tensor));
        }
        for input in &self.inputs {
            match feeds.remove(input.name) {
                Some(Feed::Borrowed(tensor)) => values.add(input.name, ValueBuffer::Borrowed(tensor)),
                Some(Feed::Donated(tensor)) => values.add(input.name, ValueBuffer::owned(tensor)),
                None => {}
            }
        }
        let mut report = Report::default();
        for ((node, op), reason) in self.graph.nodes().iter().zip(&self.ops).zip(placed.reasons) {
            let done = values
                .run_node(op, &types, reason, &mut |plan| observe(node, plan))
                .map_err(|error| node.error(error))?;
            report.nodes.push(NodeReport {
                node: node.label(),
                output: op.output().to_owned(),
                outcome: done.outcome,
                planned_bytes: done.planned,
                moved_bytes: done.moved,
            });
        }
        let outputs = values.into_outputs(self, &placed.output_copies, &mut report)?;
        Ok(Evaluation { outputs, report })
    }

    fn feed_types(
        &self,
        feeds: &BTreeMap<&str, Feed<'_>>,
    ) -> Result<BTreeMap<&'m str, TensorType>, OnnxError> {
        let mut types = BTreeMap::new();
        for input in &self.inputs {
            if let Some(feed) = feeds.get(input.name) {
                types.insert(input.name, TensorType::from_tensor(feed.tensor()));
            }
        }
        match feeds.keys().find(|&&name| !types.contains_key(name)) {
            Some(&name) => Err(EvalError::InputUnknown { name: name.to_owned() }.into()),
            None => Ok(types),
        }
    }
}

/// The values during evaluation. Several names may refer to one buffer.
#[derive(Default)]
struct Values<'a> {
    buffers: Vec<ValueBuffer<'a>>,
    buffer_of: BTreeMap<&'a str, usize>,
}

enum ValueBuffer<'a> {
    /// A buffer of the caller or the model.
    Borrowed(&'a Tensor),
    /// A buffer of the evaluation, with its first address.
    Owned { tensor: Tensor, entered: usize },
    /// A buffer that is being written or that has become an output.
    Taken,
}

/// A `TensorScatter` whose positions have been checked.
struct Scatter<'p, 'a> {
    plan: WritePlan<'p>,
    past_cache: &'a str,
    update: &'a str,
    present_cache: &'a str,
}

/// The outcome of a node, with the numbers of bytes for the report.
struct NodeOutcome {
    outcome: Outcome,
    planned: usize,
    moved: usize,
}

impl NodeOutcome {
    fn nothing(outcome: Outcome) -> Self {
        Self { outcome, planned: 0, moved: 0 }
    }
}

impl ValueBuffer<'_> {
    fn owned(tensor: Tensor) -> Self {
        Self::Owned { entered: tensor.address(), tensor }
    }
}

impl<'a> Values<'a> {
    fn add(&mut self, name: &'a str, buffer: ValueBuffer<'a>) {
        self.buffer_of.insert(name, self.buffers.len());
        self.buffers.push(buffer);
    }

    /// Returns the index of the buffer that a name refers to.
    fn index(&self, name: &str) -> Result<usize, OnnxError> {
        self.buffer_of.get(name).copied().ok_or_else(|| missing(name).into())
    }

    fn get(&self, name: &str) -> Result<&Tensor, OnnxError> {
        match self.buffers.get(self.index(name)?) {
            Some(ValueBuffer::Borrowed(tensor)) => Ok(tensor),
            Some(ValueBuffer::Owned { tensor, .. }) => Ok(tensor),
            Some(ValueBuffer::Taken) | None => Err(missing(name).into()),
        }
    }

    /// Takes a value of the evaluation out of its buffer. Returns the value and the first address of the
    /// buffer.
    fn take(&mut self, name: &str) -> Result<(Tensor, usize), OnnxError> {
        let index = self.index(name)?;
        let slot = self.buffers.get_mut(index).ok_or_else(|| missing(name))?;
        match std::mem::replace(slot, ValueBuffer::Taken) {
            ValueBuffer::Owned { tensor, entered } => Ok((tensor, entered)),
            other => {
                *slot = other;
                Err(missing(name).into())
            }
        }
    }

    fn run_node(
        &mut self,
        op: &Op<'a>,
        types: &Types<'_>,
        reason: Option<NotInPlace>,
        observe: &mut dyn FnMut(&WritePlan<'_>),
    ) -> Result<NodeOutcome, OnnxError> {
        match *op {
            Op::Constant { .. } => Ok(NodeOutcome::nothing(Outcome::Constant)),
            Op::Identity { input, output } => {
                let buffer = self.index(input)?;
                self.buffer_of.insert(output, buffer);
                Ok(NodeOutcome::nothing(Outcome::Alias))
            }
            Op::Add { left, right, output } => {
                let ty = types.value(output)?;
                let bytes = add::add(self.get(left)?, self.get(right)?, ty);
                let sum = Tensor::new(ty.element, ty.shape.to_vec(), Data::Bytes(bytes))?;
                let moved = size(&sum);
                self.add(output, ValueBuffer::owned(sum));
                Ok(NodeOutcome { outcome: Outcome::Computed, planned: 0, moved })
            }
            Op::TensorScatter { past_cache, update, write_indices, present_cache, .. } => {
                let starts = write_indices.map(|name| self.int64s(name)).transpose()?;
                let starts = starts.as_ref().map_or(Positions::Zero, Positions::from);
                let plan = types.prepared(present_cache)?.plan(starts)?;
                let scatter = Scatter { plan, past_cache, update, present_cache };
                observe(&scatter.plan);
                let planned = size(self.get(update)?);
                let (outcome, moved) = match reason {
                    None => self.write_in_place(&scatter)?,
                    Some(reason) => (Outcome::Copied { reason }, self.write_copy(&scatter)?),
                };
                Ok(NodeOutcome { outcome, planned, moved })
            }
        }
    }

    fn int64s(&self, name: &str) -> Result<Vec<i64>, OnnxError> {
        self.get(name)?.int64s().map(Iterator::collect).ok_or_else(|| missing(name).into())
    }

    /// Writes in place. Returns the outcome and the bytes that moved.
    fn write_in_place(&mut self, scatter: &Scatter<'_, 'a>) -> Result<(Outcome, usize), OnnxError> {
        let &Scatter { ref plan, past_cache, update, present_cache } = scatter;
        let buffer = self.index(past_cache)?;
        // The cache is taken out of its buffer during the write, so that the update can be borrowed from
        // another buffer.
        let (mut cache, entered) = self.take(past_cache)?;
        let new = self.get(update)?;
        let _ = cache.write(plan, new)?;
        let moved = moved(plan, new);
        let outcome = Outcome::InPlace { past_address: entered, present_address: cache.address() };
        if let Some(slot) = self.buffers.get_mut(buffer) {
            *slot = ValueBuffer::Owned { tensor: cache, entered };
        }
        self.buffer_of.insert(present_cache, buffer);
        Ok((outcome, moved))
    }

    /// Writes into a copy. Returns the bytes that moved.
    fn write_copy(&mut self, scatter: &Scatter<'_, 'a>) -> Result<usize, OnnxError> {
        let &Scatter { ref plan, past_cache, update, present_cache } = scatter;
        let past = self.get(past_cache)?;
        let data = match (past.data(), self.get(update)?.data()) {
            (Data::Bytes(past), Data::Bytes(update)) => {
                let mut present = vec![0; past.len()];
                let _ = plan.write_present_bytes(past, update, &mut present)?;
                Data::Bytes(present)
            }
            (Data::Strings(past), Data::Strings(update)) => {
                let mut present = vec![Vec::new(); past.len()];
                let _ = plan.write_present_cloned(past, update, &mut present)?;
                Data::Strings(present)
            }
            _ => return Err(missing(update).into()),
        };
        let present = Tensor::new(past.element(), past.shape().to_vec(), data)?;
        let moved = size(&present);
        self.add(present_cache, ValueBuffer::owned(present));
        Ok(moved)
    }

    /// Moves the buffers out as outputs. Buffers that must be copied are copied first.
    fn into_outputs(
        mut self,
        evaluator: &Evaluator<'_>,
        output_copies: &[bool],
        report: &mut Report,
    ) -> Result<Vec<(String, Tensor)>, OnnxError> {
        let outputs = || evaluator.outputs.iter().map(|output| output.name).zip(output_copies);
        let mut copies = BTreeMap::new();
        for (name, _) in outputs().filter(|(_, is_copy)| **is_copy) {
            let copy = self.get(name)?.clone();
            report.output_copies.push(OutputCopy { output: name.to_owned(), bytes: size(&copy) });
            copies.insert(name, copy);
        }
        let (mut moved_out, mut addresses) = (Vec::new(), BTreeMap::new());
        for (name, _) in outputs() {
            let tensor = match copies.remove(name) {
                Some(copy) => copy,
                None => {
                    let buffer = self.index(name)?;
                    let (tensor, _) = self.take(name)?;
                    addresses.insert(buffer, tensor.address());
                    tensor
                }
            };
            moved_out.push((name.to_owned(), tensor));
        }
        for node in &mut report.nodes {
            let left_at = self.buffer_of.get(node.output.as_str()).and_then(|buffer| addresses.get(buffer));
            if let (Outcome::InPlace { present_address, .. }, Some(&address)) = (&mut node.outcome, left_at) {
                *present_address = address;
            }
        }
        Ok(moved_out)
    }
}

/// Returns the bytes of the update in the blocks of a plan.
fn moved(plan: &WritePlan<'_>, update: &Tensor) -> usize {
    let mut moved = 0_usize;
    match update.data() {
        Data::Bytes(_) => {
            plan.for_each_block(|block| moved = moved.saturating_add(block.elements()));
            update.element().storage_len(&[moved]).unwrap_or(usize::MAX)
        }
        Data::Strings(strings) => {
            plan.for_each_block(|block| {
                block.for_each_run(|_, from| {
                    let run = strings.iter().skip(from).take(block.len);
                    moved = run.map(Vec::len).fold(moved, usize::saturating_add);
                });
            });
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::spec::onnx::TensorScatter;
    use kvscatter::{ElementType, Positions};

    use super::{Outcome, Scatter, ValueBuffer, Values};
    use crate::{Data, Tensor};

    fn bytes(shape: &[usize], bytes: &[u8]) -> Tensor {
        Tensor::new(ElementType::UInt8, shape.to_vec(), Data::Bytes(bytes.to_vec())).unwrap()
    }

    /// Returns the report of a write in place whose buffer is treated like this before the write.
    fn written_after(treat: impl Fn(Tensor) -> Tensor) -> (Outcome, usize) {
        let prepared =
            TensorScatter::new().axis(1).prepare(ElementType::UInt8, &[1, 4][..], &[1, 2][..]).unwrap();
        let mut values = Values::default();
        values.add("x", ValueBuffer::owned(bytes(&[1, 4], &[0; 4])));
        values.add("u", ValueBuffer::owned(bytes(&[1, 2], &[7, 9])));
        let (tensor, entered) = values.take("x").unwrap();
        values.buffers[0] = ValueBuffer::Owned { tensor: treat(tensor), entered };
        let plan = prepared.plan(Positions::Zero).unwrap();
        let scatter = Scatter { plan, past_cache: "x", update: "u", present_cache: "y" };
        let did = values.write_in_place(&scatter).unwrap();
        assert_eq!(values.get("y").unwrap(), &bytes(&[1, 4], &[7, 9, 0, 0]));
        did
    }

    #[test]
    fn a_buffer_that_is_exchanged_shows_in_the_addresses() {
        let address_pair = |outcome| match outcome {
            Outcome::InPlace { past_address, present_address } => (past_address, present_address),
            other => panic!("{other:?}"),
        };
        let (outcome, moved) = written_after(|tensor| tensor);
        let (past, present) = address_pair(outcome);
        assert_eq!((past, moved), (present, 2));
        // The old buffer is kept alive, so the new one cannot get the same address.
        let kept = std::cell::RefCell::new(Vec::new());
        let (outcome, _) = written_after(|tensor| {
            let copy = tensor.clone();
            kept.borrow_mut().push(tensor);
            copy
        });
        let (past, present) = address_pair(outcome);
        assert_ne!(past, present);
    }
}
