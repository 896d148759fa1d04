//! Tests the comparison of decoders with what the files beside them declare.

use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::decoder::Hazard;
use kvscatter_onnx::internal::declared::{Declared, hazards};
use kvscatter_onnx::internal::{MaskRule, mask_rule};

use crate::support::{decoder, first, graph_mut, int, load, nodes_mut};

const LLAMA: &str = "optimum-llama";
const WINDOWED: &str = "decoders/optimum-0.1-mistral-window";
const ALIBI: &str = "decoders/optimum-1.18-falcon";
const GQA: &str = "genai-llama-gqa";
const ATTENTION: &str = "mobius-llama-dynamic";

fn found(model: &Model, declared: &Declared) -> Vec<Hazard> {
    hazards(model, &model.graph().unwrap(), &decoder(model), declared)
}

const FILE: &str = "config.json";

fn window(window: usize) -> Declared {
    Declared { file: FILE.to_owned(), window: Some(window), ..Declared::default() }
}

fn window_missing(window: usize) -> Hazard {
    Hazard::WindowMissing { file: FILE.to_owned(), window }
}

#[test]
fn masks() {
    for (decoder, tokens, expected) in [
        (LLAMA, 64, Some(MaskRule::Causal)),
        (ATTENTION, 64, Some(MaskRule::Causal)),
        (ALIBI, 16, Some(MaskRule::Bias)),
        // The window is 4 tokens.
        (WINDOWED, 4, Some(MaskRule::Causal)),
        (WINDOWED, 5, Some(MaskRule::Windows([4].into()))),
        (WINDOWED, 64, Some(MaskRule::Windows([4].into()))),
        // The table of positions has 128 rows.
        (ATTENTION, 129, None),
        (GQA, 64, Some(MaskRule::Causal)),
        ("mobius-llama-static", 64, None),
    ] {
        assert_eq!(mask_rule(&load(decoder), tokens), expected, "{decoder} {tokens}");
    }
}

#[test]
fn windows_in_masks() {
    for (decoder, length, is_missing) in [
        (LLAMA, 32, true),
        (LLAMA, 4096, true),
        (ATTENTION, 32, true),
        // The decoder has no more positions, so the window is not reached.
        (ATTENTION, 127, false),
        (WINDOWED, 3, false),
        (WINDOWED, 4, false),
        (WINDOWED, 5, false),
        ("mobius-llama-static", 32, true),
        // The caches have 64 slots.
        ("mobius-llama-static", 62, true),
        ("mobius-llama-static", 63, false),
    ] {
        let expected: Vec<_> = is_missing.then(|| window_missing(length)).into_iter().collect();
        assert_eq!(found(&load(decoder), &window(length)), expected, "{decoder} {length}");
    }
    let differs = Hazard::WindowDiffers { file: FILE.to_owned(), window: 64, node: None, found: 4 };
    assert_eq!(found(&load(WINDOWED), &window(64)), [differs]);
    let converted = convert(&load(WINDOWED), ConvertOptions::new(64).windowed(WindowedCaches::Mask)).unwrap();
    assert_eq!(found(&converted.model, &window(4)), []);
    let [hazard] = found(&converted.model, &window(32)).try_into().unwrap();
    assert!(matches!(hazard, Hazard::WindowDiffers { window: 32, node: Some(_), found: 4, .. }), "{hazard}");
    // Caches of keys that no attention reads have no window either.
    let mut unread = load("mobius-llama-static");
    let graph = graph_mut(&mut unread);
    let update = graph.node[first(graph, "TensorScatter")].input[1].clone();
    nodes_mut(graph, "Attention").for_each(|node| node.input[1].clone_from(&update));
    assert_eq!(found(&unread, &window(32)), [window_missing(32)]);
    // A window that is as long as the longest text hides nothing.
    assert_eq!(found(&load(LLAMA), &Declared { context: Some(32), ..window(32) }), []);
}

/// Returns a static decoder in which `count` more nodes read the first cache of keys. Each sees this many slots before
/// its own.
fn with_readers(count: usize, limit: impl Fn(usize) -> i64) -> Model {
    let mut model = load("mobius-llama-static");
    let graph = graph_mut(&mut model);
    let first = graph.node[first(graph, "Attention")].clone();
    graph.node.extend((0..count).map(|at| {
        let mut reader = first.clone();
        (reader.name, reader.output) = (None, vec![format!("read{at}")]);
        reader.attribute.push(int("left_window_size", limit(at)));
        reader
    }));
    model
}

#[test]
fn each_mask_is_evaluated_once() {
    let allocations = |readers| {
        let model = with_readers(readers, |_| 40);
        let (graph, decoder) = (model.graph().unwrap(), decoder(&model));
        allocation_counter::measure(|| drop(hazards(&model, &graph, &decoder, &window(32)))).count_total
    };
    let [few, many] = [1, 100].map(allocations);
    // The label of a node takes a few allocations, and an evaluation takes hundreds.
    assert!(many < few + 99 * 10, "{few} allocations for 1 more node, and {many} for 100");
}

/// A file may have any number of masks, and each takes an evaluation of the graph.
#[test]
fn decoders_with_too_many_masks_are_not_evaluated() {
    let found = |readers: usize| {
        found(&with_readers(readers, |at| 40 + i64::try_from(at).unwrap()), &window(32)).len()
    };
    // The decoder itself has one mask.
    assert_eq!([15, 16].map(found), [1, 0]);
}

#[test]
fn windows_in_attributes() {
    let mut model = load(GQA);
    assert_eq!(found(&model, &window(32)), [window_missing(32)]);
    for (at, node) in nodes_mut(graph_mut(&mut model), "GroupQueryAttention").enumerate() {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some("local_window_size"));
        node.attribute.push(int("local_window_size", if at == 0 { -1 } else { 32 }));
    }
    assert_eq!(found(&model, &window(32)), []);
    let [differs] = found(&model, &window(64)).try_into().unwrap();
    assert!(matches!(differs, Hazard::WindowDiffers { window: 64, found: 32, .. }), "{differs}");
}

#[test]
fn biases() {
    let alibi = Declared { file: FILE.to_owned(), alibi: true, ..Declared::default() };
    for decoder in [LLAMA, WINDOWED, GQA] {
        let missing = Hazard::AlibiMissing { file: FILE.to_owned() };
        assert_eq!(found(&load(decoder), &alibi), [missing], "{decoder}");
    }
    assert_eq!(found(&load(ALIBI), &alibi), []);
}

#[test]
fn contexts() {
    for (decoder, tokens, rows) in [
        (ATTENTION, 128, None),
        (ATTENTION, 129, Some(128)),
        (GQA, 1 << 20, Some(128)),
        ("decoders/optimum-1.18-gpt2", 32, None),
        ("decoders/optimum-1.18-gpt2", 33, Some(32)),
        // Rotations are computed from the positions, without a table.
        (LLAMA, 1 << 20, None),
    ] {
        let declared = Declared { file: FILE.to_owned(), context: Some(tokens), ..Declared::default() };
        let shorter = found(&load(decoder), &declared);
        let found_rows = shorter.iter().map(|hazard| match hazard {
            Hazard::ContextShorter { context, rows, .. } if *context == tokens => *rows,
            other => panic!("{other}"),
        });
        assert!(found_rows.eq(rows), "{decoder} {tokens}: {shorter:?}");
    }
}
