//! The interface for a backend that reads its index lists on a device: the geometry as loops, the facts it needs to
//! apply the rules, and the error that a plan would return for a value that it refuses.

use alloc::vec::Vec;

use crate::error::Error;
use crate::geometry::{Loop, Mapping, Offsets, Samples, Source};
pub use crate::plan::{ListCounts, RowLimits};
use crate::prepared::Prepared;
use crate::write::{self, RawBuffer};

/// What moves from one tensor to another, as strided loops around one contiguous run, all in elements.
///
/// Element `e` of the run at row `r` of sample `s` of layer `l` goes from `src_offset + l·layers.src_stride +
/// s·samples.src_stride + r·rows.src_stride + … + e` to the same sum for the destination. `…` stands for a step of each loop
/// in `others`. On either side a row is
/// one of that side: the slot of a cache is a row of it. By G1 and `Layout` every sum of indices below the counts lies
/// inside the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loops {
    /// Where the first element lies in the destination's buffer.
    pub dst_offset: usize,
    /// Where the first element lies in the source's buffer.
    pub src_offset: usize,
    /// Layers of the cache. An update has none: its step is 0.
    pub layers: Loop,
    /// Samples of the source. A packed update has none: its step is 0, and the count is the cache's.
    pub samples: Loop,
    /// Rows of one sample of the source, or all tokens of a packed update.
    pub rows: Loop,
    /// Every other dimension, outermost first; those of one element are left out.
    pub others: Vec<Loop>,
    /// Elements that lie together on both sides; 0 if there are none to move.
    pub run: usize,
}

/// A value of a call's lists, with what [`DeviceInterface::error_for`] needs to judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListValue {
    /// The layer.
    Layer {
        /// Its number.
        value: i64,
    },
    /// A sample's position.
    Position {
        /// Which sample.
        sample: usize,
        /// Its position.
        value: i64,
        /// Rows that the sample brings.
        rows: usize,
        /// Rows of them that are to be written.
        length: usize,
    },
    /// The rows to be written of a sample.
    Length {
        /// Which sample.
        sample: usize,
        /// Its length.
        value: i64,
        /// Rows that the sample brings.
        rows: usize,
    },
    /// The rows that a sample brings, in a list of such numbers ([`Convention::EndsAndRowCounts`](crate::Convention::EndsAndRowCounts)).
    RowCount {
        /// Which sample.
        sample: usize,
        /// Its rows.
        value: i64,
    },
    /// Two neighbours in a list of cumulative lengths ([`Convention::StartsAndCumulativeLengths`](crate::Convention::StartsAndCumulativeLengths)).
    CumulativeLengths {
        /// Which sample they are for: the place of the first.
        sample: usize,
        /// The first.
        previous: i64,
        /// The second.
        value: i64,
    },
    /// The rows that all samples of a packed update bring.
    Sum {
        /// Their number.
        value: i64,
    },
}

/// A prepared write as a device backend needs it: [`Prepared::device_interface`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceInterface<'a> {
    prepared: &'a Prepared,
}

impl Prepared {
    /// Returns the interface for a backend that reads its index lists on a device.
    #[must_use]
    pub fn device_interface(&self) -> DeviceInterface<'_> {
        DeviceInterface { prepared: self }
    }
}

impl DeviceInterface<'_> {
    /// Returns how many rows each sample may bring.
    #[must_use]
    pub fn row_limits(self) -> RowLimits {
        self.prepared.rules().row_limits()
    }

    /// Compares the lengths of the lists with each other and with the cache, as [`Prepared::plan`] does: one value per
    /// sample, no more samples than the cache has, and one layer if the operator has layers. Returns the number of samples.
    ///
    /// # Errors
    /// [`Error::ListLength`], [`Error::BatchTooLarge`].
    pub fn check_counts(self, lists: ListCounts) -> Result<usize, Error> {
        self.prepared.rules().check_counts(lists)
    }

    /// Returns the error that [`Prepared::plan`] returns for such a value; `None` if the value fits. A position is judged
    /// for `length <= rows <= capacity`, which the checks of the two lengths establish.
    #[must_use]
    pub fn error_for(self, value: ListValue) -> Option<Error> {
        let rules = self.prepared.rules();
        match value {
            ListValue::Layer { value } => rules.check_layer(value).err(),
            ListValue::Position { sample, value, rows, length } => {
                rules.slot_of_position(sample, value, rows, length).err()
            }
            ListValue::Length { sample, value, rows } => rules.check_length(sample, value, rows).err(),
            ListValue::RowCount { sample, value } => rules.check_row_count(sample, value).err(),
            ListValue::CumulativeLengths { sample, previous, value } => {
                let order = rules.check_cumulative(sample, previous, value);
                order.and_then(|()| rules.rows_between(sample, previous, value).map(drop)).err()
            }
            ListValue::Sum { value } => rules.check_total(value).err(),
        }
    }

    /// Returns the loops from the update into the cache.
    #[must_use]
    pub fn write_loops(self) -> Loops {
        let geometry = self.prepared.geometry();
        self.update_loops(geometry.write_mapping(), geometry.cache_offset(), geometry.layer_stride())
    }

    /// Returns the loops from the update into the present of the functional form: a dense tensor of the cache's shape.
    #[must_use]
    pub fn present_from_update_loops(self) -> Loops {
        let geometry = self.prepared.geometry();
        self.update_loops(geometry.present_mapping(Source::Update), 0, geometry.present_layer_stride())
    }

    /// Returns the loops from the past into the present. The past's samples, rows and layers are the cache's.
    #[must_use]
    pub fn present_from_past_loops(self) -> Loops {
        let geometry = self.prepared.geometry();
        let layers = Loop {
            count: geometry.layers(),
            dst_stride: geometry.present_layer_stride(),
            src_stride: geometry.layer_stride(),
        };
        let first = Offsets { dst: 0, src: geometry.cache_offset() };
        let mapping = geometry.present_mapping(Source::Past);
        Loops::new(mapping, first, layers, geometry.cache_batch(), geometry.capacity())
    }

    /// Checks pairs of a cache and its update for a write in place, by addresses and lengths alone: the memory is not
    /// touched, so it may lie on a device. Strided caches may interleave, as long as no two positions share memory.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::NullBuffer`], [`Error::AddressSpace`]; [`Error::Overlap`] if a cache shares a byte
    /// with an update, or a bit with another cache; [`Error::ElementWidth`] for strings.
    pub fn check_pairs(
        self,
        pairs: impl IntoIterator<Item = (RawBuffer, RawBuffer), IntoIter: Clone>,
    ) -> Result<(), Error> {
        write::check_pairs(self.prepared.geometry(), self.prepared.cpu(), pairs.into_iter())
    }

    /// The same for the functional form.
    ///
    /// # Errors
    /// As [`check_pairs`](Self::check_pairs); [`Error::Overlap`] if the present shares a byte with the past or the update.
    pub fn check_present(self, past: RawBuffer, update: RawBuffer, present: RawBuffer) -> Result<(), Error> {
        write::check_present(self.prepared.geometry(), self.prepared.cpu(), past, update, present)
    }

    fn update_loops(self, mapping: &Mapping, dst: usize, layer_stride: isize) -> Loops {
        let geometry = self.prepared.geometry();
        let (samples, rows) = match geometry.samples() {
            Samples::Padded { batch, rows } => (batch, rows),
            Samples::Packed { tokens } => (geometry.cache_batch(), tokens),
        };
        let layers = Loop { count: geometry.layers(), dst_stride: layer_stride, src_stride: 0 };
        Loops::new(mapping, Offsets { dst, src: geometry.update_offset() }, layers, samples, rows)
    }
}

impl Loops {
    fn new(mapping: &Mapping, first: Offsets, layers: Loop, samples: usize, rows: usize) -> Self {
        let (sample, row) = (mapping.sample_strides(), mapping.row_strides());
        let (others, run) = mapping.other_loops();
        Self {
            dst_offset: first.dst,
            src_offset: first.src,
            layers,
            samples: Loop { count: samples, dst_stride: sample.dst, src_stride: sample.src },
            rows: Loop { count: rows, dst_stride: row.dst, src_stride: row.src },
            others,
            run,
        }
    }
}

#[cfg(test)]
mod tests;
