//! Divides a step into runs of the model. Samples get different numbers of tokens, but a run has the same
//! width for all.
//!
//! A run covers neighbouring samples of the batch ([`parts`]). A model writes `width` rows for each of these, padding
//! included. Rows of padding are written after the sample's cached tokens, where attention masks them. They must not be
//! written beyond the capacity. Rows of cached tokens that a run overwrites are restored after it.
//!
//! In a ring, padding overwrites old rows. So a run is no wider than [`kvscatter::ring`] allows for every sample that
//! it covers, also for one without tokens, and no wider than the chunk of the ring, which leaves room for its rewind.

use std::ops::Range;

use crate::feed::{Feed, SampleFeed};
use crate::interface::CacheWriter;
use crate::ring_track::RingTrack;

/// The cost of a run besides its rows, as a number of rows, for the division of a step. A run reads all weights once,
/// for any number of rows. [`costs`] has the costs that were measured.
const RUN_COST: usize = 5;

/// The cost of a run besides its rows, as a number of rows. Each pair has the cost of a run with one row, and of a run
/// with more rows. There is one pair for each way in which engines compute with the weights.
///
/// These were measured in ONNX Runtime on one thread, for the linear layers of decoders with hidden sizes of 256 to
/// 1,024. A run with weights in float32 costs 9 to 11 rows. The constant is half of this, because attention makes each
/// row more expensive. With 4-bit weights, the cost depends on the kernel. A run costs 1 to 2 rows if the kernel
/// computes in int8. If it unpacks the weights for several rows, a run of one row costs 3 to 6 rows, and a run of more
/// costs 9 to 12.
const FLOAT_COSTS: &[[f64; 2]] = &[[5.0, 5.0]];
const QUANTISED_COSTS: &[[f64; 2]] = &[[1.0, 1.0], [3.0, 11.0]];

/// One run of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelRun {
    /// The batch indices that the run covers.
    pub(crate) samples: Range<usize>,
    /// The tokens of these samples.
    pub(crate) feed: Feed,
    /// The positions of cached tokens that padding overwrites, by batch index. Their rows are saved before the
    /// run and restored after it.
    pub(crate) overwritten: Vec<(usize, Range<usize>)>,
}

impl ModelRun {
    /// Returns the samples that the run covers, with their batch indices.
    pub(crate) fn fed(&self) -> impl Iterator<Item = (usize, &SampleFeed)> {
        self.samples.clone().zip(&self.feed.samples)
    }

    /// Returns the positions of the tokens that the run feeds the sample with this batch index.
    pub(crate) fn tokens_of(&self, batch_index: usize) -> Range<usize> {
        let fed = batch_index.checked_sub(self.samples.start).and_then(|at| self.feed.samples.get(at));
        fed.map_or(0..0, |sample| sample.tokens.clone())
    }
}

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) capacity: usize,
    /// The maximum number of tokens of one sample in a run, at least 1.
    pub(crate) width: usize,
    /// Whether samples that get tokens must not be padded, because the model returns logits only for the last
    /// column or because its operator refuses them.
    pub(crate) is_exact: bool,
    /// Whether every run must cover the whole batch.
    pub(crate) is_whole: bool,
    pub(crate) writer: CacheWriter,
}

/// Returns the runs that give every sample its tokens.
///
/// All lists are indexed by batch index. `cached` contains the number of tokens in the cache and `counts` the number of
/// new tokens. A sample must have room for its new tokens.
pub(crate) fn model_runs(
    cached: &[usize],
    rings: &[RingTrack],
    counts: &[usize],
    limits: Limits,
) -> Vec<ModelRun> {
    let mut model_runs = Vec::new();
    for part in parts(cached, counts, limits) {
        let of_part = |list: &[usize]| list.get(part.clone()).unwrap_or_default().to_vec();
        let (mut cached, mut left) = (of_part(cached), of_part(counts));
        let mut rings: Vec<_> = rings.iter().map(|ring| ring.part(part.clone())).collect();
        while let Some(shape) = RunShape::next(&cached, &rings, &left, limits) {
            let RunShape { width, is_first } = shape;
            let feed = Feed { width, samples: Vec::new() };
            let mut run = ModelRun { samples: part.clone(), feed, overwritten: Vec::new() };
            for (index, (cached, left)) in cached.iter_mut().zip(&mut left).enumerate() {
                let waits = is_first && (*cached > 0 || (limits.is_exact && *left < width));
                let count = if waits { 0 } else { (*left).min(width) };
                // A sample with tokens has room for the width, but one without tokens may have less.
                let start = if is_first { 0 } else { (*cached).min(limits.capacity - width) };
                let overwritten = start..(*cached).min(start + width);
                if !overwritten.is_empty() {
                    run.overwritten.push((part.start + index, overwritten));
                }
                let tokens = *cached..*cached + count;
                run.feed.samples.push(SampleFeed { start, padding: 0, tokens, first_slot: 0 });
                rings.iter_mut().for_each(|ring| ring.record(index, start, width));
                *cached += count;
                *left -= count;
            }
            model_runs.push(run);
        }
    }
    model_runs
}

/// Returns the cost of runs in rows, once for each way in which engines compute with the weights.
pub(crate) fn costs(runs: &[ModelRun], has_quantised_weights: bool) -> Vec<f64> {
    let ways = if has_quantised_weights { QUANTISED_COSTS } else { FLOAT_COSTS };
    let rows = || runs.iter().map(|run| run.samples.len() * run.feed.width);
    let cost = |[one, more]: &[f64; 2]| {
        rows().map(|rows| rows as f64 + if rows == 1 { *one } else { *more }).sum::<f64>()
    };
    ways.iter().map(cost).collect()
}

/// Divides the batch into parts that runs cover, each from a sample with tokens to another one, so that the runs cost
/// least.
///
/// A larger part takes fewer runs, but its samples are padded, including those in between that get no tokens.
fn parts(cached: &[usize], counts: &[usize], limits: Limits) -> Vec<Range<usize>> {
    if limits.is_whole {
        return std::iter::once(0..counts.len()).collect();
    }
    let sample = |(index, (&cached, &tokens)): (usize, (&usize, &usize))| Part {
        samples: index..index + 1,
        tokens,
        sharing: Sharing::for_sample(cached, tokens, limits),
    };
    let active: Vec<_> =
        cached.iter().zip(counts).enumerate().map(sample).filter(|part| part.tokens > 0).collect();
    // By the number of active samples: the least cost of the first ones, and the number of samples before their last
    // part.
    let mut best = vec![(0, 0)];
    for end in 1..=active.len() {
        let (mut cheapest, mut last): (_, Option<Part>) = ((usize::MAX, 0), None);
        for (first, (sample, (before, _))) in active.iter().zip(&best).enumerate().take(end).rev() {
            let part = match &last {
                None => Some(sample.clone()),
                Some(last) => sample.with(last, limits),
            };
            let Some(part) = part else { break };
            let cost = part.cost(limits).saturating_add(*before);
            if cost <= cheapest.0 {
                cheapest = (cost, first);
            }
            last = Some(part);
        }
        best.push(cheapest);
    }
    let (mut parts, mut rest) = (Vec::new(), active.as_slice());
    while let ([_, ..], Some((_, first))) = (rest, best.get(rest.len())) {
        let (before, part) = rest.split_at(*first);
        let ends = part.first().zip(part.last());
        parts.extend(ends.map(|(first, last)| first.samples.start..last.samples.end));
        rest = before;
    }
    parts.reverse();
    parts
}

/// Neighbouring samples that runs cover together.
#[derive(Clone)]
struct Part {
    samples: Range<usize>,
    /// The largest number of tokens of a sample.
    tokens: usize,
    sharing: Sharing,
}

/// The samples that can share runs with a sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Samples with any number of tokens.
    Any,
    /// Other prompts, in a run from slot 0.
    Prompts,
    /// Samples with any number of tokens, in runs of single tokens.
    SingleTokens,
    None,
}

impl Sharing {
    fn for_sample(cached: usize, tokens: usize, limits: Limits) -> Self {
        match limits.writer {
            CacheWriter::TensorScatter => Self::Any,
            CacheWriter::GroupQueryAttention if cached > 0 || tokens.min(limits.width) == 1 => {
                Self::SingleTokens
            }
            CacheWriter::GroupQueryAttention if tokens <= limits.width => Self::Prompts,
            CacheWriter::GroupQueryAttention => Self::None,
        }
    }
}

impl Part {
    /// Returns both parts together, if they can share runs.
    fn with(&self, next: &Self, limits: Limits) -> Option<Self> {
        let can_share = self.sharing == next.sharing && self.sharing != Sharing::None;
        let is_padded = self.tokens != next.tokens;
        (can_share && !(limits.is_exact && is_padded)).then(|| Self {
            samples: self.samples.start..next.samples.end,
            tokens: self.tokens.max(next.tokens),
            sharing: self.sharing,
        })
    }

    /// Returns the cost of the runs, in rows.
    fn cost(&self, limits: Limits) -> usize {
        let is_single = self.sharing == Sharing::SingleTokens && self.samples.len() > 1;
        let runs = self.tokens.div_ceil(if is_single { 1 } else { limits.width });
        runs.saturating_mul(RUN_COST).saturating_add(self.samples.len().saturating_mul(self.tokens))
    }
}

/// The width of a run and the slots that it writes.
#[derive(Clone, Copy)]
struct RunShape {
    width: usize,
    /// Whether the run writes from slot 0 of every sample. Samples with cached tokens then get no tokens.
    is_first: bool,
}

impl RunShape {
    /// Returns the shape of the next run, or `None` if no sample has tokens left.
    fn next(cached: &[usize], rings: &[RingTrack], left: &[usize], limits: Limits) -> Option<Self> {
        match limits.writer {
            CacheWriter::TensorScatter => Self::scattered(cached, rings, left, limits),
            CacheWriter::GroupQueryAttention => Self::of_group_query_attention(cached, left, limits),
        }
    }

    /// A run is as wide as the longest list of remaining tokens. If a sample with tokens has less room, the
    /// run is as wide as that room, and longer lists continue in the next run. In a full sample without
    /// tokens, padding overwrites the last rows.
    fn scattered(cached: &[usize], rings: &[RingTrack], left: &[usize], limits: Limits) -> Option<Self> {
        let active = || cached.iter().zip(left).filter(|(_, left)| **left > 0);
        let wanted = active().map(|(_, left)| *left);
        let wanted = if limits.is_exact { wanted.min() } else { wanted.max() }?;
        let room = active().map(|(cached, _)| limits.capacity - cached).min()?;
        let width = wanted.min(room).min(limits.width).min(in_rings(cached, rings));
        Some(Self { width, is_first: false })
    }

    /// A first run takes all prompts at once. It writes from slot 0, so it overwrites the first rows of the
    /// other samples. If prompts must not be padded, there is one first run for each length.
    ///
    /// All other runs of several samples have one token of each. A run of one sample has any number.
    fn of_group_query_attention(cached: &[usize], left: &[usize], limits: Limits) -> Option<Self> {
        let longest = left.iter().copied().max().filter(|longest| *longest > 0)?.min(limits.width);
        let prompts = cached.iter().zip(left).filter(|(cached, _)| **cached == 0);
        let prompt = prompts.map(|(_, left)| *left).max().unwrap_or_default().min(limits.width);
        Some(match prompt {
            2.. => Self { width: prompt, is_first: true },
            _ if cached.len() == 1 => Self { width: longest, is_first: false },
            _ => Self { width: 1, is_first: false },
        })
    }
}

/// Returns the largest width of a run that is exact in every ring for all samples.
fn in_rings(cached: &[usize], rings: &[RingTrack]) -> usize {
    let of_ring = |ring: &RingTrack| {
        let rows = cached.iter().enumerate().map(|(index, &cached)| ring.most_rows(index, cached));
        rows.min().unwrap_or(usize::MAX)
    };
    // A ring always takes one more row, because no sample keeps tokens whose rows are lost.
    rings.iter().map(of_ring).min().unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use kvscatter_onnx::convert::RingSize;

    use super::{Limits, ModelRun};
    use crate::feed::Feed;
    use crate::interface::CacheWriter;
    use crate::ring_track::RingTrack;

    const WIDE: Limits = Limits {
        capacity: 8,
        width: usize::MAX,
        is_exact: false,
        is_whole: true,
        writer: CacheWriter::TensorScatter,
    };
    const OPERATOR: Limits = Limits { writer: CacheWriter::GroupQueryAttention, ..WIDE };

    /// Returns the runs of a model without rings.
    fn model_runs(cached: &[usize], counts: &[usize], limits: Limits) -> Vec<ModelRun> {
        super::model_runs(cached, &[], counts, limits)
    }

    /// The width of a run, the start and the number of tokens of each sample, and the overwritten rows.
    type Shown = (usize, Vec<(usize, usize)>, Vec<(usize, Range<usize>)>);
    /// What is tested, the limits, the cached and the new tokens of each sample, and the runs.
    type Case = (&'static str, Limits, &'static [usize], &'static [usize], Vec<Shown>);

    #[test]
    fn each_sample_gets_its_tokens_in_runs_that_others_can_share() {
        let exact = |limits| Limits { is_exact: true, ..limits };
        let chunk = Limits { width: 3, ..OPERATOR };
        let cases: [Case; 8] = [
            ("one run where there is room", WIDE, &[0, 3], &[2, 5], vec![(5, vec![(0, 2), (3, 5)], vec![])]),
            ("no tokens", WIDE, &[0, 3], &[0, 0], vec![]),
            (
                "a sample without room for the padding makes the run narrower",
                WIDE,
                &[7, 0],
                &[1, 5],
                vec![(1, vec![(7, 1), (0, 1)], vec![]), (4, vec![(4, 0), (1, 4)], vec![(0, 4..8)])],
            ),
            (
                "no sample is padded where logits are of the last column",
                exact(WIDE),
                &[0, 0],
                &[2, 5],
                vec![(2, vec![(0, 2), (0, 2)], vec![]), (3, vec![(2, 0), (2, 3)], vec![])],
            ),
            (
                "prompts are one first run and overwrite the first rows of others",
                OPERATOR,
                &[0, 5, 0],
                &[2, 1, 3],
                vec![
                    (3, vec![(0, 2), (0, 0), (0, 3)], vec![(1, 0..3)]),
                    (1, vec![(2, 0), (5, 1), (3, 0)], vec![]),
                ],
            ),
            (
                "chunks after the first are token by token in a batch",
                chunk,
                &[0, 8],
                &[5, 0],
                vec![
                    (3, vec![(0, 3), (0, 0)], vec![(1, 0..3)]),
                    (1, vec![(3, 1), (7, 0)], vec![(1, 7..8)]),
                    (1, vec![(4, 1), (7, 0)], vec![(1, 7..8)]),
                ],
            ),
            (
                "and not in a batch of one",
                chunk,
                &[0],
                &[5],
                vec![(3, vec![(0, 3)], vec![]), (2, vec![(3, 2)], vec![])],
            ),
            (
                "an operator that refuses padding has a first run for each length",
                exact(OPERATOR),
                &[0, 0, 0],
                &[2, 5, 2],
                vec![
                    (5, vec![(0, 0), (0, 5), (0, 0)], vec![]),
                    (2, vec![(0, 2), (0, 0), (0, 2)], vec![(1, 0..2)]),
                ],
            ),
        ];
        for (what, limits, cached, counts, expected) in cases {
            let show = |run: ModelRun| {
                let samples = run.feed.samples.iter();
                let samples = samples.map(|sample| (sample.start, sample.tokens.len())).collect();
                (run.feed.width, samples, run.overwritten)
            };
            let got: Vec<Shown> = model_runs(cached, counts, limits).into_iter().map(show).collect();
            assert_eq!(got, expected, "{what}");
        }
    }

    #[test]
    fn runs_cover_neighbours_with_tokens_and_cost_least() {
        let scattered = Limits { capacity: 1 << 20, is_whole: false, ..WIDE };
        let operator = Limits { writer: OPERATOR.writer, ..scattered };
        let exact = |limits| Limits { is_exact: true, ..limits };
        let chunk = |limits| Limits { width: 64, ..limits };
        for (limits, cached, counts, expected) in [
            (scattered, [0; 4], [300, 0, 0, 0], vec![(0..1, 300)]),
            (scattered, [7; 4], [0, 1, 0, 0], vec![(1..2, 1)]),
            // A sample without tokens in between costs less than another run.
            (scattered, [7; 4], [1, 0, 0, 1], vec![(0..4, 1)]),
            (scattered, [7; 4], [50, 0, 0, 50], vec![(0..1, 50), (3..4, 50)]),
            // Drafts of few samples are apart, and those of most share a run.
            (scattered, [7; 4], [6, 1, 1, 1], vec![(0..1, 6), (1..4, 1)]),
            (scattered, [7; 4], [6, 1, 6, 6], vec![(0..4, 6)]),
            (scattered, [0, 7, 7, 7], [300, 1, 1, 1], vec![(0..1, 300), (1..4, 1)]),
            (chunk(scattered), [0; 4], [0, 0, 100, 100], vec![(2..4, 64), (2..4, 36)]),
            // Without padding, only samples with as many tokens share a run.
            (exact(scattered), [0; 4], [3, 3, 4, 4], vec![(0..2, 3), (2..4, 4)]),
            // In mid-cache, several tokens take a run for each sample.
            (operator, [7; 4], [6, 6, 1, 1], vec![(0..1, 6), (1..2, 6), (2..4, 1)]),
            (operator, [0, 0, 7, 7], [3, 5, 0, 5], vec![(0..2, 5), (3..4, 5)]),
            (operator, [0; 4], [300, 300, 0, 0], vec![(0..2, 300)]),
            (operator, [0; 4], [300, 200, 0, 0], vec![(0..1, 300), (1..2, 200)]),
            // Runs of single tokens are shared where they cost less.
            (operator, [7; 4], [2, 2, 2, 2], vec![(0..4, 1), (0..4, 1)]),
            (operator, [7; 4], [9, 2, 2, 2], vec![(0..1, 9), (1..4, 1), (1..4, 1)]),
            (operator, [7; 4], [5, 5, 5, 5], vec![(0..1, 5), (1..2, 5), (2..3, 5), (3..4, 5)]),
            // The chunks of a prompt after the first take a run for each sample.
            (chunk(operator), [0; 4], [70, 0, 0, 0], vec![(0..1, 64), (0..1, 6)]),
        ] {
            let runs = model_runs(&cached, &counts, limits);
            let got: Vec<_> = runs.iter().map(|run| (run.samples.clone(), run.feed.width)).collect();
            assert_eq!(got, expected, "{cached:?} {counts:?} {limits:?}");
        }
    }

    #[test]
    fn every_small_case_gives_all_tokens_and_writes_within_the_capacity() {
        let capacity = 4;
        for width in 1..=5 {
            for (is_exact, is_whole) in [(false, false), (false, true), (true, false), (true, true)] {
                for cached in all(capacity) {
                    for counts in all(capacity) {
                        if cached.iter().zip(&counts).any(|(cached, count)| cached + count > capacity) {
                            continue;
                        }
                        let limits = Limits { capacity, width, is_exact, is_whole, ..WIDE };
                        check(&cached, &counts, limits);
                        check(&cached, &counts, Limits { writer: OPERATOR.writer, ..limits });
                        check(&cached[..1], &counts[..1], Limits { writer: OPERATOR.writer, ..limits });
                    }
                }
            }
        }
    }

    /// A window of 4 in steps of 3 needs 6 slots. With fewer, a run of 3 rows would overwrite a row that is seen.
    #[test]
    fn a_run_is_as_wide_as_its_rings_allow() {
        let widths = |chunk, tokens| {
            let ring = RingTrack::new(RingSize { capacity: 6, window: 4, chunk, rewind: 0 }, 1);
            let runs = super::model_runs(&[0], &[ring], &[tokens], Limits { capacity: usize::MAX, ..WIDE });
            runs.iter().map(|run| run.feed.width).collect::<Vec<_>>()
        };
        assert_eq!(widths(3, 7), [3, 3, 1]);
        assert_eq!(widths(4, 8), [4, 3, 1], "the ring has no room for its chunk");
    }

    fn all(up_to: usize) -> impl Iterator<Item = [usize; 3]> {
        let base = up_to + 1;
        (0..base.pow(3)).map(move |n| [n % base, n / base % base, n / base / base])
    }

    /// Applies the model runs to lists that record which token each slot contains.
    fn check(cached: &[usize], counts: &[usize], limits: Limits) {
        let mut slots = vec![vec![None; limits.capacity]; cached.len()];
        for (index, slots) in slots.iter_mut().enumerate() {
            (0..cached[index]).for_each(|slot| slots[slot] = Some(slot));
        }
        for run in model_runs(cached, counts, limits) {
            assert!(run.feed.width <= limits.width);
            assert!(limits.writer == CacheWriter::TensorScatter || is_taken(&run.feed));
            let before = slots.clone();
            for (index, sample) in run.fed() {
                if !sample.tokens.is_empty() {
                    assert!(!limits.is_exact || sample.tokens.len() == run.feed.width);
                    assert_eq!(sample.start, sample.tokens.start);
                }
                for column in 0..run.feed.width {
                    slots[index][sample.start + column] = sample.position(column);
                }
            }
            for (index, rows) in run.overwritten {
                slots[index][rows.clone()].copy_from_slice(&before[index][rows]);
            }
        }
        for (index, slots) in slots.iter().enumerate() {
            let end = cached[index] + counts[index];
            assert!((0..end).all(|slot| slots[slot] == Some(slot)), "{cached:?} {counts:?} {limits:?}");
        }
    }
    /// Returns `true` if `GroupQueryAttention` takes the run: it has one token of each sample, or one sample, or
    /// it writes from slot 0.
    fn is_taken(feed: &Feed) -> bool {
        feed.width == 1 || feed.samples.len() == 1 || feed.samples.iter().all(|sample| sample.start == 0)
    }
}
