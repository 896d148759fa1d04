//! Tests which caches of a converted decoder become rings, and how the model describes them.
//!
//! The tests of the engines compare the results with those of linear caches.

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::convert::{
    ConvertOptions, ConvertOutcome, ConvertRefusal, Converted, LinearReason, LinearWindow, RingSize,
    UNLIMITED, WindowedCaches, convert,
};
use kvscatter_onnx::decoder::{Cache, Decoder, InputRole, WriterStyle};
use kvscatter_onnx::{Model, Node};

use crate::support::{decoder, graph_mut, int, kinds, load, nodes_mut, refusal};

const MAX_SEQ: usize = 64;

/// A decoder of two layers, whose rotation looks up a table of positions.
fn llama(windows: &[i64]) -> Model {
    let mut model = load("mobius-llama-dynamic");
    let attentions = nodes_mut(graph_mut(&mut model), "Attention");
    for (node, window) in attentions.zip(windows).filter(|(_, window)| **window > 0) {
        node.attribute.push(int("left_window_size", window - 1));
    }
    model
}

/// A decoder whose two layers both have a window of 4, and which computes its rotation.
fn mistral() -> Model {
    load("decoders/optimum-0.1-mistral-window")
}

fn ring(chunk: usize, rewind: usize) -> WindowedCaches {
    WindowedCaches::Ring { chunk: Some(chunk), rewind }
}

fn converted(model: &Model, windowed: WindowedCaches) -> Converted {
    convert(model, ConvertOptions::new(MAX_SEQ).windowed(windowed)).unwrap()
}

/// Returns the number of slots and the mode of each cache.
fn caches(converted: &Converted) -> Vec<(usize, Mode)> {
    let slots_and_mode = |cache: &Cache<'_>| match cache.style {
        WriterStyle::TensorScatter(mode) => (cache.fixed_capacity().unwrap(), mode),
        _ => panic!("{cache:?}"),
    };
    decoder(&converted.model).caches.iter().map(slots_and_mode).collect()
}

#[test]
fn layers_with_windows_get_rings_of_their_own_size() {
    let size = |window: usize, capacity: usize| RingSize { capacity, window, chunk: 5, rewind: 2 };
    for (windows, expected) in [
        (&[3, 0][..], vec![(size(3, 9), 2)]),
        (&[0, 6], vec![(size(6, 12), 2)]),
        (&[3, 6], vec![(size(3, 9), 2), (size(6, 12), 2)]),
        (&[6, 6], vec![(size(6, 12), 4)]),
    ] {
        let converted = converted(&llama(windows), ring(5, 2));
        assert!(converted.report.caches.rings.clone().into_iter().eq(expected.clone()), "{windows:?}");
        let slots = windows.iter().flat_map(|window| match *window {
            0 => [(MAX_SEQ, Mode::Linear); 2],
            window => [(usize::try_from(window).unwrap() - 1 + 5 + 2, Mode::Circular); 2],
        });
        assert_eq!(caches(&converted), slots.collect::<Vec<_>>(), "{windows:?}");
        assert!(converted.report.caches.linear_windows.is_empty());
        assert_eq!(RingSize::of_model(&converted.model).unwrap().len(), expected.len());
        let slots: usize = caches(&converted).iter().map(|(slots, _)| slots).sum();
        let bytes = converted.report.caches.bytes_per_slot.unwrap() / 4 * u64::try_from(slots).unwrap();
        assert_eq!(converted.report.caches.bytes_per_sample, Some(bytes), "{windows:?}");
    }
}

/// The mask has what the attributes of the window hide. Heads follow from the shapes.
#[test]
fn attention_keeps_its_other_attributes() {
    let names = |model: &Model| -> Vec<Vec<String>> {
        let graph = model.graph().unwrap();
        let attentions = graph.nodes().iter().filter(|node| node.is("Attention"));
        let names =
            |node: &Node<'_>| node.proto().attribute.iter().map(|it| it.name.clone().unwrap()).collect();
        attentions.map(names).collect()
    };
    let mut exported = llama(&[3, 0]);
    let attentions = nodes_mut(graph_mut(&mut exported), "Attention");
    attentions.for_each(|node| node.attribute.push(int("softmax_precision", 1)));
    let gone = ["q_num_heads", "kv_num_heads", "is_causal", "left_window_size", "right_window_size"];
    let kept = names(&exported).into_iter().map(|mut names| {
        names.retain(|name| !gone.contains(&name.as_str()));
        names
    });
    let kept: Vec<_> = kept.collect();
    assert!(kept.iter().all(|names| names.contains(&"softmax_precision".to_owned())));
    assert_eq!(names(&converted(&exported, WindowedCaches::Mask).model), kept);
}

#[test]
fn chunk_and_rewind_have_defaults() {
    let converted = convert(&mistral(), MAX_SEQ).unwrap();
    let size = RingSize { capacity: 3 + 4 + 32, window: 4, chunk: 4, rewind: 32 };
    assert_eq!(converted.report.caches.rings.into_iter().collect::<Vec<_>>(), [(size, 4)]);
}

#[test]
fn a_mask_of_all_tokens_is_dropped_if_only_rings_would_read_it() {
    let has_mask = |converted: &Converted| {
        let has_input = decoder(&converted.model).input(InputRole::AttentionMask).is_some();
        assert_eq!(has_input, converted.report.inputs.attention_mask.is_some());
        assert_eq!(has_input, converted.model.metadata("kvscatter.attention_mask").is_some());
        has_input
    };
    let rings = converted(&mistral(), ring(2, 2));
    let masks = converted(&mistral(), WindowedCaches::Mask);
    let hybrid = converted(&llama(&[3, 0]), ring(2, 2));
    assert_eq!([&rings, &masks, &hybrid].map(has_mask), [false, true, true]);
    assert_eq!(masks.report.caches.rings.len() + masks.report.caches.linear_windows.len(), 0);
    assert_eq!(masks.model.metadata("kvscatter.rings"), None);
}

#[test]
fn windows_are_in_the_metadata() {
    for (model, expected) in
        [(llama(&[0, 0]), None), (llama(&[3, 0]), Some("3")), (llama(&[3, 6]), Some("3, 6"))]
    {
        for windowed in [WindowedCaches::Mask, ring(2, 2)] {
            let converted = converted(&model, windowed);
            let windows = converted.model.metadata("kvscatter.windows");
            assert_eq!(windows.and_then(|text| text.split(": ").next()), expected);
        }
        let ConvertOutcome::Convert { windows, .. } = ConvertOutcome::at(&model, MAX_SEQ) else { panic!() };
        assert_eq!(windows.are_any(), expected.is_some());
    }
}

/// Positions in int64 are the number of real tokens before each new token, without a cast.
#[test]
fn positions_of_rings_are_not_cast() {
    let converted = converted(&mistral(), ring(2, 2));
    let graph = converted.model.graph().unwrap();
    let positions = Decoder::from_graph(&graph).unwrap().input(InputRole::PositionIds).unwrap().name;
    let int64 = i64::from(ElementType::Int64.onnx_code());
    let casts = graph.nodes().iter().filter(|node| node.is("Cast") && node.input(0) == Some(positions));
    let to: Vec<_> = casts.filter_map(|cast| cast.int("to").unwrap()).collect();
    assert!(!to.contains(&int64), "{to:?}");
    assert!(graph.nodes().iter().any(|node| node.is("Unsqueeze") && node.input(0) == Some(positions)));
}

/// The metadata has the limit, because the graph does not show it.
#[test]
fn a_decoder_of_rings_ends_with_its_table_of_positions_or_never() {
    for (model, most) in
        [(mistral(), Some(UNLIMITED)), (llama(&[3, 3]), Some(MAX_SEQ)), (llama(&[3, 0]), None)]
    {
        let converted = converted(&model, ring(2, 2));
        assert_eq!(converted.report.caches.most_tokens, most);
        let entry = converted.model.metadata("kvscatter.most_tokens").map(str::to_owned);
        assert_eq!(entry, most.map(|most| most.to_string()));
    }
}

/// The table of this decoder is in another file, so its elements are not evaluated.
#[test]
fn a_table_that_is_not_read_ends_with_its_last_row() {
    let model = load("genai-llama-gqa");
    assert!(convert(&model, 128).is_ok());
    let table = "cos_cache".to_owned();
    assert_eq!(refusal(&model, 129), ConvertRefusal::Table { table, rows: 128, max_seq: 129 });
}

#[test]
fn windows_without_a_ring_are_listed_with_the_reason() {
    let large = converted(&mistral(), ring(60, 1));
    let separate = convert(&mistral(), ConvertOptions::new(MAX_SEQ).keep_attention(true)).unwrap();
    for (converted, reason) in
        [(large, LinearReason::NotSmaller { ring: 64, max_seq: MAX_SEQ }), (separate, LinearReason::Reader)]
    {
        let caches = converted.report.caches;
        assert!(caches.rings.is_empty());
        assert_eq!(caches.linear_windows, [LinearWindow { window: 4, attentions: 2, reason }]);
    }
}

/// Rings beside linear caches, and rings of several capacities, are what a conversion makes.
#[test]
fn rings_of_a_conversion_are_no_hazard() {
    for windows in [[3, 0], [3, 6]] {
        let kinds = kinds(&decoder(&converted(&llama(&windows), ring(5, 2)).model).hazards());
        assert!(!kinds.iter().any(|kind| kind.starts_with("mixed")), "{windows:?}: {kinds:?}");
    }
}

#[test]
fn a_size_is_read_as_it_is_written() {
    let size = RingSize { capacity: 9, window: 3, chunk: 5, rewind: 2 };
    assert_eq!(size.to_string().parse(), Ok(size));
    assert!(size.is_sound() && !RingSize { capacity: 8, ..size }.is_sound());
    assert!(!RingSize { window: 0, ..size }.is_sound() && !RingSize { chunk: 0, ..size }.is_sound());
    for wrong in
        ["", "capacity=9", "capacity=9 window=3 chunk=5 rewind=-1", "window=3 capacity=9 chunk=5 rewind=2"]
    {
        let error = wrong.parse::<RingSize>().unwrap_err();
        assert_eq!(error.to_string(), format!("{wrong:?} is not capacity=C window=W chunk=S rewind=R"));
    }
}
