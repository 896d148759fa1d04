//! The rows that one call moves from the update into the cache.
//!
//! The crate documentation defines G1, P1 and P2.

use super::indices::{Call, Integers, Lengths, Positions};
use super::policy::OutOfRange;
use super::rules::{CallRules, Convention, ListCounts, Padded};
use super::slots::{Duplicate, SlotRuns};
use crate::argument::Argument;
use crate::error::{Error, LengthUnit};
use crate::geometry::{Geometry, RowRange, SampleRows, Samples, Source};

/// The rows that one call moves. All of its indices have been checked:
///
/// * **P1**: Every row lies inside the cache and inside the update.
/// * **P2**: No two rows have the same place in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moves<'a> {
    indices: CallIndices<'a>,
    checked: Checked,
}

/// The lists of one call, and the rules of the operator that they are for.
#[derive(Clone, Copy, Debug)]
struct CallIndices<'a> {
    rules: &'a CallRules,
    call: Call<'a>,
}

/// The result of the check of all indices.
#[derive(Clone, Copy, Debug)]
struct Checked {
    /// The number of rows written, over all samples.
    rows: usize,
    skipped: usize,
    /// Whether the call consists only of positions, all in range. If so, the update is padded and every
    /// sample writes all of its rows.
    positions_only: bool,
}

/// A run of slots of one sample that receives consecutive rows of its update.
///
/// A sample has one segment, or two if a ring wraps. The second segment then begins at slot 0.
///
/// In a paged cache, the samples are the blocks, and a block has any number of segments in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Segment {
    /// The index of the sample. In a paged cache, the block.
    pub sample: usize,
    /// The first slot written, counted within the sample.
    pub slot: usize,
    /// The row of the sample's update that is written to this slot. In a paged cache, the token.
    pub row: usize,
    /// The number of rows.
    pub rows: usize,
    is_wrapped: bool,
}

impl Segment {
    /// Returns `true` if the segment follows the end of a ring. Otherwise it begins with the first row of its
    /// sample, or of a token of a paged cache.
    #[must_use]
    pub const fn is_wrapped(&self) -> bool {
        self.is_wrapped
    }
}

impl<'a> Moves<'a> {
    /// Checks every index:
    ///
    /// 1. There is one layer if the operator has layers, and this layer exists.
    /// 2. There is one start and one length per sample, and there are no more samples than in the cache.
    /// 3. The samples together have the same number of rows as the update, and each sample fits the cache.
    /// 4. `lengths[i]` is at least 0 and at most the number of rows of sample `i`.
    /// 5. In linear mode, `0 <= start` and `start + length <= capacity`. In circular mode, every start fits,
    ///    except that [`NegativeIndex::Reject`](super::NegativeIndex::Reject) rejects negative starts. Under
    ///    [`OutOfRange::SkipSample`], a sample that breaks this condition is counted and left out.
    /// 6. In a paged cache, there is one slot per token instead, every slot exists, and no two tokens have the
    ///    same slot (P2). If negative slots are skipped, their tokens are counted and left out.
    #[inline(always)]
    pub(crate) fn new(rules: &'a CallRules, call: Call<'a>) -> Result<Self, Error> {
        let indices = CallIndices { rules, call };
        let checked = match indices.check_positions_only() {
            Some(rows) => Checked { rows, skipped: 0, positions_only: true },
            None => indices.check_each()?,
        };
        Ok(Self { indices, checked })
    }

    #[inline(always)]
    pub(crate) fn geometry(&self) -> &'a Geometry {
        &self.indices.rules.geometry
    }

    #[inline]
    pub(crate) fn layer(&self) -> usize {
        usize::try_from(self.indices.call.layer).unwrap_or(0) // `new` has checked that it fits
    }

    pub(crate) fn skipped(&self) -> usize {
        self.checked.skipped
    }

    #[inline]
    pub(crate) fn elements(&self) -> usize {
        // G1: these elements are a part of the update.
        self.checked.rows.wrapping_mul(self.geometry().row_elements())
    }

    /// Returns the number of samples of the update.
    #[inline]
    pub(crate) fn batch(&self) -> usize {
        self.indices.batch()
    }

    /// Returns the position of a sample as the caller passed it.
    pub(crate) fn position(&self, sample: usize) -> Option<i64> {
        let positions = self.indices.call.positions.integers();
        let position = || positions.map_or(Some(0), |positions| positions.get(sample));
        if sample < self.batch() { position() } else { None }
    }

    /// Returns `true` if a sample is skipped.
    pub(crate) fn skips(&self, sample: usize) -> bool {
        let slot = |(rows, length)| self.indices.first_slot(sample, rows, length);
        sample < self.batch() && self.indices.rows_of(sample).and_then(slot).is_err()
    }

    /// Returns the lists that are read again during the write, with their names.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (Argument, Integers<'a>)> + use<'a> {
        let names = self.geometry().names();
        let lists = [
            (names.positions, self.indices.call.positions.integers()),
            (names.row_counts, self.indices.call.row_counts.map(Integers::I32)),
            (Argument::Lengths, self.indices.call.lengths.integers()),
        ];
        lists.into_iter().filter_map(|(argument, values)| Some((argument, values?)))
    }

    /// Visits the rows that move from the update into the cache.
    #[inline(always)]
    pub(crate) fn for_each_row_range(&self, visit: impl FnMut(RowRange)) {
        if self.geometry().has_slots_of_tokens() {
            self.for_each_row_range_of::<true>(visit);
        } else {
            self.for_each_row_range_of::<false>(visit);
        }
    }

    /// Visits the rows that move into a paged cache if `PAGED` is true, or into another cache if it is false.
    /// The caller has compared it with the geometry. The walk of one kind then takes no registers from the walk
    /// of the other.
    #[inline(always)]
    pub(crate) fn for_each_row_range_of<const PAGED: bool>(&self, mut visit: impl FnMut(RowRange)) {
        if PAGED {
            let block_size = self.geometry().capacity();
            for run in self.slot_runs() {
                run.row_ranges(block_size).for_each(&mut visit);
            }
            return;
        }
        match self.indices.call.positions {
            Positions::Each(Integers::I64(values)) if self.checked.positions_only => {
                self.position_targets(values.iter().copied())
                    .for_each(|target| target.for_each_row_range(&mut visit));
            }
            Positions::Each(Integers::I32(values)) if self.checked.positions_only => {
                let values = values.iter().map(|&value| value.into());
                self.position_targets(values).for_each(|target| target.for_each_row_range(&mut visit));
            }
            _ => {
                let mut packed_row = 0;
                for sample in 0..self.visited() {
                    if let Some(target) = self.target(sample, &mut packed_row) {
                        target.for_each_row_range(&mut visit);
                    }
                }
            }
        }
    }

    /// Returns the ranges of rows that move.
    pub(crate) fn row_ranges(&self) -> impl Iterator<Item = RowRange> + use<'a> {
        self.targets().flat_map(Target::row_ranges).chain(self.slot_ranges())
    }

    /// Returns the same ranges as segments of the samples.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let segment = |RowRange { sample, dst_row, src_row, count }, first_row| {
            let row = src_row.wrapping_sub(first_row); // the target's rows begin with `first_row`
            Segment { sample, slot: dst_row, row, rows: count, is_wrapped: row > 0 }
        };
        let of_samples = self
            .targets()
            .flat_map(move |target| target.row_ranges().map(move |rows| segment(rows, target.first_row)));
        let of_tokens = self.slot_ranges().map(move |rows| Segment { is_wrapped: false, ..segment(rows, 0) });
        of_samples.chain(of_tokens)
    }

    /// Visits every sample of every layer of the cache, for the functional form.
    #[inline(always)]
    pub(crate) fn for_each_sample(&self, mut visit: impl FnMut(SampleRows)) {
        let geometry = self.geometry();
        if geometry.present_len(LengthUnit::Elements) == 0 {
            return;
        }
        let (capacity, cache_batch) = (geometry.capacity(), geometry.cache_batch());
        for layer in 0..geometry.layers() {
            let written = if layer == self.layer() { self.visited() } else { 0 };
            let mut packed_row = 0;
            for sample in 0..cache_batch {
                let target = match self.checked.positions_only {
                    _ if sample >= written => None,
                    true => self.position_target(sample),
                    false => self.target(sample, &mut packed_row),
                };
                visit(SampleRows { layer, sample, pieces: Target::pieces(target, sample, capacity) });
            }
        }
    }

    /// Returns the target of one sample of a call that consists only of positions.
    #[inline(always)]
    fn position_target(&self, sample: usize) -> Option<Target> {
        let position = self.indices.call.positions.integers()?.get(sample)?;
        self.position_targets(core::iter::once(position)).next().map(|target| Target { sample, ..target })
    }

    /// Returns the target of each sample of a call that consists only of positions. `positions` are all of
    /// them, in order.
    #[inline(always)]
    fn position_targets(&self, positions: impl Iterator<Item = i64>) -> impl Iterator<Item = Target> {
        let length = self.indices.padded_rows();
        let rule = self.indices.rules.slot_rule(length);
        let capacity = self.geometry().capacity();
        positions.enumerate().filter_map(move |(sample, position)| {
            let slot = rule.slot_of_start(position);
            debug_assert!(slot.is_some(), "`new` has checked every position");
            Some(Target { sample, slot: slot?, first_row: 0, length, capacity })
        })
    }

    fn targets(&self) -> impl Iterator<Item = Target> + use<'a> {
        let moves = *self;
        let samples = if self.geometry().has_slots_of_tokens() { 0 } else { self.visited() };
        (0..samples).scan(0, move |packed_row, sample| Some(moves.target(sample, packed_row))).flatten()
    }

    /// Returns the rows of a paged cache that receive tokens. They are in the order of the tokens. There are
    /// none in other caches.
    #[inline(always)]
    fn slot_ranges(&self) -> impl Iterator<Item = RowRange> + use<'a> {
        let block_size = self.geometry().capacity();
        self.slot_runs().flat_map(move |run| run.row_ranges(block_size))
    }

    /// Returns the runs of the slots of a paged cache.
    #[inline(always)]
    fn slot_runs(&self) -> SlotRuns<impl Fn(usize) -> Option<usize> + Clone + use<'a>> {
        let tokens = match self.geometry().samples() {
            Samples::Tokens { tokens } if self.elements() > 0 => tokens,
            _ => 0,
        };
        self.indices.slot_runs(tokens)
    }

    /// Returns the number of samples to visit. It is 0 if no element moves.
    fn visited(&self) -> usize {
        if self.elements() == 0 { 0 } else { self.batch() }
    }

    /// Returns the target of a sample, or `None` if the sample is skipped.
    fn target(&self, sample: usize, packed_row: &mut usize) -> Option<Target> {
        let (rows, length) = self.indices.rows_of(sample).ok()?; // `new` has checked that this is `Ok`
        let row = *packed_row;
        if let Samples::Packed { .. } = self.geometry().samples() {
            *packed_row = row.wrapping_add(rows); // at most the tokens of the update
        }
        let slot = self.indices.first_slot(sample, rows, length).ok();
        debug_assert!(slot.is_some() || self.skipped() > 0, "only skipped samples have no slot");
        let slot = slot?;
        Some(Target { sample, slot, first_row: row, length, capacity: self.geometry().capacity() })
    }
}

impl<'a> CallIndices<'a> {
    /// Checks the usual call of decoding: one position per sample of a padded update, and no other list.
    /// Returns the number of rows written. Returns `None` if the call has a different form or is invalid, so
    /// that [`check_each`](Self::check_each) must check it.
    #[inline(always)]
    fn check_positions_only(self) -> Option<usize> {
        let Padded { batch, rows } = self.rules.padded?;
        let Call {
            layer_count: 0,
            row_counts: None,
            lengths: Lengths::Full,
            positions: Positions::Each(positions),
            ..
        } = self.call
        else {
            return None;
        };
        let rule = self.rules.slot_rule(rows);
        let fit = match positions {
            Integers::I64(values) => {
                values.len() == batch && values.iter().all(|&value| rule.slot_of_start(value).is_some())
            }
            Integers::I32(values) => {
                values.len() == batch
                    && values.iter().all(|&value| rule.slot_of_start(value.into()).is_some())
            }
            Integers::U32(_) | Integers::U64(_) | Integers::Usize(_) => false,
        };
        // G1: these are the rows of the update.
        fit.then(|| batch.wrapping_mul(rows))
    }

    /// Checks every list and every index, by the conditions of [`Moves::new`].
    ///
    /// Takes `self` by value. The copy whose address it needs is then made in this cold function and not in
    /// the caller.
    #[cold]
    #[inline(never)]
    fn check_each(self) -> Result<Checked, Error> {
        let count = |values: Option<Integers<'_>>| values.map(Integers::len);
        self.rules.check_counts(ListCounts {
            positions: count(self.call.positions.integers()),
            row_counts: self.call.row_counts.map(<[i32]>::len),
            lengths: count(self.call.lengths.integers()),
            layers: usize::try_from(self.call.layer_count).unwrap_or(usize::MAX),
        })?; // Conditions 1 and 2
        self.rules.check_layer(self.call.layer.into())?; // Condition 1
        if let Samples::Tokens { tokens } = self.rules.geometry.samples() {
            return self.check_slots(tokens);
        }
        let mut checked = Checked { rows: 0, skipped: 0, positions_only: false };
        if self.is_full_from_slot_0() {
            // `Geometry` has checked that the update fits from slot 0. Without this case, the loop below
            // could run over a huge batch of empty samples.
            checked.rows = self.batch().wrapping_mul(self.padded_rows());
            return Ok(checked);
        }
        self.check_cumulative()?; // Condition 3, with `rows_of`
        let mut total = 0_i64;
        for sample in 0..self.batch() {
            let (rows, length) = self.rows_of(sample)?; // Conditions 3 and 4
            total = total.saturating_add_unsigned(u64::try_from(rows).unwrap_or(u64::MAX));
            match self.first_slot(sample, rows, length) {
                // Condition 5. The sum of lengths cannot wrap, because each length is at most the capacity of
                // its own sample.
                Ok(_) => checked.rows = checked.rows.wrapping_add(length),
                // A position that cannot be read is always an error, because `SkipSample` skips only
                // positions out of range.
                Err(error @ Error::IndexTooLarge { .. }) => return Err(error),
                Err(_) if self.rules.options.out_of_range == OutOfRange::SkipSample => {
                    checked.skipped = checked.skipped.wrapping_add(1);
                }
                Err(error) => return Err(error),
            }
        }
        self.rules.check_total(total)?; // Condition 3
        Ok(checked)
    }

    /// Checks that each token has a slot that no other token has. [`check_each`](Self::check_each) has checked
    /// the number of slots.
    #[inline(never)]
    fn check_slots(&self, tokens: usize) -> Result<Checked, Error> {
        let mut skipped = 0_usize;
        for token in 0..tokens {
            match self.first_slot(token, 1, 1) {
                Ok(_) => {}
                Err(Error::NegativeStart { .. }) if self.rules.options.skip_negative => {
                    skipped = skipped.wrapping_add(1); // at most `tokens`
                }
                Err(error) => return Err(error), // Condition 6
            }
        }
        let runs = self.slot_runs(tokens);
        if runs.has_duplicates()
            && let Some(Duplicate { token, earlier }) = runs.first_duplicate()
        {
            let argument = self.rules.geometry.names().positions;
            let value = self.first_slot(token, 1, 1)?;
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            return Err(Error::DuplicateSlot { argument, index: token, value, earlier }); // Condition 6
        }
        Ok(Checked { rows: tokens.wrapping_sub(skipped), skipped, positions_only: false })
    }

    /// Returns the runs of the slots of the first `tokens` tokens.
    #[inline(always)]
    fn slot_runs(&self, tokens: usize) -> SlotRuns<impl Fn(usize) -> Option<usize> + Clone + use<'a>> {
        let positions = self.call.positions.integers();
        SlotRuns::new(tokens, move |token| usize::try_from(positions?.get(token)?).ok())
    }

    /// Checks that cumulative lengths begin with 0, even without samples, and do not decrease.
    fn check_cumulative(&self) -> Result<(), Error> {
        let (Convention::StartsAndCumulativeLengths, Some(values)) =
            (self.rules.options.convention, self.call.row_counts)
        else {
            return Ok(());
        };
        let read = |at| self.read(self.rules.geometry.names().row_counts, Integers::I32(values), at);
        self.rules.check_cumulative(0, read(0)?, i64::MAX)?;
        (0..self.batch()).try_for_each(|sample| {
            self.rules.check_cumulative(sample, read(sample)?, read(sample.wrapping_add(1))?)
        })
    }

    /// Returns the number of rows of a sample, and how many of them are written.
    #[inline(always)]
    fn rows_of(&self, sample: usize) -> Result<(usize, usize), Error> {
        let argument = self.rules.geometry.names().row_counts;
        let rows = match (self.rules.options.convention, self.call.row_counts) {
            (Convention::EndsAndRowCounts, Some(values)) => {
                self.rules.check_row_count(sample, self.read(argument, Integers::I32(values), sample)?)?
            }
            (Convention::StartsAndCumulativeLengths, Some(values)) => {
                let read = |at| self.read(argument, Integers::I32(values), at);
                self.rules.rows_between(sample, read(sample)?, read(sample.wrapping_add(1))?)?
            }
            _ => self.padded_rows(),
        };
        let length = match self.call.lengths.integers() {
            None => rows,
            Some(values) => {
                self.rules.check_length(sample, self.read(Argument::Lengths, values, sample)?, rows)?
            }
        };
        Ok((rows, length))
    }

    #[inline(always)]
    fn first_slot(&self, sample: usize, rows: usize, length: usize) -> Result<usize, Error> {
        let Some(positions) = self.call.positions.integers() else { return Ok(0) };
        let position = self.read(self.rules.geometry.names().positions, positions, sample)?;
        self.rules.slot_of_position(sample, position, rows, length)
    }

    /// Reads a value of a list. `check_counts` has compared the length of the list with the batch.
    #[inline(always)]
    fn read(&self, argument: Argument, values: Integers<'_>, at: usize) -> Result<i64, Error> {
        match values.get(at) {
            Some(value) => Ok(value),
            None => Err(self.unreadable(argument, values, at)),
        }
    }

    #[cold]
    #[inline(never)]
    fn unreadable(&self, argument: Argument, values: Integers<'_>, at: usize) -> Error {
        if at < values.len() {
            Error::IndexTooLarge { argument, index: at }
        } else {
            Error::ListLength { argument, got: values.len(), expected: self.batch() }
        }
    }

    /// Returns `true` if every sample of a padded update is written in full from slot 0.
    fn is_full_from_slot_0(&self) -> bool {
        self.call.positions == Positions::Zero
            && self.call.lengths == Lengths::Full
            && self.rules.padded.is_some()
    }

    /// Returns the number of rows of each sample of a padded update.
    #[inline(always)]
    fn padded_rows(&self) -> usize {
        match self.rules.geometry.samples() {
            Samples::Padded { rows, .. } => rows,
            Samples::Packed { .. } | Samples::Tokens { .. } => 0,
        }
    }

    /// Returns the number of samples of the update. For a paged cache, each token is one.
    fn batch(&self) -> usize {
        let values = self.call.row_counts.map_or(0, <[i32]>::len);
        match (self.rules.geometry.samples(), self.rules.options.convention) {
            (Samples::Padded { batch, .. }, _) => batch,
            (Samples::Tokens { tokens }, _) => tokens,
            (Samples::Packed { .. }, Convention::EndsAndRowCounts) => values,
            (Samples::Packed { .. }, _) => values.saturating_sub(1),
        }
    }
}

/// The slots that one sample is written to, and the rows that are written.
#[derive(Clone, Copy, Debug)]
struct Target {
    sample: usize,
    slot: usize,
    /// The sample's first row in the update.
    first_row: usize,
    length: usize,
    capacity: usize,
}

impl Target {
    /// Visits one range of rows, and a second one at slot 0 if the ring wraps. No visited range is empty.
    #[inline(always)]
    fn for_each_row_range(self, visit: &mut impl FnMut(RowRange)) {
        let Self { sample, slot, first_row, length, capacity } = self;
        // Nothing here wraps, because `slot <= capacity` and `first <= length`.
        let first = length.min(capacity.wrapping_sub(slot));
        if first > 0 {
            visit(RowRange { sample, dst_row: slot, src_row: first_row, count: first });
        }
        let rest = length.wrapping_sub(first);
        if rest > 0 {
            visit(RowRange { sample, dst_row: 0, src_row: first_row.wrapping_add(first), count: rest });
        }
    }

    /// Returns the one or two ranges that [`for_each_row_range`](Self::for_each_row_range) visits.
    fn row_ranges(self) -> impl Iterator<Item = RowRange> {
        let mut pieces = [None; 2];
        let mut free = pieces.iter_mut();
        self.for_each_row_range(&mut |rows| free.by_ref().take(1).for_each(|piece| *piece = Some(rows)));
        pieces.into_iter().flatten()
    }

    /// Returns all slots of a sample, from first to last, with the source of each.
    fn pieces(target: Option<Self>, sample: usize, capacity: usize) -> [(Source, RowRange); 3] {
        let past = |from: usize, to: usize| {
            (Source::Past, RowRange { sample, dst_row: from, src_row: from, count: to.saturating_sub(from) })
        };
        let Some(Self { slot, first_row, length, .. }) = target else {
            return [past(0, capacity), past(capacity, capacity), past(capacity, capacity)];
        };
        let update = |dst: usize, src: usize, count: usize| {
            (Source::Update, RowRange { sample, dst_row: dst, src_row: src, count })
        };
        // No sum wraps. The slot and the length are at most the capacity, which fits `isize`, and the rows
        // are rows of the update.
        let end = slot.wrapping_add(length);
        match end.checked_sub(capacity) {
            Some(wrapped) => {
                let first = length.wrapping_sub(wrapped);
                let rest = update(0, first_row.wrapping_add(first), wrapped);
                [rest, past(wrapped, slot), update(slot, first_row, first)]
            }
            None => [past(0, slot), update(slot, first_row, length), past(end, capacity)],
        }
    }
}
