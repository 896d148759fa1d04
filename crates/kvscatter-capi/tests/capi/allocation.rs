//! Checks that a run allocates nothing, even if it is rejected.

use allocation_counter::measure;
use kvscatter_capi::*;

use crate::attend::attention;
use crate::c::{CALL, Operator, OwnedTensor, PreparedHandle, TENSOR_SCATTER, narrow, wide};

#[test]
fn runs_allocate_nothing() {
    let (cache, update) = (
        OwnedTensor::dense(kvs_element_type_code::KVS_FLOAT16, &[2, 3, 8, 4]),
        OwnedTensor::dense(kvs_element_type_code::KVS_FLOAT16, &[2, 3, 2, 4]),
    );
    let operator = Operator::TensorScatter(TENSOR_SCATTER);
    let prepared = PreparedHandle::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let (mut k, mut v, mut present, mut new) = ([0_u16; 192], [0_u16; 192], [0_u16; 192], [7_u16; 48]);
    let starts = [6, 0];
    let (mut good, mut bad) = (CALL, CALL);
    good.write_indices = wide(&starts);
    bad.write_indices = wide(&starts[..1]);
    let update = update.at(&raw mut new);
    let pairs = [&raw mut k, &raw mut v].map(|data| kvs_pair { cache: cache.at(data), update });
    let present = cache.at(&raw mut present);
    let mut written = kvs_written { struct_size: size_of::<kvs_written>(), skipped: 0 };
    let handle = prepared.handle();
    let mut statuses = [[-1; 4]; 2];
    let allocations = measure(|| {
        for (call, statuses) in [good, bad].iter().zip(&mut statuses) {
            let [pair, ..] = &pairs;
            *statuses = [
                // SAFETY: The handle, `call`, the tensors, `pairs` and `written` outlive each call here, and
                // no other thread uses them.
                unsafe { kvs_write(handle, call, &pair.cache, &update, &mut written) },
                // SAFETY: The pointers are those of the first call, and `pairs` has 2 elements.
                unsafe { kvs_write_many(handle, call, pairs.as_ptr(), 2, &mut written) },
                // SAFETY: The pointers are those of the first call.
                unsafe { kvs_write_present(handle, call, &pair.cache, &update, &present, &mut written) },
                // SAFETY: The pointers are those of the first call, and `nothing` returns.
                unsafe { kvs_for_each_block(handle, call, Some(nothing), std::ptr::null_mut()) },
            ];
        }
    });
    assert_eq!(statuses, [[0; 4], [kvs_status_code::KVS_ERROR_LIST_LENGTH as i32; 4]]);
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
    assert_eq!((k[24..32].to_vec(), v[191]), (vec![7; 8], 0));
}

#[test]
fn runs_of_attention_allocate_nothing() {
    let scene = attention();
    let prepared = scene.try_prepare().unwrap();
    let mut scratch = prepared.scratch(2);
    let (q, k, v, mut output) = ([1_f32; 32], [1_f32; 128], [5_f32; 192], [0_f32; 48]);
    let data = [q.as_ptr().cast_mut(), k.as_ptr().cast_mut(), v.as_ptr().cast_mut(), output.as_mut_ptr()];
    let [q, k, v, y] = [0, 1, 2, 3].map(|at| scene.tensors[at].at(data[at]));
    let calls = [narrow(&[8, 1]), wide(&[8, 1]), wide(&[8, 9])];
    let calls = calls.map(|lengths| kvs_attention_call { lengths, starts: narrow(&[2, 0]), ..scene.call });
    let mut statuses = [-1; 3];
    let (handle, scratch) = (prepared.handle(), scratch.handle());
    let allocations = measure(|| {
        for (call, status) in calls.iter().zip(&mut statuses) {
            // SAFETY: The handles, `call` and the tensors outlive each call here, and no other thread uses them.
            *status = unsafe { kvs_attention_run(handle, call, &q, &k, &v, &y, scratch) };
        }
    });
    assert_eq!(statuses, [0, 0, kvs_status_code::KVS_ERROR_LENGTH_OUT_OF_RANGE as i32]);
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
    assert_eq!(output, [5.0; 48]);
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void, _: *const kvs_block) -> i32 {
    0
}
