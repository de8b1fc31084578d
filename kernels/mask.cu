// Hides pixels of a view: as src/compute/mask.rs, with the same values.
//
// Limit: 1 to 4 B a pixel read and 8 B written where one is hidden: 0.8 MB at 512x384 of a keyframe without hidden
// pixels, 0.2 us at 4.8 TB/s.

#include "index.cuh"

#include <cuda_fp16.h>

namespace {

constexpr unsigned kThreads = 256;

} // namespace

// Where `used` is 0.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_used(const unsigned char* __restrict__ used, float* __restrict__ confidence,
                 float* __restrict__ descriptor_confidence, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels && used[n] == 0) {
        confidence[n] = 0.0f;
        descriptor_confidence[n] = 0.0f;
    }
}

// Where a keyframe has no confidence; a comparison that NaN fails.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_f32(const float* __restrict__ keyframe, float* __restrict__ confidence,
                float* __restrict__ descriptor_confidence, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels && !(keyframe[n] > 0.0f)) {
        confidence[n] = 0.0f;
        descriptor_confidence[n] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_f16(const __half* __restrict__ keyframe, float* __restrict__ confidence,
                float* __restrict__ descriptor_confidence, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels && !(__half2float(keyframe[n]) > 0.0f)) {
        confidence[n] = 0.0f;
        descriptor_confidence[n] = 0.0f;
    }
}
