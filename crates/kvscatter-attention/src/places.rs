//! Where the rows of the operands lie in memory.

use crate::error::{AttentionError, Operand};
use crate::sizes::Sizes;

/// The distances between the samples, the heads and the rows of operands, in this order and in elements. A row is a
/// query, a key, a value or a result of one head, and its elements are neighbours. An operand without strides is dense.
///
/// In a cache of blocks, keys and values have the distances between blocks, heads and rows.
///
/// Keys `[batch, keys, heads, size]`, for example, have the strides `[keys * heads * size, size, heads * size]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// The strides of the queries.
    pub query: Option<[usize; 3]>,
    /// The strides of the keys.
    pub key: Option<[usize; 3]>,
    /// The strides of the values.
    pub value: Option<[usize; 3]>,
    /// The strides of `Y`. No two rows may share an element.
    pub output: Option<[usize; 3]>,
}

/// The places of the operands that may have strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) query: Place,
    pub(crate) key: Place,
    pub(crate) value: Place,
    pub(crate) output: Place,
}

/// The place of one operand: the distances between its samples, heads and rows, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The distance between samples, or between blocks.
    pub(crate) sample: usize,
    pub(crate) head: usize,
    pub(crate) row: usize,
    /// The number of rows of a block, in a cache of blocks.
    block: Option<usize>,
    /// The number of elements from the first one to the end of the last row.
    pub(crate) span: usize,
    pub(crate) is_dense: bool,
}

impl Places {
    pub(crate) fn new(sizes: &Sizes, strides: &Strides) -> Result<Self, AttentionError> {
        let place = |operand, strides: Option<[usize; 3]>| {
            strides.map_or_else(
                || Ok(Place::dense(sizes, operand)),
                |strides| Place::new(sizes, operand, strides),
            )
        };
        let Strides { query, key, value, output } = *strides;
        let places = Self {
            query: place(Operand::Query, query)?,
            key: place(Operand::Key, key)?,
            value: place(Operand::Value, value)?,
            output: place(Operand::Output, output)?,
        };
        places.output.check_apart(sizes.shape(Operand::Output))?;
        Ok(places)
    }

    /// Returns whether the heads of a slot are closer to each other than its neighbours.
    pub(crate) fn are_heads_together(&self) -> bool {
        [self.key, self.value].iter().all(|place| place.head < place.row)
    }
}

impl Place {
    /// Returns the place of a dense operand. A past and a present have rank 4 in every call.
    pub(crate) fn dense(sizes: &Sizes, operand: Operand) -> Self {
        let [samples, heads, length, size] = sizes.shape(operand);
        let is_by_token = match operand {
            Operand::Query | Operand::Output => sizes.is_query_by_token,
            Operand::Key | Operand::Value => sizes.is_cache_by_token,
            _ => false,
        };
        let sample = heads * length * size;
        let [head, row] = if is_by_token { [size, heads * size] } else { [length * size, size] };
        Self { sample, head, row, block: sizes.block_of(operand), span: samples * sample, is_dense: true }
    }

    /// Returns the place of an operand with strides. All offsets fit `isize`, in bytes of float32 (A1).
    fn new(sizes: &Sizes, operand: Operand, [sample, head, row]: [usize; 3]) -> Result<Self, AttentionError> {
        let [samples, heads, length, size] = sizes.shape(operand);
        let block = sizes.block_of(operand);
        if [samples, heads, length, size].contains(&0) {
            // Rows without elements are at the beginning, because nothing lies between two of them.
            return Ok(Self { sample: 0, head: 0, row: 0, block, span: 0, is_dense: false });
        }
        let span = [(samples, sample), (heads, head), (length, row)]
            .into_iter()
            .try_fold(size, |span, (count, stride)| span.checked_add((count - 1).checked_mul(stride)?));
        let fits = |span: &usize| {
            span.checked_mul(size_of::<f32>()).is_some_and(|bytes| isize::try_from(bytes).is_ok())
        };
        let span = span.filter(fits).ok_or(AttentionError::TooLarge { operand })?;
        // The stride of one row has no effect, but kernels multiply it. That of several rows is less than the span.
        Ok(Self { sample, head, row: row.min(span), block, span, is_dense: false })
    }

    /// Checks that no two rows of this shape share an element (A3): each stride is at least as long as what lies
    /// between two of its steps.
    fn check_apart(&self, [samples, heads, length, size]: [usize; 4]) -> Result<(), AttentionError> {
        let mut loops = [(self.sample, samples), (self.head, heads), (self.row, length)];
        if self.span == 0 {
            return Ok(());
        }
        loops.sort_unstable();
        let mut extent = size;
        for (stride, count) in loops.into_iter().filter(|(_, count)| *count > 1) {
            if stride < extent {
                let strides = [self.sample, self.head, self.row];
                return Err(AttentionError::Overlap { operand: Operand::Output, strides });
            }
            extent += stride * (count - 1);
        }
        Ok(())
    }

    /// Returns the offset of a row, which fits (A1). A row of a cache of blocks is counted from that of block 0.
    pub(crate) fn offset(&self, sample: usize, head: usize, row: usize) -> usize {
        let (outer, row) = match self.block {
            None => (sample, row),
            Some(rows) => (row / rows, row % rows),
        };
        outer * self.sample + head * self.head + row * self.row
    }
}
