//! Computes the indices for `ScatterElements` and `ScatterND` from shapes and `write_indices`.

use std::collections::BTreeMap;

use kvscatter::Mode;

use crate::edit::{Editor, NewNode};
use crate::fold::signed;
use crate::{Dimension, EvalError, OnnxError};

use super::scatter::Scatter;

/// Adds [shared](Editor::shared) nodes, so the same computation on the same values is added only once.
pub(super) struct Indices<'p> {
    pub(super) editor: Editor<'p>,
    /// The number of nodes before any was added.
    before: usize,
    /// The first dimension that was declared with each symbol.
    symbols: BTreeMap<String, String>,
}

impl<'p> Indices<'p> {
    pub(super) fn new(editor: Editor<'p>) -> Self {
        Self { before: editor.nodes().len(), editor, symbols: BTreeMap::new() }
    }

    /// Returns the number of added nodes.
    pub(super) fn count(&self) -> usize {
        self.editor.nodes().len().saturating_sub(self.before)
    }

    /// Puts the graph in order and returns the number of added nodes.
    pub(super) fn finish(self) -> Result<usize, OnnxError> {
        let added = self.count();
        self.editor.finish().map(|_| added)
    }

    /// Returns the indices for `ScatterElements`: the position of every element on the axis. They are int64
    /// and have the shape that the update must have.
    pub(super) fn of_elements(&mut self, scatter: &Scatter<'_>) -> Result<String, OnnxError> {
        let rank = scatter.cache.len();
        let shape = self.update_shape(scatter, rank)?;
        let positions = self.positions(scatter, rank)?;
        self.editor.shared(NewNode::new("Expand", &[&positions, &shape]).called("indices"))
    }

    /// Returns the indices for `ScatterND`, int64 `[batch, outer…, length, axis + 1]`. The index of each row
    /// consists of its coordinates before the axis and its position.
    pub(super) fn of_rows(&mut self, scatter: &Scatter<'_>) -> Result<String, OnnxError> {
        let rank = scatter.axis.saturating_add(1);
        let shape = self.update_shape(scatter, rank)?;
        let last = self.editor.ints(&[-1])?;
        let mut coordinates = Vec::with_capacity(rank);
        for axis in 0..rank {
            let along = if axis == scatter.axis {
                self.positions(scatter, rank)?
            } else {
                let size = self.dim(scatter.past_cache, &scatter.cache, axis)?;
                let range = self.range(&size)?;
                self.unsqueeze(&range, (0..rank).filter(|&other| other != axis))?
            };
            let everywhere = self.editor.shared(NewNode::new("Expand", &[&along, &shape]))?;
            coordinates.push(self.editor.shared(NewNode::new("Unsqueeze", &[&everywhere, &last]))?);
        }
        let coordinates: Vec<_> = coordinates.iter().map(String::as_str).collect();
        self.editor.shared(NewNode::new("Concat", &coordinates).int("axis", -1).called("indices"))
    }

    /// Returns the first `rank` dimensions that the update must have: the cache's dimensions, with the length
    /// of the update. The engine rejects an update with other dimensions at run time.
    fn update_shape(&mut self, scatter: &Scatter<'_>, rank: usize) -> Result<String, OnnxError> {
        let mut dims = Vec::with_capacity(rank);
        for axis in 0..rank {
            dims.push(if axis == scatter.axis {
                self.length(scatter)?
            } else {
                self.dim(scatter.past_cache, &scatter.cache, axis)?
            });
        }
        let dims: Vec<_> = dims.iter().map(String::as_str).collect();
        self.editor.shared(NewNode::new("Concat", &dims).int("axis", 0).called("update_shape"))
    }

    /// Returns the positions on the axis, int64 `[batch or 1, 1…, length, 1…]` of rank `rank`.
    ///
    /// Invalid positions are replaced with positions beyond the end of the cache, which the engine rejects. A
    /// negative position would count from the end.
    fn positions(&mut self, scatter: &Scatter<'_>, rank: usize) -> Result<String, OnnxError> {
        let length = self.length(scatter)?;
        let capacity = self.dim(scatter.past_cache, &scatter.cache, scatter.axis)?;
        let steps = self.range(&length)?;
        let starts = self.starts(scatter)?;
        let positions = match scatter.mode {
            Mode::Linear => {
                let zero = self.editor.scalar_i64(0)?;
                let unchecked = self.editor.shared(NewNode::new("Add", &[&starts, &steps]))?;
                // A sum that overflows is negative too.
                let is_wrong = self.editor.shared(NewNode::new("Less", &[&unchecked, &zero]))?;
                self.editor
                    .shared(NewNode::new("Where", &[&is_wrong, &capacity, &unchecked]).called("positions"))?
            }
            Mode::Circular => {
                let one = self.editor.ints(&[1])?;
                // The modulus is at least 1. If the capacity is 0, the update has no rows, or the engine
                // rejects it.
                let modulus = self.editor.shared(NewNode::new("Max", &[&capacity, &one]))?;
                // The start is reduced before the sum, so the sum cannot overflow.
                let starts = self.editor.shared(NewNode::new("Mod", &[&starts, &modulus]))?;
                let sum = self.editor.shared(NewNode::new("Add", &[&starts, &steps]))?;
                let wrapped = self.editor.shared(NewNode::new("Mod", &[&sum, &modulus]))?;
                let fits = self.editor.shared(NewNode::new("Less", &[&steps, &capacity]))?;
                self.editor
                    .shared(NewNode::new("Where", &[&fits, &wrapped, &capacity]).called("positions"))?
            }
            other => return Err(EvalError::Mode { mode: format!("{other:?}") }.into()),
        };
        self.unsqueeze(&positions, (1..rank).filter(|&axis| axis != scatter.axis))
    }

    /// Returns `write_indices` as int64 `[batch, 1]`, or zeros `[1, 1]` if they are absent. The engine
    /// rejects them at run time unless there is one for each sample.
    fn starts(&mut self, scatter: &Scatter<'_>) -> Result<String, OnnxError> {
        let one = self.editor.ints(&[1])?;
        let Some(write_indices) = scatter.write_indices else {
            let zero = self.editor.ints(&[0])?;
            return self.unsqueeze(&zero, [0]);
        };
        let batch = self.dim(scatter.past_cache, &scatter.cache, 0)?;
        let column = self.editor.shared(NewNode::new("Concat", &[&batch, &one]).int("axis", 0))?;
        // With `allowzero`, a batch of 0 keeps its meaning.
        self.editor
            .shared(NewNode::new("Reshape", &[write_indices, &column]).int("allowzero", 1).called("starts"))
    }

    /// Returns the update's length, int64 `[1]`.
    fn length(&mut self, scatter: &Scatter<'_>) -> Result<String, OnnxError> {
        self.size(scatter.update, scatter.length, scatter.axis)
    }

    /// Returns a dimension of the cache, int64 `[1]`.
    fn dim(&mut self, value: &str, dims: &[Dimension<'_>], axis: usize) -> Result<String, OnnxError> {
        self.size(value, dims.get(axis).copied().unwrap_or(Dimension::Unknown), axis)
    }

    /// Returns a dimension as a value, int64 `[1]`. The value is a constant, an existing value for the same
    /// symbol, or read from the shape of the tensor.
    fn size(&mut self, value: &str, declared: Dimension<'_>, axis: usize) -> Result<String, OnnxError> {
        if let Dimension::Known(size) = declared {
            return self.editor.ints(&[signed(size)]);
        }
        if let Dimension::Symbolic(symbol) = declared
            && let Some(size) = self.symbols.get(symbol)
        {
            return Ok(size.clone());
        }
        let (start, end) = (signed(axis), signed(axis.saturating_add(1)));
        let size = NewNode::new("Shape", &[value]).int("start", start).int("end", end).called("size");
        let size = self.editor.shared(size)?;
        if let Dimension::Symbolic(symbol) = declared {
            self.symbols.insert(symbol.to_owned(), size.clone());
        }
        Ok(size)
    }

    /// Returns 0, 1, 2… below a size, int64 of rank 1.
    fn range(&mut self, size: &str) -> Result<String, OnnxError> {
        let (zero, one) = (self.editor.scalar_i64(0)?, self.editor.scalar_i64(1)?);
        let first = self.editor.ints(&[0])?;
        let size = self.editor.shared(NewNode::new("Squeeze", &[size, &first]))?;
        self.editor.shared(NewNode::new("Range", &[&zero, &size, &one]).called("steps"))
    }

    /// Inserts dimensions of 1 at these axes of the result.
    fn unsqueeze(&mut self, value: &str, axes: impl IntoIterator<Item = usize>) -> Result<String, OnnxError> {
        let axes: Vec<_> = axes.into_iter().map(signed).collect();
        if axes.is_empty() {
            return Ok(value.to_owned());
        }
        let axes = self.editor.ints(&axes)?;
        self.editor.shared(NewNode::new("Unsqueeze", &[value, &axes]))
    }
}
