//! The inputs of a running batch that are not caches. The masks and the ids of blocks of the last step are kept, and
//! only the elements that differ are written.

use std::ops::Range;

use crate::error::SessionError;
use crate::interface::{FeedPort, Purpose, TEXT};
use crate::model_runs::ModelRun;
use crate::runner::Runner;
use crate::tensor::Tensor;

/// The inputs of a step except the caches.
///
/// A mask and ids of blocks have an element for each slot, but a step changes few of them. So those of the last step
/// are kept, and a step takes the same time for every capacity.
#[derive(Debug)]
pub(crate) struct RunInputs {
    /// The names and tensors of [`Interface::feeds`](crate::Interface::feeds), in that order.
    tensors: Vec<(String, Tensor)>,
    /// The slots that are 1 in the masks, by batch index.
    marked: Vec<Range<usize>>,
    /// The slots that may have an id of a block other than -1, by batch index.
    in_blocks: Vec<Range<usize>>,
    capacity: usize,
}

impl RunInputs {
    /// Allocates masks of zeros, and ids of text.
    pub(crate) fn new(runner: &Runner, batch: usize, capacity: usize) -> Result<Self, SessionError> {
        let initial = |port: &FeedPort| match port.purpose {
            Purpose::Mask => runner.zeros(port.element, &[batch, capacity]),
            Purpose::BlockIds => {
                let mut ids = runner.zeros(port.element, &[batch, capacity])?;
                ids.fill(0..ids.len(), TEXT)?;
                Ok(ids)
            }
            _ => Tensor::zeros(port.element, &[0]),
        };
        let tensors = runner.interface.feeds.iter();
        let tensors = tensors.map(|port| Ok((port.name.clone(), initial(port)?)));
        let tensors = tensors.collect::<Result<_, SessionError>>()?;
        Ok(Self { tensors, marked: vec![0..0; batch], in_blocks: vec![0..0; batch], capacity })
    }

    /// Returns the tensors of a run. `token(batch_index, position)` returns a token of a sample. `ids(batch_index)`
    /// returns the ids of the blocks of the tokens that the run feeds a sample, or nothing if all are text.
    ///
    /// Masks and ids of blocks have all samples of the batch, and only those of the run are up to date. The other
    /// tensors are the same as those of [`Feed::tensors`](crate::Feed::tensors). Returns the errors of
    /// [`Feed::tensors`](crate::Feed::tensors). The tensors of the next run are right after an error, too.
    pub(crate) fn of_run<'b>(
        &mut self,
        run: &ModelRun,
        ports: &[FeedPort],
        token: impl Fn(usize, usize) -> i64,
        ids: impl Fn(usize) -> &'b [i64],
    ) -> Result<&[(String, Tensor)], SessionError> {
        let Self { tensors, marked, in_blocks, capacity } = self;
        for ((_, tensor), port) in tensors.iter_mut().zip(ports) {
            match port.purpose {
                Purpose::Mask => mark(tensor, marked, run, *capacity)?,
                Purpose::BlockIds => put_in_blocks(tensor, in_blocks, run, *capacity, &ids)?,
                _ => {}
            }
        }
        for ((_, sample), marked) in run.fed().zip(marked.iter_mut().skip(run.samples.start)) {
            *marked = sample.valid();
        }
        let token = |index, position| token(run.samples.start + index, position);
        for ((_, tensor), port) in tensors.iter_mut().zip(ports) {
            if !port.purpose.is_by_slot() {
                *tensor = run.feed.tensor(port, token, *capacity)?;
            }
        }
        Ok(tensors)
    }
}

/// Writes the elements of a mask, `[batch, capacity]`, that differ from those of the last run.
fn mark(
    mask: &mut Tensor,
    before: &[Range<usize>],
    run: &ModelRun,
    capacity: usize,
) -> Result<(), SessionError> {
    for ((index, sample), before) in run.fed().zip(before.iter().skip(run.samples.start)) {
        let after = sample.valid();
        for (slots, value) in [(without(before, &after), 0), (without(&after, before), 1)] {
            for slots in slots {
                let [first, end] = [slots.start, slots.end.min(capacity)].map(|slot| index * capacity + slot);
                mask.fill(first..end, value)?;
            }
        }
    }
    Ok(())
}

/// Writes the ids of the blocks of a run, `[batch, capacity]`, and those of text in place of ids of an earlier run.
fn put_in_blocks<'b>(
    tensor: &mut Tensor,
    in_blocks: &mut [Range<usize>],
    run: &ModelRun,
    capacity: usize,
    ids: impl Fn(usize) -> &'b [i64],
) -> Result<(), SessionError> {
    for ((index, sample), before) in run.fed().zip(in_blocks.iter_mut().skip(run.samples.start)) {
        let first = index * capacity;
        tensor.fill(first + before.start..first + before.end, TEXT)?;
        let ids = ids(index);
        let start = (sample.first_slot + sample.tokens.start).min(capacity);
        *before = start..(start + ids.len()).min(capacity);
        for (slot, &id) in before.clone().zip(ids) {
            tensor.fill(first + slot..first + slot + 1, id)?;
        }
    }
    Ok(())
}

/// Returns the slots of a range that are not in another one, in two ranges. Either may be empty.
fn without(slots: &Range<usize>, other: &Range<usize>) -> [Range<usize>; 2] {
    [slots.start..slots.end.min(other.start), slots.start.max(other.end)..slots.end]
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType::{self, Bool, Float32, Int32, Int64};

    use super::{RunInputs, without};
    use crate::engine::{Session, Step, StepOutput};
    use crate::error::SessionError;
    use crate::feed::{Feed, SampleFeed};
    use crate::interface::{FeedPort, Interface, Purpose};
    use crate::model_runs::ModelRun;
    use crate::runner::Runner;
    use crate::tensor::Tensor;

    const CAPACITY: usize = 6;

    struct Unrun;

    impl Session for Unrun {
        fn run(&mut self, _: Step<'_>) -> Result<StepOutput, SessionError> {
            Err(SessionError::NoLogits)
        }
    }

    fn runner() -> Runner {
        let port = |name: &str, element: ElementType, purpose| FeedPort {
            name: name.to_owned(),
            element,
            dims: vec![None; 2],
            purpose,
        };
        let feeds = vec![
            port("ids", Bool, Purpose::Tokens),
            port("mask", Int64, Purpose::Mask),
            port("positions", Int32, Purpose::Positions),
            port("numbers", Float32, Purpose::Mask),
            port("bits", Bool, Purpose::Mask),
        ];
        let interface = Interface {
            caches: vec![],
            states: vec![],
            encoder: vec![],
            feeds,
            logits: String::new(),
            logits_element: Float32,
            vocabulary: None,
            last_logits_only: false,
            batch: None,
            is_decode_only: false,
            refuses_padding: false,
            most_tokens: None,
            exported: None,
            has_quantised_weights: false,
        };
        Runner::new(Box::new(Unrun), interface)
    }

    fn sample(start: usize, first_slot: usize, tokens: std::ops::Range<usize>) -> SampleFeed {
        SampleFeed { start, padding: 0, tokens, first_slot }
    }

    /// Ids of a step are gone in the next one, and those of samples that do not run stay.
    #[test]
    fn ids_of_blocks_are_those_of_the_step() {
        let mut runner = runner();
        let (name, dims) = ("blocks".to_owned(), vec![None; 2]);
        runner.interface.feeds = vec![FeedPort { name, element: Int32, dims, purpose: Purpose::BlockIds }];
        let mut inputs = RunInputs::new(&runner, 2, CAPACITY).unwrap();
        let numbers = |inputs: &[(String, Tensor)]| {
            let ints = inputs[0].1.bytes().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
            ints.collect::<Vec<_>>()
        };
        for (first, samples, ids, expected) in [
            (
                0,
                vec![sample(0, 0, 0..2), sample(1, 0, 1..4)],
                &[0, 0, 7][..],
                [[0, 0, -1, -1, -1, -1], [-1, 0, 0, 7, -1, -1]],
            ),
            (1, vec![sample(4, 0, 4..6)], &[2, 2, 2], [[0, 0, -1, -1, -1, -1], [-1, -1, -1, -1, 2, 2]]),
            (0, vec![sample(2, 0, 2..3), sample(6, 0, 6..6)], &[], [[-1; 6]; 2]),
        ] {
            let run = run(first, 3, &samples);
            let given = |index: usize| &ids[..samples[index - first].tokens.len().min(ids.len())];
            let got = inputs.of_run(&run, &runner.interface.feeds, |_, _| 1, given).unwrap();
            assert_eq!(numbers(got), expected.concat());
        }
    }

    /// Returns a run of the samples from this batch index on.
    fn run(first: usize, width: usize, samples: &[SampleFeed]) -> ModelRun {
        let feed = Feed { width, samples: samples.to_vec() };
        ModelRun { samples: first..first + samples.len(), feed, overwritten: Vec::new() }
    }

    fn bytes(inputs: &[(String, Tensor)]) -> Vec<(&str, &[usize], &[u8])> {
        inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.shape(), tensor.bytes())).collect()
    }

    /// Samples grow, shrink, are exchanged and are padded on the left. A step fails in between.
    #[test]
    fn tensors_are_those_of_the_step_alone() {
        let runner = runner();
        let mut inputs = RunInputs::new(&runner, 2, CAPACITY).unwrap();
        let feeds = &runner.interface.feeds;
        for (width, samples, token) in [
            (2, [sample(0, 0, 0..2), sample(0, 0, 0..0)], 1),
            (1, [sample(2, 0, 2..3), sample(0, 0, 0..1)], 0),
            (3, [sample(3, 0, 3..6), sample(1, 2, 0..3)], 2),
            (3, [sample(3, 0, 3..6), sample(1, 2, 0..3)], 1),
            (1, [sample(0, 0, 0..1), sample(5, 4, 0..2)], 1),
            (1, [sample(0, 3, 0..0), sample(0, 0, 0..1)], 1),
        ] {
            let run = run(0, width, &samples);
            let alone = run.feed.tensors(&runner.interface, |_, _| token, CAPACITY);
            let got = inputs.of_run(&run, feeds, |_, _| token, |_| &[]);
            match (alone, got) {
                (Ok(alone), Ok(got)) => assert_eq!(bytes(got), bytes(&alone), "{run:?}"),
                (Err(SessionError::InputType { .. }), Err(SessionError::InputType { .. })) => {
                    assert_eq!(token, 2, "no bool is 2");
                }
                pair => panic!("{pair:?}"),
            }
        }
    }

    /// The mask of a sample is up to date when the sample runs, also if others ran since.
    #[test]
    fn a_run_of_some_samples_changes_their_masks_only() {
        let runner = runner();
        let mut inputs = RunInputs::new(&runner, 2, CAPACITY).unwrap();
        let samples = [sample(0, 0, 0..2), sample(0, 0, 0..3)];
        let mask = |inputs: &[(String, Tensor)]| {
            let longs = inputs[1].1.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes));
            longs.collect::<Vec<_>>()
        };
        for (first, samples, expected) in [
            (1, &samples[1..], [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]),
            (0, &samples[..1], [1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]),
            (1, &[sample(1, 0, 1..2)], [1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]),
        ] {
            let run = run(first, 3, samples);
            let token = |index, _| i64::from(index == first);
            let got = inputs.of_run(&run, &runner.interface.feeds, token, |_| &[]).unwrap();
            assert_eq!(mask(got), expected);
            assert_eq!((got[0].1.shape(), got[0].1.bytes()), (&[1, 3][..], &[1, 1, 1][..]));
        }
    }

    #[test]
    fn masks_stay_at_their_addresses() {
        let runner = runner();
        let mut inputs = RunInputs::new(&runner, 1, CAPACITY).unwrap();
        let mut addresses = |length| {
            let run = run(0, 1, &[sample(length, 0, length..length + 1)]);
            let tensors = inputs.of_run(&run, &runner.interface.feeds, |_, _| 1, |_| &[]).unwrap();
            [1, 3, 4].map(|index| tensors[index].1.address())
        };
        assert_eq!(addresses(0), addresses(1));
    }

    #[test]
    fn every_slot_of_the_difference_is_in_one_range() {
        let ranges = || (0..5).flat_map(|start| (start..5).map(move |end| start..end));
        for (slots, other) in ranges().flat_map(|slots| ranges().map(move |other| (slots.clone(), other))) {
            let got: Vec<usize> = without(&slots, &other).into_iter().flatten().collect();
            let expected: Vec<usize> = slots.clone().filter(|slot| !other.contains(slot)).collect();
            assert_eq!(got, expected, "{slots:?} without {other:?}");
        }
    }
}
