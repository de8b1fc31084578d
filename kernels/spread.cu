// Counts an image's matches in each of its cells: as `spread` in src/compute/spread.rs, with the same integers.
//
// Limit: 2 B a pixel: 0.4 MB at 512x384, 0.1 us at 4.8 TB/s; a launch costs more.

#include "index.cuh"

#include <cuda_fp16.h>

namespace {

constexpr unsigned kThreads = 256;
// Cells along each side.
constexpr unsigned kCells = 4;

} // namespace

// Adds to counts, one of each cell, row by row.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_spread_add(const __half* __restrict__ quality, unsigned width, unsigned height, float q_conf,
                  unsigned* __restrict__ counts) {
    __shared__ unsigned total[kCells * kCells];
    if (threadIdx.x < kCells * kCells) {
        total[threadIdx.x] = 0;
    }
    __syncthreads();
    const unsigned long long n = ms::thread_index();
    if (n < static_cast<unsigned long long>(width) * height && __half2float(quality[n]) > q_conf) {
        const unsigned u = static_cast<unsigned>(n % width);
        const unsigned v = static_cast<unsigned>(n / width);
        atomicAdd(&total[v * kCells / height * kCells + u * kCells / width], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kCells * kCells && total[threadIdx.x] != 0) {
        atomicAdd(&counts[threadIdx.x], total[threadIdx.x]);
    }
}
