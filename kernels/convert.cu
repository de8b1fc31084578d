// Between f32 and f16: encoder tokens are computed in f32 and kept in f16.
//
// Limit: 6 bytes an element, each touched once, so the device's copy bandwidth. A keyframe's tokens (768 x 1024) are
// 4.7 MB, which is 1 us at 4.8 TB/s: the launch costs more.

#include <cuda_fp16.h>

#include "index.cuh"

namespace {

constexpr unsigned kWidth = 4; // elements of one thread: a 16-byte f32 access

bool __device__ aligned(const void* p, unsigned bytes) {
    return reinterpret_cast<unsigned long long>(p) % bytes == 0;
}

struct alignas(8) Half4 {
    __half2 low, high;
};

} // namespace

// dst[i] = src[i] rounded to the nearest f16, ties to even; values beyond its range become infinite, NaN stays NaN.
extern "C" __global__ void __launch_bounds__(256)
    ms_convert_f32_to_f16(const float* __restrict__ src, __half* __restrict__ dst, unsigned long long n) {
    const unsigned long long first = ms::thread_index() * kWidth;
    if (first >= n) {
        return;
    }
    if (n - first >= kWidth && aligned(src, 16) && aligned(dst, 8)) {
        const float4 v = *reinterpret_cast<const float4*>(src + first);
        *reinterpret_cast<Half4*>(dst + first) = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
        return;
    }
    const unsigned long long end = n - first < kWidth ? n : first + kWidth;
    for (unsigned long long i = first; i < end; ++i) {
        dst[i] = __float2half_rn(src[i]);
    }
}

// dst[i] = src[i], exactly.
extern "C" __global__ void __launch_bounds__(256)
    ms_convert_f16_to_f32(const __half* __restrict__ src, float* __restrict__ dst, unsigned long long n) {
    const unsigned long long first = ms::thread_index() * kWidth;
    if (first >= n) {
        return;
    }
    if (n - first >= kWidth && aligned(src, 8) && aligned(dst, 16)) {
        const Half4 v = *reinterpret_cast<const Half4*>(src + first);
        const float2 low = __half22float2(v.low);
        const float2 high = __half22float2(v.high);
        *reinterpret_cast<float4*>(dst + first) = {low.x, low.y, high.x, high.y};
        return;
    }
    const unsigned long long end = n - first < kWidth ? n : first + kWidth;
    for (unsigned long long i = first; i < end; ++i) {
        dst[i] = __half2float(src[i]);
    }
}
