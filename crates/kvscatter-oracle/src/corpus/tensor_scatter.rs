//! Cases of ONNX `TensorScatter`.

use super::case::{CorpusCall, CorpusCase, Fault, Form, TwoWrites};
use super::write::Write;
use crate::cases::{Case, Element, Values};

pub(super) fn cases() -> Vec<CorpusCase> {
    [positions(), refused_positions(), shapes(), indices(), graphs(), types(), models()].concat()
}

/// Writes that are valid because of where they begin.
fn positions() -> Vec<CorpusCase> {
    let write = "write";
    let wrap = "ring-wrap";
    let above = "ring-index-at-or-above-capacity";
    let coordinate = "ring-modulo-coordinate";
    let negative = "ring-negative-index";
    let extreme = "ring-extreme-index";
    vec![
        Write::linear(&[2, 2, 4, 2], 1, &[1, 3]).case(write, "decode", "Each sample gets one row in both heads."),
        Write::linear(&[2, 1, 5, 2], 3, &[0, 2]).case(write, "prefill", "Each sample gets three rows."),
        Write::linear(&[2, 3, 5, 4], 1, &[1, 4]).case(
            write,
            "different-sizes",
            "No two dimensions are equal, and neither are those of the update.",
        ),
        Write::linear(&[3, 4, 2], 2, &[1, 2, 0]).case(write, "rank-3", "The cache has no heads."),
        Write::linear(&[1, 1, 1, 1], 1, &[0]).case(write, "one-element", "The cache has one element."),
        Write::ring(&[2, 2, 4, 2], 2, &[1, 2]).case(
            write,
            "ring-without-wrap",
            "A ring is written like a linear cache until a write reaches its end.",
        ),
        Write::ring(&[2, 2, 4, 2], 2, &[1, 3]).case(wrap, "two-rows", "The second row of sample 1 goes to slot 0."),
        Write::ring(&[1, 1, 5, 2], 4, &[3]).case(wrap, "four-rows", "Rows 2 and 3 go to slots 0 and 1."),
        Write::ring(&[3, 4, 2], 2, &[0, 2, 3]).case(
            wrap,
            "one-sample-of-three",
            "Only the last sample wraps, so the samples need different numbers of copies.",
        ),
        Write::ring(&[2, 5, 3], 2, &[2, 1]).axis(-1).case(
            wrap,
            "last-axis",
            "A wrap along the last axis: the rows of a slot are not contiguous.",
        ),
        Write::ring(&[1, 2, 4, 1], 1, &[4]).case(above, "capacity", "Index 4 of a ring of 4 slots is slot 0."),
        Write::ring(&[2, 1, 4, 2], 2, &[7, 10]).case(above, "above-capacity", "Index 7 is slot 3, and index 10 is slot 2."),
        Write::ring(&[1, 1, 3, 2], 1, &[3_000_000_001]).case(
            above,
            "above-32-bits",
            "Index 3000000001 does not fit 32 bits. It is slot 1.",
        ),
        Write::ring(&[5, 1, 2, 2], 1, &[0, 1, 2, 3, 4]).case(
            coordinate,
            "batch-above-capacity",
            "There are more samples than slots. A modulo on the batch would write samples 2 to 4 into samples 0 and 1.",
        ),
        Write::ring(&[3, 2, 2], 1, &[0, 1, 1]).case(
            coordinate,
            "batch-above-capacity-3d",
            "The same for a cache without heads.",
        ),
        Write::ring(&[1, 5, 2, 2], 1, &[1]).case(
            coordinate,
            "heads-above-capacity",
            "There are more heads than slots. A modulo on heads would write heads 2 to 4 into heads 0 and 1.",
        ),
        Write::ring(&[4, 4, 2, 2], 2, &[0, 1, 2, 3]).case(
            coordinate,
            "batch-and-heads-above-capacity",
            "There are more samples and more heads than slots.",
        ),
        Write::ring(&[1, 1, 4, 2], 1, &[-1]).case(negative, "minus-one", "Index -1 is the last slot."),
        Write::ring(&[2, 1, 4, 2], 2, &[-1, -3]).case(
            negative,
            "two-rows",
            "From index -1, the second row goes to slot 0. From index -3, both rows follow slot 1.",
        ),
        Write::ring(&[3, 4, 2], 1, &[-4, -5, -9]).case(
            negative,
            "below-minus-capacity",
            "Index -4 is slot 0, and -5 and -9 are slot 3.",
        ),
        Write::ring(&[3, 5, 2], 1, &[-1, -5, -7]).case(
            negative,
            "five-slots",
            "The capacity is no power of two. The indices are slots 4, 0 and 3, and not 0, 1 and 4, as unsigned numbers of 32 or 64 bits would be.",
        ),
        Write::ring(&[1, 1, 3, 2], 2, &[i64::MAX]).case(extreme, "largest", "The largest int64, plus 1, overflows."),
        Write::ring(&[1, 1, 3, 2], 2, &[i64::MIN]).case(extreme, "smallest", "The smallest int64 has no absolute value."),
    ]
}

/// Writes that are refused because of where they begin or end.
fn refused_positions() -> Vec<CorpusCase> {
    let negative = "linear-negative-index";
    let end = "linear-end";
    let nothing = "nothing-written-after-error";
    vec![
        Write::linear(&[1, 1, 4, 2], 1, &[-1]).case(
            negative,
            "refused-minus-one",
            "Index -1 must not be the last slot.",
        ),
        Write::linear(&[1, 1, 4, 2], 2, &[-1]).case(
            negative,
            "refused-two-rows",
            "From index -1, the second row would fit slot 0.",
        ),
        Write::linear(&[1, 1, 4, 2], 1, &[i64::MIN]).case(
            negative,
            "refused-smallest",
            "The index is the smallest int64.",
        ),
        Write::linear(&[2, 3, 5, 2], 2, &[3, 3]).case(
            end,
            "last-slot",
            "The last row goes to the last slot.",
        ),
        Write::linear(&[1, 1, 4, 2], 2, &[3]).case(
            end,
            "refused-one-row-too-many",
            "The first row fits, and the second does not.",
        ),
        Write::linear(&[1, 1, 4, 2], 1, &[4]).case(
            end,
            "refused-capacity",
            "The index is the capacity. The last slot must not be overwritten.",
        ),
        Write::linear(&[1, 1, 4, 2], 2, &[i64::MAX]).case(
            end,
            "refused-largest",
            "The index plus the rows overflows int64.",
        ),
        Write::linear(&[1, 1, 4, 2], 1, &[(1 << 32) + 1]).case(
            end,
            "refused-above-32-bits",
            "Cut off to 32 bits, the index would be 1.",
        ),
        Write::linear(&[3, 2, 4, 2], 2, &[0, 1, 3]).case(
            nothing,
            "refused-last-sample",
            "Samples 0 and 1 are valid and come first. They must not be written.",
        ),
        Write::linear(&[3, 2, 4, 2], 2, &[0, -1, 2]).case(
            nothing,
            "refused-middle-sample",
            "Samples 0 and 2 are valid.",
        ),
        Write::linear(&[2, 1, 4, 2], 3, &[1, 2]).case(
            nothing,
            "refused-last-row",
            "Two of the three rows of sample 1 fit. They must not be written.",
        ),
    ]
}

/// Axes, ranks, dimensions and lengths.
fn shapes() -> Vec<CorpusCase> {
    let length = "update-length";
    let axis = "axis";
    let rank = "rank";
    let dimensions = "dimensions";
    let no_rows = "no-rows";
    let empty = "empty-dimensions";
    let no_slots = "no-slots";
    vec![
        Write::linear(&[2, 1, 3, 2], 3, &[0, 0]).case(length, "whole-cache", "Every slot is written."),
        Write::ring(&[2, 1, 3, 2], 3, &[0, 2]).case(
            length,
            "whole-ring",
            "Sample 1 begins at slot 2 and wraps.",
        ),
        Write::linear(&[1, 1, 3, 2], 4, &[0]).case(
            length,
            "refused-longer",
            "The update has one row more than there are slots.",
        ),
        Write::ring(&[1, 1, 3, 2], 4, &[0]).case(
            length,
            "refused-longer-than-ring",
            "A ring would have to overwrite its first row in the same call.",
        ),
        Write::linear(&[2, 4, 2, 2], 1, &[1, 3]).axis(1).case(
            axis,
            "one-of-rank-4",
            "The layout [batch, sequence, heads, head size].",
        ),
        Write::ring(&[2, 5, 3, 4], 1, &[1, 4]).axis(1).update_shape(&[2, 2, 3, 4]).case(
            axis,
            "one-of-rank-4-ring",
            "The same layout in a ring, with sizes that differ. Sample 1 wraps.",
        ),
        Write::linear(&[2, 4, 2, 2], 1, &[1, 3]).axis(-3).case(
            axis,
            "minus-three-of-rank-4",
            "The same axis, counted from the end.",
        ),
        Write::linear(&[2, 3, 2, 4], 1, &[1, 3]).axis(-1).case(
            axis,
            "last",
            "The sequence is the last dimension.",
        ),
        Write::linear(&[2, 2, 2, 4], 1, &[0, 2]).axis(3).case(
            axis,
            "three-of-rank-4",
            "The last dimension, counted from the front.",
        ),
        Write::linear(&[2, 3, 2], 1, &[0, 0]).axis(0).update_shape(&[1, 3, 2]).case(
            axis,
            "refused-zero",
            "The axis must not be the batch.",
        ),
        Write::linear(&[2, 3, 2], 1, &[0, 0]).axis(-3).update_shape(&[1, 3, 2]).case(
            axis,
            "refused-minus-rank",
            "The axis must not be the batch, counted from the end.",
        ),
        Write::linear(&[2, 3, 2], 1, &[0, 0]).axis(3).update_shape(&[2, 1, 2]).case(
            axis,
            "refused-rank",
            "The axis is outside the shape.",
        ),
        Write::linear(&[2, 3, 2], 1, &[0, 0]).axis(-4).update_shape(&[2, 3, 1]).case(
            axis,
            "refused-below-minus-rank",
            "The axis is outside the shape. Taken modulo the rank, it would be the last one.",
        ),
        Write::linear(&[3, 4], 1, &[0, 3, 1]).axis(1).update_shape(&[3, 1]).case(
            rank,
            "two",
            "The cache has a batch and a sequence.",
        ),
        Write::linear(&[2, 2, 1, 3, 2], 2, &[0, 1]).case(
            rank,
            "five",
            "The cache has two dimensions between batch and sequence.",
        ),
        Write::linear(&[4], 1, &[0, 0, 0, 0]).axis(-1).update_shape(&[4]).case(
            rank,
            "refused-one",
            "A cache needs a batch and a sequence.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[0, 0]).update_shape(&[2, 1, 2]).case(
            rank,
            "refused-different-ranks",
            "The update has another rank than the cache.",
        ),
        Write::linear(&[2, 2, 3, 2], 1, &[0, 0]).update_shape(&[2, 1, 1, 2]).case(
            dimensions,
            "refused-heads",
            "One head must not be broadcast to two.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[0, 0]).update_shape(&[2, 1, 1, 1]).case(
            dimensions,
            "refused-head-size",
            "A head size of 1 must not be broadcast to 2.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[0, 0]).update_shape(&[1, 1, 1, 2]).case(
            dimensions,
            "refused-batch",
            "One sample must not be broadcast to two.",
        ),
        Write::linear(&[2, 1, 3, 2], 0, &[0, 3]).case(
            no_rows,
            "linear",
            "Index 3 is the capacity. Nothing follows it, so it is valid.",
        ),
        Write::ring(&[2, 1, 3, 2], 0, &[-5, 9]).case(no_rows, "ring", "Every index is valid."),
        Write::linear(&[2, 1, 3, 2], 0, &[0, 4]).case(
            no_rows,
            "refused-index",
            "Index 4 is above the capacity.",
        ),
        Write::linear(&[0, 2, 3, 2], 1, &[]).case(
            empty,
            "no-samples",
            "The batch is 0, and so is the number of indices.",
        ),
        Write::linear(&[2, 0, 3, 2], 1, &[0, 2]).case(empty, "no-heads", "There are no heads."),
        Write::ring(&[2, 1, 3, 0], 2, &[0, 2]).case(empty, "no-head-size", "The head size is 0."),
        Write::linear(&[2, 0, 3, 2], 1, &[0, 3]).case(
            empty,
            "refused-index",
            "There are no heads, but the index of sample 1 is still wrong.",
        ),
        Write::linear(&[2, 1, 0, 2], 0, &[0, 0]).case(no_slots, "linear", "Capacity and update are 0."),
        Write::ring(&[2, 1, 0, 2], 0, &[0, 5]).case(no_slots, "ring", "A modulo of 0 must not be computed."),
        Write::linear(&[2, 1, 0, 2], 0, &[0, 1]).case(
            no_slots,
            "refused-index",
            "Index 1 is above the capacity of 0.",
        ),
        Write::linear(&[1, 1, 0, 2], 1, &[0]).case(no_slots, "refused-row", "There is no slot for the row."),
    ]
}

fn indices() -> Vec<CorpusCase> {
    let absent = "absent-indices";
    let tensor = "indices-tensor";
    vec![
        Write::linear(&[2, 2, 3, 2], 2, &[]).without_indices().case(
            absent,
            "two-inputs",
            "The node has two inputs.",
        ),
        Write::ring(&[2, 3, 2], 1, &[]).without_indices().case(
            absent,
            "ring",
            "The node has two inputs, and the cache is a ring.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[]).without_indices().form(Form::EmptyIndicesName).case(
            absent,
            "empty-name",
            "The third input has an empty name, which is ONNX's other way to leave it out.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[1, 2, 0]).case(
            tensor,
            "refused-more-than-batch",
            "There are three indices for two samples.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[1]).case(
            tensor,
            "refused-fewer-than-batch",
            "There is one index for two samples.",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[1, 2]).form(Form::Fault(Fault::IndicesOfRank2)).case(
            tensor,
            "refused-rank-2",
            "The indices have the shape [batch, 1].",
        ),
        Write::linear(&[2, 1, 3, 2], 1, &[1, 2]).form(Form::Fault(Fault::Int32Indices)).case(
            tensor,
            "refused-int32",
            "The indices are int32.",
        ),
    ]
}

/// Models in which the past has another use.
fn graphs() -> Vec<CorpusCase> {
    let rule = "past-used-again";
    let two = |name, what, how, [first, second]: [Case; 2]| CorpusCase {
        rule,
        name,
        what,
        call: CorpusCall::TwoWrites(Box::new([first, second]), how),
    };
    let write = Write::linear(&[2, 1, 4, 2], 1, &[1, 3]);
    let floats = |numbers: std::ops::RangeInclusive<u8>, sign: f32| {
        Values::Bytes(numbers.flat_map(|n| (f32::from(n) * sign).to_le_bytes()).collect())
    };
    let first = write.clone().finish(rule, "first");
    // The second write has other rows than the first.
    let second = |past: Values| {
        Write::linear(&[2, 1, 4, 2], 1, &[2, 0]).values(past, floats(5..=8, -1.0)).finish(rule, "second")
    };
    let present = first.expected.as_ref().map_or_else(|_| first.cache.clone(), |after| after.present.clone());
    let (of_one_past, in_a_row) = (second(first.cache.clone()), second(present));
    let ring = floats(1..=6, 1.0);
    vec![
        write.form(Form::PastIsOutput).case(
            rule,
            "past-is-an-output",
            "The model also returns the past, so a write in place would change an output.",
        ),
        two(
            "two-writes-of-one-past",
            "Two nodes write other rows to the same past. The second present must not contain the rows of the first.",
            TwoWrites::OfOnePast,
            [first.clone(), of_one_past],
        ),
        two(
            "two-writes-in-a-row",
            "The second node writes to the present of the first. Both may write in place.",
            TwoWrites::InARow,
            [first, in_a_row],
        ),
        Write::ring(&[1, 3, 2], 3, &[1]).values(ring.clone(), ring).form(Form::UpdateIsPast).case(
            rule,
            "update-is-the-past",
            "The past is also the update, so the ring is turned by one slot. A write in place would read rows that it has overwritten.",
        ),
    ]
}

fn types() -> Vec<CorpusCase> {
    let every = Element::all().iter().map(|element| {
        Write::ring(&[2, 3, 2], 2, &[0, 2]).element(element.name).case(
            "element-types",
            element.name,
            "Two rows in each sample. Sample 1 wraps.",
        )
    });
    let bits: Vec<u32> = vec![
        0x7FC0_1234,
        0x7F80_0001,
        0xFFC0_0000,
        0x8000_0000,
        0x0000_0001,
        0x7F80_0000,
        0xFF80_0000,
        0x007F_FFFF,
    ];
    let floats = |bits: &[u32]| Values::Bytes(bits.iter().flat_map(|bits| bits.to_le_bytes()).collect());
    let text = |texts: &[&str]| Values::Strings(texts.iter().map(|text| (*text).to_owned()).collect());
    let special = [
        Write::linear(&[1, 4, 2], 1, &[1]).values(floats(&bits), floats(&bits[..2])).case(
            "bits-unchanged",
            "float32",
            "The values are quiet and signalling NaNs with payloads, -0, infinities and subnormal numbers.",
        ),
        Write::linear(&[1, 2, 2], 1, &[1])
            .element("float16")
            .values(
                Values::Bytes(
                    [0x7C01_u16, 0xFE55, 0x8000, 0x0001].iter().flat_map(|bits| bits.to_le_bytes()).collect(),
                ),
                Values::Bytes([0x7D00_u16, 0x8000].iter().flat_map(|bits| bits.to_le_bytes()).collect()),
            )
            .case("bits-unchanged", "float16", "The same in float16."),
        Write::linear(&[1, 3, 1], 1, &[1])
            .element("string")
            .values(text(&["a", "", "longer than the others"]), text(&["new, and longer"]))
            .case("strings", "longer-than-before", "The new string is longer than the string in its slot."),
        Write::ring(&[1, 2, 2], 2, &[1])
            .element("string")
            .values(text(&["", "b", "ccc", "dd"]), text(&["κβ", "", "x", "a NUL\0inside"]))
            .case("strings", "empty-and-not-ascii", "Empty strings, letters of two bytes, and a byte of 0."),
        Write::linear(&[1, 1, 3, 3], 1, &[1]).element("int4").case(
            "four-bit-elements",
            "odd-row",
            "A row has three elements, so it shares a byte with the row before it and the row after it.",
        ),
        Write::linear(&[3, 3, 1], 1, &[0, 1, 2]).element("uint4").case(
            "four-bit-elements",
            "one-element-rows",
            "A row is half a byte. Neighbouring samples share bytes.",
        ),
        Write::ring(&[2, 3, 3], 2, &[2, 1]).element("float4e2m1").case(
            "four-bit-elements",
            "odd-ring",
            "Odd rows that wrap, in a tensor of an even number of elements.",
        ),
        Write::linear(&[1, 2, 3], 1, &[1]).types("float16", "float").case(
            "equal-types",
            "refused-float16-cache",
            "The cache is float16 and the update float32.",
        ),
        Write::linear(&[1, 2, 3], 1, &[1]).types("float16", "bfloat16").case(
            "equal-types",
            "refused-equal-widths",
            "The types differ, but both have 16 bits.",
        ),
        Write::linear(&[1, 2, 3], 1, &[1]).types("int8", "uint8").case(
            "equal-types",
            "refused-signs",
            "The types differ only in the sign.",
        ),
    ];
    every.chain(special).collect()
}

/// Models that differ in form, or are wrong.
fn models() -> Vec<CorpusCase> {
    let fault = |fault, name, what| {
        Write::linear(&[2, 1, 3, 2], 1, &[1, 2]).form(Form::Fault(fault)).case("node", name, what)
    };
    let inferred = "shape-inference";
    let stored = "stored-tensors";
    let typed = |name: &'static str| {
        Write::linear(&[1, 3, 3], 1, &[1]).element(name).form(Form::TypedFields).case(
            stored,
            name,
            "The values of cache and update are in the typed field that ONNX defines for this type.",
        )
    };
    let mut cases = vec![
        Write::linear(&[1, 1, 3, 2], 1, &[0]).mode("ring").case(
            "mode",
            "refused-unknown",
            "There is no mode of this name.",
        ),
        Write::linear(&[1, 1, 3, 2], 1, &[0]).mode("").case(
            "mode",
            "refused-empty",
            "The name of the mode is empty.",
        ),
        Write::linear(&[1, 1, 3, 2], 1, &[0]).mode("Circular").case(
            "mode",
            "refused-capital",
            "Names of modes are in lower case.",
        ),
        fault(Fault::OperatorSet(23), "refused-operator-set-23", "Operator set 23 has no TensorScatter."),
        fault(
            Fault::UnknownAttribute,
            "refused-unknown-attribute",
            "The node has an attribute that the operator does not define.",
        ),
        fault(Fault::AxisIsString, "refused-attribute-type", "The attribute axis is a string."),
        fault(Fault::OneInput, "refused-one-input", "The node has no update."),
        fault(Fault::FourInputs, "refused-four-inputs", "The node has a fourth input."),
        fault(Fault::TwoOutputs, "refused-two-outputs", "The node has a second output."),
        Write::linear(&[2, 1, 3, 2], 1, &[1, 2]).form(Form::Symbols).case(
            inferred,
            "symbols",
            "Every dimension of the inputs and of the output is another symbol.",
        ),
        Write::ring(&[2, 3, 2], 2, &[1, 2]).form(Form::Symbols).case(
            inferred,
            "symbols-in-a-ring",
            "The same for a ring of rank 3.",
        ),
    ];
    for name in [
        "float",
        "float16",
        "bfloat16",
        "double",
        "complex64",
        "bool",
        "int4",
        "int8",
        "int64",
        "uint32",
        "uint64",
    ] {
        cases.push(typed(name));
    }
    cases
}
