// The slot of one row, apart from all else a kernel does, and with starts that are known to be good if IS_GOOD: then the
// compiler leaves out what only others take. `cargo xtask cuda-images` looks for divisions in it.

// The compiler cannot know it, so that a division stays one.
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
static __device__ __forceinline__ void straight(const Shape& shape, const void* starts, u32* slots) {
    const Call call = {starts, nullptr, nullptr, nullptr, nullptr, FLAGS, 0, 0, 0};
    Shape known = shape;
    known.capacity = known_capacity;
    const Slot slot = slot_of<false>(known, call, {0, threadIdx.x, 0, 0});
    if (slot.is_written) slots[threadIdx.x] = slot.slot;
}

#define STRAIGHT(NAME, FLAGS)                                                                                         \
    extern "C" __global__ void NAME(const __grid_constant__ Shape shape, const void* starts, u32* slots) {            \
        straight<FLAGS>(shape, starts, slots);                                                                        \
    }
STRAIGHT(straight_i32, 0)
STRAIGHT(straight_i64, STARTS_I64)
STRAIGHT(straight_ring_i32, CIRCULAR)
STRAIGHT(straight_ring_i64, CIRCULAR | STARTS_I64)
