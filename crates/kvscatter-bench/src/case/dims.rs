//! The sizes of a case's cache.

/// The cache as four nested loops, outermost first. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDims {
    /// Samples, each at its own position.
    pub batch: usize,
    /// Product of the dimensions between batch and sequence: the heads.
    pub outer: usize,
    /// Slots of the sequence dimension.
    pub capacity: usize,
    /// Product of the dimensions after the sequence: one row of one head.
    pub inner: usize,
    /// Width of an element.
    pub bits: usize,
}
