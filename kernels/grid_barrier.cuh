// A barrier for all blocks of a cooperative launch.
#pragma once

namespace ms {

// Adds to a counter with release order: a thread that reads the sum also sees this block's earlier writes.
__device__ __forceinline__ unsigned add_release(unsigned* p, unsigned value) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(value) : "memory");
    return before;
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

// Waits for all blocks, which are resident at the same time. Each barrier adds 2^31 to the count in total, so its
// highest bit distinguishes this barrier from the next and the counter needs no reset.
__device__ __forceinline__ void wait_for_grid(unsigned* arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        const unsigned before = add_release(arrived, share);
        while (((before ^ load_acquire(arrived)) & 0x80000000u) == 0) {
        }
    }
    __syncthreads();
}

} // namespace ms
