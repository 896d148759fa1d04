//! Errors of the CUDA crate as exceptions. What launches have found is an error of the core's, as on the CPU.

use kvscatter_cuda::{Counted, Error, FirstBad, SlotMappingError, TensorRole};
use pyo3::prelude::*;

use super::operator::Operator;
use crate::error::{Class, Field, raise as raise_of};

/// Class, kind, argument and fields.
type Described = (Class, &'static str, Option<&'static str>, Vec<(&'static str, Field)>);

/// The exception for an error about this operator.
#[cold]
pub(crate) fn raise(py: Python<'_>, operator: &Operator, error: Error) -> PyErr {
    let message = error.with_names(|list| operator.list(list));
    let (class, kind, argument, fields) = match error {
        Error::Write(refused) => return (operator.refuse)(py, refused),
        error => describe(operator, &error),
    };
    raise_of(py, class, kind, argument, message, &fields)
}

fn describe(operator: &Operator, error: &Error) -> Described {
    match error {
        Error::NoDriver { .. } => (Class::Cuda, "no_driver", None, vec![]),
        Error::Driver { code, .. } => (Class::Cuda, "driver", None, vec![("code", i64::from(*code).into())]),
        Error::ComputeCapability { major, minor } => {
            let got = major.saturating_mul(10).saturating_add(*minor);
            (Class::Cuda, "compute_capability", None, vec![("got", i64::from(got).into())])
        }
        // The PTX is what every driver reads.
        Error::Kernels { ptx, .. } => {
            let fields = match **ptx {
                Error::Driver { code, .. } => vec![("code", i64::from(code).into())],
                _ => vec![],
            };
            (Class::Cuda, "kernels", None, fields)
        }
        Error::NoContext => (Class::Cuda, "no_context", None, vec![]),
        Error::Loops { loops } => (Class::Array, "layout", None, vec![("loops", (*loops).into())]),
        Error::TooLarge { what, got, most } => {
            let fields = vec![
                ("what", Field::Name(what.to_string())),
                ("got", (*got).into()),
                ("max", (*most).into()),
            ];
            (Class::Shape, "too_large", count_argument(operator, *what), fields)
        }
        Error::Buffer { tensor, index, bytes, needed, .. } => (
            Class::Array,
            "buffer_length",
            Some(tensor_argument(operator, *tensor)),
            numbers([("buffer", *index), ("len", *bytes), ("needed", *needed)]),
        ),
        Error::WholeWords { pair, bytes, needed, .. } => (
            Class::Array,
            "whole_words",
            Some(operator.written),
            numbers([("buffer", *pair), ("len", *bytes), ("needed", *needed)]),
        ),
        Error::Presents { triple, with } => (
            Class::Array,
            "overlap",
            Some(operator.written),
            numbers([("buffer", *triple), ("with_buffer", *with)]),
        ),
        Error::SamplesNotAdjacent => (Class::Array, "apart", Some(operator.update), vec![]),
        Error::SlotMapping(why) => {
            let fields = match why {
                SlotMappingError::Samples(samples) => {
                    vec![("got", (*samples).into()), ("want", 1_usize.into())]
                }
                _ => vec![],
            };
            (Class::Shape, "slot_mapping", Some(operator.update), fields)
        }
        Error::List { list, .. } => (Class::Option, "list", Some(operator.list(*list)), vec![]),
        Error::Address { list, .. } => (Class::Array, "misaligned", Some(operator.list(*list)), vec![]),
        Error::ListWraps { list, bytes, .. } => {
            (Class::Array, "buffer_wraps", Some(operator.list(*list)), numbers([("len", *bytes)]))
        }
        Error::Overlap { list, pair } => {
            let fields =
                vec![("with_", Field::Name(operator.written.into())), ("with_buffer", (*pair).into())];
            (Class::Array, "overlap", Some(operator.list(*list)), fields)
        }
        Error::StatusShared => (Class::Array, "overlap", Some("status"), vec![]),
        Error::BadIndices { bad_samples, first: FirstBad { list, sample, value } } => {
            let mut fields = vec![("got", i64::from(*bad_samples).into()), ("value", (*value).into())];
            fields.extend(sample.map(|sample| ("index", sample.into())));
            (Class::Position, "bad_indices", Some(operator.list(*list)), fields)
        }
        _ => (Class::Cuda, "unknown", None, vec![]),
    }
}

fn numbers<const N: usize>(fields: [(&'static str, usize); N]) -> Vec<(&'static str, Field)> {
    fields.map(|(name, number)| (name, number.into())).into()
}

fn tensor_argument(operator: &Operator, tensor: TensorRole) -> &'static str {
    match tensor {
        TensorRole::Update => operator.update,
        TensorRole::Present => operator.written,
        _ => operator.cache,
    }
}

/// Which argument has too many. Runs and their lengths are of several.
fn count_argument(operator: &Operator, what: Counted) -> Option<&'static str> {
    match what {
        Counted::Samples => Some(operator.update),
        Counted::Capacity | Counted::Layers => Some(operator.cache),
        _ => None,
    }
}
