//! Valid calls, which tests change to make them invalid.

use std::cell::RefCell;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::c::{
    CALL, KV_CACHE_OPERATION, KV_CACHE_UPDATE, Operator, OwnedTensor, PAGED_WRITE, PreparedHandle, Refused,
    TENSOR_SCATTER, narrow, wide,
};

/// A valid call, until a test changes it.
pub(crate) struct Scene {
    pub(crate) operator: Operator,
    pub(crate) cache: OwnedTensor,
    pub(crate) update: OwnedTensor,
    pub(crate) call: kvs_call,
}

/// A cache `[2, 8, 4]` and an update of two rows.
pub(crate) fn onnx() -> Scene {
    Scene {
        operator: Operator::TensorScatter(TENSOR_SCATTER),
        cache: OwnedTensor::dense(KVS_FLOAT32, &[2, 8, 4]),
        update: OwnedTensor::dense(KVS_FLOAT32, &[2, 2, 4]),
        call: kvs_call { write_indices: wide(&[6, 0]), ..CALL },
    }
}

/// A scene with an update that has the layout of no dense tensor.
pub(crate) fn reversed() -> Scene {
    Scene { update: OwnedTensor::strided(KVS_FLOAT32, &[2, 2, 4], &[8, -4, 1]), ..onnx() }
}

pub(crate) fn tensor_scatter(change: impl FnOnce(&mut kvs_tensor_scatter_options)) -> Scene {
    let mut options = TENSOR_SCATTER;
    change(&mut options);
    Scene { operator: Operator::TensorScatter(options), ..onnx() }
}

/// A cache `[2, 3, 8, 4]` and a packed update of three tokens.
pub(crate) fn packed() -> Scene {
    let update_form = kvs_update_form::KVS_UPDATE_FORM_PACKED_NHD as i32;
    Scene {
        operator: Operator::KvCacheUpdate(kvs_kv_cache_update_options { update_form, ..KV_CACHE_UPDATE }),
        cache: OwnedTensor::dense(KVS_FLOAT32, &[2, 3, 8, 4]),
        update: OwnedTensor::dense(KVS_FLOAT32, &[3, 3, 4]),
        call: kvs_call { write_indices: narrow(&[6, 0]), update_lengths: narrow(&[0, 1, 3]), ..CALL },
    }
}

/// A past `[2, 2, 8, 4]` and an update of three tokens.
pub(crate) fn ascend() -> Scene {
    Scene {
        operator: Operator::KvCacheOperation(KV_CACHE_OPERATION),
        cache: OwnedTensor::dense(KVS_FLOAT16, &[2, 2, 8, 4]),
        update: OwnedTensor::dense(KVS_FLOAT16, &[3, 4]),
        call: kvs_call {
            layer_id: narrow(&[1]),
            token_offset: narrow(&[8, 2]),
            seq_len: narrow(&[1, 2]),
            ..CALL
        },
    }
}

/// A cache of three blocks of four slots, and three tokens.
pub(crate) fn paged() -> Scene {
    Scene {
        operator: Operator::PagedWrite(PAGED_WRITE),
        cache: OwnedTensor::dense(KVS_FLOAT32, &[3, 4, 2, 2]),
        update: OwnedTensor::dense(KVS_FLOAT32, &[3, 2, 2]),
        call: kvs_call { slot_mapping: wide(&[5, 0, 11]), ..CALL },
    }
}

impl Scene {
    pub(crate) fn called(self, change: impl FnOnce(&mut kvs_call)) -> Self {
        let mut call = self.call;
        change(&mut call);
        Self { call, ..self }
    }

    pub(crate) fn shaped(self, cache: &[i64], update: &[i64]) -> Self {
        let reshaped = |tensor: OwnedTensor, shape: &[i64]| OwnedTensor { shape: shape.to_vec(), ..tensor };
        Self { cache: reshaped(self.cache, cache), update: reshaped(self.update, update), ..self }
    }

    pub(crate) fn typed(self, code: kvs_element_type_code) -> Self {
        let retyped = |tensor| OwnedTensor { code: code as kvs_element_type, ..tensor };
        Self { cache: retyped(self.cache), update: retyped(self.update), ..self }
    }

    /// Returns the error of the prepare function.
    pub(crate) fn prepare(&self) -> Refused {
        self.try_prepare().unwrap_err()
    }

    pub(crate) fn prepared(&self) -> PreparedHandle {
        self.try_prepare().unwrap()
    }

    fn try_prepare(&self) -> Result<PreparedHandle, Refused> {
        PreparedHandle::new(&self.operator, &self.cache.anywhere(), &self.update.anywhere())
    }

    /// Returns the error of a run in place with changed tensors, which every other function must return too.
    pub(crate) fn run(&self, change: impl Fn(&mut [kvs_tensor; 3])) -> Refused {
        self.refused(change, |prepared, [cache, update, present]| {
            let refused = in_place(prepared, &self.call, kvs_pair { cache, update });
            let functional = prepared.functional(&self.call, [&cache, &update, &present]).unwrap_err();
            assert_eq!(functional.code, refused.code);
            refused
        })
    }

    /// Returns the error of a run in place with changed tensors.
    pub(crate) fn run_in_place(&self, change: impl Fn(&mut [kvs_tensor; 3])) -> Refused {
        self.refused(change, |prepared, [cache, update, _]| {
            in_place(prepared, &self.call, kvs_pair { cache, update })
        })
    }

    /// Returns the error of a run in the functional form.
    pub(crate) fn functional(&self, change: impl Fn(&mut [kvs_tensor; 3])) -> Refused {
        self.refused(change, |prepared, [past, update, present]| {
            prepared.functional(&self.call, [&past, &update, &present]).unwrap_err()
        })
    }

    pub(crate) fn plan(&self) -> Refused {
        self.run(|_| ())
    }

    /// Runs `run` on past, update and present, and checks that no byte of their memory changes.
    fn refused(
        &self,
        change: impl Fn(&mut [kvs_tensor; 3]),
        run: impl Fn(&PreparedHandle, [kvs_tensor; 3]) -> Refused,
    ) -> Refused {
        let prepared = self.prepared();
        // The memory has room for two of any cache here and for every update.
        let memory: Vec<u64> = (0..1024).collect();
        let buffers = RefCell::new(memory.clone());
        let first = buffers.borrow_mut().as_mut_ptr();
        let placed = |tensor: &OwnedTensor, word: usize| tensor.at(first.wrapping_add(word));
        let present = OwnedTensor { strides: None, ..self.cache.clone() };
        let mut tensors = [placed(&self.cache, 256), placed(&self.update, 512), placed(&present, 768)];
        change(&mut tensors);
        let refused = run(&prepared, tensors);
        assert!(*buffers.borrow() == memory, "X1: {refused:?}");
        refused
    }
}

/// Returns the error of both functions that write in place.
fn in_place(prepared: &PreparedHandle, call: &kvs_call, pair: kvs_pair) -> Refused {
    let refused = prepared.in_place(call, &pair.cache, &pair.update).unwrap_err();
    assert_eq!(prepared.write_many(call, &[pair]).unwrap_err(), refused);
    refused
}
