//! Ring caches, which overwrite the oldest tokens.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use kvscatter::Mode;
use kvscatter::ring::{Ring, high_after};
use kvscatter::visibility::Visibility;

use super::growing::{shorter, tokens};
use super::ring_size::RingSize;
use super::store::{Store, StoreRequirements};
use crate::{CacheWrite, CandleError, TensorScatter, WriteAt, write_many};

/// The keys or the values of one layer, like `candle_nn::kv_cache::RotatingCache`.
#[derive(Clone, Debug)]
pub struct RotatingCache {
    /// The slots. The first append creates them, because it determines the shape.
    store: Option<Store>,
    dim: usize,
    /// The next slot to write, counted from 0.
    offset: usize,
    /// The number of tokens appended so far, which may exceed the number of slots.
    current_seq_len: usize,
    max_seq_len: usize,
    /// The rule of a ring with a size, and `None` for a ring that behaves like candle-nn's.
    rule: Option<Ring>,
    /// One more than the furthest position written. [`Ring::takes`] needs it.
    high: usize,
}

impl RotatingCache {
    /// Creates a ring of `max_seq_len` slots along dimension `dim`.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { store: None, dim, offset: 0, current_seq_len: 0, max_seq_len, rule: None, high: 0 }
    }

    /// Creates a ring along dimension `dim` in which every token sees its whole window.
    ///
    /// An append or a truncation that would lose a row of a window is an error, which
    /// [`RingSize::chunk`] and [`RingSize::rewind`] prevent.
    #[must_use]
    pub fn with_size(dim: usize, size: RingSize) -> Self {
        Self { rule: Some(size.ring()), ..Self::new(dim, size.capacity()) }
    }

    /// Returns the next slot to write.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the sequence dimension.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of tokens appended so far, including those that were overwritten.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns all slots, or `None` before the first append.
    #[must_use]
    pub fn all_data(&self) -> &Option<Tensor> {
        Store::as_option(self.store.as_ref())
    }

    /// Returns the slots that contain tokens, in the order of the slots, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let used = |store: &Store| match self.used_slots() {
            all if all == self.max_seq_len => Ok(store.tensor().clone()),
            slots => store.tensor().narrow(self.dim, 0, slots),
        };
        self.store.as_ref().map(used).transpose()
    }

    /// Returns the largest number of tokens that the next append can have. A ring without a [`RingSize`] and an
    /// empty ring accept any number.
    #[must_use]
    pub fn max_chunk(&self) -> usize {
        match self.rule {
            Some(rule) if self.current_seq_len > 0 => rule.most_rows(self.high, self.current_seq_len),
            _ => usize::MAX,
        }
    }

    /// Removes all tokens and frees the memory.
    pub fn reset(&mut self) {
        *self = Self { rule: self.rule, ..Self::new(self.dim, self.max_seq_len) };
    }

    /// Keeps the first `length` tokens and drops the others, for example after speculative decoding.
    ///
    /// # Errors
    /// Returns an error if there are fewer tokens. Also returns an error if the ring has lost tokens that the
    /// shorter sequence needs. A ring with a [`RingSize`] needs only the window of the next token. A ring
    /// without one needs all tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.check_truncate(length)?;
        if length < self.current_seq_len {
            self.offset = self.slots().slot_of(signed(length)).unwrap_or_default();
            self.current_seq_len = length;
        }
        Ok(())
    }

    fn check_truncate(&self, length: usize) -> std::result::Result<(), CandleError> {
        let Some(rule) = self.rule else {
            return truncated_ring(length, self.current_seq_len, self.max_seq_len).map(drop);
        };
        let (length, current) = (shorter(length, self.current_seq_len)?, self.current_seq_len);
        let least = rule.least_start(self.high).min(current);
        if (1..least).contains(&length) {
            let (capacity, window) = (rule.capacity(), rule.window());
            return Err(CandleError::RingRewind { length, least, capacity, window });
        }
        Ok(())
    }

    /// Checks that each token of an append sees its window.
    fn check_append(&self, tokens: usize) -> std::result::Result<(), CandleError> {
        let most = self.max_chunk();
        match self.rule {
            Some(rule) if tokens > most => {
                let (capacity, window) = (rule.capacity(), rule.window());
                Err(CandleError::RingStep { tokens, length: self.current_seq_len, most, capacity, window })
            }
            _ => Ok(()),
        }
    }

    /// Appends tokens and returns the tensor that they attend to. This is the ring, or the update itself if
    /// the update is at least as long as the ring. A ring with a [`RingSize`] returns the update only if it is
    /// longer than the ring.
    ///
    /// # Errors
    /// Returns an error if the shape, type or device of `src` does not fit, or if a ring with a [`RingSize`]
    /// would lose a row that one of the tokens needs. The cache is unchanged.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        let after = self.after(src)?;
        let _ = write_many(&mut [self.prepare_write(src, &after)?])?;
        self.commit(src, &after)
    }

    /// Computes the ring after an append.
    fn after(&self, src: &Tensor) -> std::result::Result<Appended, CandleError> {
        let tokens = tokens(src, self.dim)?;
        if self.max_seq_len == 0 {
            return Err(CandleError::NoRoom);
        }
        let too_long = CandleError::TooLong { tokens, length: self.current_seq_len };
        let Some(length) = self.current_seq_len.checked_add(tokens) else { return Err(too_long) };
        self.check_append(tokens)?;
        let fills = self.returns_update(tokens);
        let written = tokens.min(self.max_seq_len);
        let left_out = tokens.saturating_sub(written);
        let first = match self.rule {
            // Position `p` stays in slot `p mod capacity`.
            Some(_) => self.offset.saturating_add(left_out % self.max_seq_len) % self.max_seq_len,
            None if fills => 0,
            None => self.offset,
        };
        let rows = fills.then_some(left_out..tokens);
        // `first` and `written` are at most the number of slots of a tensor.
        let offset = first.saturating_add(written) % self.max_seq_len;
        let high = high_after(self.high, self.current_seq_len, tokens);
        Ok(Appended { start: [first], rows, offset, length, fills, high })
    }

    /// Returns `true` if an append of `tokens` tokens returns the update and not the ring.
    fn returns_update(&self, tokens: usize) -> bool {
        match self.rule {
            Some(_) if self.max_seq_len > 0 => tokens > self.max_seq_len,
            _ => tokens >= self.max_seq_len,
        }
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
        self.high = after.high;
        match self.current_data()? {
            Some(data) if !after.fills => Ok(data),
            _ => Ok(src.clone()),
        }
    }

    /// Returns the number of slots that contain tokens.
    fn used_slots(&self) -> usize {
        self.current_seq_len.min(self.max_seq_len)
    }

    /// Returns the rule for all slots, without a window.
    fn slots(&self) -> Visibility {
        Visibility::new(Mode::Circular, self.max_seq_len)
    }

    /// Returns the position in the sequence of every token that an `append` of `seq_len` tokens will return,
    /// in that order.
    ///
    /// After a truncation, the oldest of these slots may still contain a token that was dropped. `attn_mask`
    /// hides these slots.
    #[must_use]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let length = self.current_seq_len.saturating_add(seq_len);
        if self.returns_update(seq_len) {
            return (self.current_seq_len..length).collect();
        }
        // After a long append, the slots restart at 0, as candle-nn's do. From then on they are the slots of a
        // ring with fewer tokens, `counted`.
        let next = self.offset.saturating_add(seq_len) % self.max_seq_len;
        let counted = if length < self.max_seq_len { length } else { next.saturating_add(self.max_seq_len) };
        let ring = self.slots();
        let slots = 0..length.min(self.max_seq_len);
        let positions = slots.filter_map(|slot| ring.position_of(signed(counted), slot));
        let uncounted = length.saturating_sub(counted);
        positions.filter_map(|position| usize::try_from(position).ok()?.checked_add(uncounted)).collect()
    }

    /// Returns the mask for `seq_len` tokens and the tensor that their `append` will return.
    ///
    /// The mask is of `u8` and shape `[seq_len, returned]`, and is 1 where a token must not attend. A single
    /// token that sees every returned token needs no mask, so the result is `None`. In a ring without a
    /// [`RingSize`], every single token does.
    ///
    /// # Errors
    /// Returns an error if the `append` would return one because of its number of tokens, or if an operation of
    /// candle fails.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.check_append(seq_len)?;
        let length = self.current_seq_len.saturating_add(seq_len);
        let window = self.rule.map_or(self.max_seq_len, |rule| rule.window());
        if seq_len == 1 && length.min(self.max_seq_len) <= window {
            return Ok(None);
        }
        let keys = self.positions(seq_len);
        // The keys are identified by their positions, as the slots of a linear cache are.
        let rule = Visibility::new(Mode::Linear, length).causal().window(window);
        let hidden = |query: usize| {
            let seen = rule.positions(signed(length), signed(query));
            keys.iter().map(move |&key| u8::from(!seen.contains(&signed(key))))
        };
        let mask: Vec<u8> = (self.current_seq_len..length).flat_map(hidden).collect();
        Tensor::from_vec(mask, (seq_len, keys.len()), device).map(Some)
    }
}

/// Checks that a ring can be truncated to `length`. A ring that has wrapped has lost tokens that a shorter
/// sequence needs.
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

/// Converts a number of tokens. No sequence has more than `i64::MAX` tokens.
pub(super) fn signed(tokens: usize) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// A ring after an append.
#[derive(Debug)]
struct Appended {
    /// The slot of the first new token.
    start: [usize; 1],
    /// The rows of the update that are written, or `None` for all rows.
    rows: Option<Range<usize>>,
    offset: usize,
    length: usize,
    /// Whether the update is returned, because the new tokens fill every slot.
    fills: bool,
    high: usize,
}

/// The keys and values of one layer, like `candle_nn::kv_cache::RotatingKvCache`.
#[derive(Clone, Debug)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// Creates rings of `max_seq_len` slots along dimension `dim`.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { k: RotatingCache::new(dim, max_seq_len), v: RotatingCache::new(dim, max_seq_len) }
    }

    /// Creates rings along dimension `dim` in which every token sees its whole window.
    ///
    /// An append or a truncation that would lose a row of a window is an error, which
    /// [`RingSize::chunk`] and [`RingSize::rewind`] prevent.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use kvscatter_candle::kv_cache::{RingSize, RotatingKvCache};
    ///
    /// let mut cache = RotatingKvCache::with_size(2, RingSize::for_window(4).chunk(3).rewind(2));
    /// for _ in 0..5 {
    ///     let chunk = Tensor::ones((1, 8, 3, 64), DType::F32, &Device::Cpu)?;
    ///     let mask = cache.attn_mask(3, &Device::Cpu)?;
    ///     let (keys, values) = cache.append(&chunk, &chunk)?;
    /// #   let _ = (mask, keys, values);
    /// }
    /// cache.truncate(13)?;
    /// assert!(cache.truncate(11).is_err());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_size(dim: usize, size: RingSize) -> Self {
        Self { k: RotatingCache::with_size(dim, size), v: RotatingCache::with_size(dim, size) }
    }

    /// Returns the ring of the keys.
    #[must_use]
    pub fn k_cache(&self) -> &RotatingCache {
        &self.k
    }

    /// Returns the ring of the values.
    #[must_use]
    pub fn v_cache(&self) -> &RotatingCache {
        &self.v
    }

    /// Returns the ring of the keys.
    pub fn k_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.k
    }

    /// Returns the ring of the values.
    pub fn v_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.v
    }

    /// Returns the keys in the order of the slots, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values in the order of the slots, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends tokens and returns the tensors that they attend to. These are the rings, which later appends
    /// change, or the updates themselves if they are at least as long as the ring. Rings with a [`RingSize`]
    /// return the updates only if they are longer than the ring.
    ///
    /// # Errors
    /// Returns an error if a shape, type or device does not fit, or if rings with a [`RingSize`] would lose a
    /// row that one of the tokens needs. Both rings are unchanged.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (after_k, after_v) = (self.k.after(k)?, self.v.after(v)?);
        let _ = write_many(&mut [self.k.prepare_write(k, &after_k)?, self.v.prepare_write(v, &after_v)?])?;
        Ok((self.k.commit(k, &after_k)?, self.v.commit(v, &after_v)?))
    }

    /// Returns the next slot to write.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Returns the number of tokens appended so far, including those that were overwritten.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Returns the number that [`RotatingCache::max_chunk`] describes.
    #[must_use]
    pub fn max_chunk(&self) -> usize {
        self.k.max_chunk()
    }

    /// Returns the mask that [`RotatingCache::attn_mask`] describes.
    ///
    /// # Errors
    /// Returns an error if the `append` would return one because of its number of tokens, or if an operation of
    /// candle fails.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// Returns the positions that [`RotatingCache::positions`] describes.
    #[must_use]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }

    /// Keeps the first `length` tokens and drops the others.
    ///
    /// # Errors
    /// Returns an error if there are fewer tokens, or if a ring has lost tokens that the shorter sequence needs,
    /// as [`RotatingCache::truncate`] describes. Both rings are unchanged.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.v.check_truncate(length)?;
        self.k.truncate(length)?;
        self.v.truncate(length)
    }

    /// Removes all tokens and frees the memory.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
