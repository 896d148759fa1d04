//! Cases of TensorRT `KVCacheUpdate`.

use super::case::{CorpusCase, Fault, Form};
use super::write::Write;
use crate::OutOfRange;
use crate::cases::Call;
use crate::tensorrt::{KvCacheUpdate, UpdateForm};

pub(super) fn cases() -> Vec<CorpusCase> {
    let write = "tensorrt-write";
    let end = "tensorrt-end";
    let negative = "tensorrt-negative-index";
    let smaller = "tensorrt-smaller-batch";
    let types = "tensorrt-types";
    let builder = "tensorrt-builder";
    let cache = &[2, 3, 4, 5];
    vec![
        padded(cache, &[2, 3, 1, 5], &[1, 3]).case(
            write,
            "decode",
            "Each sample gets one row in all three heads.",
        ),
        padded(cache, &[2, 3, 3, 5], &[0, 1]).case(write, "prefill", "Each sample gets three rows."),
        padded(cache, &[2, 3, 2, 5], &[2, 2]).case(end, "last-slot", "The last row goes to the last slot."),
        padded(cache, &[2, 3, 2, 5], &[0, 3]).case(
            end,
            "refused-one-row-too-many",
            "The first row of sample 1 fits, and the second does not.",
        ),
        padded(cache, &[2, 3, 1, 5], &[0, 4]).case(
            end,
            "refused-capacity",
            "The index of sample 1 is s_max.",
        ),
        padded(cache, &[2, 3, 1, 5], &[0, -1]).case(
            negative,
            "refused-minus-one",
            "The index of sample 1 is -1.",
        ),
        packed(cache, 4, &[1, 0], &[0, 1, 4]).case(
            "tensorrt-packed",
            "one-and-three",
            "Sample 0 has one row and sample 1 three.",
        ),
        packed(cache, 3, &[1, 4], &[0, 3, 3]).case(
            "tensorrt-packed",
            "a-sample-without-rows",
            "Sample 1 has no rows.",
        ),
        packed(cache, 3, &[0, 0], &[1, 2, 3]).case(
            "tensorrt-update-lengths",
            "refused-first",
            "The first value is 1.",
        ),
        packed(cache, 3, &[0, 0], &[0, 4, 3]).case(
            "tensorrt-update-lengths",
            "refused-decrease",
            "The values decrease.",
        ),
        packed(cache, 3, &[0, 0], &[0, 1, 2]).case(
            "tensorrt-update-lengths",
            "refused-total",
            "The last value is 2, but there are three tokens.",
        ),
        packed(cache, 5, &[0, 0], &[0, 5, 5]).case(
            "tensorrt-update-lengths",
            "refused-above-capacity",
            "Sample 0 has five rows for 4 slots.",
        ),
        padded(&[3, 2, 4, 5], &[2, 2, 1, 5], &[1, 3]).case(
            smaller,
            "two-of-three",
            "Sample 2 does not change.",
        ),
        packed(&[3, 2, 4, 5], 3, &[1, 0], &[0, 1, 3]).case(smaller, "packed", "Sample 2 does not change."),
        padded(cache, &[2, 3, 0, 5], &[4, 0]).case(
            "tensorrt-no-rows",
            "at-the-end",
            "Index 4 is s_max. Nothing follows it, so it is valid.",
        ),
        padded(cache, &[2, 3, 1, 5], &[1, 3]).element("float16").case(
            types,
            "float16",
            "The cache is float16.",
        ),
        padded(cache, &[2, 3, 1, 5], &[1, 3]).element("bfloat16").case(
            types,
            "bfloat16",
            "The cache is bfloat16.",
        ),
        padded(cache, &[2, 3, 1, 5], &[1, 3]).element("int8").case(
            types,
            "refused-int8",
            "The cache is int8.",
        ),
        padded(cache, &[2, 3, 1, 5], &[1, 3]).types("float16", "float").case(
            types,
            "refused-different",
            "The cache is float16 and the update float32.",
        ),
        padded(cache, &[2, 3, 1, 5], &[1, 3]).form(Form::Fault(Fault::CircularCacheMode)).case(
            "tensorrt-mode",
            "refused-circular",
            "The mode is circular.",
        ),
        padded(cache, &[2, 1, 1, 5], &[1, 3]).case(
            builder,
            "refused-heads",
            "The update has one head for three.",
        ),
        padded(cache, &[2, 3, 1, 1], &[1, 3]).case(
            builder,
            "refused-head-size",
            "The update has heads of 1 element for 5.",
        ),
        padded(cache, &[2, 3, 5, 5], &[0, 0]).case(
            builder,
            "refused-longer",
            "The update has five rows for 4 slots.",
        ),
        padded(cache, &[3, 3, 1, 5], &[0, 0, 0]).case(
            builder,
            "refused-larger-batch",
            "The update has three samples for two.",
        ),
        padded(cache, &[2, 3, 1, 5], &[0]).case(
            builder,
            "refused-index-count",
            "There is one index for two samples.",
        ),
        padded(&[2, 4, 2], &[2, 1, 2], &[0, 0]).case(builder, "refused-rank-3", "The cache has no heads."),
    ]
}

fn padded(cache: &[usize], update: &[usize], write_indices: &[i64]) -> Write {
    Write::new(call(UpdateForm::Padded, write_indices, None), cache, update)
}

fn packed(cache: &[usize; 4], tokens: usize, write_indices: &[i64], update_lengths: &[i32]) -> Write {
    let update = [tokens, cache[1], cache[3]];
    Write::new(call(UpdateForm::Packed, write_indices, Some(update_lengths)), cache, &update)
}

fn call(update_form: UpdateForm, write_indices: &[i64], update_lengths: Option<&[i32]>) -> Call {
    Call::KvCacheUpdate {
        operator: KvCacheUpdate { update_form, out_of_range: OutOfRange::Error },
        write_indices: write_indices.to_vec(),
        update_lengths: update_lengths.map(<[i32]>::to_vec),
        lengths: None,
    }
}
