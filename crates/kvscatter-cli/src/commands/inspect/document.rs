//! The JSON document of an inspection. Sizes are bytes, and unknown values are `null`.

use kvscatter_onnx::NodeLabel;
use kvscatter_onnx::convert::{CacheWindow, CheckedRing, ConvertOutcome, Windows};
use kvscatter_onnx::decoder::{Cache, Cost, Decoder, Hazard, Input, InputRole, TensorRtRefusal};
use serde::Serialize;

use super::facts::{Inspected, Sizes, total};
use super::words::{dim, part, role};
use crate::commands::merged::BranchDocument;

#[derive(Serialize)]
pub(super) struct InspectDocument<'a> {
    model: &'a str,
    batch: usize,
    length: usize,
    capacity: usize,
    caches: Vec<CacheDocument<'a>>,
    /// The cost of all caches.
    total: CostDocument,
    inputs: Vec<InputDocument<'a>>,
    logits: Option<&'a str>,
    /// The branch of a merged decoder that is inspected.
    #[serde(skip_serializing_if = "Option::is_none")]
    merged: Option<BranchDocument<'a>>,
    hazards: Vec<HazardDocument<'a>>,
    /// The rings, once for each node that reads one.
    rings: Vec<RingDocument<'a>>,
    /// The result of converting the growing caches, or `null` if there are none.
    convert: Option<AdviceDocument>,
    /// The nodes that TensorRT refuses, if it is the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensorrt: Option<Vec<RefusalDocument>>,
}

#[derive(Serialize)]
struct CacheDocument<'a> {
    past: &'a str,
    present: &'a str,
    style: String,
    holds: &'static str,
    #[serde(rename = "type")]
    element: &'static str,
    /// The sizes as text. A symbolic size is its name, and an unknown size is `?`.
    shape: Vec<String>,
    axis: usize,
    writer: Option<NodeDocument>,
    /// The nodes that make another tensor of the size of the cache.
    between: Vec<NodeDocument>,
    #[serde(flatten)]
    cost: CostDocument,
}

#[derive(Serialize)]
struct CostDocument {
    bytes_per_token: Option<u64>,
    bytes: Option<u64>,
    copied_per_step: Option<u64>,
    static_bytes: Option<u64>,
    static_copied_per_step: Option<u64>,
}

#[derive(Serialize)]
struct InputDocument<'a> {
    name: &'a str,
    is: &'static str,
    #[serde(rename = "type")]
    element: &'static str,
    shape: Option<Vec<String>>,
}

#[derive(Serialize)]
struct HazardDocument<'a> {
    kind: &'static str,
    cache: Option<&'a str>,
    node: Option<NodeDocument>,
    message: String,
}

/// The sizes for which a ring is sound. They are `null` if there is a hazard.
#[derive(Serialize)]
struct RingDocument<'a> {
    cache: &'a str,
    reader: Option<NodeDocument>,
    capacity: Option<usize>,
    window: Option<usize>,
    chunk: Option<usize>,
    rewind: Option<usize>,
    /// The kind of the hazard.
    hazard: Option<&'static str>,
}

#[derive(Serialize)]
struct AdviceDocument {
    max_seq: usize,
    /// The reason why `convert` refuses the model, or `null` if it succeeds.
    refused: Option<String>,
    /// The window of each attention that reads growing caches.
    windows: Vec<WindowDocument>,
    /// The bytes of all caches with `max_seq` slots of each sample, linear and with rings. They are `null` if a size
    /// is open, and the second one also if there is no ring.
    linear_bytes: Option<u64>,
    ring_bytes: Option<u64>,
}

#[derive(Serialize)]
struct WindowDocument {
    /// The past of the cache with the keys.
    cache: String,
    /// The number of tokens that a token sees, or `null` if it sees all.
    window: Option<usize>,
}

#[derive(Serialize)]
struct RefusalDocument {
    node: NodeDocument,
    message: String,
}

#[derive(Serialize)]
struct NodeDocument {
    index: usize,
    name: String,
    operator: String,
}

impl<'a> InspectDocument<'a> {
    pub(super) fn new(inspected: &'a Inspected<'_>) -> Self {
        let Inspected { model, decoder, sizes, hazards, refusals, .. } = inspected;
        let caches = &decoder.caches;
        let inputs = decoder.inputs.iter().filter(|input| !matches!(input.role, InputRole::Past(_)));
        Self {
            model,
            batch: sizes.batch,
            length: sizes.length,
            capacity: sizes.capacity,
            caches: caches.iter().map(|cache| CacheDocument::new(cache, sizes)).collect(),
            total: CostDocument::new(total(caches.iter().map(|cache| cache.cost(&sizes.at())))),
            inputs: inputs.map(|input| InputDocument::new(decoder, input)).collect(),
            logits: decoder.logits.as_ref().map(|logits| logits.name),
            merged: inspected.branch.map(BranchDocument::from),
            hazards: hazards.iter().map(HazardDocument::new).collect(),
            rings: inspected.rings.iter().map(RingDocument::new).collect(),
            convert: inspected.advice.as_ref().map(|advice| AdviceDocument::new(advice, sizes.batch)),
            tensorrt: refusals.as_ref().map(|refusals| refusals.iter().map(RefusalDocument::new).collect()),
        }
    }
}

impl<'a> CacheDocument<'a> {
    fn new(cache: &'a Cache<'_>, sizes: &Sizes) -> Self {
        Self {
            past: cache.past,
            present: cache.present,
            style: cache.style.to_string(),
            holds: part(cache.part),
            element: cache.element.onnx_name(),
            shape: cache.known_shape.iter().map(dim).collect(),
            axis: cache.axis,
            writer: cache.writer.map(|writer| NodeDocument::new(&writer.label())),
            between: cache.between.iter().map(|node| NodeDocument::new(&node.label())).collect(),
            cost: CostDocument::new(cache.cost(&sizes.at())),
        }
    }
}

impl CostDocument {
    fn new(cost: Option<Cost>) -> Self {
        Self {
            bytes_per_token: cost.map(|cost| cost.per_token),
            bytes: cost.map(|cost| cost.size),
            copied_per_step: cost.and_then(|cost| cost.copied),
            static_bytes: cost.map(|cost| cost.static_size),
            static_copied_per_step: cost.and_then(|cost| cost.copied_static),
        }
    }
}

impl<'a> InputDocument<'a> {
    fn new(decoder: &Decoder<'_>, input: &'a Input<'_>) -> Self {
        Self {
            name: input.value.name,
            is: role(decoder, input),
            element: input.value.element.onnx_name(),
            shape: input.value.shape.as_ref().map(|shape| shape.iter().map(dim).collect()),
        }
    }
}

impl<'a> HazardDocument<'a> {
    fn new(hazard: &'a Hazard) -> Self {
        Self {
            kind: hazard.kind(),
            cache: hazard.cache(),
            node: hazard.node().map(NodeDocument::new),
            message: hazard.to_string(),
        }
    }
}

impl<'a> RingDocument<'a> {
    fn new(ring: &'a CheckedRing) -> Self {
        let size = ring.outcome.as_ref().ok();
        Self {
            cache: &ring.past,
            reader: ring.reader.as_ref().map(NodeDocument::new),
            capacity: size.map(|size| size.capacity),
            window: size.map(|size| size.window),
            chunk: size.map(|size| size.chunk),
            rewind: size.map(|size| size.rewind),
            hazard: ring.outcome.as_ref().err().map(Hazard::kind),
        }
    }
}

impl AdviceDocument {
    fn new(advice: &ConvertOutcome, batch: usize) -> Self {
        let (max_seq, refused, windows) = match advice {
            ConvertOutcome::Convert { max_seq, windows } => (*max_seq, None, windows.clone()),
            ConvertOutcome::Refused { max_seq, cause, .. } => {
                (*max_seq, Some(cause.to_string()), Windows::default())
            }
        };
        let of_batch = |bytes: Option<u64>| bytes?.checked_mul(u64::try_from(batch).ok()?);
        Self {
            max_seq,
            refused,
            linear_bytes: of_batch(windows.linear_bytes),
            ring_bytes: of_batch(windows.ring_bytes),
            windows: windows.caches.into_iter().map(WindowDocument::from).collect(),
        }
    }
}

impl From<CacheWindow> for WindowDocument {
    fn from(CacheWindow { past, window }: CacheWindow) -> Self {
        Self { cache: past, window }
    }
}

impl RefusalDocument {
    fn new(refusal: &TensorRtRefusal) -> Self {
        Self { node: NodeDocument::new(&refusal.node), message: refusal.to_string() }
    }
}

impl NodeDocument {
    fn new(node: &NodeLabel) -> Self {
        Self { index: node.index, name: node.name.clone(), operator: node.op_type.clone() }
    }
}
