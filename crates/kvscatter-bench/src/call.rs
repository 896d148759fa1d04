//! One call: its buffers, and what it is expected to leave in them.

/// What an engine is expected to leave in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The write that the case describes.
    Write,
    /// The same rows in linear mode, at starts modulo those that do not wrap.
    Unwrapped,
    /// As many bytes as the write moves, in one piece, into the same cache; in functional form the past as it is. Rows
    /// of 4-bit elements that straddle bytes go where the write has them instead, rounded up to bytes.
    Memcpy,
}

/// The buffers of one call. Their addresses stay the same as long as the [`Scene`](crate::Scene) lives.
#[derive(Debug)]
pub struct Call<'a> {
    /// The layer, 0 where there is one.
    pub layer: usize,
    /// The first slot of every sample.
    pub starts: &'a [i64],
    /// The cache that is written, or the keys of the layer.
    pub keys: Buffers<'a>,
    /// The values of the layer, in cold cases.
    pub values: Option<Buffers<'a>>,
}

/// One write's buffers, as bytes.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// The cache; in functional form the past, which does not change.
    pub cache: &'a mut [u8],
    /// What is written.
    pub update: &'a [u8],
    /// In functional form the new cache; empty otherwise.
    pub present: &'a mut [u8],
}

impl<'a> Call<'a> {
    /// The buffers to write, for engines that take longer than an iterator does: a few nanoseconds.
    pub fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers<'a>> {
        [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten()
    }

    /// Does something with the buffers of every write: one, or keys and values.
    ///
    /// # Errors
    /// The first that `one` returns.
    #[inline(always)]
    pub fn each<E>(&mut self, mut one: impl FnMut(&mut Buffers<'a>) -> Result<(), E>) -> Result<(), E> {
        one(&mut self.keys)?;
        match &mut self.values {
            Some(values) => one(values),
            None => Ok(()),
        }
    }
}
