//! What is known about a call of attention before its arrays are: by a program when it is compiled, and by the
//! functions of the Python package.

use kvscatter::{ElementType, Mode};
use kvscatter_attention::{Attention, AttentionError, Prepared, Shapes, Strides};

/// The order of the dimensions of queries, keys, values and the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionLayout {
    /// `[batch, heads, sequence, size]`.
    Bhsd,
    /// `[batch, sequence, heads, size]`.
    Bshd,
}

/// The types, shapes and attributes of a call of attention. Shapes are in the order of the layout.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the operator")]
pub struct AttentionForm {
    pub element: ElementType,
    pub cache_element: ElementType,
    pub query: [usize; 4],
    pub key: [usize; 4],
    pub value: [usize; 4],
    pub mask: Option<Vec<usize>>,
    pub has_sinks: bool,
    /// The number of blocks of a sample, in a cache of blocks.
    pub blocks_per_sample: Option<usize>,
    pub is_causal: bool,
    /// The number of positions that a query sees, its own included.
    pub window: Option<usize>,
    pub scale: Option<f32>,
    pub softcap: f32,
    pub mode: Mode,
    pub layout: AttentionLayout,
}

impl AttentionForm {
    /// Checks the form, and chooses the kernels.
    ///
    /// # Errors
    /// Returns the errors of attention about types, shapes and attributes.
    pub fn prepare(&self) -> Result<Prepared, AttentionError> {
        let strides = |shape| self.layout.strides(self.layout.ordered(shape));
        self.prepare_strided(&Strides {
            query: strides(self.query),
            key: strides(self.key),
            value: strides(self.value),
            output: strides(self.output()),
        })
    }

    /// Like [`prepare`](Self::prepare), for arrays that need not be dense.
    ///
    /// # Errors
    /// Returns the errors of attention about types, shapes, strides and attributes.
    pub fn prepare_strided(&self, strides: &Strides) -> Result<Prepared, AttentionError> {
        let mut operator = Attention::new()
            .causal(self.is_causal)
            .window(self.window.map(|window| window.saturating_sub(1)), None)
            .softcap(self.softcap)
            .cache_element(self.cache_element);
        if let Some(scale) = self.scale {
            operator = operator.scale(scale);
        }
        if self.mode == Mode::Circular {
            operator = operator.ring();
        }
        if self.has_sinks {
            operator = operator.sinks();
        }
        if let Some(blocks) = self.blocks_per_sample {
            operator = operator.blocks(blocks);
        }
        let [query, key, value] = [self.query, self.key, self.value].map(|shape| self.layout.ordered(shape));
        let shapes = Shapes {
            element: self.element,
            query: &query,
            key: &key,
            value: &value,
            mask: self.mask.as_deref(),
            past: None,
        };
        operator.prepare_strided(&shapes, strides)
    }

    /// Returns the shape of the result, in the order of the layout.
    #[must_use]
    pub fn output(&self) -> [usize; 4] {
        let [batch, a, b, _] = self.query;
        [batch, a, b, self.value[3]]
    }
}

impl AttentionLayout {
    /// The names of the layouts.
    pub const NAMES: [&str; 2] = ["bhsd", "bshd"];

    /// Returns the layout of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bhsd" => Some(Self::Bhsd),
            "bshd" => Some(Self::Bshd),
            _ => None,
        }
    }

    /// Exchanges heads and rows if the layout has the heads last.
    #[must_use]
    pub fn ordered<T>(self, [a, b, c, d]: [T; 4]) -> [T; 4] {
        if self == Self::Bhsd { [a, b, c, d] } else { [a, c, b, d] }
    }

    /// Returns the strides of a dense array of these batch, heads, rows and size. `None` stands for rows in this order.
    fn strides(self, [_, heads, rows, size]: [usize; 4]) -> Option<[usize; 3]> {
        // If a product is too large, so is the shape, which attention refuses.
        let row = heads.saturating_mul(size);
        (self == Self::Bshd).then(|| [rows.saturating_mul(row), size, row])
    }
}
