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
