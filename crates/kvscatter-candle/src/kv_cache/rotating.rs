//! Rings: caches that forget the oldest tokens.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use kvscatter::Mode;

use super::growing::{shorter, tokens};
use super::store::{Store, StoreRequirements};
use crate::{CacheWrite, CandleError, TensorScatter, WriteAt, write_many};

/// Keys, or values, of one layer: `candle_nn::kv_cache::RotatingCache`.
#[derive(Clone, Debug)]
pub struct RotatingCache {
    /// Made by the first append, which tells the shape.
    store: Option<Store>,
    dim: usize,
    /// The slot that is written next.
    offset: usize,
    /// Tokens seen so far, which may be more than there are slots.
    current_seq_len: usize,
    max_seq_len: usize,
}

impl RotatingCache {
    /// A ring of `max_seq_len` slots along dimension `dim`.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { store: None, dim, offset: 0, current_seq_len: 0, max_seq_len }
    }

    /// The slot that is written next.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The sequence dimension.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Tokens seen so far, also those that the ring has forgotten.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Slots of the ring.
    #[must_use]
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// All slots; `None` before the first append.
    #[must_use]
    pub fn all_data(&self) -> &Option<Tensor> {
        Store::as_option(self.store.as_ref())
    }

    /// The slots that hold tokens, in the order of the slots; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let used = |store: &Store| match self.used_slots() {
            all if all == self.max_seq_len => Ok(store.tensor().clone()),
            slots => store.tensor().narrow(self.dim, 0, slots),
        };
        self.store.as_ref().map(used).transpose()
    }

    /// Forgets everything, the memory too.
    pub fn reset(&mut self) {
        *self = Self::new(self.dim, self.max_seq_len);
    }

    /// Keeps the first `length` tokens: what speculative decoding needs.
    ///
    /// # Errors
    /// If there are fewer, or the ring has wrapped and lost the oldest tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.check_truncate(length)?;
        if length < self.current_seq_len {
            // The ring has not wrapped, so `length` is a slot.
            (self.offset, self.current_seq_len) = (length, length);
        }
        Ok(())
    }

    fn check_truncate(&self, length: usize) -> std::result::Result<(), CandleError> {
        truncated_ring(length, self.current_seq_len, self.max_seq_len).map(drop)
    }

    /// Appends tokens, and returns what they attend to: the ring, or the update itself where that is as long as the
    /// ring.
    ///
    /// # Errors
    /// A shape, type or device that does not fit; the cache is as it was.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        let after = self.after(src)?;
        let _ = write_many(&mut [self.prepare_write(src, &after)?])?;
        self.commit(src, &after)
    }

    /// What the ring will be.
    fn after(&self, src: &Tensor) -> std::result::Result<Appended, CandleError> {
        let tokens = tokens(src, self.dim)?;
        if self.max_seq_len == 0 {
            return Err(CandleError::NoRoom);
        }
        let too_long = CandleError::TooLong { tokens, length: self.current_seq_len };
        let Some(length) = self.current_seq_len.checked_add(tokens) else { return Err(too_long) };
        let fills = tokens >= self.max_seq_len;
        let first = if fills { 0 } else { self.offset };
        let written = tokens.min(self.max_seq_len);
        let rows = fills.then_some(tokens.saturating_sub(written)..tokens);
        // Both are at most the slots of a tensor.
        let offset = first.saturating_add(written) % self.max_seq_len;
        Ok(Appended { start: [first], rows, offset, length, fills })
    }

    fn prepare_write<'w>(
        &'w mut self,
        src: &'w Tensor,
        after: &'w Appended,
    ) -> std::result::Result<CacheWrite<'w>, CandleError> {
        let ring = TensorScatter::new().mode(Mode::Circular).one_start();
        let scatter = ring.axis(i64::try_from(self.dim).unwrap_or(i64::MAX));
        let needs =
            StoreRequirements { scatter, dim: self.dim, capacity: self.max_seq_len, kept: self.used_slots() };
        let store = Store::with_room(&mut self.store, &needs, src)?;
        let at = WriteAt::new(&after.start);
        Ok(store.write(src, after.rows.clone().map_or(at.clone(), |rows| at.rows(rows))))
    }

    fn commit(&mut self, src: &Tensor, after: &Appended) -> Result<Tensor> {
        self.offset = after.offset;
        self.current_seq_len = after.length;
        match self.current_data()? {
            Some(data) if !after.fills => Ok(data),
            _ => Ok(src.clone()),
        }
    }

    /// Slots that hold tokens.
    fn used_slots(&self) -> usize {
        self.current_seq_len.min(self.max_seq_len)
    }

    /// The position in the sequence of every token that `append` of `seq_len` tokens will return, in that order.
    #[must_use]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let length = self.current_seq_len.saturating_add(seq_len);
        if seq_len >= self.max_seq_len {
            return (self.current_seq_len..length).collect();
        }
        // The last token lies in the slot before the one that is written next.
        let next = self.offset.saturating_add(seq_len) % self.max_seq_len;
        let age = |slot: usize| match next.checked_sub(slot.saturating_add(1)) {
            Some(age) => age,
            None => next.saturating_add(self.max_seq_len).saturating_sub(slot.saturating_add(1)),
        };
        let slots = length.min(self.max_seq_len);
        (0..slots).map(|slot| length.saturating_sub(age(slot).saturating_add(1))).collect()
    }

    /// The mask for `seq_len` tokens and what `append` of them will return: `u8`, `[seq_len, returned]`, 1 where a
    /// token must not look. `None` for a single token, which sees everything.
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let keys = self.positions(seq_len);
        let queries = (0..seq_len).map(|token| self.current_seq_len.saturating_add(token));
        let hidden = |query: usize| {
            keys.iter()
                .map(move |&key| u8::from(key > query || key.saturating_add(self.max_seq_len) <= query))
        };
        let mask: Vec<u8> = queries.flat_map(hidden).collect();
        Tensor::from_vec(mask, (seq_len, keys.len()), device).map(Some)
    }
}

/// Returns a length to which a ring can be cut. A ring that has wrapped has lost tokens that a shorter sequence needs.
pub(super) fn truncated_ring(
    length: usize,
    current: usize,
    capacity: usize,
) -> std::result::Result<usize, CandleError> {
    let kept = shorter(length, current)?;
    if kept < current && current > capacity {
        return Err(CandleError::RingWrapped { length, current, capacity });
    }
    Ok(kept)
}

/// A ring after an append.
#[derive(Debug)]
struct Appended {
    /// Where the new tokens go.
    start: [usize; 1],
    /// Which of them go there. `None` means all.
    rows: Option<Range<usize>>,
    offset: usize,
    length: usize,
    /// Whether they take every slot.
    fills: bool,
}

/// Keys and values of one layer: `candle_nn::kv_cache::RotatingKvCache`.
#[derive(Clone, Debug)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// Rings of `max_seq_len` slots along dimension `dim`.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { k: RotatingCache::new(dim, max_seq_len), v: RotatingCache::new(dim, max_seq_len) }
    }

    /// The keys' ring.
    #[must_use]
    pub fn k_cache(&self) -> &RotatingCache {
        &self.k
    }

    /// The values' ring.
    #[must_use]
    pub fn v_cache(&self) -> &RotatingCache {
        &self.v
    }

    /// The keys' ring.
    pub fn k_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.k
    }

    /// The values' ring.
    pub fn v_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.v
    }

    /// The keys, in the order of the slots; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// The values, in the order of the slots; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends tokens, and returns what they attend to: the rings, which later appends write, or the updates themselves
    /// where those are as long as the ring.
    ///
    /// # Errors
    /// Shapes, types or devices that do not fit; both rings are as they were.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (after_k, after_v) = (self.k.after(k)?, self.v.after(v)?);
        let _ = write_many(&mut [self.k.prepare_write(k, &after_k)?, self.v.prepare_write(v, &after_v)?])?;
        Ok((self.k.commit(k, &after_k)?, self.v.commit(v, &after_v)?))
    }

    /// The slot that is written next.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Tokens seen so far, also those that the rings have forgotten.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// See [`RotatingCache::attn_mask`].
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// See [`RotatingCache::positions`].
    #[must_use]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }

    /// Keeps the first `length` tokens.
    ///
    /// # Errors
    /// As [`RotatingCache::truncate`]; both rings are as they were.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.v.check_truncate(length)?;
        self.k.truncate(length)?;
        self.v.truncate(length)
    }

    /// Forgets everything, the memory too.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
