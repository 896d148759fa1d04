//! Tests which caches are found in real exports, and in graphs that are made for one case each.

mod bad;
mod cost;
mod hazards;
mod made;
mod proven;
mod styles;
mod tensorrt;

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::decoder::{CachePart, InputRole, WriterStyle};
use kvscatter_onnx::{Dimension, Model};

use crate::support::{Nodes, decoder, graph_mut, insert, kinds, load, parsed, raw, reader, reroute, values};

/// Returns the roles of the inputs that are no pasts.
fn roles(model: &Model) -> Vec<InputRole> {
    let roles = decoder(model).inputs.into_iter().map(|input| input.role);
    roles.filter(|role| !matches!(role, InputRole::Past(_))).collect()
}

/// Checks the names and roles of the inputs that are no pasts.
#[track_caller]
fn check_roles(what: &str, model: &Model, expected: &[(&str, InputRole)]) {
    let decoder = decoder(model);
    let inputs = decoder.inputs.iter().filter(|input| !matches!(input.role, InputRole::Past(_)));
    assert!(inputs.map(|input| (input.value.name, input.role)).eq(expected.iter().copied()), "{what}");
}

/// The inputs of a decoder whose cache grows, except its pasts.
const GROWING: [(&str, InputRole); 3] = [
    ("input_ids", InputRole::TokenIds),
    ("attention_mask", InputRole::AttentionMask),
    ("position_ids", InputRole::PositionIds),
];

#[test]
fn caches_and_inputs_of_exports() {
    let names = ["past_key_values.{layer}.{part}", "present.{layer}.{part}"];
    let mobius = [
        ("input_ids", InputRole::TokenIds),
        ("position_ids", InputRole::PositionIds),
        ("write_indices", InputRole::WriteIndices),
        ("nonpad_kv_seqlen", InputRole::NonpadKvSeqlen),
    ];
    let open = Dimension::Symbolic("past_sequence_length");
    for (name, [past, present], style, axis, capacity, inputs) in [
        ("optimum-llama", names, WriterStyle::Concat, 2, open, &GROWING[..]),
        (
            "mobius-llama-dynamic",
            names,
            WriterStyle::AttentionPast,
            2,
            Dimension::Symbolic("past_sequence_len"),
            &GROWING,
        ),
        (
            "mobius-llama-static",
            ["{part}_cache.{layer}", "updated_{part}_cache.{layer}"],
            WriterStyle::TensorScatter(Mode::Linear),
            1,
            Dimension::Known(64),
            &mobius,
        ),
        ("genai-llama-gqa", names, WriterStyle::GroupQueryAttention, 2, open, &GROWING[..2]),
    ] {
        let model = load(name);
        let decoder = decoder(&model);
        assert_eq!(decoder.caches.len(), 4, "{name}");
        for cache in &decoder.caches {
            assert!(
                cache.between.is_empty() && cache.earlier.is_empty() && cache.copies.is_empty(),
                "{name}"
            );
            let part = if cache.part == CachePart::Key { "key" } else { "value" };
            let is_named = |layer: &str| {
                [past, present].map(|name| name.replace("{layer}", layer).replace("{part}", part))
                    == [cache.past, cache.present]
            };
            assert!(["0", "1"].into_iter().any(is_named), "{name}: {cache:?}");
            let found = (&cache.style, cache.element, cache.axis, cache.capacity());
            assert_eq!(found, (&style, ElementType::Float32, axis, capacity), "{name}");
        }
        check_roles(name, &model, inputs);
        assert_eq!(decoder.logits.as_ref().unwrap().name, "logits", "{name}");
    }
}

/// Caches are in the order of the outputs.
#[test]
fn the_order_of_caches_and_the_values_of_their_updates() {
    let model = load("optimum-llama");
    assert_eq!(decoder(&model).caches[0].update, Some("/model/layers.0/self_attn/Add_1_output_0"));
    let model = load("mobius-llama-dynamic");
    assert_eq!(decoder(&model).caches[3].update, Some("v_model.layers.1.self_attn.v_proj.MatMul_41"));
    let model = load("genai-llama-gqa");
    let decoder = decoder(&model);
    assert_eq!(decoder.caches[1].past, "past_key_values.1.key");
    assert_eq!(decoder.input(InputRole::Past(0)).unwrap().name, "past_key_values.0.key");
}

/// Exporters replace weights that are not numbers.
#[test]
fn values_are_multiplied_by_weights_that_a_condition_chooses() {
    for weights in ["Where(IsNaN(w), 0.0, w)", "Where(Not(IsNaN(w)), w, 0.0)"] {
        let model = parsed(
            "past_k, past_v: float[b, 2, past, 4], q, new_k, new_v: float[b, 2, s, 4]",
            &format!(
                "k = Concat(past_k, new_k) {{axis=2}}; v = Concat(past_v, new_v) {{axis=2}}
                w = Softmax(MatMul(q, Transpose(k) {{perm=[0, 1, 3, 2]}})); y = MatMul({weights}, v)"
            ),
            "y: float[b, 2, s, 4], k, v: float[b, 2, all, 4]",
        );
        let parts = decoder(&model).caches.into_iter().map(|cache| cache.part);
        assert!(parts.eq([CachePart::Key, CachePart::Value]), "{weights}");
    }
}

/// Qwen3 normalises each head between the projection and the operator, so only the result shows its size.
#[test]
fn the_head_size_follows_from_the_declared_result() {
    for (width, expected) in [
        ("64", Dimension::Known(16)),
        ("66", Dimension::Symbolic("size")),
        ("width", Dimension::Symbolic("size")),
    ] {
        let model = made::Made::group_query()
            .input("past_k, past_v: float[batch, 2, past, size]")
            .output(&format!("y: float[batch, s, {width}], present_k, present_v: float[batch, 2, all, size]"))
            .model();
        let found = decoder(&model).caches[0].known_shape[3];
        assert_eq!(found, expected, "{width}");
    }
}

/// The builder of ONNX Runtime GenAI shares 4-bit weights between the embedding and the logits.
#[test]
fn tokens_pick_rows_of_a_quantised_table_that_is_reshaped() {
    let mut model = load("genai-llama-gqa");
    let place = reader(graph_mut(&mut model), "input_ids");
    let embedded = graph_mut(&mut model).node.remove(place).output.remove(0);
    let gather = "GatherBlockQuantized@com.microsoft(Reshape(weights, shape), input_ids, scales)";
    insert(&mut model, place, Nodes::parse(&format!("{embedded} = {gather}")));
    let zeros = |name, element: ElementType, dims: &[i64], bytes| raw(name, element, dims, vec![0; bytes]);
    graph_mut(&mut model).initializer.extend([
        zeros("weights", ElementType::UInt8, &[256, 2, 16], 256 * 2 * 16),
        zeros("scales", ElementType::Float32, &[256, 2], 256 * 2 * 4),
        zeros("shape", ElementType::UInt8, &[2], 2),
    ]);
    assert_eq!(roles(&model), [InputRole::TokenIds, InputRole::AttentionMask]);
}

/// If there are token ids, a float input of rank 3 is not embeddings. It may be the states of an encoder.
#[test]
fn embeddings_take_the_place_of_token_ids() {
    let mut model = load("optimum-llama");
    graph_mut(&mut model).input.extend(values("inputs_embeds: float[batch, tokens, 64]"));
    let input = |model: &Model, role| Some(decoder(model).input(role)?.name.to_owned());
    assert_eq!(input(&model, InputRole::Embeddings), None);
    let graph = graph_mut(&mut model);
    let place = reader(graph, "input_ids");
    let embedded = graph.node.remove(place).output[0].clone();
    graph.input.retain(|input| input.name.as_deref() != Some("input_ids"));
    insert(&mut model, 0, Nodes::parse(&format!("{embedded} = Identity(inputs_embeds)")));
    assert_eq!(input(&model, InputRole::Embeddings).as_deref(), Some("inputs_embeds"));
    assert_eq!(input(&model, InputRole::TokenIds), None);
    // The states of an encoder have another length.
    let graph = graph_mut(&mut model);
    graph.input.retain(|input| input.name.as_deref() != Some("inputs_embeds"));
    graph.input.extend(values("states: float[batch, encoder, 64]"));
    reroute(graph, "inputs_embeds", "states");
    assert_eq!(input(&model, InputRole::Embeddings), None);
}

/// These exporters, models and precisions were not considered when the code was written.
#[test]
fn decoders_of_other_exporters() {
    let (concat, past) = (WriterStyle::Concat, WriterStyle::AttentionPast);
    let all = [InputRole::TokenIds, InputRole::AttentionMask, InputRole::PositionIds];
    for (name, style, element, inputs) in [
        ("mobius-0.1-gpt2", &past, ElementType::Float32, &all[..]),
        ("mobius-0.1-qwen3-float16", &past, ElementType::Float16, &all),
        ("optimum-0.1-mistral-window", &concat, ElementType::Float32, &all),
        // OPT counts its positions in the mask, and ALiBi has none.
        ("optimum-1.18-opt", &concat, ElementType::Float32, &all[..2]),
        ("optimum-0.1-qwen3-float16", &concat, ElementType::Float16, &all),
        ("optimum-1.18-falcon", &concat, ElementType::Float32, &all[..2]),
        ("optimum-1.18-gpt2", &concat, ElementType::Float32, &all),
        ("torch-2.15-llama", &concat, ElementType::Float32, &all),
        ("torch-2.15-gemma3", &concat, ElementType::Float32, &all),
    ] {
        let model = load(&format!("decoders/{name}"));
        let decoder = decoder(&model);
        assert_eq!(decoder.caches.len(), 4, "{name}");
        for cache in &decoder.caches {
            assert_eq!((&cache.style, cache.element, cache.axis), (style, element, 2), "{name}");
            assert!(cache.between.is_empty() && cache.update.is_some(), "{name}: {}", cache.past);
            let part = if cache.past.ends_with("key") { CachePart::Key } else { CachePart::Value };
            assert_eq!(cache.part, part, "{name}: {}", cache.past);
        }
        assert_eq!(roles(&model), inputs, "{name}");
        assert!(kinds(&decoder.hazards()).iter().all(|kind| *kind == "grows"), "{name}");
    }
}

/// Keys and values are read by the same operations, of which the first one may write them.
#[test]
fn attention_operations_that_read_a_cache_are_counted() {
    let concat = "k = Concat(past.k, rows) {axis=2}; v = Concat(past.v, rows) {axis=2};";
    let separate = "y$ = MatMul(Softmax(MatMul(@, Transpose(k) {perm=[0, 1, 3, 2]})), Identity(v))";
    let node = "y$ = Attention(@, k, v)";
    let appending = "y0, k, v = Attention(rows, rows, rows, _, past.k, past.v)";
    let layers = |layer: &str, range: std::ops::Range<usize>| {
        let named = |number: usize| {
            let before = number.checked_sub(1).map_or("rows".to_owned(), |before| format!("y{before}"));
            layer.replace('$', &number.to_string()).replace('@', &before)
        };
        range.map(named).collect::<Vec<_>>().join("\n")
    };
    for (last, text, expected) in [
        (0, format!("{concat} {}", layers(separate, 0..1)), Some(1)),
        (2, format!("{concat} {}", layers(separate, 0..3)), Some(3)),
        (2, format!("{concat} {}", layers(node, 0..3)), Some(3)),
        (2, format!("{appending}; {}", layers(node, 1..3)), Some(3)),
        (79, format!("{concat} {}", layers(separate, 0..80)), None),
    ] {
        let model = parsed(
            "ids: int64[batch, new], past.k, past.v: float[batch, 2, past, 4]",
            &format!(
                "row = Unsqueeze(Gather(0.5[16, 4], ids), [1]); rows = Concat(row, row) {{axis=1}}
                {text}
                y = Identity(y{last})"
            ),
            "y: float[batch, 2, new, 4], k, v: float[batch, 2, all, 4]",
        );
        let decoder = decoder(&model);
        let found: Vec<_> = decoder.caches.iter().map(|cache| decoder.attentions(cache)).collect();
        assert_eq!(found, [expected; 2], "{text}");
    }
}
