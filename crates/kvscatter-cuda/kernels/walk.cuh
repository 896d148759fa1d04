// Which runs of the tensors a thread moves, and where they lie.
#pragma once

#include "rule.cuh"

// A run of a tensor: its number is (sample, around..., row), the last fastest.
struct Run {
    u32 sample, row;
    i64 dst, src; // of the dimensions around, and of nothing else
};

// `number / by.count`, for numbers below 2^31.
template <class L>
static __device__ __forceinline__ u32 over(u32 number, const L& by) {
    return by.count == 1 ? number : __umulhi(number, by.magic) >> (31 - __clz(by.count - 1));
}

static __device__ __forceinline__ Run run_at(const Loop (&around)[AROUND], const Loop& rows, u32 number) {
    u32 rest = over(number, rows);
    Run run = {0, number - rest * rows.count, 0, 0};
KVSCATTER_UNROLL
    for (int k = AROUND - 1; k >= 0; --k) {
        const u32 next = over(rest, around[k]), index = rest - next * around[k].count;
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

// The slot of a row of the update; false where it is not written. `LISTS` is whether there is anything but starts.
template <bool LISTS>
static __device__ __forceinline__ bool slot_of(const Shape& shape, const Call& call, Run& run, u32& slot, i64& layer) {
    u32 span = shape.rows.count;
    layer = 0;
    slot = 0;
    if (LISTS) {
        if (call.layer) {
            const u32 index = (u32)__ldg(call.layer);
            if (index >= shape.layers) return false;
            layer = (i64)index * shape.layer;
        }
        if (call.spans) {
            const Found found = find(shape, call, run.row);
            if (!found.is_partition) return false;
            run.sample = found.sample;
            run.row = found.row;
            span = found.span;
        }
        if (call.flags & SKIP_ALL && any_bad(shape, call)) return false;
    }
    const Place where = place<LISTS>(shape, call, run.sample, span);
    if (!where.is_written || (LISTS && run.row >= where.length)) return false;
    slot = where.slot + run.row;
    // A sample is no longer than the ring, so that it goes round once at most.
    if (slot >= shape.capacity) slot -= shape.capacity;
    return true;
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
