//! Tests each rule of TensorRT in a graph that breaks it and no other.

use kvscatter::spec::tensorrt::{KvCacheUpdate, NetworkError};
use kvscatter::{Argument, ElementType, Error, Mode};
use kvscatter_onnx::decoder::TensorRtRule;
use kvscatter_onnx::proto::NodeProto;

use super::made::{Made, circular, scatter};
use crate::support::{int, node, value};

fn network(name: &str, error: NetworkError) -> (String, TensorRtRule) {
    (name.to_owned(), TensorRtRule::Network(error))
}

fn cache(made: Made, name: &str, element: ElementType, dims: &[&str]) -> Made {
    let present = name.replace("past", "present");
    made.input(value(name, element, dims)).output(value(&present, element, dims))
}

#[test]
fn what_it_takes() {
    assert_eq!(Made::fixed().refusals(), []);
    for element in [ElementType::Float16, ElementType::BFloat16] {
        let made = cache(Made::fixed(), "past_k", element, &["batch", "2", "64", "16"]);
        let made = made.input(value("new_k", element, &["batch", "2", "s", "16"]));
        assert_eq!(made.refusals(), []);
    }
    assert_eq!(
        Made::fixed().change("present_k", |node| node.attribute = vec![int("axis", 2)]).refusals(),
        []
    );
    for made in [Made::growing(), Made::attention_past(), Made::group_query()] {
        assert_eq!(made.refusals(), [], "no layer is made of them");
    }
}

#[test]
fn rank_axis_and_mode() {
    let flat = cache(Made::fixed(), "past_v", ElementType::Float32, &["batch", "64", "32"]);
    let error = Error::Rank { argument: Argument::Cache, rank: 3, expected: &[4] };
    assert_eq!(flat.refusals(), [network("npresent_v", NetworkError::Layer { layer: 1, error })]);

    for axis in [1, 3, -1, -3] {
        let made = Made::fixed().change("present_k", |node| node.attribute = vec![int("axis", axis)]);
        assert_eq!(made.refusals(), [("npresent_k".to_owned(), TensorRtRule::Axis { axis })]);
    }
    let made = Made::fixed().change("present_k", circular);
    assert_eq!(made.refusals(), [("npresent_k".to_owned(), TensorRtRule::Mode { mode: Mode::Circular })]);
}

#[test]
fn indices_have_one_dimension() {
    let made = Made::fixed().input(value("write_indices", ElementType::Int64, &["batch", "1"]));
    let error = Error::Rank { argument: Argument::TensorRtWriteIndices, rank: 2, expected: &[1] };
    let rule = |layer| NetworkError::Layer { layer, error };
    let refused = [network("npresent_k", rule(0)), network("npresent_v", rule(1))];
    assert_eq!(made.refusals(), refused);
}

#[test]
fn types_and_capacity() {
    let element = ElementType::Int8;
    let made = cache(Made::fixed(), "past_k", element, &["batch", "2", "64", "16"]);
    let accepted = KvCacheUpdate::ELEMENT_TYPES;
    let error = Error::ElementType { argument: Argument::Cache, element, accepted };
    assert_eq!(made.refusals(), [network("npresent_k", NetworkError::Layer { layer: 0, error })]);

    for open in ["capacity", "?"] {
        let made = cache(Made::fixed(), "past_k", ElementType::Float32, &["batch", "2", open, "16"]);
        let error = NetworkError::DynamicMaxSequenceLength { layer: 0 };
        assert_eq!(made.refusals(), [network("npresent_k", error)]);
    }
}

#[test]
fn where_caches_come_from_and_go_to() {
    let handed_on =
        Made::fixed().reading("past_k", "same").before(vec![node("Identity", &["past_k"], "same")]);
    assert_eq!(
        handed_on.refusals(),
        [network("npresent_k", NetworkError::CacheNotNetworkInput { layer: 0 })]
    );

    let handed_on = Made::fixed().making("present_v", "raw").reading("present_v", "raw").node(node(
        "Identity",
        &["raw"],
        "present_v",
    ));
    let error = NetworkError::OutputNotMarked { layer: 1 };
    assert_eq!(handed_on.refusals(), [network("npresent_v", error)], "the node keeps its name");
}

#[test]
fn layers_that_meet() {
    let shared = Made::fixed().node(scatter("past_k", "new_k", "other")).output(value(
        "other",
        ElementType::Float32,
        &["batch", "2", "64", "16"],
    ));
    assert_eq!(
        shared.refusals(),
        [network("nother", NetworkError::CacheSharedByLayers { layer: 2, first: 0 })]
    );

    let chained = Made::fixed().node(scatter("present_k", "new_k", "later")).output(value(
        "later",
        ElementType::Float32,
        &["batch", "2", "64", "16"],
    ));
    assert_eq!(
        chained.refusals(),
        [
            network("nlater", NetworkError::CacheNotNetworkInput { layer: 2 }),
            network("nlater", NetworkError::FedByLayer { layer: 2, from: 0, argument: Argument::Cache }),
        ]
    );

    let update = Made::fixed().change("present_v", |node| node.input[1] = "present_k".to_owned());
    assert_eq!(
        update.refusals(),
        [network("npresent_v", NetworkError::FedByLayer { layer: 1, from: 0, argument: Argument::Update })]
    );
}

#[test]
fn every_rule_that_a_node_breaks_is_listed() {
    let element = ElementType::Int8;
    let made = cache(Made::fixed(), "past_k", element, &["batch", "2", "capacity", "16"])
        .change("present_k", circular)
        .change("present_k", |node| node.attribute.push(int("axis", 1)));
    let accepted = KvCacheUpdate::ELEMENT_TYPES;
    let error = Error::ElementType { argument: Argument::Cache, element, accepted };
    assert_eq!(
        made.refusals(),
        [
            ("npresent_k".to_owned(), TensorRtRule::Mode { mode: Mode::Circular }),
            network("npresent_k", NetworkError::Layer { layer: 0, error }),
            ("npresent_k".to_owned(), TensorRtRule::Axis { axis: 1 }),
        ]
    );
    let own_cache = Made::fixed().change("present_k", |node| node.input[1] = "past_k".to_owned());
    assert_eq!(own_cache.refusals(), [], "what TensorRT makes of an update that is a cache is not known");
}

#[test]
fn refusals_in_words() {
    let made = Made::fixed().change("present_k", |node| node.attribute = vec![int("axis", 1)]);
    let model = made.model();
    let graph = model.graph().unwrap();
    let refusals = kvscatter_onnx::decoder::Decoder::of(&graph).unwrap().tensorrt_refusals();
    let text: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(text, [r#"node 0 "npresent_k" (TensorScatter): axis = 1: must be -2 (or 2)"#]);
}

#[test]
fn updates_have_the_cache_s_type_and_fit() {
    let refused = |made: Made, error| {
        assert_eq!(made.refusals(), [network("npresent_k", NetworkError::Layer { layer: 0, error })]);
    };
    let (element, cache, argument) = (ElementType::Float16, ElementType::Float32, Argument::Update);
    let update = |element, length: &str| value("new_k", element, &["batch", "2", length, "16"]);
    let error = Error::ElementTypeMismatch { cache, argument, element };
    refused(Made::fixed().input(update(element, "s")), error);
    assert_eq!(Made::fixed().input(update(cache, "64")).refusals(), []);
    let error = Error::UpdateLongerThanCache { argument, rows: 65, capacity: 64 };
    refused(Made::fixed().input(update(cache, "65")), error);
    let on_axis_1 = |node: &mut NodeProto| node.attribute = vec![int("axis", 1)];
    let refusals = Made::fixed().input(update(cache, "65")).change("present_k", on_axis_1).refusals();
    assert_eq!(refusals, [("npresent_k".to_owned(), TensorRtRule::Axis { axis: 1 })]);

    // A computed update has the type and shape that the graph declares, if it declares them.
    let mut made =
        Made::fixed().reading("new_k", "computed").before(vec![node("Relu", &["new_k"], "computed")]);
    assert_eq!(made.clone().refusals(), []);
    made.values.push(value("computed", cache, &["batch", "2", "65", "16"]));
    refused(made, error);
}
