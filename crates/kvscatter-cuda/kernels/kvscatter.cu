// Writes new rows into KV caches on a GPU: in place, or into a new tensor.
//
// Compiled ahead for devices (`cargo xtask cuda-images`), and as C++ for tests (`shim.h`). `abi.cuh` declares the values
// that the host passes, `rule.cuh` maps indices to slots, and `walk.cuh` gives each thread its runs.

#include "walk.cuh"

// ---- The write in place. ----

// An offset for runs that are not written. No tensor reaches it.
static constexpr i64 NOT_WRITTEN = (i64)(1ull << 63);

// blockIdx.y is the job. threadIdx.x counts vectors of a run and threadIdx.y counts runs. A thread takes `per_thread`
// runs, whose loads are in flight before the first index arrives, since their addresses do not depend on it.
template <bool LISTS, class V, class T>
static __device__ __forceinline__ void write(const T& table, const WriteShape& shape, const Call& call) {
    V* const cache = (V*)table.jobs[blockIdx.y].cache;
    const V* const update = (const V*)table.jobs[blockIdx.y].update;
    const u32 runs = runs_of(shape.others, LISTS && call.row_counts ? 1 : shape.samples.count, shape.rows.count);
    for (u32 lane = threadIdx.x; lane < shape.run; lane += blockDim.x) {
        V loaded[MAX_VECTORS_PER_THREAD];
        Run mine[MAX_VECTORS_PER_THREAD];
        i64 to[MAX_VECTORS_PER_THREAD];
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32 number) {
            const Run run = mine[k] = run_at(shape.others, shape.rows, number);
            loaded[k] = update[source(shape, run) + lane];
        });
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32) {
            const Slot slot = slot_of<LISTS>(shape, call, mine[k]);
            to[k] = target(shape, mine[k], slot) + lane;
            if (!slot.is_written) to[k] = NOT_WRITTEN;
        });
        each_of_mine(shape.per_thread, runs, [&](u32 k, u32) {
            if (to[k] != NOT_WRITTEN) cache[to[k]] = loaded[k];
        });
    }
    report(shape, call);
}

// How many blocks of a kernel ptxas lets run on a multiprocessor. Without a number it moves registers to memory so that a
// few more fit.
static constexpr u32 BLOCKS = 2;
#define KVSCATTER_KERNEL extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)

#define WRITE(NAME, V, N, LISTS)                                                                                      \
    KVSCATTER_KERNEL                                                                                                  \
        NAME(const __grid_constant__ Table<Job, N> table, const __grid_constant__ WriteShape shape,                   \
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

// A thread writes all elements of one word. Rows of one launch may share a word. It is then exchanged whole, with the
// elements that other threads have written. The host has checked that the cache begins and ends on a word.
KVSCATTER_KERNEL kvscatter_write_nibbles(const __grid_constant__ Table<Job, JOBS> table,
                                         const __grid_constant__ WriteShape shape, const __grid_constant__ Call call) {
    u32* const cache = (u32*)table.jobs[blockIdx.y].cache;
    const u8* const update = (const u8*)table.jobs[blockIdx.y].update;
    const u32 runs = runs_of(shape.others, call.row_counts ? 1 : shape.samples.count, shape.rows.count);
    in_turn(shape.per_thread, runs, [&](u32 number) {
        const Run run = run_at(shape.others, shape.rows, number);
        const Slot slot = slot_of<true>(shape, call, run);
        if (!slot.is_written) return;
        const i64 src = shape.src_begin + source(shape, run), begin = shape.dst_begin + target(shape, run, slot);
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
    report(shape, call);
}

// ---- The functional form: a present from a past and an update, in one pass. ----



// Where a launch writes the update: into one layer, or nowhere.
struct Written {
    u32 layer;
    bool is_any;
};

static __device__ __forceinline__ Written written_of(const PresentShape& shape, const Call& call) {
    return {call.layer ? (u32)__ldg(call.layer) : 0, !(call.flags & SKIP_ALL && any_bad(shape.update, call))};
}

static __device__ __forceinline__ u32 runs_of(const PresentShape& shape) {
    u32 runs = shape.layers.count * shape.samples.count * shape.slots.count;
    for (const PresentLoop& other : shape.others) runs *= other.count;
    return runs;
}

// Where a run of the present is written, and where it is copied from.
struct Origin {
    i64 dst_offset, src_offset;
    bool is_new; // from the update
};

// The run with the number `rest` among those of its slot: (layer, sample, others...), the last fastest.
static __device__ __forceinline__ Origin origin(const PresentShape& shape, const Call& call, const Written& written,
                                                u32 slot, u32 rest) {
    const WriteShape& update = shape.update;
    i64 dst = (i64)slot * shape.slots.dst_stride, past = (i64)slot * shape.slots.src_stride, from_update = 0;
KVSCATTER_UNROLL
    for (int k = OTHER_LOOPS - 1; k >= 0; --k) {
        const u32 next = divided(rest, shape.others[k]), index = rest - next * shape.others[k].count;
        dst += (i64)index * shape.others[k].dst_stride;
        past += (i64)index * shape.others[k].past_stride;
        from_update += (i64)index * shape.others[k].update_stride;
        rest = next;
    }
    const u32 layer = divided(rest, shape.samples), sample = rest - layer * shape.samples.count;
    dst += (i64)sample * shape.samples.dst_stride + (i64)layer * shape.layers.dst_stride;
    past += (i64)sample * shape.samples.src_stride + (i64)layer * shape.layers.src_stride;
    if (written.is_any && sample < update.samples.count && layer == written.layer) {
        const SampleRows part = find_sample(update, call, sample);
        const SlotRange where = part.is_partition ? slot_range<true>(update, call, sample, part.row_count) : left_out();
        // Rows of a sample that is no longer than the ring, counted from its first slot.
        const u32 row = slot < where.slot ? slot + update.capacity - where.slot : slot - where.slot;
        if (row < where.length) {
            from_update += (call.row_counts ? 0 : (i64)sample * update.samples.src_stride) +
                           (i64)(part.first_row + row) * update.rows.src_stride;
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
        const u32 rest = divided(number, shape.slots);
        const Origin run = origin(shape, call, written, number - rest * shape.slots.count, rest);
        const V* from = (const V*)(run.is_new ? job.update : job.past) + run.src_offset;
        V* const to = (V*)job.present + run.dst_offset;
        for (u32 lane = threadIdx.x; lane < shape.update.run; lane += blockDim.x) to[lane] = from[lane];
    });
    report(shape.update, call);
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

// `count` 4-bit elements of a present from `first` on, at most a word, gathered from the runs that have them.
static __device__ __forceinline__ u32 word_of(const PresentJob& job, const PresentShape& shape, const Call& call,
                                               const Written& written, u64 first, u32 count) {
    const u32 length = shape.update.run;
    u32 word = 0;
    for (u32 done = 0; done < count;) {
        const u64 element = first + done;
        const u64 run = length == 1 ? element : __umul64hi(element, shape.run_magic) >> (31 - __clz(length - 1));
        const u32 offset = (u32)(element - run * length);
        const u32 part = length - offset < count - done ? length - offset : count - done;
        // A dense tensor's runs lie in the order (outer, slot, within).
        const u32 outer_and_slot = divided((u32)run, shape.within), outer = divided(outer_and_slot, shape.slots);
        const u32 rest = outer * shape.within.count + ((u32)run - outer_and_slot * shape.within.count);
        const Origin from = origin(shape, call, written, outer_and_slot - outer * shape.slots.count, rest);
        const i64 begin = (from.is_new ? shape.update.src_begin : shape.past_begin) + from.src_offset + offset;
        word |= nibbles((const u8*)(from.is_new ? job.update : job.past), begin, part) << (4 * done);
        done += part;
    }
    return word;
}

// Threads take words of the present here, and not its runs: one thread writes all of a word, from all runs that share it,
// so no two threads write the same byte. One thread writes the bytes before the first whole word, and one the bytes after
// the last. The unused half of the last byte is 0, as on the CPU.
KVSCATTER_KERNEL kvscatter_present_nibbles(const __grid_constant__ Table<PresentJob, PRESENT_JOBS> table,
                                           const __grid_constant__ PresentShape shape,
                                           const __grid_constant__ Call call) {
    const PresentJob& job = table.jobs[blockIdx.y];
    u8* const present = (u8*)job.present;
    const Written written = written_of(shape, call);
    const u64 elements = (u64)runs_of(shape) * shape.update.run;
    const u32 before = 2 * (u32)(-(u64)present & 3);
    // The maximum of words, partial ones included.
    const u32 lines = (u32)((elements / WORD + 2 + LINE - 1) / LINE);
    in_turn(shape.update.per_thread, lines, [&](u32 line) {
        for (u32 lane = threadIdx.x; lane < LINE; lane += blockDim.x) {
            const u64 word = (u64)line * LINE + lane;
            const u64 first = word ? before + WORD * (word - 1) : 0;
            u64 end = before + WORD * word;
            if (end > elements) end = elements;
            if (first >= end) continue;
            const u32 count = (u32)(end - first);
            const u32 value = word_of(job, shape, call, written, first, count);
            u8* const to = present + first / 2;
            if (count == WORD) {
                *(u32*)to = value;
                continue;
            }
            for (u32 byte = 0; 2 * byte < count; ++byte) to[byte] = (u8)(value >> (8 * byte));
        }
    });
    report(shape.update, call);
}
