//! The sizes of a case's cache.

/// The cache as four nested loops, outermost first. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDims {
    /// The number of samples. Each sample has a separate position.
    pub batch: usize,
    /// The number of heads: the product of the dimensions between batch and sequence.
    pub outer: usize,
    /// The number of slots: the sequence dimension.
    pub capacity: usize,
    /// The size of one row of one head: the product of the dimensions after the sequence.
    pub inner: usize,
    /// The width of an element in bits.
    pub bits: usize,
}
