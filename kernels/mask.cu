// Hides pixels of a view: as src/compute/mask.rs, with the same values.
//
// Limit: 1 to 4 B a pixel read and 8 B written where one is hidden: 0.8 MB at 512x384 of a keyframe without hidden
// pixels, 0.2 us at 4.8 TB/s.

#include "index.cuh"

#include <cuda_fp16.h>

namespace {

constexpr unsigned kThreads = 256;

// Takes both confidences of this thread's pixel away if `hidden(pixel)`.
template <typename Hidden>
__device__ __forceinline__ void hide_if(Hidden hidden, float* __restrict__ confidence,
                                        float* __restrict__ descriptor_confidence, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels && hidden(n)) {
        confidence[n] = 0.0f;
        descriptor_confidence[n] = 0.0f;
    }
}

} // namespace

// Where `used` is 0.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_used(const unsigned char* __restrict__ used, float* __restrict__ confidence,
                 float* __restrict__ descriptor_confidence, unsigned pixels) {
    hide_if([=](unsigned long long n) { return used[n] == 0; }, confidence, descriptor_confidence, pixels);
}

// Where a keyframe has no confidence; a comparison that NaN fails.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_f32(const float* __restrict__ keyframe, float* __restrict__ confidence,
                float* __restrict__ descriptor_confidence, unsigned pixels) {
    hide_if([=](unsigned long long n) { return !(keyframe[n] > 0.0f); }, confidence, descriptor_confidence, pixels);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    ms_mask_f16(const __half* __restrict__ keyframe, float* __restrict__ confidence,
                float* __restrict__ descriptor_confidence, unsigned pixels) {
    hide_if([=](unsigned long long n) { return !(__half2float(keyframe[n]) > 0.0f); }, confidence,
            descriptor_confidence, pixels);
}
