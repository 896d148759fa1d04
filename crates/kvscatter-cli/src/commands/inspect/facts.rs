//! The facts of an inspected model, and the sizes for which its costs are computed.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter_onnx::CheckedRing;
use kvscatter_onnx::ExportForm;
use kvscatter_onnx::convert::ConvertOutcome;
use kvscatter_onnx::decoder::{Cache, Cost, CostAt, Decoder, Hazard, QuantizedPart, TensorRtRefusal};

use super::group_query::Coverage;

/// The facts of an inspected model.
pub(super) struct Inspected<'a> {
    pub(super) model: String,
    pub(super) decoder: &'a Decoder<'a>,
    pub(super) caches: Vec<WholeCache<'a>>,
    pub(super) sizes: Sizes,
    /// The form of the model, if it is not a plain one.
    pub(super) form: Option<&'a ExportForm>,
    pub(super) hazards: Vec<Hazard>,
    /// The rings, and whether their attention reads them correctly.
    pub(super) rings: Vec<CheckedRing>,
    /// The result of converting the caches, if they grow or scatters write them.
    pub(super) advice: Option<ConvertOutcome>,
    /// The `GroupQueryAttention` nodes, if the model has any.
    pub(super) group_query_nodes: Option<Coverage>,
    /// The nodes that the target refuses, if there is a target.
    pub(super) refusals: Option<Vec<TensorRtRefusal>>,
    /// The number of `TensorScatter` nodes in the model.
    pub(super) scatters: usize,
}

/// A cache, with its scales if it contains codes.
#[derive(Clone, Copy)]
pub(super) struct WholeCache<'a> {
    pub(super) cache: &'a Cache<'a>,
    pub(super) scales: Option<&'a Cache<'a>>,
}

impl<'a> WholeCache<'a> {
    /// Returns the caches of a decoder, in its order.
    pub(super) fn all(decoder: &'a Decoder<'a>) -> Vec<Self> {
        let (scales, caches): (Vec<_>, Vec<_>) = decoder.caches.iter().partition(|cache| cache.is_scales());
        let scales: BTreeMap<_, _> = scales.into_iter().map(|scales| (scales.past, scales)).collect();
        let whole = |cache: &'a Cache<'a>| match cache.quantized {
            Some(QuantizedPart::Codes { scales: past }) => Self { cache, scales: scales.get(past).copied() },
            _ => Self { cache, scales: None },
        };
        caches.into_iter().map(whole).collect()
    }

    pub(super) fn cost(&self, sizes: &Sizes) -> Option<Cost> {
        total([Some(self.cache), self.scales].into_iter().flatten().map(|cache| cache.cost(&sizes.at())))
    }

    /// Returns the type of the numbers, such as `int8 + float scales`.
    pub(super) fn types(&self) -> String {
        let element = self.cache.element.onnx_name();
        self.scales.map_or_else(
            || element.to_owned(),
            |scales| format!("{element} + {} scales", scales.element.onnx_name()),
        )
    }
}

/// The sizes for which costs are computed.
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) capacity: usize,
    pub(super) dims: BTreeMap<String, usize>,
}

impl Sizes {
    pub(super) fn at(&self) -> CostAt<'_> {
        CostAt { batch: self.batch, length: self.length, capacity: self.capacity, dims: &self.dims }
    }
}

/// Returns the dimensions that the costs depend on and that have no size, each once.
pub(super) fn open_dims(decoder: &Decoder<'_>, dims: &BTreeMap<String, usize>) -> Vec<String> {
    let open: BTreeSet<_> = decoder.caches.iter().flat_map(|cache| cache.open_dims(dims)).collect();
    open.into_iter().collect()
}

/// Returns the sum of costs, or `None` if one of them is not known.
pub(super) fn total(costs: impl Iterator<Item = Option<Cost>>) -> Option<Cost> {
    let none = Cost { per_token: 0, size: 0, static_size: 0, copied: Some(0), copied_static: Some(0) };
    costs.into_iter().try_fold(none, |sum, cost| {
        let cost = cost?;
        let both = |left: Option<u64>, right: Option<u64>| left?.checked_add(right?);
        Some(Cost {
            per_token: sum.per_token.checked_add(cost.per_token)?,
            size: sum.size.checked_add(cost.size)?,
            static_size: sum.static_size.checked_add(cost.static_size)?,
            copied: both(sum.copied, cost.copied),
            copied_static: both(sum.copied_static, cost.copied_static),
        })
    })
}
