//! What a file of a saved sample contains, except the values.

use std::collections::BTreeSet;
use std::fmt;

use kvscatter::ElementType;
use kvscatter_onnx::Fingerprint;

use super::SavedError;

/// The name of the tensor with the ids of the tokens.
pub(super) const TOKENS: &str = "kvscatter.tokens";

/// The key of the header that does not name a tensor.
pub(super) const METADATA: &str = "__metadata__";

/// A sample, without the values of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedSample {
    pub(crate) model: Fingerprint,
    /// The cached tokens, in order.
    pub(crate) tokens: Vec<i64>,
    pub(crate) tensors: Vec<SavedTensor>,
}

/// A tensor of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedTensor {
    /// The name of the input.
    pub(crate) name: String,
    pub(crate) element: ElementType,
    /// The dimensions. Dimension 0 is 1, and the sequence dimension of a cache is the number of its rows.
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: SavedKind,
}

/// What a tensor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedKind {
    /// The rows of all cached tokens.
    Linear { axis: usize },
    /// The rows of the cached tokens from `first` on.
    Ring { axis: usize, capacity: usize, window: usize, first: usize },
    /// A value without rows.
    State,
    /// An input from an encoder, with the encoder's positions along this dimension.
    Encoder { axis: usize },
}

/// The parts of a tensor in which its rows follow each other. There is one for each index of the dimensions before the
/// sequence. A state or an input from an encoder is one part with one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) count: usize,
    /// The number of bytes of one part.
    pub(super) len: usize,
    /// The number of bytes of one row in one part.
    pub(super) row: usize,
}

impl SavedSample {
    /// Checks that the tensors have different names and belong to a sample with so many cached tokens.
    pub(super) fn check(tensors: &[SavedTensor], position: usize) -> Result<(), SavedError> {
        let mut names = BTreeSet::from([TOKENS, METADATA]);
        for tensor in tensors {
            if !names.insert(&tensor.name) {
                return Err(SavedError::Name { tensor: tensor.name.clone() });
            }
            tensor.check(position)?;
        }
        Ok(())
    }
}

impl SavedTensor {
    /// Returns the number of bytes, or 0 for a shape that is not possible.
    pub(crate) fn len(&self) -> usize {
        self.element.storage_len(&self.shape).unwrap_or_default()
    }

    /// Returns the dense parts of the tensor.
    pub(super) fn parts(&self) -> Parts {
        let (SavedKind::Linear { axis } | SavedKind::Ring { axis, .. }) = self.kind else {
            return Parts { count: 1, len: self.len(), row: self.len() };
        };
        let (outer, inner) = self.shape.split_at(axis.min(self.shape.len()));
        let len = self.element.storage_len(inner).unwrap_or_default();
        let rows = inner.first().copied().unwrap_or_default();
        // A product that is too large belongs to an empty tensor.
        let count = if len == 0 { 0 } else { outer.iter().product() };
        Parts { count, len, row: len.checked_div(rows).unwrap_or_default() }
    }

    fn check(&self, position: usize) -> Result<(), SavedError> {
        let tensor = || self.name.clone();
        let is_whole = self.element.bits().is_some_and(|bits| bits % 8 == 0);
        if !is_whole || self.element.safetensors_name().is_none() {
            return Err(SavedError::element(&self.name, self.element));
        }
        if self.shape.first() != Some(&1) || self.element.storage_len(&self.shape).is_none() {
            return Err(SavedError::Shape { tensor: tensor(), shape: self.shape.clone() });
        }
        let (axis, first) = match self.kind {
            SavedKind::Linear { axis } => (axis, 0),
            SavedKind::Ring { axis, first, .. } => (axis, first),
            SavedKind::State => return Ok(()),
            SavedKind::Encoder { axis } if axis > 0 && axis < self.shape.len() => return Ok(()),
            SavedKind::Encoder { axis } => {
                return Err(SavedError::Axis { tensor: tensor(), axis, rank: self.shape.len() });
            }
        };
        let rows = self.shape.get(axis).copied().filter(|_| axis > 0);
        let rows = rows.ok_or(SavedError::Axis { tensor: tensor(), axis, rank: self.shape.len() })?;
        if position.checked_sub(first) != Some(rows) {
            return Err(SavedError::Rows { tensor: tensor(), got: rows, first, position });
        }
        match self.kind {
            SavedKind::Ring { capacity, window, .. }
                if rows > capacity || !(1..=capacity).contains(&window) =>
            {
                Err(SavedError::Ring { tensor: tensor(), rows, capacity, window })
            }
            _ => Ok(()),
        }
    }
}

/// Writes the type, the shape and the kind, such as `float [1, 2, 5, 16], linear along dimension 2`.
impl fmt::Display for SavedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { element, shape, kind, .. } = self;
        write!(f, "{element} {shape:?}, ")?;
        match kind {
            SavedKind::Linear { axis } => write!(f, "linear along dimension {axis}"),
            SavedKind::Ring { axis, window, .. } => {
                write!(f, "a ring along dimension {axis} for a window of {window}")
            }
            SavedKind::State => f.write_str("a state"),
            SavedKind::Encoder { axis } => write!(f, "from an encoder along dimension {axis}"),
        }
    }
}
