//! Geometry: everything about the shapes of a write, checked once.
//!
//! An axis, a rank and a specification do not exist here. [`Operands`] says what each dimension is for, and
//! [`Geometry`] is the proof that the shapes fit. [`Mapping`] turns rows into blocks.

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
pub(crate) use self::operands::{ByTensor, Operands};
use self::overlap::SortedStrides;
use crate::argument::ArgumentNames;
use crate::element::ElementType;
use crate::error::{Error, LengthUnit};

/// The shapes of one write: batch × outer × capacity × row, with strides for both sides.
///
/// Only a specification's `prepare` makes one. It is the proof of these facts:
///
/// * **G1** every product of sizes, in elements and in bytes, fits `isize`;
/// * **G2** no two positions of the cache share a bit;
/// * a padded update is no longer than the cache, in rows and in samples, and every other dimension agrees.
///   (A plan checks how many rows each sample of a packed update has.)
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
    /// The cache's strides in ascending order: they prove G2, and decide whether another cache overlaps this one.
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

    /// Returns the slots of the cache: max_sequence_length.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the samples of the cache.
    #[must_use]
    #[inline]
    pub fn cache_batch(&self) -> usize {
        self.cache_batch
    }

    /// Returns the layers of the cache; 1 where the operator has none.
    #[must_use]
    #[inline]
    pub fn layers(&self) -> usize {
        self.layers.size
    }

    /// Returns the bytes that a buffer of the cache must have: all of a dense one, up to the last element of a strided one.
    /// `None` for strings, which have no width.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.cache.bytes)
    }

    /// Returns the bytes that a buffer of the update must have.
    #[must_use]
    pub fn update_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.update.bytes)
    }

    /// Returns the bytes that a buffer of the functional form's result must have: a dense tensor of the cache's shape.
    #[must_use]
    pub fn present_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.present.buffer.bytes)
    }

    /// Returns the elements in the cache's buffer before element `[0, 0, …]`: its [`Layout::with_offset`]. A [`Block`] counts from the
    /// start of the buffer. 0 if the cache has no elements.
    #[must_use]
    pub fn cache_offset(&self) -> usize {
        self.cache.offset
    }

    /// Returns the elements in the update's buffer before element `[0, 0, …]`.
    #[must_use]
    pub fn update_offset(&self) -> usize {
        self.update.offset
    }

    /// What the specification calls its arguments.
    #[inline]
    pub(crate) fn names(&self) -> &'static ArgumentNames {
        self.names
    }

    /// How the update holds its samples.
    #[inline]
    pub(crate) fn samples(&self) -> Samples {
        self.samples
    }

    /// The rows that a sample usually brings: kernels are chosen for them.
    pub(crate) fn usual_rows(&self) -> usize {
        match self.samples {
            Samples::Padded { rows, .. } => rows,
            // As many tokens as samples at most: each brings its next one.
            Samples::Packed { tokens } if tokens <= self.cache_batch => 1,
            Samples::Packed { tokens } => tokens.min(self.capacity),
        }
    }

    /// Elements of one row: over all outer and inner dimensions.
    #[inline]
    pub(crate) fn row_elements(&self) -> usize {
        self.row_elements
    }

    /// Elements of one sample of the cache.
    pub(crate) fn sample_elements(&self) -> usize {
        // G1: a part of the tensor.
        self.row_elements.wrapping_mul(self.capacity)
    }

    /// Whether every run of every mapping begins and ends at an even element, so that no 4-bit element moves without
    /// the one that it shares a byte with.
    pub(crate) fn is_even(&self) -> bool {
        let Self { cache, update, layers, present, write, .. } = self;
        let offsets = [cache.offset, update.offset];
        let layer_strides = [layers.stride, present.layer_stride];
        let mappings = [write, &present.from_update, &present.from_past];
        offsets.iter().all(|offset| offset % 2 == 0)
            && layer_strides.iter().all(|stride| stride % 2 == 0)
            && mappings.iter().all(|mapping| mapping.is_even())
    }

    /// Whether the cache is dense and takes all of its buffer.
    pub(crate) fn is_cache_dense(&self) -> bool {
        self.cache.exact
    }

    /// Whether two caches of this geometry share a bit if one buffer begins `bytes` after the other.
    pub(crate) fn caches_overlap_at(&self, bytes: isize) -> bool {
        self.overlap.overlaps_at(bytes, self.element.size_bits())
    }

    /// How far one layer of the cache lies from the next, in elements.
    pub(crate) fn layer_stride(&self) -> isize {
        self.layers.stride
    }

    /// The same for the present.
    pub(crate) fn present_layer_stride(&self) -> isize {
        self.present.layer_stride
    }

    /// The length of a present's buffer.
    #[inline]
    pub(crate) fn present_len(&self, unit: LengthUnit) -> usize {
        self.present.buffer.len_in(unit)
    }

    /// Cache from update: the write in place.
    #[inline]
    pub(crate) fn write_mapping(&self) -> &Mapping {
        &self.write
    }

    /// Present from past or from update: the functional form.
    #[inline]
    pub(crate) fn present_mapping(&self, source: Source) -> &Mapping {
        match source {
            Source::Past => &self.present.from_past,
            Source::Update => &self.present.from_update,
        }
    }

    /// Compares the lengths of a cache and an update with what the tensors need. An error names the pair.
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

    /// Compares the length of a present with what the functional form writes.
    #[inline]
    pub(crate) fn check_present(&self, len: usize, unit: LengthUnit) -> Result<(), Error> {
        self.present.buffer.check(self.names.present, 0, len, unit)
    }

    /// Where sample 0 of a layer begins in the cache, and where sample 0 begins in the update.
    #[inline]
    pub(crate) fn write_offsets(&self, layer: usize) -> Offsets {
        Offsets { dst: layer_offset(self.cache.offset, self.layers.stride, layer), src: self.update.offset }
    }

    /// Where sample 0 of a layer begins in the present and in what it is copied from.
    #[inline]
    pub(crate) fn present_offsets(&self, layer: usize, source: Source) -> Offsets {
        let src = match source {
            Source::Past => layer_offset(self.cache.offset, self.layers.stride, layer),
            Source::Update => self.update.offset,
        };
        Offsets { dst: layer_offset(0, self.present.layer_stride, layer), src }
    }

    /// The one constructor: `Prepared::new` calls it.
    ///
    /// # Errors
    /// [`Error`] if the update does not fit the cache, the cache's positions overlap (G2), a layout does not
    /// merge, or a size does not fit (G1).
    pub(crate) fn new(operands: &Operands<'_>) -> Result<Self, Error> {
        let Operands { names, element, cache, update, layers, batch, rows, outer, inner } = operands;
        let overlap = SortedStrides::new(cache, names.cache)?;
        let capacity = rows.cache.size;
        let (samples, sample_stride, max_rows) = match batch.update {
            Some(Dim { size, stride }) => {
                let argument = names.update;
                if rows.update.size > capacity {
                    return Err(Error::UpdateLongerThanCache { argument, rows: rows.update.size, capacity });
                }
                if size > batch.cache.size {
                    return Err(Error::BatchTooLarge { argument, cache: batch.cache.size, update: size });
                }
                (Samples::Padded { batch: size, rows: rows.update.size }, stride, rows.update.size)
            }
            None => (Samples::Packed { tokens: rows.update.size }, 0, rows.update.size.min(capacity)),
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
            // G1: a factor of the cache's own product.
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

/// The sizes; mappings and strides are left out.
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

/// Where a layer begins. P1: the layer exists, and `View` proves every partial sum.
fn layer_offset(offset: usize, stride: isize, layer: usize) -> usize {
    offset.wrapping_add_signed(stride.wrapping_mul(layer.cast_signed()))
}

/// How the update holds its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    /// The same number of rows for each.
    Padded { batch: usize, rows: usize },
    /// One after the other. Each call brings the number of rows of each.
    Packed { tokens: usize },
}

/// The functional form: a dense buffer of the cache's shape, with the update and the rest of the past in it.
#[derive(Clone, Debug)]
struct Present {
    buffer: Buffer,
    layer_stride: isize,
    from_update: Mapping,
    from_past: Mapping,
}
