//! Cases of Ascend ATB `KVCacheOperation`.

use super::case::CorpusCase;
use super::write::Write;
use crate::ascend::KvCacheOperation;
use crate::cases::Call;

pub(super) fn cases() -> Vec<CorpusCase> {
    let write = "ascend-write";
    let range = "ascend-range";
    let seq_len = "ascend-seq-len";
    let layer = "ascend-layer";
    let rank_4 = "ascend-rank-4";
    let past = &[3, 2, 5, 4];
    let flat = |lists: Lists| tokens(past, lists);
    vec![
        flat(Lists { layer_id: &[0], token_offset: &[1, 4], seq_len: &[1, 1] }).case(
            write,
            "decode",
            "Sample 0 has one token after the write, and sample 1 four.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[3, 4], seq_len: &[2, 2] }).case(
            write,
            "two-tokens",
            "The tokens of sample 0 go to rows 1 and 2.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 4], seq_len: &[1, 3] }).case(
            "ascend-packed",
            "one-and-three",
            "Sample 0 has one token and sample 1 three.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[5, 5], seq_len: &[5, 1] }).case(
            range,
            "last-row",
            "tokenOffset is maxSeqLen, which fills the last row.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 1], seq_len: &[1, 2] }).case(
            range,
            "refused-below-seq-len",
            "Sample 1 would begin at row -1, which is in sample 0.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 6], seq_len: &[1, 1] }).case(
            range,
            "refused-above-capacity",
            "Sample 1 would end after the last row.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 1], seq_len: &[1, 0] }).case(
            seq_len,
            "refused-zero",
            "Sample 1 has no tokens.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 1], seq_len: &[1, 1] }).update_shape(&[3, 4]).case(
            seq_len,
            "refused-total",
            "The sum is 2, but there are three tokens.",
        ),
        flat(Lists { layer_id: &[1], token_offset: &[1, 2], seq_len: &[1, 1] }).case(
            layer,
            "second",
            "Layers 0 and 2 do not change.",
        ),
        flat(Lists { layer_id: &[3], token_offset: &[1, 2], seq_len: &[1, 1] }).case(
            layer,
            "refused-above",
            "There is no layer 3.",
        ),
        flat(Lists { layer_id: &[-1], token_offset: &[1, 2], seq_len: &[1, 1] }).case(
            layer,
            "refused-negative",
            "Layer -1 must not be the last layer.",
        ),
        flat(Lists { layer_id: &[0, 1], token_offset: &[1, 2], seq_len: &[1, 1] }).case(
            layer,
            "refused-two",
            "There are two layers.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 2], seq_len: &[1, 1] }).element("int8").case(
            "ascend-types",
            "int8",
            "The cache is int8.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 2], seq_len: &[1, 1] }).element("bfloat16").case(
            "ascend-types",
            "bfloat16",
            "The cache is bfloat16.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[1, 2], seq_len: &[1, 1] }).element("float").case(
            "ascend-types",
            "refused-float32",
            "The cache is float32.",
        ),
        flat(Lists { layer_id: &[0], token_offset: &[2, 3], seq_len: &[2, 2] })
            .update_shape(&[2, 2, 4, 1])
            .case(rank_4, "two-tokens", "newKv has two samples of two tokens, with four heads of 1 element."),
        flat(Lists { layer_id: &[0], token_offset: &[1, 3], seq_len: &[1, 3] })
            .update_shape(&[2, 2, 4, 1])
            .case(rank_4, "refused-ragged", "seqLen is 1 and 3, but both samples of newKv have two tokens."),
    ]
}

/// The lists of a call.
struct Lists {
    layer_id: &'static [i32],
    token_offset: &'static [i32],
    seq_len: &'static [i32],
}

/// A call over a float16 cache, with as many tokens as `seq_len` needs.
fn tokens(past: &[usize; 4], lists: Lists) -> Write {
    let Lists { layer_id, token_offset, seq_len } = lists;
    let tokens = seq_len.iter().map(|&rows| rows as usize).sum();
    let call = Call::KvCacheOperation {
        operator: KvCacheOperation::default(),
        layer_id: layer_id.to_vec(),
        token_offset: token_offset.to_vec(),
        seq_len: seq_len.to_vec(),
        lengths: None,
    };
    Write::new(call, past, &[tokens, past[3]]).element("float16")
}
