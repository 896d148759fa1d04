//! The time of whole decode steps at several context lengths, for the model and the original.

use std::time::{Duration, Instant};

use kvscatter_session::{
    EncoderInputs, Engine, Feed, InPlaceCache, Interface, LoadOptions, Session, States, Step, Tensor, by_name,
};

use super::subject::{Timed, TimedModels, median};
use crate::CertifyError;
use crate::certificate::{Crossover, DecodeTime, DecodeTimes};
use crate::drive::texts::Texts;

const MOST_ROUNDS: usize = 21;
const LEAST_ROUNDS: usize = 5;
/// The time after which a context length gets no more rounds than [`LEAST_ROUNDS`].
const TIME: Duration = Duration::from_secs(2);
/// The relative difference below which two times count as equal.
const NOISE: f64 = 0.05;

/// Times both models alternately, at increasing context lengths.
pub(super) fn time(subject: &TimedModels<'_>) -> Result<DecodeTimes, CertifyError> {
    let batch = subject.model.interface.batch.unwrap_or(1);
    let mut model = Decoding::load(subject.engine, subject.model, subject.options)?;
    let mut original = subject
        .original
        .map(|original| Decoding::load(subject.engine, original, subject.options))
        .transpose()?;
    let (mut at, mut fewest) = (Vec::new(), MOST_ROUNDS);
    for context in contexts(subject.capacity) {
        model.bind(batch, context, subject.capacity)?;
        if let Some(original) = &mut original {
            original.bind(batch, context, subject.capacity)?;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for round in 0..=MOST_ROUNDS {
            let ran = model.step()?;
            let also = original.as_mut().map(Decoding::step).transpose()?;
            // The first round is a warm-up.
            if round > 0 {
                ours.push(ran);
                theirs.extend(also);
            }
            if round >= LEAST_ROUNDS && begin.elapsed() > TIME {
                break;
            }
        }
        fewest = fewest.min(ours.len());
        let original_ns = if theirs.is_empty() { None } else { Some(median(theirs)) };
        at.push(DecodeTime { context, model_ns: median(ours), original_ns });
    }
    let crossover = original.map(|_| crossover(&at));
    Ok(DecodeTimes { batch, capacity: subject.capacity, rounds: fewest, at, crossover })
}

/// Returns the context lengths: a sixteenth of the capacity, doubled up to a half, and the last slot.
fn contexts(capacity: usize) -> Vec<usize> {
    let mut contexts: Vec<_> = [16, 8, 4, 2].map(|part| capacity / part).into_iter().collect();
    contexts.push(capacity.saturating_sub(1));
    contexts.retain(|context| *context > 0 && *context < capacity);
    contexts.dedup();
    contexts
}

/// Returns the context length from which the model is faster than the original.
fn crossover(at: &[DecodeTime]) -> Crossover {
    // The extra time of the model, relative to the original's time.
    let longer = |at: &DecodeTime| at.original_ns.map(|original| at.model_ns / original - 1.0);
    let longer: Vec<(usize, f64)> = at.iter().filter_map(|at| Some((at.context, longer(at)?))).collect();
    if longer.iter().all(|(_, longer)| *longer < -NOISE) {
        return Crossover::Always;
    }
    if longer.iter().all(|(_, longer)| *longer > NOISE) {
        return Crossover::Never;
    }
    // The sign must change once, and the difference must exceed the noise at both ends.
    let changes = longer.windows(2).filter(|pair| (pair[0].1 > 0.0) != (pair[1].1 > 0.0)).count();
    let (Some(first), Some(last)) = (longer.first(), longer.last()) else { return Crossover::Unclear };
    let Some(after) = longer.iter().position(|(_, longer)| *longer <= 0.0) else { return Crossover::Unclear };
    if changes != 1 || first.1 < NOISE || last.1 > -NOISE || after == 0 {
        return Crossover::Unclear;
    }
    let ((from, slower), (to, faster)) = (longer[after - 1], longer[after]);
    let part = slower / (slower - faster);
    Crossover::From(from + ((to - from) as f64 * part).round() as usize)
}

/// A decoder and the tensors of its next step.
pub(super) struct Decoding<'a> {
    session: Box<dyn Session>,
    interface: &'a Interface,
    inputs: Vec<(String, Tensor)>,
    encoder: EncoderInputs,
    states: States,
    pasts: Vec<Tensor>,
    /// The presents of growing caches. Their memory is allocated in advance, so that a runtime that allocates
    /// cannot be faster.
    presents: Vec<Option<Tensor>>,
}

impl<'a> Decoding<'a> {
    pub(super) fn load(
        engine: &dyn Engine,
        timed: Timed<'a>,
        options: LoadOptions,
    ) -> Result<Self, CertifyError> {
        let session = engine.load(timed.file, options)?;
        let none = (Vec::new(), Vec::new(), Vec::new());
        let (interface, encoder) = (timed.interface, EncoderInputs::default());
        let states = States::default();
        Ok(Self { session, interface, inputs: none.0, encoder, states, pasts: none.1, presents: none.2 })
    }

    /// Creates the tensors of a step after `context` tokens, with new caches.
    fn bind(&mut self, batch: usize, context: usize, capacity: usize) -> Result<(), CertifyError> {
        // The old tensors are freed before the new ones are allocated.
        (self.pasts, self.presents) = (Vec::new(), Vec::new());
        self.advance(batch, context, capacity)
    }

    /// Creates the tensors of a step after `context` tokens. The caches are those of the step before, if there is one:
    /// a present of a growing cache becomes the past.
    pub(super) fn advance(
        &mut self,
        batch: usize,
        context: usize,
        capacity: usize,
    ) -> Result<(), CertifyError> {
        let (grows, is_first) = (self.interface.is_copied(), self.pasts.is_empty());
        let slots = if grows { context + 1 } else { capacity };
        self.inputs = Feed::next(&vec![context; batch], 1).tensors(self.interface, |_, _| 0, slots)?;
        if is_first {
            self.encoder = Texts { seed: 0 }.of_batch(&*self.session, self.interface, &vec![0; batch])?;
            self.states = States::new(&*self.session, self.interface, batch)?;
        }
        if grows && !is_first {
            self.pasts = self.presents.drain(..).flatten().collect();
        }
        self.presents.clear();
        for port in &self.interface.caches {
            let zeros = |length| self.session.zeros(port.element, &port.shape(batch, length));
            if is_first {
                self.pasts.push(zeros(if grows { context } else { capacity })?);
            }
            self.presents.push(if grows { Some(zeros(context + 1)?) } else { None });
        }
        Ok(())
    }

    /// Runs one step and returns its time in nanoseconds. Calls without another [`advance`](Self::advance) write the
    /// same slot.
    pub(super) fn step(&mut self) -> Result<f64, CertifyError> {
        let mut step = Step {
            inputs: by_name(self.inputs.iter().chain(self.encoder.tensors())),
            returned: vec![&self.interface.logits],
            ..Step::default()
        };
        self.states.bind(&mut step);
        for ((port, past), present) in
            self.interface.caches.iter().zip(&mut self.pasts).zip(&mut self.presents)
        {
            match present {
                Some(present) => {
                    step.inputs.push((&port.past, past));
                    step.outputs.push((&port.present, present));
                }
                None => {
                    step.shared.push(InPlaceCache { past: &port.past, present: &port.present, cache: past });
                }
            }
        }
        Ok(self.session.run(step)?.elapsed.as_secs_f64() * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::{contexts, crossover};
    use crate::certificate::{Crossover, DecodeTime};

    fn crossover_of(times: &[(usize, f64, f64)]) -> Crossover {
        let time =
            |&(context, model_ns, original)| DecodeTime { context, model_ns, original_ns: Some(original) };
        crossover(&times.iter().map(time).collect::<Vec<_>>())
    }

    #[test]
    fn contexts_end_at_the_last_slot() {
        assert_eq!(contexts(4096), [256, 512, 1024, 2048, 4095]);
        assert_eq!(contexts(4), [1, 2, 3]);
        assert!(contexts(1).is_empty());
    }

    #[test]
    fn the_crossover_lies_between_two_lengths_or_nowhere() {
        assert_eq!(crossover_of(&[(1, 1.0, 2.0), (2, 1.0, 3.0)]), Crossover::Always);
        assert_eq!(crossover_of(&[(1, 2.0, 1.0), (2, 2.0, 1.5)]), Crossover::Never);
        assert_eq!(crossover_of(&[(100, 15.0, 10.0), (200, 15.0, 30.0)]), Crossover::From(150));
        assert_eq!(crossover_of(&[(1, 10.0, 10.1), (2, 10.0, 10.1)]), Crossover::Unclear);
        assert_eq!(
            crossover_of(&[(1, 2.0, 1.0), (2, 1.0, 2.0), (3, 2.0, 1.0), (4, 1.0, 2.0)]),
            Crossover::Unclear
        );
        assert_eq!(
            crossover_of(&[(1, 1.0, 2.0), (2, 2.0, 1.0)]),
            Crossover::Unclear,
            "slower only where the context is long"
        );
    }
}
