//! The core's errors in C: a number for each, and its fields in places of one meaning.

use std::ffi::CStr;
use std::fmt;

use kvscatter::{Argument, Error};

use crate::fields::{Fields, Name};
use crate::status::kvs_status_code::{self, *};

/// Number, argument, index, value and the nearest value that would have been taken.
pub(crate) fn fields(error: Error) -> Fields {
    let of = Fields::new;
    match error {
        Error::ElementType { argument, element } => {
            about(KVS_ERROR_ELEMENT_TYPE, argument).value(element.onnx_code())
        }
        Error::ElementTypeMismatch { cache, argument, element } => {
            about(KVS_ERROR_ELEMENT_TYPE_MISMATCH, argument)
                .value(element.onnx_code())
                .limit(cache.onnx_code())
        }
        Error::Rank { argument, rank, expected } => {
            let fields = about(KVS_ERROR_RANK, argument).value(rank);
            match expected.iter().min_by_key(|expected| expected.abs_diff(rank)) {
                Some(&nearest) => fields.limit(nearest),
                None => fields,
            }
        }
        Error::RankTooLow { argument, rank, least } => {
            about(KVS_ERROR_RANK_TOO_LOW, argument).value(rank).limit(least)
        }
        Error::RankMismatch { cache, update } => {
            about(KVS_ERROR_RANK_MISMATCH, Argument::Update).value(update).limit(cache)
        }
        Error::AxisOutOfRange { axis, rank } => {
            let rank = i64::try_from(rank).unwrap_or(i64::MAX);
            let nearest = if axis < 0 { 1 - rank } else { rank - 1 };
            of(KVS_ERROR_AXIS_OUT_OF_RANGE).named(c"axis").value(axis).limit(nearest)
        }
        Error::AxisIsBatch { axis, .. } => {
            of(KVS_ERROR_AXIS_IS_BATCH).named(c"axis").value(axis).limit(axis.saturating_add(1))
        }
        Error::DimensionMismatch { argument, dimension, expected, got } => {
            about(KVS_ERROR_DIMENSION_MISMATCH, argument).index(dimension).value(got).limit(expected)
        }
        Error::HiddenSize { heads, head_size, hidden } => {
            about(KVS_ERROR_HIDDEN_SIZE, Argument::NewKv).value(heads.saturating_mul(head_size)).limit(hidden)
        }
        Error::BatchTooLarge { cache, update } => {
            about(KVS_ERROR_BATCH_TOO_LARGE, Argument::Update).value(update).limit(cache)
        }
        Error::UpdateLongerThanCache { rows, capacity } => {
            of(KVS_ERROR_UPDATE_LONGER_THAN_CACHE).value(rows).limit(capacity)
        }
        Error::TooLarge { argument } => about(KVS_ERROR_TOO_LARGE, argument).limit(isize::MAX),
        Error::CacheOverlapsItself => of(KVS_ERROR_CACHE_OVERLAPS_ITSELF),
        Error::Layout { loops } => of(KVS_ERROR_LAYOUT).value(loops).limit(3),
        Error::Reserved { index, value } => {
            of(KVS_ERROR_RESERVED).named(c"rsv").index(index).value(value).limit(0)
        }
        Error::Count { argument, got, want } => about(KVS_ERROR_COUNT, argument).value(got).limit(want),
        Error::NegativeStart { argument, index, value } => {
            about(KVS_ERROR_NEGATIVE_START, argument).index(index).value(value).limit(0)
        }
        Error::StartOutOfRange { argument, index, value, rows, capacity } => {
            let last = capacity.saturating_sub(rows);
            about(KVS_ERROR_START_OUT_OF_RANGE, argument).index(index).value(value).limit(last)
        }
        Error::EndOutOfRange { argument, index, value, min, max } => {
            between(about(KVS_ERROR_END_OUT_OF_RANGE, argument).index(index), value, min, max)
        }
        Error::LengthOutOfRange { argument, index, value, min, max } => {
            between(about(KVS_ERROR_LENGTH_OUT_OF_RANGE, argument).index(index), value, min, max)
        }
        Error::CumulativeStart { argument, value } => {
            about(KVS_ERROR_CUMULATIVE_START, argument).index(0).value(value).limit(0)
        }
        Error::CumulativeOrder { argument, index, value, previous } => {
            about(KVS_ERROR_CUMULATIVE_ORDER, argument).index(index).value(value).limit(previous)
        }
        Error::CumulativeLength { argument, index, rows, capacity } => {
            about(KVS_ERROR_CUMULATIVE_LENGTH, argument).index(index).value(rows).limit(capacity)
        }
        Error::TokenSum { argument, got, tokens } => {
            about(KVS_ERROR_TOKEN_SUM, argument).value(got).limit(tokens)
        }
        Error::LayerOutOfRange { value, layers } => {
            let fields = about(KVS_ERROR_LAYER_OUT_OF_RANGE, Argument::LayerId);
            match layers.checked_sub(1) {
                Some(last) => between(fields, value, 0, last),
                None => fields.value(value),
            }
        }
        Error::NullBuffer { argument, buffer, len } => {
            about(KVS_ERROR_NULL_BUFFER, argument).index(buffer).limit(len)
        }
        Error::BufferWraps { argument, buffer, len, .. } => {
            about(KVS_ERROR_ADDRESS_SPACE, argument).index(buffer).value(len)
        }
        Error::Overlap { argument, buffer, .. } => about(KVS_ERROR_OVERLAP, argument).index(buffer),
        Error::ElementWidth { .. } => of(KVS_ERROR_ELEMENT_WIDTH),
        // The test below says why no call of the interface meets these.
        Error::UnknownMode
        | Error::StrideCount { .. }
        | Error::BeforeBuffer { .. }
        | Error::BufferLength { .. }
        | Error::Position { .. } => of(KVS_ERROR_INTERNAL),
        // The core may grow; the tests below see that nothing it has today ends here.
        _ => of(KVS_ERROR_INTERNAL),
    }
}

/// The core's own line, but for advice that only a Rust program can take, and a tensor of no certain name.
pub(crate) fn write_message(error: Error, tensor: Option<Name>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (error, tensor) {
        (Error::ElementWidth { .. }, _) => f.write_str(
            "the tensors hold strings, which have no bytes here: visit the blocks and move them yourself",
        ),
        (Error::UpdateLongerThanCache { rows, capacity }, Some(update)) => {
            write!(f, "{update} has {rows} rows, more than the cache's capacity of {capacity}")
        }
        _ => write!(f, "{error}"),
    }
}

fn about(code: kvs_status_code, argument: Argument) -> Fields {
    let fields = Fields::new(code);
    match name(argument) {
        Some(name) => fields.named(name),
        None => fields,
    }
}

/// A value and, if there are any that would do, the nearest of them.
fn between(fields: Fields, value: i64, min: usize, max: usize) -> Fields {
    let fields = fields.value(value);
    let as_i64 = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    if min <= max { fields.limit(value.clamp(as_i64(min), as_i64(max))) } else { fields }
}

/// `Argument`'s own spelling, for C.
fn name(argument: Argument) -> Option<&'static CStr> {
    let named = NAMES.iter().find(|(named, _)| *named == argument);
    named.map(|(_, name)| *name)
}

const NAMES: &[(Argument, &CStr)] = &[
    (Argument::PastCache, c"past_cache"),
    (Argument::Update, c"update"),
    (Argument::WriteIndices, c"write_indices"),
    (Argument::PresentCache, c"present_cache"),
    (Argument::Cache, c"cache"),
    (Argument::TensorRtWriteIndices, c"writeIndices"),
    (Argument::UpdateLengths, c"updateLengths"),
    (Argument::Output, c"output"),
    (Argument::NewKv, c"newKv"),
    (Argument::LayerId, c"layerId"),
    (Argument::Past, c"past"),
    (Argument::TokenOffset, c"tokenOffset"),
    (Argument::SeqLen, c"seqLen"),
    (Argument::Present, c"present"),
    (Argument::Lengths, c"lengths"),
];

/// The core's enums are open, so that a match over them must have an arm for what is not known. What is known, these
/// tests read in its source.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kvscatter::{Argument, Error};

    use super::{NAMES, fields};
    use crate::status::kvs_status_code::KVS_ERROR_INTERNAL;

    const ARGUMENTS: &str = include_str!("../../kvscatter/src/argument.rs");
    const ERRORS: &str = include_str!("../../kvscatter/src/error.rs");
    const THIS: &str = include_str!("core_error.rs");

    /// The variants of an enum: what begins in its fourth column.
    fn variants(source: &'static str, name: &str) -> BTreeSet<&'static str> {
        let (_, body) = source.split_once(&format!("pub enum {name} {{\n")).unwrap();
        let lines = body.lines().take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
        lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase())).map(first_word).collect()
    }

    fn first_word(text: &str) -> &str {
        text.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap()
    }

    #[test]
    fn every_argument_is_spelled_as_in_the_core() {
        for (argument, name) in NAMES {
            assert_eq!(name.to_str().unwrap(), argument.to_string());
        }
        let named: BTreeSet<_> = NAMES.iter().map(|(argument, _)| format!("{argument:?}")).collect();
        assert!(named.iter().eq(&variants(ARGUMENTS, "Argument")));
    }

    #[test]
    fn every_error_has_an_arm() {
        let (code, _) = THIS.split_once("pub(crate) fn write_message").unwrap();
        let arms: BTreeSet<_> = code.split("Error::").skip(1).map(first_word).collect();
        assert_eq!(arms, variants(ERRORS, "Error"));
    }

    #[test]
    fn those_without_a_number_cannot_be_caused() {
        let argument = Argument::Update;
        let internal = [
            (Error::UnknownMode, "modes are numbers here, and `options.rs` refuses others"),
            (
                Error::StrideCount { argument, strides: 1, rank: 2 },
                "`kvs_tensor` has one rank, with which both arrays are read",
            ),
            (
                Error::BeforeBuffer { argument, offset: 0, needed: 1 },
                "`Description::layout` leaves the room that the strides need",
            ),
            (
                Error::BufferLength { argument, buffer: 0, got: 1, want: 2 },
                "`Operand` asks the core for the length of the buffers that it gives it",
            ),
            (Error::Position { value: -1, rows: 1 }, "no function here takes positions without a call"),
        ];
        for (error, why) in internal {
            assert_eq!(fields(error).code, KVS_ERROR_INTERNAL, "{error} has a number, although {why}");
        }
        let (_, arms) = THIS.split_once("says why no call").unwrap();
        let (arms, _) = arms.split_once("KVS_ERROR_INTERNAL").unwrap();
        assert_eq!(arms.matches("Error::").count(), internal.len());
    }
}
