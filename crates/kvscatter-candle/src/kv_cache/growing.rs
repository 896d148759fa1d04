//! Caches that become longer when they are full.

use candle_core::{Result, Tensor};

use super::store::{Store, StoreRequirements};
use crate::{CacheWrite, CandleError, TensorScatter, WriteAt, write_many};

/// The keys or the values of one layer, like `candle_nn::kv_cache::Cache`.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The slots. The first append creates them, because it determines the shape.
    store: Option<Store>,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

impl Cache {
    /// Creates a cache along dimension `dim`. It grows by `max_seq_len` slots each time it is full.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { store: None, dim, current_seq_len: 0, grow_by: max_seq_len, max_seq_len }
    }

    /// Returns the sequence dimension.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of tokens in the cache.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the number of tokens that fit.
    #[must_use]
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns all slots, including those without a token, or `None` before the first append.
    #[must_use]
    pub fn all_data(&self) -> &Option<Tensor> {
        Store::as_option(self.store.as_ref())
    }

    /// Returns the tokens in the cache, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        self.store.as_ref().map(|store| store.tensor().narrow(self.dim, 0, self.current_seq_len)).transpose()
    }

    /// Removes all tokens and frees the memory.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.store = None;
    }

    /// Keeps the first `length` tokens and drops the others, for example after speculative decoding.
    ///
    /// # Errors
    /// Returns an error if the cache has fewer tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.current_seq_len = shorter(length, self.current_seq_len)?;
        Ok(())
    }

    /// Appends tokens.
    ///
    /// # Errors
    /// Returns an error if the shape, type or device of `src` does not fit. The cache is unchanged.
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        let appended = self.after(src)?;
        let _ = write_many(&mut [self.prepare_write(src, &appended)?])?;
        self.commit(&appended);
        Ok(())
    }

    /// Computes the cache after an append.
    fn after(&self, src: &Tensor) -> std::result::Result<Appended, CandleError> {
        let tokens = tokens(src, self.dim)?;
        if self.grow_by == 0 {
            return Err(CandleError::NoRoom);
        }
        let too_long = CandleError::TooLong { tokens, length: self.current_seq_len };
        let Some(length) = self.current_seq_len.checked_add(tokens) else { return Err(too_long) };
        let missing = length.saturating_sub(self.max_seq_len).div_ceil(self.grow_by);
        let more = missing.checked_mul(self.grow_by).and_then(|more| more.checked_add(self.max_seq_len));
        let Some(capacity) = more else { return Err(too_long) };
        Ok(Appended { start: [self.current_seq_len], length, capacity })
    }

    fn prepare_write<'w>(
        &'w mut self,
        src: &'w Tensor,
        after: &'w Appended,
    ) -> std::result::Result<CacheWrite<'w>, CandleError> {
        let scatter = TensorScatter::new().one_start().axis(i64::try_from(self.dim).unwrap_or(i64::MAX));
        let needs = StoreRequirements {
            scatter,
            dim: self.dim,
            capacity: after.capacity,
            kept: self.current_seq_len,
        };
        let store = Store::with_room(&mut self.store, &needs, src)?;
        Ok(store.write(src, WriteAt::new(&after.start)))
    }

    fn commit(&mut self, after: &Appended) {
        self.current_seq_len = after.length;
        self.max_seq_len = after.capacity;
    }
}

/// A cache after an append.
#[derive(Debug)]
struct Appended {
    /// The slot of the first new token.
    start: [usize; 1],
    length: usize,
    capacity: usize,
}

/// The keys and values of one layer, like `candle_nn::kv_cache::KvCache`.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// Creates caches along dimension `dim`. They grow by `max_seq_len` slots each time they are full.
    #[must_use]
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self { k: Cache::new(dim, max_seq_len), v: Cache::new(dim, max_seq_len) }
    }

    /// Returns the cache of the keys.
    #[must_use]
    pub fn k_cache(&self) -> &Cache {
        &self.k
    }

    /// Returns the cache of the values.
    #[must_use]
    pub fn v_cache(&self) -> &Cache {
        &self.v
    }

    /// Returns the cache of the keys.
    pub fn k_cache_mut(&mut self) -> &mut Cache {
        &mut self.k
    }

    /// Returns the cache of the values.
    pub fn v_cache_mut(&mut self) -> &mut Cache {
        &mut self.v
    }

    /// Returns the keys, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// Returns the values, or `None` before the first append.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends tokens and returns all keys and values as views of the caches. A later append does not change
    /// these views, unless the sequence was truncated or reset before.
    ///
    /// # Errors
    /// Returns an error if a shape, type or device does not fit. Both caches are unchanged.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (after_k, after_v) = (self.k.after(k)?, self.v.after(v)?);
        let _ = write_many(&mut [self.k.prepare_write(k, &after_k)?, self.v.prepare_write(v, &after_v)?])?;
        self.k.commit(&after_k);
        self.v.commit(&after_v);
        let data = |cache: &Cache, like: &Tensor| match cache.current_data()? {
            Some(data) => Ok(data),
            None => like.narrow(cache.dim, 0, 0),
        };
        Ok((data(&self.k, k)?, data(&self.v, v)?))
    }

    /// Returns the number of tokens in the cache.
    #[must_use]
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Keeps the first `length` tokens and drops the others, for example after speculative decoding.
    ///
    /// # Errors
    /// Returns an error if the cache has fewer tokens. Both caches are unchanged.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        shorter(length, self.v.current_seq_len)?;
        self.k.truncate(length)?;
        self.v.truncate(length)
    }

    /// Removes all tokens and frees the memory.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}

pub(super) fn tokens(update: &Tensor, dim: usize) -> std::result::Result<usize, CandleError> {
    update.dims().get(dim).copied().ok_or(CandleError::Dim { dim, rank: update.rank() })
}

/// Checks that a sequence can be truncated to `length`.
pub(super) fn shorter(length: usize, current: usize) -> std::result::Result<usize, CandleError> {
    if length <= current { Ok(length) } else { Err(CandleError::Longer { length, current }) }
}
