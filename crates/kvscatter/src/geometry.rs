//! Everything about shapes, checked once.

use alloc::{vec, vec::Vec};

use crate::apart::Steps;
use crate::argument::Words;
use crate::cpu::{Cpu, Isa, Shapes};
use crate::layout::{self, Dim, View};
use crate::lists::Lists;
use crate::mapping::{Dimensions, Loop, Mapping, Step};
use crate::plan::Source;
use crate::{Argument, ElementType, Error, Mode, NegativeIndex, OutOfRange, size};

/// The shapes of one write: batch × outer × capacity × row, with strides for both sides.
///
/// A specification's `prepare` makes it, and nothing else can; after that it is the proof of these facts:
///
/// * **G1** every product of sizes, in elements and in bytes, fits `isize`;
/// * **G2** no two positions of the cache share a bit;
/// * a padded update is no longer than the cache, in rows and in samples, and every other dimension agrees.
///   (How many rows each sample of a packed update has, its plan checks.)
#[derive(Clone, Debug)]
pub struct Geometry {
    pub(crate) words: &'static Words,
    element: ElementType,
    pub(crate) rules: Rules,
    pub(crate) layers: Dim,
    pub(crate) cache_batch: usize,
    pub(crate) samples: Samples,
    capacity: usize,
    /// Elements that move with one row of one sample, over all outer dimensions.
    pub(crate) row_elements: usize,
    pub(crate) cache: Buffer,
    /// G2, and where another cache may begin.
    pub(crate) steps: Steps,
    pub(crate) update: Buffer,
    /// Cache from update: the write in place.
    pub(crate) write: Mapping,
    /// Present from update and present from past: the functional form.
    pub(crate) present: Present,
    pub(crate) cpu: Cpu,
}

impl Geometry {
    /// The element type.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Rows of the cache along the sequence: max_sequence_length.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Samples of the cache.
    #[must_use]
    pub fn cache_batch(&self) -> usize {
        self.cache_batch
    }

    /// Layers of the cache; 1 where the operator knows none.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.size
    }

    /// The instruction set of the kernels that execute its plans.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.cpu.isa
    }

    /// Holds the lengths of the buffers of a write in place against what the tensors need, both in `unit`.
    /// `buffer` is the place an error names.
    #[inline]
    pub(crate) fn check_buffers(
        &self,
        buffer: usize,
        cache: usize,
        update: usize,
        unit: impl Fn(&Buffer) -> usize,
    ) -> Result<(), Error> {
        self.cache.check(self.words.cache, buffer, cache, unit(&self.cache))?;
        self.update.check(self.words.update, buffer, update, unit(&self.update))
    }

    /// Bytes that a buffer of the cache must have: all of a dense one, up to the last element of a strided one.
    /// `None` for strings, as everywhere here.
    #[must_use]
    pub fn cache_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.cache.bytes)
    }

    /// Bytes that a buffer of the update must have.
    #[must_use]
    pub fn update_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.update.bytes)
    }

    /// Bytes that a buffer of the functional form's result must have: a dense tensor of the cache's shape.
    #[must_use]
    pub fn present_bytes(&self) -> Option<usize> {
        self.element.bits().map(|_| self.present.buffer.bytes)
    }

    /// Elements in the cache's buffer before element `[0, 0, …]`: its [`Layout::offset`](crate::Layout::offset), as a
    /// [`Block`](crate::Block) counts from the start of the buffer; 0 where there are no elements.
    #[must_use]
    pub fn cache_offset(&self) -> usize {
        self.cache.offset
    }

    /// The same for the update.
    #[must_use]
    pub fn update_offset(&self) -> usize {
        self.update.offset
    }

    /// Holds the length of a present against what the functional form fills.
    pub(crate) fn check_present(&self, got: usize, unit: impl Fn(&Buffer) -> usize) -> Result<(), Error> {
        let buffer = &self.present.buffer;
        buffer.check(self.words.present, 0, got, unit(buffer))
    }

    /// The one constructor: every front ends here.
    ///
    /// # Errors
    /// [`Error`] if the update does not fit the cache, the cache's positions overlap (G2), a layout does not
    /// merge, or a size does not fit (G1).
    pub(crate) fn new(sides: &Normalised<'_>) -> Result<Self, Error> {
        let Normalised { words, element, rules, cache, update, layers, batch, rows, outer, inner } = sides;
        let steps = Steps::of(cache)?;
        let capacity = rows.0.size;
        let (samples, sample_step, most_rows) = match batch.1 {
            Some(Dim { size, stride }) => {
                if rows.1.size > capacity {
                    return Err(Error::UpdateLongerThanCache { rows: rows.1.size, capacity });
                }
                if size > batch.0.size {
                    return Err(Error::BatchTooLarge { cache: batch.0.size, update: size });
                }
                (Samples::Padded { batch: size, rows: rows.1.size }, stride, rows.1.size)
            }
            None => (Samples::Packed { tokens: rows.1.size }, 0, rows.1.size.min(capacity)),
        };
        let present = dense_sides(sides).ok_or(Error::TooLarge { argument: words.present })?;
        let mapping =
            |most_rows: usize, dst: &Side, src: &Side| Mapping::new(&Side::pair(dst, src, most_rows));
        let past = Side::new(
            batch.0.stride,
            rows.0,
            outer.iter().map(|pair| pair.0),
            inner.iter().map(|pair| pair.0),
        );
        let new =
            Side::new(sample_step, rows.1, outer.iter().map(|pair| pair.1), inner.iter().map(|pair| pair.1));
        // G1: a factor of the cache's own product.
        let row_elements = outer.iter().chain(inner).fold(1, |n: usize, pair| n.wrapping_mul(pair.0.size));
        let write = mapping(most_rows, &past, &new)?;
        let present = Present {
            buffer: Buffer::new(0, cache.elements, true, *element, words.present)?,
            layer_stride: present.0,
            from_update: mapping(most_rows, &present.1, &new)?,
            from_past: mapping(capacity, &present.1, &past)?,
        };
        let usual_rows = match samples {
            // As many tokens as samples at most: each brings its next one.
            Samples::Packed { tokens } if tokens <= batch.0.size => 1,
            _ => most_rows,
        };
        let begins = [cache.offset, update.offset, layers.stride.unsigned_abs()];
        let shapes = Shapes {
            write: &write,
            present: &present,
            rows: usual_rows,
            row_elements,
            capacity,
            even: begins.iter().all(|begin| begin.is_multiple_of(2)),
        };
        let cpu = Cpu::new(*element, &shapes);
        Ok(Self {
            words,
            element: *element,
            rules: *rules,
            layers: *layers,
            cache_batch: batch.0.size,
            samples,
            capacity,
            row_elements,
            cache: Buffer::new(cache.offset, cache.len, cache.exact, *element, words.cache)?,
            steps,
            update: Buffer::new(update.offset, update.len, update.exact, *element, words.update)?,
            write,
            present,
            cpu,
        })
    }
}

/// What a front hands over: its own checks are done, and every dimension has found its role. Pairs are cache
/// first, update second.
#[derive(Debug)]
pub(crate) struct Normalised<'a> {
    pub(crate) words: &'static Words,
    pub(crate) element: ElementType,
    pub(crate) rules: Rules,
    pub(crate) cache: &'a View,
    pub(crate) update: &'a View,
    pub(crate) layers: Dim,
    /// A packed update has no batch dimension.
    pub(crate) batch: (Dim, Option<Dim>),
    pub(crate) rows: (Dim, Dim),
    /// Sizes agree.
    pub(crate) outer: Vec<(Dim, Dim)>,
    /// Sizes agree.
    pub(crate) inner: Vec<(Dim, Dim)>,
}

impl<'a> Normalised<'a> {
    /// Two tensors of one rank that differ in the batch and in the sequence, the dimension at `axis`, alone.
    ///
    /// # Errors
    /// [`Error::RankMismatch`]; [`Error::DimensionMismatch`] at the first other dimension that differs.
    pub(crate) fn padded(
        words: &'static Words,
        element: ElementType,
        rules: Rules,
        cache: &'a View,
        update: &'a View,
        axis: usize,
    ) -> Result<Self, Error> {
        let mismatch = Error::RankMismatch { cache: cache.dims.len(), update: update.dims.len() };
        if cache.dims.len() != update.dims.len() {
            return Err(mismatch);
        }
        let (old, new) = Roles::of(&cache.dims, axis).zip(Roles::of(&update.dims, axis)).ok_or(mismatch)?;
        Ok(Self {
            words,
            element,
            rules,
            cache,
            update,
            layers: Dim::ONE,
            batch: (old.sample, Some(new.sample)),
            rows: (old.rows, new.rows),
            outer: agree(words.update, 1, old.outer, new.outer)?,
            inner: agree(words.update, axis.saturating_add(1), old.inner, new.inner)?,
        })
    }
}

/// The dimensions of a tensor by what they are for, the sequence being the one at `axis`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roles<'a> {
    pub(crate) sample: Dim,
    pub(crate) outer: &'a [Dim],
    pub(crate) rows: Dim,
    pub(crate) inner: &'a [Dim],
}

impl<'a> Roles<'a> {
    /// `None` if `axis` is 0 or not a dimension.
    pub(crate) fn of(dims: &'a [Dim], axis: usize) -> Option<Self> {
        let ([sample, outer @ ..], [rows, inner @ ..]) = dims.split_at_checked(axis)? else {
            return None;
        };
        Some(Self { sample: *sample, outer, rows: *rows, inner })
    }
}

/// The rules a plan's indices are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) mode: Mode,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) negative_index: NegativeIndex,
    /// Whether absent starts mean zero.
    pub(crate) optional_starts: bool,
    pub(crate) lists: Lists,
}

impl Rules {
    /// Those of a specification that knows no ring: a negative position never fits.
    pub(crate) fn linear(lists: Lists, out_of_range: OutOfRange) -> Self {
        let negative_index = NegativeIndex::Reject;
        Self { mode: Mode::Linear, out_of_range, negative_index, optional_starts: false, lists }
    }
}

/// How the update holds its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    /// The same number of rows for each.
    Padded { batch: usize, rows: usize },
    /// One after the other; the call says how many rows each has.
    Packed { tokens: usize },
}

/// What a backend checks of a buffer, and where its tensor begins in it.
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

    /// Holds a length, in the unit of `want`, against what the tensor needs.
    #[inline]
    pub(crate) fn check(
        &self,
        argument: Argument,
        buffer: usize,
        got: usize,
        want: usize,
    ) -> Result<(), Error> {
        let fits = if self.exact { got == want } else { got >= want };
        if fits { Ok(()) } else { Err(Error::BufferLength { argument, buffer, got, want }) }
    }
}

/// The functional form: a dense buffer of the cache's shape, filled from the past around the update.
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

    fn pair(dst: &Self, src: &Self, most_rows: usize) -> Dimensions {
        let pair = |dst: &[Dim], src: &[Dim]| -> Vec<Loop> {
            let pairs = dst.iter().zip(src);
            pairs.map(|(dst, src)| Loop { count: dst.size, dst: dst.stride, src: src.stride }).collect()
        };
        Dimensions {
            sample: Step { dst: dst.sample, src: src.sample },
            rows: Loop { count: most_rows, dst: dst.row.stride, src: src.row.stride },
            outer: pair(&dst.outer, &src.outer),
            inner: pair(&dst.inner, &src.inner),
        }
    }
}

/// The layer stride and the side of a dense tensor of the cache's shape.
fn dense_sides(sides: &Normalised<'_>) -> Option<(isize, Side)> {
    let Normalised { layers, batch, rows, outer, inner, .. } = sides;
    let sizes = |pairs: &[(Dim, Dim)]| pairs.iter().map(|pair| pair.0.size).collect::<Vec<_>>();
    let shape = [vec![layers.size, batch.0.size], sizes(outer), vec![rows.0.size], sizes(inner)].concat();
    let mut dims = layout::dense(&shape)?.into_iter();
    let (layer, sample) = (dims.next()?, dims.next()?);
    let outer: Vec<Dim> = dims.by_ref().take(outer.len()).collect();
    let row = dims.next()?;
    Some((layer.stride, Side { sample: sample.stride, outer, row, inner: dims.collect() }))
}

/// The dimensions of cache and update that must agree, paired.
///
/// # Errors
/// [`Error::DimensionMismatch`] at the first that does not; `first` is the place of the first pair in the
/// update's shape.
pub(crate) fn agree(
    argument: Argument,
    first: usize,
    cache: &[Dim],
    update: &[Dim],
) -> Result<Vec<(Dim, Dim)>, Error> {
    let pairs = cache.iter().copied().zip(update.iter().copied());
    for (dimension, (expected, got)) in (first..).zip(pairs.clone()) {
        if expected.size != got.size {
            return Err(Error::DimensionMismatch {
                argument,
                dimension,
                expected: expected.size,
                got: got.size,
            });
        }
    }
    Ok(pairs.collect())
}
