//! Compares writes into paged caches, and the slots of block tables, with the oracle.

use std::ptr;

use allocation_counter::measure;
use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;
use kvscatter_oracle::cases::paged::{PagedCase, exhaustive, random};
use kvscatter_oracle::cases::{Element, Origin, Random, Values, View};
use kvscatter_oracle::paged::{self, PagedRefusal};

use crate::c::{
    ABSENT, CALL, Operator, OwnedTensor, PAGED_WRITE, PreparedHandle, Refused, narrow, result, wide,
};
use crate::scene::paged;

/// One element type of every width.
const EVERY_WIDTH: [(kvs_element_type_code, &str); 6] = [
    (KVS_FLOAT4E2M1, "float4e2m1"),
    (KVS_FLOAT8E5M2, "float8e5m2"),
    (KVS_BFLOAT16, "bfloat16"),
    (KVS_FLOAT32, "float"),
    (KVS_INT64, "int64"),
    (KVS_COMPLEX128, "complex128"),
];

/// Bytes that are aligned for every type.
struct Memory(Vec<u64>);

impl Memory {
    fn new(values: &Values) -> Self {
        let Values::Bytes(bytes) = values else { unreachable!("no type here is a string") };
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        Self(bytes.chunks(8).map(word).collect())
    }

    /// Returns the tensor of a view whose guards are in this memory.
    fn place(&mut self, view: &View, tensor: &OwnedTensor, bits: usize) -> kvs_tensor {
        let origin = view.buffer().start + view.offset();
        tensor.at(self.0.as_mut_ptr().wrapping_byte_add(origin * bits / 8))
    }
}

fn tensor_of(view: &View, code: kvs_element_type_code) -> OwnedTensor {
    let shape: Vec<_> = view.shape().iter().map(|&size| size as i64).collect();
    let strides = view.strides().map(|strides| strides.iter().map(|&stride| stride as i64).collect());
    OwnedTensor { code: code as kvs_element_type, shape, strides }
}

/// Writes a case through `kvs_write` and as K and V through `kvs_write_many`. Compares all bytes, guards included.
/// Returns whether the strides are supported.
fn check(
    r: &mut Random,
    case: &PagedCase,
    (code, name): (kvs_element_type_code, &str),
    views: [&View; 2],
) -> bool {
    let element = Element::named(name).unwrap();
    let bits = element.bits.unwrap();
    let options = kvs_paged_write_options {
        axis: case.operator.axis,
        skip_negative: case.operator.skip_negative.into(),
        ..PAGED_WRITE
    };
    let [cache_view, update_view] = views;
    let [cache, update] = views.map(|view| tensor_of(view, code));
    let past = Values::painted(element, 0, cache_view.total());
    let news = [1, 2].map(|n| Values::painted(element, n * cache_view.total(), update_view.total()));
    let mut caches = [0; 3].map(|_| Memory::new(&past));
    let mut updates = news.each_ref().map(Memory::new);
    let outcome = case.run_on_origins();

    let short: Option<Vec<_>> = case.slot_mapping.iter().map(|&slot| i32::try_from(slot).ok()).collect();
    let short = short.filter(|_| r.below(2) == 0);
    let slot_mapping = short.as_ref().map_or(wide(&case.slot_mapping), |short| narrow(short));
    let call = kvs_call { slot_mapping, ..CALL };
    let operator = Operator::PagedWrite(options);
    let written =
        PreparedHandle::new(&operator, &cache.anywhere(), &update.anywhere()).and_then(|prepared| {
            let [k, v, other] = caches.each_mut().map(|memory| memory.place(cache_view, &cache, bits));
            let [new_k, new_v] = updates.each_mut().map(|memory| memory.place(update_view, &update, bits));
            let both = [(k, new_k), (v, new_v)].map(|(cache, update)| kvs_pair { cache, update });
            let written = prepared.write_many(&call, &both);
            assert_eq!(prepared.in_place(&call, &other, &new_v), written, "{case:?}");
            written
        });

    if written.as_ref().is_err_and(|refused| refused.code == "KVS_ERROR_TOO_MANY_LOOPS") {
        return false;
    }
    let expected = news.each_ref().map(|new| {
        let mut origins: Vec<_> = (0..cache_view.total()).map(Origin::Cache).collect();
        let from = update_view.places();
        for (place, origin) in cache_view.places().into_iter().zip(outcome.iter().flat_map(|o| &o.present)) {
            if let Some(written) = origin.written() {
                origins[place] = Origin::Update(from[written]);
            }
        }
        Memory::new(&Values::gathered(element, &origins, &past, new)).0
    });
    match &outcome {
        Ok(outcome) => assert_eq!(written, Ok(outcome.skipped), "{case:?}"),
        Err(refusal) => check_refused(&written.unwrap_err(), refusal, case),
    }
    let [k, v, other] = &caches;
    assert!(k.0 == expected[0] && v.0 == expected[1] && other.0 == expected[1], "{case:?} {views:?}");
    true
}

/// Compares an error with the rule that a case breaks.
fn check_refused(refused: &Refused, refusal: &PagedRefusal, case: &PagedCase) {
    let rank = case.cache_shape.len() as i64;
    let (code, index, value) = match *refusal {
        PagedRefusal::CacheRank { rank } | PagedRefusal::UpdateRank { rank } => {
            ("RANK", None, Some(rank as i64))
        }
        PagedRefusal::Axis { axis, .. } if axis == 0 || axis == -rank => ("AXIS_IS_BATCH", None, Some(axis)),
        PagedRefusal::Axis { axis, .. } => ("AXIS_OUT_OF_RANGE", None, Some(axis)),
        PagedRefusal::Dimension { dimension, update, .. } => {
            ("DIMENSION_MISMATCH", Some(dimension), Some(update as i64))
        }
        PagedRefusal::Count { given, .. } => ("LIST_LENGTH", None, Some(given as i64)),
        PagedRefusal::NegativeSlot { token, slot } => ("NEGATIVE_START", Some(token), Some(slot)),
        PagedRefusal::SlotOutOfRange { token, slot, .. } => ("SLOT_OUT_OF_RANGE", Some(token), Some(slot)),
        PagedRefusal::DuplicateSlot { token, slot, .. } => ("DUPLICATE_SLOT", Some(token), Some(slot)),
        ref of_tables => unreachable!("{of_tables:?}"),
    };
    let got = (refused.code, refused.index, refused.value);
    assert_eq!(got, (&*format!("KVS_ERROR_{code}"), index.map(|index| index as i64), value), "{case:?}");
}

#[test]
fn every_small_write_agrees_with_the_oracle() {
    let r = &mut Random::new(80, 0);
    for (n, case) in exhaustive().enumerate() {
        let dense = |shape: &[usize]| View::dense(shape, 2);
        let views = [dense(&case.cache_shape), dense(&case.update_shape)];
        assert!(check(r, &case, EVERY_WIDTH[n % EVERY_WIDTH.len()], views.each_ref()));
    }
}

#[test]
fn random_writes_agree_with_the_oracle() {
    let mut checked = [0; 2];
    for seed in 0..3000 {
        let case = &random(seed);
        let r = &mut Random::new(seed, 2);
        let element = r.pick(&EVERY_WIDTH);
        let dense = [&case.cache_shape, &case.update_shape].map(|shape| View::dense(shape, 2));
        checked[0] += usize::from(check(r, case, element, dense.each_ref()));
        if case.update_shape.is_empty() {
            continue;
        }
        let strided = [View::strided(&case.cache_shape, 2, r), View::broadcast(&case.update_shape, 2, r)];
        // An element `[0, 0, …]` begins at the start of a byte.
        if element.0 != KVS_FLOAT4E2M1 || strided.iter().all(|view| view.offset() % 2 == 0) {
            checked[1] += usize::from(check(r, case, element, strided.each_ref()));
        }
    }
    assert!(checked[0] == 3000 && checked[1] > 2000, "{checked:?}");
}

/// Tokens come in any order, so nothing copies a cache while they are written.
#[test]
fn a_paged_cache_has_no_functional_form() {
    let refused = paged().functional(|_| ());
    assert_eq!((refused.code, refused.argument), ("KVS_ERROR_IN_PLACE_ONLY", Some("present_cache")));
}

/// No cache may overlap the slots, which are read while bytes move.
#[test]
fn slots_may_not_be_in_the_cache() {
    let scene = paged();
    let (prepared, mut new) = (scene.prepared(), [7_f32; 12]);
    // The slots are the last three elements of the cache.
    let mut memory = [0_i32; 48];
    memory[45..].copy_from_slice(&[5, 0, 11]);
    let before = memory;
    let cache = scene.cache.at(&raw mut memory);
    let values = cache.data.wrapping_byte_add(180).cast_const();
    let call = kvs_call { slot_mapping: kvs_indices { values, count: 3, bits: 32 }, ..CALL };
    let refused = prepared.in_place(&call, &cache, &scene.update.at(&raw mut new)).unwrap_err();
    assert_eq!((refused.code, memory), ("KVS_ERROR_OVERLAP", before));
    assert_eq!(refused.message, "the buffer of cache shares memory with that of slot_mapping");
}

/// Up to 128 runs of slots are compared without memory of the heap.
#[test]
fn writes_of_few_runs_allocate_nothing() {
    let (cache, update) =
        (OwnedTensor::dense(KVS_INT32, &[64, 4, 1]), OwnedTensor::dense(KVS_INT32, &[128, 1]));
    let operator = Operator::PagedWrite(PAGED_WRITE);
    let prepared = PreparedHandle::new(&operator, &cache.anywhere(), &update.anywhere()).unwrap();
    let (mut slots, mut new): (Vec<i64>, Vec<i32>) =
        ((0..128).rev().map(|n| 2 * n).collect(), (1..=128).collect());
    let mut memory = [0_i32; 256];
    let (cache, update) = (cache.at(&raw mut memory), update.at(new.as_mut_ptr()));
    let write = |slots: &[i64]| {
        let (call, mut status) = (kvs_call { slot_mapping: wide(slots), ..CALL }, -1);
        let count = measure(|| {
            // SAFETY: The handle, `call` and the tensors outlive this, and nothing else uses them.
            status = unsafe { kvs_write(prepared.handle(), &call, &cache, &update, ptr::null_mut()) };
        });
        (status, count.count_total)
    };
    assert_eq!(write(&slots), (0, 0));
    slots[9] = 256;
    assert_eq!(write(&slots), (kvs_status_code::KVS_ERROR_SLOT_OUT_OF_RANGE as i32, 0));
    assert_eq!((memory[254], memory[0], memory[1]), (1, 128, 0));
}

pub(crate) const TABLES: kvs_block_tables = kvs_block_tables {
    struct_size: size_of::<kvs_block_tables>(),
    block_tables: ABSENT,
    seq_lens: ABSENT,
    new_tokens: ABSENT,
    max_blocks: 0,
    block_size: 0,
    num_blocks: 0,
};

/// Returns the slots between guards that have not changed, or the error, which has changed no slot.
pub(crate) fn slots_of(tables: &kvs_block_tables, count: usize) -> Result<Vec<i64>, Refused> {
    const GUARD: i64 = -77;
    let mut memory = vec![GUARD; count + 2];
    // SAFETY: `tables` is a reference, the test owns its lists, and the slots are between the guards.
    let status = unsafe { kvs_slot_mapping(tables, memory.as_mut_ptr().wrapping_add(1), count) };
    let slots = memory[1..=count].to_vec();
    assert_eq!((memory[0], memory[count + 1]), (GUARD, GUARD));
    let result = result(status);
    assert!(result.is_ok() || slots.iter().all(|&slot| slot == GUARD), "X1: {result:?}");
    result.map(|()| slots)
}

/// Compares tables with the oracle. Without `new_tokens`, each sample has one.
fn check_tables(tables: &paged::BlockTables, new_tokens: Option<&[i32]>, count: usize) {
    let paged::BlockTables { block_tables, max_blocks, seq_lens, block_size, num_blocks } = tables;
    let given = kvs_block_tables {
        block_tables: narrow(block_tables),
        seq_lens: narrow(seq_lens),
        new_tokens: new_tokens.map_or(ABSENT, narrow),
        max_blocks: *max_blocks,
        block_size: *block_size,
        num_blocks: *num_blocks,
        ..TABLES
    };
    let each =
        new_tokens.map_or(vec![1; seq_lens.len()], |each| each.iter().map(|&n| i64::from(n)).collect());
    let got = slots_of(&given, count);
    let refusal = match tables.slot_mapping(&each, count) {
        Ok(expected) => return assert_eq!(got, Ok(expected), "{tables:?} {new_tokens:?}"),
        Err(refusal) => refusal,
    };
    let (code, argument, index, value) = match refusal {
        PagedRefusal::Count { list, given, .. } => ("LIST_LENGTH", list, None, given as i64),
        // One number for all samples is compared with the lengths only.
        PagedRefusal::NewTokens { sample, .. } if new_tokens.is_none() => {
            ("LENGTH_OUT_OF_RANGE", "seq_lens", Some(sample), seq_lens[sample].into())
        }
        PagedRefusal::NewTokens { sample, new_tokens, .. } => {
            ("LENGTH_OUT_OF_RANGE", "new_tokens", Some(sample), new_tokens)
        }
        PagedRefusal::SeqLen { sample, seq_len, .. } => {
            ("LENGTH_OUT_OF_RANGE", "seq_lens", Some(sample), seq_len)
        }
        PagedRefusal::Block { sample, block, .. } => {
            ("BLOCK_OUT_OF_RANGE", "block_tables", Some(sample), block)
        }
        of_writes => unreachable!("{of_writes:?}"),
    };
    let refused = got.unwrap_err();
    let got = (refused.code, refused.argument, refused.index, refused.value);
    let index = index.map(|index| index as i64);
    let expected = (&*format!("KVS_ERROR_{code}"), Some(argument), index, Some(value));
    assert_eq!(got, expected, "{tables:?} {new_tokens:?}");
}

#[test]
fn tables_agree_with_the_oracle() {
    let (mut found, mut refused) = (0, 0);
    for seed in 0..5000 {
        let r = &mut Random::new(81, seed);
        let (batch, max_blocks) = (r.below(4), r.below(4));
        let (block_size, num_blocks) = (r.below(4), r.between(1, 9));
        let capacity = max_blocks * block_size;
        let block_tables = r
            .many(batch * max_blocks, |r| if r.below(30) == 0 { -1 } else { r.below(num_blocks + 1) as i32 });
        let seq_lens: Vec<_> =
            r.many(batch, |r| if r.below(20) == 0 { -1 } else { r.below(capacity + 2) as i32 });
        let each =
            seq_lens.iter().map(|&len| r.below(len.max(0) as usize + 1) as i32 - i32::from(r.below(30) == 0));
        let each: Vec<_> = each.collect();
        let each = Some(each).filter(|_| r.below(3) > 0);
        let total = each.as_ref().map_or(batch, |each| each.iter().map(|&n| n.max(0) as usize).sum());
        let count = total + usize::from(r.below(20) == 0);
        let tables = paged::BlockTables { block_tables, max_blocks, seq_lens, block_size, num_blocks };
        check_tables(&tables, each.as_deref(), count);
        let each = each.map_or(vec![1; batch], |each| each.into_iter().map(i64::from).collect());
        *if tables.slot_mapping(&each, count).is_ok() { &mut found } else { &mut refused } += 1;
    }
    assert!(found > 1000 && refused > 1000, "{found} {refused}");
}
