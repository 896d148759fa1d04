// The kernels by name, and a launch of a kernel without a device.
#pragma once

#include "../../kernels/kvscatter.cu"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace fake {

template <auto Function>
struct Unpacked;
template <class T, class S, void (*Function)(T, S, Call)>
struct Unpacked<Function> {
    static constexpr size_t table = sizeof(T), shape = sizeof(S);
    static void run(const void* t, const void* s, const Call& call) { Function(*(const T*)t, *(const S*)s, call); }
};

struct Kernel {
    const char* name;
    unsigned width; // bytes in one access to a cache
    bool is_present;
    size_t table, shape;
    void (*run)(const void* table, const void* shape, const Call& call);
};

#define KERNEL(NAME, WIDTH, IS_PRESENT)                                                              \
    Kernel {                                                                                         \
        #NAME, WIDTH, IS_PRESENT, Unpacked<&NAME>::table, Unpacked<&NAME>::shape, Unpacked<&NAME>::run \
    }
#define WIDTHS(NAME, IS_PRESENT)                                                                                 \
    KERNEL(NAME##_16, 16, IS_PRESENT), KERNEL(NAME##_8, 8, IS_PRESENT), KERNEL(NAME##_4, 4, IS_PRESENT),          \
        KERNEL(NAME##_2, 2, IS_PRESENT), KERNEL(NAME##_1, 1, IS_PRESENT)
inline const Kernel KERNELS[] = {
    WIDTHS(kvscatter_write, false),       WIDTHS(kvscatter_write_many, false),
    WIDTHS(kvscatter_write_lists, false), KERNEL(kvscatter_write_nibbles, 4, false),
    WIDTHS(kvscatter_present, true),      KERNEL(kvscatter_present_nibbles, 1, true),
};

inline const Kernel* kernel_named(const char* name) {
    for (const Kernel& kernel : KERNELS)
        if (!strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}

// The number of words that this thread has exchanged.
inline thread_local unsigned exchanges = 0;
// The number of threads in a block of this thread's last launch.
inline thread_local unsigned last_threads = 0;
inline thread_local const char* last_kernel = "";

// Everything that a launch passes by value. It is copied at the call, as a driver does.
struct Launch {
    const Kernel* kernel;
    Dim3 grid, block;
    std::vector<std::max_align_t> table, shape;
    Call call;

    static std::vector<std::max_align_t> copied(const void* from, size_t bytes) {
        std::vector<std::max_align_t> copy(bytes / sizeof(std::max_align_t) + 1);
        memcpy(copy.data(), from, bytes);
        return copy;
    }

    Launch(const Kernel* kernel, Dim3 grid, Dim3 block, void* const* arguments)
        : kernel(kernel), grid(grid), block(block), table(copied(arguments[0], kernel->table)),
          shape(copied(arguments[1], kernel->shape)) {
        memcpy(&call, arguments[2], sizeof call);
    }

    // Runs the blocks in a random order each time, because no kernel may depend on the order. The threads of
    // a block run forwards or backwards. Before a thread exchanges a word, the next thread runs.
    void run() const {
        static thread_local std::mt19937 random(1);
        std::vector<unsigned> blocks(grid.x * grid.y);
        std::iota(blocks.begin(), blocks.end(), 0u);
        std::shuffle(blocks.begin(), blocks.end(), random);
        gridDim = grid;
        blockDim = block;
        Running running{*this, std::move(blocks), random() % 2 != 0};
        Running::current = &running;
        before_exchange = [] {
            ++exchanges;
            Running::current->next();
        };
        while (running.next()) continue;
        before_exchange = nullptr;
    }

    // The threads of a launch that have not run yet.
    struct Running {
        static inline thread_local Running* current = nullptr;
        const Launch& launch;
        const std::vector<unsigned> blocks;
        const bool is_backwards;
        size_t begun = 0;
        unsigned nested = 0;

        // Runs one thread. Returns false if there is none, or if the maximum number of nested threads is
        // reached.
        bool next() {
            static constexpr unsigned MOST_NESTED = 4;
            const Dim3 &grid = launch.grid, &block = launch.block;
            const unsigned threads = block.x * block.y;
            if (begun == blocks.size() * threads || nested == MOST_NESTED) return false;
            const unsigned k = begun % threads, thread = is_backwards ? threads - 1 - k : k;
            const unsigned number = blocks[begun / threads];
            const Dim3 outer_block = blockIdx, outer_thread = threadIdx;
            ++begun;
            ++nested;
            blockIdx = {number % grid.x, number / grid.x, 0};
            threadIdx = {thread % block.x, thread / block.x, 0};
            launch.kernel->run(launch.table.data(), launch.shape.data(), launch.call);
            blockIdx = outer_block;
            threadIdx = outer_thread;
            --nested;
            return true;
        }
    };

    // Visits every address at which the kernel begins, with the size of its first access there.
    template <class F>
    void each_address(F&& visit) const {
        for (unsigned job = 0; job < grid.y; ++job) {
            if (kernel->is_present) {
                const PresentJob& each = ((const PresentJob*)table.data())[job];
                visit(each.present, kernel->width);
                visit(each.past, kernel->width);
                visit(each.update, kernel->width);
            } else {
                const Job& each = ((const Job*)table.data())[job];
                visit(each.cache, kernel->width);
                visit(each.update, strstr(kernel->name, "nibbles") ? 1 : kernel->width);
            }
        }
        visit(call.positions, call.flags & POSITIONS_I64 ? 8 : 4);
        visit(call.lengths, call.flags & LENGTHS_I64 ? 8 : 4);
        visit(call.row_counts, call.flags & ROW_COUNTS_I64 ? 8 : 4);
        visit(call.layer, 4);
        visit(call.status, 8);
    }
};

} // namespace fake
