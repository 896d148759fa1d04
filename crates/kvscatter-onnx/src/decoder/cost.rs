//! What a cache costs: memory, and bytes copied by one step.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::cache::{Cache, WriterStyle};
use crate::Dimension;

/// The sizes that costs are computed at.
#[derive(Clone, Debug)]
pub struct CostAt<'a> {
    /// Samples.
    pub batch: usize,
    /// Tokens of each in the cache, before the step.
    pub length: usize,
    /// Tokens for which a static cache has room, where the model does not say.
    pub capacity: usize,
    /// Sizes of dimensions by their symbols.
    pub dims: &'a BTreeMap<String, usize>,
}

/// The cost of one cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// One token of one sample.
    pub per_token: u64,
    /// The cache as it is: `length` tokens of every sample where it grows, its whole capacity where that is fixed.
    pub size: u64,
    /// The cache at the capacity it would have after conversion, or has.
    pub static_size: u64,
    /// What a step of one token copies today; every copied byte is read once and written once. A cache that grows is
    /// copied whole. So is one of [`WriterStyle::GroupQueryAttention`] unless past and present share memory, and every
    /// node between past and present copies it again. A [`WriterStyle::TensorScatter`] copies the new rows alone, where
    /// past and present share memory. `None` for a style that is not known.
    pub copied: Option<u64>,
    /// What a step of one token copies at the least: the new rows, written into memory that past and present share.
    pub copied_static: Option<u64>,
}

impl<'m> Cache<'m> {
    /// Computes the costs. `None` if a size that is needed is open, a product does not fit, or the elements have no
    /// size.
    #[must_use]
    pub fn cost(&self, at: &CostAt<'_>) -> Option<Cost> {
        let fixed = self.fixed_capacity();
        let capacity = fixed.unwrap_or(at.capacity);
        let rows = |rows: usize| self.bytes(rows, at);
        let per_token = self.bytes_of(1, 1, at)?;
        let is_fixed = fixed.is_some() || self.is_static();
        let size = rows(if is_fixed { capacity } else { at.length })?;
        let static_size = rows(capacity)?;
        let new = rows(1)?;
        let whole = rows(if is_fixed { capacity } else { at.length.checked_add(1)? })?;
        let copies = u64::try_from(self.between.len()).ok()?.checked_mul(whole)?;
        let written = match self.style {
            WriterStyle::Concat | WriterStyle::AttentionPast | WriterStyle::GroupQueryAttention => {
                Some(whole)
            }
            WriterStyle::TensorScatter(_) => Some(new),
            WriterStyle::Unknown(_) => None,
        };
        Some(Cost {
            per_token,
            size,
            static_size,
            copied: written.and_then(|written| written.checked_add(copies)),
            copied_static: written.map(|_| new),
        })
    }

    /// The dimensions whose sizes the costs need and neither the model nor `dims` gives, by their symbols;
    /// `past[axis]` for those that have none.
    #[must_use]
    pub fn open_dims(&self, dims: &BTreeMap<String, usize>) -> Vec<String> {
        let open = self.row_dims().filter(|&(axis, dim)| self.size(axis, dim, dims).is_none());
        open.map(|(axis, dim)| match dim {
            Dimension::Symbolic(symbol) => symbol.to_owned(),
            _ => format!("{}[{axis}]", self.past),
        })
        .collect()
    }

    fn bytes(&self, rows: usize, at: &CostAt<'_>) -> Option<u64> {
        self.bytes_of(at.batch, rows, at)
    }

    fn bytes_of(&self, batch: usize, rows: usize, at: &CostAt<'_>) -> Option<u64> {
        if self.element == ElementType::String {
            return None;
        }
        let mut shape = vec![batch, rows];
        for (axis, dim) in self.row_dims() {
            shape.push(self.size(axis, dim, at.dims)?);
        }
        u64::try_from(self.element.storage_len(&shape)?).ok()
    }

    /// The dimensions of one token of one sample.
    fn row_dims(&self) -> impl Iterator<Item = (usize, Dimension<'m>)> {
        // A cache of keys and values in one tensor has the batch second: [2, batch, heads, length, head size].
        let batch = if self.part == super::CachePart::Both { 1 } else { 0 };
        let dims = self.known_shape.iter().copied().enumerate();
        dims.filter(move |(axis, _)| *axis != batch && *axis != self.axis)
    }

    fn size(&self, axis: usize, dim: Dimension<'_>, dims: &BTreeMap<String, usize>) -> Option<usize> {
        match dim {
            Dimension::Known(size) => Some(size),
            Dimension::Symbolic(symbol) => dims.get(symbol).copied(),
            Dimension::Unknown => dims.get(&format!("{}[{axis}]", self.past)).copied(),
        }
    }
}
