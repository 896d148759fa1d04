//! Tests writes by address. Arguments that the types of slices would exclude are rejected here, and nothing is
//! written.
#![cfg(test)]

use core::ptr::{null_mut, without_provenance_mut};

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{Argument, ElementType, Error, Layout, Prepared, RawBuffer, Written};

const CACHE: usize = 8;
const UPDATE: usize = 4;

fn prepared() -> Prepared {
    TensorScatter::new().prepare(ElementType::UInt8, &[2, 4, 1], &[2, 2, 1]).unwrap()
}

/// Returns buffers at these places of the memory, each given by its first byte and its length.
fn at(memory: &mut [u8], places: &[(usize, usize)]) -> Vec<RawBuffer> {
    let start = memory.as_mut_ptr();
    let buffer = |&(from, len): &(usize, usize)| {
        assert!(from + len <= memory.len());
        RawBuffer { ptr: start.wrapping_add(from), len }
    };
    places.iter().map(buffer).collect()
}

fn write_many(memory: &mut [u8], places: &[(usize, usize)]) -> Result<Written, Error> {
    let write = prepared();
    let starts = [1_i64, 2];
    let plan = write.plan(&starts)?;
    let buffers = at(memory, places);
    // SAFETY: All buffers lie inside the memory, which is borrowed exclusively.
    unsafe { plan.write_many_raw(buffers.chunks(2).map(|pair| (pair[0], pair[1]))) }
}

fn overlap(argument: Argument, with: Argument, [buffer, with_pair]: [usize; 2]) -> Result<Written, Error> {
    Err(Error::Overlap { argument, with, pair: buffer, with_pair })
}

#[test]
fn pairs_side_by_side_are_written() {
    let mut memory: Vec<u8> = (0..24).collect();
    let expected: Vec<u8> =
        vec![0, 8, 9, 3, 4, 5, 10, 11, 8, 9, 10, 11, 12, 20, 21, 15, 16, 17, 22, 23, 20, 21, 22, 23];
    let _ = write_many(&mut memory, &[(0, CACHE), (8, UPDATE), (12, CACHE), (20, UPDATE)]).unwrap();
    assert_eq!(memory, expected);
}

#[test]
fn a_cache_that_shares_memory_is_refused() {
    use Argument::{PastCache, Update};
    let before: Vec<u8> = (0..40).collect();
    let mut memory = before.clone();
    let mut refused = |places: &[(usize, usize)], expected: Result<Written, Error>| {
        assert_eq!(write_many(&mut memory, places), expected, "{places:?}");
        assert_eq!(memory, before, "{places:?}");
    };
    for update in 0..CACHE + UPDATE - 1 {
        // The update overlaps the cache by every possible number of bytes.
        refused(&[(3, CACHE), (update, UPDATE)], overlap(PastCache, Update, [0, 0]));
    }
    refused(&[(0, CACHE), (30, UPDATE), (20, CACHE), (7, UPDATE)], overlap(PastCache, Update, [0, 1]));
    refused(&[(0, CACHE), (19, UPDATE), (20, CACHE), (30, UPDATE)], overlap(PastCache, Update, [1, 0]));
    refused(&[(0, CACHE), (30, UPDATE), (7, CACHE), (34, UPDATE)], overlap(PastCache, PastCache, [1, 0]));
    refused(&[(0, CACHE), (30, UPDATE), (0, CACHE), (34, UPDATE)], overlap(PastCache, PastCache, [1, 0]));
    // Two caches may share one update, because an update is only read.
    assert!(write_many(&mut memory, &[(0, CACHE), (30, UPDATE), (8, CACHE), (30, UPDATE)]).is_ok());
}

/// The keys and values of a fused cache alternate, element by element.
#[test]
fn strided_caches_may_interleave() {
    let cache = Layout::strided(&[1, 3, 1], &[6, 2, 1]);
    let write = TensorScatter::new().prepare(ElementType::UInt8, cache, &[1, 1, 1]).unwrap();
    assert_eq!((write.geometry().cache_bytes(), write.geometry().update_bytes()), (Some(5), Some(1)));
    let mut memory = [0, 1, 2, 3, 4, 5, 6, 60, 70];
    let buffers = at(&mut memory, &[(0, 5), (7, 1), (1, 5), (8, 1), (2, 5)]);
    let starts = [1_i64];
    let plan = write.plan(&starts).unwrap();
    // SAFETY: All buffers lie inside the array, which is borrowed exclusively.
    let _ = unsafe { plan.write_many_raw([(buffers[0], buffers[1]), (buffers[2], buffers[3])]) }.unwrap();
    assert_eq!(memory, [0, 1, 60, 70, 4, 5, 6, 60, 70]);
    // The second cache is the first one again, or begins at the second slot of the first one.
    for other in [buffers[0], buffers[4]] {
        // SAFETY: The buffers lie inside the array. The caches overlap, so the write is rejected before a byte
        // moves.
        let met = unsafe { plan.write_many_raw([(buffers[0], buffers[1]), (other, buffers[3])]) };
        assert_eq!(met, overlap(Argument::PastCache, Argument::PastCache, [1, 0]));
    }
    assert_eq!(memory, [0, 1, 60, 70, 4, 5, 6, 60, 70]);
}

#[test]
fn null_is_a_buffer_without_bytes_and_no_other() {
    let null = |len| RawBuffer { ptr: null_mut(), len };
    let write = prepared();
    let plan = write.plan(&[0_i64, 0]).unwrap();
    let mut memory = [7_u8; CACHE + UPDATE];
    let buffers = at(&mut memory, &[(0, CACHE), (CACHE, UPDATE)]);
    let refused = |argument, len| Err(Error::NullBuffer { argument, pair: 0, len });
    // SAFETY: The buffers that are not null lie inside the array, which is borrowed exclusively.
    let written = unsafe {
        [(null(CACHE), buffers[1]), (buffers[0], null(UPDATE))].map(|(to, from)| plan.write_raw(to, from))
    };
    assert_eq!(written, [refused(Argument::PastCache, CACHE), refused(Argument::Update, UPDATE)]);
    // SAFETY: All buffers that are not null lie inside the array, which nothing else refers to.
    let filled = unsafe { plan.write_present_raw(buffers[0], buffers[1], null(CACHE)) };
    assert_eq!(filled, refused(Argument::PresentCache, CACHE));
    assert_eq!(memory, [7; CACHE + UPDATE]);

    let empty = TensorScatter::new().prepare(ElementType::Int4, &[0, 4, 1], &[0, 2, 1]).unwrap();
    let plan = empty.plan(&[] as &[i64]).unwrap();
    // SAFETY: The buffers have no bytes.
    let written = unsafe { plan.write_raw(null(0), null(0)) };
    // SAFETY: The buffers have no bytes.
    let filled = unsafe { plan.write_present_raw(null(0), null(0), null(0)) };
    assert!(written.is_ok() && filled.is_ok(), "{written:?} {filled:?}");
}

/// Tests each buffer of both forms with every length up to the end of the address space, and beyond it. Only
/// the checks of addresses use these buffers, so no memory is read or written there.
#[test]
fn a_buffer_past_the_end_of_the_address_space_is_refused() {
    let write = prepared();

    let mut memory = [7_u8; 2 * CACHE + UPDATE];
    let good = at(&mut memory, &[(0, CACHE), (CACHE, UPDATE), (CACHE + UPDATE, CACHE)]);
    for back in 0..=CACHE + 1 {
        // The last byte of the address space cannot be part of a buffer, because no address follows it.
        let address = usize::MAX - back;
        let end = |len| RawBuffer { ptr: without_provenance_mut(address), len };
        let expected = |argument, buffer, len| match len <= back {
            true => Ok(()),
            false => Err(Error::AddressSpace { argument, pair: buffer, address, len }),
        };
        assert_eq!((end(back).wraps(), end(back + 1).wraps()), (false, true));
        assert_eq!(
            write.device_interface().check_pairs([(end(CACHE), good[1])]),
            expected(Argument::PastCache, 0, CACHE),
            "{back}"
        );
        assert_eq!(
            write.device_interface().check_pairs([(good[2], good[1]), (good[0], end(UPDATE))]),
            expected(Argument::Update, 1, UPDATE),
            "{back}"
        );
        for (argument, [past, update, present], len) in [
            (Argument::PastCache, [end(CACHE), good[1], good[2]], CACHE),
            (Argument::Update, [good[0], end(UPDATE), good[2]], UPDATE),
            (Argument::PresentCache, [good[0], good[1], end(CACHE)], CACHE),
        ] {
            assert_eq!(
                write.device_interface().check_present(past, update, present),
                expected(argument, 0, len),
                "{back}"
            );
        }
    }
    assert!(!RawBuffer { ptr: without_provenance_mut(usize::MAX), len: 0 }.wraps());
    assert_eq!(memory, [7; 2 * CACHE + UPDATE]);
}

#[test]
fn a_present_that_shares_memory_is_refused() {
    let write = KvCacheUpdate::new().prepare(ElementType::Float16, &[1, 1, 4, 1], &[1, 1, 1, 1]).unwrap();
    let starts = [2_i32];
    let plan = write.plan(&starts).unwrap();
    let before: Vec<u8> = (0..40).collect();
    let mut memory = before.clone();
    for (past, update, present, with) in
        [(0, 30, 0, Argument::Cache), (0, 30, 7, Argument::Cache), (0, 15, 8, Argument::Update)]
    {
        let buffers = at(&mut memory, &[(past, 8), (update, 2), (present, 8)]);
        // SAFETY: All buffers lie inside the memory, which is borrowed exclusively.
        let filled = unsafe { plan.write_present_raw(buffers[0], buffers[1], buffers[2]) };
        assert_eq!(filled, overlap(Argument::Output, with, [0, 0]));
        assert_eq!(memory, before);
    }
    let buffers = at(&mut memory, &[(0, 8), (30, 2), (8, 8)]);
    // SAFETY: All buffers lie inside the array, which nothing else refers to.
    let _ = unsafe { plan.write_present_raw(buffers[0], buffers[1], buffers[2]) }.unwrap();
    assert_eq!(memory[8..16], [0, 1, 2, 3, 30, 31, 6, 7]);
}

/// A view may be given by the address of element `[0, 0, …]` and also have elements before that address.
#[test]
fn negative_strides_reach_back() {
    let (shape, strides) = ([1_usize, 3, 2], [9_isize, -2, 1]);
    let update = Layout::strided(&shape, &strides);
    assert_eq!(update.min_offset(), 4);
    let write = TensorScatter::new()
        .prepare(ElementType::UInt8, &[1, 3, 2], update.with_offset(update.min_offset()))
        .unwrap();
    assert_eq!((write.geometry().update_offset(), write.geometry().cache_offset()), (4, 0));
    let mut cache = [0_u8; 6];
    let _ = write.write(&mut cache, &[1, 2, 3, 4, 5, 6], &[0_i64]).unwrap();
    assert_eq!(cache, [5, 6, 3, 4, 1, 2]);
    assert_eq!(Layout::strided(&[0, 3], &[1, -1]).min_offset(), 0);
    assert_eq!(Layout::dense(&[2, 3]).min_offset(), 0);
    assert_eq!(Layout::strided(&[usize::MAX, 2], &[isize::MIN, -1]).min_offset(), usize::MAX);
}

/// A plan reads its checked indices again during the write, so the write must not change them.
#[test]
fn indices_inside_what_is_written_are_refused() {
    let half = ElementType::Float16;
    let mut memory = [0_i32; 64];
    let start = memory.as_mut_ptr();
    let cache = RawBuffer { ptr: start.cast(), len: 2 * 4 * 2 };
    let update = RawBuffer { ptr: start.wrapping_add(20).cast(), len: 4 * 2 };
    let past = RawBuffer { ptr: start.wrapping_add(40).cast(), len: cache.len };
    let write = KvCacheUpdate::new().prepare_packed(half, &[2, 1, 4, 1], &[4, 1, 1]).unwrap();
    for inside in 0..3 {
        // The list `inside` ends in the last word of the written buffer. The other lists do not overlap any
        // buffer.
        let place = |list: usize, len: usize| if list == inside { 4 - len } else { 24 + 4 * list };
        let list = |list: usize, values: &[i32]| {
            let first = start.wrapping_add(place(list, values.len()));
            for (at, &value) in values.iter().enumerate() {
                // SAFETY: The address lies inside the array, and existing references into the array refer to
                // other lists.
                unsafe { first.wrapping_add(at).write(value) };
            }
            // SAFETY: The values lie inside the array and have just been written. Nothing writes to them
            // while the plan exists, because a write that overlaps them is rejected.
            unsafe { core::slice::from_raw_parts(first, values.len()) }
        };
        let (starts, totals, lengths) = (list(0, &[1, 0]), list(1, &[0, 2, 4]), list(2, &[1, 2]));
        let plan = write.plan_with_lengths(PackedCall::new(starts, totals), lengths).unwrap();
        let with = [Argument::TensorRtWriteIndices, Argument::UpdateLengths, Argument::Lengths][inside];
        // SAFETY: The buffers lie inside the array and do not overlap. The list overlaps the cache, but the
        // write is rejected before a byte moves, so the list is only read.
        let written = unsafe { plan.write_raw(cache, update) };
        assert_eq!(written, overlap(Argument::Cache, with, [0, 0]));
        // SAFETY: The buffers lie inside the array and do not overlap. The list overlaps the present, but the
        // write is rejected before a byte moves, so the list is only read.
        let filled = unsafe { plan.write_present_raw(past, update, cache) };
        assert_eq!(filled, overlap(Argument::Output, with, [0, 0]));
        // SAFETY: Both buffers lie inside the array and do not overlap, and no list lies in them.
        assert!(unsafe { plan.write_raw(past, update) }.is_ok());
    }
}

#[test]
fn a_buffer_without_bytes_overlaps_nothing() {
    let mut memory = [0_u8; 8];
    let [all, empty, first, second]: [RawBuffer; 4] =
        at(&mut memory, &[(0, 8), (4, 0), (0, 4), (4, 4)]).try_into().unwrap();
    for (one, other, expected) in [
        (all, all, true),
        (all, first, true),
        (all, second, true),
        (all, empty, false),
        (empty, empty, false),
        (first, second, false),
    ] {
        assert_eq!(one.overlaps(other), expected, "{one:?}, {other:?}");
        assert_eq!(other.overlaps(one), expected, "{other:?}, {one:?}");
    }
}

#[test]
fn a_cache_overlaps_any_of_those_before_it() {
    let mut memory = [0_u8; 64];
    let pairs = [(0, CACHE), (32, UPDATE), (8, CACHE), (36, UPDATE), (12, CACHE), (40, UPDATE)];
    assert_eq!(write_many(&mut memory, &pairs), overlap(Argument::PastCache, Argument::PastCache, [2, 1]));
    assert_eq!(memory, [0; 64]);
}
