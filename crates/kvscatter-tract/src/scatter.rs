//! The `TensorScatter-24` operator. It writes a cache in place unless the plan shares the cache with another
//! value.

mod quantised;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::{Dimension, PartialTensor};
use kvscatter::{ElementType, Mode, PlannedWrite, Positions, Prepared, WritePlan, write_all};
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_hir::internal::*;

use crate::attributes::{Attributes, given_index};
use crate::element;
use crate::error::{NodeError, label};

pub(crate) use quantised::build as build_quantised;

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let inputs = node.input.len();
    if given_index(&node.input, 0).is_none() || given_index(&node.input, 1).is_none() || inputs > 3 {
        return Err(NodeError::new(node, format!("takes 2 or 3 inputs, got {inputs}")).into());
    }
    if given_index(&node.output, 0).is_none() || node.output.len() != 1 {
        return Err(NodeError::new(node, format!("has 1 output, got {}", node.output.len())).into());
    }
    Ok((expand(Scatter::new(node, 2)?), vec![]))
}

/// Returns how often each node of this state has copied its cache, by the nodes' names.
///
/// A node copies its cache if another value shares it. Nodes that have not copied are omitted. The counts
/// last as long as the state. A plan that is run without a state creates and drops a state in every call.
#[must_use]
pub fn cache_copy_counts(state: &TypedSimpleState) -> Vec<(String, u64)> {
    let nodes = state.model().nodes().iter().zip(&state.op_states);
    nodes
        .filter_map(|(node, op_state)| {
            let scatter = op_state.as_ref()?.downcast_ref::<ScatterState>()?;
            (scatter.copies > 0).then(|| (node.name.clone(), scatter.copies))
        })
        .collect()
}

/// The operator of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    node: String,
    write: TensorScatter,
    takes_indices: bool,
}

impl Scatter {
    /// Reads the attributes of a node. `indices` is the index of its input `write_indices`, which is optional.
    fn new(node: &NodeProto, indices: usize) -> Result<Self, NodeError> {
        let attributes = Attributes::read(node, &["axis", "mode"])?;
        let mut write = TensorScatter::new();
        if let Some(axis) = attributes.integer("axis")? {
            write = write.axis(axis);
        }
        if let Some(mode) = attributes.string("mode")? {
            let mode: Mode =
                mode.parse().map_err(|error| NodeError::new(node, format!("{error}, got {mode:?}")))?;
            write = write.mode(mode);
        }
        let takes_indices = given_index(&node.input, indices).is_some();
        Ok(Self { node: label(node), write, takes_indices })
    }

    fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: "TensorScatter".to_owned(), why: why.to_string() }
    }

    fn element(&self, datum: DatumType) -> Result<ElementType, NodeError> {
        element::ours(datum).ok_or_else(|| self.error(format!("no ONNX tensor is of type {datum:?}")))
    }

    /// Checks the rules that can be checked before all shapes are known.
    fn check(&self, inputs: &[&TypedFact]) -> TractResult<()> {
        let (Some(cache), Some(update)) = (inputs.first(), inputs.get(1)) else {
            return Err(self.error("takes 2 or 3 inputs").into());
        };
        let (cache_shape, update_shape) = (dimensions(cache), dimensions(update));
        let indices_shape = inputs.get(2).map(|fact| dimensions(fact));
        let inferred = |fact: &TypedFact, shape| -> Result<PartialTensor<'_>, NodeError> {
            Ok(PartialTensor { element: Some(self.element(fact.datum_type)?), shape: Some(shape) })
        };
        let indices = match (inputs.get(2), &indices_shape) {
            (Some(fact), Some(shape)) => Some(inferred(fact, shape)?),
            _ => None,
        };
        self.write
            .infer(inferred(cache, &cache_shape)?, inferred(update, &update_shape)?, indices)
            .map_err(|error| self.error(error))?;
        Ok(())
    }
}

/// Returns a shape, of which some dimensions may be unknown.
fn dimensions(fact: &TypedFact) -> Vec<Dimension<'static>> {
    let known = |dim: &TDim| dim.to_usize().map_or(Dimension::Unknown, Dimension::Known);
    fact.shape.iter().map(known).collect()
}

impl Expansion for Scatter {
    fn name(&self) -> StaticName {
        "TensorScatter".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2 + usize::from(self.takes_indices))?;
        check_output_arity(outputs, 1)?;
        let ([cache, ..], [present]) = (inputs, outputs) else { bail!("inputs are missing") };
        // The core checks the other rules when the shapes are known.
        solver.equals(&cache.datum_type, &present.datum_type)?;
        solver.equals(&cache.shape, &present.shape)?;
        Ok(())
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut inputs: TVec<OutletId> = inputs.into();
        if let Some(indices) = inputs.get_mut(2) {
            *indices = as_int64(&format!("{prefix}.write_indices"), model, *indices)?;
        }
        model.wire_node(prefix, self.clone(), &inputs)
    }
}

/// Casts numbers that tract computes from shapes to int64. They are int64 in the file, but tract changes
/// their type.
pub(crate) fn as_int64(name: &str, model: &mut TypedModel, value: OutletId) -> TractResult<OutletId> {
    if model.outlet_fact(value)?.datum_type != TDim::datum_type() {
        return Ok(value);
    }
    let wired = model.wire_node(name, cast(i64::datum_type()), &[value])?;
    wired.first().copied().context("a cast has one output")
}

impl Op for Scatter {
    fn name(&self) -> StaticName {
        "TensorScatter".into()
    }

    op_as_typed_op!();
}

impl TypedOp for Scatter {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        self.check(inputs)?;
        Ok(inputs.first().map(|cache| cache.without_value()).into_iter().collect())
    }

    as_op!();
}

impl EvalOp for Scatter {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        Ok(Some(self.run(&mut ScatterState::new::<Self>(), inputs)?))
    }

    fn state(&self, _: &EvalContext<'_>) -> TractResult<Option<Box<dyn OpState>>> {
        Ok(Some(Box::new(ScatterState::new::<Self>())))
    }
}

/// The state of a node between runs.
#[derive(Clone, Debug)]
pub(crate) struct ScatterState {
    /// Runs the node's operator.
    eval: Eval,
    /// What was prepared for each cache.
    last: Vec<Option<Shapes>>,
    copies: u64,
    /// The caches during a call. They stay here after an error and after a panic.
    held: Vec<Arc<Tensor>>,
}

type Eval = fn(&dyn Op, &mut ScatterState, TVec<TValue>) -> TractResult<TVec<TValue>>;

/// An operator that writes caches.
trait WritesCaches: Op {
    fn run(&self, state: &mut ScatterState, inputs: TVec<TValue>) -> TractResult<TVec<TValue>>;
}

impl WritesCaches for Scatter {
    fn run(&self, state: &mut ScatterState, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let mut inputs = inputs.into_iter();
        let (Some(cache), Some(update)) = (inputs.next(), inputs.next()) else {
            return Err(self.error("takes 2 or 3 inputs").into());
        };
        let indices = inputs.next();
        state.hold([cache]);
        state.write(self, &[&update], indices.as_deref())
    }
}

/// The shapes of the last call and the write that was prepared for them.
#[derive(Clone, Debug)]
struct Shapes {
    datum: DatumType,
    cache: TVec<usize>,
    update: TVec<usize>,
    prepared: Prepared,
}

impl ScatterState {
    /// Returns the state of a node with this operator.
    fn new<O: WritesCaches>() -> Self {
        let eval = |op: &dyn Op, state: &mut Self, inputs: TVec<TValue>| {
            op.downcast_ref::<O>().context("the state of another operator")?.run(state, inputs)
        };
        Self { eval, last: Vec::new(), copies: 0, held: Vec::new() }
    }

    /// Returns the caches of a call that failed or panicked. A part of their rows may have been written.
    pub(crate) fn take_held(&mut self) -> TVec<TValue> {
        self.held.drain(..).map(TValue::from_const).collect()
    }

    /// Keeps the caches of a call. The plan has dropped its own references, so an error or a panic would drop caches
    /// that are not kept here.
    fn hold(&mut self, caches: impl IntoIterator<Item = TValue>) {
        self.held = caches.into_iter().map(TValue::into_arc_tensor).collect();
    }

    /// Writes all caches that are held, or none. Returns them.
    fn write(
        &mut self,
        op: &Scatter,
        updates: &[&Tensor],
        indices: Option<&Tensor>,
    ) -> TractResult<TVec<TValue>> {
        self.last.resize_with(self.held.len(), Default::default);
        let calls = self.last.iter_mut().zip(&self.held).zip(updates);
        let plans = calls.map(|((last, cache), update)| plan(last, op, cache, update, indices));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        self.copies += self.held.iter().map(|cache| u64::from(Arc::strong_count(cache) > 1)).sum::<u64>();
        // This copies a cache if and only if it is shared.
        let presents = self.held.iter_mut().map(Arc::make_mut);
        write(&plans, presents.collect(), updates).map_err(|error| op.error(error))?;
        Ok(self.take_held())
    }
}

/// Checks everything about one call, so that the write after it cannot fail.
fn plan<'a>(
    last: &'a mut Option<Shapes>,
    op: &Scatter,
    cache: &Tensor,
    update: &Tensor,
    indices: Option<&'a Tensor>,
) -> Result<WritePlan<'a>, NodeError> {
    let (datum, shape, rows) = (cache.datum_type(), cache.shape(), update.shape());
    if update.datum_type() != datum {
        return Err(op.error(format!("past_cache is {datum:?}, update {:?}", update.datum_type())));
    }
    let is_same = |last: &Shapes| last.datum == datum && *last.cache == *shape && *last.update == *rows;
    if !last.as_ref().is_some_and(is_same) {
        let prepared = op.write.prepare(op.element(datum)?, shape, rows).map_err(|error| op.error(error))?;
        *last = Some(Shapes { datum, cache: shape.into(), update: rows.into(), prepared });
    }
    let Some(Shapes { prepared, .. }) = last else { return Err(op.error("nothing was prepared")) };
    let starts = match indices {
        None => Positions::Zero,
        Some(indices) => {
            let view = indices.try_as_plain_ram().map_err(|error| op.error(error))?;
            Positions::from(view.as_slice::<i64>().map_err(|error| op.error(error))?)
        }
    };
    prepared.plan(starts).map_err(|error| op.error(error))
}

fn write(plans: &[WritePlan<'_>], presents: Vec<&mut Tensor>, updates: &[&Tensor]) -> TractResult<()> {
    let mut presents =
        presents.into_iter().map(Tensor::try_as_plain_ram_mut).collect::<TractResult<Vec<_>>>()?;
    if let ([plan], [present], [update]) = (plans, &mut *presents, updates)
        && update.datum_type() == String::datum_type()
    {
        let _ =
            plan.write_cloned(present.as_slice_mut::<String>()?, update.try_as_plain_ram()?.as_slice()?)?;
        return Ok(());
    }
    let mut writes = Vec::with_capacity(plans.len());
    for ((plan, present), update) in plans.iter().zip(&mut presents).zip(updates) {
        let update = update.try_as_plain_ram()?.as_bytes();
        writes.push(PlannedWrite { plan: *plan, cache: present.as_bytes_mut(), update });
    }
    Ok(write_all(&mut writes)?)
}

impl OpState for ScatterState {
    fn eval(&mut self, _: &EvalContext<'_>, op: &dyn Op, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        (self.eval)(op, self, inputs)
    }

    fn reset_lanes(&mut self, _: &[LaneId]) -> TractResult<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::hash::Hasher;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use kvscatter::spec::onnx::TensorScatter;
    use tract_onnx::tract_hir::internal::*;

    use super::{Scatter, ScatterState, WritesCaches};

    /// The storage of a tensor that cannot be read. A read fails or panics.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Unreadable {
        panics: bool,
    }

    impl fmt::Display for Unreadable {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("unreadable")
        }
    }

    impl TensorStorage for Unreadable {
        fn byte_len(&self) -> usize {
            0
        }

        fn is_empty(&self) -> bool {
            false
        }

        fn deep_clone(&self) -> Box<dyn TensorStorage> {
            Box::new(self.clone())
        }

        fn as_plain_ram(&self) -> Option<&PlainStorage> {
            None
        }

        fn as_plain_ram_mut(&mut self) -> Option<&mut PlainStorage> {
            None
        }

        fn into_plain_ram(self: Box<Self>) -> Option<PlainStorage> {
            None
        }

        fn dyn_hash(&self, _: &mut dyn Hasher) {}

        fn exotic_fact(&self, _: &[usize]) -> TractResult<Option<Box<dyn ExoticFact>>> {
            Ok(None)
        }

        fn materialize_plain_ram(&self) -> TractResult<&PlainStorage> {
            if self.panics {
                resume_unwind(Box::new("a panic"));
            }
            bail!("unreadable")
        }
    }

    #[test]
    fn a_cache_is_kept_by_a_write_that_fails_or_panics() {
        let op = Scatter { node: "write".to_owned(), write: TensorScatter::new(), takes_indices: false };
        let mut state = ScatterState::new::<Scatter>();
        for panics in [false, true] {
            let cache = Tensor::zero::<f32>(&[1, 1, 4, 2]).unwrap().into_tvalue();
            let address = cache.as_bytes().as_ptr();
            let update = Tensor::from_storage(f32::datum_type(), &[1, 1, 1, 2], Unreadable { panics });
            let inputs = tvec![cache, update.into_tvalue()];
            let ran = catch_unwind(AssertUnwindSafe(|| op.run(&mut state, inputs)));
            assert_eq!(ran.is_err(), panics);
            assert!(!ran.is_ok_and(|ran| ran.is_ok()));
            let kept = state.take_held().pop().expect("the cache is kept");
            assert_eq!((kept.as_bytes().as_ptr(), kept.is_exclusive()), (address, true));
        }
    }
}
