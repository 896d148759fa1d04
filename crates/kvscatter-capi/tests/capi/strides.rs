//! Checks which strides mean the same layout.

use std::ptr;

use kvscatter_capi::kvs_element_type_code::KVS_INT16;
use kvscatter_capi::*;

use crate::c::{CALL, Operator, OwnedTensor, PreparedHandle, TENSOR_SCATTER, wide};

const CACHE: [i64; 3] = [1, 4, 2];
const UPDATE: [i64; 3] = [1, 1, 2];

fn prepared(cache: &OwnedTensor, update: &OwnedTensor) -> PreparedHandle {
    PreparedHandle::new(&Operator::TensorScatter(TENSOR_SCATTER), &cache.anywhere(), &update.anywhere())
        .unwrap()
}

/// Strides of dimensions of size 1 have no effect, and a dense tensor needs no strides. Each of these tensors
/// may therefore replace the others.
#[test]
fn unused_strides_do_not_matter() {
    let strided = |shape: &[i64], strides: &[i64]| OwnedTensor::strided(KVS_INT16, shape, strides);
    let caches =
        [OwnedTensor::dense(KVS_INT16, &CACHE), strided(&CACHE, &[8, 2, 1]), strided(&CACHE, &[-77, 2, 1])];
    let updates =
        [OwnedTensor::dense(KVS_INT16, &UPDATE), strided(&UPDATE, &[2, 2, 1]), strided(&UPDATE, &[0, 9, 1])];
    let starts = [2];
    let call = kvs_call { write_indices: wide(&starts), ..CALL };
    for (cache, update) in caches.iter().flat_map(|cache| updates.iter().map(move |update| (cache, update))) {
        let prepared = prepared(cache, update);
        for (cache, update) in caches.iter().zip(&updates) {
            let (mut slots, mut row) = ([0_i16; 8], [5_i16, 6]);
            let written = prepared.in_place(&call, &cache.at(&raw mut slots), &update.at(&raw mut row));
            assert_eq!((written, slots), (Ok(0), [0, 0, 0, 0, 5, 6, 0, 0]));
        }
    }
}

/// The strides of a tensor without elements have no effect.
#[test]
fn of_nothing_do_not_matter() {
    let strided = |strides: &[i64]| OwnedTensor::strided(KVS_INT16, &[2, 4, 0], strides);
    let all = [
        OwnedTensor::dense(KVS_INT16, &[2, 4, 0]),
        strided(&[0, 0, 1]),
        strided(&[1, 1, 1]),
        strided(&[-4, 1, 9]),
    ];
    let starts = [0, 3];
    let call = kvs_call { write_indices: wide(&starts), ..CALL };
    let update = OwnedTensor::dense(KVS_INT16, &[2, 1, 0]);
    for cache in &all {
        let prepared = prepared(cache, &update);
        for cache in &all {
            let (cache, update) = (cache.anywhere(), update.anywhere());
            assert_eq!(prepared.in_place(&call, &cache, &update), Ok(0));
            assert_eq!(prepared.functional(&call, [&cache, &update, &cache]), Ok(0));
        }
    }
}

/// Dense tensors may not overlap in part, with or without strides. Parts of a larger tensor may interleave.
#[test]
fn tell_caches_that_meet_from_those_that_interleave() {
    let update = OwnedTensor::dense(KVS_INT16, &UPDATE);
    let (mut memory, mut row) = ([0_i16; 20], [5_i16, 6]);
    let first = memory.as_mut_ptr();
    let run = |cache: &OwnedTensor, second: usize, row: *mut [i16; 2]| {
        let pair = |at: usize| kvs_pair { cache: cache.at(first.wrapping_add(at)), update: update.at(row) };
        prepared(cache, &update)
            .write_many(&kvs_call { write_indices: wide(&[1]), ..CALL }, &[pair(0), pair(second)])
    };
    let interleaved = OwnedTensor::strided(KVS_INT16, &CACHE, &[16, 4, 1]);
    assert_eq!(run(&interleaved, 2, &raw mut row), Ok(0));
    let spelled_out = OwnedTensor::strided(KVS_INT16, &CACHE, &[8, 2, 1]);
    assert_eq!(run(&spelled_out, 7, &raw mut row).unwrap_err().code, "KVS_ERROR_OVERLAP");
    assert_eq!(run(&spelled_out, 8, &raw mut row), Ok(0));
    assert_eq!(memory[..14], [0, 0, 5, 6, 5, 6, 5, 6, 0, 0, 5, 6, 0, 0]);
}

/// A tensor that is not dense must have strides.
#[test]
fn missing_strides_are_dense() {
    let strided = OwnedTensor::strided(KVS_INT16, &CACHE, &[16, 4, 1]);
    let update = OwnedTensor::dense(KVS_INT16, &UPDATE);
    let without = kvs_tensor { strides: ptr::null(), ..strided.anywhere() };
    let refused = prepared(&strided, &update).in_place(&CALL, &without, &update.anywhere()).unwrap_err();
    assert_eq!((refused.code, refused.value, refused.limit), ("KVS_ERROR_TENSOR_MISMATCH", Some(2), Some(4)));
}
