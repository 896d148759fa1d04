//! Tests the conversion to caches of a narrower type: the nodes of converted models, and refusals.
//!
//! `python-tests/test_narrow.py` shows in ONNX Runtime that a converted model computes nearly the same.

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::convert::{
    CacheType, Claim, ConvertOptions, ConvertRefusal, Converted, WindowedCaches, convert,
};
use kvscatter_onnx::decoder::{QuantizedPart, WriterStyle};
use kvscatter_onnx::{Dimension, Model, Node, check_rings};

use crate::support::{
    Nodes, count, declare, decoder, extend, first, graph_mut, insert, int, kinds, load, maker, nodes_mut,
    parsed, refusal, reroute, string,
};

const MAX_SEQ: usize = 24;

/// Decoders whose heads have 16 numbers, as they are exported.
const EXPORTS: [&str; 3] = ["mobius-llama-dynamic", "optimum-llama", "genai-llama-gqa"];

fn options(cache_type: CacheType) -> ConvertOptions {
    ConvertOptions::new(MAX_SEQ).caches(Some(cache_type), true)
}

fn converted(model: &Model, cache_type: CacheType) -> Converted {
    convert(model, options(cache_type)).unwrap()
}

/// Returns a decoder whose caches are static.
fn static_llama() -> Model {
    convert(&load("mobius-llama-dynamic"), MAX_SEQ).unwrap().model
}

#[test]
fn halves_are_cast_before_they_are_written_and_after_they_are_read() {
    for export in EXPORTS {
        for (cache_type, element) in
            [(CacheType::Float16, ElementType::Float16), (CacheType::BFloat16, ElementType::BFloat16)]
        {
            let converted = converted(&load(export), cache_type);
            let found = decoder(&converted.model);
            assert_eq!(found.caches.len(), 4, "{export}");
            for cache in &found.caches {
                assert_eq!((cache.element, cache.present_info.element), (element, element), "{export}");
            }
            let narrow = converted.report.caches.narrow.as_ref().unwrap();
            assert_eq!((narrow.cache_type, narrow.count, narrow.rotated), (cache_type, 4, 0));
            assert!(narrow.scales.is_empty());
            let name = cache_type.to_string();
            assert_eq!(converted.model.metadata("kvscatter.cache_type"), Some(&*name));
            assert_eq!(converted.model.metadata("kvscatter.scales"), None);
            let wide = convert(&load(export), MAX_SEQ).unwrap().report.caches;
            assert_eq!(converted.report.caches.bytes_per_slot, wide.bytes_per_slot.map(|bytes| bytes / 2));
            assert_eq!(
                converted.report.caches.bytes_per_sample,
                wide.bytes_per_sample.map(|bytes| bytes / 2)
            );
        }
    }
}

#[test]
fn int8_has_codes_and_a_scale_for_each_row() {
    for export in EXPORTS {
        let converted = converted(&load(export), CacheType::Int8);
        let found = decoder(&converted.model);
        let (codes, scales) = found.caches.split_at(4);
        assert_eq!(scales.len(), 4, "{export}");
        for (codes, scale) in codes.iter().zip(scales) {
            assert_eq!((codes.element, scale.element), (ElementType::Int8, ElementType::Float32));
            assert_eq!(scale.past, format!("{}_scale", codes.past));
            assert_eq!(scale.present, format!("{}_scale", codes.present));
            assert_eq!(scale.past_shape[..3], codes.past_shape[..3], "{export}");
            assert_eq!(scale.past_shape[3], Dimension::Known(1));
            assert_eq!((scale.style.clone(), scale.part), (codes.style.clone(), codes.part));
            assert_eq!(scale.writer.unwrap().input(2), codes.writer.unwrap().input(2));
        }
        let narrow = converted.report.caches.narrow.as_ref().unwrap();
        assert_eq!((narrow.count, narrow.rotated, narrow.scales.len()), (4, 2, 4), "{export}");
        assert_eq!(
            converted.model.metadata("kvscatter.cache_type").unwrap(),
            "int8 symmetric, one float32 scale for each token and head, keys and queries rotated"
        );
        let listed = converted.model.metadata("kvscatter.caches").unwrap();
        assert_eq!(listed.split("; ").count(), 8);
        let first = format!("{} -> {}_scale", codes[0].past, codes[0].past);
        assert!(converted.model.metadata("kvscatter.scales").unwrap().starts_with(&first));
        // Two heads of 16 codes and a scale, in four caches.
        assert_eq!(converted.report.caches.bytes_per_slot, Some(4 * 2 * (16 + 4)), "{export}");
        let pass = converted.report.passes.last().unwrap();
        assert_eq!((pass.name, pass.claim), ("narrow caches", Claim::Narrowed));
        assert!(pass.proof.contains("at most 0.394 %") && pass.proof.contains("of a step"), "{}", pass.proof);
    }
}

/// One matrix serves all layers, and the heads of queries are rotated where they are.
#[test]
fn keys_and_queries_are_rotated_by_one_matrix() {
    let matrices = |model: &Model| {
        let initializers = &model.proto().graph.initializer;
        initializers.iter().filter(|tensor| tensor.dims == [16, 16]).count()
    };
    for export in EXPORTS {
        let rotated = matrices(&converted(&load(export), CacheType::Int8).model);
        assert_eq!(rotated, 1, "{export}");
        let plain = convert(&load(export), ConvertOptions::new(MAX_SEQ).caches(Some(CacheType::Int8), false));
        assert_eq!(matrices(&plain.unwrap().model), 0, "{export}");
    }
}

#[test]
fn keys_in_small_heads_are_not_rotated() {
    let converted = converted(&load("decoders/mobius-0.1-gpt2"), CacheType::Int8);
    let narrow = converted.report.caches.narrow.unwrap();
    assert_eq!((narrow.rotated, narrow.unrotated.into_iter().collect::<Vec<_>>()), (0, vec![4]));
    let described = converted.model.metadata("kvscatter.cache_type").unwrap();
    assert_eq!(described, "int8 symmetric, one float32 scale for each token and head");
}

#[test]
fn rings_keep_their_slots() {
    let windowed = WindowedCaches::Ring { chunk: Some(3), rewind: 2 };
    let options = options(CacheType::Int8).windowed(windowed);
    let converted = convert(&load("decoders/optimum-0.1-mistral-window"), options).unwrap();
    let found = decoder(&converted.model);
    assert_eq!(found.caches.len(), 8);
    for cache in &found.caches {
        assert_eq!(cache.style, WriterStyle::TensorScatter(Mode::Circular));
        assert_eq!(cache.fixed_capacity(), Some(4 - 1 + 3 + 2));
    }
    let report = &converted.report.caches;
    assert_eq!(report.rings.values().sum::<usize>(), 4);
    assert_eq!(report.bytes_per_sample, report.bytes_per_slot.map(|bytes| bytes * 8));
    assert_eq!(report.linear_bytes_per_sample, report.bytes_per_slot.map(|bytes| bytes * 24));

    let wide =
        convert(&load("decoders/optimum-0.1-mistral-window"), ConvertOptions::new(24).windowed(windowed));
    let twice = convert(&wide.unwrap().model, options).unwrap();
    assert_eq!(twice.model.proto().graph, converted.model.proto().graph);
    assert_eq!(
        (&twice.report.caches.rings, twice.report.caches.most_tokens),
        (&report.rings, report.most_tokens)
    );
}

/// Two conversions make the same graph as one.
#[test]
fn a_static_decoder_changes_only_its_type() {
    for cache_type in [CacheType::Float16, CacheType::BFloat16, CacheType::Int8] {
        let once = converted(&load("mobius-llama-dynamic"), cache_type);
        let twice = converted(&static_llama(), cache_type);
        assert_eq!(twice.model.proto().graph, once.model.proto().graph, "{cache_type}");
        assert_eq!(twice.report.caches.narrow, once.report.caches.narrow);
        assert_eq!(twice.report.caches.bytes_per_sample, once.report.caches.bytes_per_sample);
        assert_eq!(twice.report.inputs, once.report.inputs);
        let names: Vec<_> = twice.report.passes.iter().map(|pass| pass.name).collect();
        assert_eq!(names, ["narrow caches"]);
        for key in ["caches", "cache_layout", "cache_type", "scales", "visibility"] {
            let entry = |model: &Model| model.metadata(&format!("kvscatter.{key}")).map(str::to_owned);
            assert_eq!(entry(&twice.model), entry(&once.model), "{key}");
        }
    }
}

/// This exporter's caches are `[batch, slots, heads * head size]`, where a row has several heads.
#[test]
fn halves_may_have_any_layout_and_int8_may_not() {
    let model = load("mobius-llama-static");
    let to = |cache_type| ConvertOptions::new(64).caches(Some(cache_type), true);
    let converted = convert(&model, to(CacheType::Float16)).unwrap();
    assert_eq!(count(&converted.model, "Cast"), count(&model, "Cast") + 8);
    assert!(decoder(&converted.model).caches.iter().all(|cache| cache.element == ElementType::Float16));
    assert!(matches!(refusal(&model, to(CacheType::Int8)), ConvertRefusal::CacheForm { .. }));
    assert_eq!(
        refusal(&model, ConvertOptions::new(32).caches(Some(CacheType::Float16), true)),
        ConvertRefusal::PastFixed { past: "key_cache.0".to_owned(), length: 64, max_seq: 32 }
    );
}

#[test]
fn a_half_becomes_int8_with_casts_around() {
    let converted = converted(&load("decoders/genai-0.18-llama-float16"), CacheType::Int8);
    let graph = converted.model.graph().unwrap();
    let is_cast = |value: &str| graph.producer(value).is_some_and(|(node, _)| node.is("Cast"));
    let attentions: Vec<&Node<'_>> = graph.nodes().iter().filter(|node| node.is("Attention")).collect();
    assert!(!attentions.is_empty());
    for attention in attentions {
        assert!((1..3).all(|slot| is_cast(attention.input(slot).unwrap())));
        assert!(is_cast(attention.input(0).unwrap()));
    }
}

#[test]
fn names_that_are_taken_are_avoided() {
    let mut model = static_llama();
    extend(
        &mut model,
        "past_key_values.0.key_scale: float[1]",
        "y = Neg(past_key_values.0.key_scale)",
        "y: float[1]",
    );
    let scales = converted(&model, CacheType::Int8).report.caches.narrow.unwrap().scales;
    assert_eq!(scales["past_key_values.0.key"], "past_key_values.0.key_scale_1");
    assert_eq!(scales["past_key_values.0.value"], "past_key_values.0.value_scale");
}

#[test]
fn a_cache_that_is_no_wider_is_refused() {
    for earlier in [CacheType::Float16, CacheType::Int8] {
        let once = converted(&load("mobius-llama-dynamic"), earlier).model;
        for second in [CacheType::Float32, CacheType::Float16, CacheType::BFloat16, CacheType::Int8] {
            if (earlier, second) == (CacheType::Float16, CacheType::Int8) {
                continue;
            }
            match refusal(&once, options(second)) {
                ConvertRefusal::CacheNarrow { element, asked, .. } => {
                    assert_eq!((element, asked), (earlier.element(), second));
                }
                ConvertRefusal::AlreadyStatic { .. } => assert_eq!(earlier, second),
                other => panic!("{other}"),
            }
        }
        assert!(matches!(refusal(&once, MAX_SEQ), ConvertRefusal::AlreadyStatic { .. }));
    }
    assert!(matches!(
        refusal(&static_llama(), options(CacheType::Float32)),
        ConvertRefusal::AlreadyStatic { .. }
    ));
    let float32 = converted(&load("mobius-llama-dynamic"), CacheType::Float32);
    assert_eq!(float32.model.proto(), static_llama().proto());
}

#[test]
fn a_cache_with_another_reader_is_refused() {
    for cache_type in [CacheType::Float16, CacheType::Int8] {
        let separate = options(cache_type).keep_attention(true);
        let refused = refusal(&load("optimum-llama"), separate);
        assert!(
            matches!(refused, ConvertRefusal::CacheReader { asked, .. } if asked == cache_type),
            "{refused}"
        );

        let mut model = static_llama();
        extend(&mut model, "", "y = ReduceSum(present.1.value)", "y: float[]");
        let expected =
            ConvertRefusal::CacheReader { present: "present.1.value".to_owned(), asked: cache_type };
        assert_eq!(refusal(&model, options(cache_type)), expected);

        let mut model = static_llama();
        extend(&mut model, "", "y = ReduceSum(past_key_values.1.value)", "y: float[]");
        let expected = ConvertRefusal::PastRead { past: "past_key_values.1.value".to_owned() };
        assert_eq!(refusal(&model, options(cache_type)), expected);

        // One cache for keys and values.
        let mut model = static_llama();
        let graph = graph_mut(&mut model);
        let attention = nodes_mut(graph, "Attention").next().unwrap();
        attention.input[2] = attention.input[1].clone();
        let refused = refusal(&model, options(cache_type));
        assert!(matches!(refused, ConvertRefusal::CacheReader { .. }), "{refused}");

        // A node between the cache and its attention.
        let mut model = static_llama();
        let graph = graph_mut(&mut model);
        let place = first(graph, "Attention");
        let keys = graph.node[place].input[1].clone();
        reroute(graph, &keys, "copied");
        insert(&mut model, place, Nodes::parse(&format!("copied = Identity({keys})")));
        let refused = refusal(&model, options(cache_type));
        assert!(matches!(refused, ConvertRefusal::CacheReader { .. }), "{refused}");
    }
}

/// Codes and scales are one cache, which attention reads as one value.
#[test]
fn codes_and_scales_are_found_together() {
    let dequantized = |model: &mut Model| {
        let graph = graph_mut(model);
        for place in 0..graph.node.len() {
            let is_product = graph.node[place].input.iter().any(|name| name.ends_with("_scale"))
                && graph.node[place].op_type.as_deref() == Some("Mul");
            if is_product {
                let cast = maker(graph, &graph.node[place].input[0]);
                graph.node[place].input[0] = graph.node[cast].input[0].clone();
                graph.node[place].op_type = Some("DequantizeLinear".to_owned());
                graph.node[place].attribute = vec![int("axis", 3), int("block_size", 16)];
            }
        }
        graph
            .node
            .retain(|node| node.op_type.as_deref() != Some("Cast") || !node.input[0].contains("present"));
    };
    for change in [|_: &mut Model| {}, dequantized] {
        let mut model = converted(&load("mobius-llama-dynamic"), CacheType::Int8).model;
        change(&mut model);
        let found = decoder(&model);
        for (codes, scales) in found.caches.iter().take(4).zip(&found.caches[4..]) {
            assert_eq!(codes.quantized, Some(QuantizedPart::Codes { scales: scales.past }));
            assert_eq!(scales.quantized, Some(QuantizedPart::Scales { codes: codes.past }));
            assert!(scales.is_scales() && !codes.is_scales());
        }
        let hazards = kinds(&found.hazards());
        assert!(hazards.iter().all(|kind| *kind == "runtime"), "{hazards:?}");
    }
}

/// A change of a model, with its name.
type Change = (&'static str, fn(&mut Model));

#[test]
fn codes_without_scales_of_their_own_are_caches_alone() {
    let changes: [Change; 4] = [
        ("the codes are also read elsewhere", |model| {
            extend(model, "", "y = ReduceMax(present.0.key)", "y: int8[]");
        }),
        ("the scales are also read elsewhere", |model| {
            extend(model, "", "y = ReduceMax(present.0.key_scale)", "y: float[]");
        }),
        ("the scales are written at other slots", |model| {
            extend(model, "others: int64[batch]", "", "");
            let graph = graph_mut(model);
            let writer = maker(graph, "present.0.key_scale");
            graph.node[writer].input[2] = "others".to_owned();
        }),
        ("the scales have another mode", |model| {
            let graph = graph_mut(model);
            let writer = maker(graph, "present.0.key_scale");
            graph.node[writer].attribute.retain(|attribute| attribute.name.as_deref() != Some("mode"));
            graph.node[writer].attribute.push(string("mode", "circular"));
        }),
    ];
    for (name, change) in changes {
        let mut model = converted(&load("mobius-llama-dynamic"), CacheType::Int8).model;
        change(&mut model);
        let found = decoder(&model);
        let of_first = found.caches.iter().filter(|cache| cache.past.starts_with("past_key_values.0.key"));
        assert!(of_first.clone().all(|cache| cache.quantized.is_none()), "{name}");
        assert_eq!(of_first.count(), 2, "{name}");
        assert_eq!(found.caches.iter().filter(|cache| cache.is_scales()).count(), 3, "{name}");
    }
}

#[test]
fn attention_over_a_narrow_ring_is_checked() {
    let windowed = WindowedCaches::Ring { chunk: Some(3), rewind: 2 };
    for cache_type in [CacheType::Float16, CacheType::Int8] {
        let options = options(cache_type).windowed(windowed);
        let model = convert(&load("decoders/optimum-0.1-mistral-window"), options).unwrap().model;
        let graph = model.graph().unwrap();
        let rings = check_rings(&model, &graph, &decoder(&model));
        assert_eq!(rings.len(), 4, "{cache_type}");
        for ring in rings {
            let size = ring.outcome.unwrap();
            assert_eq!((size.capacity, size.window), (8, 4), "{cache_type}");
            assert_eq!(ring.reader.unwrap().op_type, "Attention");
        }
    }
}

/// Returns a decoder of one layer with static caches in heads of this size, as the model declares it.
fn static_decoder(size: &str) -> Model {
    let shapes = format!("float[batch, 2, 24, {size}]");
    parsed(
        &format!("ids: int64[batch, new], at: int64[batch], length: int64[batch], k: {shapes}, v: {shapes}"),
        &format!(
            "rows = Expand(Unsqueeze(Cast(ids) {{to=float}}, [1, 3]), [1, 2, 1, {rows}])
            k1 = TensorScatter(k, rows, at) {{axis=2}}
            v1 = TensorScatter(v, rows, at) {{axis=2}}
            y = Attention(rows, k1, v1, _, _, _, length)",
            rows = if size.parse::<i64>().is_ok() { size } else { "4" }
        ),
        &format!("y: float[batch, 2, new, {size}], k1: {shapes}, v1: {shapes}"),
    )
}

/// A file may claim any head size. Nothing of that size is made before it is checked.
#[test]
fn head_sizes_that_do_not_fit_int8_are_refused() {
    for size in ["0", "1", "1025", "1048576", "1000000000000", "open"] {
        let refused = refusal(&static_decoder(size), options(CacheType::Int8));
        assert!(matches!(refused, ConvertRefusal::CacheForm { .. }), "{size}: {refused}");
    }
    for (size, rotated) in [("2", 0), ("7", 0), ("33", 0), ("40", 0), ("48", 1), ("1024", 1)] {
        let narrow = converted(&static_decoder(size), CacheType::Int8).report.caches.narrow.unwrap();
        assert_eq!((narrow.count, narrow.rotated), (2, rotated), "{size}");
        assert_eq!(narrow.unrotated.len(), 1 - rotated, "{size}");
    }
}

/// The number of heads of queries is a claim too.
#[test]
fn queries_of_impossible_heads_are_refused() {
    let refused = |heads: i64| {
        let mut model = static_decoder("16");
        let attention = nodes_mut(graph_mut(&mut model), "Attention").next().unwrap();
        attention.attribute.push(int("q_num_heads", heads));
        convert(&model, options(CacheType::Int8)).unwrap_err()
    };
    for heads in [0, 1 << 40, i64::MAX] {
        let error = refused(heads);
        let cause = error.cause::<ConvertRefusal>();
        assert!(
            matches!(cause, Some(ConvertRefusal::PassDiffers { pass: "narrow caches", .. })),
            "{heads}: {error}"
        );
    }
    let error = refused(-1);
    assert!(error.to_string().ends_with("shape [1, 1, 0, 16] cannot become [0, 0, -16]"), "{error}");
}

#[test]
fn queries_with_all_heads_in_a_row_are_rotated_by_head() {
    let mut model = static_decoder("16");
    let graph = graph_mut(&mut model);
    let place = first(graph, "Attention");
    graph.node[place].input[0] = "flat".to_owned();
    graph.node[place].output[0] = "result".to_owned();
    graph.node[place].attribute.push(int("q_num_heads", 2));
    insert(&mut model, place, Nodes::parse("flat = Reshape(Transpose(rows) {perm=[0,2,1,3]}, [0, 0, 32])"));
    extend(&mut model, "", "y = Identity(result)", "");
    declare(&mut model, "y: float[batch, new, 32]");
    let converted = converted(&model, CacheType::Int8);
    assert_eq!(converted.report.caches.narrow.unwrap().rotated, 1);
    assert_eq!(count(&converted.model, "Reshape"), count(&model, "Reshape") + 2);
}
