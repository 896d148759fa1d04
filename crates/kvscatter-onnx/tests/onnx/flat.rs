//! Tests caches `[batch, slots, heads * head size]`, and other names of caches.

use kvscatter::ElementType;
use kvscatter_onnx::convert::{
    CacheLayout, CacheNames, CacheType, Claim, ConvertOptions, ConvertRefusal, Converted, convert,
};
use kvscatter_onnx::decoder::Cache;
use kvscatter_onnx::{Dimension, Fingerprint, Model, WeightTransfer};

use crate::support::{assert_refused, count, decoder, graph_mut, load, nodes_mut};

const MAX_SEQ: usize = 24;

/// Decoders with 2 heads of 16 numbers for keys, as they are exported.
const EXPORTS: [&str; 3] = ["mobius-llama-dynamic", "optimum-llama", "genai-llama-gqa"];

fn options() -> ConvertOptions {
    ConvertOptions::new(MAX_SEQ).layout(CacheLayout::Flat)
}

fn flat(name: &str) -> Converted {
    convert(&load(name), options()).unwrap()
}

fn fingerprint(model: &Model) -> Fingerprint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    Model::load(&path).unwrap().file().unwrap().fingerprint().unwrap()
}

#[test]
fn attention_reads_flat_caches() {
    for export in EXPORTS {
        let converted = flat(export);
        let last = converted.report.passes.last().unwrap();
        assert_eq!((last.name, last.claim), ("flat caches", Claim::Values), "{export}");
        let found = decoder(&converted.model);
        assert_eq!(found.caches.len(), 4);
        for cache in &found.caches {
            assert!(cache.is_static() && cache.between.is_empty(), "{export}");
            let slots = [Dimension::Known(MAX_SEQ), Dimension::Known(32)];
            assert_eq!((cache.axis, &cache.past_shape[1..]), (1, &slots[..]), "{export}");
            assert_eq!(cache.present_info.shape.as_deref().map(|shape| &shape[1..]), Some(&slots[..]));
        }
        let layout = converted.model.metadata("kvscatter.cache_layout").unwrap();
        assert!(layout.starts_with("[batch, 24, heads * head size], written along axis 1; "), "{layout}");
        let by_head = convert(&load(export), MAX_SEQ).unwrap();
        assert_eq!(by_head.report.caches, converted.report.caches);
        assert_eq!(count(&by_head.model, "Attention"), count(&converted.model, "Attention"));
        // A saved row has another order of numbers.
        assert_ne!(fingerprint(&by_head.model), fingerprint(&converted.model));
        let again = convert(&by_head.model, options()).unwrap();
        assert_eq!(again.report.passes.iter().map(|pass| pass.name).collect::<Vec<_>>(), ["flat caches"]);
    }
    let mobius = load("mobius-llama-static");
    let options = ConvertOptions::new(64).layout(CacheLayout::Flat);
    assert_refused!(convert(&mobius, options), ConvertRefusal::AlreadyStatic { .. });
}

#[test]
fn rings_and_halves_may_be_flat() {
    let large = ConvertOptions::new(64).layout(CacheLayout::Flat);
    let ring = convert(&load("decoders/optimum-0.1-mistral-window"), large).unwrap();
    assert!(!ring.report.caches.rings.is_empty());
    assert!(decoder(&ring.model).caches.iter().all(|cache| cache.is_ring() && cache.axis == 1));
    let both = convert(&load("decoders/torch-2.15-gemma3"), large).unwrap();
    let caches = decoder(&both.model).caches;
    assert!(caches.iter().any(|cache| cache.is_ring()) && !caches.iter().all(|cache| cache.is_ring()));
    assert!(caches.iter().all(|cache| cache.axis == 1));
    let halves = options().caches(Some(CacheType::Float16), true);
    let halves = convert(&load("optimum-llama"), halves).unwrap().model;
    let is_half = |element, axis| (element, axis) == (ElementType::Float16, 1);
    assert!(decoder(&halves).caches.iter().all(|cache| is_half(cache.element, cache.axis)));
}

#[test]
fn caches_that_other_nodes_read_are_refused() {
    let model = load("optimum-llama");
    assert_refused!(convert(&model, options().keep_attention(true)), ConvertRefusal::FlatReader { .. });
    let codes = options().caches(Some(CacheType::Int8), true);
    assert_refused!(convert(&model, codes), ConvertRefusal::FlatReader { .. });
}

/// Returns the names of all pasts and presents, in order.
fn names(model: &Model) -> Vec<[String; 2]> {
    let names = |cache: &Cache<'_>| [cache.past, cache.present].map(str::to_owned);
    let mut names: Vec<_> = decoder(model).caches.iter().map(names).collect();
    names.sort();
    names
}

#[test]
fn one_pattern_gives_the_names_of_mobius() {
    let pattern = CacheNames::new("{part}_cache.{i}", None).unwrap();
    for export in EXPORTS {
        let mut converted = flat(export);
        let before = fingerprint(&converted.model);
        converted.rename_caches(&pattern).unwrap();
        assert_eq!(names(&converted.model), names(&load("mobius-llama-static")), "{export}");
        let pairs = converted.model.metadata("kvscatter.caches").unwrap();
        assert!(pairs.starts_with("key_cache.0 -> updated_key_cache.0; "), "{pairs}");
        assert_eq!(fingerprint(&converted.model), before, "{export}");
    }
}

#[test]
fn caches_that_are_static_already_get_new_names() {
    let options = ConvertOptions::new(64).may_stay(true);
    let mut converted = convert(&load("mobius-llama-static"), options).unwrap();
    assert!(converted.report.passes.is_empty());
    converted.rename_caches(&CacheNames::new("past_key_values.{i}.{part}", None).unwrap()).unwrap();
    assert_eq!(names(&converted.model), names(&load("mobius-llama-dynamic")));
}

#[test]
fn scales_and_swapped_names_follow_a_pattern() {
    let codes = ConvertOptions::new(MAX_SEQ).caches(Some(CacheType::Int8), true);
    let mut converted = convert(&load("mobius-llama-dynamic"), codes).unwrap();
    // The new pasts have the old names of presents.
    let pattern = CacheNames::new("present.{i}.{part}", Some("past_key_values.{i}.{part}")).unwrap();
    converted.rename_caches(&pattern).unwrap();
    let narrow = converted.report.caches.narrow.as_ref().unwrap();
    assert_eq!(narrow.scales["present.0.key"], "present.0.key_scale");
    let scales = converted.model.metadata("kvscatter.scales").unwrap();
    assert!(scales.contains("present.1.value -> present.1.value_scale"), "{scales}");
    let layout = converted.model.metadata("kvscatter.cache_layout").unwrap();
    assert_eq!(layout.matches("scales have 1").count(), 1, "{layout}");
    assert_eq!(names(&converted.model)[0], ["present.0.key", "past_key_values.0.key"]);
}

#[test]
fn a_name_of_another_value_is_refused() {
    let mut model = load("optimum-llama");
    let old = nodes_mut(graph_mut(&mut model), "MatMul").next().unwrap().output[0].clone();
    for node in &mut graph_mut(&mut model).node {
        for name in node.input.iter_mut().chain(&mut node.output).filter(|name| **name == old) {
            "key.0".clone_into(name);
        }
    }
    let options = ConvertOptions::new(MAX_SEQ).keep_attention(true);
    let mut converted = convert(&model, options).unwrap();
    let error = converted.rename_caches(&CacheNames::new("{part}.{i}", None).unwrap()).unwrap_err();
    assert!(matches!(error.cause(), Some(ConvertRefusal::NameTaken { name }) if name == "key.0"), "{error}");
    assert!(names(&converted.model)[0][0].starts_with("past_key_values"));
}

#[test]
fn equal_new_names_are_refused() {
    let codes = ConvertOptions::new(MAX_SEQ).caches(Some(CacheType::Int8), true);
    let mut converted = convert(&load("mobius-llama-dynamic"), codes).unwrap();
    let before = names(&converted.model);
    // The scales of a past and the codes of its present would get the same name.
    let pattern = CacheNames::new("{part}.{i}", Some("{part}.{i}_scale")).unwrap();
    let error = converted.rename_caches(&pattern).unwrap_err();
    assert!(matches!(error.cause(), Some(ConvertRefusal::NameTaken { .. })), "{error}");
    assert_eq!(names(&converted.model), before);
}
