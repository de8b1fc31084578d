// Counts the pixels of a keyframe that other keyframes see: as `coverage` in src/compute/coverage.rs, with the same
// integers. One launch adds a neighbour's view to a count per pixel, another sums up.
//
// Limit: 31 B a pixel and view (a match, two points, a count): 6.1 MB at 512x384, 1.3 us at 4.8 TB/s.

#include "index.cuh"
#include "points.cuh"

#include <cuda_fp16.h>

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;

__device__ __forceinline__ float squared_norm(float3 p) {
    return p.x * p.x + p.y * p.y + p.z * p.z;
}

// False for NaN.
__device__ __forceinline__ bool has_point(float squared) {
    return squared > 1e-24f && squared < __int_as_float(0x7f800000);
}

} // namespace

// `scale` and `ratio` are squares. `points` and `other` are pixels x 3.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_coverage_add(const float* __restrict__ points, const float* __restrict__ other, const unsigned* __restrict__ index,
                    const __half* __restrict__ quality, unsigned char* __restrict__ counts, unsigned pixels,
                    float q_conf, float scale, float ratio) {
    const unsigned long long n = thread_index();
    if (n >= pixels || !(__half2float(quality[n]) > q_conf)) {
        return;
    }
    const unsigned m = index[n];
    if (m >= pixels) {
        return;
    }
    const float own = squared_norm(point(points, n));
    const float seen = squared_norm(point(other, m));
    if (has_point(seen) && scale * own >= ratio * seen && counts[n] < 255) {
        ++counts[n];
    }
}

// Adds to sums: usable, seen by one or more, seen by two or more. One of both confidences is null.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_coverage_sum(const float* __restrict__ points, const __half* __restrict__ half_confidence,
                    const float* __restrict__ confidence, const unsigned char* __restrict__ counts, unsigned pixels,
                    float c_conf, unsigned* __restrict__ sums) {
    __shared__ unsigned total[3];
    if (threadIdx.x < 3) {
        total[threadIdx.x] = 0;
    }
    __syncthreads();
    const unsigned long long n = thread_index();
    bool usable = false;
    unsigned count = 0;
    if (n < pixels) {
        const float c = half_confidence != nullptr ? __half2float(half_confidence[n]) : confidence[n];
        usable = has_point(squared_norm(point(points, n))) && c > c_conf;
        count = counts[n];
    }
    for (unsigned k = 0; k < 3; ++k) {
        const unsigned votes = __ballot_sync(0xffffffffu, usable && count >= k);
        if (threadIdx.x % 32 == 0 && votes != 0) {
            atomicAdd(&total[k], static_cast<unsigned>(__popc(votes)));
        }
    }
    __syncthreads();
    if (threadIdx.x < 3 && total[threadIdx.x] != 0) {
        atomicAdd(&sums[threadIdx.x], total[threadIdx.x]);
    }
}
