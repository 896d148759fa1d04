// Which runs of the tensors a thread moves, and their offsets.
#pragma once

#include "rule.cuh"

// A run of a tensor: its number is (sample, others..., row), the last fastest.
struct Run {
    u32 sample, row;
    i64 dst_offset, src_offset; // of the other dimensions alone
};

// `number / by.count`, for numbers below 2^31. `by` is a `Divisor`, or a loop that has one.
template <class D>
static __device__ __forceinline__ u32 divided(u32 number, const D& by) {
    return by.count == 1 ? number : __umulhi(number, by.magic) >> (31 - __clz(by.count - 1));
}

static __device__ __forceinline__ Run run_at(const Loop (&others)[OTHER_LOOPS], const Loop& rows, u32 number) {
    u32 rest = divided(number, rows);
    Run run = {0, number - rest * rows.count, 0, 0};
KVSCATTER_UNROLL
    for (int k = OTHER_LOOPS - 1; k >= 0; --k) {
        const u32 next = divided(rest, others[k]), index = rest - next * others[k].count;
        run.dst_offset += (i64)index * others[k].dst_stride;
        run.src_offset += (i64)index * others[k].src_stride;
        rest = next;
    }
    run.sample = rest;
    return run;
}

static __device__ __forceinline__ u32 runs_of(const Loop (&others)[OTHER_LOOPS], u32 samples, u32 rows) {
    return samples * others[0].count * others[1].count * others[2].count * others[3].count * rows;
}

// Where a run of the update begins.
static __device__ __forceinline__ i64 source(const WriteShape& shape, const Run& run) {
    return run.src_offset + (i64)run.sample * shape.samples.src_stride + (i64)run.row * shape.rows.src_stride;
}

// The slot of a run of the update, if it is written: in which sample, and how far from the first layer.
struct Slot {
    u32 sample, slot;
    i64 layer_offset;
    bool is_written;
};

// `LISTS` is whether there are lists other than positions.
template <bool LISTS>
static __device__ __forceinline__ Slot slot_of(const WriteShape& shape, const Call& call, const Run& run) {
    Slot to = {run.sample, 0, 0, false};
    u32 row = run.row, row_count = shape.rows.count;
    if (LISTS) {
        if (call.layer) {
            const u32 index = (u32)__ldg(call.layer);
            if (index >= shape.layers) return to;
            to.layer_offset = (i64)index * shape.layer_stride;
        }
        if (call.row_counts) {
            const SampleRows found = find_token(shape, call, row);
            if (!found.is_partition) return to;
            to.sample = found.sample;
            row -= found.first_row;
            row_count = found.row_count;
        }
        if (call.flags & SKIP_ALL && any_bad(shape, call)) return to;
    }
    const SlotRange where = slot_range<LISTS>(shape, call, to.sample, row_count);
    // Without lists all rows of a sample are written, or none.
    if (!where.length || (LISTS && row >= where.length)) return to;
    to.slot = where.slot + row;
    // A sample is no longer than the ring, so it wraps once at most.
    if (to.slot >= shape.capacity) to.slot -= shape.capacity;
    to.is_written = true;
    return to;
}

// Where a run of the cache begins that has this slot.
static __device__ __forceinline__ i64 target(const WriteShape& shape, const Run& run, const Slot& slot) {
    return slot.layer_offset + run.dst_offset + (i64)slot.sample * shape.samples.dst_stride +
           (i64)slot.slot * shape.rows.dst_stride;
}

// Unrolled, for kernels that load ahead. `in_turn` is the same without unrolling.
template <class F>
static __device__ __forceinline__ void each_of_mine(u32 per_thread, u32 count, F&& f) {
KVSCATTER_UNROLL
    for (u32 k = 0; k < MAX_VECTORS_PER_THREAD; ++k) {
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
