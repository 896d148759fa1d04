//! The fields of an error that a program can read.

use std::ffi::CStr;
use std::fmt;

use kvscatter::Argument;
use kvscatter::error::ErrorDetails;

use crate::status::kvs_status_code;

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
