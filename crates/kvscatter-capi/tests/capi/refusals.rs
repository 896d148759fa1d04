//! Checks refusals that are not in the table of errors, and that a rejected call writes nothing (X1).

use std::ffi::c_void;
use std::ptr;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::c::{CALL, KV_CACHE_UPDATE, Operator, OwnedTensor, narrow, result};
use crate::scene::{Scene, ascend, onnx, packed, paged};

/// A change that makes a pair wrong.
type Change = fn(&mut kvs_pair);

/// X1 for many pairs. The last of three pairs is wrong, and the error has its index.
#[test]
fn one_wrong_pair_stops_all() {
    let prepared = onnx().prepared();
    let Scene { cache, update, call, .. } = onnx();
    let (mut caches, mut new) = ([[1_f32; 64]; 3], [7_f32; 16]);
    let update = update.at(&raw mut new);
    let first = caches.as_mut_ptr();
    let pairs = [0, 1, 2].map(|pair| kvs_pair { cache: cache.at(first.wrapping_add(pair)), update });
    let wrong: [(&str, Change); 4] = [
        ("KVS_ERROR_TENSOR_MISMATCH", |pair| pair.update.rank = 1),
        ("KVS_ERROR_MISALIGNED", |pair| pair.cache.data = pair.cache.data.wrapping_byte_add(1)),
        ("KVS_ERROR_NULL_BUFFER", |pair| pair.update.data = ptr::null_mut()),
        ("KVS_ERROR_OVERLAP", |pair| pair.cache.data = pair.cache.data.wrapping_byte_sub(4)),
    ];
    for (code, change) in wrong {
        let mut pairs = pairs;
        change(&mut pairs[2]);
        let refused = prepared.write_many(&call, &pairs).unwrap_err();
        assert_eq!((refused.code, refused.index), (code, Some(2)));
        assert!(refused.message.contains("pair 2"), "{}", refused.message);
    }
    assert_eq!(caches, [[1.0; 64]; 3]);
}

/// Indices are read while bytes move, so no cache may overlap them.
#[test]
fn nothing_that_is_read_may_be_written() {
    let cache = OwnedTensor::dense(KVS_INT64, &[2, 8, 4]);
    let scene = Scene { cache, update: OwnedTensor::dense(KVS_INT64, &[2, 2, 4]), ..onnx() };
    let prepared = scene.prepared();
    let (mut k, mut v, mut new) = ([0_i64; 64], [0_i64; 64], [7_i64; 16]);
    let update = scene.update.at(&raw mut new);
    let [k_at, v_at] = [&raw mut k, &raw mut v].map(|data| scene.cache.at(data));
    let values = v_at.data.wrapping_byte_add(62 * 8).cast_const();
    let call = kvs_call { write_indices: kvs_indices { values, count: 2, bits: 64 }, ..CALL };
    let pairs = [k_at, v_at].map(|cache| kvs_pair { cache, update });
    let refused = prepared.write_many(&call, &pairs).unwrap_err();
    assert_eq!((refused.code, refused.index), ("KVS_ERROR_OVERLAP", Some(1)));
    assert_eq!(refused.message, "the buffer of past_cache (pair 1) shares memory with that of write_indices");
    let tensors = [&k_at, &update, &v_at];
    let refused = prepared.functional(&call, tensors).unwrap_err();
    assert_eq!(refused.message, "the buffer of present_cache shares memory with that of write_indices");
    assert_eq!((k, v), ([0; 64], [0; 64]));
    assert_eq!(prepared.in_place(&call, &k_at, &update), Ok(0));
}

/// No cache may overlap the list of pairs.
#[test]
fn pairs_may_not_be_written() {
    let scene = onnx();
    let prepared = scene.prepared();
    let mut new = [7_f32; 16];
    let pair = kvs_pair { cache: scene.cache.anywhere(), update: scene.update.at(&raw mut new) };
    // The cache ends in the first word of the struct that describes it.
    let mut memory = [pair; 4];
    let last: *mut kvs_pair = &mut memory[3];
    let data = last.cast::<c_void>().wrapping_byte_sub(248);
    // SAFETY: `last` points to the last element of `memory`.
    unsafe { (*last).cache.data = data };
    // SAFETY: `last` points to one pair in `memory`, and the handle and the call outlive this.
    let status = unsafe { kvs_write_many(prepared.handle(), &scene.call, last, 1, ptr::null_mut()) };
    let refused = result(status).unwrap_err();
    assert_eq!(refused.message, "the buffer of past_cache shares memory with pairs");
}

/// Each operator accepts its own arguments and rejects others.
#[test]
fn arguments_of_other_operators_are_refused() {
    type Give = fn(&mut kvs_call);
    type Own = (fn() -> Scene, &'static [&'static str]);
    let arguments: [(&str, Give); 6] = [
        ("write_indices", |call| call.write_indices = narrow(&[0])),
        ("slot_mapping", |call| call.slot_mapping = narrow(&[0])),
        ("update_lengths", |call| call.update_lengths = narrow(&[0])),
        ("layer_id", |call| call.layer_id = narrow(&[0])),
        ("token_offset", |call| call.token_offset = narrow(&[0])),
        ("seq_len", |call| call.seq_len = narrow(&[0])),
    ];
    let operators: [Own; 4] = [
        (paged, &["slot_mapping"]),
        (onnx, &["write_indices"]),
        (packed, &["write_indices", "update_lengths"]),
        (ascend, &["layer_id", "token_offset", "seq_len"]),
    ];
    for (scene, own) in operators {
        for (name, give) in arguments.iter().filter(|(name, _)| !own.contains(name)) {
            let refused = scene().called(give).plan();
            assert_eq!((refused.code, refused.argument), ("KVS_ERROR_UNEXPECTED_ARGUMENT", Some(*name)));
        }
    }
}

/// In every error, the tensors of an operator have the names of its specification.
#[test]
fn tensors_have_the_names_of_their_specification() {
    type Wrong = fn(&mut kvs_tensor);
    let wrong: [(&str, Wrong); 5] = [
        ("KVS_ERROR_STRUCT_SIZE", |tensor| tensor.struct_size = 0),
        ("KVS_ERROR_TENSOR_MISMATCH", |tensor| tensor.rank = 1),
        ("KVS_ERROR_NULL_POINTER", |tensor| tensor.shape = ptr::null()),
        ("KVS_ERROR_MISALIGNED", |tensor| tensor.data = tensor.data.wrapping_byte_add(1)),
        ("KVS_ERROR_NULL_BUFFER", |tensor| tensor.data = ptr::null_mut()),
    ];
    let padded = || Scene { operator: Operator::KvCacheUpdate(KV_CACHE_UPDATE), ..packed() };
    let operators = [
        // Each scene is a valid call with an invalid shape: an update that is too long.
        (onnx(), ["past_cache", "update", "present_cache"], onnx().shaped(&[2, 8, 4], &[2, 9, 4])),
        (packed(), ["cache", "update", "output"], padded().shaped(&[2, 3, 8, 4], &[2, 3, 9, 4])),
        (ascend(), ["past", "newKv", "present"], ascend().shaped(&[2, 2, 8, 4], &[2, 9, 2, 2])),
    ];
    for (good, [cache, update, present], mut long) in operators {
        for (at, name) in [cache, update, present].into_iter().enumerate() {
            for (code, change) in wrong {
                let refused = good.functional(|tensors| change(&mut tensors[at]));
                assert_eq!((refused.code, refused.argument), (code, Some(name)));
                assert!(refused.message.contains(name), "{}", refused.message);
            }
        }
        let shared = good.run(|[past, new, present]| {
            new.data = past.data;
            present.data = past.data;
        });
        assert_eq!(shared.message, format!("the buffer of {cache} shares memory with that of {update}"));
        let shared = good.functional(|[past, _, present]| present.data = past.data);
        assert_eq!(shared.message, format!("the buffer of {present} shares memory with that of {cache}"));
        let refused = long.prepare();
        assert_eq!((refused.code, refused.argument), ("KVS_ERROR_UPDATE_LONGER_THAN_CACHE", Some(update)));
        assert_eq!(refused.message, format!("{update} has 9 rows, more than the cache's capacity of 8"));
        long.cache.strides = Some(vec![0; long.cache.shape.len()]);
        long.update.shape.clone_from(&good.update.shape);
        long.operator = good.operator;
        let refused = long.prepare();
        assert_eq!((refused.code, refused.argument), ("KVS_ERROR_CACHE_OVERLAPS_ITSELF", Some(cache)));
        long.update.code = 0;
        assert_eq!(long.prepare().argument, Some(update));
    }
}
