//! Writes the cases that everything is tested on to a file. Any language can read the file without a library:
//!
//! ```text
//! cargo run -p kvscatter-oracle --example export-cases -- FILE COUNT [SEED]
//! ```
//!
//! Each of the `COUNT` cases is written once with dense tensors. If its tensors have dimensions, it is also
//! written with strided tensors. The format of the file:
//!
//! ```text
//! file     "KVSCASE1", number of cases, cases
//! case     name text, operator text ("TensorScatter", "KVCacheUpdate", "KVCacheOperation"),
//!          axis, mode (0 linear, 1 circular, 2 neither), out_of_range (0 error, 1 skip the sample),
//!          negative_index (0 modulo, 1 reject), update_form (0 padded, 1 packed),
//!          indices × 6: write_indices, lengths, update_lengths, layer_id, token_offset, seq_len,
//!          tensor × 2: cache, update,
//!          rule text: empty, or the rule that the call breaks; then
//!            if empty      skipped samples, bytes of the cache's whole buffer after a write in place,
//!                          bytes of a dense present after a write in functional form
//!            otherwise     argument text (empty if the oracle does not know it),
//!                          1 and the sample or dimension, or 0 and 0
//!                          1 and the offending value, or 0 and 0
//! indices  bits (0 absent, 32, 64), array
//! tensor   element type text (ONNX's name), bits of a stored element (strings are stored as handles of 64),
//!          shape array, strides array (empty if dense), element [0, 0, …]'s offset in the buffer in elements,
//!          bytes of the whole buffer
//! text     bytes
//! bytes    the number of bytes, then the bytes
//! array    the number of elements, then the elements
//! ```
//!
//! Every number is a little-endian int64.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Error, Write};

use kvscatter_oracle::cases::{Call, Case, Placed, Random, Values, View, cases};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{NegativeIndex, OutOfRange, Refusal};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let (path, count, seed) = match arguments.as_slice() {
        [path, count] => (path, count, "0"),
        [path, count, seed] => (path, count, seed.as_str()),
        _ => return Err(Error::other("usage: export-cases FILE COUNT [SEED]")),
    };
    let count = count.parse().map_err(|_| Error::other(format!("COUNT = {count}: must be a number")))?;
    let seed = seed.parse().map_err(|_| Error::other(format!("SEED = {seed}: must be a number")))?;

    let mut out = BufWriter::new(File::create(path)?);
    let all: Vec<_> = cases(seed, count).flat_map(placements).collect();
    out.write_all(b"KVSCASE1")?;
    number(&mut out, all.len())?;
    let mut refused = 0;
    for (case, placed) in &all {
        write_case(&mut out, case, placed)?;
        refused += usize::from(placed.expected.is_err());
    }
    out.flush()?;
    println!("{path}: {} cases, of which {refused} must be refused", all.len());
    Ok(())
}

/// Returns the case in dense buffers of exactly its size, and as views into larger buffers.
fn placements(case: Case) -> Vec<(Case, Placed)> {
    let dense = case.placed(View::dense(&case.cache_shape, 0), View::dense(&case.update_shape, 0));
    if case.cache_shape.is_empty() || case.update_shape.is_empty() {
        return vec![(case, dense)];
    }
    let seed = case.name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let random = &mut Random::new(seed, 0);
    let cache = addressable(&case, |random| View::strided(&case.cache_shape, 2, random), random);
    let update = addressable(&case, |random| View::broadcast(&case.update_shape, 2, random), random);
    let strided = case.placed(cache, update);
    let mut renamed = case.clone();
    renamed.name.push_str("_strided");
    vec![(case, dense), (renamed, strided)]
}

/// Returns a view whose element [0, 0, …] has an address. A 4-bit element has an address only at an even
/// offset.
fn addressable(case: &Case, mut make: impl FnMut(&mut Random) -> View, random: &mut Random) -> View {
    loop {
        let view = make(random);
        if case.elements.iter().all(|element| element.bits != Some(4)) || view.offset().is_multiple_of(2) {
            return view;
        }
    }
}

fn write_case(out: &mut impl Write, case: &Case, placed: &Placed) -> io::Result<()> {
    bytes(out, case.name.as_bytes())?;
    CallTerms::new(&case.call).write(out)?;
    for (side, view, values) in [(0, &placed.cache, &placed.past), (1, &placed.update, &placed.new)] {
        bytes(out, case.elements[side].name.as_bytes())?;
        number(out, placed.stored[side].bits.unwrap_or_default())?;
        array(out, view.shape())?;
        array(out, view.strides().unwrap_or_default())?;
        number(out, view.buffer().start + view.offset())?;
        stored(out, values)?;
    }
    match &placed.expected {
        Ok(after) => {
            bytes(out, b"")?;
            number(out, after.skipped)?;
            stored(out, &after.in_place)?;
            stored(out, &after.present)
        }
        Err(refusal) => write_refusal(out, refusal, &case.call),
    }
}

/// A call in the terms of all three documents. Fields that an operator does not have keep their default.
#[derive(Default)]
struct CallTerms<'a> {
    operator: &'static str,
    axis: i64,
    mode: &'a str,
    out_of_range: OutOfRange,
    negative_index: NegativeIndex,
    packed: bool,
    write_indices: Option<Indices>,
    lengths: Option<Indices>,
    update_lengths: Option<Indices>,
    layer_id: Option<Indices>,
    token_offset: Option<Indices>,
    seq_len: Option<Indices>,
}

/// Indices, and whether they are given as int32.
struct Indices {
    values: Vec<i64>,
    narrow: bool,
}

impl CallTerms<'_> {
    fn new(call: &Call) -> CallTerms<'_> {
        match call {
            Call::TensorScatter { operator, write_indices, lengths } => CallTerms {
                operator: "TensorScatter",
                axis: operator.axis,
                mode: &operator.mode,
                out_of_range: operator.out_of_range,
                negative_index: operator.negative_index,
                write_indices: Indices::wide(write_indices.as_ref()),
                lengths: Indices::wide(lengths.as_ref()),
                ..CallTerms::default()
            },
            Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => CallTerms {
                operator: "KVCacheUpdate",
                mode: "linear",
                out_of_range: operator.out_of_range,
                packed: operator.update_form == UpdateForm::Packed,
                write_indices: Indices::wide(Some(write_indices)).map(Indices::narrowed),
                lengths: Indices::wide(lengths.as_ref()),
                update_lengths: Indices::narrow(update_lengths.as_ref()),
                ..CallTerms::default()
            },
            Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths } => CallTerms {
                operator: "KVCacheOperation",
                mode: "linear",
                out_of_range: operator.out_of_range,
                layer_id: Indices::narrow(Some(layer_id)),
                token_offset: Indices::narrow(Some(token_offset)),
                seq_len: Indices::narrow(Some(seq_len)),
                lengths: Indices::wide(lengths.as_ref()),
                ..CallTerms::default()
            },
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        bytes(out, self.operator.as_bytes())?;
        number(out, self.axis)?;
        number(out, ["linear", "circular"].iter().position(|&mode| mode == self.mode).unwrap_or(2))?;
        number(out, u8::from(self.out_of_range == OutOfRange::SkipSample))?;
        number(out, u8::from(self.negative_index == NegativeIndex::Reject))?;
        number(out, u8::from(self.packed))?;
        let (starts, lengths) = (&self.write_indices, &self.lengths);
        let rest = [&self.update_lengths, &self.layer_id, &self.token_offset, &self.seq_len];
        for indices in [starts, lengths].into_iter().chain(rest) {
            let bits = indices.as_ref().map_or(0, |indices| if indices.narrow { 32 } else { 64 });
            number(out, bits)?;
            array(out, indices.as_ref().map_or(&[], |indices| &indices.values))?;
        }
        Ok(())
    }
}

impl Indices {
    fn wide(values: Option<&Vec<i64>>) -> Option<Self> {
        Some(Self { values: values?.clone(), narrow: false })
    }

    fn narrow(values: Option<&Vec<i32>>) -> Option<Self> {
        Some(Self { values: values?.iter().copied().map(i64::from).collect(), narrow: true })
    }

    /// Narrows the indices to int32 if all of them fit. Starts may have either type.
    fn narrowed(self) -> Self {
        let narrow = self.values.iter().all(|&value| i32::try_from(value).is_ok());
        Self { narrow, ..self }
    }
}

/// Writes the rule by the oracle's name for it, with the numbers that every surface reports alike.
fn write_refusal(out: &mut impl Write, refusal: &Refusal, call: &Call) -> io::Result<()> {
    let debug = format!("{refusal:?}");
    let rule = debug.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let (cache, update, starts, token_offset) = match call {
        Call::TensorScatter { .. } => ("past_cache", "update", "write_indices", None),
        Call::KvCacheUpdate { .. } => ("cache", "update", "writeIndices", None),
        Call::KvCacheOperation { token_offset, .. } => ("past", "newKv", "tokenOffset", Some(token_offset)),
    };
    let size = |size: usize| i64::try_from(size).ok();
    let (argument, index, value) = match *refusal {
        Refusal::CacheRank { rank } => (cache, None, size(rank)),
        Refusal::UpdateRank { rank } => (update, None, size(rank)),
        Refusal::Axis { axis, .. } => ("axis", None, Some(axis)),
        // The heads and the head size of a 4-D newKv are two dimensions, so neither is named.
        Refusal::Dimension { dimension: 3, update: given, .. } if token_offset.is_some() => {
            ("newKv", None, size(given))
        }
        Refusal::Dimension { dimension, update: given, .. } => (update, Some(dimension), size(given)),
        Refusal::UpdateBatch { argument, update: given, .. } => (argument, None, size(given)),
        Refusal::UpdateTooLong { rows, .. } => (update, None, size(rows)),
        Refusal::IndexCount { argument, given, .. } => (argument, None, size(given)),
        Refusal::Length { sample, length, .. } => ("lengths", Some(sample), Some(length)),
        // If a specification counts the length after the write, report that length.
        Refusal::NegativeStart { sample, start } | Refusal::OutOfRange { sample, start, .. } => {
            let given = token_offset.map_or(start, |offsets| offsets[sample].into());
            (starts, Some(sample), i64::try_from(given).ok())
        }
        Refusal::UpdateLengthsFirst { first } => ("updateLengths", Some(0), Some(first.into())),
        Refusal::UpdateLengthsDecrease { sample } => ("updateLengths", Some(sample + 1), None),
        Refusal::UpdateLengthsTooLong { sample, rows, .. } => ("updateLengths", Some(sample), size(rows)),
        Refusal::UpdateLengthsTotal { total, .. } => ("updateLengths", None, size(total)),
        Refusal::LayerId { layer_id, .. } => ("layerId", None, Some(layer_id.into())),
        Refusal::SeqLen { sample, seq_len } => ("seqLen", Some(sample), Some(seq_len.into())),
        Refusal::SeqLenTotal { total, .. } => ("seqLen", None, size(total)),
        _ => ("", None, None),
    };
    bytes(out, rule.as_bytes())?;
    bytes(out, argument.as_bytes())?;
    number(out, u8::from(index.is_some()))?;
    number(out, index.unwrap_or_default())?;
    number(out, u8::from(value.is_some()))?;
    number(out, value.unwrap_or_default())
}

fn stored(out: &mut impl Write, values: &Values) -> io::Result<()> {
    match values {
        Values::Bytes(stored) => bytes(out, stored),
        Values::Strings(_) => Err(Error::other("strings are placed as handles")),
    }
}

fn bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    number(out, bytes.len())?;
    out.write_all(bytes)
}

fn array<N: Copy + TryInto<i64>>(out: &mut impl Write, values: &[N]) -> io::Result<()> {
    number(out, values.len())?;
    values.iter().try_for_each(|&value| number(out, value))
}

fn number(out: &mut impl Write, value: impl TryInto<i64>) -> io::Result<()> {
    let value = value.try_into().map_err(|_| Error::other("a number does not fit int64"))?;
    out.write_all(&value.to_le_bytes())
}
