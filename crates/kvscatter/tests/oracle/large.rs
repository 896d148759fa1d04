//! Tests writes that are large enough to be shared with the real limits, with every kind of executor and every
//! variant.

use std::iter;
use std::mem::MaybeUninit;

use kvscatter::{ElementType, Executor};
use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::cases::{Call, Origin, Random, View};
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{NegativeIndex, OutOfRange};

use crate::call::{plan, prepare};
use crate::pool::POOL;
use crate::variants::{self, Variant};
use crate::view::AsLayout;

fn tensor_scatter(axis: i64, mode: &str, write_indices: &[i64]) -> Call {
    let operator = TensorScatter {
        axis,
        mode: mode.to_owned(),
        out_of_range: OutOfRange::SkipSample,
        negative_index: NegativeIndex::Reject,
    };
    Call::TensorScatter { operator, write_indices: Some(write_indices.to_vec()), lengths: None }
}

#[test]
fn rows_of_a_dense_cache() {
    let call = tensor_scatter(-2, "linear", &[300, 9999, 0]);
    check(
        &call,
        ElementType::Float32,
        &View::dense(&[3, 2, 2048, 130], 2),
        &View::dense(&[3, 2, 1500, 130], 2),
    );
}

#[test]
fn a_ring_that_wraps() {
    let call = tensor_scatter(1, "circular", &[3000, 77]);
    check(&call, ElementType::Float32, &View::dense(&[2, 4096, 128], 2), &View::dense(&[2, 2049, 128], 2));
}

/// With slots of a few bytes and many outer indices, the functional form copies tiles.
#[test]
fn short_slabs() {
    let call = tensor_scatter(-1, "circular", &[250, 3]);
    check(&call, ElementType::Float32, &View::dense(&[2, 1024, 600], 2), &View::dense(&[2, 1024, 290], 2));
}

#[test]
fn strides_on_both_sides() {
    let mut random = Random::new(0x5CA7, 7);
    let call = tensor_scatter(2, "linear", &[100, 600]);
    let cache = View::strided(&[2, 4, 1600, 96], 2, &mut random);
    let update = View::broadcast(&[2, 4, 900, 96], 2, &mut random);
    check(&call, ElementType::Float32, &cache, &update);
}

#[test]
fn packed_samples() {
    let call = Call::KvCacheUpdate {
        operator: KvCacheUpdate { update_form: UpdateForm::Packed, out_of_range: OutOfRange::Error },
        write_indices: vec![5, 0, 900],
        update_lengths: Some(vec![0, 1000, 1000, 2100]),
        lengths: None,
    };
    check(&call, ElementType::Float32, &View::dense(&[4, 4, 2000, 64], 2), &View::dense(&[2100, 4, 64], 2));
}

#[test]
fn one_of_three_layers() {
    let call = Call::KvCacheOperation {
        operator: KvCacheOperation { out_of_range: OutOfRange::Error },
        layer_id: vec![1],
        token_offset: vec![1500, 2000],
        seq_len: vec![1200, 1900],
        lengths: None,
    };
    check(&call, ElementType::Float16, &View::dense(&[3, 2, 2048, 384], 2), &View::dense(&[3100, 384], 2));
}

/// Compares whole buffers, in place and functional, bit for bit.
fn check(call: &Call, element: ElementType, cache: &View, update: &View) {
    let width = element.bits().unwrap() / 8;
    let past = paint(0, cache.total() * width);
    let update_bytes = paint(past.len(), update.total() * width);
    let inner = |view: &View| view.buffer().start * width..view.buffer().end * width;
    let new = &update_bytes[inner(update)];
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect() };
    let (past_words, new_words) = (words(&past[inner(cache)]), words(new));
    let outcome = call.run_on_origins(cache.shape(), update.shape()).unwrap();
    let (slots, rows) = (cache.places(), update.places());
    let element_at = |bytes: &[u8], place: usize| bytes[place * width..][..width].to_vec();
    let (mut in_place, mut present) = (past.clone(), Vec::new());
    for (&slot, origin) in slots.iter().zip(&outcome.present) {
        match *origin {
            Origin::Cache(kept) => present.extend(element_at(&past, slots[kept])),
            Origin::Update(written) => {
                let element = element_at(&update_bytes, rows[written]);
                in_place[slot * width..][..width].copy_from_slice(&element);
                present.extend(element);
            }
        }
    }
    let executors = variants::ODD.iter().copied().chain([&*POOL as &dyn Executor]);
    let prepared = prepare(call, element, cache.layout(), update.layout()).unwrap();
    for variant in Variant::for_large() {
        let prepared = variant.apply(&prepared);
        let plan = plan(&prepared, call).unwrap();
        assert!(plan.bytes() >= Some(2 << 20), "{plan:?}");
        let shared = executors.clone().map(|executor| plan.with_executor(executor));
        for plan in iter::once(plan).chain(shared) {
            let mut written = past.clone();
            let _ = plan.write_bytes(&mut written[inner(cache)], new).unwrap();
            assert!(written == in_place, "in place, {variant:?}, {plan:?}");
            let mut filled = vec![0xEE; present.len()];
            let _ = plan.write_present_bytes(&past[inner(cache)], new, &mut filled).unwrap();
            assert!(filled == present, "functional, {variant:?}, {plan:?}");
            if width == 4 {
                let mut memory = vec![MaybeUninit::uninit(); present.len() / width];
                let (filled, _) = plan.write_present_uninit(&past_words, &new_words, &mut memory).unwrap();
                assert!(
                    bytemuck::cast_slice::<_, u8>(filled) == present,
                    "uninitialised, {variant:?}, {plan:?}"
                );
            }
        }
    }
}

/// Returns bytes with a period that no stride shares.
pub(crate) fn paint(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at % 251) as u8 ^ (at / 251 % 241) as u8).collect()
}
