//! Infers the shape of the output before the shapes of the inputs are certain.

use super::{AttentionIoForm, KvCacheUpdate, check_element};
use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::Error;
use crate::spec::{PartialTensor, fill_unknown, same_element_type};

/// The known facts about the inputs of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialInputs<'a> {
    pub(super) form: AttentionIoForm,
    pub(super) cache: PartialTensor<'a>,
    pub(super) update: PartialTensor<'a>,
    pub(super) write_indices: PartialTensor<'a>,
    pub(super) update_lengths: Option<PartialTensor<'a>>,
}

impl KvCacheUpdate {
    /// Infers the output from the inputs. It has the element type and the shape of `cache`.
    ///
    /// `update_lengths` is `None` if the layer has no such input. An unknown type or dimension fits
    /// everything.
    ///
    /// # Errors
    /// * Returns the errors that [`prepare`](Self::prepare), [`prepare_packed`](Self::prepare_packed) and
    ///   [`Prepared::plan`](crate::Prepared::plan) return for the same faults.
    /// * Returns [`Error::ElementType`] or [`Error::Rank`] if a list has the wrong type or rank.
    /// * Returns [`Error::ListLength`] if a packed update has no `update_lengths`, or if a padded update has
    ///   them.
    pub fn infer<'a>(
        &self,
        form: AttentionIoForm,
        cache: PartialTensor<'a>,
        update: PartialTensor<'_>,
        write_indices: PartialTensor<'_>,
        update_lengths: Option<PartialTensor<'_>>,
    ) -> Result<PartialTensor<'a>, Error> {
        let inputs = PartialInputs { form, cache, update, write_indices, update_lengths };
        let mut errors = cache_errors(cache).chain(self.input_errors(inputs));
        errors.next().map_or(Ok(cache), Err)
    }

    /// Returns every error about the types and shapes of the inputs, except those of [`cache_errors`].
    pub(super) fn input_errors(&self, inputs: PartialInputs<'_>) -> impl Iterator<Item = Error> {
        let checks =
            [check_types(inputs), self.check_shapes(inputs), check_indices(inputs), check_lengths(inputs)];
        checks.into_iter().filter_map(Result::err)
    }

    /// Prepares the layer, with each unknown size chosen to fit. If this fails, every execution of the layer
    /// would fail.
    fn check_shapes(&self, inputs: PartialInputs<'_>) -> Result<(), Error> {
        let PartialInputs { form, cache, update, .. } = inputs;
        let accepts = |element: &ElementType| Self::ELEMENT_TYPES.contains(element);
        let known = [cache.element, update.element].into_iter().flatten().find(accepts);
        let element = known.unwrap_or(ElementType::Float16);
        let mut cache = cache.sizes_or(4);
        let [batch, _, _, _] = cache.as_mut_slice() else { return Ok(()) };
        match form {
            AttentionIoForm::PaddedBhnd => {
                let pairs = [(0, 0), (1, 1), (2, 2), (3, 3)];
                let (cache, update) = fill_unknown(cache, update.sizes_or(4), &pairs);
                self.prepare(element, &cache, &update)?;
            }
            AttentionIoForm::PackedNhd => {
                let samples = inputs.samples();
                if let (Some(cache), Some(update)) = (*batch, samples)
                    && update > cache
                {
                    return Err(Error::BatchTooLarge { argument: Argument::Update, cache, update });
                }
                *batch = batch.or(samples);
                let (cache, update) = fill_unknown(cache, update.sizes_or(3), &[(1, 1), (3, 2)]);
                self.prepare_packed(element, &cache, &update)?;
            }
        }
        Ok(())
    }
}

impl PartialInputs<'_> {
    /// Returns the number of samples that the layer writes, if it is known.
    ///
    /// A packed update has no batch dimension, so its samples are counted by `write_indices`.
    fn samples(&self) -> Option<usize> {
        match self.form {
            AttentionIoForm::PaddedBhnd => self.update.size(0),
            AttentionIoForm::PackedNhd => self.write_indices.size(0),
        }
    }
}

/// Returns every error that concerns only the cache.
pub(super) fn cache_errors(cache: PartialTensor<'_>) -> impl Iterator<Item = Error> {
    let argument = Argument::Cache;
    let of_type = cache.element.and_then(|element| check_element(argument, element).err());
    let rank = cache.shape.map_or(4, <[_]>::len);
    of_type.into_iter().chain((rank != 4).then_some(Error::Rank { argument, rank, expected: &[4] }))
}

fn check_types(inputs: PartialInputs<'_>) -> Result<(), Error> {
    let argument = Argument::Update;
    let Some(element) = inputs.update.element else { return Ok(()) };
    check_element(argument, element)?;
    match inputs.cache.element {
        Some(cache) if check_element(Argument::Cache, cache).is_ok() => {
            same_element_type(cache, argument, element).map(drop)
        }
        _ => Ok(()),
    }
}

fn check_indices(inputs: PartialInputs<'_>) -> Result<(), Error> {
    let (argument, accepted) = (Argument::TensorRtWriteIndices, KvCacheUpdate::INDEX_TYPES);
    inputs.write_indices.check_indices(argument, accepted, inputs.samples())
}

/// Checks the cumulative lengths. A packed update needs one length more than it has samples, and a padded
/// update takes none. If the number of samples or of lengths is unknown, the error contains the smallest
/// possible number.
fn check_lengths(inputs: PartialInputs<'_>) -> Result<(), Error> {
    let argument = Argument::UpdateLengths;
    let expected = inputs.samples().and_then(|samples| samples.checked_add(1));
    match (inputs.form, inputs.update_lengths) {
        (AttentionIoForm::PaddedBhnd, None) => Ok(()),
        (AttentionIoForm::PaddedBhnd, Some(lengths)) => {
            Err(Error::ListLength { argument, got: lengths.size(0).unwrap_or(1), expected: 0 })
        }
        (AttentionIoForm::PackedNhd, None) => {
            Err(Error::ListLength { argument, got: 0, expected: expected.unwrap_or(1) })
        }
        (AttentionIoForm::PackedNhd, Some(lengths)) => {
            lengths.check_indices(argument, KvCacheUpdate::LENGTH_TYPES, expected)
        }
    }
}
