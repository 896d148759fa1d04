// What the host passes by value. `abi.rs` has the same structs, and its test reads the numbers of this file.
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

// A number of things, and what divides by it: 2^(31 + bits) / count, rounded up, where 2^bits is the least power that is
// not below `count`.
struct Divisor {
    u32 count, magic;
};

// Steps on either side, in units of the kernel: vectors of its width, or 4-bit elements. The last two are a `Divisor`.
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

// What `Status::first_sample` says beside the number of a sample, of which there are fewer than 2^30 - 1: bad is not its
// start, but its length, or what the list of a packed update says of it. The number behind the last sample is the total.
enum : u32 { LENGTH = 1u << 31, SPAN = 3u << 30, LAYER = 0xFFFFFFFF };

// Absent lists are null: slot 0, all rows, a padded update, layer 0, no report.
struct Call {
    const void* starts;
    const void* lengths;
    const void* spans;
    const int* layer;
    Status* status;
    u32 flags;
    u32 least, most; // rows that a sample of a packed update may bring
    u32 unused;
};

static_assert(sizeof(Table<Job, 1>) == 16 && sizeof(Table<PresentJob, 1>) == 24);
static_assert(sizeof(Loop) == 24 && sizeof(Shape) == 176 && sizeof(Call) == 56 && sizeof(Status) == 16);

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
    Divisor within;
    u32 past_begin, unused;
};

static_assert(sizeof(PresentLoop) == 32 && sizeof(PresentShape) == 400);
