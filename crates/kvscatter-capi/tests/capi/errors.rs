//! Checks the number, the fields and the message of every error.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::c::{KV_CACHE_UPDATE, Operator, OwnedTensor, Refused, narrow, result, wide};
use crate::dlpack::{DlTensor, described};
use crate::scene::{Scene, ascend, onnx, packed, reversed, tensor_scatter};

/// Shapes and strides that differ from the prepared ones.
static OTHER_SHAPE: [i64; 3] = [2, 9, 4];
static OTHER_STRIDES: [i64; 3] = [8, 2, 1];

/// Returns all errors in the order of the header.
fn all() -> Vec<Refused> {
    [boundary(), shapes(), indices(), buffers()].concat()
}

/// Returns the errors of mistakes that only C permits.
fn boundary() -> Vec<Refused> {
    let unaligned = |values: *const c_void| values.wrapping_byte_add(1);
    vec![
        onnx().called(|call| call.write_indices.values = ptr::null()).plan(),
        onnx().run(|[_, update, _]| update.shape = ptr::null()),
        onnx().called(|call| call.write_indices.values = unaligned(call.write_indices.values)).plan(),
        onnx().run(|[cache, ..]| cache.data = cache.data.wrapping_byte_add(2)),
        tensor_scatter(|options| options.struct_size -= 1).prepare(),
        Scene { cache: OwnedTensor { code: 25, ..onnx().cache }, ..onnx() }.prepare(),
        onnx().shaped(&[1; 17], &[1; 17]).prepare(),
        onnx().shaped(&[2, 8, 4], &[2, -2, 4]).prepare(),
        tensor_scatter(|options| options.mode = 2).prepare(),
        tensor_scatter(|options| options.negative_index = -1).prepare(),
        onnx().called(|call| call.seq_len = narrow(&[1])).plan(),
        onnx().called(|call| call.write_indices.bits = 16).plan(),
        ascend().called(|call| call.seq_len = wide(&[1, 2])).plan(),
        onnx().run(|[cache, ..]| cache.r#type = KVS_INT32 as i32),
        onnx().run(|[_, update, _]| update.rank = 2),
        onnx().run(|[cache, ..]| cache.shape = OTHER_SHAPE.as_ptr()),
        onnx().run(|[_, update, _]| update.strides = OTHER_STRIDES.as_ptr()),
        reversed().run(|[_, update, _]| update.strides = ptr::null()),
        from_dlpack(2, 0, 0),
        from_dlpack(1, 17, 0),
        from_dlpack(1, -1, 0),
        from_dlpack(1, 0, 8),
        from_dlpack(1, 0, u64::MAX - 7),
        stopped(),
    ]
}

/// Returns the errors that the core reports when it prepares shapes.
fn shapes() -> Vec<Refused> {
    let strided = |strides: &[i64]| OwnedTensor::strided(KVS_FLOAT32, &[2, 8, 4], strides);
    let axis = |axis| tensor_scatter(|options| options.axis = axis);
    let padded = Scene { operator: Operator::KvCacheUpdate(KV_CACHE_UPDATE), ..packed() };
    let far = 1 << 62;
    // The five dimensions after the sequence cannot be merged with each other.
    let twisted = (vec![1, 2, 2, 2, 2, 2, 2], [64, 1, 32, 2, 16, 4, 8]);
    vec![
        packed().typed(KVS_INT8).prepare(),
        Scene { update: ascend().update, ..onnx() }.prepare(),
        ascend().shaped(&[2, 2, 8, 4], &[3, 4, 1]).prepare(),
        onnx().shaped(&[2], &[2]).prepare(),
        onnx().shaped(&[2, 8, 4], &[2, 2]).prepare(),
        axis(3).prepare(),
        axis(i64::MIN).prepare(),
        axis(-3).prepare(),
        onnx().shaped(&[2, 8, 4], &[2, 2, 5]).prepare(),
        ascend().shaped(&[2, 2, 8, 6], &[2, 1, 2, 4]).prepare(),
        padded.shaped(&[2, 3, 8, 4], &[3, 3, 2, 4]).prepare(),
        onnx().shaped(&[2, 8, 4], &[2, 9, 4]).prepare(),
        onnx().shaped(&[2, far, 4], &[2, 2, 4]).prepare(),
        Scene { cache: strided(&[32, 4, 0]), ..onnx() }.prepare(),
        Scene {
            cache: OwnedTensor::strided(KVS_FLOAT32, &twisted.0, &twisted.1),
            update: OwnedTensor::dense(KVS_FLOAT32, &twisted.0),
            ..tensor_scatter(|options| options.axis = 1)
        }
        .prepare(),
    ]
}

/// Returns the errors that the core reports for the indices of a call.
fn indices() -> Vec<Refused> {
    let update_lengths =
        |values: &'static [i32]| packed().called(|call| call.update_lengths = narrow(values));
    vec![
        onnx().called(|call| call.write_indices = wide(&[6])).plan(),
        onnx().called(|call| call.write_indices = wide(&[0, -1])).plan(),
        onnx().called(|call| call.write_indices = wide(&[0, i64::MAX])).plan(),
        ascend().called(|call| call.token_offset = narrow(&[9, 2])).plan(),
        ascend().called(|call| call.token_offset = narrow(&[8, 1])).plan(),
        onnx().called(|call| call.lengths = wide(&[2, 3])).plan(),
        update_lengths(&[1, 1, 3]).plan(),
        update_lengths(&[0, 4, 3]).plan(),
        packed().shaped(&[2, 3, 1, 4], &[3, 3, 4]).called(|call| call.write_indices = wide(&[0, 0])).plan(),
        update_lengths(&[0, 1, 2]).plan(),
        ascend().called(|call| call.layer_id = narrow(&[2])).plan(),
        ascend().called(|call| call.layer_id = narrow(&[-1])).plan(),
    ]
}

/// Returns the errors about the memory of a call.
fn buffers() -> Vec<Refused> {
    let strings = Scene { cache: onnx().cache, ..onnx() }.typed(KVS_STRING);
    vec![
        onnx().run(|[_, update, _]| update.data = ptr::null_mut()),
        // The update begins 4 bytes before the end of the cache.
        onnx().run(|[cache, update, present]| {
            update.data = cache.data.wrapping_byte_add(252);
            present.data = update.data;
        }),
        strings.plan(),
        // The buffer begins in the last 16 bytes of the address space.
        onnx().run(|[cache, ..]| cache.data = ptr::without_provenance_mut(usize::MAX - 15)),
        onnx().run(|[_, update, _]| update.data = ptr::without_provenance_mut(usize::MAX - 15)),
        onnx().functional(|[.., present]| present.data = ptr::without_provenance_mut(usize::MAX - 15)),
        // The second row of each sample would be before the first row, which begins at address 8.
        reversed().run(|[_, update, _]| update.data = ptr::without_provenance_mut(8)),
        onnx().called(|call| call.write_indices.values = ptr::without_provenance(usize::MAX - 7)).plan(),
        onnx().run(|[_, update, _]| update.shape = ptr::without_provenance(usize::MAX - 7)),
    ]
}

/// Describes a DLPack tensor of float32 with a device, a rank and an offset, and returns the error.
fn from_dlpack(device: i32, rank: i32, byte_offset: u64) -> Refused {
    let mut tensor = DlTensor::new((2, 32, 1));
    (tensor.device, tensor.ndim, tensor.byte_offset) = ((device, 0), rank, byte_offset);
    described(tensor).unwrap_err()
}

unsafe extern "C" fn stop(_: *mut c_void, _: *const kvs_block) -> i32 {
    -7
}

fn stopped() -> Refused {
    let (prepared, call) = (onnx().prepared(), onnx().call);
    // SAFETY: The handle and `call` outlive this, and `stop` returns.
    result(unsafe { kvs_for_each_block(prepared.handle(), &call, Some(stop), ptr::null_mut()) }).unwrap_err()
}

/// Review the snapshot, because users read these messages.
#[test]
fn in_numbers_and_words() {
    let or_none = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
    let lines = all().into_iter().map(|refused| {
        let Refused { code, argument, index, value, limit, message } = refused;
        let argument = argument.unwrap_or("-");
        let [index, value, limit] = [index, value, limit].map(or_none);
        format!("{code}: {argument}, index {index}, value {value}, limit {limit}\n    {message}\n")
    });
    insta::assert_snapshot!(lines.collect::<String>());
}

/// Every status except the two that no call should return.
#[test]
fn every_number_is_reached() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvscatter.h");
    let header = fs::read_to_string(header).unwrap();
    let named: BTreeSet<_> = header
        .lines()
        .filter_map(|line| line.trim().split_once(" = ")?.0.strip_prefix("KVS_ERROR_"))
        .filter(|name| !name.starts_with("HAS_") && !["PANIC", "INTERNAL"].contains(name))
        .collect();
    let all = all();
    let reached: BTreeSet<_> =
        all.iter().filter_map(|refused| refused.code.strip_prefix("KVS_ERROR_")).collect();
    assert_eq!(reached, named);
}
