//! Tests graphs of many nodes or caches. Each must return a decoder or an error quickly. `tests/hostile` changes models
//! at random.

use std::collections::BTreeMap;

use kvscatter_onnx::check_rings;
use kvscatter_onnx::decoder::{CostAt, Decoder};
use kvscatter_onnx::{DecoderError, Model, OnnxError};

use super::made::Made;
use crate::support::parsed;

/// Queries everything about a model.
fn ask(model: &Model) -> Result<usize, OnnxError> {
    let graph = model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    let dims = BTreeMap::new();
    for cache in &decoder.caches {
        let _ =
            (cache.cost(&CostAt { batch: 2, length: 7, capacity: 9, dims: &dims }), cache.open_dims(&dims));
        assert!(cache.axis < cache.past_shape.len());
        assert_eq!(cache.past_shape.len(), cache.known_shape.len());
    }
    let of_rings = check_rings(model, &graph, &decoder).into_iter().filter_map(|ring| ring.outcome.err());
    for hazard in decoder.hazards().into_iter().chain(of_rings) {
        let _ = (hazard.to_string(), hazard.kind(), hazard.node(), hazard.cache());
    }
    for refusal in decoder.tensorrt_refusals() {
        let _ = refusal.to_string();
    }
    Ok(decoder.caches.len())
}

/// The chains are far longer than those of any exporter.
#[test]
fn endless_chains_and_fans() {
    let link = |at: usize| match at {
        0 => "past_k".to_owned(),
        at => format!("link{at}"),
    };
    const LINKS: usize = 20_000;
    let chain = |op_type: &str| -> String {
        (0..LINKS).map(|at| format!("{} = {op_type}({});", link(at + 1), link(at))).collect()
    };
    for op_type in ["Identity", "Neg"] {
        let made = Made::fixed().reading("past_k", &link(LINKS)).before(&chain(op_type));
        // The chain is not followed to its end, so no past is found for this present.
        assert!(matches!(ask(&made.model()).unwrap_err().cause(), Some(DecoderError::CacheNotFed { .. })));
    }
    let fan: String = (0..LINKS).map(|at| format!("fan{at} = Unsqueeze(present_k);")).collect();
    let made = Made::fixed().node(&fan);
    assert_eq!(ask(&made.model()).unwrap(), 2);
}

/// A file of a few hundred bytes may claim any number of samples.
#[test]
fn inputs_get_numbers_only_if_a_mask_is_proven() {
    let made = Made::fixed().input("marks: int64[batch, 64], write_indices, nonpad: int64[100000]").model();
    let graph = made.graph().unwrap();
    let memory = allocation_counter::measure(|| drop(Decoder::from_graph(&graph).unwrap()));
    assert!(memory.bytes_max < 100_000, "{} bytes", memory.bytes_max);
}

/// The graph has as many caches as possible, all through one node of an unknown operator.
#[test]
fn many_caches_of_one_node() {
    const CACHES: usize = 5_000;
    let names = |what: &str| (0..CACHES).map(|at| format!("{what}{at}")).collect::<Vec<_>>().join(", ");
    let (pasts, presents) = (names("past"), names("present"));
    let model = parsed(
        &format!("{pasts}: float[b, 2, s, 4]"),
        &format!("{presents} = Everything@com.microsoft({pasts})"),
        &format!("{presents}: float[b, 2, s, 4]"),
    );
    assert_eq!(ask(&model).unwrap(), CACHES);
}
