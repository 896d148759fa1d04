// Computes the slot of one row, without the rest of a kernel. With IS_GOOD the compiler knows that every
// position is in range, and leaves out the code that only bad positions need. `cargo xtask cuda-images`
// searches the result for divisions.

// The compiler cannot know this value, so it cannot replace a division by it.
static __constant__ unsigned int known_capacity;

template <class T>
static __device__ __forceinline__ T good(const T* at) {
    const T value = *at;
#ifdef IS_GOOD
    __builtin_assume((unsigned long long)(long long)value < (unsigned long long)(long long)known_capacity);
#endif
    return value;
}
#define __ldg good
#include "walk.cuh"

template <u32 FLAGS>
static __device__ __forceinline__ void straight(const WriteShape& shape, const void* positions, u32* slots) {
    const Call call = {positions, nullptr, nullptr, nullptr, nullptr, FLAGS, 0, 0, 0};
    WriteShape known = shape;
    known.capacity = known_capacity;
    const Slot slot = slot_of<false>(known, call, {0, threadIdx.x, 0, 0});
    if (slot.is_written) slots[threadIdx.x] = slot.slot;
}

#define STRAIGHT(NAME, FLAGS)                                                                                         \
    extern "C" __global__ void NAME(const __grid_constant__ WriteShape shape, const void* positions, u32* slots) {    \
        straight<FLAGS>(shape, positions, slots);                                                                     \
    }
STRAIGHT(straight_i32, 0)
STRAIGHT(straight_i64, POSITIONS_I64)
STRAIGHT(straight_ring_i32, CIRCULAR)
STRAIGHT(straight_ring_i64, CIRCULAR | POSITIONS_I64)
