// The values that the host passes to a kernel. `abi.rs` has the same structs, and its test reads the numbers here.
#pragma once

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

static constexpr int JOBS = 128;        // of one launch in place
static constexpr int FEW_JOBS = 2;      // of the kernels with a short table: keys and values
static constexpr int PRESENT_JOBS = 64; // of one launch in functional form
static constexpr int OTHER_LOOPS = 4;   // loops besides samples and rows
static constexpr u32 MAX_VECTORS_PER_THREAD = 4;
static constexpr u32 THREADS = 256; // the maximum in a block
static constexpr u32 WORD = 8;      // 4-bit elements in a word
static constexpr u32 LINE = 32;     // words of a present of 4-bit elements that one warp writes

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

// A count and the number that divides by it: 2^(31 + bits) / count, rounded up, where 2^bits is the smallest power of two
// that is not below `count`.
struct Divisor {
    u32 count, magic;
};

// Strides of the cache and of the update, in units of the kernel: vectors of its width, or 4-bit elements. The last two
// fields are a `Divisor`.
struct Loop {
    i64 dst_stride, src_stride;
    u32 count, magic;
};

struct WriteShape {
    Loop samples;             // as many as the lists have
    Loop rows;                // those of one sample of a padded update, or all tokens of a packed one
    Loop others[OTHER_LOOPS]; // every other dimension outside a run
    i64 layer_stride;         // from one layer of the cache to the next
    u32 run;                  // contiguous units on both sides
    u32 capacity, layers, per_thread;
    // 4-bit elements from a job's addresses to its first elements: less than a word of the cache, less than a byte of the
    // update.
    u32 dst_begin, src_begin;
};

enum : u32 {
    POSITIONS_I64 = 1 << 0,
    LENGTHS_I64 = 1 << 1,
    ROW_COUNTS_I64 = 1 << 2,
    CUMULATIVE = 1 << 3,      // row counts are cumulative lengths from 0, one more than samples; otherwise one per sample
    FROM_END = 1 << 4,        // positions are lengths after the write, padding included: Ascend's tokenOffset
    CIRCULAR = 1 << 5,
    REJECT_NEGATIVE = 1 << 6, // in a ring
    SKIP_NEGATIVE = 1 << 7,   // a negative position skips its sample without being bad: slot mappings
    SKIP_ALL = 1 << 8,        // a launch with any bad index writes nothing
};

struct Status {
    u32 bad_samples;
    u32 first_sample;
    i64 first_value;
};

// `Status::first_sample` holds a sample's number, which is below 2^30 - 1. With these flags its position is not bad, but
// its length is, or its row count in a packed update. The number after the last sample stands for the total.
enum : u32 { LENGTH = 1u << 31, ROW_COUNT = 3u << 30, LAYER = 0xFFFFFFFF };

// Absent lists are null: slot 0, all rows, a padded update, layer 0, no report.
struct Call {
    const void* positions;
    const void* lengths;
    const void* row_counts;
    const int* layer;
    Status* status;
    u32 flags;
    u32 min_rows, max_rows; // how many rows a sample of a packed update may bring
    u32 unused;
};

static_assert(sizeof(Table<Job, 1>) == 16 && sizeof(Table<PresentJob, 1>) == 24);
static_assert(sizeof(Loop) == 24 && sizeof(WriteShape) == 176 && sizeof(Call) == 56 && sizeof(Status) == 16);

// Strides of all three tensors.
struct PresentLoop {
    i64 dst_stride, past_stride, update_stride;
    u32 count, magic;
};

struct PresentShape {
    WriteShape update; // `others` is not used: the present may split its dimensions in another way
    PresentLoop others[OTHER_LOOPS];
    Loop slots;   // count: the capacity; src_stride: the past's
    Loop samples; // those of the cache, which may have more
    Loop layers;
    // Only for 4-bit elements that straddle bytes: the number that divides by `update.run`, as `Loop::magic` but with
    // 2^(63 + bits); the adjacent runs of one slot; where the past begins, as `src_begin`.
    u64 run_magic;
    Divisor within;
    u32 past_begin, unused;
};

static_assert(sizeof(PresentLoop) == 32 && sizeof(PresentShape) == 400);
