// The parts of CUDA that the kernels use, in C++. Threads run one after the other. The kernels have no
// barrier, so threads may run in any order.
#pragma once

struct Dim3 {
    unsigned x, y, z;
};
inline thread_local Dim3 blockIdx, threadIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)

template <class T>
T __ldg(const T* at) {
    return *at;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __clz(int number) { return number ? __builtin_clz((unsigned)number) : 32; }
inline unsigned atomicAdd(unsigned* at, unsigned value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
// Runs other threads before an exchange.
inline thread_local void (*before_exchange)() = nullptr;
inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned value) {
    if (before_exchange) before_exchange();
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
