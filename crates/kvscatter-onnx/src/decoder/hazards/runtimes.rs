//! Finds nodes that known runtimes handle incorrectly. Each bug was observed in the named versions or found
//! in their source code.

use kvscatter::ElementType;

use super::hazard::{Hazard, RuntimeBug};
use crate::Node;
use crate::decoder::Decoder;
use crate::narrow_types::is_narrow;
use crate::onnx_attention::{MASK, NONPAD_KV_SEQLEN};

pub(super) fn find(decoder: &Decoder<'_>, hazards: &mut Vec<Hazard>) {
    let scatters = || decoder.caches.iter().filter(|cache| cache.is_static());
    let mut found = |bug, node: Option<Node<'_>>| {
        hazards.extend(node.map(|node| Hazard::RuntimeBug { bug, node: node.label() }));
    };
    let first = scatters().find_map(|cache| cache.writer);
    found(RuntimeBug::NoKernel, first);
    let odd = scatters().find(|cache| !has_kernel(cache.element));
    if let Some(cache) = odd {
        found(RuntimeBug::NoKernelForType(cache.element), cache.writer);
    }
    found(RuntimeBug::RowsLeftWritten, first);
    found(RuntimeBug::IndexClamped, first);
    let is_causal = |node: &Node<'_>| node.flag("is_causal");
    let causal = decoder
        .graph
        .nodes()
        .iter()
        .find(|node| node.is("Attention") && is_causal(node) && node.input(NONPAD_KV_SEQLEN).is_some());
    if first.is_some() {
        found(RuntimeBug::MaskTopLeft, causal.copied());
    }
    let capped = decoder.graph.nodes().iter().find(|node| {
        let is_masked =
            is_causal(node) || [MASK, NONPAD_KV_SEQLEN].iter().any(|&slot| node.input(slot).is_some());
        node.caps_scores() && is_masked
    });
    found(RuntimeBug::CapAfterMask, capped.copied());
    let circular = scatters().find(|cache| cache.is_ring());
    found(RuntimeBug::ModuloEverywhere, circular.and_then(|cache| cache.writer));
}

/// Returns `true` if ONNX Runtime's kernel of `TensorScatter` supports the type.
fn has_kernel(element: ElementType) -> bool {
    use ElementType::{Complex64, Complex128, String};
    !is_narrow(element) && !matches!(element, String | Complex64 | Complex128)
}
