//! Compares the nodes that a conversion writes for masks with the rules, which they state a second time.
#![expect(clippy::arithmetic_side_effects, reason = "the numbers are small")]

use kvscatter::{ElementType, Mode};

use crate::convert::probe::{BLOCKS, Distance, Inputs, Probe, SAMPLES};
use crate::convert::ring::{Rings, Slots};
use crate::convert::rule::{Added, Bias, Rule};
use crate::convert::{ConvertOptions, WindowedCaches, convert};
use crate::decoder::Decoder;
use crate::fold::{Fold, Value, lowest};
use crate::support::{
    BY_SLOTS, BY_TOKENS, Nodes, first, graph_mut, insert, llama_with_blocks, llama_with_window, load, reroute,
};
use crate::{Graph, Model};
use kvscatter::visibility::Visibility;

/// The nodes that a conversion writes state the rule a second time, because a runtime evaluates them.
#[test]
fn the_mask_of_a_converted_decoder_is_the_rule() {
    let model = load("mobius-llama-dynamic");
    let compared = for_each_step(&model, 1, |probe, capacity, mask| {
        assert_eq!(mask.shape, [SAMPLES, 1, probe.new, capacity]);
        assert_eq!(mask.as_bools(), Some(rule(probe, capacity).as_slice()), "{probe:?}");
    });
    assert_eq!(compared, 252);
}

/// A window keeps its meaning with padding anywhere, whether it counts slots or real tokens.
#[test]
fn a_converted_window_shows_real_tokens_what_the_exported_one_does() {
    let (max_seq, mut compared) = (24, 0);
    let counts = [BY_SLOTS, BY_TOKENS].into_iter();
    for (counted, size) in counts.flat_map(|counted| [2, 3, 12, 20].map(move |size| (counted, size))) {
        let exported = llama_with_window(i64::try_from(size).unwrap(), counted);
        let options = ConvertOptions::new(max_seq).windowed(WindowedCaches::Mask);
        let converted = convert(&exported, options).unwrap_or_else(|it| panic!("{size} {counted:?}: {it}"));
        let windows = &converted.report.caches.windows;
        assert!(windows.iter().all(|it| it.window == Some(size)), "{windows:?}");
        let [before, after] = [&exported, &converted.model].map(|model| model.graph().unwrap());
        let inputs = Inputs::from_decoder(&Decoder::from_graph(&before).unwrap()).unwrap();
        for holes in (0..max_seq).collect::<Vec<_>>().chunks(SAMPLES) {
            let holes: Vec<_> = holes.iter().map(|&first| first..first + 1 + size % 3).collect();
            let probe = Probe::new(SAMPLES, max_seq / 2, max_seq / 2).padded(&holes);
            let mut fold = Fold::new(&before, None);
            probe.feed(&inputs, &mut fold).unwrap();
            let before = fold.value(mask_of(&before)).unwrap();
            let after = mask(&after, &inputs, &probe, Slots::linear(max_seq));
            assert_eq!(before.shape, after.shape);
            let rows =
                before.as_bools().unwrap().chunks(max_seq).zip(after.as_bools().unwrap().chunks(max_seq));
            for (row, (before, after)) in rows.enumerate() {
                let (sample, own) = (row / probe.new, probe.past + row % probe.new);
                if probe.is_real(sample, own) {
                    assert_eq!(before[..=own], after[..=own], "{counted:?} {size} {probe:?}");
                    assert!(after[own + 1..].iter().all(|is_seen| !is_seen));
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 2112);
}

/// Tokens of a block see each other, also those after them. A window may hide the first tokens of a long block.
#[test]
fn the_mask_of_a_converted_decoder_with_blocks_is_the_rule() {
    let (max_seq, window, mut compared) = (16, 4, 0);
    let options = ConvertOptions::new(max_seq).windowed(WindowedCaches::Mask);
    for (shown, is_limited) in
        [("And(Or(causal, block), near)", true), ("Or(And(causal, near), block)", false)]
    {
        let exported = llama_with_blocks(shown);
        let converted = convert(&exported, options).unwrap();
        let [before, after] = [&exported, &converted.model].map(|model| model.graph().unwrap());
        let inputs = Inputs::from_decoder(&Decoder::from_graph(&before).unwrap()).unwrap();
        for (past, new) in [(0, 12), (5, 9), (8, 8), (13, 1)] {
            let probe = Probe::new(SAMPLES, past, new).padded(&[0..3, 0..0, 9..10]).in_blocks(&BLOCKS);
            let mask = mask(&after, &inputs, &probe, Slots::linear(max_seq));
            assert_eq!(mask.shape, [SAMPLES, 1, new, max_seq]);
            let mut shown = mask.as_bools().unwrap().iter();
            for (sample, own) in
                (0..SAMPLES).flat_map(|sample| (past..past + new).map(move |own| (sample, own)))
            {
                let id = |slot: usize| BLOCKS[sample][slot % BLOCKS[sample].len()];
                for (slot, &is_shown) in (0..max_seq).zip(shown.by_ref()) {
                    let is_near = slot + window > own;
                    let is_block = slot < past + new && id(own) >= 0 && id(slot) == id(own);
                    let is_visible = match is_limited {
                        true => (slot <= own || is_block) && is_near,
                        false => slot <= own && is_near || is_block,
                    };
                    let expected = is_visible && probe.is_real(sample, slot);
                    assert_eq!(is_shown, expected, "{shown:?} {sample} {own} {slot}");
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 2 * SAMPLES * (12 + 9 + 8 + 1) * max_seq);
}

/// The nodes that compute what a query sees in a ring state the rule a second time as well. Without positions, the
/// mask of real tokens shows the padding.
#[test]
fn the_mask_of_a_ring_is_the_rule() {
    let model = load("decoders/optimum-0.1-mistral-window");
    let (max_seq, chunk, rewind) = (24, 3, 2);
    let rings = WindowedCaches::Ring { chunk: Some(chunk), rewind };
    let mut compared = 0;
    for model in [without_positions(&model), model] {
        let inputs = model.graph().unwrap();
        let inputs = Inputs::from_decoder(&Decoder::from_graph(&inputs).unwrap()).unwrap();
        let converted = convert(&model, ConvertOptions::new(max_seq).windowed(rings)).unwrap();
        let (ring, caches) = converted.report.caches.rings.first_key_value().unwrap();
        assert_eq!((ring.capacity, ring.window, *caches), (3 + chunk + rewind, 4, 4));
        let rule = Visibility::new(Mode::Circular, ring.capacity).causal().window(ring.window);
        let mut rings = Rings::default();
        for cache in &Decoder::from_graph(&model.graph().unwrap()).unwrap().caches {
            rings.insert(cache.past, *ring);
        }
        let graph = converted.model.graph().unwrap();
        for (past, new) in (0..max_seq - chunk).flat_map(|past| (1..=chunk).map(move |new| (past, new))) {
            let padding = [0, past.min(1), past.min(9)];
            let probe = Probe::new(SAMPLES, past, new).padded(&padding.map(|padding| 0..padding));
            let mask = mask(&graph, &inputs, &probe, Slots { max_seq, rings: &rings });
            assert_eq!(mask.shape, [SAMPLES, 1, new, ring.capacity]);
            let mut expected = Vec::new();
            for (padding, query) in
                padding.iter().flat_map(|padding| (past..past + new).map(move |q| (padding, q)))
            {
                let [tokens, query, padding] =
                    [past + new, query, *padding].map(|it| i64::try_from(it).unwrap());
                let seen = rule.positions(tokens, query);
                let slots = rule.slots(seen.start.max(padding)..seen.end);
                expected
                    .extend((0..ring.capacity).map(|slot| slots.iter().any(|slots| slots.contains(&slot))));
                compared += 1;
            }
            assert_eq!(mask.as_bools(), Some(expected.as_slice()), "{probe:?}");
        }
    }
    assert_eq!(compared, 2 * 21 * SAMPLES * (1 + 2 + 3));
}

/// Returns the decoder without an input for positions. It then counts real tokens.
fn without_positions(model: &Model) -> Model {
    let mut model = model.clone();
    let nodes = format!(
        "counts = CumSum(attention_mask, 1)
        positions = Sub(Slice(counts, Neg(Shape(input_ids) {{start=1}}), [{}], [1]), 1)",
        i64::MAX
    );
    let graph = graph_mut(&mut model);
    reroute(graph, "position_ids", "positions");
    graph.input.retain(|input| input.name.as_deref() != Some("position_ids"));
    insert(&mut model, 0, Nodes::parse(&nodes));
    model
}

/// The nodes that compute a bias state its rule a second time as well.
#[test]
fn the_bias_of_a_converted_decoder_is_the_rule() {
    for distance in [Distance::Tokens, Distance::Slots] {
        let slopes = [0.125, 0.03125, 0.007_812_5, 0.001_953_125].to_vec();
        let bias = Some(Bias { heads: vec![4], added: Added::Slopes(slopes), distance });
        let rule = Rule { bias, ..Rule::default() };
        let compared = for_each_step(&falcon(distance), 3, |probe, capacity, mask| {
            let mut expected = Vec::new();
            for (sample, head, token) in places(probe, 4) {
                let mut row = rule.row(probe, sample, token);
                row.resize(capacity, None);
                let hidden = lowest(ElementType::Float32).unwrap();
                expected.extend(row.into_iter().map(|it| it.map_or(hidden, |it| rule.added(head, it))));
            }
            assert_eq!(mask.shape, [SAMPLES, 4, probe.new, capacity]);
            assert_eq!(mask.as_floats(), Some(expected.as_slice()), "{distance:?} {probe:?}");
        });
        assert_eq!(compared, 242);
    }
}

/// Returns a decoder with `ALiBi`. As exported, it counts real tokens.
fn falcon(distance: Distance) -> Model {
    let mut model = load("decoders/optimum-1.18-falcon");
    if distance == Distance::Slots {
        let graph = graph_mut(&mut model);
        let sum = first(graph, "CumSum");
        for name in graph.node.iter_mut().skip(sum).take(5).flat_map(|node| &mut node.input) {
            if name == "attention_mask" {
                "ones".clone_into(name);
            }
        }
        let ones = "ones = Cast(Equal(attention_mask, attention_mask)) {to=int64}";
        insert(&mut model, 0, Nodes::parse(ones));
    }
    model
}

fn places(probe: &Probe, heads: usize) -> Vec<(usize, usize, usize)> {
    let rows = 0..probe.batch * heads * probe.new;
    rows.map(|row| (row / probe.new / heads, row / probe.new % heads, row % probe.new)).collect()
}

/// Converts a decoder to small caches and calls a function with every step, the number of slots, and the mask
/// that attention reads. Returns the number of steps.
fn for_each_step(model: &Model, least: usize, check: impl Fn(&Probe, usize, &Value)) -> usize {
    let graph = model.graph().unwrap();
    let inputs = Inputs::from_decoder(&Decoder::from_graph(&graph).unwrap()).unwrap();
    let mut compared = 0;
    for capacity in least..=6 {
        let converted = convert(model, capacity).unwrap();
        let graph = converted.model.graph().unwrap();
        for (past, new) in (0..capacity).flat_map(|past| (1..=capacity - past).map(move |new| (past, new))) {
            for padding in 0..=past + new {
                let probe = Probe::new(SAMPLES, past, new).padded(&[0..padding, padding..padding + 1]);
                check(&probe, capacity, &mask(&graph, &inputs, &probe, Slots::linear(capacity)));
                compared += 1;
            }
        }
    }
    compared
}

/// Returns the mask that the attention of a converted decoder reads.
fn mask(graph: &Graph<'_>, inputs: &Inputs<'_>, probe: &Probe, slots: Slots<'_>) -> Value {
    let mut fold = Fold::new(graph, None);
    probe.feed_static(graph, "write_indices", inputs, slots, &mut fold).unwrap();
    fold.value(mask_of(graph)).unwrap().clone()
}

/// Returns the name of the mask of the first attention.
fn mask_of<'m>(graph: &Graph<'m>) -> &'m str {
    graph.nodes().iter().find(|node| node.is("Attention")).unwrap().input(3).unwrap()
}

/// Returns the mask by the rule and by which tokens are real.
fn rule(probe: &Probe, capacity: usize) -> Vec<bool> {
    let rule = Visibility::new(Mode::Linear, capacity).causal();
    let [past, total] = [probe.past, probe.total()].map(|tokens| i64::try_from(tokens).unwrap());
    let mut mask = Vec::new();
    for sample in 0..SAMPLES {
        for query in past..total {
            let is_visible = |slot| rule.sees(total, query, slot) && probe.is_real(sample, slot);
            mask.extend((0..capacity).map(is_visible));
        }
    }
    mask
}
