//! Tests each rule of TensorRT in a graph that breaks it and no other.

use kvscatter::spec::tensorrt::{KvCacheUpdate, NetworkError};
use kvscatter::{Argument, ElementType, Error, Mode};
use kvscatter_onnx::decoder::TensorRtRule;

use super::made::Made;
use crate::support::{decoder, values};

/// A rule that the node of this name breaks.
type Broken = (String, TensorRtRule);

fn network(name: &str, error: NetworkError) -> Broken {
    (name.to_owned(), TensorRtRule::Network(error))
}

/// Returns the rule of a layer that one of the two updates breaks.
fn layer(layer: usize, error: Error) -> Broken {
    network(["npresent_k", "npresent_v"][layer], NetworkError::Layer { layer, error })
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
        ("a cache as an update", Made::fixed().edit("new_k", "past_k")),
    ] {
        assert_eq!(made.refusals(), [], "{what}");
    }
}

#[test]
fn layers_that_break_rules() {
    let rank = |argument, rank, expected| Error::Rank { argument, rank, expected };
    let index_rank = rank(Argument::TensorRtWriteIndices, 2, &[1]);
    let accepted = KvCacheUpdate::ELEMENT_TYPES;
    let int8 = Error::ElementType { argument: Argument::Cache, element: ElementType::Int8, accepted };
    let (element, argument) = (ElementType::Float16, Argument::Update);
    let narrow = Error::ElementTypeMismatch { cache: ElementType::Float32, argument, element };
    let too_long = Error::UpdateLongerThanCache { argument, rows: 65, capacity: 64 };
    let long = "new_k: float[batch, 2, 65, 16]";
    let of_first = |rule| ("npresent_k".to_owned(), rule);
    let axis = |axis| of_first(TensorRtRule::Axis { axis });
    let circular = of_first(TensorRtRule::Mode { mode: Mode::Circular });
    let open = network("npresent_k", NetworkError::DynamicMaxSequenceLength { layer: 0 });
    let other = |from: &str| {
        let made = Made::fixed().node(&format!("other = TensorScatter({from}, new_k, write_indices)"));
        made.output("other: float[batch, 2, 64, 16]")
    };
    let fed = |layer, argument| NetworkError::FedByLayer { layer, from: 0, argument };
    // A computed update has the type and shape that the graph declares, if it declares them.
    let mut computed = Made::fixed().edit("new_k", "computed").before("computed = Relu(new_k)");
    assert_eq!(computed.clone().refusals(), []);
    computed.values = values("computed: float[batch, 2, 65, 16]");
    for (made, expected) in [
        (cache("past_v", "float[batch, 64, 32]"), vec![layer(1, rank(Argument::Cache, 3, &[4]))]),
        (on_axis(1), vec![axis(1)]),
        (on_axis(3), vec![axis(3)]),
        (on_axis(-1), vec![axis(-1)]),
        (on_axis(-3), vec![axis(-3)]),
        (Made::fixed().with_attributes("present_k", r#"mode="circular""#), vec![circular.clone()]),
        (
            Made::fixed().input("write_indices: int64[batch, 1]"),
            vec![layer(0, index_rank), layer(1, index_rank)],
        ),
        (cache("past_k", "int8[batch, 2, 64, 16]"), vec![layer(0, int8)]),
        (cache("past_k", "float[batch, 2, capacity, 16]"), vec![open.clone()]),
        (cache("past_k", "float[batch, 2, ?, 16]"), vec![open]),
        (
            Made::fixed().edit("(past_k", "(Identity(past_k)"),
            vec![network("npresent_k", NetworkError::CacheNotNetworkInput { layer: 0 })],
        ),
        (
            Made::fixed().edit("present_v", "raw").node("present_v = Identity(raw)"),
            vec![network("nraw", NetworkError::OutputNotMarked { layer: 1 })],
        ),
        (other("past_k"), vec![network("nother", NetworkError::CacheSharedByLayers { layer: 2, first: 0 })]),
        (
            other("present_k"),
            vec![
                network("nother", NetworkError::CacheNotNetworkInput { layer: 2 }),
                network("nother", fed(2, Argument::Cache)),
            ],
        ),
        (Made::fixed().edit("new_v", "present_k"), vec![network("npresent_v", fed(1, Argument::Update))]),
        (
            cache("past_k", "int8[batch, 2, capacity, 16]")
                .with_attributes("present_k", r#"mode="circular", axis=1"#),
            vec![circular, layer(0, int8), axis(1)],
        ),
        (Made::fixed().input("new_k: float16[batch, 2, s, 16]"), vec![layer(0, narrow)]),
        (Made::fixed().input(long), vec![layer(0, too_long)]),
        (on_axis(1).input(long), vec![axis(1)]),
        (computed, vec![layer(0, too_long)]),
    ] {
        let nodes = made.nodes.clone();
        assert_eq!(made.refusals(), expected, "{nodes}");
    }
}

#[test]
fn refusals_in_words() {
    let refusals = decoder(&on_axis(1).model()).tensorrt_refusals();
    let text: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(text, [r#"node 0 "npresent_k" (TensorScatter): axis = 1: must be -2 (or 2)"#]);
}
