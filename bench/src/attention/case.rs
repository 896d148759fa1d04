//! The description of one call of attention.

use kvscatter::ElementType;
use serde::Deserialize;

/// One call of attention over a static cache.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attention {
    pub(super) name: String,
    pub(super) element: Element,
    /// The number of query heads.
    pub(super) query_heads: usize,
    /// The number of heads of keys and values.
    pub(super) heads: usize,
    /// The number of elements of a head's row, for keys and values.
    #[serde(default = "usual_head_size")]
    pub(super) head_size: usize,
    /// The slots of each sample.
    pub(super) capacity: usize,
    /// The new tokens of each sample. They are in the last valid slots.
    #[serde(default = "one")]
    pub(super) queries: usize,
    /// The valid slots of each sample, with the new tokens.
    pub(super) valid: Vec<usize>,
    #[serde(default = "one")]
    pub(super) threads: usize,
    /// The number of layers, of which each call reads the next one, in subjects that convert the caches.
    #[serde(default = "one")]
    pub(super) layers: usize,
}

/// The element types that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Element {
    Float32,
    Float16,
}

impl Attention {
    /// Returns the number of samples.
    pub(super) fn batch(&self) -> usize {
        self.valid.len()
    }

    /// Returns the number of keys that the queries of one query head see, in all samples together.
    pub(super) fn seen(&self) -> usize {
        let of_sample =
            |valid: &usize| (0..self.queries).map(|query| valid - self.queries + query + 1).sum::<usize>();
        self.valid.iter().map(of_sample).sum()
    }
}

impl Element {
    pub(super) fn onnx(self) -> ElementType {
        match self {
            Self::Float32 => ElementType::Float32,
            Self::Float16 => ElementType::Float16,
        }
    }

    /// Returns the bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
        }
    }
}

fn one() -> usize {
    1
}

fn usual_head_size() -> usize {
    128
}
