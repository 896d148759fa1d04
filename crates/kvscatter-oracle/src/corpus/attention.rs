//! Cases of ONNX `Attention` over a static cache: lengths, causality, layouts, numbers and refusals.

use super::attend::{Attend, Sizes, pattern};
use super::case::CorpusCase;
use crate::attention::{Array, Float, Mask, Positions};

pub(super) fn cases() -> Vec<CorpusCase> {
    [visible(), nothing_visible(), hidden_values(), layouts(), presents(), numbers(), refused()].concat()
}

fn visible() -> Vec<CorpusCase> {
    let lengths = "attention-lengths";
    let causal = "attention-causal-offset";
    vec![
        Attend::seen(Sizes::new(3, 1, 4)).lengths(&[1, 2, 4]).case(
            lengths,
            "decode",
            "The samples have 1, 2 and 4 tokens in a cache of 4 slots.",
        ),
        Attend::seen(Sizes::new(2, 3, 4)).lengths(&[3, 4]).case(
            lengths,
            "three-queries",
            "Without is_causal, all three queries see the same slots.",
        ),
        Attend::seen(Sizes::new(2, 1, 4).heads(2, 2)).lengths(&[2, 3]).case(lengths, "two-heads", "A length is for all heads of a sample."),
        Attend::seen(Sizes::new(5, 1, 2)).lengths(&[1, 2, 1, 2, 1]).case(
            lengths,
            "more-samples-than-slots",
            "There are more samples than slots.",
        ),
        Attend::counted(Sizes::new(2, 1, 3), 64).lengths(&[1, 3]).case(
            lengths,
            "heads-of-64",
            "A cache of three slots and heads of 64 elements: fewer slots than a kernel reads at a time.",
        ),
        Attend::counted(Sizes::new(4, 1, 128).heads(8, 8), 2).lengths(&[32, 64, 96, 48]).case(
            lengths,
            "128-slots",
            "Four samples of different lengths in a cache of 128 slots and eight heads.",
        ),
        Attend::seen(Sizes::new(1, 2, 5)).lengths(&[5]).causal().case(
            causal,
            "end-of-cache",
            "Query 0 has position 3 and query 1 position 4.",
        ),
        Attend::seen(Sizes::new(2, 2, 6)).lengths(&[3, 5]).causal().case(
            causal,
            "middle-of-cache",
            "The queries are the last tokens of each sample, and not the first or the last slots of the cache.",
        ),
        Attend::seen(Sizes::new(3, 1, 4)).lengths(&[1, 3, 4]).causal().case(
            causal,
            "decode",
            "A single query sees all tokens of its sample.",
        ),
        Attend::seen(Sizes::new(1, 4, 4)).lengths(&[4]).causal().case(causal, "prefill", "As many queries as tokens: the usual triangle."),
        Attend::seen(Sizes::new(1, 3, 8)).lengths(&[6]).causal().case(
            causal,
            "chunk-of-a-prompt",
            "The second chunk of a prompt: three tokens after three.",
        ),
        Attend::seen(Sizes::new(2, 3, 4)).lengths(&[4, 4]).case(
            causal,
            "not-causal",
            "Without is_causal, a query sees tokens after its own.",
        ),
    ]
}

fn nothing_visible() -> Vec<CorpusCase> {
    let rule = "attention-nothing-visible";
    let all = |value: f64| vec![value; 4];
    vec![
        Attend::seen(Sizes::new(2, 1, 4)).lengths(&[0, 3]).case(rule, "length-0", "Sample 0 has no tokens."),
        Attend::seen(Sizes::new(2, 3, 4)).lengths(&[1, 3]).causal().case(
            rule,
            "before-the-first-token",
            "Sample 0 has one token but three queries, so its first two queries have negative positions.",
        ),
        Attend::seen(Sizes::new(1, 2, 4)).shows(&[2, 4], "---- x-x-").case(
            rule,
            "boolean-mask",
            "The mask hides everything from query 0.",
        ),
        Attend::seen(Sizes::new(1, 2, 4)).bias(&[2, 4], &[all(f64::NEG_INFINITY), all(0.0)].concat()).case(
            rule,
            "float-mask",
            "The mask of query 0 is minus infinity everywhere.",
        ),
        Attend::seen(Sizes::new(1, 1, 4)).lengths(&[2]).shows(&[1, 4], "--xx").case(
            rule,
            "mask-and-length",
            "The mask shows slots 2 and 3, and the length hides them.",
        ),
        Attend::seen(Sizes::new(2, 1, 4).heads(2, 1)).shows(&[1, 2, 1, 4], "---- xx--").case(
            rule,
            "one-head",
            "The mask hides everything from head 0 only.",
        ),
    ]
}

fn hidden_values() -> Vec<CorpusCase> {
    let rule = "attention-hidden-values";
    vec![
        Attend::computed(Sizes::new(2, 1, 4), 2)
            .lengths(&[2, 4])
            .poison(0, &[2, 3], f64::NAN, f64::NAN)
            .case(
                rule,
                "nan-after-the-length",
                "The free slots of sample 0 contain NaN, as memory that was never written may.",
            ),
        Attend::computed(Sizes::new(1, 1, 4), 2)
            .lengths(&[3])
            .poison(0, &[3], f64::INFINITY, f64::NEG_INFINITY)
            .case(rule, "infinity-after-the-length", "The free slot contains infinities."),
        Attend::computed(Sizes::new(1, 1, 4), 2)
            .shows(&[1, 4], "x-xx")
            .poison(0, &[1], f64::NAN, f64::NAN)
            .case(rule, "nan-hidden-by-a-boolean-mask", "The mask hides the slot with NaN."),
        Attend::computed(Sizes::new(1, 1, 4), 2)
            .bias(&[1, 4], &[0.0, f64::NEG_INFINITY, 0.0, 0.0])
            .poison(0, &[1], f64::NAN, f64::NAN)
            .case(rule, "nan-hidden-by-a-float-mask", "The mask is minus infinity at the slot with NaN."),
        Attend::computed(Sizes::new(2, 1, 3), 2)
            .lengths(&[0, 3])
            .poison(0, &[0, 1, 2], f64::NAN, f64::NAN)
            .case(
                rule,
                "nan-in-a-sample-without-tokens",
                "Sample 0 has no tokens, and all its slots contain NaN.",
            ),
        Attend::computed(Sizes::new(1, 3, 5), 2).lengths(&[4]).causal().poison(0, &[3], f64::NAN, f64::NAN).case(
            rule,
            "nan-in-the-last-token",
            "The last token is NaN, and so is the result of its query. The two queries before it do not see it.",
        ),
    ]
}

fn layouts() -> Vec<CorpusCase> {
    let shared = "attention-shared-heads";
    let layouts = "attention-layouts";
    vec![
        Attend::computed(Sizes::new(1, 1, 5).heads(4, 2), 3).lengths(&[3]).case(
            shared,
            "two-for-each",
            "Query heads 0 and 1 read key head 0. Heads that take turns (0, 1, 0, 1) give another result.",
        ),
        Attend::computed(Sizes::new(2, 2, 5).heads(3, 1), 1).lengths(&[2, 4]).causal().case(
            shared,
            "one-for-all",
            "All three query heads read one key head.",
        ),
        flat(Sizes::new(1, 3, 5).heads(2, 2)).lengths(&[4]).causal().case(
            layouts,
            "rank-3",
            "Heads are inside the last dimension of inputs and output.",
        ),
        flat(Sizes::new(2, 1, 5).heads(6, 3)).lengths(&[3, 4]).case(
            layouts,
            "rank-3-shared-heads",
            "Six query heads share three key heads.",
        ),
        Attend::computed(Sizes::new(1, 2, 5), 6).lengths(&[4]).case(
            layouts,
            "larger-values",
            "Keys have 4 elements and values 6.",
        ),
        Attend::computed(Sizes::new(1, 2, 5), 1).lengths(&[3]).case(
            layouts,
            "smaller-values",
            "Keys have 4 elements and values 1.",
        ),
    ]
}

/// A call whose inputs have rank 3, with heads of 4 elements and values of 2.
fn flat(sizes: Sizes) -> Attend {
    Attend::computed(sizes, 2).with(|attention, inputs| {
        let Sizes { batch, q_heads, kv_heads, queries, slots } = sizes;
        attention.q_num_heads = Some(q_heads as i64);
        attention.kv_num_heads = Some(kv_heads as i64);
        inputs.q = pattern(3, &[batch, queries, q_heads * 4]);
        inputs.k = pattern(5, &[batch, slots, kv_heads * 4]);
        inputs.v = pattern(7, &[batch, slots, kv_heads * 2]);
    })
}

fn presents() -> Vec<CorpusCase> {
    let rule = "attention-present-without-past";
    let computed = || Attend::computed(Sizes::new(2, 3, 3).heads(4, 2), 5).causal().present();
    vec![
        computed().case(rule, "rank-4", "The presents are the keys and the values."),
        flat(Sizes::new(2, 3, 3).heads(4, 2)).causal().present().case(
            rule,
            "rank-3",
            "Heads are inside the last dimension of the inputs. The presents have rank 4.",
        ),
        computed().operator_set(23).case(rule, "operator-set-23", "The same in operator set 23."),
    ]
}

fn numbers() -> Vec<CorpusCase> {
    let scores = "attention-scores";
    let half = "attention-half-types";
    let computed = || Attend::computed(Sizes::new(2, 2, 5).heads(2, 1), 3).lengths(&[3, 5]).causal();
    vec![
        computed()
            .with(|_, inputs| {
                inputs.q = pattern(3, &[2, 2, 2, 6]);
                inputs.k = pattern(5, &[2, 1, 5, 6]);
            })
            .case(
                scores,
                "default-scale",
                "The scale is 1 over the square root of the head size, which is 6.",
            ),
        computed().with(|attention, _| attention.scale = Some(0.25)).case(
            scores,
            "scale",
            "The scale is 0.25.",
        ),
        computed().with(|attention, _| attention.softcap = 0.5).case(
            scores,
            "softcap",
            "Scores are bounded by 0.5.",
        ),
        computed()
            .with(|attention, _| attention.softcap = 0.5)
            .bias(&[2, 5], &[0.0, -1.0, 2.0, 0.5, 1.0, 1.0, 0.0, -2.0, 0.25, 3.0])
            .case(
                scores,
                "softcap-before-mask",
                "The mask is added after the softcap, so it is not bounded.",
            ),
        Attend::computed(Sizes::new(1, 1, 4), 2)
            .with(|_, inputs| inputs.k.data.iter_mut().for_each(|key| *key *= 400.0))
            .lengths(&[4])
            .case(
                scores,
                "large-scores",
                "The exponentials of the scores overflow, unless the largest score is subtracted first.",
            ),
        Attend::seen(Sizes::new(1, 1, 4))
            .with(|_, inputs| inputs.k.data.fill(-2_f64.powi(126)))
            .lengths(&[2])
            .case(
                scores,
                "lowest-scores",
                "The visible scores are close to the lowest number, and still above every hidden slot.",
            ),
        computed().element(Float::F16).case(half, "float16", "Queries, keys and values are float16."),
        computed().element(Float::Bf16).case(half, "bfloat16", "Queries, keys and values are bfloat16."),
        Attend::seen(Sizes::new(1, 1, 12)).element(Float::Bf16).lengths(&[12]).case(
            half,
            "sum-in-bfloat16",
            "The sum of the twelve values needs more bits than bfloat16 has.",
        ),
    ]
}

fn refused() -> Vec<CorpusCase> {
    let lengths = "attention-refused-lengths";
    let shapes = "attention-refused-shapes";
    let seen = || Attend::seen(Sizes::new(2, 1, 4));
    vec![
        seen().lengths(&[5, 1]).case(
            lengths,
            "refused-above-slots",
            "Sample 0 has five tokens in a cache of 4 slots.",
        ),
        seen().lengths(&[-1, 1]).case(lengths, "refused-negative", "The length of sample 0 is negative."),
        seen().lengths(&[i64::MAX, 1]).case(
            lengths,
            "refused-largest",
            "The length of sample 0 is the largest int64.",
        ),
        seen().lengths(&[1]).case(
            lengths,
            "refused-fewer-than-batch",
            "There is one length for two samples.",
        ),
        seen().lengths(&[1, 2, 3]).case(
            lengths,
            "refused-more-than-batch",
            "There are three lengths for two samples.",
        ),
        seen()
            .lengths(&[1, 2])
            .with(|_, inputs| {
                inputs.past_key = Some(Array::new(vec![0.0; 4], &[2, 1, 1, 2]));
                inputs.past_value = Some(Array::new(vec![0.0; 2], &[2, 1, 1, 1]));
            })
            .case(lengths, "refused-with-past", "There is a past, and there are lengths."),
        seen().with(|_, inputs| inputs.mask = Some(Mask::Bool(Array::new(vec![true; 6], &[1, 6])))).case(
            shapes,
            "refused-long-mask",
            "The mask has six columns for 4 slots.",
        ),
        seen()
            .with(|_, inputs| inputs.mask = Some(Mask::Bool(Array::new(vec![true; 12], &[3, 1, 1, 4]))))
            .case(shapes, "refused-mask-batch", "The mask has three samples for two."),
        seen().with(|_, inputs| inputs.k = Array::new(vec![0.0; 24], &[2, 1, 4, 3])).case(
            shapes,
            "refused-key-size",
            "Queries have 2 elements and keys 3.",
        ),
        seen().with(|_, inputs| inputs.v = Array::new(vec![0.0; 6], &[2, 1, 3, 1])).case(
            shapes,
            "refused-value-slots",
            "There are 4 keys and 3 values.",
        ),
        Attend::seen(Sizes::new(1, 1, 4).heads(3, 2)).case(
            shapes,
            "refused-heads",
            "Three query heads cannot share two key heads.",
        ),
        seen()
            .with(|_, inputs| inputs.positions = Positions::Full)
            .with(|_, inputs| inputs.q = Array::new(vec![1.0; 4], &[2, 1, 2]))
            .case(shapes, "refused-ranks", "Queries have rank 3, keys and values rank 4."),
    ]
}
