//! One handle on many threads at once.

use std::thread;

use kvscatter_capi::kvs_element_type_code::KVS_INT32;
use kvscatter_capi::*;

use crate::c::{CALL, Operator, Prepared, TENSOR_SCATTER, Tensor, wide};

#[test]
fn each_writes_its_own_cache_and_sees_its_own_error() {
    let (cache, update) = (Tensor::dense(KVS_INT32, &[1, 64, 3]), Tensor::dense(KVS_INT32, &[1, 1, 3]));
    let operator = Operator::TensorScatter(TENSOR_SCATTER);
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    thread::scope(|threads| {
        for number in 0..16_i32 {
            let (prepared, cache, update) = (&prepared, &cache, &update);
            threads.spawn(move || {
                let (mut slots, mut row) = ([-1_i32; 192], [number; 3]);
                for step in 0..500 {
                    let start = [(step + i64::from(number)) % 65];
                    let call = kvs_call { write_indices: wide(&start), ..CALL };
                    let written =
                        prepared.in_place(&call, &cache.at(&raw mut slots), &update.at(&raw mut row));
                    match written {
                        Ok(skipped) => assert!(skipped == 0 && start[0] < 64),
                        Err(refused) => assert_eq!((refused.value, refused.limit), (Some(64), Some(63))),
                    }
                }
                assert_eq!(slots, [number; 192]);
            });
        }
    });
}
