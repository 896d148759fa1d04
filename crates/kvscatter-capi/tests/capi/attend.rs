//! The functions of attention, with results instead of statuses, and a valid call, which tests change to make it
//! invalid.

use std::cell::RefCell;
use std::ptr;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::c::{ABSENT, OwnedTensor, Refused, result, wide};

/// Attention that is destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct AttentionHandle(*mut kvs_attention);

/// A scratch that is destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct ScratchHandle(*mut kvs_attention_scratch);

pub(crate) const ATTENTION: kvs_attention_options = kvs_attention_options {
    struct_size: size_of::<kvs_attention_options>(),
    is_causal: 0,
    mode: kvs_mode::KVS_MODE_LINEAR as i32,
    has_sinks: 0,
    scale: 0.0,
    softcap: 0.0,
    window_left: -1,
    window_right: -1,
    blocks_per_sample: 0,
};

pub(crate) const ATTENTION_CALL: kvs_attention_call = kvs_attention_call {
    struct_size: size_of::<kvs_attention_call>(),
    lengths: ABSENT,
    starts: ABSENT,
    block_table: ABSENT,
    query_positions: kvs_query_positions::KVS_QUERIES_LAST as i32,
    mask: ptr::null(),
    sinks: ptr::null(),
    key_scales: ptr::null(),
    value_scales: ptr::null(),
    executor: ptr::null(),
};

impl AttentionHandle {
    /// Prepares attention over queries, keys, values and an output.
    pub(crate) fn new(
        options: &kvs_attention_options,
        [query, key, value, output]: [&kvs_tensor; 4],
        mask: Option<&kvs_tensor>,
    ) -> Result<Self, Refused> {
        let mask = mask.map_or(ptr::null(), ptr::from_ref);
        let mut out = ptr::null_mut();
        // SAFETY: `options`, the tensors and `out` are references, and the tests own the tensors' arrays.
        let status = unsafe { kvs_attention_prepare(options, query, key, value, mask, output, &mut out) };
        assert_eq!(out.is_null(), status != 0, "the handle is put where it belongs, or nothing is");
        result(status).map(|()| Self(out))
    }

    pub(crate) fn handle(&self) -> *const kvs_attention {
        self.0
    }

    pub(crate) fn scratch(&self, threads: usize) -> ScratchHandle {
        let mut out = ptr::null_mut();
        // SAFETY: `self` keeps the handle, and `out` is a reference.
        result(unsafe { kvs_attention_scratch_new(self.0, threads, &mut out) }).unwrap();
        ScratchHandle(out)
    }

    pub(crate) fn run(
        &self,
        call: &kvs_attention_call,
        [query, key, value, output]: [&kvs_tensor; 4],
        scratch: &mut ScratchHandle,
    ) -> Result<(), Refused> {
        // SAFETY: `call` and the tensors are references, the test owns the memory that they point to, and the
        // handles are kept.
        result(unsafe { kvs_attention_run(self.0, call, query, key, value, output, scratch.0) })
    }
}

// SAFETY: Any number of threads may use prepared attention at the same time.
unsafe impl Sync for AttentionHandle {}

impl ScratchHandle {
    pub(crate) fn handle(&mut self) -> *mut kvs_attention_scratch {
        self.0
    }
}

impl Drop for AttentionHandle {
    fn drop(&mut self) {
        // SAFETY: The prepare function made the handle, and `drop` is its last use.
        unsafe { kvs_attention_destroy(self.0) };
    }
}

impl Drop for ScratchHandle {
    fn drop(&mut self) {
        // SAFETY: `kvs_attention_scratch_new` made the scratch, and `drop` is its last use.
        unsafe { kvs_attention_scratch_destroy(self.0) };
    }
}

/// A valid call of attention, until a test changes it.
#[derive(Clone)]
pub(crate) struct AttentionScene {
    pub(crate) options: kvs_attention_options,
    /// The queries, keys, values and output.
    pub(crate) tensors: [OwnedTensor; 4],
    pub(crate) mask: Option<OwnedTensor>,
    pub(crate) sinks: Option<OwnedTensor>,
    pub(crate) scales: Option<[OwnedTensor; 2]>,
    pub(crate) call: kvs_attention_call,
}

/// The structs of a call, with their data.
pub(crate) struct Placed {
    pub(crate) tensors: [kvs_tensor; 4],
    pub(crate) mask: kvs_tensor,
    pub(crate) sinks: kvs_tensor,
    pub(crate) scales: [kvs_tensor; 2],
    pub(crate) call: kvs_attention_call,
}

/// Four query heads over two heads of a cache of eight slots, for two samples.
pub(crate) fn attention() -> AttentionScene {
    let dense = |shape: &[i64]| OwnedTensor::dense(KVS_FLOAT32, shape);
    AttentionScene {
        options: ATTENTION,
        tensors: [dense(&[2, 4, 1, 4]), dense(&[2, 2, 8, 4]), dense(&[2, 2, 8, 6]), dense(&[2, 4, 1, 6])],
        mask: None,
        sinks: None,
        scales: None,
        call: kvs_attention_call { lengths: wide(&[8, 3]), ..ATTENTION_CALL },
    }
}

/// The scene with a mask, sinks, and codes with scales.
pub(crate) fn with_everything() -> AttentionScene {
    let scene = attention().with_options(|options| options.has_sinks = 1);
    let dense = |shape: &[i64]| OwnedTensor::dense(KVS_FLOAT32, shape);
    let [query, _, _, output] = scene.tensors;
    let codes = |shape: &[i64]| OwnedTensor::dense(KVS_INT8, shape);
    AttentionScene {
        tensors: [query, codes(&[2, 2, 8, 4]), codes(&[2, 2, 8, 6]), output],
        mask: Some(OwnedTensor::dense(KVS_BOOL, &[2, 1, 1, 8])),
        sinks: Some(dense(&[4])),
        scales: Some([dense(&[2, 2, 8]), dense(&[2, 2, 8])]),
        ..scene
    }
}

/// The scene with three blocks of four slots, of which each sample has two.
pub(crate) fn in_blocks() -> AttentionScene {
    let mut scene = attention().with_options(|options| options.blocks_per_sample = 2);
    scene.tensors[1].shape = vec![3, 2, 4, 4];
    scene.tensors[2].shape = vec![3, 2, 4, 6];
    scene.called(|call| call.block_table = crate::c::narrow(&[2, 0, 1, -1]))
}

impl AttentionScene {
    pub(crate) fn with_options(self, change: impl FnOnce(&mut kvs_attention_options)) -> Self {
        let mut options = self.options;
        change(&mut options);
        Self { options, ..self }
    }

    pub(crate) fn called(self, change: impl FnOnce(&mut kvs_attention_call)) -> Self {
        let mut call = self.call;
        change(&mut call);
        Self { call, ..self }
    }

    /// Changes the queries (0), keys (1), values (2) or output (3).
    pub(crate) fn tensor(mut self, at: usize, change: impl FnOnce(&mut OwnedTensor)) -> Self {
        change(&mut self.tensors[at]);
        self
    }

    pub(crate) fn masked(self, mask: OwnedTensor) -> Self {
        Self { mask: Some(mask), ..self }
    }

    pub(crate) fn try_prepare(&self) -> Result<AttentionHandle, Refused> {
        let tensors = self.tensors.each_ref().map(OwnedTensor::anywhere);
        let mask = self.mask.as_ref().map(OwnedTensor::anywhere);
        AttentionHandle::new(&self.options, tensors.each_ref(), mask.as_ref())
    }

    /// Returns the error of the prepare function.
    pub(crate) fn prepare(&self) -> Refused {
        self.try_prepare().unwrap_err()
    }

    /// Returns the error of a run with changed structs, and checks that no byte of their memory changes.
    pub(crate) fn run(&self, change: impl Fn(&mut Placed)) -> Refused {
        self.try_run(change).unwrap_err()
    }

    /// Runs the call with changed structs. Checks that an error changes no byte of their memory.
    pub(crate) fn try_run(&self, change: impl Fn(&mut Placed)) -> Result<(), Refused> {
        let prepared = self.try_prepare().unwrap();
        // The memory has room for each tensor here.
        let memory: Vec<u64> = vec![0; 2048];
        let buffers = RefCell::new(memory.clone());
        let first = buffers.borrow_mut().as_mut_ptr();
        let placed = |tensor: &OwnedTensor, word: usize| tensor.at(first.wrapping_add(word));
        let anything = OwnedTensor::dense(KVS_FLOAT32, &[1]);
        let [query, key, value, output] = &self.tensors;
        let scale = |at: usize| self.scales.as_ref().map_or(&anything, |scales| &scales[at]);
        let mut all = Placed {
            tensors: [placed(query, 256), placed(key, 512), placed(value, 768), placed(output, 1024)],
            mask: placed(self.mask.as_ref().unwrap_or(&anything), 1280),
            sinks: placed(self.sinks.as_ref().unwrap_or(&anything), 1536),
            scales: [placed(scale(0), 1664), placed(scale(1), 1792)],
            call: self.call,
        };
        // `change` may set these to NULL, so the placeholders mark which are given.
        let given = |is_given: bool| if is_given { ptr::dangling() } else { ptr::null() };
        all.call.mask = given(self.mask.is_some());
        all.call.sinks = given(self.sinks.is_some());
        all.call.key_scales = given(self.scales.is_some());
        all.call.value_scales = given(self.scales.is_some());
        change(&mut all);
        let mut call = all.call;
        let fields = [
            (&mut call.mask, &all.mask),
            (&mut call.sinks, &all.sinks),
            (&mut call.key_scales, &all.scales[0]),
            (&mut call.value_scales, &all.scales[1]),
        ];
        for (field, tensor) in fields {
            if *field == ptr::dangling() {
                *field = tensor;
            }
        }
        let result = prepared.run(&call, all.tensors.each_ref(), &mut prepared.scratch(1));
        assert!(result.is_ok() || *buffers.borrow() == memory, "X1: {result:?}");
        result
    }
}
