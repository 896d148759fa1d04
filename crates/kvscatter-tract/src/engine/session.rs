//! A plan that runs on the tensors of a session. Caches are moved into the plan and back. Other inputs are
//! shared with the plan if they are in tract's memory, and copied if not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kvscatter::ElementType;
use kvscatter_session::{Session, SessionError, Step, StepOutput, Tensor};
use tract_onnx::tract_hir::internal::*;

use super::memory::{self, TractMemory};
use super::messages::{self, label};
use crate::scatter::ScatterState;

/// A loaded model.
pub(super) struct TractSession {
    state: TypedSimpleState,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

/// A cache that has been moved into a run.
struct Cache {
    input: usize,
    output: usize,
    /// The address of the cache's first byte before the run.
    address: usize,
    /// A second reference, so that the cache can be returned if the present has another shape. tract cannot
    /// write the cache in place as long as this reference exists.
    kept: Option<TValue>,
}

impl TractSession {
    pub(super) fn new(
        plan: &Arc<TypedSimplePlan>,
        inputs: Vec<String>,
        outputs: Vec<String>,
    ) -> TractResult<Self> {
        Ok(Self { state: plan.spawn()?, inputs, outputs })
    }

    fn input(&self, name: &str) -> Result<usize, SessionError> {
        self.inputs
            .iter()
            .position(|input| input == name)
            .ok_or_else(|| refused(format!("it has no input {name:?}")))
    }

    fn output(&self, name: &str) -> Result<usize, SessionError> {
        self.outputs
            .iter()
            .position(|output| output == name)
            .ok_or_else(|| refused(format!("it has no output {name:?}")))
    }

    /// Checks every name before any cache is moved.
    fn check_names(&self, step: &Step<'_>) -> Result<(), SessionError> {
        let mut given = vec![0_usize; self.inputs.len()];
        let pasts = step.shared.iter().map(|shared| shared.past);
        for name in step.inputs.iter().map(|(name, _)| *name).chain(pasts) {
            let input = self.input(name)?;
            if let Some(count) = given.get_mut(input) {
                *count += 1;
            }
        }
        if let Some((name, count)) = self.inputs.iter().zip(given).find(|(_, count)| *count != 1) {
            return Err(refused(format!("input {name:?} is given {count} times")));
        }
        let presents = step.shared.iter().map(|shared| shared.present);
        let others = step.outputs.iter().map(|(name, _)| *name).chain(step.returned.iter().copied());
        let mut asked = BTreeSet::new();
        for name in presents.chain(others) {
            if !asked.insert(self.output(name)?) {
                return Err(refused(format!("output {name:?} is asked for twice")));
            }
        }
        Ok(())
    }

    /// Gives the plan its inputs, caches last. After an error, [`recover`](Self::recover) returns the caches.
    fn feed(&mut self, step: &mut Step<'_>, caches: &mut Vec<Cache>) -> Result<(), SessionError> {
        for (name, tensor) in &step.inputs {
            let input = self.input(name)?;
            let fed = messages::catch_panics(|| self.state.set_input(input, memory::read(tensor)?));
            fed.map_err(|message| refused(format!("input {name:?}: {message}")))?;
        }
        for shared in &mut step.shared {
            let (input, output) = (self.input(shared.past)?, self.output(shared.present)?);
            let value = match shared.cache.memory_mut::<TractMemory>() {
                Some(memory) => memory.take(),
                None => messages::catch_panics(|| memory::read(shared.cache)).map_err(refused)?,
            };
            let address = value.as_bytes().as_ptr().addr();
            caches.push(Cache { input, output, address, kept: Some(value.clone()) });
            let fed = messages::catch_panics(|| self.state.set_input(input, value));
            fed.map_err(|message| refused(format!("cache {:?}: {message}", shared.past)))?;
        }
        for cache in caches {
            if self.keeps_shape(cache) {
                cache.kept = None;
            }
        }
        Ok(())
    }

    /// Returns `true` if a present has the type and shape of its past in every run.
    fn keeps_shape(&self, cache: &Cache) -> bool {
        let model = self.state.model();
        match (model.input_fact(cache.input), model.output_fact(cache.output)) {
            (Ok(past), Ok(present)) => past.datum_type == present.datum_type && past.shape == present.shape,
            _ => false,
        }
    }

    /// Returns the cache after a failed run. The cache may be in the plan, or in `held`, the caches of nodes that
    /// failed or panicked.
    fn recover(&self, cache: &mut Cache, held: &mut Vec<TValue>) -> Option<TValue> {
        let is_it =
            |value: &TValue| value.is_plain_ram() && value.as_bytes().as_ptr().addr() == cache.address;
        if let Some(kept) = cache.kept.take() {
            return Some(kept);
        }
        if let Some(index) = held.iter().position(is_it) {
            return Some(held.swap_remove(index));
        }
        let mut values = self.state.turn_state.values.iter().flatten().flatten();
        let value = values.find(|value| is_it(value)).cloned();
        // If tract copied the cache, only the copy is left.
        let outlet = self.state.model().outputs.get(cache.output).copied();
        value.or_else(|| {
            let outlet = outlet?;
            self.state.turn_state.values.get(outlet.node)?.as_ref()?.get(outlet.slot).cloned()
        })
    }

    /// Returns the caches to the session after a failed run.
    fn restore(&mut self, step: Step<'_>, mut caches: Vec<Cache>, error: SessionError) -> SessionError {
        let states = self.state.op_states.iter_mut().flatten();
        let states = states.filter_map(|state| state.downcast_mut::<ScatterState>());
        let mut held: Vec<_> = states.flat_map(ScatterState::take_held).collect();
        let values: Vec<_> = caches.iter_mut().map(|cache| self.recover(cache, &mut held)).collect();
        // No other reference may be left, or the caches would be copied.
        drop(held);
        self.clear();
        let mut error = error;
        for (shared, value) in step.shared.into_iter().zip(values) {
            let theirs =
                value.map(IntoTensor::into_tensor).filter(|theirs| memory::fits(theirs, shared.cache));
            match (theirs, shared.cache.memory_mut::<TractMemory>()) {
                (Some(theirs), Some(memory)) => memory.put(theirs),
                (None, Some(_)) => {
                    error = SessionError::CacheLost { cache: shared.past.to_owned() };
                }
                // The plan got a copy of the cache, so the cache is unchanged.
                (_, None) => {}
            }
        }
        error
    }

    /// Drops the values that a run left in the plan.
    fn clear(&mut self) {
        // Dropping values cannot fail. If the plan were cleared only in part, the next call would clear the
        // rest.
        let _ = self.state.reset_turn();
    }

    /// Returns the results of a run to the session.
    fn deliver(
        &self,
        step: Step<'_>,
        mut results: Vec<Option<TValue>>,
    ) -> Result<(Vec<Tensor>, Vec<usize>), SessionError> {
        let mut take = |output: usize| {
            results.get_mut(output).and_then(Option::take).ok_or_else(|| refused("an output is missing"))
        };
        let mut present_at = Vec::with_capacity(step.shared.len());
        for shared in step.shared {
            let theirs = take(self.output(shared.present)?)?.into_tensor();
            present_at.push(theirs.as_bytes().as_ptr().addr());
            match shared.cache.memory_mut::<TractMemory>() {
                Some(memory) => memory.put(theirs),
                None => shared.cache.bytes_mut().copy_from_slice(theirs.as_bytes()),
            }
        }
        for (name, tensor) in step.outputs {
            let theirs = take(self.output(name)?)?;
            if !memory::fits(&theirs, tensor) {
                return Err(refused(format!(
                    "output {name:?} is of shape {:?}, not {:?}",
                    theirs.shape(),
                    tensor.shape()
                )));
            }
            tensor.bytes_mut().copy_from_slice(theirs.as_bytes());
        }
        let returned =
            step.returned.iter().map(|name| TractMemory::wrap(take(self.output(name)?)?.into_tensor()));
        Ok((returned.collect::<Result<_, _>>()?, present_at))
    }
}

impl Session for TractSession {
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        memory::zeros(element, shape)
    }

    fn run(&mut self, mut step: Step<'_>) -> Result<StepOutput, SessionError> {
        self.check_names(&step)?;
        let mut caches = Vec::with_capacity(step.shared.len());
        if let Err(error) = self.feed(&mut step, &mut caches) {
            return Err(self.restore(step, caches, error));
        }
        let start = Instant::now();
        let ran = messages::catch_panics(|| self.state.exec());
        let elapsed = start.elapsed();
        let results = match ran.and_then(|()| messages::catch_panics(|| self.state.outputs())) {
            Ok(results) => results,
            Err(message) => return Err(self.restore(step, caches, refused(message))),
        };
        let fits = |(shared, cache): (&kvscatter_session::InPlaceCache<'_>, &Cache)| {
            results.get(cache.output).is_some_and(|value| memory::fits(value, shared.cache))
        };
        if let Some(index) = step.shared.iter().zip(&caches).position(|pair| !fits(pair)) {
            let present = step.shared.get(index).map_or("", |shared| shared.present).to_owned();
            drop(results);
            let error = refused(format!("present {present:?} is not of its past's type and shape"));
            return Err(self.restore(step, caches, error));
        }
        self.clear();
        drop(caches);
        let (returned, present_at) = self.deliver(step, results.into_iter().map(Some).collect())?;
        Ok(StepOutput { returned, present_at, elapsed })
    }
}

fn refused(message: impl Into<String>) -> SessionError {
    SessionError::Run { engine: label(), message: message.into() }
}
