//! Infers the shape of the output before the shapes of the inputs are certain.

use alloc::vec::Vec;

use super::TensorScatter;
use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::Error;
use crate::spec::{PartialTensor, fill_unknown};

impl TensorScatter {
    /// The element types that the operator accepts for `write_indices`.
    pub const INDEX_TYPES: &[ElementType] = &[ElementType::Int64];

    /// Infers `present_cache` from the inputs. `write_indices` is `None` if the node has no such input.
    ///
    /// The result has the element type and the shape of `past_cache`. A symbolic or unknown dimension fits
    /// every other. Like ONNX, this method checks these conditions:
    ///
    /// * If both shapes are known, their ranks are equal, the axis lies in `1..rank`, and all dimensions fit
    ///   except the sequence.
    /// * `write_indices` has rank 1, and its dimension fits the batch.
    ///
    /// This method also checks conditions that ONNX does not check:
    ///
    /// * The update is no longer than the cache.
    /// * The cache and the update have the same element type.
    /// * `write_indices` has the type int64.
    ///
    /// ONNX does not read the `mode` attribute here. In this crate the attribute is a [`Mode`](crate::Mode),
    /// so parsing a wrong name returns an error.
    ///
    /// # Errors
    /// Returns the errors that [`prepare`](Self::prepare) returns for the same faults.
    pub fn infer<'a>(
        &self,
        past_cache: PartialTensor<'a>,
        update: PartialTensor<'_>,
        write_indices: Option<PartialTensor<'_>>,
    ) -> Result<PartialTensor<'a>, Error> {
        past_cache.check_same_element(Argument::Update, update)?;
        if let Some(cache) = past_cache.sizes() {
            self.resolve_axis(cache.len())?;
            if let Some(sizes) = update.sizes() {
                // If `prepare` rejects these sizes, which were chosen to fit, it rejects every run of this
                // node.
                let pairs: Vec<_> = (0..cache.len()).map(|axis| (axis, axis)).collect();
                let (cache, sizes) = fill_unknown(cache, sizes, &pairs);
                let element = past_cache.element.or(update.element).unwrap_or(ElementType::UInt4);
                self.prepare(element, &cache, &sizes)?;
            }
        }
        let batch = past_cache.size(0).or(update.size(0));
        let write_indices = write_indices.unwrap_or_default();
        write_indices.check_indices(Argument::WriteIndices, Self::INDEX_TYPES, batch)?;
        Ok(past_cache)
    }
}

#[cfg(test)]
mod tests {
    use crate::error::SequenceHint;
    use crate::spec::Dimension::{self, Known, Symbolic, Unknown};
    use crate::spec::{PartialTensor, onnx::TensorScatter};
    use crate::{Argument, ElementType, Error};

    fn partial<'a>(element: ElementType, shape: &'a [Dimension<'a>]) -> PartialTensor<'a> {
        PartialTensor { element: Some(element), shape: Some(shape) }
    }

    const F16: ElementType = ElementType::Float16;
    const CACHE: &[Dimension<'_>] = &[Symbolic("batch"), Known(8), Known(16), Unknown];

    fn infer(update: &[Dimension<'_>], indices: Option<PartialTensor<'_>>) -> Result<(), Error> {
        let output = TensorScatter::new().infer(partial(F16, CACHE), partial(F16, update), indices)?;
        assert_eq!(output, partial(F16, CACHE), "the output is past_cache's, names and all");
        Ok(())
    }

    #[test]
    fn names_and_unknowns_never_contradict() {
        assert_eq!(infer(&[Symbolic("n"), Unknown, Symbolic("s"), Known(64)], None), Ok(()));
        assert_eq!(infer(&[Known(2), Known(8), Known(16), Unknown], None), Ok(()));
        assert_eq!(
            TensorScatter::new().infer(PartialTensor::default(), PartialTensor::default(), None),
            Ok(PartialTensor::default())
        );
    }

    #[test]
    fn known_dimensions_must_agree() {
        assert_eq!(
            infer(&[Unknown, Known(7), Unknown, Unknown], None),
            Err(Error::DimensionMismatch {
                argument: Argument::Update,
                dimension: 1,
                expected: 8,
                got: 7,
                hint: Some(SequenceHint::SetAxis)
            })
        );
        assert_eq!(
            infer(&[Unknown, Known(8), Known(17), Unknown], None),
            Err(Error::UpdateLongerThanCache { argument: Argument::Update, rows: 17, capacity: 16 })
        );
        assert_eq!(
            infer(&[Unknown; 3], None),
            Err(Error::RankMismatch { argument: Argument::Update, cache: 4, update: 3 })
        );
    }

    #[test]
    fn the_axis_is_checked_against_the_cache_alone() {
        let infer =
            |axis| TensorScatter::new().axis(axis).infer(partial(F16, CACHE), PartialTensor::default(), None);
        for axis in [1, 3, -1, -3] {
            assert!(infer(axis).is_ok(), "{axis}");
        }
        for axis in [0, -4] {
            assert_eq!(infer(axis), Err(Error::AxisIsBatch { axis, rank: 4 }));
        }
        for axis in [4, -5, i64::MIN, i64::MAX] {
            assert_eq!(infer(axis), Err(Error::AxisOutOfRange { axis, rank: 4 }));
        }
    }

    #[test]
    fn write_indices_are_int64_of_the_batch() {
        let argument = Argument::WriteIndices;
        let update = [Known(2), Known(8), Known(1), Unknown];
        let infer = |indices| infer(&update, Some(indices));
        assert_eq!(infer(partial(ElementType::Int64, &[Known(2)])), Ok(()));
        assert_eq!(infer(partial(ElementType::Int64, &[Symbolic("batch")])), Ok(()));
        assert_eq!(
            infer(partial(ElementType::Int64, &[Known(3)])),
            Err(Error::ListLength { argument, got: 3, expected: 2 })
        );
        assert_eq!(
            infer(partial(ElementType::Int64, &[Known(2), Known(1)])),
            Err(Error::Rank { argument, rank: 2, expected: &[1] })
        );
        assert_eq!(
            infer(partial(ElementType::Int32, &[Known(2)])),
            Err(Error::ElementType {
                argument,
                element: ElementType::Int32,
                accepted: &[ElementType::Int64]
            })
        );
    }

    #[test]
    fn both_tensors_have_one_type() {
        let update = PartialTensor { element: Some(ElementType::BFloat16), shape: None };
        assert_eq!(
            TensorScatter::new().infer(partial(F16, CACHE), update, None),
            Err(Error::ElementTypeMismatch {
                cache: F16,
                argument: Argument::Update,
                element: ElementType::BFloat16
            })
        );
    }
}
