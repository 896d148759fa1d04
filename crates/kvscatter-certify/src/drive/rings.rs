//! The scenarios that go around the rings of a decoder, and the samples that they feed step by step.
//!
//! No step is wider than [`kvscatter::ring`] allows for any ring. So if its logits are wrong, the model does not keep
//! what it declares.

use kvscatter::ring::high_after;
use kvscatter_session::{Feed, SampleFeed};

use super::scenarios::{Scenario, ScenarioSetting, listed};
use crate::certificate::{Check, Fill, Phase};

/// The number of times that a scenario goes around every ring.
pub(crate) const TURNS: usize = 3;

/// The number of tokens above which a scenario would take too long. It then takes single tokens only near the ends of
/// the rings, and only canaries: each slot loses its first value in the first turn, and a run of one sequence has both.
const MANY_TOKENS: usize = 1024;

/// The number of slots on both sides of the end of a ring that count as near.
const NEAR: usize = 4;

/// Samples that are fed steps, all from one sequence.
struct Walk<'s> {
    setting: &'s ScenarioSetting,
    samples: Vec<Walker>,
    steps: Vec<(Phase, Feed)>,
}

/// One sample. Slots are unwrapped, so they keep growing in a ring.
#[derive(Clone, Copy, Default)]
struct Walker {
    /// The slot of the next token, or of the next padding on the left.
    next: usize,
    /// The slot of the sequence's first token.
    first_slot: usize,
    /// The furthest `next` so far.
    furthest: usize,
    /// One more than the furthest slot written, as [`high_after`] counts it.
    high: usize,
}

impl ScenarioSetting {
    /// Returns the number of tokens of the sequence that goes around every ring [`TURNS`] times, or as often as the
    /// capacity allows. It is 0 without rings.
    pub(crate) fn around(&self) -> usize {
        // The longest prompt is the lead of the first sample over the last one.
        let turns = |capacity: usize| capacity.saturating_mul(TURNS).saturating_add(self.longest());
        let largest = self.rings.iter().map(|ring| ring.capacity).max();
        largest.map_or(0, turns).min(self.capacity)
    }

    /// Returns the number of tokens that the sequence around the rings is fed at once.
    pub(crate) fn around_width(&self) -> usize {
        if self.around() <= MANY_TOKENS { 1 } else { self.filler() }
    }

    /// Returns the index of the sequence that goes around the rings. It comes after the filling sequence.
    fn going_around(&self) -> usize {
        self.filling() + 1
    }

    /// Returns the scenarios that go around the rings.
    pub(crate) fn around_rings(&self) -> Vec<Scenario> {
        if self.rings.is_empty() {
            return Vec::new();
        }
        let mut scenarios = vec![self.around_alone()];
        scenarios.extend(self.ring_chunks().into_iter().map(|chunk| self.around_in_chunks(chunk)));
        if !self.is_decode_only && !self.has_states {
            scenarios.push(self.around_padded());
        }
        if self.can_pad_left && !self.is_decode_only {
            scenarios.push(self.around_left_padded());
        }
        if self.rewind() > 0 && !self.has_states {
            scenarios.push(self.around_with_rewinds());
        }
        scenarios
    }

    /// Returns the claim that the scenarios go around every ring, or `None` for a model without rings.
    pub(crate) fn turns(&self, scenarios: &[Scenario]) -> Option<Check> {
        const ID: &str = "rings-go-around";
        const CLAIM: &str =
            "The runs go around every ring at least three times, and compare the logits of every step.";
        let largest = self.rings.iter().max_by_key(|ring| ring.capacity)?;
        let slots = largest.capacity;
        let around = scenarios.iter().filter(|scenario| scenario.sequences.contains(&self.going_around()));
        let around: Vec<usize> = around.map(Scenario::fewest_slots).collect();
        let fewest = around.iter().min().copied().unwrap_or_default();
        if fewest < slots.saturating_mul(TURNS) {
            let tokens = self.capacity;
            let why = format!("the caches have room for {tokens} tokens, and a ring has {slots} slots");
            return Some(Check::not_measured(ID, CLAIM, why));
        }
        let count = around.len();
        let evidence = format!(
            "at least {fewest} slots of every sample in each of {count} scenarios, which is {:.1} times around the largest \
             ring of {slots} slots",
            fewest as f64 / slots.max(1) as f64
        );
        Some(Check::passed(ID, CLAIM, evidence))
    }

    /// Returns the numbers of tokens that steps around the rings have: 1, one window and one token more or less, and
    /// the chunk. If there are many tokens, numbers that steps of the largest width cut alike are one.
    fn ring_chunks(&self) -> Vec<usize> {
        if self.is_decode_only {
            return vec![1];
        }
        let of_ring = |ring: &kvscatter_onnx::convert::RingSize| {
            let window = ring.window;
            [1, window.saturating_sub(1), window, window.saturating_add(1), ring.chunk]
        };
        let most = if self.around() > MANY_TOKENS { self.most_rows() } else { usize::MAX };
        let chunks = self.rings.iter().flat_map(of_ring).filter(|chunk| *chunk > 0);
        let mut chunks: Vec<usize> = chunks.map(|chunk| chunk.min(most)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks
    }

    /// Returns the widths of steps of all samples, which are used in turn.
    fn ring_widths(&self) -> Vec<usize> {
        let most = if self.is_decode_only { 1 } else { self.most_rows() };
        vec![most, 1, most.div_ceil(2), most.saturating_sub(1).max(1), 2.min(most)]
    }

    /// Returns the number of tokens that every ring can take back.
    pub(super) fn rewind(&self) -> usize {
        self.rings.iter().map(|ring| ring.rewind).min().unwrap_or_default()
    }

    fn around_scenario(&self, what: &str, description: String, steps: Vec<(Phase, Feed)>) -> Scenario {
        let sequences = vec![self.going_around(); self.prompts.len()];
        let scenario = Scenario::new(format!("around the rings, {what}"), description, sequences, steps);
        if self.around() > MANY_TOKENS { Scenario { fills: &[Fill::Canaries], ..scenario } } else { scenario }
    }

    fn around_alone(&self) -> Scenario {
        let (batch, width) = (self.smallest_batch(), self.around_width());
        let tokens = self.around();
        let description = format!("{tokens} tokens of one sequence, {width} at a time");
        let steps = self.chunks(vec![0; batch], tokens, &[width]);
        let scenario =
            Scenario::new("around the rings", description, vec![self.going_around(); batch], steps);
        Scenario { is_as_reference: true, ..scenario }
    }

    /// Feeds prompts of different lengths, so that the samples reach the end of a ring in different steps.
    fn around_in_chunks(&self, chunk: usize) -> Scenario {
        let mut walk = Walk::new(self, &vec![0; self.prompts.len()]);
        walk.feed(&self.prompts);
        while !walk.is_done() {
            let count = if chunk == 1 { walk.single_tokens() } else { chunk };
            walk.feed(&vec![count; self.prompts.len()]);
        }
        let what = if chunk == 1 { "token by token".to_owned() } else { format!("chunks of {chunk}") };
        let widest = self.most_rows();
        let cut = match chunk {
            1 if self.around() > MANY_TOKENS => ", at the ends of the rings".to_owned(),
            _ if chunk > widest => format!(", in steps of up to {widest}"),
            _ => String::new(),
        };
        let lengths = listed(&self.prompts);
        let description =
            format!("prompts of {lengths} tokens, then chunks of {chunk} for every sample{cut}");
        self.around_scenario(&what, description, walk.steps)
    }

    /// Feeds steps of the largest width, of which each sample fills a different part, or nothing.
    fn around_padded(&self) -> Scenario {
        let (batch, widest) = (self.prompts.len(), self.most_rows());
        let mut walk = Walk::new(self, &vec![0; batch]);
        let mut step = 0;
        while !walk.is_done() {
            let counts: Vec<usize> =
                (0..batch).map(|sample| (step + 2 * sample) % (widest.saturating_add(1))).collect();
            walk.step(&counts, widest);
            step += 1;
        }
        let description =
            format!("steps of {widest} rows, of which each sample has 0 to {widest} tokens and then padding");
        self.around_scenario("padded", description, walk.steps)
    }

    /// Pads the samples on the left by different lengths, one of them longer than a window.
    fn around_left_padded(&self) -> Scenario {
        let batch = self.prompts.len();
        let window = self.rings.iter().map(|ring| ring.window).max().unwrap_or_default();
        let lengths = [0, 1, window + 1];
        let padding: Vec<usize> = lengths.iter().cycle().take(batch).copied().collect();
        let mut walk = Walk::new(self, &padding);
        for count in self.ring_widths().iter().cycle() {
            walk.feed(&vec![*count; batch]);
            if walk.is_done() {
                break;
            }
        }
        let lengths = listed(&padding);
        let description = format!("{lengths} tokens of padding on the left, then chunks of all samples");
        self.around_scenario("padded on the left", description, walk.steps)
    }

    /// Takes the samples back one after the other, each several times, as far below its furthest token as the rings
    /// allow, and feeds it the same tokens again. A step of padding comes before, because it overwrites the most rows.
    fn around_with_rewinds(&self) -> Scenario {
        let (batch, rewind) = (self.prompts.len(), self.rewind());
        let largest = self.rings.iter().map(|ring| ring.capacity).max().unwrap_or_default();
        let between = (largest / 3).max(1);
        let mut walk = Walk::new(self, &vec![0; batch]);
        walk.feed(&self.prompts);
        let mut marks = vec![between; batch];
        for count in self.ring_widths().iter().cycle() {
            if walk.is_done() {
                break;
            }
            walk.step(&vec![*count; batch], 0);
            for (sample, mark) in marks.iter_mut().enumerate() {
                let furthest = walk.samples.get(sample).map_or(0, |walker| walker.furthest);
                if furthest >= *mark {
                    *mark = furthest + between;
                    walk.take_back(sample, rewind);
                }
            }
        }
        let description = format!(
            "every sample goes back {rewind} tokens below its furthest one in two steps, again and again, after a step of \
             padding"
        );
        self.around_scenario("taken back", description, walk.steps)
    }
}

impl Scenario {
    /// Returns the number of slots that the step furthest on has reached, in the sample that has reached least. Slots
    /// are unwrapped.
    fn fewest_slots(&self) -> usize {
        let mut reached = vec![0; self.sequences.len()];
        for (_, feed) in &self.steps {
            for (reached, sample) in reached.iter_mut().zip(&feed.samples) {
                *reached = sample.valid().end.max(*reached);
            }
        }
        reached.into_iter().min().unwrap_or_default()
    }
}

impl<'s> Walk<'s> {
    /// Begins samples with this much padding on the left.
    fn new(setting: &'s ScenarioSetting, padding: &[usize]) -> Self {
        let samples = padding.iter().map(|&first_slot| Walker { first_slot, ..Walker::default() }).collect();
        Self { setting, samples, steps: Vec::new() }
    }

    /// Returns `true` if all samples have the whole sequence, or there is no room for another step.
    fn is_done(&self) -> bool {
        let end = self.setting.around();
        self.room() == 0 || self.samples.iter().all(|sample| sample.tokens() >= end)
    }

    /// Returns the largest number of rows of a step that all caches take.
    fn room(&self) -> usize {
        let of_sample = |sample: &Walker| {
            let free = self.setting.capacity.saturating_sub(sample.next);
            let rings = self.setting.rings.iter();
            let rings = rings.map(|ring| ring.ring().most_rows(sample.high, sample.next).min(ring.chunk));
            rings.min().map_or(free, |rows| rows.min(free))
        };
        let rows = self.samples.iter().map(of_sample).min().unwrap_or_default();
        if self.setting.is_decode_only { rows.min(1) } else { rows }
    }

    /// Returns 1 near the end of a ring. Elsewhere, returns 1 only if the sequence is short.
    fn single_tokens(&self) -> usize {
        if self.setting.around() <= MANY_TOKENS {
            return 1;
        }
        let to_end = |sample: &Walker, capacity: usize| {
            let left = capacity.saturating_sub((sample.next + NEAR) % capacity.max(1));
            if left + 2 * NEAR > capacity { 0 } else { left }
        };
        let rings = self.setting.rings.iter().map(|ring| ring.capacity);
        let left =
            rings.flat_map(|capacity| self.samples.iter().map(move |sample| to_end(sample, capacity))).min();
        left.unwrap_or_default().max(1)
    }

    /// Feeds each sample this many rows of its sequence, in as many steps as that takes.
    fn feed(&mut self, counts: &[usize]) {
        let mut left = counts.to_vec();
        while left.iter().any(|left| *left > 0) {
            let fed = self.step(&left, 0);
            if fed.iter().all(|fed| *fed == 0) {
                return;
            }
            left.iter_mut().zip(fed).for_each(|(left, fed)| *left -= fed);
        }
    }

    /// Feeds one step of at least `rows` rows if there is room. Returns how many rows of each sample's sequence it has,
    /// with those of padding on the left. With states, the step has as few rows as the sample with the fewest tokens,
    /// so that no sample with tokens is padded.
    fn step(&mut self, counts: &[usize], rows: usize) -> Vec<usize> {
        let end = self.setting.around();
        let left = |sample: &Walker| (sample.first_slot + end).saturating_sub(sample.next);
        let counts = counts.iter().zip(&self.samples).map(|(count, sample)| left(sample).min(*count));
        let counts: Vec<usize> = counts.collect();
        let width = if self.setting.has_states {
            counts.iter().copied().filter(|count| *count > 0).min().unwrap_or_default()
        } else {
            counts.iter().max().map_or(rows, |most| rows.max(*most))
        };
        let width = width.min(self.room());
        let counts: Vec<usize> = counts.iter().map(|count| width.min(*count)).collect();
        if width == 0 {
            return counts;
        }
        let samples = self.samples.iter_mut().zip(&counts);
        let samples: Vec<_> = samples.map(|(sample, count)| sample.feed(*count, width)).collect();
        let phase = if width == 1 { Phase::Decode } else { Phase::Chunk };
        self.steps.push((phase, Feed { width, samples }));
        counts
    }

    /// Takes a sample back to `rewind` tokens below its furthest one, in two steps with a token between them.
    fn take_back(&mut self, sample: usize, rewind: usize) {
        let others: Vec<usize> = (0..self.samples.len()).map(|other| usize::from(other != sample)).collect();
        self.step(&others, self.setting.most_rows());
        for back in [rewind.div_ceil(2), rewind] {
            if let Some(walker) = self.samples.get_mut(sample) {
                let to = walker.furthest.saturating_sub(back).max(walker.first_slot);
                walker.next = walker.next.min(to);
            }
            let one: Vec<usize> = others.iter().map(|other| 1 - other).collect();
            self.step(&one, 0);
        }
    }
}

impl Walker {
    /// Returns the number of tokens that the sample has.
    fn tokens(&self) -> usize {
        self.next.saturating_sub(self.first_slot)
    }

    /// Returns a step of `width` rows, of which the first `count` are padding on the left and tokens.
    fn feed(&mut self, count: usize, width: usize) -> SampleFeed {
        let padding = self.first_slot.saturating_sub(self.next).min(count);
        let tokens = self.tokens();
        let feed = SampleFeed {
            start: self.next,
            padding,
            tokens: tokens..tokens + count - padding,
            first_slot: self.first_slot,
        };
        self.high = high_after(self.high, self.next, width);
        self.next += count;
        self.furthest = self.furthest.max(self.next);
        feed
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ring::{Feeding, least_capacity};
    use kvscatter_onnx::convert::RingSize;
    use kvscatter_oracle::ring::{Ring, Step};
    use kvscatter_session::CacheWriter;

    use super::TURNS;
    use crate::drive::scenarios::{Scenario, ScenarioSetting};

    fn setting(rings: &[(usize, usize, usize)], linear: Option<usize>) -> ScenarioSetting {
        let size = |&(window, chunk, rewind): &(usize, usize, usize)| RingSize {
            capacity: least_capacity(window, chunk, rewind, Feeding::Idle),
            window,
            chunk,
            rewind,
        };
        let rings: Vec<_> = rings.iter().map(size).collect();
        let most_rows = rings.iter().map(|ring| ring.chunk).min().unwrap_or(usize::MAX);
        ScenarioSetting {
            prompts: vec![7, 3, 5],
            steps: 16,
            capacity: linear.unwrap_or(2_000),
            chunk: 4.min(most_rows),
            filler: 8.min(most_rows),
            is_batch_fixed: false,
            can_pad_left: true,
            is_decode_only: false,
            writer: CacheWriter::TensorScatter,
            refuses_padding: false,
            has_states: false,
            rings,
            has_linear: linear.is_some(),
        }
    }

    /// Runs a scenario in rings that record which token each slot contains.
    fn check(scenario: &Scenario, setting: &ScenarioSetting) {
        for size in &setting.rings {
            let ring = || Ring::new(size.capacity, size.window);
            let mut rings: Vec<_> = scenario.sequences.iter().map(|_| ring()).collect();
            for (index, (_, feed)) in scenario.steps.iter().enumerate() {
                assert!(feed.width > 0 && feed.width <= size.chunk, "{} {index}", scenario.name);
                for (ring, sample) in rings.iter_mut().zip(&feed.samples) {
                    assert!(sample.start + feed.width <= setting.capacity, "{} {index}", scenario.name);
                    if setting.has_states {
                        let is_exact = [0, feed.width].contains(&sample.tokens.len());
                        assert!(is_exact && sample.padding == 0, "{} {index}", scenario.name);
                    }
                    if sample.first_slot > 0 {
                        continue;
                    }
                    let (rows, tokens) = (feed.width, sample.tokens.len());
                    let step = Step { rewind: ring.tokens() - sample.start, rows, tokens };
                    assert!(ring.step(step) || tokens == 0, "{} {index} {size:?}", scenario.name);
                }
            }
        }
    }

    #[test]
    fn every_step_of_every_scenario_is_exact_in_every_ring() {
        for window in [1, 2, 4, 9] {
            for (chunk, rewind) in [(1, 0), (1, 3), (3, 2), (4, 0), (8, 5)] {
                for others in [&[][..], &[(2, 3, 1)]] {
                    for linear in [None, Some(40), Some(90)] {
                        let rings = [&[(window, chunk, rewind)], others].concat();
                        let padded = setting(&rings, linear);
                        let exact =
                            ScenarioSetting { has_states: true, can_pad_left: false, ..padded.clone() };
                        for (setting, fewest) in [(padded, 4), (exact, 2)] {
                            let scenarios = setting.scenarios();
                            scenarios.iter().for_each(|scenario| check(scenario, &setting));
                            let around = scenarios.iter().filter(|of| of.name.starts_with("around")).count();
                            assert!(around >= fewest && around == setting.around_rings().len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_sample_goes_around_every_ring_three_times() {
        let setting = setting(&[(4, 3, 2), (9, 5, 2)], None);
        let exact = ScenarioSetting { has_states: true, can_pad_left: false, ..setting.clone() };
        for scenario in setting.around_rings().into_iter().chain(exact.around_rings()) {
            let slots = setting.rings[1].capacity * TURNS;
            assert!(scenario.fewest_slots() >= slots, "{} {}", scenario.name, scenario.fewest_slots());
            assert!(scenario.steps.len() < 300, "{} {}", scenario.name, scenario.steps.len());
        }
        let furthest = |name: &str| {
            let scenarios = setting.around_rings();
            let scenario = scenarios.iter().find(|scenario| scenario.name == name).unwrap();
            let starts: Vec<_> = scenario.steps.iter().map(|(_, feed)| feed.samples[0].start).collect();
            starts.windows(2).filter(|pair| pair[1] < pair[0]).count()
        };
        assert_eq!(furthest("around the rings, chunks of 4"), 0);
        assert!(furthest("around the rings, taken back") > 10);
    }

    /// Large rings are not gone around token by token.
    #[test]
    fn a_large_ring_takes_few_steps() {
        let setting = ScenarioSetting { filler: 512, chunk: 4, ..setting(&[(4096, 512, 32)], Some(1 << 15)) };
        for scenario in setting.around_rings() {
            let (slots, steps) = (scenario.fewest_slots(), scenario.steps.len());
            assert!(slots >= setting.rings[0].capacity * TURNS, "{} {slots}", scenario.name);
            assert!(steps < 1_000, "{} {steps}", scenario.name);
        }
    }
}
