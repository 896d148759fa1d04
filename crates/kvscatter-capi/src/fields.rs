//! The fields of an error that a program can read.

use std::ffi::CStr;
use std::fmt;

use kvscatter::Argument;
use kvscatter::error::ErrorDetails;
use kvscatter_attention::{AttentionError, Operand};

use crate::status::kvs_status_code;
use crate::status::kvs_status_code::*;

/// The fields of an error. `kvs_status_code` documents the meaning of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) code: kvs_status_code,
    pub(crate) argument: Option<&'static CStr>,
    pub(crate) index: Option<i64>,
    pub(crate) value: Option<i64>,
    pub(crate) limit: Option<i64>,
}

impl Fields {
    pub(crate) fn new(code: kvs_status_code) -> Self {
        Self { code, argument: None, index: None, value: None, limit: None }
    }

    pub(crate) fn named(self, argument: &'static CStr) -> Self {
        Self { argument: Some(argument), ..self }
    }

    pub(crate) fn index(self, index: impl TryInto<i64>) -> Self {
        Self { index: Some(saturated(index)), ..self }
    }

    pub(crate) fn value(self, value: impl TryInto<i64>) -> Self {
        Self { value: Some(saturated(value)), ..self }
    }

    pub(crate) fn limit(self, limit: impl TryInto<i64>) -> Self {
        Self { limit: Some(saturated(limit)), ..self }
    }
}

/// Converts an error of the core.
impl From<ErrorDetails> for Fields {
    fn from(details: ErrorDetails) -> Self {
        let ErrorDetails { kind, argument, index, value, limit, .. } = details;
        let fields =
            Self { argument: argument.map(Argument::c_name), value, limit, ..Self::new(kind.into()) };
        index.map_or(fields, |index| fields.index(index))
    }
}

/// Converts an error of attention. Those that no call of the interface can cause are errors of the library.
impl From<&AttentionError> for Fields {
    fn from(error: &AttentionError) -> Self {
        let about = |code, operand| Self::new(code).named(operand_name(operand));
        match *error {
            AttentionError::ElementType { element } => {
                Self::new(KVS_ERROR_ELEMENT_TYPE).value(element.onnx_code())
            }
            AttentionError::Rank { operand, rank, .. } => about(KVS_ERROR_RANK, operand).value(rank).limit(4),
            AttentionError::Scale { .. } => Self::new(KVS_ERROR_NUMBER_OPTION).named(c"scale"),
            AttentionError::Softcap { .. } => Self::new(KVS_ERROR_NUMBER_OPTION).named(c"softcap"),
            AttentionError::Shape { operand, got, expected } => {
                let fields = about(KVS_ERROR_DIMENSION_MISMATCH, operand);
                match (0..4).find(|&dimension| got[dimension] != expected[dimension]) {
                    Some(at) => fields.index(at).value(got[at]).limit(expected[at]),
                    None => fields,
                }
            }
            AttentionError::Group { query, key } => {
                about(KVS_ERROR_HEAD_GROUPS, Operand::Query).value(query).limit(key)
            }
            AttentionError::MaskShape { .. } => about(KVS_ERROR_MASK_SHAPE, Operand::Mask),
            AttentionError::TooLarge { operand } => about(KVS_ERROR_TOO_LARGE, operand).limit(isize::MAX),
            AttentionError::EmptySlots { slots, max } => {
                about(KVS_ERROR_EMPTY_SLOTS, Operand::Key).value(slots).limit(max)
            }
            AttentionError::Presence { operand, is_expected: true } => {
                about(KVS_ERROR_MISSING_ARGUMENT, operand)
            }
            AttentionError::Presence { operand, is_expected: false } => {
                about(KVS_ERROR_UNEXPECTED_ARGUMENT, operand)
            }
            AttentionError::Length { operand, got, expected } => {
                about(KVS_ERROR_LIST_LENGTH, operand).value(got).limit(expected)
            }
            AttentionError::LengthOutOfRange { index, value, max } => {
                let fields = about(KVS_ERROR_LENGTH_OUT_OF_RANGE, Operand::Lengths);
                fields.index(index).value(value).limit(value.clamp(0, max))
            }
            AttentionError::NegativeStart { index, value } => {
                about(KVS_ERROR_NEGATIVE_START, Operand::Starts).index(index).value(value).limit(0)
            }
            AttentionError::Scratch => Self::new(KVS_ERROR_SCRATCH).named(c"scratch"),
            AttentionError::Overlap { operand, .. } => about(KVS_ERROR_OUTPUT_OVERLAPS_ITSELF, operand),
            AttentionError::EmptyBlocks => about(KVS_ERROR_EMPTY_BLOCKS, Operand::Key),
            AttentionError::Ring { operand } => about(KVS_ERROR_RING_OF_BLOCKS, operand),
            AttentionError::BlockOutOfRange { sample, value, max, .. } => {
                let fields =
                    about(KVS_ERROR_BLOCK_OUT_OF_RANGE, Operand::BlockTable).index(sample).value(value);
                if max < 0 { fields } else { fields.limit(i64::from(value).clamp(0, max)) }
            }
            _ => Self::new(KVS_ERROR_INTERNAL),
        }
    }
}

/// Returns ONNX's name of an operand, or for an extension the name in the header.
pub(crate) const fn operand_name(operand: Operand) -> &'static CStr {
    match operand {
        Operand::Query => c"Q",
        Operand::Key => c"K",
        Operand::Value => c"V",
        Operand::Mask => c"attn_mask",
        Operand::Lengths => c"nonpad_kv_seqlen",
        Operand::Starts => c"starts",
        Operand::BlockTable => c"block_table",
        Operand::Output => c"Y",
        Operand::Sinks => c"head_sink",
        Operand::KeyScales => c"key_scales",
        Operand::ValueScales => c"value_scales",
        _ => c"",
    }
}

/// Converts a number for C. Only sizes that exceed every memory are larger than `i64::MAX`.
fn saturated(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// An ASCII name that can be displayed as text.
pub(crate) struct Name(pub(crate) &'static CStr);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}
