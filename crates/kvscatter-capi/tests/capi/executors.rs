//! A host's threads lent through C: good ones, and ones that do too little or too much.

use std::ffi::c_void;
use std::ptr;
use std::thread;

use kvscatter_capi::kvs_element_type_code::KVS_FLOAT32;
use kvscatter_capi::*;

use crate::c::{CALL, Operator, Prepared, TENSOR_SCATTER, Tensor, wide};

type Work = unsafe extern "C" fn(context: *mut c_void);

/// What a thread of the host is handed.
#[derive(Clone, Copy)]
struct Job(Work, *mut c_void);

// SAFETY: what `broadcast` is for.
unsafe impl Send for Job {}

impl Job {
    fn run(self) {
        let Self(work, context) = self;
        // SAFETY: `broadcast` has not returned yet.
        unsafe { work(context) };
    }
}

unsafe extern "C" fn never(calls: *mut c_void, _: Option<Work>, _: *mut c_void) {
    count(calls);
}

unsafe extern "C" fn thrice(calls: *mut c_void, work: Option<Work>, context: *mut c_void) {
    count(calls);
    (0..3).for_each(|_| Job(work.unwrap(), context).run());
}

unsafe extern "C" fn on_threads(calls: *mut c_void, work: Option<Work>, context: *mut c_void) {
    count(calls);
    let job = Job(work.unwrap(), context);
    thread::scope(|threads| {
        (0..3).for_each(|_| drop(threads.spawn(move || job.run())));
        job.run();
    });
}

fn count(calls: *mut c_void) {
    // SAFETY: the counter of the tests below.
    unsafe { *calls.cast::<u32>() += 1 };
}

const ALL: [unsafe extern "C" fn(*mut c_void, Option<Work>, *mut c_void); 3] = [never, thrice, on_threads];

#[test]
fn a_large_write_is_the_same_on_any() {
    const ROW: usize = 1024;
    let (cache, update) =
        (Tensor::dense(KVS_FLOAT32, &[2, 2048, 1024]), Tensor::dense(KVS_FLOAT32, &[2, 512, 1024]));
    let operator = Operator::TensorScatter(TENSOR_SCATTER);
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let starts = [7, 1536];
    let mut new: Vec<f32> = (0..512 * 2 * ROW).map(|element| element as f32).collect();
    let mut expected = vec![-1.0_f32; 2 * 2048 * ROW];
    for (sample, start) in [7, 1536].into_iter().enumerate() {
        let to = (sample * 2048 + start) * ROW;
        expected[to..to + 512 * ROW].copy_from_slice(&new[sample * 512 * ROW..][..512 * ROW]);
    }
    let update = update.at(new.as_mut_ptr());
    for broadcast in ALL {
        let mut calls = 0_u32;
        let executor = kvs_executor { broadcast: Some(broadcast), user: (&raw mut calls).cast() };
        let call = kvs_call { write_indices: wide(&starts), executor: &executor, ..CALL };
        let (mut k, mut present) = (vec![-1.0_f32; expected.len()], vec![0.0_f32; expected.len()]);
        let (at_k, at_present) = (cache.at(k.as_mut_ptr()), cache.at(present.as_mut_ptr()));
        assert_eq!(prepared.functional(&call, [&at_k, &update, &at_present]), Ok(0));
        assert_eq!(prepared.in_place(&call, &at_k, &update), Ok(0));
        assert!(k == expected && present == expected);
        assert_eq!(calls, 2);
    }
}

#[test]
fn one_without_a_function_is_refused() {
    let (cache, update) = (Tensor::dense(KVS_FLOAT32, &[1, 2, 1]), Tensor::dense(KVS_FLOAT32, &[1, 1, 1]));
    let operator = Operator::TensorScatter(TENSOR_SCATTER);
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let executor = kvs_executor { broadcast: None, user: ptr::null_mut() };
    let call = kvs_call { executor: &executor, ..CALL };
    let refused = prepared.blocks(&call).unwrap_err();
    assert_eq!((refused.code, refused.argument), ("KVS_ERROR_NULL_POINTER", Some("executor.broadcast")));
}
