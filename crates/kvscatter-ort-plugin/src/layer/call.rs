//! The inputs of a call.

use core::ops::Range;
use std::borrow::Cow;

use kvscatter::Argument;
use kvscatter_attention::{Operand, Valid};

use super::heads::{Heads, reshaped};
use super::{Layer, Packed, Rows, Storage, Write};
use crate::context::Context;
use crate::input::{InputTensor, Named, Role};
use crate::operators::{Attention, Operator, TensorScatter};
use crate::recent::Signature;
use crate::status::CallError;

/// The inputs of a call. The lists that are checked are copied, so nothing changes them between the check and the use.
pub(super) struct LayerCall<'a> {
    pub(super) query: InputTensor<'a, Operand>,
    pub(super) key: Cache<'a>,
    pub(super) value: Cache<'a>,
    pub(super) mask: Option<InputTensor<'a, Operand>>,
    lengths: Option<Vec<i64>>,
    /// The shape of a packed tensor, and the sizes of its three parts.
    packed: Option<[Cow<'a, [i64]>; 2]>,
    pub(super) output_shape: Option<Cow<'a, [i64]>>,
    /// All inputs of the node.
    all: Vec<InputTensor<'a, Named>>,
}

/// A cache, and the rows that a call writes to it.
pub(super) struct Cache<'a> {
    pub(super) past: InputTensor<'a>,
    /// The past of the scales, if the cache has codes.
    pub(super) scales: Option<InputTensor<'a>>,
    pub(super) rows: InputTensor<'a>,
    pub(super) indices: Option<Vec<i64>>,
}

impl<'a> LayerCall<'a> {
    pub(super) fn read(layer: &Layer, context: &Context<'a>) -> Result<Self, CallError> {
        let all = context.inputs()?;
        let cache = |write: &Write| {
            let indices = write.indices.map(|index| list(&all, index, Argument::WriteIndices)).transpose();
            let scales = match write.storage {
                Storage::Codes { past, .. } => Some(input(&all, past, Argument::PastCache)?),
                Storage::Same | Storage::Half(_) => None,
            };
            Ok::<_, CallError>(Cache {
                past: input(&all, write.past, Argument::PastCache)?,
                scales,
                rows: input(&all, write.rows.value, Argument::Update)?,
                indices: indices.map_err(TensorScatter::with_operator_name)?.map(Cow::into_owned),
            })
        };
        let lengths = layer.lengths.map(|index| list(&all, index, Operand::Lengths)).transpose();
        Ok(Self {
            query: input(&all, layer.query.value, Operand::Query)?,
            key: cache(&layer.key)?,
            value: cache(&layer.value)?,
            mask: layer.mask.map(|index| input(&all, index, Operand::Mask)).transpose()?,
            lengths: lengths.map_err(Attention::with_operator_name)?.map(Cow::into_owned),
            packed: match &layer.packed {
                Some(Packed { shape, sizes }) => Some([
                    list(&all, *shape, Named("the shape of Reshape"))?,
                    list(&all, *sizes, Named("the sizes of Split"))?,
                ]),
                None => None,
            },
            output_shape: match layer.output_shape {
                Some(shape) => Some(list(&all, shape, Named("the shape of Reshape"))?),
                None => None,
            },
            all,
        })
    }

    /// Returns the types and shapes that a call is prepared for, and the values of the inputs that are shapes.
    pub(super) fn signatures(&self) -> impl Iterator<Item = Signature<'_>> + Clone {
        let Self { query, key, value, mask, packed, output_shape, .. } = self;
        let writes = [&key.past, &key.rows, &value.past, &value.rows].map(InputTensor::signature);
        let scales = key.scales.iter().chain(&value.scales).map(InputTensor::signature);
        let shapes = packed.iter().flatten().chain(output_shape).map(|shape| (0, &**shape));
        [query.signature()]
            .into_iter()
            .chain(writes)
            .chain(scales)
            .chain(mask.as_ref().map(InputTensor::signature))
            .chain(shapes)
    }

    /// Checks that the runtime's memory for each input has the size that its shape requires. Returns an error about the
    /// first input whose memory has another size.
    pub(super) fn check_memory(&self, context: &Context<'_>) -> Result<(), CallError> {
        self.all.iter().try_for_each(|tensor| context.check_memory(tensor))
    }

    /// Returns the addresses of each input. Returns an error if no tensor can have the type or the shape of an input.
    pub(super) fn addresses(&self) -> Result<Vec<Range<usize>>, CallError> {
        self.all.iter().map(InputTensor::addresses).collect()
    }

    /// Returns an input of the node. Returns an error if the node does not have it.
    pub(super) fn input<R: Role>(&self, index: usize, role: R) -> Result<InputTensor<'a, R>, CallError> {
        input(&self.all, index, role)
    }

    /// Returns the slots that contain tokens.
    pub(super) fn valid(&self) -> Valid<'_> {
        self.lengths.as_deref().map_or(Valid::All, Valid::Lengths)
    }

    /// Returns the sizes of new rows, and where they are in their tensor. Returns an error if the tensor does not have
    /// rank 4, after it is reshaped and split.
    pub(super) fn heads<R: Role>(&self, of: &Rows, rows: &InputTensor<'_, R>) -> Result<Heads, CallError> {
        let shape = match &self.packed {
            Some([shape, _]) => reshaped(shape, rows.shape())?,
            None => rows.shape().to_vec(),
        };
        let sizes = self.packed.as_ref().map(|[_, sizes]| &**sizes);
        Heads::new(&shape, of.is_by_token, sizes.map(|sizes| (sizes, of.part)), rows.role)
    }
}

fn input<'a, R: Role>(
    all: &[InputTensor<'a, Named>],
    index: usize,
    role: R,
) -> Result<InputTensor<'a, R>, CallError> {
    let input = all.get(index).ok_or_else(|| role.failure("is missing".to_owned()))?;
    Ok(input.with_role(role))
}

fn list<'a, R: Role>(
    all: &[InputTensor<'a, Named>],
    index: usize,
    role: R,
) -> Result<Cow<'a, [i64]>, CallError> {
    input(all, index, role)?.list()
}
