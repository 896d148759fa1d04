//! TensorRT `KVCacheUpdate`.

use std::borrow::Cow;

use kvscatter::spec::tensorrt::{self, PreparedPacked};
use kvscatter::{Argument, ElementType, Error, Prepared, Starts};

use super::Operator;
use crate::context::{Context, Tensor};
use crate::known::Known;
use crate::node::Node;
use crate::recent::Recent;
use crate::status::Failure;

/// `KVCacheUpdate(cache, update, write_indices, update_lengths?)`, with the attributes `cache_mode` and
/// `update_form`.
pub(crate) struct KvCacheUpdate {
    form: Form,
}

/// How the samples of an update lie.
enum Form {
    /// `[b, d, s, h]`, every sample as long as the longest.
    Padded(Recent<Prepared>),
    /// `[totalTokens, d, h]`, one sample behind the other.
    Packed(Recent<PreparedPacked>),
}

const OPERATOR: tensorrt::KvCacheUpdate = tensorrt::KvCacheUpdate::new();

impl Operator for KvCacheUpdate {
    fn new(node: &Node<'_>) -> Result<Self, Failure> {
        match node.string(c"cache_mode")?.as_deref() {
            None | Some("linear") => {}
            Some(other) => {
                return Err(Failure::invalid_argument(format!(
                    "KVCacheUpdate: cache_mode must be linear, got {other}"
                )));
            }
        }
        let form = match node.string(c"update_form")?.as_deref() {
            None | Some("padded") => Form::Padded(Recent::new()),
            Some("packed_nhd") => Form::Packed(Recent::new()),
            Some(other) => {
                return Err(Failure::invalid_argument(format!(
                    "KVCacheUpdate: update_form must be padded or packed_nhd, got {other}"
                )));
            }
        };
        Ok(Self { form })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), Failure> {
        let cache = &context.input(0, Argument::Cache)?;
        let update = &context.input(1, Argument::Update)?;
        let write_indices = context.input(2, Argument::TensorRtWriteIndices)?;
        let write_indices = Indices::of(&write_indices).map_err(refuse)?;
        let starts = write_indices.starts();
        match &self.form {
            Form::Padded(recent) => {
                let prepare = || {
                    let element = cache.element_with(update, refuse)?;
                    let write =
                        OPERATOR.prepare(element, &cache.sizes()?, &update.sizes()?).map_err(refuse)?;
                    context.check_memory(write.geometry(), cache, update, refuse)?;
                    Ok(write)
                };
                recent.with(cache, update, prepare, |write| {
                    let plan = write.plan(starts).map_err(refuse)?;
                    // SAFETY: prepared for tensors like these, and their memory checked then.
                    unsafe { context.write(&plan, cache, update, refuse) }
                })
            }
            Form::Packed(recent) => {
                let lengths = context.input(3, Argument::UpdateLengths)?;
                let lengths = &lengths.list().map_err(refuse)?;
                let prepare = || {
                    let element = cache.element_with(update, refuse)?;
                    let write = OPERATOR
                        .prepare_packed(element, &cache.sizes()?, &update.sizes()?)
                        .map_err(refuse)?;
                    context.check_memory(write.geometry(), cache, update, refuse)?;
                    Ok(write)
                };
                recent.with(cache, update, prepare, |write| {
                    let plan = write.plan(starts, lengths).map_err(refuse)?;
                    // SAFETY: prepared for tensors like these, and their memory checked then.
                    unsafe { context.write(&plan, cache, update, refuse) }
                })
            }
        }
    }

    fn check(&self, inputs: &[Known]) -> Result<(), Failure> {
        let is_given = |known: &Known| known.element.is_some();
        self.check_lengths(inputs.get(3).is_some_and(is_given))?;
        let [cache, update, ..] = inputs else { return Ok(()) };
        let (Some(element), Some(cache), Some(update)) = (cache.element, cache.whole(), update.whole())
        else {
            return Ok(());
        };
        match self.form {
            Form::Padded(_) => OPERATOR.prepare(element, &cache, &update).map(drop),
            Form::Packed(_) => OPERATOR.prepare_packed(element, &cache, &update).map(drop),
        }
        .map_err(refuse)
    }
}

impl KvCacheUpdate {
    /// TensorRT's builder refuses both.
    fn check_lengths(&self, given: bool) -> Result<(), Failure> {
        match (&self.form, given) {
            (Form::Packed(_), false) => {
                Err(Failure::fail("KVCacheUpdate: update_form packed_nhd needs the input updateLengths"))
            }
            (Form::Padded(_), true) => {
                Err(Failure::fail("KVCacheUpdate: updateLengths is for update_form packed_nhd alone"))
            }
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
    fn of(tensor: &Tensor<'a>) -> Result<Self, Error> {
        if tensor.holds(ElementType::Int32) {
            tensor.list().map(Self::I32)
        } else {
            tensor.list().map(Self::I64)
        }
    }

    fn starts(&self) -> Starts<'_> {
        match self {
            Self::I32(values) => Starts::I32(values),
            Self::I64(values) => Starts::I64(values),
        }
    }
}

fn refuse(error: Error) -> Failure {
    Failure::fail(format!("KVCacheUpdate: {error}"))
}
