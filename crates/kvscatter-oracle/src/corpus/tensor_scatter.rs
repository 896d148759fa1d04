//! Cases of ONNX `TensorScatter` with special values, with two nodes, or for each element type.

use super::case::{CorpusCall, CorpusCase, TwoWrites};
use super::write::Write;
use crate::cases::{Case, Element, Values};

pub(super) fn cases() -> Vec<CorpusCase> {
    [graphs(), types(), special_values()].concat()
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
    let floats = |numbers: std::ops::RangeInclusive<u8>, sign: f32| {
        Values::Bytes(numbers.flat_map(|n| (f32::from(n) * sign).to_le_bytes()).collect())
    };
    let first = Write::read("linear cache=[2,1,4,2] rows=1 at=[1,3]").finish(rule, "first");
    // The second write has other rows than the first.
    let second = |past: Values| {
        let write = Write::read("linear cache=[2,1,4,2] rows=1 at=[2,0]");
        write.values(past, floats(5..=8, -1.0)).finish(rule, "second")
    };
    let present = first.expected.as_ref().map_or_else(|_| first.cache.clone(), |after| after.present.clone());
    let (of_one_past, in_a_row) = (second(first.cache.clone()), second(present));
    let ring = floats(1..=6, 1.0);
    vec![
        Write::read("linear cache=[2,1,4,2] rows=1 at=[1,3] form=past-is-output").case(
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
        Write::read("ring cache=[1,3,2] rows=3 at=[1] form=update-is-past").values(ring.clone(), ring).case(
            rule,
            "update-is-the-past",
            "The past is also the update, so the ring is turned by one slot. A write in place would read rows that it has overwritten.",
        ),
    ]
}

fn types() -> Vec<CorpusCase> {
    let every = Element::all().iter().map(|element| {
        let write = Write::read(&format!("ring cache=[2,3,2] rows=2 at=[0,2] type={}", element.name));
        write.case("element-types", element.name, "Two rows in each sample. Sample 1 wraps.")
    });
    let typed = ["float", "float16", "bfloat16", "double", "complex64", "bool", "int4", "int8", "int64"];
    let typed = typed.into_iter().chain(["uint32", "uint64"]).map(|name| {
        let write = Write::read(&format!("linear cache=[1,3,3] rows=1 at=[1] type={name} form=typed-fields"));
        let what = "The values of cache and update are in the typed field that ONNX defines for this type.";
        write.case("stored-tensors", name, what)
    });
    every.chain(typed).collect()
}

fn special_values() -> Vec<CorpusCase> {
    let singles = |bits: &[u32]| Values::Bytes(bits.iter().flat_map(|bits| bits.to_le_bytes()).collect());
    let halves = |bits: &[u16]| Values::Bytes(bits.iter().flat_map(|bits| bits.to_le_bytes()).collect());
    let text = |texts: &[&str]| Values::Strings(texts.iter().map(|text| (*text).to_owned()).collect());
    let bits = [
        0x7FC0_1234,
        0x7F80_0001,
        0xFFC0_0000,
        0x8000_0000,
        0x0000_0001,
        0x7F80_0000,
        0xFF80_0000,
        0x007F_FFFF,
    ];
    vec![
        Write::read("linear cache=[1,4,2] rows=1 at=[1]").values(singles(&bits), singles(&bits[..2])).case(
            "bits-unchanged",
            "float32",
            "The values are quiet and signalling NaNs with payloads, -0, infinities and subnormal numbers.",
        ),
        Write::read("linear cache=[1,2,2] rows=1 at=[1] type=float16")
            .values(halves(&[0x7C01, 0xFE55, 0x8000, 0x0001]), halves(&[0x7D00, 0x8000]))
            .case("bits-unchanged", "float16", "The same in float16."),
        Write::read("linear cache=[1,3,1] rows=1 at=[1] type=string")
            .values(text(&["a", "", "longer than the others"]), text(&["new, and longer"]))
            .case("strings", "longer-than-before", "The new string is longer than the string in its slot."),
        Write::read("ring cache=[1,2,2] rows=2 at=[1] type=string")
            .values(text(&["", "b", "ccc", "dd"]), text(&["κβ", "", "x", "a NUL\0inside"]))
            .case("strings", "empty-and-not-ascii", "Empty strings, letters of two bytes, and a byte of 0."),
    ]
}
