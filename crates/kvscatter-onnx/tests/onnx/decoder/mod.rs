//! Tests which caches are found in real exports, and in graphs that are made for one case each.

mod bad;
mod cost;
mod hazards;
mod hostile;
mod made;
mod proven;
mod styles;
mod tensorrt;

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::decoder::{CachePart, Decoder, InputRole, WriterStyle};
use kvscatter_onnx::{Dimension, Model};

use crate::support::{Nodes, graph_mut, insert, load, parsed, raw, reader, reroute, values};

/// Returns every cache as `past → present`, style, part and axis.
fn caches(decoder: &Decoder<'_>) -> Vec<(String, WriterStyle, CachePart, usize)> {
    let line = |cache: &kvscatter_onnx::decoder::Cache<'_>| {
        assert!(cache.between.is_empty() && cache.earlier.is_empty() && cache.copies.is_empty());
        assert_eq!(cache.element, ElementType::Float32);
        (format!("{} → {}", cache.past, cache.present), cache.style.clone(), cache.part, cache.axis)
    };
    decoder.caches.iter().map(line).collect()
}

fn roles(decoder: &Decoder<'_>) -> Vec<(String, InputRole)> {
    let is_past = |role| matches!(role, InputRole::Past(_));
    let inputs = decoder.inputs.iter().filter(|input| !is_past(input.role));
    inputs.map(|input| (input.value.name.to_owned(), input.role)).collect()
}

/// Returns the keys and values of two layers.
fn four(
    past: &str,
    present: &str,
    style: &WriterStyle,
    axis: usize,
) -> Vec<(String, WriterStyle, CachePart, usize)> {
    let pair = |layer: usize, what: &str, part| {
        let name = |pattern: &str| pattern.replace("{}", &layer.to_string()).replace("{what}", what);
        (format!("{} → {}", name(past), name(present)), style.clone(), part, axis)
    };
    (0..2)
        .flat_map(|layer| [pair(layer, "key", CachePart::Key), pair(layer, "value", CachePart::Value)])
        .collect()
}

/// The inputs of a decoder whose cache grows, except its pasts.
const GROWING: [(&str, InputRole); 3] = [
    ("input_ids", InputRole::TokenIds),
    ("attention_mask", InputRole::AttentionMask),
    ("position_ids", InputRole::PositionIds),
];

#[test]
fn optimum_joins_past_and_new() {
    let model = load("optimum-llama");
    let decoder = Decoder::from_graph(&model.graph().unwrap()).unwrap();
    let expected = four("past_key_values.{}.{what}", "present.{}.{what}", &WriterStyle::Concat, 2);
    assert_eq!(caches(&decoder), expected);
    assert_eq!(roles(&decoder), GROWING.map(|(name, role)| (name.to_owned(), role)));
    assert_eq!(decoder.caches[0].update, Some("/model/layers.0/self_attn/Add_1_output_0"));
    assert_eq!(decoder.caches[0].capacity(), Dimension::Symbolic("past_sequence_length"));
    assert_eq!(decoder.logits.unwrap().name, "logits");
}

#[test]
fn mobius_gives_attention_its_past() {
    let model = load("mobius-llama-dynamic");
    let decoder = Decoder::from_graph(&model.graph().unwrap()).unwrap();
    let expected = four("past_key_values.{}.{what}", "present.{}.{what}", &WriterStyle::AttentionPast, 2);
    assert_eq!(caches(&decoder), expected);
    assert_eq!(roles(&decoder), GROWING.map(|(name, role)| (name.to_owned(), role)));
    assert_eq!(decoder.caches[3].update, Some("v_model.layers.1.self_attn.v_proj.MatMul_41"));
}

#[test]
fn mobius_scatters_into_a_static_cache() {
    let model = load("mobius-llama-static");
    let decoder = Decoder::from_graph(&model.graph().unwrap()).unwrap();
    let style = WriterStyle::TensorScatter(Mode::Linear);
    assert_eq!(caches(&decoder), four("{what}_cache.{}", "updated_{what}_cache.{}", &style, 1));
    let expected = [
        ("input_ids", InputRole::TokenIds),
        ("position_ids", InputRole::PositionIds),
        ("write_indices", InputRole::WriteIndices),
        ("nonpad_kv_seqlen", InputRole::NonpadKvSeqlen),
    ];
    assert_eq!(roles(&decoder), expected.map(|(name, role)| (name.to_owned(), role)));
    assert_eq!(decoder.caches[0].capacity(), Dimension::Known(64));
}

#[test]
fn genai_leaves_it_to_group_query_attention() {
    let model = load("genai-llama-gqa");
    let decoder = Decoder::from_graph(&model.graph().unwrap()).unwrap();
    let mut found = caches(&decoder);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected =
        four("past_key_values.{}.{what}", "present.{}.{what}", &WriterStyle::GroupQueryAttention, 2);
    assert_eq!(found, expected);
    assert_eq!(decoder.caches[1].past, "past_key_values.1.key", "in the order of the outputs");
    let expected = [("input_ids", InputRole::TokenIds), ("attention_mask", InputRole::AttentionMask)];
    assert_eq!(roles(&decoder), expected.map(|(name, role)| (name.to_owned(), role)));
    assert!(matches!(decoder.input(InputRole::Past(0)), Some(past) if past.name == "past_key_values.0.key"));
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
        let parts =
            caches(&Decoder::from_graph(&model.graph().unwrap()).unwrap()).into_iter().map(|row| row.2);
        assert_eq!(parts.collect::<Vec<_>>(), [CachePart::Key, CachePart::Value], "{weights}");
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
        let found = Decoder::from_graph(&model.graph().unwrap()).unwrap().caches[0].known_shape[3];
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
    let graph = model.graph().unwrap();
    assert_eq!(
        roles_of(&Decoder::from_graph(&graph).unwrap()),
        [InputRole::TokenIds, InputRole::AttentionMask]
    );
}

/// If there are token ids, a float input of rank 3 is not embeddings. It may be the states of an encoder.
#[test]
fn embeddings_take_the_place_of_token_ids() {
    let mut model = load("optimum-llama");
    graph_mut(&mut model).input.extend(values("inputs_embeds: float[batch, tokens, 64]"));
    let input = |model: &Model, role| {
        Some(Decoder::from_graph(&model.graph().ok()?).ok()?.input(role)?.name.to_owned())
    };
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
    for (name, style, element, roles) in [
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
        let decoder = Decoder::from_graph(&model.graph().unwrap()).unwrap();
        assert_eq!(decoder.caches.len(), 4, "{name}");
        for cache in &decoder.caches {
            assert_eq!(
                (&cache.style, cache.element, cache.axis),
                (style, element, 2),
                "{name}: {}",
                cache.past
            );
            assert!(cache.between.is_empty() && cache.update.is_some(), "{name}: {}", cache.past);
            let part = if cache.past.ends_with("key") { CachePart::Key } else { CachePart::Value };
            assert_eq!(cache.part, part, "{name}: {}", cache.past);
        }
        let found: Vec<_> = roles_of(&decoder);
        assert_eq!(found, roles, "{name}");
        assert!(
            decoder.hazards().iter().all(|hazard| hazard.kind() == "grows"),
            "{name}: {:?}",
            decoder.hazards()
        );
    }
}

fn roles_of(decoder: &Decoder<'_>) -> Vec<InputRole> {
    let roles = decoder.inputs.iter().map(|input| input.role);
    roles.filter(|role| !matches!(role, InputRole::Past(_))).collect()
}
