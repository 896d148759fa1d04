//! Checks the number, the fields and the message of every error.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr;

use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;

use crate::attend::{AttentionScene, attention, in_blocks, with_everything};
use crate::c::{ABSENT, KV_CACHE_UPDATE, Operator, OwnedTensor, PAGED_WRITE, Refused, narrow, result, wide};
use crate::dlpack::{DlTensor, described};
use crate::paged::{TABLES, slots_of};
use crate::scene::{Scene, ascend, onnx, packed, paged, reversed, tensor_scatter};

/// Shapes and strides that differ from the prepared ones.
static OTHER_SHAPE: [i64; 3] = [2, 9, 4];
static OTHER_STRIDES: [i64; 3] = [8, 2, 1];

/// Returns all errors in the order of the header.
fn all() -> Vec<Refused> {
    let writes = [boundary(), shapes(), indices(), buffers(), paged_writes(), block_tables()];
    [writes.concat(), attention_shapes(), attention_calls()].concat()
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

/// Returns the errors of writes into paged caches.
fn paged_writes() -> Vec<Refused> {
    let option = |change: fn(&mut kvs_paged_write_options)| {
        let mut options = PAGED_WRITE;
        change(&mut options);
        Scene { operator: Operator::PagedWrite(options), ..paged() }.prepare()
    };
    let slots = |slot_mapping: kvs_indices| paged().called(|call| call.slot_mapping = slot_mapping).plan();
    vec![
        option(|options| options.struct_size = 8),
        option(|options| options.skip_negative = 2),
        option(|options| options.axis = 0),
        option(|options| options.axis = -5),
        paged().shaped(&[3], &[]).prepare(),
        paged().shaped(&[1; 9], &[1; 8]).prepare(),
        paged().shaped(&[3, 4, 2, 2], &[3, 4, 2, 2]).prepare(),
        paged().shaped(&[3, 4, 2, 2], &[3, 2, 1]).prepare(),
        Scene { update: OwnedTensor::dense(KVS_FLOAT16, &[3, 2, 2]), ..paged() }.prepare(),
        Scene { cache: OwnedTensor::strided(KVS_FLOAT32, &[3, 4, 2, 2], &[8, 4, 2, 1]), ..paged() }.prepare(),
        paged().called(|call| call.write_indices = wide(&[0])).plan(),
        paged().called(|call| call.lengths = wide(&[1, 1, 1])).plan(),
        onnx().called(|call| call.slot_mapping = wide(&[0])).plan(),
        slots(ABSENT),
        slots(wide(&[5, 0])),
        slots(kvs_indices { bits: 16, ..wide(&[5, 0, 11]) }),
        slots(kvs_indices { values: ptr::null(), ..wide(&[5, 0, 11]) }),
        slots(wide(&[5, 0, 12])),
        slots(narrow(&[5, i32::MAX, 11])),
        slots(wide(&[5, -1, 11])),
        slots(wide(&[5, 0, 5])),
        paged().run_in_place(|[_, update, _]| update.data = ptr::null_mut()),
        paged().run_in_place(|[cache, update, _]| update.data = cache.data.wrapping_byte_add(4)),
        paged().functional(|_| ()),
    ]
}

/// Returns the errors of block tables.
fn block_tables() -> Vec<Refused> {
    let good = || kvs_block_tables {
        block_tables: narrow(&[2, 0, 1, -1]),
        seq_lens: narrow(&[3, 2]),
        max_blocks: 2,
        block_size: 2,
        num_blocks: 3,
        ..TABLES
    };
    assert_eq!(slots_of(&good(), 2), Ok(vec![0, 3]));
    let tables = |change: fn(&mut kvs_block_tables)| {
        let mut tables = good();
        change(&mut tables);
        slots_of(&tables, 2).unwrap_err()
    };
    vec![
        slots_to(ptr::null(), 0),
        tables(|tables| tables.struct_size -= 8),
        tables(|tables| tables.block_tables.values = ptr::null()),
        tables(|tables| tables.seq_lens = wide(&[3, 2])),
        tables(|tables| tables.new_tokens.bits = 8),
        slots_to(&good(), 0),
        slots_to(&good(), 4),
        slots_to(&good(), usize::MAX - 7),
        slots_to(&kvs_block_tables { seq_lens: narrow(&[]), ..good() }, 8),
        tables(|tables| tables.num_blocks = usize::MAX),
        tables(|tables| tables.max_blocks = 3),
        tables(|tables| tables.block_tables = ABSENT),
        tables(|tables| tables.new_tokens = narrow(&[1])),
        slots_of(&good(), 3).unwrap_err(),
        slots_of(&good(), 0).unwrap_err(),
        tables(|tables| tables.new_tokens = narrow(&[1, -1])),
        tables(|tables| tables.seq_lens = narrow(&[3, 0])),
        tables(|tables| tables.seq_lens = narrow(&[5, 2])),
        tables(|tables| tables.seq_lens = narrow(&[3, 3])),
        tables(|tables| tables.block_tables = narrow(&[2, 3, 1, -1])),
        tables(|tables| tables.num_blocks = 0),
        in_its_lens(),
    ]
}

/// Computes slots to an address that is not valid.
fn slots_to(tables: *const kvs_block_tables, address: usize) -> Refused {
    // SAFETY: `tables` is NULL or a reference, and its lists are constants. No function writes to an address that
    // is NULL, misaligned or at the end of the address space, or if another argument is not valid.
    result(unsafe { kvs_slot_mapping(tables, ptr::without_provenance_mut(address), 2) }).unwrap_err()
}

/// Computes slots in the memory of `seq_lens`.
fn in_its_lens() -> Refused {
    let mut lens = [1_i64; 2];
    let first = lens.as_mut_ptr();
    let tables = kvs_block_tables {
        block_tables: narrow(&[0, 1]),
        seq_lens: kvs_indices { values: first.cast(), count: 2, bits: 32 },
        max_blocks: 1,
        block_size: 2,
        num_blocks: 3,
        ..TABLES
    };
    // SAFETY: `tables` is a reference, and the test owns the lists and the slots. They share memory, so the function
    // must not write it.
    let status = unsafe { kvs_slot_mapping(&tables, first, 2) };
    assert_eq!(lens, [1; 2]);
    result(status).unwrap_err()
}

/// Returns the errors of preparing attention.
fn attention_shapes() -> Vec<Refused> {
    let shaped = |at: usize, shape: &[i64]| attention().tensor(at, |tensor| tensor.shape = shape.to_vec());
    let typed = |at: usize, code: kvs_element_type_code| {
        attention().tensor(at, |tensor| tensor.code = code as kvs_element_type)
    };
    let strided =
        |at: usize, strides: &[i64]| attention().tensor(at, |tensor| tensor.strides = Some(strides.to_vec()));
    let option = |change: fn(&mut kvs_attention_options)| attention().with_options(change);
    let mask = |code, shape: &[i64]| attention().masked(OwnedTensor::dense(code, shape));
    let many =
        |size| attention().tensor(1, |key| key.shape[2] = size).tensor(2, |value| value.shape[2] = size);
    let empty = (0..4).fold(many(1 << 20), |scene, at| scene.tensor(at, |tensor| tensor.shape[3] = 0));
    let blocks = |size| {
        let scene = in_blocks().tensor(1, |key| key.shape[2] = size);
        scene.tensor(2, |value| value.shape[2] = size)
    };
    vec![
        option(|options| options.struct_size -= 1).prepare(),
        option(|options| options.is_causal = 2).prepare(),
        option(|options| options.mode = -1).prepare(),
        option(|options| options.has_sinks = 7).prepare(),
        option(|options| options.window_left = -2).prepare(),
        option(|options| options.window_right = i64::MIN).prepare(),
        option(|options| options.scale = -1.0).prepare(),
        option(|options| options.softcap = f32::NAN).prepare(),
        typed(0, KVS_INT8).prepare(),
        typed(1, KVS_FLOAT16).prepare(),
        typed(1, KVS_FLOAT64).tensor(2, |value| value.code = KVS_FLOAT64 as i32).prepare(),
        typed(3, KVS_BFLOAT16).prepare(),
        typed(2, KVS_STRING).prepare(),
        mask(KVS_FLOAT16, &[8]).prepare(),
        shaped(0, &[2, 1, 16]).prepare(),
        shaped(3, &[2, 1, 4, 1, 6]).prepare(),
        shaped(1, &[2, 2, -8, 4]).prepare(),
        shaped(1, &[2, 2, 8, 5]).prepare(),
        shaped(2, &[2, 2, 7, 6]).prepare(),
        shaped(3, &[2, 4, 1, 4]).prepare(),
        shaped(0, &[2, 3, 1, 4]).tensor(3, |output| output.shape[1] = 3).prepare(),
        mask(KVS_BOOL, &[3, 8]).prepare(),
        mask(KVS_FLOAT32, &[1, 2, 4, 1, 8]).prepare(),
        many(1 << 60).prepare(),
        strided(1, &[1 << 62, 32, 4, 1]).prepare(),
        empty.prepare(),
        strided(0, &[16, 4, 4, 2]).prepare(),
        strided(1, &[64, 32, -4, 1]).prepare(),
        attention().masked(OwnedTensor::strided(KVS_BOOL, &[2, 1, 1, 8], &[9, 9, 9, 1])).prepare(),
        strided(3, &[24, 5, 6, 1]).prepare(),
        blocks(4).with_options(|options| options.mode = 1).prepare(),
        blocks(0).prepare(),
    ]
}

/// Returns the errors of runs of attention.
fn attention_calls() -> Vec<Refused> {
    let lengths = |values: &'static [i64]| attention().called(|call| call.lengths = wide(values)).run(|_| ());
    let starts = |starts: kvs_indices| attention().called(|call| call.starts = starts).run(|_| ());
    let table =
        |values: &'static [i32]| in_blocks().called(|call| call.block_table = narrow(values)).run(|_| ());
    let all = with_everything();
    let sinks = AttentionScene { sinks: all.sinks.clone(), ..attention() };
    let scales = AttentionScene { scales: all.scales.clone(), ..attention() };
    let no_blocks = in_blocks().tensor(1, |key| key.shape[0] = 0).tensor(2, |value| value.shape[0] = 0);
    vec![
        attention().run(|all| all.call.struct_size = 8),
        attention().run(|all| all.call.query_positions = 2),
        attention().run(|all| all.call.lengths.values = ptr::null()),
        attention().run(|all| all.call.lengths.bits = 8),
        attention().run(|all| all.tensors[0].rank = 3),
        attention().run(|all| all.tensors[1].r#type = KVS_INT8 as i32),
        attention().run(|all| all.tensors[2].shape = OTHER_SHAPE.as_ptr()),
        attention().run(|all| all.tensors[0].data = all.tensors[0].data.wrapping_byte_add(2)),
        attention().run(|all| all.tensors[1].data = ptr::null_mut()),
        attention().run(|all| all.tensors[2].data = ptr::without_provenance_mut(usize::MAX - 15)),
        attention().run(|all| all.tensors[3].data = all.tensors[0].data),
        // The output ends in the first element of the mask.
        all.run(|all| all.tensors[3].data = all.mask.data.wrapping_byte_sub(188)),
        all.run(|all| all.tensors[3].data = all.sinks.data),
        all.run(|all| all.tensors[3].data = all.scales[0].data),
        all.run(|all| all.tensors[3].data = all.scales[1].data),
        attention().run(|all| all.call.lengths.values = all.tensors[3].data),
        in_blocks().run(|all| all.call.block_table.values = all.tensors[3].data),
        all.run(|all| all.call.mask = ptr::null()),
        all.run(|all| all.call.sinks = ptr::null()),
        all.run(|all| all.call.key_scales = ptr::null()),
        all.run(|all| all.call.value_scales = ptr::null()),
        all.run(|all| (all.call.key_scales, all.call.value_scales) = (ptr::null(), ptr::null())),
        in_blocks().run(|all| all.call.block_table = ABSENT),
        attention().run(|all| all.call.mask = ptr::dangling()),
        attention().run(|all| all.call.sinks = ptr::dangling()),
        sinks.run(|_| ()),
        scales.run(|_| ()),
        attention().run(|all| all.call.block_table = narrow(&[0])),
        all.run(|all| all.scales[0].rank = 2),
        all.run(|all| all.scales[1].rank = 2),
        all.run(|all| all.mask.r#type = KVS_FLOAT32 as i32),
        lengths(&[8]),
        attention().called(|call| call.lengths = narrow(&[1, 2, 3])).run(|_| ()),
        lengths(&[8, 9]),
        lengths(&[-1, 3]),
        starts(wide(&[0])),
        starts(narrow(&[0, 0, 0])),
        starts(wide(&[0, -1])),
        starts(narrow(&[i32::MIN, 0])),
        starts(kvs_indices { bits: 8, ..wide(&[0, 0]) }),
        attention().run(|all| all.call.starts.bits = -1),
        attention().run(|all| {
            all.call.starts = kvs_indices { values: all.tensors[3].data, ..wide(&[0, 0]) };
        }),
        table(&[2, 0, 1]),
        table(&[2, 3, 1, -1]),
        table(&[2, 0, i32::MIN, -1]),
        no_blocks.run(|_| ()),
        in_blocks().called(|call| call.block_table = wide(&[2, 0, 1, -1])).run(|_| ()),
        of_other_shapes(),
        larger_than_memory(),
    ]
}

/// Makes a scratch for so many samples that no array has a length for each. Their tensors have no elements.
fn larger_than_memory() -> Refused {
    let empty = |scene: AttentionScene, at| scene.tensor(at, |tensor| tensor.shape = vec![1 << 60, 1, 1, 0]);
    let scene = [0, 1, 2, 3].into_iter().fold(attention(), empty);
    let (prepared, mut out) = (scene.try_prepare().unwrap(), ptr::null_mut());
    // SAFETY: `prepared` keeps the handle, and `out` is a reference.
    let status = unsafe { kvs_attention_scratch_new(prepared.handle(), 1, &mut out) };
    assert!(out.is_null());
    result(status).unwrap_err()
}

/// Runs attention with the scratch of other shapes.
fn of_other_shapes() -> Refused {
    let (one, other) = (attention().try_prepare().unwrap(), in_blocks().try_prepare().unwrap());
    let (q, k, v, mut output) = ([0_f32; 32], [0_f32; 128], [0_f32; 192], [7_f32; 48]);
    let data = [q.as_ptr().cast_mut(), k.as_ptr().cast_mut(), v.as_ptr().cast_mut(), output.as_mut_ptr()];
    let scene = attention();
    let tensors = [0, 1, 2, 3].map(|at| scene.tensors[at].at(data[at]));
    let refused = one.run(&scene.call, tensors.each_ref(), &mut other.scratch(1)).unwrap_err();
    assert_eq!(output, [7.0; 48]);
    refused
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
