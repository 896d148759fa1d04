//! A prepared call allocates nothing, with any executor, and also if it is rejected.

use std::hint::black_box;
use std::mem::MaybeUninit;

use allocation_counter::measure;
use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{ElementType, Error, Executor, Layout, Mode, OutOfRange};

#[track_caller]
fn allocates_nothing(call: impl FnOnce()) {
    let allocations = measure(call);
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
}

#[test]
fn the_counter_counts() {
    assert_eq!(measure(|| drop(black_box(vec![0_u8; 9]))).count_total, 1);
}

#[test]
fn tensor_scatter() {
    let write = TensorScatter::new()
        .mode(Mode::Circular)
        .prepare(ElementType::Float16, &[3, 2, 8, 5], &[3, 2, 3, 5])
        .unwrap();
    let (mut k, mut v, update) = ([0_u16; 240], [0_u16; 240], [1_u16; 90]);
    let (starts, narrow, lengths) = ([7_i64, -1, 3], [7_i32, -1, 3], [1_i64, 3, 0]);
    let (mut present, mut memory) = ([0_u16; 240], [MaybeUninit::uninit(); 240]);
    allocates_nothing(|| {
        let _ = write.write(&mut k, &update, &starts).unwrap();
        let _ = write.write(&mut k, &update, &narrow).unwrap();
        let _ = write.write_many(&mut [(&mut k, &update), (&mut v, &update)], &starts).unwrap();
        let _ = write.write_present(&k, &update, &mut present, &starts).unwrap();
        let _ = write.plan(&starts).unwrap().write_present_uninit(&k, &update, &mut memory).unwrap();
        let plan = write.plan_with_lengths(&starts, &lengths).unwrap();
        let _ = plan.write(&mut k, &update).unwrap();
        let _ = plan.write_bytes(bytemuck::cast_slice_mut(&mut k), bytemuck::cast_slice(&update)).unwrap();
        let _ = plan.write_cloned(&mut k, &update).unwrap();
        let _ = plan.write_present_cloned(&v, &update, &mut present).unwrap();
        plan.for_each_block(|block| assert_eq!(block.elements() % 5, 0));
        assert_eq!(plan.blocks().count(), 3);
        assert_eq!(plan.segments().count(), 3);
    });
}

/// An executor that runs the work of two threads on one thread, because the counter counts only that thread.
struct InTurn;

impl Executor for InTurn {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        work();
        work();
    }
}

/// These writes are large enough to be shared between threads.
#[test]
fn on_an_executor() {
    let (cache, update) = ([2, 2, 2048, 64], [2, 2, 1024, 64]);
    let write = TensorScatter::new().prepare(ElementType::Float32, &cache, &update).unwrap();
    let [mut k, mut v, mut present] = [0.0, 0.0, 0.0].map(|zero| vec![zero; 2 * 2 * 2048 * 64]);
    let (update, starts) = (vec![1.0_f32; 2 * 2 * 1024 * 64], [7_i64, 1024]);
    allocates_nothing(|| {
        let plan = write.plan(&starts).unwrap().with_executor(&InTurn);
        let _ = plan.write(&mut k, &update).unwrap();
        let _ = plan.write_many([(&mut k, &update), (&mut v, &update)].as_mut_slice()).unwrap();
        let _ = plan.write_present(&k, &update, &mut present).unwrap();
    });
    assert_eq!((k[7 * 64], v[7 * 64], present[7 * 64]), (1.0, 1.0, 1.0));
}

#[test]
fn rows_of_odd_nibbles() {
    let write = TensorScatter::new().prepare(ElementType::Int4, &[3, 3, 3], &[3, 1, 3]).unwrap();
    let (mut cache, update, mut present) = ([0_u8; 14], [1_u8; 5], [0_u8; 14]);
    allocates_nothing(|| {
        let plan = write.plan(&[0_i64, 2, 1]).unwrap();
        let _ = plan.write_bytes(&mut cache, &update).unwrap();
        let _ = plan.write_present_bytes(&cache, &update, &mut present).unwrap();
    });
}

#[test]
fn strides_that_split_blocks() {
    let cache = Layout::strided(&[2, 2, 3, 4, 2], &[1000, 100, 30, 7, 2]);
    let update = Layout::strided(&[2, 2, 3, 1, 2], &[1, 50, 3, 9, 20]);
    let write = TensorScatter::new().prepare(ElementType::Int8, cache, update).unwrap();
    let (mut buffer, new) = ([0_u8; 1200], [1_u8; 100]);
    allocates_nothing(|| {
        let plan = write.plan(&[0_i64, 2]).unwrap();
        let _ = plan.write(&mut buffer, &new).unwrap();
        assert!(plan.blocks().count() >= 2);
    });
}

#[test]
fn kv_cache_update() {
    let front = KvCacheUpdate::new().out_of_range(OutOfRange::SkipSample);
    let padded = front.prepare(ElementType::Float32, &[3, 1, 4, 2], &[2, 1, 2, 2]).unwrap();
    let packed = front.prepare_packed(ElementType::Float32, &[3, 1, 4, 2], &[5, 1, 2]).unwrap();
    let (mut cache, update) = ([0_f32; 24], [1_f32; 10]);
    allocates_nothing(|| {
        let written = padded.write(&mut cache, &update[..8], &[3_i64, 0]).unwrap();
        assert_eq!(written.skipped, 1);
        let plan =
            packed.plan_with_lengths(PackedCall::new(&[0_i32, 2, 3], &[0, 2, 4, 5]), &[1_i64, 2, 0]).unwrap();
        let _ = plan.write(&mut cache, &update).unwrap();
    });
}

#[test]
fn kv_cache_operation() {
    let write = KvCacheOperation::new().prepare(ElementType::Int8, &[2, 2, 4, 6], &[3, 6]).unwrap();
    let (mut past, new_kv) = ([0_i8; 96], [1_i8; 18]);
    allocates_nothing(|| {
        let call = KvCacheOperationCall { layer_id: &[1], token_offset: &[4, 1], seq_len: &[2, 1] };
        let _ = write.write(&mut past, &new_kv, call).unwrap();
        let _ = write.plan_with_lengths(call, &[0_i64, 1]).unwrap().write(&mut past, &new_kv).unwrap();
    });
}

#[test]
fn refusals() {
    let write = TensorScatter::new().prepare(ElementType::Float32, &[2, 4, 1], &[2, 2, 1]).unwrap();
    let mut cache = [0_f32; 8];
    allocates_nothing(|| {
        let beyond = write.write(&mut cache, &[0.0; 4], &[0_i64, 3]);
        assert!(matches!(beyond, Err(Error::StartOutOfRange { .. })));
        let short = write.write(&mut cache, &[0.0; 3], &[0_i64, 2]);
        assert!(matches!(short, Err(Error::BufferLength { .. })));
    });
}
