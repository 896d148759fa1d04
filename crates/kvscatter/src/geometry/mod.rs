//! Geometry: everything about the shapes of a write, checked once.
//!
//! An axis, a rank and a specification do not exist here. [`Sides`] says what each dimension is for, and
//! [`Geometry`] is the proof that the shapes fit. [`Mapping`] turns rows into blocks.

mod blocks;
mod layout;
mod mapping;
mod overlap;

use alloc::{vec, vec::Vec};
use core::fmt;

pub use self::blocks::{Block, Loop};
pub(crate) use self::blocks::{Rows, SampleRows, Source};
pub use self::layout::Layout;
pub(crate) use self::layout::{Dim, View};
pub(crate) use self::mapping::Mapping;
use self::mapping::{Dimensions, Step};
use self::overlap::SortedStrides;
use crate::argument::{Argument, Names};
use crate::element::ElementType;
use crate::error::Error;
use crate::size;

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
    pub(crate) element: ElementType,
    pub(crate) layers: Dim,
    pub(crate) cache_batch: usize,
    pub(crate) samples: Samples,
    pub(crate) capacity: usize,
    /// Elements that move with one row of one sample, over all outer dimensions.
    pub(crate) row_elements: usize,
    pub(crate) cache: Buffer,
    /// The cache's strides in ascending order: they prove G2, and decide whether another cache overlaps this one.
    pub(crate) overlap: SortedStrides,
    pub(crate) update: Buffer,
    /// Cache from update: the write in place.
    pub(crate) write: Mapping,
    /// Present from update and present from past: the functional form.
    pub(crate) present: Present,
}

impl Geometry {
    /// Returns the element type.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the rows of the cache along the sequence: max_sequence_length.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the samples of the cache.
    #[must_use]
    pub fn cache_batch(&self) -> usize {
        self.cache_batch
    }

    /// Returns the layers of the cache; 1 where the operator has none.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.size
    }

    /// Returns the bytes that a buffer of the cache must have: all of a dense one, up to the last element of a strided one.
    /// `None` for strings, as everywhere here.
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

    /// Returns the elements in the cache's buffer before element `[0, 0, …]`: its [`Layout::offset`]. A [`Block`] counts from the
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

    /// Compares the lengths of a cache and an update with what the tensors need, in `unit`. An error names the pair.
    #[inline]
    pub(crate) fn check_buffers(
        &self,
        names: &Names,
        pair: usize,
        [cache, update]: [usize; 2],
        unit: impl Fn(&Buffer) -> usize,
    ) -> Result<(), Error> {
        self.cache.check(names.cache, pair, cache, unit(&self.cache))?;
        self.update.check(names.update, pair, update, unit(&self.update))
    }

    /// Compares the length of a present with what the functional form fills, in `unit`.
    pub(crate) fn check_present(
        &self,
        names: &Names,
        len: usize,
        unit: impl Fn(&Buffer) -> usize,
    ) -> Result<(), Error> {
        self.present.buffer.check(names.present, 0, len, unit(&self.present.buffer))
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

    /// Whether every run of every mapping begins and ends at an even element, so that no 4-bit element moves without the
    /// one that it shares a byte with.
    pub(crate) fn is_even(&self) -> bool {
        let Self { cache, update, layers, present, .. } = self;
        let offsets = [cache.offset, update.offset];
        let layer_strides = [layers.stride, present.layer_stride];
        let mappings = [&self.write, &present.from_update, &present.from_past];
        offsets.iter().all(|offset| offset % 2 == 0)
            && layer_strides.iter().all(|stride| stride % 2 == 0)
            && mappings.iter().all(|mapping| mapping.is_even())
    }

    /// Where sample 0 of a layer begins in the cache, and where sample 0 begins in the update.
    pub(crate) fn write_starts(&self, layer: usize) -> (usize, usize) {
        (layer_start(self.cache.offset, self.layers.stride, layer), self.update.offset)
    }

    /// Where sample 0 of a layer begins in the present and in what it is copied from.
    pub(crate) fn present_starts(&self, layer: usize, source: Source) -> (usize, usize) {
        let src = match source {
            Source::Past => layer_start(self.cache.offset, self.layers.stride, layer),
            Source::Update => self.update.offset,
        };
        (layer_start(0, self.present.layer_stride, layer), src)
    }

    /// The one constructor: `Prepared::new` calls it.
    ///
    /// # Errors
    /// [`Error`] if the update does not fit the cache, the cache's positions overlap (G2), a layout does not
    /// merge, or a size does not fit (G1).
    pub(crate) fn new(sides: &Sides<'_>) -> Result<Self, Error> {
        let Sides { names, element, cache, update, layers, batch, rows, outer, inner } = sides;
        let overlap = SortedStrides::new(cache, names.cache)?;
        let capacity = rows.cache.size;
        let (samples, sample_step, max_rows) = match batch.update {
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
        let (layer_stride, present) = sides.present().ok_or(Error::TooLarge { argument: names.present })?;
        let past = Side::new(
            batch.cache.stride,
            rows.cache,
            outer.iter().map(|pair| pair.cache),
            inner.iter().map(|pair| pair.cache),
        );
        let new = Side::new(
            sample_step,
            rows.update,
            outer.iter().map(|pair| pair.update),
            inner.iter().map(|pair| pair.update),
        );
        let mapping = |max_rows, dst: &Side, src: &Side| Mapping::new(&Side::pair(dst, src, max_rows));
        Ok(Self {
            element: *element,
            layers: *layers,
            cache_batch: batch.cache.size,
            samples,
            capacity,
            // G1: a factor of the cache's own product.
            row_elements: outer.iter().chain(inner).fold(1, |n: usize, pair| n.wrapping_mul(pair.cache.size)),
            overlap,
            write: mapping(max_rows, &past, &new)?,
            present: Present {
                buffer: Buffer::new(0, cache.elements, true, *element, names.present)?,
                layer_stride,
                from_update: mapping(max_rows, &present, &new)?,
                from_past: mapping(capacity, &present, &past)?,
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
fn layer_start(offset: usize, stride: isize, layer: usize) -> usize {
    offset.wrapping_add_signed(stride.wrapping_mul(layer.cast_signed()))
}

/// Two checked tensors with a role for each dimension, as a specification's front assigns them.
#[derive(Debug)]
pub(crate) struct Sides<'a> {
    pub(crate) names: &'static Names,
    pub(crate) element: ElementType,
    pub(crate) cache: &'a View,
    pub(crate) update: &'a View,
    pub(crate) layers: Dim,
    /// A packed update has no batch dimension.
    pub(crate) batch: Pair<Dim, Option<Dim>>,
    pub(crate) rows: Pair,
    /// Sizes agree.
    pub(crate) outer: Vec<Pair>,
    /// Sizes agree.
    pub(crate) inner: Vec<Pair>,
}

/// A dimension of the cache and the one of the update with the same role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<C = Dim, U = C> {
    pub(crate) cache: C,
    pub(crate) update: U,
}

/// How the update holds its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    /// The same number of rows for each.
    Padded { batch: usize, rows: usize },
    /// One after the other. Each call brings the number of rows of each.
    Packed { tokens: usize },
}

/// The length that a tensor's buffer must have, and where the tensor begins in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// In elements.
    pub(crate) offset: usize,
    /// Elements the buffer must hold: no fewer, and no more either if `exact`.
    pub(crate) len: usize,
    /// The same in bytes; for strings, in strings.
    pub(crate) bytes: usize,
    pub(crate) exact: bool,
}

impl Buffer {
    fn new(
        offset: usize,
        len: usize,
        exact: bool,
        element: ElementType,
        argument: Argument,
    ) -> Result<Self, Error> {
        let bytes = size::bytes(len, element.size_bits()).ok_or(Error::TooLarge { argument })?;
        Ok(Self { offset, len, bytes, exact })
    }

    /// Compares a length with what the tensor needs, in the unit of `expected`. An error names the argument and the pair.
    #[inline]
    fn check(&self, argument: Argument, buffer: usize, got: usize, expected: usize) -> Result<(), Error> {
        let fits = if self.exact { got == expected } else { got >= expected };
        if fits { Ok(()) } else { Err(Error::BufferLength { argument, buffer, got, expected }) }
    }
}

/// The functional form: a dense buffer of the cache's shape, filled from the update and from the rest of the past.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) buffer: Buffer,
    pub(crate) layer_stride: isize,
    pub(crate) from_update: Mapping,
    pub(crate) from_past: Mapping,
}

impl Present {
    pub(crate) fn mapping(&self, source: Source) -> &Mapping {
        match source {
            Source::Past => &self.from_past,
            Source::Update => &self.from_update,
        }
    }
}

/// One side of a mapping.
#[derive(Debug)]
struct Side {
    sample: isize,
    outer: Vec<Dim>,
    row: Dim,
    inner: Vec<Dim>,
}

impl Side {
    fn new(
        sample: isize,
        row: Dim,
        outer: impl Iterator<Item = Dim>,
        inner: impl Iterator<Item = Dim>,
    ) -> Self {
        Self { sample, outer: outer.collect(), row, inner: inner.collect() }
    }

    fn pair(dst: &Self, src: &Self, max_rows: usize) -> Dimensions {
        let pair = |dst: &[Dim], src: &[Dim]| -> Vec<Loop> {
            let pairs = dst.iter().zip(src);
            pairs.map(|(dst, src)| Loop { count: dst.size, dst: dst.stride, src: src.stride }).collect()
        };
        Dimensions {
            sample: Step { dst: dst.sample, src: src.sample },
            rows: Loop { count: max_rows, dst: dst.row.stride, src: src.row.stride },
            outer: pair(&dst.outer, &src.outer),
            inner: pair(&dst.inner, &src.inner),
        }
    }
}

impl Sides<'_> {
    /// The layer stride and the side of a dense tensor of the cache's shape.
    fn present(&self) -> Option<(isize, Side)> {
        let Self { layers, batch, rows, outer, inner, .. } = self;
        let sizes = |pairs: &[Pair]| pairs.iter().map(|pair| pair.cache.size).collect::<Vec<_>>();
        let shape =
            [vec![layers.size, batch.cache.size], sizes(outer), vec![rows.cache.size], sizes(inner)].concat();
        let mut dims = layout::dense(&shape)?.into_iter();
        let (layer, sample) = (dims.next()?, dims.next()?);
        let outer: Vec<Dim> = dims.by_ref().take(outer.len()).collect();
        let row = dims.next()?;
        Some((layer.stride, Side { sample: sample.stride, outer, row, inner: dims.collect() }))
    }
}
