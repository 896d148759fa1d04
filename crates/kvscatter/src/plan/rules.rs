//! The rules for the lists of one call: how many values a list has, and which values fit.
//!
//! Plans use these rules, and so do backends that read the values themselves, so each rule is written once.

use super::policy::{Mode, NegativeIndex, OutOfRange};
use crate::argument::Argument;
use crate::error::Error;
use crate::geometry::{Geometry, Samples};

/// What the lists of a call mean, by their specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// ONNX and TensorRT. The positions are the first slot written, for each sample of a padded update.
    Starts,
    /// TensorRT with a packed update. The positions are the first slot written for each sample.
    /// `updateLengths` are cumulative lengths that begin with 0, one more than there are samples.
    #[doc(alias = "cu_seqlens")]
    StartsAndCumulativeLengths,
    /// Ascend. `tokenOffset` is the length after the write and `seqLen` the number of new rows, one of each
    /// for every sample of the cache. `layerId` is the layer.
    EndsAndRowCounts,
    /// Paged caches. The positions are slots, one for each token of the update: `block * block_size + offset`.
    #[doc(alias = "slot_mapping")]
    Slots,
}

/// The number of values in each list of a call, or `None` if a list is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListCounts {
    /// The number of positions.
    pub positions: Option<usize>,
    /// The number of row counts or cumulative lengths.
    pub row_counts: Option<usize>,
    /// The number of `lengths`, which limit the rows that are written.
    pub lengths: Option<usize>,
    /// The number of layers that the call names: 0 if the operator has no layers, and 1 otherwise.
    pub layers: usize,
}

/// The number of rows that a sample may have. For a padded update, both limits are the rows of the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLimits {
    /// The smallest number of rows.
    ///
    /// If every sample must have at least one row, but the update or the cache has none, the minimum exceeds
    /// `max` and no number fits.
    pub min: usize,
    /// The largest number of rows.
    pub max: usize,
}

/// The rules that a specification and its options define for indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleOptions {
    pub(crate) mode: Mode,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) negative_index: NegativeIndex,
    /// Whether absent positions mean zero.
    pub(crate) optional_positions: bool,
    pub(crate) convention: Convention,
    /// The smallest number of rows that a list may give to a sample.
    pub(crate) min_rows: usize,
    /// Whether a call names a layer.
    pub(crate) has_layers: bool,
    /// Whether a token with a negative slot of a paged cache is skipped. Otherwise it is an error.
    pub(crate) skip_negative: bool,
}

impl RuleOptions {
    /// Returns the options of a specification without rings and layers, in which a negative position never
    /// fits.
    pub(crate) const fn linear(convention: Convention, out_of_range: OutOfRange) -> Self {
        Self {
            mode: Mode::Linear,
            out_of_range,
            negative_index: NegativeIndex::Reject,
            optional_positions: false,
            convention,
            min_rows: 0,
            has_layers: false,
            skip_negative: false,
        }
    }
}

/// The rules that an operator defines for the indices of each call, and the geometry that they apply to.
#[derive(Clone, Debug)]
pub(crate) struct CallRules {
    pub(crate) geometry: Geometry,
    pub(crate) options: RuleOptions,
    /// The samples and rows of the update if a call needs only a list of positions, as in decoding.
    pub(super) padded: Option<Padded>,
}

/// The number of samples of a padded update, and the number of rows of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padded {
    pub(super) batch: usize,
    pub(super) rows: usize,
}

impl CallRules {
    pub(crate) fn new(geometry: Geometry, options: RuleOptions) -> Self {
        let padded = match geometry.samples() {
            Samples::Padded { batch, rows } if options.convention == Convention::Starts => {
                Some(Padded { batch, rows })
            }
            _ => None,
        };
        Self { geometry, options, padded }
    }

    #[inline(always)]
    pub(crate) fn row_limits(&self) -> RowLimits {
        let (min, max) = match self.geometry.samples() {
            Samples::Padded { rows, .. } => (rows, rows),
            Samples::Packed { .. } | Samples::Tokens { .. } => (0, self.geometry.capacity()),
        };
        RowLimits { min: min.max(self.options.min_rows), max }
    }

    /// Checks the lengths of the lists, and returns the number of samples.
    ///
    /// Each list must have one value per sample, and cumulative lengths one more. The call must have no more
    /// samples than the cache, and one layer if the operator has layers.
    pub(crate) fn check_counts(&self, lists: ListCounts) -> Result<usize, Error> {
        let Self { geometry, options: RuleOptions { convention, .. }, .. } = self;
        let names = geometry.names();
        let ListCounts { positions, row_counts, lengths, layers } = lists;
        self.check_layer_count(layers)?;
        let expected = match (convention, geometry.samples()) {
            (Convention::Starts, Samples::Padded { batch, .. }) => batch,
            (Convention::Slots, Samples::Tokens { tokens }) => tokens,
            (Convention::Starts | Convention::Slots, _) => 0,
            (Convention::EndsAndRowCounts, _) => geometry.cache_batch(),
            (Convention::StartsAndCumulativeLengths, _) => {
                // A list with one value per sample contains plain lengths instead of cumulative ones, so it
                // is rejected.
                let cumulative = row_counts.filter(|&count| positions != Some(count));
                cumulative.and_then(|count| count.checked_sub(1)).ok_or(Error::ListLength {
                    argument: names.row_counts,
                    got: row_counts.unwrap_or(0),
                    expected: positions.unwrap_or(0).saturating_add(1),
                })?
            }
        };
        if positions.is_none() && !self.options.optional_positions {
            return Err(Error::ListLength { argument: names.positions, got: 0, expected });
        }
        check_count(names.positions, positions, expected)?;
        // Only the lists of a packed update can have more samples than the cache. Many tokens can go to one block.
        let cache = geometry.cache_batch();
        if expected > cache && *convention != Convention::Slots {
            return Err(Error::BatchTooLarge { argument: names.positions, cache, update: expected });
        }
        match convention {
            Convention::Starts => check_count(names.row_counts, row_counts, 0)?,
            Convention::Slots => {
                check_count(names.row_counts, row_counts, 0)?;
                check_count(Argument::Lengths, lengths, 0)?;
                return Ok(expected);
            }
            Convention::EndsAndRowCounts => check_count(names.row_counts, row_counts.or(Some(0)), expected)?,
            Convention::StartsAndCumulativeLengths => {}
        }
        check_count(Argument::Lengths, lengths, expected)?;
        Ok(expected)
    }

    /// Checks that the call names one layer if the operator has layers, and none otherwise.
    fn check_layer_count(&self, got: usize) -> Result<(), Error> {
        let expected = usize::from(self.options.has_layers);
        if got == expected {
            Ok(())
        } else {
            Err(Error::ListLength { argument: self.geometry.names().layer, got, expected })
        }
    }

    pub(crate) fn check_layer(&self, value: i64) -> Result<usize, Error> {
        let layers = self.geometry.layers();
        let layer = usize::try_from(value).ok().filter(|&layer| layer < layers);
        layer.ok_or(Error::LayerOutOfRange { argument: self.geometry.names().layer, value, layers })
    }

    /// Checks a value of a list of row counts, and returns the number of rows of the sample.
    #[inline(always)]
    pub(crate) fn check_row_count(&self, sample: usize, value: i64) -> Result<usize, Error> {
        let RowLimits { min, max } = self.row_limits();
        within(self.geometry.names().row_counts, sample, value, min, max)
    }

    /// Returns the number of rows of a sample, from two neighbours in a list of cumulative lengths that
    /// [`check_cumulative`](Self::check_cumulative) has accepted.
    pub(crate) fn rows_between(&self, sample: usize, previous: i64, value: i64) -> Result<usize, Error> {
        let (argument, capacity) = (self.geometry.names().row_counts, self.geometry.capacity());
        let rows = value.wrapping_sub(previous); // In a plan, `check_cumulative` has checked that both are at least 0.
        let fits = usize::try_from(rows).ok().filter(|&rows| rows <= capacity);
        fits.ok_or(Error::CumulativeLength { argument, index: sample, rows, capacity })
    }

    /// Checks that cumulative lengths begin with 0 and do not decrease.
    pub(crate) fn check_cumulative(&self, sample: usize, previous: i64, value: i64) -> Result<(), Error> {
        let argument = self.geometry.names().row_counts;
        if sample == 0 && previous != 0 {
            return Err(Error::CumulativeStart { argument, value: previous });
        }
        if value < previous {
            let index = sample.saturating_add(1);
            return Err(Error::CumulativeOrder { argument, index, value, previous });
        }
        Ok(())
    }

    /// Returns how many of the `rows` rows of a sample are written.
    pub(crate) fn check_length(&self, sample: usize, value: i64, rows: usize) -> Result<usize, Error> {
        within(Argument::Lengths, sample, value, 0, rows)
    }

    /// Checks that the samples together have the same number of rows as a packed update has tokens.
    pub(crate) fn check_total(&self, got: i64) -> Result<(), Error> {
        match self.geometry.samples() {
            Samples::Packed { tokens } if i64::try_from(tokens) != Ok(got) => {
                Err(Error::TokenSum { argument: self.geometry.names().row_counts, got, tokens })
            }
            _ => Ok(()),
        }
    }

    /// Returns the first slot written for a position of a sample that has `rows` rows, of which `length` are
    /// written.
    #[inline(always)]
    pub(crate) fn slot_of_position(
        &self,
        sample: usize,
        position: i64,
        rows: usize,
        length: usize,
    ) -> Result<usize, Error> {
        match self.options.convention {
            Convention::EndsAndRowCounts => self.slot_from_end(sample, position, rows, length),
            Convention::Slots => self.slot_of_token(sample, position),
            Convention::Starts | Convention::StartsAndCumulativeLengths => {
                self.slot_from_start(sample, position, length)
            }
        }
    }

    /// Returns the slot of a token of a paged cache, counted over all blocks.
    #[inline(always)]
    fn slot_of_token(&self, token: usize, slot: i64) -> Result<usize, Error> {
        // G1: this is the number of slots of one tensor.
        let slots = self.geometry.cache_batch().wrapping_mul(self.geometry.capacity());
        usize::try_from(slot).ok().filter(|&slot| slot < slots).ok_or_else(|| {
            let argument = self.geometry.names().positions;
            if slot < 0 {
                Error::NegativeStart { argument, index: token, value: slot }
            } else {
                Error::SlotOutOfRange { argument, index: token, value: slot, slots }
            }
        })
    }

    #[inline]
    fn slot_from_start(&self, sample: usize, start: i64, rows: usize) -> Result<usize, Error> {
        let rule = self.slot_rule(rows);
        rule.slot_of_start(start).ok_or_else(|| {
            let (argument, capacity) = (self.geometry.names().positions, rule.capacity);
            if start < 0 {
                Error::NegativeStart { argument, index: sample, value: start }
            } else {
                Error::StartOutOfRange { argument, index: sample, value: start, rows, capacity }
            }
        })
    }

    #[inline(always)]
    fn slot_from_end(&self, sample: usize, end: i64, rows: usize, length: usize) -> Result<usize, Error> {
        let (argument, rule) = (self.geometry.names().positions, self.slot_rule(length));
        let start = i64::try_from(rows).ok().and_then(|rows| end.checked_sub(rows));
        // In a plan, `rows_of` has checked that `length <= rows <= capacity`. A backend passes its own
        // numbers to `DeviceInterface::error_for`. If they are larger, the result is wrong, but nothing else
        // depends on it.
        let slot = start.and_then(|start| rule.linear_slot(start));
        // No operation wraps, because `length <= rows` and because `rows` and the capacity fit `isize`.
        let max = rule.capacity.wrapping_add(rows.wrapping_sub(length));
        slot.ok_or(Error::EndOutOfRange { argument, index: sample, value: end, min: rows, max })
    }

    #[inline(always)]
    pub(super) fn slot_rule(&self, rows: usize) -> SlotRule {
        let RuleOptions { mode, negative_index, .. } = self.options;
        SlotRule { mode, negative_index, rows, capacity: self.geometry.capacity() }
    }
}

/// The rule that converts a start to a slot.
///
/// It also refuses starts, and a negative start is taken modulo the capacity. For all other starts,
/// [`Visibility::slot_of`](crate::visibility::Visibility::slot_of) is the same rule. A test compares both.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRule {
    mode: Mode,
    negative_index: NegativeIndex,
    rows: usize,
    capacity: usize,
}

impl SlotRule {
    /// Returns the first slot written for a start. Returns `None` if the start is out of range, or if it is
    /// negative and the policy rejects negative starts.
    #[inline(always)]
    pub(super) fn slot_of_start(self, start: i64) -> Option<usize> {
        match self.mode {
            Mode::Linear => self.linear_slot(start),
            Mode::Circular => match usize::try_from(start) {
                Ok(slot) if slot < self.capacity => Some(slot),
                Err(_) if start < 0 && self.negative_index == NegativeIndex::Reject => None,
                _ => Some(self.reduce(start)),
            },
        }
    }

    #[inline(always)]
    fn linear_slot(self, start: i64) -> Option<usize> {
        // `rows <= capacity`, so this checks `start + rows <= capacity` without overflow.
        usize::try_from(start).ok().filter(|&slot| slot <= self.capacity.wrapping_sub(self.rows))
    }

    /// Reduces the start before anything is added to it, so no start overflows. A ring without slots has only
    /// slot 0.
    #[cold]
    fn reduce(self, start: i64) -> usize {
        let slots = i64::try_from(self.capacity).unwrap_or(i64::MAX);
        usize::try_from(start.checked_rem_euclid(slots).unwrap_or(0)).unwrap_or(0)
    }
}

/// Checks that a list has `expected` values, if it is present.
pub(crate) fn check_count(argument: Argument, got: Option<usize>, expected: usize) -> Result<(), Error> {
    match got {
        Some(got) if got != expected => Err(Error::ListLength { argument, got, expected }),
        _ => Ok(()),
    }
}

/// Checks that a length lies in `min..=max`, and returns it.
pub(crate) fn within(
    argument: Argument,
    index: usize,
    value: i64,
    min: usize,
    max: usize,
) -> Result<usize, Error> {
    let length = usize::try_from(value).ok().filter(|length| (min..=max).contains(length));
    length.ok_or(Error::LengthOutOfRange { argument, index, value, min, max })
}
