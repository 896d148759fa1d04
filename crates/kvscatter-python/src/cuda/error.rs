//! Converts errors of the CUDA crate to exceptions. Bad indices that launches report become errors of the
//! core, as on the CPU.

use kvscatter::Argument;
use kvscatter_cuda::{CountKind, CudaError, FirstBad, LaunchArgument, SlotMappingError, TensorRole};
use pyo3::prelude::*;

use super::operator::Operator;
use crate::error::{Class, Described, Field, raise as raise_of, sizes};

/// Creates the exception for an error about this operator.
#[cold]
pub(crate) fn raise(py: Python<'_>, operator: &Operator, error: CudaError) -> PyErr {
    let message = error.display_with(|list| operator.list(list), Argument::name).to_string();
    if let CudaError::Write(refused) = error {
        return operator.names.raise(py, refused);
    }
    let (class, argument, fields) = describe(operator, &error);
    raise_of(py, class, error.kind(), argument, message, &fields)
}

fn describe(operator: &Operator, error: &CudaError) -> Described {
    of_driver(error)
        .or_else(|| of_tensors(operator, error))
        .or_else(|| of_lists(operator, error))
        .unwrap_or((Class::Cuda, None, vec![]))
}

/// Describes an error of the driver, its device or its context.
fn of_driver(error: &CudaError) -> Option<Described> {
    let fields = match error {
        CudaError::NoDriver { .. } | CudaError::NoContext => vec![],
        CudaError::Driver { code, .. } => vec![("code", i64::from(*code).into())],
        CudaError::ComputeCapability { major, minor } => {
            let got = major.saturating_mul(10).saturating_add(*minor);
            vec![("got", i64::from(got).into())]
        }
        // This names the error of the PTX, because every driver can read PTX.
        CudaError::Kernels { ptx, .. } => match **ptx {
            CudaError::Driver { code, .. } => vec![("code", i64::from(code).into())],
            _ => vec![],
        },
        _ => return None,
    };
    Some((Class::Cuda, None, fields))
}

/// Describes an error of a cache, an update or a present: its shape, its layout or its memory.
fn of_tensors(operator: &Operator, error: &CudaError) -> Option<Described> {
    Some(match error {
        CudaError::Loops { loops } => (Class::Array, None, vec![("loops", (*loops).into())]),
        CudaError::TooLarge { what, got, max } => {
            let fields =
                vec![("what", Field::Name(what.to_string())), ("got", (*got).into()), ("max", (*max).into())];
            (Class::Shape, count_argument(operator, *what), fields)
        }
        CudaError::Buffer { tensor, index, bytes, needed, .. } => (
            Class::Array,
            Some(tensor_argument(operator, *tensor)),
            sizes([("pair", *index), ("len", *bytes), ("needed", *needed)]),
        ),
        CudaError::WholeWords { pair, bytes, needed, .. } => (
            Class::Array,
            Some(operator.written),
            sizes([("pair", *pair), ("len", *bytes), ("needed", *needed)]),
        ),
        CudaError::Presents { triple, with } => {
            (Class::Array, Some(operator.written), sizes([("pair", *triple), ("with_pair", *with)]))
        }
        CudaError::SamplesNotAdjacent => (Class::Array, Some(operator.update), vec![]),
        CudaError::SlotMapping(why) => {
            let fields = match why {
                SlotMappingError::Samples(samples) => {
                    vec![("got", (*samples).into()), ("expected", 1_usize.into())]
                }
                _ => vec![],
            };
            (Class::Shape, Some(operator.update), fields)
        }
        _ => return None,
    })
}

/// Describes an error of a list or the status: its presence, its memory or a value in it.
fn of_lists(operator: &Operator, error: &CudaError) -> Option<Described> {
    let (class, list, fields) = match error {
        CudaError::List { list, .. } => (Class::Option, list, vec![]),
        CudaError::Address { list, .. } => (Class::Array, list, vec![]),
        CudaError::ListWraps { list, bytes, .. } => (Class::Array, list, sizes([("len", *bytes)])),
        CudaError::Overlap { list, pair } => {
            let fields = vec![("with_", Field::Name(operator.written.into())), ("with_pair", (*pair).into())];
            (Class::Array, list, fields)
        }
        CudaError::StatusShared => (Class::Array, &LaunchArgument::Status, vec![]),
        CudaError::BadIndices { bad_samples, first: FirstBad { list, sample, value } } => {
            let mut fields = vec![("got", i64::from(*bad_samples).into()), ("value", (*value).into())];
            fields.extend(sample.map(|sample| ("index", sample.into())));
            (Class::Position, list, fields)
        }
        _ => return None,
    };
    Some((class, Some(operator.list(*list)), fields))
}

fn tensor_argument(operator: &Operator, tensor: TensorRole) -> &'static str {
    match tensor {
        TensorRole::Update => operator.update,
        TensorRole::Present => operator.written,
        _ => operator.cache,
    }
}

/// Returns the argument with too many elements. Runs and their lengths depend on several arguments.
fn count_argument(operator: &Operator, what: CountKind) -> Option<&'static str> {
    match what {
        CountKind::Samples => Some(operator.update),
        CountKind::Capacity | CountKind::Layers => Some(operator.cache),
        _ => None,
    }
}
