//! Tests each rule of TensorRT in a graph that breaks it and no other.

use kvscatter::spec::tensorrt::{KvCacheUpdate, NetworkError};
use kvscatter::{Argument, ElementType, Error, Mode};
use kvscatter_onnx::decoder::{Decoder, TensorRtRule};

use super::made::Made;
use crate::support::values;

fn network(name: &str, error: NetworkError) -> (String, TensorRtRule) {
    (name.to_owned(), TensorRtRule::Network(error))
}

fn cache(name: &str, ty: &str) -> Made {
    let present = name.replace("past", "present");
    Made::fixed().input(&format!("{name}: {ty}")).output(&format!("{present}: {ty}"))
}

fn on_axis(axis: i64) -> Made {
    Made::fixed().with_attributes("present_k", &format!("axis={axis}"))
}

#[test]
fn accepted_decoders() {
    let narrow = |element| {
        let ty = |length| format!("{element}[batch, 2, {length}, 16]");
        cache("past_k", &ty("64")).input(&format!("new_k: {}", ty("s")))
    };
    for (what, made) in [
        ("static", Made::fixed()),
        ("float16", narrow("float16")),
        ("bfloat16", narrow("bfloat16")),
        ("axis 2", on_axis(2)),
        // No layer is made of these.
        ("growing", Made::growing()),
        ("Attention with a past", Made::attention_past()),
        ("GroupQueryAttention", Made::group_query()),
        ("an update as long as the cache", Made::fixed().input("new_k: float[batch, 2, 64, 16]")),
        // It is not known what TensorRT makes of an update that is a cache.
        ("a cache as an update", Made::fixed().reads("present_k", &["past_k", "past_k", "write_indices"])),
    ] {
        assert_eq!(made.refusals(), [], "{what}");
    }
}

#[test]
fn rank_axis_and_mode() {
    let flat = cache("past_v", "float[batch, 64, 32]");
    let error = Error::Rank { argument: Argument::Cache, rank: 3, expected: &[4] };
    assert_eq!(flat.refusals(), [network("npresent_v", NetworkError::Layer { layer: 1, error })]);

    for axis in [1, 3, -1, -3] {
        assert_eq!(on_axis(axis).refusals(), [("npresent_k".to_owned(), TensorRtRule::Axis { axis })]);
    }
    let made = Made::fixed().with_attributes("present_k", r#"mode="circular""#);
    assert_eq!(made.refusals(), [("npresent_k".to_owned(), TensorRtRule::Mode { mode: Mode::Circular })]);
}

#[test]
fn indices_have_one_dimension() {
    let error = Error::Rank { argument: Argument::TensorRtWriteIndices, rank: 2, expected: &[1] };
    let rule = |layer| NetworkError::Layer { layer, error };
    let refused = [network("npresent_k", rule(0)), network("npresent_v", rule(1))];
    assert_eq!(Made::fixed().input("write_indices: int64[batch, 1]").refusals(), refused);
}

#[test]
fn types_and_capacity() {
    let made = cache("past_k", "int8[batch, 2, 64, 16]");
    let (element, accepted) = (ElementType::Int8, KvCacheUpdate::ELEMENT_TYPES);
    let error = Error::ElementType { argument: Argument::Cache, element, accepted };
    assert_eq!(made.refusals(), [network("npresent_k", NetworkError::Layer { layer: 0, error })]);

    for open in ["capacity", "?"] {
        let error = NetworkError::DynamicMaxSequenceLength { layer: 0 };
        let made = cache("past_k", &format!("float[batch, 2, {open}, 16]"));
        assert_eq!(made.refusals(), [network("npresent_k", error)]);
    }
}

#[test]
fn where_caches_come_from_and_go_to() {
    let first = Made::fixed().reading("past_k", "same").before("same = Identity(past_k)");
    let error = NetworkError::CacheNotNetworkInput { layer: 0 };
    assert_eq!(first.refusals(), [network("npresent_k", error)]);

    let last = Made::fixed().making("present_v", "raw").reading("present_v", "raw");
    let error = NetworkError::OutputNotMarked { layer: 1 };
    let refusals = last.node("present_v = Identity(raw)").refusals();
    assert_eq!(refusals, [network("npresent_v", error)], "the node keeps its name");
}

#[test]
fn layers_that_meet() {
    let written = |from: &str| {
        let made = Made::fixed().node(&format!("other = TensorScatter({from}, new_k, write_indices)"));
        made.output("other: float[batch, 2, 64, 16]").refusals()
    };
    let error = NetworkError::CacheSharedByLayers { layer: 2, first: 0 };
    assert_eq!(written("past_k"), [network("nother", error)]);
    let from = |layer, argument| NetworkError::FedByLayer { layer, from: 0, argument };
    let errors = [NetworkError::CacheNotNetworkInput { layer: 2 }, from(2, Argument::Cache)];
    assert_eq!(written("present_k"), errors.map(|error| network("nother", error)));

    let update = Made::fixed().reads("present_v", &["past_v", "present_k", "write_indices"]);
    assert_eq!(update.refusals(), [network("npresent_v", from(1, Argument::Update))]);
}

#[test]
fn every_rule_that_a_node_breaks_is_listed() {
    let made = cache("past_k", "int8[batch, 2, capacity, 16]")
        .with_attributes("present_k", r#"mode="circular", axis=1"#);
    let (element, accepted) = (ElementType::Int8, KvCacheUpdate::ELEMENT_TYPES);
    let error = Error::ElementType { argument: Argument::Cache, element, accepted };
    assert_eq!(
        made.refusals(),
        [
            ("npresent_k".to_owned(), TensorRtRule::Mode { mode: Mode::Circular }),
            network("npresent_k", NetworkError::Layer { layer: 0, error }),
            ("npresent_k".to_owned(), TensorRtRule::Axis { axis: 1 }),
        ]
    );
}

#[test]
fn refusals_in_words() {
    let model = on_axis(1).model();
    let refusals = Decoder::from_graph(&model.graph().unwrap()).unwrap().tensorrt_refusals();
    let text: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(text, [r#"node 0 "npresent_k" (TensorScatter): axis = 1: must be -2 (or 2)"#]);
}

#[test]
fn updates_have_the_cache_s_type_and_fit() {
    let refused = |made: Made, error| {
        assert_eq!(made.refusals(), [network("npresent_k", NetworkError::Layer { layer: 0, error })]);
    };
    let (element, cache, argument) = (ElementType::Float16, ElementType::Float32, Argument::Update);
    let error = Error::ElementTypeMismatch { cache, argument, element };
    refused(Made::fixed().input("new_k: float16[batch, 2, s, 16]"), error);
    let long = "new_k: float[batch, 2, 65, 16]";
    let error = Error::UpdateLongerThanCache { argument, rows: 65, capacity: 64 };
    refused(Made::fixed().input(long), error);
    let refusals = on_axis(1).input(long).refusals();
    assert_eq!(refusals, [("npresent_k".to_owned(), TensorRtRule::Axis { axis: 1 })]);

    // A computed update has the type and shape that the graph declares, if it declares them.
    let mut made = Made::fixed().reading("new_k", "computed").before("computed = Relu(new_k)");
    assert_eq!(made.clone().refusals(), []);
    made.values = values("computed: float[batch, 2, 65, 16]");
    refused(made, error);
}
