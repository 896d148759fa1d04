//! One call: its buffers, and the result that is expected of it.

/// The result that an engine must leave in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The write that the case describes.
    Write,
    /// The same rows in linear mode. Starts that would wrap are reduced modulo the number of starts that do
    /// not wrap.
    Unwrapped,
    /// A copy of the same number of bytes in one piece, into the same cache. In functional form, a copy of
    /// the past.
    ///
    /// If rows of 4-bit elements begin or end within a byte, they are copied one by one, each rounded up to
    /// whole bytes.
    Memcpy,
}

/// The buffers of one call. Their addresses do not change during the life of the [`Scene`](crate::Scene).
#[derive(Debug)]
pub struct Call<'a> {
    /// The index of the layer, counted from 0. It is 0 in a hot case.
    pub layer: usize,
    /// The first slot of every sample.
    pub starts: &'a [i64],
    /// The buffers of the only cache, or of the layer's keys.
    pub keys: Buffers<'a>,
    /// The buffers of the layer's values, or `None` in a hot case.
    pub values: Option<Buffers<'a>>,
}

/// The buffers of one write, as bytes.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// The cache. In functional form this is the past, which the call must not change.
    pub cache: &'a mut [u8],
    /// The new rows, in the layout of the case.
    pub update: &'a [u8],
    /// The new cache in functional form. Empty otherwise.
    pub present: &'a mut [u8],
}

impl<'a> Call<'a> {
    /// Returns the buffers of every write. The iterator costs a few nanoseconds, so fast engines should use
    /// [`each`](Self::each).
    pub fn buffers(&mut self) -> impl Iterator<Item = &mut Buffers<'a>> {
        [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten()
    }

    /// Calls `one` with the buffers of every write: once for a single cache, or for the keys and then the
    /// values.
    ///
    /// # Errors
    /// Returns the first error that `one` returns.
    #[inline(always)]
    pub fn each<E>(&mut self, mut one: impl FnMut(&mut Buffers<'a>) -> Result<(), E>) -> Result<(), E> {
        one(&mut self.keys)?;
        match &mut self.values {
            Some(values) => one(values),
            None => Ok(()),
        }
    }
}
