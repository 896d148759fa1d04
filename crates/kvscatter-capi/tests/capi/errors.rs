//! Every error: its number, its parts and its words; and that nothing was written (X1).

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::c::{
    ABSENT, CALL, KV_CACHE_OPERATION, KV_CACHE_UPDATE, Operator, Prepared, Refused, TENSOR_SCATTER, Tensor,
    last_error, narrow, result, wide,
};

/// A call that nothing is wrong with, until something is changed.
struct Scene {
    operator: Operator,
    cache: Tensor,
    update: Tensor,
    call: kvs_call,
}

/// Shapes and strides that are not the prepared ones.
static OTHER_SHAPE: [i64; 3] = [2, 9, 4];
static OTHER_STRIDES: [i64; 3] = [8, 2, 1];

/// `[2, 8, 4]`, two rows.
fn onnx() -> Scene {
    Scene {
        operator: Operator::TensorScatter(TENSOR_SCATTER),
        cache: Tensor::dense(KVS_FLOAT32, &[2, 8, 4]),
        update: Tensor::dense(KVS_FLOAT32, &[2, 2, 4]),
        call: kvs_call { write_indices: wide(&[6, 0]), ..CALL },
    }
}

/// With an update that is laid out like no dense one.
fn reversed() -> Scene {
    Scene { update: Tensor::strided(KVS_FLOAT32, &[2, 2, 4], &[8, -4, 1]), ..onnx() }
}

fn tensor_scatter(change: impl FnOnce(&mut kvs_tensor_scatter_options)) -> Scene {
    let mut options = TENSOR_SCATTER;
    change(&mut options);
    Scene { operator: Operator::TensorScatter(options), ..onnx() }
}

/// `[2, 3, 8, 4]`, packed, three tokens.
fn packed() -> Scene {
    let update_form = kvs_update_form::KVS_UPDATE_FORM_PACKED_NHD as i32;
    Scene {
        operator: Operator::KvCacheUpdate(kvs_kv_cache_update_options { update_form, ..KV_CACHE_UPDATE }),
        cache: Tensor::dense(KVS_FLOAT32, &[2, 3, 8, 4]),
        update: Tensor::dense(KVS_FLOAT32, &[3, 3, 4]),
        call: kvs_call { write_indices: narrow(&[6, 0]), update_lengths: narrow(&[0, 1, 3]), ..CALL },
    }
}

/// `[2, 2, 8, 4]`, three tokens.
fn ascend() -> Scene {
    Scene {
        operator: Operator::KvCacheOperation(KV_CACHE_OPERATION),
        cache: Tensor::dense(KVS_FLOAT16, &[2, 2, 8, 4]),
        update: Tensor::dense(KVS_FLOAT16, &[3, 4]),
        call: kvs_call {
            layer_id: narrow(&[1]),
            token_offset: narrow(&[8, 2]),
            seq_len: narrow(&[1, 2]),
            ..CALL
        },
    }
}

impl Scene {
    fn called(self, change: impl FnOnce(&mut kvs_call)) -> Self {
        let mut call = self.call;
        change(&mut call);
        Self { call, ..self }
    }

    fn shaped(self, cache: &[i64], update: &[i64]) -> Self {
        let of = |tensor: Tensor, shape: &[i64]| Tensor { shape: shape.to_vec(), ..tensor };
        Self { cache: of(self.cache, cache), update: of(self.update, update), ..self }
    }

    fn typed(self, code: kvs_element_type_code) -> Self {
        let of = |tensor| Tensor { code: code as kvs_element_type, ..tensor };
        Self { cache: of(self.cache), update: of(self.update), ..self }
    }

    /// What is refused when it is prepared.
    fn prepare(&self) -> Refused {
        Prepared::new(&self.operator, &self.cache.anywhere(), &self.update.anywhere()).unwrap_err()
    }

    /// What is refused when it runs, in each way to run it, whatever was done to the tensors.
    fn run(&self, change: impl Fn(&mut [kvs_tensor; 3])) -> Refused {
        let prepared =
            Prepared::new(&self.operator, &self.cache.anywhere(), &self.update.anywhere()).unwrap();
        // Enough for every cache here, twice, and every update.
        let memory: Vec<u64> = (0..1024).collect();
        let buffers = std::cell::RefCell::new(memory.clone());
        let first = buffers.borrow_mut().as_mut_ptr();
        let at = |tensor: &Tensor, word: usize| tensor.at(first.wrapping_add(word));
        let present = Tensor { strides: None, ..self.cache.clone() };
        let mut tensors = [at(&self.cache, 256), at(&self.update, 512), at(&present, 768)];
        change(&mut tensors);
        let [cache, update, present] = tensors;
        let refused = prepared.in_place(&self.call, &cache, &update).unwrap_err();
        let many = prepared.in_place_many(&self.call, &[kvs_pair { cache, update }]).unwrap_err();
        assert_eq!(refused, many);
        let functional = prepared.functional(&self.call, [&cache, &update, &present]).unwrap_err();
        assert_eq!(functional.code, refused.code);
        assert!(*buffers.borrow() == memory, "X1: {refused:?}");
        refused
    }

    fn plan(&self) -> Refused {
        self.run(|_| ())
    }
}

/// One after the other, in the order of the header.
fn all() -> Vec<Refused> {
    [boundary(), shapes(), indices(), buffers()].concat()
}

/// What only C can get wrong.
fn boundary() -> Vec<Refused> {
    let unaligned = |values: *const c_void| values.wrapping_byte_add(1);
    vec![
        onnx().called(|call| call.write_indices.values = ptr::null()).plan(),
        onnx().run(|[_, update, _]| update.shape = ptr::null()),
        onnx().called(|call| call.write_indices.values = unaligned(call.write_indices.values)).plan(),
        onnx().run(|[cache, ..]| cache.data = cache.data.wrapping_byte_add(2)),
        tensor_scatter(|options| options.struct_size -= 1).prepare(),
        Scene { cache: Tensor { code: 25, ..onnx().cache }, ..onnx() }.prepare(),
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
        on_another_device(),
        beside_null(),
        stopped(),
    ]
}

/// What the core finds when shapes are prepared.
fn shapes() -> Vec<Refused> {
    let strided = |strides: &[i64]| Tensor::strided(KVS_FLOAT32, &[2, 8, 4], strides);
    let axis = |axis| tensor_scatter(|options| options.axis = axis);
    let reserved = kvs_kv_cache_operation_options { rsv: [0, 0, 9, 0, 0, 0, 0, 0], ..KV_CACHE_OPERATION };
    let padded = Scene { operator: Operator::KvCacheUpdate(KV_CACHE_UPDATE), ..packed() };
    let far = 1 << 62;
    // Five dimensions behind the sequence that do not merge with each other.
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
            cache: Tensor::strided(KVS_FLOAT32, &twisted.0, &twisted.1),
            update: Tensor::dense(KVS_FLOAT32, &twisted.0),
            ..tensor_scatter(|options| options.axis = 1)
        }
        .prepare(),
        Scene { operator: Operator::KvCacheOperation(reserved), ..ascend() }.prepare(),
    ]
}

/// What the core finds in the indices of a call.
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

/// What is found in the memory of a call.
fn buffers() -> Vec<Refused> {
    let strings = Scene { cache: onnx().cache, ..onnx() }.typed(KVS_STRING);
    vec![
        onnx().run(|[_, update, _]| update.data = ptr::null_mut()),
        // Where the one ends, the other begins, and a byte more.
        onnx().run(|[cache, update, present]| {
            update.data = cache.data.wrapping_byte_add(252);
            present.data = update.data;
        }),
        strings.plan(),
    ]
}

/// A DLPack tensor of two bytes: a device, an offset and nothing else.
fn from_dlpack(device: i32, byte_offset: u64) -> Refused {
    #[repr(C)]
    struct DlTensor(*mut c_void, [i32; 2], i32, [u8; 2], u16, [*const i64; 2], u64);
    let tensor = DlTensor(ptr::null_mut(), [device, 0], 0, [2, 32], 1, [ptr::null(); 2], byte_offset);
    let mut out = onnx().cache.anywhere();
    // SAFETY: both live.
    result(unsafe { kvs_tensor_from_dlpack((&raw const tensor).cast(), &mut out) }).unwrap_err()
}

fn on_another_device() -> Refused {
    from_dlpack(2, 0)
}

fn beside_null() -> Refused {
    from_dlpack(1, 8)
}

unsafe extern "C" fn stop(_: *mut c_void, _: *const kvs_block) -> i32 {
    -7
}

fn stopped() -> Refused {
    let Scene { operator, cache, update, call } = onnx();
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    // SAFETY: all of it lives.
    result(unsafe { kvs_for_each_block(prepared.handle(), &call, Some(stop), ptr::null_mut()) }).unwrap_err()
}

/// Read the snapshot: it is what users read.
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

/// All but the two that no call should ever see.
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

#[test]
fn handles_calls_tensors_and_outputs_are_checked() {
    let Scene { operator, cache, update, call } = onnx();
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let handle = prepared.handle();
    let (cache, update) = (cache.anywhere(), update.anywhere());
    let in_place = |handle, call: *const kvs_call, cache: *const kvs_tensor, update: *const kvs_tensor| {
        // SAFETY: each is NULL, misaligned or lives.
        let refused =
            result(unsafe { kvs_in_place(handle, call, cache, update, ptr::null_mut()) }).unwrap_err();
        (refused.code, refused.argument.unwrap())
    };
    let null = "KVS_ERROR_NULL_POINTER";
    assert_eq!(in_place(ptr::null(), &call, &cache, &update), (null, "prepared"));
    assert_eq!(in_place(handle, ptr::null(), &cache, &update), (null, "call"));
    assert_eq!(in_place(handle, &call, ptr::null(), &update), (null, "cache"));
    assert_eq!(in_place(handle, &call, &cache, ptr::null()), (null, "update"));
    let odd = (&raw const call).wrapping_byte_add(1);
    assert_eq!(in_place(handle, odd, &cache, &update), ("KVS_ERROR_MISALIGNED", "call"));
    let smaller = kvs_call { struct_size: size_of::<kvs_call>() - 1, ..call };
    assert_eq!(in_place(handle, &smaller, &cache, &update), ("KVS_ERROR_STRUCT_SIZE", "call"));
    // SAFETY: NULL is allowed.
    unsafe { kvs_prepared_destroy(ptr::null_mut()) };
}

/// A struct of a later version is as good, but for arrays.
#[test]
fn larger_structs_are_taken() {
    let Scene { operator, cache, update, call } = onnx();
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let (mut k, mut new) = ([0_f32; 64], [7_f32; 16]);
    let larger = |tensor: kvs_tensor| kvs_tensor { struct_size: tensor.struct_size + 8, ..tensor };
    let call = kvs_call { struct_size: call.struct_size + 8, ..call };
    let (cache, update) = (larger(cache.at(&raw mut k)), larger(update.at(&raw mut new)));
    assert_eq!(prepared.in_place(&call, &cache, &update), Ok(0));
    assert_eq!((k[..32].iter().sum::<f32>(), k[32..].iter().sum::<f32>()), (56.0, 56.0));
    let refused = prepared.in_place_many(&call, &[kvs_pair { cache, update }]).unwrap_err();
    assert_eq!((refused.code, refused.argument), ("KVS_ERROR_STRUCT_SIZE", Some("cache")));
}

/// What makes a pair wrong.
type Change = fn(&mut kvs_pair);

/// X1 over many: the last of three pairs is wrong, and its place is named.
#[test]
fn one_wrong_pair_stops_all() {
    let Scene { operator, cache, update, call } = onnx();
    let prepared = Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
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
        let refused = prepared.in_place_many(&call, &pairs).unwrap_err();
        assert_eq!((refused.code, refused.index), (code, Some(2)));
        assert!(refused.message.contains("pair 2"), "{}", refused.message);
    }
    assert_eq!(caches, [[1.0; 64]; 3]);
}

/// Indices are read while bytes move.
#[test]
fn nothing_that_is_read_may_be_written() {
    let cache = Tensor::dense(KVS_INT64, &[2, 8, 4]);
    let scene = Scene { cache, update: Tensor::dense(KVS_INT64, &[2, 2, 4]), ..onnx() };
    let prepared = Prepared::new(&scene.operator, &scene.cache.anywhere(), &scene.update.anywhere()).unwrap();
    let (mut k, mut v, mut new) = ([0_i64; 64], [0_i64; 64], [7_i64; 16]);
    let update = scene.update.at(&raw mut new);
    let [k_at, v_at] = [&raw mut k, &raw mut v].map(|data| scene.cache.at(data));
    let values = v_at.data.wrapping_byte_add(62 * 8).cast_const();
    let call = kvs_call { write_indices: kvs_indices { values, count: 2, bits: 64 }, ..CALL };
    let pairs = [k_at, v_at].map(|cache| kvs_pair { cache, update });
    let refused = prepared.in_place_many(&call, &pairs).unwrap_err();
    assert_eq!((refused.code, refused.index), ("KVS_ERROR_OVERLAP", Some(1)));
    assert_eq!(refused.message, "pair 1: cache shares memory with write_indices, which is read");
    let tensors = [&k_at, &update, &v_at];
    let refused = prepared.functional(&call, tensors).unwrap_err();
    assert_eq!(refused.message, "present shares memory with write_indices, which is read");
    assert_eq!((k, v), ([0; 64], [0; 64]));
    assert_eq!(prepared.in_place(&call, &k_at, &update), Ok(0));
}

/// As errno: success does not change it, and each thread has its own.
#[test]
fn the_last_error_stays_until_the_next() {
    let refused =
        onnx().called(|call| call.write_indices = ABSENT).called(|call| call.write_indices.bits = 5);
    assert_eq!(refused.plan().value, Some(5));
    let Scene { operator, cache, update, .. } = onnx();
    drop(Prepared::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap());
    assert_eq!(last_error().value, 5);
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { kvs_last_error(ptr::null_mut()) }, kvs_status_code::KVS_ERROR_NULL_POINTER as i32);
    assert_eq!(last_error().value, 5);
    std::thread::spawn(|| {
        let none = last_error();
        assert_eq!((none.code, none.fields, none.argument, none.message[0]), (0, 0, ptr::null(), 0));
    })
    .join()
    .unwrap();
}
