// Writes new rows into KV caches on a GPU: in place, or into a new tensor.
//
// Compiled ahead for devices (`cargo xtask cuda-images`), and as C++ for tests (`shim.h`). The host has checked every
// shape (G1, G2 of `Geometry`); what the indices say it cannot know, since they are on the device. So this file holds
// the second copy of the rule which slot a start means. The first is `SlotRule` in the core's `call.rs`; both are held
// to the oracle.
//
// A bad index is never written and never trapped: its sample stays as it was, and `report` counts it.

#ifdef KVSCATTER_SHIM
#include "shim.h"
#define KVSCATTER_UNROLL
#define KVSCATTER_ROLL
#else
#define KVSCATTER_UNROLL _Pragma("unroll")
#define KVSCATTER_ROLL _Pragma("unroll 1")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(8) V8 { u32 x, y; };
struct alignas(16) V16 { u32 x, y, z, w; };

// ---- What the host passes by value. `abi.rs` has the same structs, and a test of its holds the numbers to these. ----

static constexpr int JOBS = 128;        // of one launch in place
static constexpr int FEW_JOBS = 2;      // of the smallest kernels: keys and values
static constexpr int PRESENT_JOBS = 64; // of one launch in functional form
static constexpr int AROUND = 4;        // loops beside samples and rows
static constexpr u32 MOST_PER_THREAD = 4;
static constexpr u32 THREADS = 256; // of a block, at most
static constexpr u32 WORD = 8;      // 4-bit elements of a word
static constexpr u32 LINE = 32;     // words of a present of 4-bit elements that the threads of a warp make

// One cache and its update; the functional form also has the cache that is kept.
struct Job {
    void* cache;
    const void* update;
};
struct PresentJob {
    void* present;
    const void* past;
    const void* update;
};
template <class J, int N>
struct Table {
    J jobs[N];
};

// Steps on either side, in units of the kernel: vectors of its width, or 4-bit elements. `magic` divides by `count`:
// 2^(31 + bits) / count, rounded up, where 2^bits is the least power that is not below `count`.
struct Loop {
    i64 dst, src;
    u32 count, magic;
};

struct Shape {
    Loop samples;   // as many as the lists have
    Loop rows;      // those of one sample of a padded update, or all tokens of a packed one
    Loop around[AROUND]; // every other dimension that does not lie within a run
    i64 layer;      // from one layer of the cache to the next
    u32 run;        // units that lie together on both sides
    u32 capacity, layers, per_thread;
    // 4-bit elements from a job's addresses to its first elements: less than a word of the cache, less than a byte of the
    // update.
    u32 dst_begin, src_begin;
};

enum : u32 {
    STARTS_I64 = 1 << 0,
    LENGTHS_I64 = 1 << 1,
    SPANS_I64 = 1 << 2,
    CUMULATIVE = 1 << 3,      // spans are running totals from 0, one more than samples; otherwise a number for each
    FROM_END = 1 << 4,        // starts are lengths after the write, padding included: Ascend's tokenOffset
    CIRCULAR = 1 << 5,
    REJECT_NEGATIVE = 1 << 6, // in a ring
    SKIP_NEGATIVE = 1 << 7,   // a negative start leaves its sample out without being bad: slot mappings
    SKIP_ALL = 1 << 8,        // a launch with any bad index writes nothing
};

struct Status {
    u32 bad_samples;
    u32 first_sample;
    i64 first_value;
};

// Absent lists are null: slot 0, all rows, a padded update, layer 0, no report.
struct Call {
    const void* starts;
    const void* lengths;
    const void* spans;
    const int* layer;
    Status* status;
    u32 flags;
    u32 least, most; // rows that a sample of a packed update may bring
};

static_assert(sizeof(Table<Job, 1>) == 16 && sizeof(Table<PresentJob, 1>) == 24);
static_assert(sizeof(Loop) == 24 && sizeof(Shape) == 176 && sizeof(Call) == 56 && sizeof(Status) == 16);

// ---- Which slots of which sample: the rule. ----

static __device__ __forceinline__ i64 at(const void* list, u32 index, u32 is_i64) {
    return is_i64 ? __ldg((const i64*)list + index) : (i64)__ldg((const int*)list + index);
}

// What `Status::first_sample` says beside the number of a sample, of which there are fewer than 2^30 - 1: bad is not its
// start, but its length, or what the list of a packed update says of it. The number behind the last sample is the total.
enum : u32 { LENGTH = 1u << 31, SPAN = 3u << 30, LAYER = 0xFFFFFFFF };

struct Place {
    u32 slot, length;
    bool is_written;
    bool is_bad;
    u32 what;
    i64 value;
};

static __device__ __forceinline__ Place bad(u32 what, i64 value) { return {0, 0, false, true, what, value}; }

// Where a sample goes that brings `span` rows.
template <bool LISTS>
static __device__ __forceinline__ Place place(const Shape& shape, const Call& call, u32 sample, u32 span) {
    u32 length = span;
    if (LISTS && call.lengths) {
        i64 given = at(call.lengths, sample, call.flags & LENGTHS_I64);
        if (given < 0 || given > (i64)span) return bad(sample | LENGTH, given);
        length = (u32)given;
    }
    if (!call.starts) return {0, length, length > 0, false, 0, 0};
    const i64 value = at(call.starts, sample, call.flags & STARTS_I64);
    const i64 capacity = shape.capacity;
    i64 start = value;
    if (call.flags & SKIP_NEGATIVE && value < 0) return {0, 0, false, false, 0, 0};
    if (call.flags & FROM_END) {
        if (value < (i64)span) return bad(sample, value);
        start = value - (i64)span;
    }
    if (call.flags & CIRCULAR) {
        if ((u64)start >= (u64)capacity) {
            if (start < 0 && call.flags & REJECT_NEGATIVE) return bad(sample, value);
            // Reduced first, so that nothing overflows. A ring without slots has only slot 0.
            start = capacity ? start % capacity : 0;
            if (start < 0) start += capacity;
        }
    } else if (start < 0 || start > capacity - (i64)length) {
        return bad(sample, value);
    }
    return {(u32)start, length, length > 0, false, 0, 0};
}

// The rows that a sample of a packed update brings. The difference of running totals may be any number.
static __device__ __forceinline__ i64 span_of(const Call& call, u32 sample) {
    const u32 is_i64 = call.flags & SPANS_I64;
    if (!(call.flags & CUMULATIVE)) return at(call.spans, sample, is_i64);
    return (i64)((u64)at(call.spans, sample + 1, is_i64) - (u64)at(call.spans, sample, is_i64));
}

// Which sample a token of a packed update belongs to, and which row of it the token is.
struct Found {
    u32 sample, row, span;
    bool is_partition; // whether the lists tell all tokens apart; if not, nothing is written
    u32 what;
    i64 value;
};

// All threads walk all samples: the loads are the same for a warp and do not wait for each other, and every thread
// sees whether the whole list is right, as the CPU does before it writes.
static __device__ __forceinline__ Found find(const Shape& shape, const Call& call, u32 token) {
    Found found = {0, 0, 0, true, 0, 0};
    if (call.flags & CUMULATIVE) {
        i64 first = at(call.spans, 0, call.flags & SPANS_I64);
        if (first != 0) return {0, 0, 0, false, SPAN, first};
    }
    i64 total = 0;
    for (u32 sample = 0; sample < shape.samples.count; ++sample) {
        i64 span = span_of(call, sample);
        if (span < (i64)call.least || span > (i64)call.most) return {0, 0, 0, false, sample | SPAN, span};
        if (total <= (i64)token && (i64)token - total < span) {
            found.sample = sample;
            found.row = token - (u32)total;
            found.span = (u32)span;
        }
        total += span; // fewer than 2^32 samples of fewer than 2^32 rows
    }
    if (total != (i64)shape.rows.count) return {0, 0, 0, false, shape.samples.count | SPAN, total};
    return found;
}

// The rows of one sample within the update, if the lists are right.
struct Part {
    u32 first, span;
    bool is_there;
};

static __device__ __forceinline__ Part part_of(const Shape& shape, const Call& call, u32 wanted) {
    if (!call.spans) return {0, shape.rows.count, true};
    if (!find(shape, call, 0).is_partition) return {0, 0, false};
    u32 first = 0;
    for (u32 sample = 0; sample < wanted; ++sample) first += (u32)span_of(call, sample);
    return {first, (u32)span_of(call, wanted), true};
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

static __device__ __forceinline__ void record(Status* status, u32 count, u32 what, i64 value) {
    // What an earlier launch has found stays.
    if (atomicAdd(&status->bad_samples, count) == 0) {
        status->first_sample = what;
        status->first_value = value;
    }
}

// Run by one block of a launch. Each of its threads looks at some samples; the one that finds the first bad one counts
// the others too, so that one thread writes, and only if something is wrong.
static __device__ __forceinline__ void report(const Shape& shape, const Call& call) {
    const u32 thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    const u32 samples = shape.samples.count;
    if (call.layer && (u32)*call.layer >= shape.layers) {
        if (thread == 0) record(call.status, samples ? samples : 1, LAYER, *call.layer);
        return;
    }
    if (call.spans) {
        Found found = find(shape, call, 0);
        if (!found.is_partition) {
            if (thread == 0) record(call.status, samples ? samples : 1, found.what, found.value);
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
        record(call.status, count, first.what, first.value);
        return;
    }
}

// ---- What all kernels walk. ----

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

// ---- The write in place. ----

// No tensor is as far from its first element.
static constexpr i64 NOWHERE = (i64)(1ull << 63);

// blockIdx.y is the job. threadIdx.x goes along a run, threadIdx.y over runs, `per_thread` of them for a thread: their
// loads are under way before the first index has arrived, since where they come from does not depend on it.
template <bool LISTS, class V, class T>
static __device__ __forceinline__ void write(const T& table, const Shape& shape, const Call& call) {
    V* const cache = (V*)table.jobs[blockIdx.y].cache;
    const V* const update = (const V*)table.jobs[blockIdx.y].update;
    const u32 runs = runs_of(shape.around, LISTS && call.spans ? 1 : shape.samples.count, shape.rows.count);
    for (u32 lane = threadIdx.x; lane < shape.run; lane += blockDim.x) {
        V loaded[MOST_PER_THREAD];
        Run mine[MOST_PER_THREAD];
        i64 to[MOST_PER_THREAD];
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32 number) {
            const Run run = mine[k] = run_at(shape.around, shape.rows, number);
            loaded[k] = update[run.src + (i64)run.sample * shape.samples.src + (i64)run.row * shape.rows.src + lane];
        });
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32) {
            Run run = mine[k];
            u32 slot;
            i64 layer;
            const bool is_written = slot_of<LISTS>(shape, call, run, slot, layer);
            to[k] = layer + run.dst + (i64)run.sample * shape.samples.dst + (i64)slot * shape.rows.dst + lane;
            if (!is_written) to[k] = NOWHERE;
        });
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32) {
            if (to[k] != NOWHERE) cache[to[k]] = loaded[k];
        });
    }
    // Last, so that no row waits for it.
    if (call.status && blockIdx.x == 0 && blockIdx.y == 0) report(shape, call);
}

// What every kernel promises, and asks of ptxas: that as many blocks of it run on a multiprocessor. With no number given,
// registers are moved to memory so that a few more fit.
static constexpr u32 BLOCKS = 2;
#define KVSCATTER_KERNEL extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)

#define WRITE(NAME, V, N, LISTS)                                                                                      \
    KVSCATTER_KERNEL                                                                                                  \
        NAME(const __grid_constant__ Table<Job, N> table, const __grid_constant__ Shape shape,                        \
             const __grid_constant__ Call call) {                                                                     \
        write<LISTS, V>(table, shape, call);                                                                          \
    }
WRITE(kvscatter_write_16, V16, FEW_JOBS, false)
WRITE(kvscatter_write_8, V8, FEW_JOBS, false)
WRITE(kvscatter_write_4, u32, FEW_JOBS, false)
WRITE(kvscatter_write_2, u16, FEW_JOBS, false)
WRITE(kvscatter_write_1, u8, FEW_JOBS, false)
WRITE(kvscatter_write_many_16, V16, JOBS, false)
WRITE(kvscatter_write_many_8, V8, JOBS, false)
WRITE(kvscatter_write_many_4, u32, JOBS, false)
WRITE(kvscatter_write_many_2, u16, JOBS, false)
WRITE(kvscatter_write_many_1, u8, JOBS, false)
WRITE(kvscatter_write_lists_16, V16, JOBS, true)
WRITE(kvscatter_write_lists_8, V8, JOBS, true)
WRITE(kvscatter_write_lists_4, u32, JOBS, true)
WRITE(kvscatter_write_lists_2, u16, JOBS, true)
WRITE(kvscatter_write_lists_1, u8, JOBS, true)

// ---- 4-bit elements that do not come in whole bytes. ----

// `count` elements from `first` on, the first in the lowest bits. Only bytes that hold some of them are read.
static __device__ __forceinline__ u32 nibbles(const u8* from, i64 first, u32 count) {
    const i64 byte = first >> 1;
    const u32 bytes = (u32)(((first + count + 1) >> 1) - byte);
    u64 bits = 0;
    for (u32 k = 0; k < bytes; ++k) bits |= (u64)from[byte + k] << (8 * k);
    return (u32)(bits >> (4 * (first & 1))) & (u32)((1ull << (4 * count)) - 1);
}

// A thread writes all elements of one word. Rows of one launch may meet in a word: it is then exchanged whole, with what
// others have put there. The host has seen that the cache begins with a word and ends with one.
KVSCATTER_KERNEL kvscatter_write_nibbles(const __grid_constant__ Table<Job, JOBS> table,
                                         const __grid_constant__ Shape shape, const __grid_constant__ Call call) {
    u32* const cache = (u32*)table.jobs[blockIdx.y].cache;
    const u8* const update = (const u8*)table.jobs[blockIdx.y].update;
    const u32 runs = runs_of(shape.around, call.spans ? 1 : shape.samples.count, shape.rows.count);
    in_turn(shape.per_thread, runs, [&](u32 number) {
        Run run = run_at(shape.around, shape.rows, number);
        const i64 src = shape.src_begin + run.src + (i64)run.sample * shape.samples.src + (i64)run.row * shape.rows.src;
        u32 slot;
        i64 layer;
        if (!slot_of<true>(shape, call, run, slot, layer)) return;
        const i64 begin = shape.dst_begin + layer + run.dst + (i64)run.sample * shape.samples.dst + (i64)slot * shape.rows.dst;
        const i64 end = begin + shape.run;
        for (i64 word = (begin >> 3) + threadIdx.x; word <= (end - 1) >> 3; word += blockDim.x) {
            const i64 first = word * WORD, next = first + WORD;
            const i64 from = begin > first ? begin : first, to = end < next ? end : next;
            const u32 count = (u32)(to - from), shift = 4 * (u32)(from - first);
            const u32 value = nibbles(update, src + (from - begin), count) << shift;
            if (count == WORD) {
                cache[word] = value;
                continue;
            }
            const u32 mask = ((1u << (4 * count)) - 1) << shift;
            u32 seen = cache[word], old;
            do {
                old = seen;
                seen = atomicCAS(&cache[word], old, (old & ~mask) | value);
            } while (seen != old);
        }
    });
    if (call.status && blockIdx.x == 0 && blockIdx.y == 0) report(shape, call);
}

// ---- The functional form: a present from a past and an update, in one pass. ----

// Steps of all three tensors.
struct PresentLoop {
    i64 dst, past, update;
    u32 count, magic;
};

struct PresentShape {
    Shape update; // `around` is not used: it may be split in another way
    PresentLoop around[AROUND];
    Loop slots;   // count: the capacity; src: of the past
    Loop samples; // those of the cache, which may have more
    Loop layers;
    // Of 4-bit elements that straddle bytes alone: what divides their numbers by `update.run`, as `Loop::magic` but with
    // 2^(63 + bits); the runs of one slot that lie one behind the other; where the past begins, as `src_begin`.
    u64 run_magic;
    u32 within, within_magic;
    u32 past_begin, unused;
};

static_assert(sizeof(PresentLoop) == 32 && sizeof(PresentShape) == 400);

// What a launch writes beside the past: one layer, or nothing.
struct Written {
    u32 layer;
    bool is_any;
};

static __device__ __forceinline__ Written written_of(const PresentShape& shape, const Call& call) {
    return {call.layer ? (u32)__ldg(call.layer) : 0, !(call.flags & SKIP_ALL && any_bad(shape.update, call))};
}

static __device__ __forceinline__ u32 runs_of(const PresentShape& shape) {
    u32 runs = shape.layers.count * shape.samples.count * shape.slots.count;
    for (const PresentLoop& around : shape.around) runs *= around.count;
    return runs;
}

// Where a run of the present goes, and where it comes from.
struct Origin {
    i64 dst, src;
    bool is_new; // from the update
};

// The run of a slot that has the number `rest` among those of its slot: (layer, sample, around...), the last fastest.
static __device__ __forceinline__ Origin origin(const PresentShape& shape, const Call& call, const Written& written,
                                                u32 slot, u32 rest) {
    const Shape& update = shape.update;
    i64 dst = (i64)slot * shape.slots.dst, past = (i64)slot * shape.slots.src, from_update = 0;
KVSCATTER_UNROLL
    for (int k = AROUND - 1; k >= 0; --k) {
        const u32 next = over(rest, shape.around[k]), index = rest - next * shape.around[k].count;
        dst += (i64)index * shape.around[k].dst;
        past += (i64)index * shape.around[k].past;
        from_update += (i64)index * shape.around[k].update;
        rest = next;
    }
    const u32 layer = over(rest, shape.samples), sample = rest - layer * shape.samples.count;
    dst += (i64)sample * shape.samples.dst + (i64)layer * shape.layers.dst;
    past += (i64)sample * shape.samples.src + (i64)layer * shape.layers.src;
    if (written.is_any && sample < update.samples.count && layer == written.layer) {
        const Part part = part_of(update, call, sample);
        const Place where =
            part.is_there ? place<true>(update, call, sample, part.span) : Place{0, 0, false, false, 0, 0};
        // Rows of a sample that is no longer than the ring, counted from its first slot.
        const u32 row = slot < where.slot ? slot + update.capacity - where.slot : slot - where.slot;
        if (where.is_written && row < where.length) {
            from_update += (call.spans ? 0 : (i64)sample * update.samples.src) + (i64)(part.first + row) * update.rows.src;
            return {dst, from_update, true};
        }
    }
    return {dst, past, false};
}

template <class V>
static __device__ __forceinline__ void present(const Table<PresentJob, PRESENT_JOBS>& table, const PresentShape& shape,
                                               const Call& call) {
    const PresentJob& job = table.jobs[blockIdx.y];
    const Written written = written_of(shape, call);
    in_turn(shape.update.per_thread, runs_of(shape), [&](u32 number) {
        const u32 rest = over(number, shape.slots);
        const Origin run = origin(shape, call, written, number - rest * shape.slots.count, rest);
        const V* from = (const V*)(run.is_new ? job.update : job.past) + run.src;
        V* const to = (V*)job.present + run.dst;
        for (u32 lane = threadIdx.x; lane < shape.update.run; lane += blockDim.x) to[lane] = from[lane];
    });
    if (call.status && blockIdx.x == 0 && blockIdx.y == 0) report(shape.update, call);
}

#define PRESENT(NAME, V)                                                                                              \
    KVSCATTER_KERNEL                                                                                                  \
        NAME(const __grid_constant__ Table<PresentJob, PRESENT_JOBS> table,                                           \
             const __grid_constant__ PresentShape shape, const __grid_constant__ Call call) {                         \
        present<V>(table, shape, call);                                                                               \
    }
PRESENT(kvscatter_present_16, V16)
PRESENT(kvscatter_present_8, V8)
PRESENT(kvscatter_present_4, u32)
PRESENT(kvscatter_present_2, u16)
PRESENT(kvscatter_present_1, u8)

// ---- The same of 4-bit elements that do not come in whole bytes. ----

// So many 4-bit elements of a present from `first` on, a word at most, out of every run that has some of them.
static __device__ __forceinline__ u32 gathered(const PresentJob& job, const PresentShape& shape, const Call& call,
                                               const Written& written, u64 first, u32 count) {
    const u32 length = shape.update.run;
    u32 word = 0;
    for (u32 done = 0; done < count;) {
        const u64 element = first + done;
        const u64 run = length == 1 ? element : __umul64hi(element, shape.run_magic) >> (31 - __clz(length - 1));
        const u32 offset = (u32)(element - run * length);
        const u32 part = length - offset < count - done ? length - offset : count - done;
        // A dense tensor's runs lie in the order (outer, slot, within).
        const Loop within = {0, 0, shape.within, shape.within_magic};
        const u32 outer_and_slot = over((u32)run, within), outer = over(outer_and_slot, shape.slots);
        const u32 rest = outer * within.count + ((u32)run - outer_and_slot * within.count);
        const Origin from = origin(shape, call, written, outer_and_slot - outer * shape.slots.count, rest);
        const i64 begin = (from.is_new ? shape.update.src_begin : shape.past_begin) + from.src + offset;
        word |= nibbles((const u8*)(from.is_new ? job.update : job.past), begin, part) << (4 * done);
        done += part;
    }
    return word;
}

// Words of the present are shared out here, and not its runs: a thread makes all of a word, whatever runs meet in it, so
// that no two share a byte. The bytes before the first whole word and those behind the last are one thread's each. What
// is left of the last byte is 0, as on the CPU.
KVSCATTER_KERNEL kvscatter_present_nibbles(const __grid_constant__ Table<PresentJob, PRESENT_JOBS> table,
                                           const __grid_constant__ PresentShape shape,
                                           const __grid_constant__ Call call) {
    const PresentJob& job = table.jobs[blockIdx.y];
    u8* const present = (u8*)job.present;
    const Written written = written_of(shape, call);
    const u64 elements = (u64)runs_of(shape) * shape.update.run;
    const u32 before = 2 * (u32)(-(u64)present & 3);
    // As many words as there may be, with those that are not whole.
    const u32 lines = (u32)((elements / WORD + 2 + LINE - 1) / LINE);
    in_turn(shape.update.per_thread, lines, [&](u32 line) {
        for (u32 lane = threadIdx.x; lane < LINE; lane += blockDim.x) {
            const u64 word = (u64)line * LINE + lane;
            const u64 first = word ? before + WORD * (word - 1) : 0;
            u64 end = before + WORD * word;
            if (end > elements) end = elements;
            if (first >= end) continue;
            const u32 count = (u32)(end - first);
            const u32 value = gathered(job, shape, call, written, first, count);
            u8* const to = present + first / 2;
            if (count == WORD) {
                *(u32*)to = value;
                continue;
            }
            for (u32 byte = 0; 2 * byte < count; ++byte) to[byte] = (u8)(value >> (8 * byte));
        }
    });
    if (call.status && blockIdx.x == 0 && blockIdx.y == 0) report(shape.update, call);
}
