//! Cases of ONNX `Attention` with masks: their kinds, shapes, windows and rings.

use super::attend::{Attend, Sizes};
use super::case::CorpusCase;
use crate::attention::Float;
use crate::visibility::Visibility;

pub(super) fn cases() -> Vec<CorpusCase> {
    [kinds(), shapes(), windows(), rings()].concat()
}

const HIDDEN: f64 = f64::NEG_INFINITY;

fn kinds() -> Vec<CorpusCase> {
    let boolean = "attention-boolean-mask";
    let float = "attention-float-mask";
    let lowest = "attention-lowest-value";
    let low = Float::F32.lowest();
    let seen = |queries| Attend::seen(Sizes::new(1, queries, 4));
    vec![
        seen(2).shows(&[2, 4], "x-x- -xxx").case(
            boolean,
            "two-queries",
            "Each query has its own row of the mask.",
        ),
        seen(1).lengths(&[3]).shows(&[1, 4], "x-xx").case(
            boolean,
            "with-length",
            "A slot is seen if both the mask and the length show it.",
        ),
        seen(2).lengths(&[3]).causal().shows(&[2, 4], "xx-- -xx-").case(
            boolean,
            "with-causality",
            "A slot is seen if the mask, the length and causality show it.",
        ),
        first_slots([511, 512, 513]).case(
            boolean,
            "512-slots",
            "No lengths: the mask shows the first 511, 512 and 513 slots.",
        ),
        first_slots([1023, 1024, 1025]).case(
            boolean,
            "1024-slots",
            "No lengths: the mask shows the first 1023, 1024 and 1025 slots.",
        ),
        seen(1).bias(&[1, 4], &[0.0, HIDDEN, 0.0, 0.0]).case(float, "minus-infinity", "Slot 1 is hidden."),
        seen(1).bias(&[1, 4], &[0.0, 1.0, -1.0, 0.5]).case(float, "added", "The mask changes the weights."),
        seen(1).lengths(&[3]).bias(&[1, 4], &[0.0, 1.0, 0.0, 9.0]).case(
            float,
            "with-length",
            "The length hides slot 3, which has the largest number in the mask.",
        ),
        seen(1).bias(&[1, 4], &[0.0, low, 0.0, low]).case(
            lowest,
            "hides",
            "Slots 1 and 3 have the lowest float32.",
        ),
        seen(1).element(Float::F16).bias(&[1, 4], &[0.0, Float::F16.lowest(), 0.0, 0.0]).case(
            lowest,
            "hides-in-float16",
            "Slot 1 has the lowest float16.",
        ),
        seen(1).lengths(&[3]).bias(&[1, 4], &[low, low, low, 0.0]).case(
            lowest,
            "everywhere",
            "Every slot that the length shows has the lowest value, so these slots weigh the same.",
        ),
    ]
}

/// A call of three samples whose mask shows the first slots, up to the largest number of them.
fn first_slots(shown: [usize; 3]) -> Attend {
    let slots = shown.into_iter().fold(0, usize::max);
    let row = |shown: usize| "x".repeat(shown) + &"-".repeat(slots - shown);
    Attend::counted(Sizes::new(3, 1, slots), 1).shows(&[3, 1, 1, slots], &shown.map(row).concat())
}

fn shapes() -> Vec<CorpusCase> {
    let broadcast = "attention-mask-broadcast";
    let short = "attention-short-mask";
    let sizes = Sizes::new(2, 2, 3).heads(2, 1);
    vec![
        Attend::seen(sizes).shows(&[2, 3], "x-- xx-").case(
            broadcast,
            "rank-2",
            "One mask for all samples and heads.",
        ),
        Attend::seen(sizes).shows(&[2, 2, 3], "x-- xx- --x -xx").case(
            broadcast,
            "rank-3",
            "One mask for each head.",
        ),
        Attend::seen(sizes).shows(&[2, 1, 1, 3], "x-- -xx").case(
            broadcast,
            "each-sample",
            "One row for each sample.",
        ),
        Attend::seen(sizes).shows(&[1, 2, 1, 3], "x-- -xx").case(
            broadcast,
            "each-head",
            "One row for each query head.",
        ),
        Attend::seen(sizes).shows(&[2, 2, 2, 3], "x-- -x- --x xx- x-x -xx xxx x--").case(
            broadcast,
            "full",
            "A row for each query of each head of each sample.",
        ),
        Attend::seen(Sizes::new(1, 2, 4)).shows(&[2, 2], "xx x-").case(
            short,
            "half",
            "The mask has two columns for 4 slots. Slots 2 and 3 are hidden.",
        ),
        Attend::seen(Sizes::new(1, 1, 4)).bias(&[1, 3], &[0.0, 1.0, 0.0]).case(
            short,
            "numbers",
            "The mask is a mask of numbers.",
        ),
        Attend::seen(Sizes::new(1, 1, 4)).shows(&[1, 1], "x").case(
            short,
            "one-column",
            "A single column is padded and not repeated, so only slot 0 is seen.",
        ),
    ]
}

fn windows() -> Vec<CorpusCase> {
    let mask = "attention-window-by-mask";
    let attributes = "attention-window-attributes";
    let window = |left, right| {
        move |attention: &mut crate::attention::Attention, _: &mut crate::attention::Inputs| {
            attention.left_window_size = left;
            attention.right_window_size = right;
        }
    };
    vec![
        Attend::seen(Sizes::new(1, 3, 6)).lengths(&[5]).causal().shows(&[3, 6], "-xxxxx --xxxx ---xxx").case(
            mask,
            "two-tokens",
            "The mask hides tokens before the window of two, and causality those after the query.",
        ),
        Attend::seen(Sizes::new(2, 1, 6)).lengths(&[3, 6]).shows(&[2, 1, 1, 6], "-xx--- ----xx").case(
            mask,
            "ragged-decode",
            "Each sample has a window of two at its own position.",
        ),
        Attend::seen(Sizes::new(1, 1, 5)).lengths(&[2]).shows(&[1, 5], "---xx").case(
            mask,
            "window-after-the-length",
            "The window does not contain a valid slot, so the query sees nothing.",
        ),
        Attend::seen(Sizes::new(1, 3, 6)).lengths(&[5]).causal().with(window(1, -1)).operator_set(25).case(
            attributes,
            "left-1",
            "A query sees its token and the one before.",
        ),
        Attend::seen(Sizes::new(2, 2, 5)).lengths(&[3, 5]).with(window(1, 0)).operator_set(25).case(
            attributes,
            "left-1-right-0",
            "The right bound hides later tokens, as causality does.",
        ),
        Attend::seen(Sizes::new(1, 2, 5)).lengths(&[5]).causal().with(window(0, -1)).operator_set(25).case(
            attributes,
            "left-0",
            "A query sees its own token only.",
        ),
    ]
}

/// Rings in ONNX: the mask shows slots, and the lengths are at most the capacity.
fn rings() -> Vec<CorpusCase> {
    let rule = "attention-ring-by-mask";
    let (none, window) = (None, |size: u64| Some(size - 1));
    vec![
        ring(Sizes::new(1, 1, 4), 3, window(3)).case(
            rule,
            "before-the-wrap",
            "Three tokens in a ring of 4 slots with a window of three.",
        ),
        ring(Sizes::new(1, 1, 4), 6, window(3)).case(
            rule,
            "after-the-wrap",
            "Token 5 is in slot 1. The window of three has slots 3, 0 and 1, and slot 2 contains token 2.",
        ),
        ring(Sizes::new(1, 1, 4), 9, none).case(rule, "full-ring", "All four slots are in the window."),
        ring(Sizes::new(1, 3, 6), 9, window(4)).case(
            rule,
            "chunk-over-the-end",
            "Three queries at positions 6, 7 and 8 in a ring of 6 slots, each with its own window of four.",
        ),
        ring(Sizes::new(1, 2, 3), 5, window(2)).case(
            rule,
            "window-and-chunk-fill-the-ring",
            "The ring has just the slots that a window of two and a chunk of two need.",
        ),
    ]
}

/// A ring after `tokens` tokens, of which the last ones are the queries.
fn ring(sizes: Sizes, tokens: u64, left: Option<u64>) -> Attend {
    let Sizes { queries, slots, .. } = sizes;
    let visibility = Visibility { tokens, capacity: slots as u64, ring: true, left, right: Some(0) };
    let first = tokens as i64 - queries as i64;
    let shown: String = (0..queries)
        .flat_map(|query| (0..slots).map(move |slot| (query, slot)))
        .map(|(query, slot)| if visibility.sees(first + query as i64, slot as u64) { 'x' } else { '-' })
        .collect();
    let lengths = [tokens.min(slots as u64) as i64];
    Attend::seen(sizes).lengths(&lengths).shows(&[queries, slots], &shown)
}
