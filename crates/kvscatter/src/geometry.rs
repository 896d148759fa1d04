//! The shapes of a write, checked once.
//!
//! This module does not depend on an axis, a rank or a specification. [`Operands`] assigns a role to each
//! dimension. [`Geometry`] proves that the shapes fit. [`Mapping`] turns rows into blocks.
//!
//! The crate documentation defines G1, G2 and P1.

mod blocks;
mod buffer;
mod layout;
mod mapping;
mod operands;
mod overlap;

use core::fmt;

pub use self::blocks::{Block, Loop};
pub(crate) use self::blocks::{Offsets, RowRange, SampleRows, Source};
use self::buffer::Buffer;
pub use self::layout::Layout;
pub(crate) use self::layout::{Dim, View};
pub(crate) use self::mapping::Mapping;
use self::operands::TensorDims;
pub(crate) use self::operands::{ByTensor, Operands, UpdateBatch};
use self::overlap::SortedStrides;
use crate::argument::ArgumentNames;
use crate::element::ElementType;
use crate::error::{Error, LengthUnit};

/// The shapes of one write: batch × outer × capacity × row, with strides for the cache and the update.
///
/// Only the `prepare` methods of the operators make a geometry. A geometry proves these facts:
///
/// * **G1**: Every product of sizes fits `isize`, in elements and in bytes.
/// * **G2**: No two positions of the cache share a bit.
/// * A padded update has no more rows and no more samples than the cache, and every other dimension agrees.
///   For a packed update, the plan checks the number of rows of each sample.
#[derive(Clone)]
pub struct Geometry {
    names: &'static ArgumentNames,
    element: ElementType,
    layers: Dim,
    cache_batch: usize,
    samples: Samples,
    capacity: usize,
    row_elements: usize,
    cache: Buffer,
    /// The strides of the cache in ascending order. They prove G2 and decide whether another cache overlaps
    /// this one.
    overlap: SortedStrides,
    update: Buffer,
    write: Mapping,
    present: Present,
}

impl Geometry {
    /// Returns the element type.
    #[must_use]
    #[inline]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the number of slots of a sample of the cache (`max_sequence_length`). In a paged cache it is
    /// `block_size`.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of samples of the cache. In a paged cache it is `num_blocks`.
    #[must_use]
    #[inline]
    pub fn cache_batch(&self) -> usize {
        self.cache_batch
    }

    /// Returns the number of layers of the cache. It is 1 if the operator has no layers.
    #[must_use]
    #[inline]
    pub fn layers(&self) -> usize {
        self.layers.size
    }

    /// Returns the required length of the cache's buffer in bytes.
    ///
    /// The buffer of a dense cache contains exactly its elements. The buffer of a strided cache must reach to
    /// its last element. Returns `None` for strings, which have no width.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.cache.bytes)
    }

    /// Returns the required length of the update's buffer in bytes, or `None` for strings.
    #[must_use]
    pub fn update_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.update.bytes)
    }

    /// Returns the length in bytes of the functional form's result, or `None` for strings.
    ///
    /// The result is a dense tensor with the shape of the cache.
    #[must_use]
    pub fn present_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.present.buffer.bytes)
    }

    /// Returns the offset of element `[0, 0, …]` in the cache's buffer, in elements.
    ///
    /// This is the offset that was set with [`Layout::with_offset`], or 0 if the cache has no elements. The
    /// offsets of a [`Block`] count from the start of the buffer.
    #[must_use]
    pub fn cache_offset(&self) -> usize {
        self.cache.offset
    }

    /// Returns the offset of element `[0, 0, …]` in the update's buffer, in elements.
    #[must_use]
    pub fn update_offset(&self) -> usize {
        self.update.offset
    }

    /// Returns the specification's names of the arguments.
    #[inline]
    pub(crate) fn names(&self) -> &'static ArgumentNames {
        self.names
    }

    /// Returns how the update is divided into samples.
    #[inline]
    pub(crate) fn samples(&self) -> Samples {
        self.samples
    }

    /// Returns `true` if the call gives the slot of each token, as for a paged cache. Rows then move in any
    /// order.
    #[inline]
    pub(crate) fn has_slots_of_tokens(&self) -> bool {
        matches!(self.samples, Samples::Tokens { .. })
    }

    /// Returns the number of rows that a sample usually has. The kernels are chosen for this number.
    pub(crate) fn usual_rows(&self) -> usize {
        match self.samples {
            Samples::Padded { rows, .. } => rows,
            // With at most one token per sample, each sample adds its next token.
            Samples::Packed { tokens } | Samples::Tokens { tokens } if tokens <= self.cache_batch => 1,
            Samples::Packed { tokens } | Samples::Tokens { tokens } => tokens.min(self.capacity),
        }
    }

    /// Returns the number of elements in one row, over all outer and inner dimensions.
    #[inline]
    pub(crate) fn row_elements(&self) -> usize {
        self.row_elements
    }

    pub(crate) fn sample_elements(&self) -> usize {
        // G1: a sample is part of the tensor, so the product does not wrap.
        self.row_elements.wrapping_mul(self.capacity)
    }

    /// Returns `true` if every run of every mapping begins and ends at an even element, so that the two 4-bit
    /// elements of a byte always move together.
    pub(crate) fn is_even(&self) -> bool {
        let Self { cache, update, layers, present, write, .. } = self;
        let offsets = [cache.offset, update.offset];
        let layer_strides = [layers.stride, present.layer_stride];
        let mappings = [write, &present.from_update, &present.from_past];
        offsets.iter().all(|offset| offset % 2 == 0)
            && layer_strides.iter().all(|stride| stride % 2 == 0)
            && mappings.iter().all(|mapping| mapping.is_even())
    }

    /// Returns `true` if the cache is dense and takes its whole buffer.
    pub(crate) fn is_cache_dense(&self) -> bool {
        self.cache.exact
    }

    /// Returns `true` if two caches of this geometry share a bit if one buffer begins `bytes` after the other.
    pub(crate) fn caches_overlap_at(&self, bytes: isize) -> bool {
        self.overlap.overlaps_at(bytes, self.element.size_bits())
    }

    /// Returns the distance from one layer of the cache to the next, in elements.
    pub(crate) fn layer_stride(&self) -> isize {
        self.layers.stride
    }

    /// Returns the distance from one layer of the present to the next, in elements.
    pub(crate) fn present_layer_stride(&self) -> isize {
        self.present.layer_stride
    }

    /// Returns the required length of a present's buffer.
    #[inline]
    pub(crate) fn present_len(&self, unit: LengthUnit) -> usize {
        self.present.buffer.len_in(unit)
    }

    /// Returns the mapping from the update to the cache, for a write in place.
    #[inline]
    pub(crate) fn write_mapping(&self) -> &Mapping {
        &self.write
    }

    /// Returns the mapping from the past or the update to the present, for the functional form.
    #[inline]
    pub(crate) fn present_mapping(&self, source: Source) -> &Mapping {
        match source {
            Source::Past => &self.present.from_past,
            Source::Update => &self.present.from_update,
        }
    }

    /// Checks the lengths of the buffers of a cache and an update. An error names the pair.
    #[inline]
    pub(crate) fn check_buffers(
        &self,
        pair: usize,
        [cache, update]: [usize; 2],
        unit: LengthUnit,
    ) -> Result<(), Error> {
        self.cache.check(self.names.cache, pair, cache, unit)?;
        self.update.check(self.names.update, pair, update, unit)
    }

    /// Checks that the functional form is possible, and the length of its result.
    #[inline]
    pub(crate) fn check_present(&self, len: usize, unit: LengthUnit) -> Result<(), Error> {
        if self.has_slots_of_tokens() {
            // The functional form visits the slots of a sample in order, but tokens come in any order.
            return Err(Error::InPlaceOnly { argument: self.names.present });
        }
        self.present.buffer.check(self.names.present, 0, len, unit)
    }

    /// Returns the offsets of sample 0 of a layer in the cache and of sample 0 in the update.
    #[inline]
    pub(crate) fn write_offsets(&self, layer: usize) -> Offsets {
        Offsets { dst: layer_offset(self.cache.offset, self.layers.stride, layer), src: self.update.offset }
    }

    /// Returns the offsets of sample 0 of a layer in the present and in the source that it is copied from.
    #[inline]
    pub(crate) fn present_offsets(&self, layer: usize, source: Source) -> Offsets {
        let src = match source {
            Source::Past => layer_offset(self.cache.offset, self.layers.stride, layer),
            Source::Update => self.update.offset,
        };
        Offsets { dst: layer_offset(0, self.present.layer_stride, layer), src }
    }

    /// Checks the shapes. This is the only constructor, and only `Prepared::new` calls it.
    ///
    /// # Errors
    /// Returns an [`Error`] if one of these conditions fails:
    ///
    /// * The update fits the cache.
    /// * The positions of the cache do not overlap (G2).
    /// * Every layout merges into at most three loops.
    /// * Every size fits (G1).
    pub(crate) fn new(operands: &Operands<'_>) -> Result<Self, Error> {
        let Operands { names, element, cache, update, layers, batch, rows, outer, inner } = operands;
        let overlap = SortedStrides::new(cache, names.cache)?;
        let capacity = rows.cache.size;
        let (samples, sample_stride, max_rows) = match batch.update {
            UpdateBatch::Padded(Dim { size, stride }) => {
                let argument = names.update;
                if rows.update.size > capacity {
                    return Err(Error::UpdateLongerThanCache { argument, rows: rows.update.size, capacity });
                }
                if size > batch.cache.size {
                    return Err(Error::BatchTooLarge { argument, cache: batch.cache.size, update: size });
                }
                (Samples::Padded { batch: size, rows: rows.update.size }, stride, rows.update.size)
            }
            UpdateBatch::Packed => {
                (Samples::Packed { tokens: rows.update.size }, 0, rows.update.size.min(capacity))
            }
            UpdateBatch::Tokens => {
                (Samples::Tokens { tokens: rows.update.size }, 0, rows.update.size.min(capacity))
            }
        };
        let (layer_stride, present_dims) =
            operands.present().ok_or(Error::TooLarge { argument: names.present })?;
        let cache_dims = TensorDims::new(
            batch.cache.stride,
            rows.cache,
            outer.iter().map(|pair| pair.cache),
            inner.iter().map(|pair| pair.cache),
        );
        let update_dims = TensorDims::new(
            sample_stride,
            rows.update,
            outer.iter().map(|pair| pair.update),
            inner.iter().map(|pair| pair.update),
        );
        let mapping = |max_rows, dst: &TensorDims, src: &TensorDims| {
            Mapping::new(&TensorDims::pair(dst, src, max_rows))
        };
        Ok(Self {
            names,
            element: *element,
            layers: *layers,
            cache_batch: batch.cache.size,
            samples,
            capacity,
            // G1: this is a factor of the product of the cache's dimensions, so it does not wrap.
            row_elements: outer.iter().chain(inner).fold(1, |n: usize, pair| n.wrapping_mul(pair.cache.size)),
            overlap,
            write: mapping(max_rows, &cache_dims, &update_dims)?,
            present: Present {
                buffer: Buffer::new(0, cache.elements, true, *element, names.present)?,
                layer_stride,
                from_update: mapping(max_rows, &present_dims, &update_dims)?,
                from_past: mapping(capacity, &present_dims, &cache_dims)?,
            },
            cache: Buffer::new(cache.offset, cache.len, cache.exact, *element, names.cache)?,
            update: Buffer::new(update.offset, update.len, update.exact, *element, names.update)?,
        })
    }
}

/// Prints the sizes, without the mappings and strides.
impl fmt::Debug for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { element, layers, cache_batch, samples, capacity, row_elements, .. } = self;
        f.debug_struct("Geometry")
            .field("element", element)
            .field("layers", &layers.size)
            .field("cache_batch", cache_batch)
            .field("samples", samples)
            .field("capacity", capacity)
            .field("row_elements", row_elements)
            .finish_non_exhaustive()
    }
}

/// Returns the offset of a layer. P1: the layer exists, and `View` proves every partial sum.
fn layer_offset(offset: usize, stride: isize, layer: usize) -> usize {
    offset.wrapping_add_signed(stride.wrapping_mul(layer.cast_signed()))
}

/// The division of an update into samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    /// Every sample has the same number of rows.
    Padded { batch: usize, rows: usize },
    /// The samples follow each other, and each call gives the number of rows of each.
    Packed { tokens: usize },
    /// Each call gives the slot of each token. The samples of the cache are blocks of slots.
    Tokens { tokens: usize },
}

/// The buffer and the mappings of the functional form.
///
/// The result is a dense buffer with the cache's shape. It contains the update and the rest of the past.
#[derive(Clone, Debug)]
struct Present {
    buffer: Buffer,
    layer_stride: isize,
    from_update: Mapping,
    from_past: Mapping,
}
