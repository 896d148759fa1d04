// Which slots a sample is written to. The host has checked every shape (G1, G2 of `Geometry`), but cannot read the
// indices, which are on the device. So this file holds the second copy of the rule that maps a start to a slot. The first
// is `SlotRule` in `crates/kvscatter/src/plan/rules.rs`. Tests compare both with the oracle.
//
// A bad index is never written and never trapped: its sample stays as it was, and `report` counts it.
#pragma once

#include "abi.cuh"

static __device__ __forceinline__ i64 at(const void* list, u32 index, u32 is_i64) {
    return is_i64 ? __ldg((const i64*)list + index) : (i64)__ldg((const int*)list + index);
}

// The slots of a sample: `length` rows from `slot` on, or none if the sample is skipped.
struct SlotRange {
    u32 slot, length;
    bool is_bad; // if so, what `Status` records:
    u32 first_sample;
    i64 first_value;
};

static __device__ __forceinline__ SlotRange at_slot(u32 slot, u32 length) { return {slot, length, false, 0, 0}; }
static __device__ __forceinline__ SlotRange left_out() { return {0, 0, false, 0, 0}; }
static __device__ __forceinline__ SlotRange bad(u32 first_sample, i64 value) {
    return {0, 0, true, first_sample, value};
}

// The slots of a sample that brings `row_count` rows.
template <bool LISTS>
static __device__ __forceinline__ SlotRange slot_range(const WriteShape& shape, const Call& call, u32 sample,
                                                       u32 row_count) {
    u32 length = row_count;
    if (LISTS && call.lengths) {
        i64 given = at(call.lengths, sample, call.flags & LENGTHS_I64);
        if (given < 0 || given > (i64)row_count) return bad(sample | LENGTH, given);
        length = (u32)given;
    }
    if (!call.positions) return at_slot(0, length);
    const i64 value = at(call.positions, sample, call.flags & POSITIONS_I64);
    const i64 capacity = shape.capacity;
    i64 start = value;
    if (call.flags & SKIP_NEGATIVE && value < 0) return left_out();
    if (call.flags & FROM_END) {
        if (value < (i64)row_count) return bad(sample, value);
        start = value - (i64)row_count;
    }
    if (call.flags & CIRCULAR) {
        // A division takes longer than all the rest, so only starts outside the ring are divided.
        if ((u64)start >= (u64)capacity) {
            if (start < 0 && call.flags & REJECT_NEGATIVE) return bad(sample, value);
            // Reduced first, so that nothing overflows. A ring without slots has only slot 0.
            start = capacity ? start % capacity : 0;
            if (start < 0) start += capacity;
        }
    } else if (start < 0 || start > capacity - (i64)length) {
        return bad(sample, value);
    }
    return at_slot((u32)start, length);
}

// The rows that a sample of a packed update brings. The difference of cumulative lengths may be any number.
static __device__ __forceinline__ i64 row_count_of(const Call& call, u32 sample) {
    const u32 is_i64 = call.flags & ROW_COUNTS_I64;
    if (!(call.flags & CUMULATIVE)) return at(call.row_counts, sample, is_i64);
    return (i64)((u64)at(call.row_counts, sample + 1, is_i64) - (u64)at(call.row_counts, sample, is_i64));
}

// A sample of a packed update, and its rows among all tokens.
struct SampleRows {
    u32 sample, first_row, row_count;
    bool is_partition; // whether each token belongs to one sample; if not, nothing is written, and `Status` records:
    u32 first_sample;
    i64 first_value;
};

static __device__ __forceinline__ SampleRows no_partition(u32 first_sample, i64 value) {
    return {0, 0, 0, false, first_sample, value};
}

// The sample for which `is_it(sample, first row, rows)` is true. All threads walk all samples: the loads are the same for
// a warp and do not wait for each other, and every thread checks the whole list, as the CPU does before it writes.
template <class F>
static __device__ __forceinline__ SampleRows find(const WriteShape& shape, const Call& call, F&& is_it) {
    SampleRows found = {0, 0, 0, true, 0, 0};
    if (call.flags & CUMULATIVE) {
        i64 first = at(call.row_counts, 0, call.flags & ROW_COUNTS_I64);
        if (first != 0) return no_partition(ROW_COUNT, first);
    }
    i64 total = 0;
    for (u32 sample = 0; sample < shape.samples.count; ++sample) {
        i64 row_count = row_count_of(call, sample);
        if (row_count < (i64)call.min_rows || row_count > (i64)call.max_rows)
            return no_partition(sample | ROW_COUNT, row_count);
        if (is_it(sample, total, row_count)) {
            found.sample = sample;
            found.first_row = (u32)total;
            found.row_count = (u32)row_count;
        }
        total += row_count; // fewer than 2^32 samples of fewer than 2^32 rows
    }
    if (total != (i64)shape.rows.count) return no_partition(shape.samples.count | ROW_COUNT, total);
    return found;
}

// The sample of a token.
static __device__ __forceinline__ SampleRows find_token(const WriteShape& shape, const Call& call, u32 token) {
    return find(shape, call, [&](u32, i64 first, i64 row_count) {
        return first <= (i64)token && (i64)token - first < row_count;
    });
}

// The sample with a number. A padded update has the same rows for each.
static __device__ __forceinline__ SampleRows find_sample(const WriteShape& shape, const Call& call, u32 wanted) {
    if (!call.row_counts) return {wanted, 0, shape.rows.count, true, 0, 0};
    return find(shape, call, [&](u32 sample, i64, i64) { return sample == wanted; });
}

// ---- Bad indices. ----

// A sample of a padded update, or of a packed one whose lists are right.
static __device__ __forceinline__ SlotRange slot_range_of(const WriteShape& shape, const Call& call, u32 sample) {
    return slot_range<true>(shape, call, sample, call.row_counts ? (u32)row_count_of(call, sample) : shape.rows.count);
}

static __device__ __forceinline__ bool any_bad(const WriteShape& shape, const Call& call) {
    for (u32 sample = 0; sample < shape.samples.count; ++sample)
        if (slot_range_of(shape, call, sample).is_bad) return true;
    return false;
}

static __device__ __forceinline__ void record(Status* status, u32 count, u32 first_sample, i64 value) {
    // The record of an earlier launch stays.
    if (atomicAdd(&status->bad_samples, count) == 0) {
        status->first_sample = first_sample;
        status->first_value = value;
    }
}

// One block of a launch does this last, so that no row waits for it. Each of its threads checks some samples. The thread
// that finds the first bad one counts the others too, so that only one thread writes, and only if an index is bad.
static __device__ __forceinline__ void report(const WriteShape& shape, const Call& call) {
    if (!call.status || blockIdx.x || blockIdx.y) return;
    const u32 thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    const u32 samples = shape.samples.count;
    if (call.layer && (u32)*call.layer >= shape.layers) {
        if (thread == 0) record(call.status, samples ? samples : 1, LAYER, *call.layer);
        return;
    }
    if (call.row_counts) {
        SampleRows found = find_token(shape, call, 0);
        if (!found.is_partition) {
            if (thread == 0) record(call.status, samples ? samples : 1, found.first_sample, found.first_value);
            return;
        }
    }
    for (u32 sample = thread; sample < samples; sample += threads) {
        const SlotRange first = slot_range_of(shape, call, sample);
        if (!first.is_bad) continue;
        for (u32 before = 0; before < sample; ++before)
            if (slot_range_of(shape, call, before).is_bad) return;
        u32 count = 1;
        for (u32 after = sample + 1; after < samples; ++after) count += slot_range_of(shape, call, after).is_bad;
        record(call.status, count, first.first_sample, first.first_value);
        return;
    }
}
