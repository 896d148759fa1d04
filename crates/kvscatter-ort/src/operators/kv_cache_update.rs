//! TensorRT `KVCacheUpdate`.

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::spec::fill_unknown;
use kvscatter::spec::tensorrt::{self, PackedCall};
use kvscatter::{Argument, ElementType, Error, Integers, Prepared};

use super::Operator;
use crate::context::{Context, InputTensor};
use crate::node::Node;
use crate::status::Failure;
use crate::tensor_info::TensorInfo;
use crate::write::PreparedWrites;

/// `KVCacheUpdate(cache, update, write_indices, update_lengths?)`, with the attributes `cache_mode` and
/// `update_form`.
pub(crate) struct KvCacheUpdate {
    form: Form,
    writes: PreparedWrites,
}

/// The layout of an update.
#[derive(Clone, Copy)]
enum Form {
    /// `[b, d, s, h]`, every sample as long as the longest.
    Padded,
    /// `[totalTokens, d, h]`, one sample after the other.
    Packed,
}

const OPERATOR: tensorrt::KvCacheUpdate = tensorrt::KvCacheUpdate::new();

impl Operator for KvCacheUpdate {
    const NAME: &'static CStr = c"KVCacheUpdate";

    fn input_name(argument: Argument) -> &'static str {
        match argument {
            Argument::TensorRtWriteIndices => "write_indices",
            Argument::UpdateLengths => "update_lengths",
            other => other.name(),
        }
    }

    fn new(node: &Node<'_>) -> Result<Self, Failure> {
        match node.string(c"cache_mode")?.as_deref() {
            None | Some("linear") => {}
            Some(other) => {
                return Err(Failure::invalid_argument(format!("cache_mode must be 'linear', got '{other}'")));
            }
        }
        let form = match node.string(c"update_form")?.as_deref() {
            None | Some("padded") => Form::Padded,
            Some("packed_nhd") => Form::Packed,
            Some(other) => {
                return Err(Failure::invalid_argument(format!(
                    "update_form must be 'padded' or 'packed_nhd', got '{other}'"
                )));
            }
        };
        Ok(Self { form, writes: PreparedWrites::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), Failure> {
        let cache = &context.input(0, Argument::Cache)?;
        let update = &context.input(1, Argument::Update)?;
        let write_indices = context.input(2, Argument::TensorRtWriteIndices)?;
        let write_indices = Indices::of(&write_indices)?;
        let write_indices = write_indices.integers();
        let lengths = match self.form {
            Form::Padded => None,
            Form::Packed => Some(context.input(3, Argument::UpdateLengths)?.list()?),
        };
        self.writes.with(
            context,
            cache,
            update,
            |element, cache, update| self.prepare(element, cache, update),
            |write| {
                let plan = match &lengths {
                    None => write.plan(write_indices),
                    Some(lengths) => write.plan(PackedCall::new(write_indices, lengths)),
                };
                write.write(&plan?)
            },
        )
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), Failure> {
        let is_given = |input: &TensorInfo| input.element.is_some();
        self.check_lengths(inputs.get(3).is_some_and(is_given))?;
        let [cache, update, ..] = inputs else { return Ok(()) };
        let Some(element) = cache.element else { return Ok(()) };
        let (rank, pairs): (_, &[_]) = match self.form {
            Form::Padded => (4, &[(0, 0), (1, 1), (2, 2), (3, 3)]),
            Form::Packed => (3, &[(1, 1), (3, 2)]),
        };
        let (cache, update) = fill_unknown(cache.sizes_or(4), update.sizes_or(rank), pairs);
        self.prepare(element, &cache, &update)?;
        Ok(())
    }
}

impl KvCacheUpdate {
    fn prepare(&self, element: ElementType, cache: &[usize], update: &[usize]) -> Result<Prepared, Error> {
        match self.form {
            Form::Padded => OPERATOR.prepare(element, cache, update),
            Form::Packed => OPERATOR.prepare_packed(element, cache, update),
        }
    }

    /// Refuses what TensorRT's builder refuses: packed updates without lengths, and padded ones with them.
    fn check_lengths(&self, given: bool) -> Result<(), Failure> {
        match (self.form, given) {
            (Form::Packed, false) => {
                Err(Failure::fail("update_form packed_nhd needs the input update_lengths"))
            }
            (Form::Padded, true) => Err(Failure::fail("update_lengths is for update_form packed_nhd alone")),
            _ => Ok(()),
        }
    }
}

/// `writeIndices`, which come in two widths.
enum Indices<'a> {
    I32(Cow<'a, [i32]>),
    I64(Cow<'a, [i64]>),
}

impl<'a> Indices<'a> {
    fn of(tensor: &InputTensor<'a>) -> Result<Self, Failure> {
        if tensor.has_element(ElementType::Int32) {
            tensor.list().map(Self::I32)
        } else {
            tensor.list().map(Self::I64)
        }
    }

    fn integers(&self) -> Integers<'_> {
        match self {
            Self::I32(values) => Integers::I32(values),
            Self::I64(values) => Integers::I64(values),
        }
    }
}
