// Which slots of which sample. The host has checked every shape (G1, G2 of `Geometry`); what the indices say it cannot
// know, since they are on the device. So this file holds the second copy of the rule which slot a start means. The first
// is `SlotRule` in the core's `call.rs`; both are held to the oracle.
//
// A bad index is never written and never trapped: its sample stays as it was, and `report` counts it.
#pragma once

#include "abi.cuh"

static __device__ __forceinline__ i64 at(const void* list, u32 index, u32 is_i64) {
    return is_i64 ? __ldg((const i64*)list + index) : (i64)__ldg((const int*)list + index);
}

// Where a sample goes: `length` rows from `slot` on, which are none if it is left out.
struct Place {
    u32 slot, length;
    bool is_bad; // then what `Status` says of it:
    u32 first_sample;
    i64 first_value;
};

static __device__ __forceinline__ Place at_slot(u32 slot, u32 length) { return {slot, length, false, 0, 0}; }
static __device__ __forceinline__ Place left_out() { return {0, 0, false, 0, 0}; }
static __device__ __forceinline__ Place bad(u32 first_sample, i64 value) {
    return {0, 0, true, first_sample, value};
}

// That of a sample that brings `span` rows.
template <bool LISTS>
static __device__ __forceinline__ Place place(const Shape& shape, const Call& call, u32 sample, u32 span) {
    u32 length = span;
    if (LISTS && call.lengths) {
        i64 given = at(call.lengths, sample, call.flags & LENGTHS_I64);
        if (given < 0 || given > (i64)span) return bad(sample | LENGTH, given);
        length = (u32)given;
    }
    if (!call.starts) return at_slot(0, length);
    const i64 value = at(call.starts, sample, call.flags & STARTS_I64);
    const i64 capacity = shape.capacity;
    i64 start = value;
    if (call.flags & SKIP_NEGATIVE && value < 0) return left_out();
    if (call.flags & FROM_END) {
        if (value < (i64)span) return bad(sample, value);
        start = value - (i64)span;
    }
    if (call.flags & CIRCULAR) {
        // A division takes longer than all the rest: only those outside of the ring are divided.
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

// The rows that a sample of a packed update brings. The difference of running totals may be any number.
static __device__ __forceinline__ i64 span_of(const Call& call, u32 sample) {
    const u32 is_i64 = call.flags & SPANS_I64;
    if (!(call.flags & CUMULATIVE)) return at(call.spans, sample, is_i64);
    return (i64)((u64)at(call.spans, sample + 1, is_i64) - (u64)at(call.spans, sample, is_i64));
}

// A sample of a packed update, and which of all rows are its own.
struct Found {
    u32 sample, first, span;
    bool is_partition; // whether the lists tell all tokens apart; if not, nothing is written, and `Status` says:
    u32 first_sample;
    i64 first_value;
};

static __device__ __forceinline__ Found no_partition(u32 first_sample, i64 value) {
    return {0, 0, 0, false, first_sample, value};
}

// The sample of which `is_it(sample, first row, rows)` is true. All threads walk all samples: the loads are the same for a
// warp and do not wait for each other, and every thread sees whether the whole list is right, as the CPU does before it
// writes.
template <class F>
static __device__ __forceinline__ Found find(const Shape& shape, const Call& call, F&& is_it) {
    Found found = {0, 0, 0, true, 0, 0};
    if (call.flags & CUMULATIVE) {
        i64 first = at(call.spans, 0, call.flags & SPANS_I64);
        if (first != 0) return no_partition(SPAN, first);
    }
    i64 total = 0;
    for (u32 sample = 0; sample < shape.samples.count; ++sample) {
        i64 span = span_of(call, sample);
        if (span < (i64)call.least || span > (i64)call.most) return no_partition(sample | SPAN, span);
        if (is_it(sample, total, span)) {
            found.sample = sample;
            found.first = (u32)total;
            found.span = (u32)span;
        }
        total += span; // fewer than 2^32 samples of fewer than 2^32 rows
    }
    if (total != (i64)shape.rows.count) return no_partition(shape.samples.count | SPAN, total);
    return found;
}

// That of a token.
static __device__ __forceinline__ Found find_token(const Shape& shape, const Call& call, u32 token) {
    return find(shape, call, [&](u32, i64 first, i64 span) {
        return first <= (i64)token && (i64)token - first < span;
    });
}

// That with a number; of a padded update, whose samples have rows of their own, all of these.
static __device__ __forceinline__ Found find_sample(const Shape& shape, const Call& call, u32 wanted) {
    if (!call.spans) return {wanted, 0, shape.rows.count, true, 0, 0};
    return find(shape, call, [&](u32 sample, i64, i64) { return sample == wanted; });
}

// ---- Bad indices. ----

// A sample of a padded update, or of a packed one whose lists are right.
static __device__ __forceinline__ Place place_of(const Shape& shape, const Call& call, u32 sample) {
    return place<true>(shape, call, sample, call.spans ? (u32)span_of(call, sample) : shape.rows.count);
}

static __device__ __forceinline__ bool any_bad(const Shape& shape, const Call& call) {
    for (u32 sample = 0; sample < shape.samples.count; ++sample)
        if (place_of(shape, call, sample).is_bad) return true;
    return false;
}

static __device__ __forceinline__ void record(Status* status, u32 count, u32 first_sample, i64 value) {
    // What an earlier launch has found stays.
    if (atomicAdd(&status->bad_samples, count) == 0) {
        status->first_sample = first_sample;
        status->first_value = value;
    }
}

// What one block of a launch does last, so that no row waits for it. Each of its threads looks at some samples; the one
// that finds the first bad one counts the others too, so that one thread writes, and only if something is wrong.
static __device__ __forceinline__ void report(const Shape& shape, const Call& call) {
    if (!call.status || blockIdx.x || blockIdx.y) return;
    const u32 thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    const u32 samples = shape.samples.count;
    if (call.layer && (u32)*call.layer >= shape.layers) {
        if (thread == 0) record(call.status, samples ? samples : 1, LAYER, *call.layer);
        return;
    }
    if (call.spans) {
        Found found = find_token(shape, call, 0);
        if (!found.is_partition) {
            if (thread == 0) record(call.status, samples ? samples : 1, found.first_sample, found.first_value);
            return;
        }
    }
    for (u32 sample = thread; sample < samples; sample += threads) {
        const Place first = place_of(shape, call, sample);
        if (!first.is_bad) continue;
        for (u32 before = 0; before < sample; ++before)
            if (place_of(shape, call, before).is_bad) return;
        u32 count = 1;
        for (u32 after = sample + 1; after < samples; ++after) count += place_of(shape, call, after).is_bad;
        record(call.status, count, first.first_sample, first.first_value);
        return;
    }
}
