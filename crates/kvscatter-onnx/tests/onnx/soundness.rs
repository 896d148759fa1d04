//! Tests the check of rings, in a converted decoder and in decoders in which one thing is wrong.

use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{ConvertOptions, RingSize, WindowedCaches, convert};
use kvscatter_onnx::decoder::{Hazard, PrefixMask, WrongSlot};
use kvscatter_onnx::{CheckedRing, check_rings};

use crate::support::{
    Nodes, append, decoder, extend, first, fix_dim, graph_mut, insert, int, load, maker, nodes_mut as nodes,
    reroute, values,
};

/// The rings of [`ring`].
const SIZE: RingSize = RingSize { capacity: 8, window: 4, chunk: 3, rewind: 2 };
const METADATA: &str = "kvscatter.rings";

/// Returns a decoder with four rings, for a window of 4 tokens.
fn ring() -> Model {
    let model = load("decoders/optimum-0.1-mistral-window");
    let rings = WindowedCaches::Ring { chunk: Some(SIZE.chunk), rewind: SIZE.rewind };
    convert(&model, ConvertOptions::new(64).windowed(rings)).unwrap().model
}

/// Returns the decoder without metadata, after a change.
fn changed(change: impl FnOnce(&mut Model)) -> Model {
    let mut model = ring();
    model.proto_mut().metadata_props.clear();
    change(&mut model);
    model
}

fn fixed(tokens: i64) -> Model {
    changed(|model| fix_dim(model, "sequence_length", tokens))
}

fn declaring(rings: &str) -> Model {
    let mut model = ring();
    let entries = &mut model.proto_mut().metadata_props;
    let entry = entries.iter_mut().find(|entry| entry.key.as_deref() == Some(METADATA)).unwrap();
    entry.value = Some(rings.to_owned());
    model
}

fn checked(model: &Model) -> Vec<CheckedRing> {
    let graph = model.graph().unwrap();
    check_rings(model, &graph, &decoder(model))
}

/// Returns the outcome that all four rings have, except for the name of the ring and its reader.
#[expect(clippy::result_large_err, reason = "a test compares few of them")]
fn outcome(model: &Model) -> Result<RingSize, Hazard> {
    let checked = checked(model);
    assert_eq!(checked.len(), 4, "{checked:?}");
    let kind = |ring: &CheckedRing| ring.outcome.as_ref().map_err(Hazard::kind).copied();
    assert!(checked.iter().all(|ring| kind(ring) == kind(&checked[0])), "{checked:?}");
    checked[0].outcome.clone()
}

/// Returns the slot that the masks of all rings show or hide incorrectly.
fn wrong(model: &Model) -> (WrongSlot, Option<PrefixMask>) {
    match outcome(model) {
        Err(Hazard::RingMask { wrong, .. }) => (wrong, None),
        Err(Hazard::CircularPrefixMask { wrong, by, .. }) => (wrong, Some(by)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn converted_rings_are_sound() {
    let model = ring();
    assert_eq!(outcome(&model), Ok(SIZE));
    let pasts: Vec<_> = checked(&model).into_iter().map(|ring| ring.past).collect();
    assert!(pasts.iter().map(String::as_str).eq(decoder(&model).caches.iter().map(|cache| cache.past)));
    // Without metadata, all slots beyond the window are for new tokens.
    assert_eq!(outcome(&changed(|_| {})), Ok(RingSize { chunk: 5, rewind: 0, ..SIZE }));
    assert_eq!(outcome(&fixed(5)), Ok(RingSize { chunk: 5, rewind: 0, ..SIZE }));
    assert_eq!(outcome(&fixed(1)), Ok(RingSize { chunk: 1, rewind: 0, ..SIZE }));
}

#[test]
fn decoders_without_rings() {
    for decoder in ["optimum-llama", "mobius-llama-static", "genai-llama-gqa"] {
        assert_eq!(checked(&load(decoder)), []);
    }
}

#[test]
fn rings_that_are_too_small() {
    let too_small = |model: &Model| match outcome(model) {
        Err(Hazard::RingTooSmall { capacity: 8, window: 4, rows, rewind, least, .. }) => {
            (rows, rewind, least)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(too_small(&fixed(6)), (6, 0, 9));
    assert_eq!(too_small(&declaring("capacity=8 window=4 chunk=4 rewind=2")), (4, 2, 9));
    // The mask has another window.
    let outcome = outcome(&declaring("capacity=8 window=5 chunk=2 rewind=1"));
    assert!(matches!(outcome, Err(Hazard::RingDiffers { window: 4, declared: 5, .. })), "{outcome:?}");
}

/// A mask that counts slots is right until the ring wraps, or in steps of one token.
#[test]
fn attributes_that_count_slots() {
    let with = |name: &'static str, number: i64| {
        changed(move |model| {
            nodes(graph_mut(model), "Attention").for_each(|node| node.attribute.push(int(name, number)));
        })
    };
    let expected = WrongSlot { position: 7, slot: 7, is_seen: false, tokens: 2 };
    assert_eq!(wrong(&with("is_causal", 1)), (expected, Some(PrefixMask::IsCausal)));
    let expected = WrongSlot { position: 8, slot: 0, is_seen: false, tokens: 1 };
    assert_eq!(wrong(&with("left_window_size", 3)), (expected, Some(PrefixMask::Window)));
    assert_eq!(outcome(&with("left_window_size", -1)), outcome(&changed(|_| {})), "no limit");
    // A decoder that only ever feeds one token is right with `is_causal`, because all slots are before it.
    let mut one = with("is_causal", 1);
    fix_dim(&mut one, "sequence_length", 1);
    assert_eq!(outcome(&one), Ok(RingSize { chunk: 1, rewind: 0, ..SIZE }));
}

/// Without a mask, attention sees all slots in use. That is a window as long as the ring, in steps of one token.
#[test]
fn no_mask() {
    let unmasked =
        changed(|model| nodes(graph_mut(model), "Attention").for_each(|node| node.input[3].clear()));
    assert_eq!(outcome(&unmasked), Ok(RingSize { capacity: 8, window: 8, chunk: 1, rewind: 0 }));
    // The first token has slot 0 for its own, so it sees no other slot.
    let causal = changed(|model| {
        for node in nodes(graph_mut(model), "Attention") {
            node.input.truncate(3);
            node.attribute.push(int("is_causal", 1));
        }
    });
    let expected = WrongSlot { position: 7, slot: 7, is_seen: false, tokens: 1 };
    assert_eq!(wrong(&causal), (expected, Some(PrefixMask::IsCausal)));
}

#[test]
fn masks_that_are_wrong_after_the_wrap() {
    // The mask compares slots with positions, without a remainder.
    let plain = changed(|model| {
        let graph = graph_mut(model);
        let ages = first(graph, "Mod");
        graph.node[ages].op_type = Some("Sub".to_owned());
    });
    assert_eq!(wrong(&plain), (WrongSlot { position: 8, slot: 0, is_seen: false, tokens: 1 }, None));
    // All ages are one too many after the wrap.
    let off_by_one = changed(|model| {
        let (place, capacity) = ages(model);
        let age = std::mem::replace(&mut graph_mut(model).node[place].input[0], "more".to_owned());
        insert(model, place, Nodes::parse(&format!("more = Add({age}, Div(write_indices, {capacity}))")));
    });
    assert_eq!(wrong(&off_by_one), (WrongSlot { position: 8, slot: 1, is_seen: true, tokens: 1 }, None));
    // Positions begin at 0 again after the wrap.
    let wrapped = changed(|model| {
        let (_, capacity) = ages(model);
        for input in ["write_indices", "position_ids"] {
            let graph = graph_mut(model);
            for node in graph.node.iter_mut().filter(|node| node.op_type.as_deref() != Some("TensorScatter"))
            {
                let read = node.input.iter_mut().filter(|read| *read == input);
                read.for_each(|read| *read = format!("wrapped_{input}"));
            }
            insert(model, 0, Nodes::parse(&format!("wrapped_{input} = Mod({input}, {capacity})")));
        }
    });
    assert_eq!(wrong(&wrapped), (WrongSlot { position: 8, slot: 5, is_seen: false, tokens: 1 }, None));
}

/// Returns the place of the node that computes the age of each slot, `(q + (C - s)) mod C`, and the name of `C`.
fn ages(model: &mut Model) -> (usize, String) {
    let graph = graph_mut(model);
    let place = first(graph, "Mod");
    (place, graph.node[place].input[1].clone())
}

/// Replaces the mask that all rings' attention reads by `masked`, which these nodes compute from the mask `$`.
fn masked(nodes: &str) -> Model {
    changed(|model| {
        let graph = graph_mut(model);
        let attention = first(graph, "Attention");
        let mask = graph.node[attention].input[3].clone();
        reroute(graph, &mask, "masked");
        let place = maker(graph, &mask);
        insert(model, place + 1, Nodes::parse(&nodes.replace('$', &mask)));
    })
}

/// The sizes of a past are those of the ring, and those of one sample where the model leaves the batch open.
#[test]
fn a_mask_may_read_the_sizes_of_a_past() {
    let past = checked(&ring())[0].past.clone();
    let sizes =
        format!("samples = Shape({past}) {{start=0, end=1}}; slots = Shape({past}) {{start=2, end=3}}");
    let model =
        masked(&format!("{sizes}; masked = Reshape($, Concat(samples, [1], [-1], slots) {{axis=0}})"));
    assert_eq!(outcome(&model), outcome(&changed(|_| {})));
}

/// A mask of real tokens may have one element for each slot. All slots are in use after the wrap.
#[test]
fn a_mask_of_real_tokens_may_count_slots() {
    let mut model = masked("masked = And($, Unsqueeze(Cast(attention_mask) {to=bool}, [1, 2]))");
    graph_mut(&mut model).input.extend(values("attention_mask: int64[batch, slots]"));
    assert_eq!(outcome(&model), outcome(&changed(|_| {})));
}

#[test]
fn rings_that_cannot_be_checked() {
    let reason = |model: &Model| match outcome(model) {
        Err(Hazard::RingUnchecked { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let given = changed(|model| {
        nodes(graph_mut(model), "Attention").for_each(|node| node.input[3] = "given".to_owned());
        extend(model, "given: bool[batch, 1, new, 8]", "", "");
    });
    assert_eq!(reason(&given), "its mask cannot be evaluated: input \"given\" has no value");
    // Another node reads a ring, beside its attention.
    let summed = changed(|model| {
        let present = nodes(graph_mut(model), "Attention").next().unwrap().input[1].clone();
        append(model, &format!("sum = ReduceSum({present})"));
    });
    let kinds = checked(&summed).into_iter().map(|ring| ring.outcome.map_err(|hazard| hazard.kind()));
    let sound = Ok(RingSize { chunk: 5, rewind: 0, ..SIZE });
    let expected = vec![sound, Err("ring-unchecked"), sound, sound, sound];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}
