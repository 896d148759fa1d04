// Which runs of the tensors a thread moves, and where they lie.
#pragma once

#include "rule.cuh"

// A run of a tensor: its number is (sample, around..., row), the last fastest.
struct Run {
    u32 sample, row;
    i64 dst, src; // of the dimensions around, and of nothing else
};

// `number / by.count`, for numbers below 2^31. `by` is a `Divisor`, or a loop that has one.
template <class D>
static __device__ __forceinline__ u32 divided(u32 number, const D& by) {
    return by.count == 1 ? number : __umulhi(number, by.magic) >> (31 - __clz(by.count - 1));
}

static __device__ __forceinline__ Run run_at(const Loop (&around)[AROUND], const Loop& rows, u32 number) {
    u32 rest = divided(number, rows);
    Run run = {0, number - rest * rows.count, 0, 0};
KVSCATTER_UNROLL
    for (int k = AROUND - 1; k >= 0; --k) {
        const u32 next = divided(rest, around[k]), index = rest - next * around[k].count;
        run.dst += (i64)index * around[k].dst;
        run.src += (i64)index * around[k].src;
        rest = next;
    }
    run.sample = rest;
    return run;
}

static __device__ __forceinline__ u32 runs_of(const Loop (&around)[AROUND], u32 samples, u32 rows) {
    return samples * around[0].count * around[1].count * around[2].count * around[3].count * rows;
}

// Where a run of the update begins.
static __device__ __forceinline__ i64 source(const Shape& shape, const Run& run) {
    return run.src + (i64)run.sample * shape.samples.src + (i64)run.row * shape.rows.src;
}

// The slot of a run of the update, if it is written: in which sample, and how far from the first layer.
struct Slot {
    u32 sample, slot;
    i64 layer;
    bool is_written;
};

// `LISTS` is whether there is anything but starts.
template <bool LISTS>
static __device__ __forceinline__ Slot slot_of(const Shape& shape, const Call& call, const Run& run) {
    Slot to = {run.sample, 0, 0, false};
    u32 row = run.row, span = shape.rows.count;
    if (LISTS) {
        if (call.layer) {
            const u32 index = (u32)__ldg(call.layer);
            if (index >= shape.layers) return to;
            to.layer = (i64)index * shape.layer;
        }
        if (call.spans) {
            const Found found = find_token(shape, call, row);
            if (!found.is_partition) return to;
            to.sample = found.sample;
            row -= found.first;
            span = found.span;
        }
        if (call.flags & SKIP_ALL && any_bad(shape, call)) return to;
    }
    const Place where = place<LISTS>(shape, call, to.sample, span);
    // Without lists all rows of a sample are written, or none.
    if (!where.length || (LISTS && row >= where.length)) return to;
    to.slot = where.slot + row;
    // A sample is no longer than the ring, so that it goes round once at most.
    if (to.slot >= shape.capacity) to.slot -= shape.capacity;
    to.is_written = true;
    return to;
}

// Where a run of the cache begins that has this slot.
static __device__ __forceinline__ i64 target(const Shape& shape, const Run& run, const Slot& slot) {
    return slot.layer + run.dst + (i64)slot.sample * shape.samples.dst + (i64)slot.slot * shape.rows.dst;
}

// Unrolled, for those that load ahead; `in_turn` is the same, short.
template <class F>
static __device__ __forceinline__ void each_of_mine(u32 per_thread, u32 count, F&& f) {
KVSCATTER_UNROLL
    for (u32 k = 0; k < MOST_PER_THREAD; ++k) {
        const u32 number = (blockIdx.x * per_thread + k) * blockDim.y + threadIdx.y;
        if (k < per_thread && number < count) f(k, number);
    }
}

template <class F>
static __device__ __forceinline__ void in_turn(u32 per_thread, u32 count, F&& f) {
KVSCATTER_ROLL
    for (u32 k = 0; k < per_thread; ++k) {
        const u32 number = (blockIdx.x * per_thread + k) * blockDim.y + threadIdx.y;
        if (number < count) f(number);
    }
}
