//! Positions and lengths for one call of a prepared operator. A part of them is invalid.

use kvscatter_oracle::cases::{Call, Random};

/// What new lists are drawn for.
pub(super) struct Limits {
    pub(super) capacity: usize,
    pub(super) layers: usize,
    /// The rows of each sample in the update.
    pub(super) rows: Vec<usize>,
}

/// How far starts may be from the cache.
#[derive(Clone, Copy)]
enum Reach {
    /// Every sample fits the cache.
    Inside,
    /// Slots around both ends.
    Near,
    /// Also the limits of integers.
    Anywhere,
}

impl Limits {
    /// Replaces all lists of the call. Their memory is used again.
    pub(super) fn redraw(&mut self, r: &mut Random, call: &mut Call) {
        let reach = r.pick(&[Reach::Inside, Reach::Inside, Reach::Near, Reach::Anywhere]);
        match call {
            Call::TensorScatter { write_indices, lengths, .. } => {
                self.redraw_lengths(r, lengths);
                if r.below(16) == 0 {
                    *write_indices = None;
                } else {
                    let starts = write_indices.get_or_insert_default();
                    self.redraw_starts(r, reach, lengths.as_deref(), starts);
                }
            }
            Call::KvCacheUpdate { write_indices, update_lengths, lengths, .. } => {
                if let Some(cumulative) = update_lengths {
                    self.shuffle_rows(r);
                    self.redraw_cumulative(r, cumulative);
                }
                self.redraw_lengths(r, lengths);
                self.redraw_starts(r, reach, lengths.as_deref(), write_indices);
            }
            Call::KvCacheOperation { layer_id, token_offset, seq_len, lengths, .. } => {
                self.shuffle_rows(r);
                self.redraw_lengths(r, lengths);
                seq_len.clear();
                seq_len.extend(self.rows.iter().map(|&rows| rows as i32));
                token_offset.clear();
                for (sample, &rows) in self.rows.iter().enumerate() {
                    let written = written(lengths.as_deref(), sample, rows);
                    let start = self.start(r, reach, written);
                    token_offset.push(start.saturating_add(rows as i64) as i32);
                }
                self.spoil_i32(r, seq_len);
                self.spoil_i32(r, token_offset);
                layer_id.clear();
                layer_id.push(r.below(self.layers.max(1)) as i32);
                self.spoil_i32(r, layer_id);
            }
        }
    }

    fn redraw_lengths(&self, r: &mut Random, lengths: &mut Option<Vec<i64>>) {
        if r.below(2) == 0 {
            *lengths = None;
            return;
        }
        let lengths = lengths.get_or_insert_default();
        lengths.clear();
        lengths.extend(self.rows.iter().map(|&rows| r.below(rows + 1) as i64));
        if r.below(24) == 0 {
            self.spoil(r, lengths);
        }
    }

    fn redraw_starts(&self, r: &mut Random, reach: Reach, lengths: Option<&[i64]>, starts: &mut Vec<i64>) {
        starts.clear();
        for (sample, &rows) in self.rows.iter().enumerate() {
            starts.push(self.start(r, reach, written(lengths, sample, rows)));
        }
        if r.below(64) == 0 {
            self.spoil(r, starts);
        }
    }

    /// Returns a start for a sample that writes this many rows.
    fn start(&self, r: &mut Random, reach: Reach, written: i64) -> i64 {
        let capacity = self.capacity as i64;
        // A spoiled length may be far outside.
        let last = capacity - written.clamp(0, capacity);
        match reach {
            Reach::Inside => r.below(last as usize + 1) as i64,
            Reach::Near => r.below(3 * self.capacity + 4) as i64 - capacity - 2,
            Reach::Anywhere => {
                let ends = [0, last, last, last + 1, -1, -capacity, capacity - 1, capacity, capacity + 1];
                let limits = [i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1, 1 << 31, -1 << 31, 1 << 32];
                if r.below(2) == 0 { r.pick(&ends) } else { r.pick(&limits) }
            }
        }
    }

    fn redraw_cumulative(&self, r: &mut Random, cumulative: &mut Vec<i32>) {
        cumulative.clear();
        cumulative.push(0);
        let mut end = 0;
        for &rows in &self.rows {
            end += rows as i32;
            cumulative.push(end);
        }
        self.spoil_i32(r, cumulative);
    }

    /// Gives the samples each other's rows. The sum stays the same.
    fn shuffle_rows(&mut self, r: &mut Random) {
        if let Some(last) = self.rows.len().checked_sub(1) {
            self.rows.swap(r.below(last + 1), last);
        }
    }

    /// Changes one value, or the number of values.
    fn spoil(&self, r: &mut Random, list: &mut Vec<i64>) {
        match (r.below(4), list.len()) {
            (0, _) => list.push(0),
            (1, _) => drop(list.pop()),
            (_, 0) => {}
            (_, count) => {
                let capacity = self.capacity as i64;
                list[r.below(count)] = r.pick(&[-1, capacity, capacity + 1, i64::MIN, i64::MAX]);
            }
        }
    }

    /// Spoils one list of 64.
    fn spoil_i32(&self, r: &mut Random, list: &mut Vec<i32>) {
        if r.below(64) != 0 {
            return;
        }
        match (r.below(4), list.len()) {
            (0, _) => list.push(0),
            (1, _) => drop(list.pop()),
            (_, 0) => {}
            (_, count) => {
                let capacity = self.capacity as i32;
                list[r.below(count)] = r.pick(&[-1, 0, capacity, capacity + 1, i32::MIN, i32::MAX]);
            }
        }
    }
}

/// Returns how many rows of a sample are written.
fn written(lengths: Option<&[i64]>, sample: usize, rows: usize) -> i64 {
    lengths.and_then(|lengths| lengths.get(sample)).copied().unwrap_or(rows as i64)
}
