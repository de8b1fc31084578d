// Indices that cannot overflow: 64-bit throughout.
#pragma once

namespace ms {

// The number of this thread in a one-dimensional grid.
__device__ __forceinline__ unsigned long long thread_index() {
    return static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The number of threads of a one-dimensional grid.
__device__ __forceinline__ unsigned long long thread_count() {
    return static_cast<unsigned long long>(gridDim.x) * blockDim.x;
}

} // namespace ms
