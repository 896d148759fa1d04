//! The interface for a backend that reads its index lists on a device. It gives the backend:
//!
//! * the geometry as loops
//! * the facts that the backend needs to apply the rules
//! * the error that a plan would return for a value that is not accepted
//!
//! The [crate documentation](crate#guarantees) defines G1.

use alloc::vec::Vec;

use crate::error::Error;
use crate::geometry::{Loop, Mapping, Offsets, Samples, Source};
pub use crate::plan::{ListCounts, RowLimits};
use crate::prepared::Prepared;
use crate::write::{self, RawBuffer};

/// The elements that move from one tensor to another, as strided loops around one contiguous run. All numbers
/// count elements.
///
/// Element `e` of the run at row `r` of sample `s` of layer `l` has the source offset
/// `src_offset + l·layers.src_stride + s·samples.src_stride + r·rows.src_stride + … + e`. The `…` stands for
/// one step of each loop in `others`. The destination offset is the same sum with the strides of the
/// destination. `r` is a row of the side that it indexes, so in a cache it is a slot.
///
/// By G1 and the checks of `Layout`, every sum of indices below the counts lies inside the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loops {
    /// The offset of the first element in the destination's buffer.
    pub dst_offset: usize,
    /// The offset of the first element in the source's buffer.
    pub src_offset: usize,
    /// The loop over the layers of the cache. An update has no layers, so its stride is 0.
    pub layers: Loop,
    /// The loop over the samples of the source. A packed update has no stride between samples, so its stride
    /// is 0, and the count is that of the cache.
    pub samples: Loop,
    /// The loop over the rows of one sample of the source, or over all tokens of a packed update.
    pub rows: Loop,
    /// The loops over all other dimensions, outermost first. Dimensions of one element are omitted.
    pub others: Vec<Loop>,
    /// The number of elements that are contiguous on both sides. It is 0 if no elements move.
    pub run: usize,
}

/// A value of a call's lists, with the facts that [`DeviceInterface::error_for`] needs to check it.
///
/// `value` is the value of a `sample`, as the specification counts it. The sample brings `rows` rows, of
/// which `length` are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the comments of the enum and of each variant describe the fields")]
pub enum ListValue {
    /// The number of a layer, counted from 0.
    Layer { value: i64 },
    /// The position of a sample.
    Position { sample: usize, value: i64, rows: usize, length: usize },
    /// The number of rows of a sample that are written.
    Length { sample: usize, value: i64, rows: usize },
    /// The number of rows that a sample brings, from a list of such numbers
    /// ([`Convention::EndsAndRowCounts`](crate::Convention::EndsAndRowCounts)).
    RowCount { sample: usize, value: i64 },
    /// Two neighbours in a list of cumulative lengths, `previous` and `value`. `sample` is the index of the
    /// first in the list
    /// ([`Convention::StartsAndCumulativeLengths`](crate::Convention::StartsAndCumulativeLengths)).
    CumulativeLengths { sample: usize, previous: i64, value: i64 },
    /// The number of rows that all samples of a packed update bring together.
    Sum { value: i64 },
}

/// A prepared write as a device backend needs it. [`Prepared::device_interface`] returns it.
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
    /// Returns the limits of the number of rows that a sample may bring.
    #[must_use]
    pub fn row_limits(self) -> RowLimits {
        self.prepared.rules().row_limits()
    }

    /// Checks the lengths of the lists against each other and against the cache, as [`Prepared::plan`] does.
    /// Returns the number of samples.
    ///
    /// The lists must have one value per sample and no more samples than the cache has. Cumulative lengths have
    /// one value more. If the operator has
    /// layers, there must be one layer.
    ///
    /// # Errors
    /// * Returns [`Error::ListLength`] if a list has the wrong number of values.
    /// * Returns [`Error::BatchTooLarge`] if there are more samples than the cache has.
    pub fn check_counts(self, lists: ListCounts) -> Result<usize, Error> {
        self.prepared.rules().check_counts(lists)
    }

    /// Returns the error that [`Prepared::plan`] returns for this value, or `None` if the value is accepted.
    ///
    /// A position is checked under the assumption `length <= rows <= capacity`. Check the two lengths first
    /// to establish it.
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

    /// Returns the loops from the update into the present of the functional form. The present is a dense
    /// tensor of the cache's shape.
    #[must_use]
    pub fn present_from_update_loops(self) -> Loops {
        let geometry = self.prepared.geometry();
        self.update_loops(geometry.present_mapping(Source::Update), 0, geometry.present_layer_stride())
    }

    /// Returns the loops from the past into the present. The samples, rows and layers of the past are those
    /// of the cache.
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

    /// Checks pairs of a cache and its update for a write in place.
    ///
    /// The check uses addresses and lengths alone. It does not access the memory, so the memory may be on a
    /// device. Strided caches may interleave if no two positions share memory.
    ///
    /// # Errors
    /// * Returns [`Error::BufferLength`] if a buffer has the wrong length.
    /// * Returns [`Error::NullBuffer`] if a buffer is null and its length is not 0.
    /// * Returns [`Error::AddressSpace`] if a buffer reaches past the end of the address space.
    /// * Returns [`Error::Overlap`] if a cache shares a byte with an update, or a bit with another cache.
    /// * Returns [`Error::ElementWidth`] if the elements are strings.
    pub fn check_pairs(
        self,
        pairs: impl IntoIterator<Item = (RawBuffer, RawBuffer), IntoIter: Clone>,
    ) -> Result<(), Error> {
        write::check_pairs(self.prepared.geometry(), self.prepared.cpu(), pairs.into_iter())
    }

    /// Checks the buffers of the functional form, also by addresses and lengths alone.
    ///
    /// # Errors
    /// Returns the errors of [`check_pairs`](Self::check_pairs). [`Error::Overlap`] here means that the
    /// present shares a byte with the past or the update.
    pub fn check_present(self, past: RawBuffer, update: RawBuffer, present: RawBuffer) -> Result<(), Error> {
        write::check_present(self.prepared.geometry(), self.prepared.cpu(), past, update, present)
    }

    fn update_loops(self, mapping: &Mapping, dst: usize, layer_stride: isize) -> Loops {
        let geometry = self.prepared.geometry();
        let (samples, rows) = match geometry.samples() {
            Samples::Padded { batch, rows } => (batch, rows),
            Samples::Packed { tokens } | Samples::Tokens { tokens } => (geometry.cache_batch(), tokens),
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
