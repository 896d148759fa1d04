//! The probes on which masks and values are compared.

use std::collections::BTreeSet;
use std::ops::Range;

use super::probe::{BLOCKS, Inputs, LAST, Probe, SAMPLES};
use crate::fold::MAX_VALUES;

/// The length of the longest prefill that is evaluated. Its masks have `LONG * LONG` elements.
const LONG: usize = 256;

/// The number of tokens by which the probe with padding around windows is longer than the longest window.
const BESIDE: usize = 8;

/// Where an exported decoder supports padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Any token may be padding.
    Anywhere,
    /// Only the last tokens of a first run may be padding. `GroupQueryAttention` counts the real tokens of each
    /// sample, and takes the first ones for real.
    Right,
    /// No token may be padding, because the decoder has no attention mask.
    Nowhere,
}

/// Returns probes on which other rules give other masks than the rule.
///
/// * Prefill, chunks, and padding on the left, on the right and in between.
/// * Padding on both sides of where each window begins.
/// * Blocks, if the decoder takes their ids: in the step, in the past, across both, across where windows begin, and
///   with padding.
/// * A long prefill, the middle of the capacity, and the end of the capacity in chunks and by one token.
///   These find windows, thresholds and tables that end. The last probe is the longest.
///
/// A mask may have this many heads. Probes have fewer samples or tokens if its elements would not be computed.
pub(super) fn probes(
    inputs: &Inputs<'_>,
    max_seq: usize,
    padding: Padding,
    heads: usize,
    windows: &BTreeSet<usize>,
) -> Vec<Probe> {
    let batch = inputs.batch();
    let samples = batch.unwrap_or(SAMPLES);
    let new = |wanted: usize| inputs.new_tokens().unwrap_or(wanted);
    let is_small = |batch: usize, new: usize, total: usize| {
        [batch, heads, new, total].into_iter().fold(1, usize::saturating_mul) <= MAX_VALUES
    };
    let probe = |past: usize, wanted: usize| {
        let total = |new: usize| past.saturating_add(new);
        let sizes_of = |samples| (1..=new(wanted)).rev().map(move |new| (samples, new));
        let sizes = sizes_of(samples).take(1).chain(sizes_of(batch.unwrap_or(1)));
        let size = sizes.into_iter().find(|&(batch, new)| is_small(batch, new, total(new)));
        let (batch, few) = size.unwrap_or((batch.unwrap_or(1), 1));
        Probe::new(batch, past, inputs.new_tokens().unwrap_or(few))
    };
    let ending = |total: usize, wanted: usize| probe(total.saturating_sub(new(wanted)), wanted).ending(total);
    let mut padded = Vec::new();
    match padding {
        Padding::Anywhere => {
            padded.extend(ending(9, 3).each_padded(&once([0..2, 0..0, 0..4, 0..0, 3..5, 1..2])));
            padded.extend(ending(5, 5).each_padded(&once([0..3, 0..1, 4..5])));
            // The fewest tokens with padding in between.
            padded.extend(ending(3, 3).each_padded(&once([1..2, 0..0, 0..1])));
            if let Some(&widest) = windows.last() {
                let probe = ending(max_seq.min(widest.saturating_add(BESIDE)), 3);
                padded.extend(probe.each_padded(&around_windows(probe.total(), windows)));
            }
        }
        Padding::Right => padded.extend(ending(5, 5).each_padded(&once([2..5, 4..5, 0..0]))),
        Padding::Nowhere => {}
    }
    let mut probes = vec![probe(0, 4), probe(6, 3)];
    probes.extend_from_slice(&padded);
    probes.extend([
        probe(1, 1),
        probe(0, max_seq.min(LONG)),
        probe(max_seq / 2, 2),
        probe(max_seq.saturating_sub(LAST), LAST),
    ]);
    if inputs.have_blocks() {
        let sizes = [(0, 4), (6, 3), (2, 7), (4, 9), (0, 13), (9, 1), (max_seq / 2, 2)];
        let at_windows = windows.iter().map(|window| (window.saturating_add(BESIDE), 3));
        let mut several: Vec<_> =
            sizes.into_iter().chain(at_windows).map(|(past, new)| probe(past, new)).collect();
        several.extend([ending(max_seq.min(LONG), LONG), ending(max_seq, LAST)]);
        several.extend(padded);
        probes.extend(several.iter().flat_map(in_all_blocks));
    }
    // A probe with more tokens than slots cannot occur.
    probes.retain(|probe| probe.total() <= max_seq);
    probes.push(inputs.probe(1, 0, 1).ending(max_seq));
    probes
}

/// Returns probes of this size whose samples together have all rows of ids of blocks.
fn in_all_blocks(probe: &Probe) -> Vec<Probe> {
    let rotated = (0..BLOCKS.len()).step_by(probe.batch.max(1)).map(|first| {
        let rows: Vec<_> = BLOCKS.iter().cycle().skip(first).take(BLOCKS.len()).copied().collect();
        probe.clone().in_blocks(&rows)
    });
    rotated.collect()
}

/// Returns the padding of samples that are padded in one place.
fn once<const SAMPLES: usize>(padding: [Range<usize>; SAMPLES]) -> [Vec<Range<usize>>; SAMPLES] {
    padding.map(|padding| vec![padding])
}

/// Returns the padding of samples with this many tokens, so that the last tokens have padding in their windows and on
/// both sides of where their windows begin. One sample is padded on the left.
fn around_windows(total: usize, windows: &BTreeSet<usize>) -> Vec<Vec<Range<usize>>> {
    let left = 0..total.saturating_sub(windows.last().copied().unwrap_or_default()) / 2;
    let within = total.saturating_sub(2)..total.saturating_sub(1);
    // The slots `first..end`, counted from the first slot of the last token's window.
    let around = |first: isize, end: isize| {
        let begins = windows.iter().filter_map(move |&window| total.checked_sub(window));
        begins.map(move |begin| begin.saturating_add_signed(first)..begin.saturating_add_signed(end))
    };
    vec![
        vec![within.clone()],
        around(-1, 0).collect(),
        around(0, 1).collect(),
        // Padding moves the beginning of a window of real tokens.
        around(-2, -1).chain([within.clone()]).collect(),
        around(-1, 1).chain([within]).collect(),
        vec![left],
    ]
}
