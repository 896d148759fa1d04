//! Compares costs with arithmetic done by hand.

use std::collections::BTreeMap;

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::{Cost, CostAt};

use super::made::Made;
use super::styles::cut;
use crate::support::{decoder, load};

fn costs(model: &Model, batch: usize, length: usize, capacity: usize) -> Vec<Option<Cost>> {
    let dims = BTreeMap::new();
    let at = CostAt { batch, length, capacity, dims: &dims };
    decoder(model).caches.iter().map(|cache| cache.cost(&at)).collect()
}

#[test]
fn of_the_styles() {
    // A row is 2 heads of 16 floats.
    const ROW: u64 = 2 * 16 * 4;
    let growing = Cost {
        per_token: ROW,
        size: 3 * 100 * ROW,
        static_size: 3 * 128 * ROW,
        copied: Some(3 * 101 * ROW),
        copied_static: Some(3 * ROW),
    };
    for made in [Made::growing(), Made::attention_past(), Made::group_query()] {
        assert_eq!(costs(&made.model(), 3, 100, 128), [Some(growing); 2]);
    }
    // The cache's own capacity counts.
    let fixed = Cost { size: 3 * 64 * ROW, static_size: 3 * 64 * ROW, copied: Some(3 * ROW), ..growing };
    assert_eq!(costs(&Made::fixed().model(), 3, 100, 128), [Some(fixed); 2]);
    // Every node between past and present copies the cache once more.
    let between = Made::fixed().edit("(past_k", "(Neg(Neg(past_k))").model();
    assert_eq!(costs(&between, 3, 100, 128)[0].unwrap().copied, Some(3 * ROW + 2 * 3 * 64 * ROW));
}

#[test]
fn of_a_cache_that_is_cut() {
    const ROW: u64 = 2 * 16 * 4;
    let cost = |length| costs(&cut(Some(-7), i64::MAX, 2).model(), 1, length, 128)[1].unwrap();
    let [short, long] = [cost(3), cost(100)];
    assert_eq!((short.size, long.size, long.static_size), (3 * ROW, 7 * ROW, 7 * ROW));
    assert_eq!(long.copied, Some(2 * 8 * ROW), "the Concat and the Slice copy");
}

/// One tensor has the caches of 3 layers.
#[test]
fn of_a_stack_of_layers() {
    const ROW: u64 = 3 * 16 * 4;
    for batch in ["batch", "1"] {
        let shape = format!("float[3, {batch}, 64, 16]");
        let model = Made::fixed()
            .input(&format!("past_k, past_v: {shape}"))
            .output(&format!("present_k, present_v: {shape}, logits: float[{batch}, s, 32]"))
            .node("logits = Relu(q)")
            .model();
        let decoder = decoder(&model);
        assert_eq!((decoder.caches[0].batch_axis, decoder.unknown().is_some()), (1, true));
        let cost = costs(&model, 5, 100, 128)[0].unwrap();
        let expected = (ROW, 5 * 64 * ROW, Some(5 * ROW));
        assert_eq!((cost.per_token, cost.size, cost.copied), expected, "{batch}");
    }
}

#[test]
fn of_float16_and_of_what_has_no_size() {
    let model = load("decoders/optimum-0.1-qwen3-float16");
    let per_token = costs(&model, 1, 1, 1)[0].unwrap().per_token;
    assert_eq!(per_token, 2 * 4 * 2, "2 heads of 4 elements of 2 bytes");
    let ty = "string[batch, 2, 64, 16]";
    let strings =
        Made::fixed().input(&format!("past_k, past_v: {ty}")).output(&format!("present_k, present_v: {ty}"));
    assert_eq!(costs(&strings.model(), 1, 1, 1), [None; 2]);
}

/// The export leaves the head size open, but its weights determine it.
#[test]
fn a_head_size_that_only_the_weights_tell() {
    let model = load("genai-llama-gqa");
    assert!(costs(&model, 1, 1, 1).iter().all(|cost| cost.unwrap().per_token == 2 * 16 * 4));
}

#[test]
fn open_sizes_are_asked_for() {
    let made = Made::growing().input("past_k: float[batch, heads, past, ?]");
    let model = made.output("present_k: float[batch, heads, all, ?]").model();
    let decoder = decoder(&model);
    let cache = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
    let mut dims = BTreeMap::new();
    assert_eq!(cache.open_dims(&dims), ["heads", "past_k[3]"]);
    assert_eq!(cache.cost(&CostAt { batch: 1, length: 1, capacity: 1, dims: &dims }), None);
    dims.insert("heads".to_owned(), 4);
    assert_eq!(cache.open_dims(&dims), ["past_k[3]"]);
    dims.insert("past_k[3]".to_owned(), 8);
    assert_eq!(cache.open_dims(&dims), [""; 0]);
    let cost = cache.cost(&CostAt { batch: 1, length: 1, capacity: 1, dims: &dims }).unwrap();
    assert_eq!(cost.per_token, 4 * 8 * 4);
}

#[test]
fn sizes_that_no_machine_has() {
    for (batch, length) in [(usize::MAX, 1), (1, usize::MAX), (1 << 40, 1 << 40)] {
        assert_eq!(costs(&Made::growing().model(), batch, length, 1)[0], None);
    }
}
