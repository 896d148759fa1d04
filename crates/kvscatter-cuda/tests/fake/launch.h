// The kernels by name, and what a launch of one does where there is no device.
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
    unsigned width; // bytes that one access of a cache has
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
    WIDTHS(kvscatter_present, true),
};

inline const Kernel* kernel_named(const char* name) {
    for (const Kernel& kernel : KERNELS)
        if (!strcmp(kernel.name, name)) return &kernel;
    return nullptr;
}

// Everything that a launch passes by value, copied when it is asked for, as a driver does.
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

    // Blocks in an order of their own each time, since no kernel may depend on it; threads of one in both orders.
    void run() const {
        static thread_local std::mt19937 random(1);
        std::vector<unsigned> blocks(grid.x * grid.y);
        std::iota(blocks.begin(), blocks.end(), 0u);
        std::shuffle(blocks.begin(), blocks.end(), random);
        gridDim = grid;
        blockDim = block;
        const unsigned threads = block.x * block.y;
        const bool is_backwards = random() % 2;
        for (unsigned each : blocks) {
            blockIdx = {each % grid.x, each / grid.x, 0};
            for (unsigned k = 0; k < threads; ++k) {
                const unsigned thread = is_backwards ? threads - 1 - k : k;
                threadIdx = {thread % block.x, thread / block.x, 0};
                kernel->run(table.data(), shape.data(), call);
            }
        }
    }

    // Every address that the kernel begins at, with the size of what is read there first.
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
        visit(call.starts, call.flags & STARTS_I64 ? 8 : 4);
        visit(call.lengths, call.flags & LENGTHS_I64 ? 8 : 4);
        visit(call.spans, call.flags & SPANS_I64 ? 8 : 4);
        visit(call.layer, 4);
        visit(call.status, 8);
    }
};

} // namespace fake
