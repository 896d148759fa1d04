//! The cost of a cache in memory and in bytes copied by one step.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::cache::{Cache, UnknownStyle, WriterStyle};
use crate::Dimension;

/// The sizes for which costs are computed.
#[derive(Clone, Debug)]
pub struct CostAt<'a> {
    /// The number of samples.
    pub batch: usize,
    /// The number of tokens in the cache before the step, for each sample.
    pub length: usize,
    /// The capacity of a static cache in tokens, if the model does not define it.
    pub capacity: usize,
    /// The sizes of open dimensions by their symbols.
    pub dims: &'a BTreeMap<String, usize>,
}

/// The cost of one cache in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The bytes of one token of one sample.
    pub per_token: u64,
    /// The current bytes of the cache. A growing cache has `length` tokens of every sample, or fewer if a node cuts
    /// it. A static cache has its whole capacity.
    pub size: u64,
    /// The bytes of the cache at its static capacity: the current one, or the one after a conversion.
    pub static_size: u64,
    /// The bytes that a step of one token copies now, or `None` if the writer is not known. Every copied byte
    /// is read once and written once.
    ///
    /// * A cache that grows is copied whole.
    /// * A cache of [`WriterStyle::GroupQueryAttention`] is copied whole unless past and present share
    ///   memory.
    /// * A [`WriterStyle::TensorScatter`] copies only the new rows if past and present share memory.
    /// * Every node between past and present copies the cache once more.
    pub copied: Option<u64>,
    /// The smallest number of bytes that a step of one token can copy: the new rows, if past and present
    /// share memory.
    pub copied_static: Option<u64>,
}

impl<'m> Cache<'m> {
    /// Computes the costs of the cache.
    ///
    /// Returns `None` if the cost depends on an open dimension, if a product does not fit into 64 bits, or if
    /// the elements have no fixed size.
    #[must_use]
    pub fn cost(&self, at: &CostAt<'_>) -> Option<Cost> {
        let fixed = self.fixed_capacity();
        let most = match self.style {
            WriterStyle::Unknown(UnknownStyle::Cut { rows: Some(rows) }) => rows,
            _ => usize::MAX,
        };
        let (length, capacity) = (at.length.min(most), fixed.unwrap_or(at.capacity).min(most));
        let rows = |rows: usize| self.bytes(rows, at);
        let per_token = self.bytes_of(1, 1, at)?;
        let is_fixed = fixed.is_some() || self.is_static();
        let size = rows(if is_fixed { capacity } else { length })?;
        let static_size = rows(capacity)?;
        let new = rows(1)?;
        let whole = rows(if is_fixed { capacity } else { length.checked_add(1)? })?;
        let copies = u64::try_from(self.between.len()).ok()?.checked_mul(whole)?;
        let is_scattered = self.writer.is_some_and(|writer| writer.is("TensorScatter"));
        let written = match self.style {
            WriterStyle::Concat
            | WriterStyle::AttentionPast
            | WriterStyle::GroupQueryAttention
            | WriterStyle::Unknown(UnknownStyle::Cut { .. }) => Some(whole),
            WriterStyle::TensorScatter(_) => Some(new),
            WriterStyle::Unknown(UnknownStyle::Stacked { .. }) if is_scattered => Some(new),
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

    /// Returns the symbols of the dimensions that the costs depend on and that neither the model nor `dims`
    /// defines. A dimension without a symbol is returned as `past[axis]`.
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

    /// Returns the dimensions of one token of one sample.
    fn row_dims(&self) -> impl Iterator<Item = (usize, Dimension<'m>)> {
        let dims = self.known_shape.iter().copied().enumerate();
        dims.filter(|(axis, _)| *axis != self.batch_axis && *axis != self.axis)
    }

    fn size(&self, axis: usize, dim: Dimension<'_>, dims: &BTreeMap<String, usize>) -> Option<usize> {
        match dim {
            Dimension::Known(size) => Some(size),
            Dimension::Symbolic(symbol) => dims.get(symbol).copied(),
            Dimension::Unknown => dims.get(&format!("{}[{axis}]", self.past)).copied(),
        }
    }
}
