// Which pixels of the network's output can be computed with; as `sanitise` in src/inference/check.rs.
#pragma once

namespace ms {

// Nearer points have no direction; farther ones would overflow squared sums.
constexpr float kMinRange = 1e-6f, kMaxRange = 1e6f;
constexpr float kMaxConfidence = 1e6f;
constexpr unsigned kExponent = 0x7f800000u;

// Whether it is a number.
__device__ __forceinline__ bool finite(float v) {
    return (__float_as_uint(v) & kExponent) != kExponent;
}

// Whether a point, its confidence and that of its descriptor can be used: comparisons that NaN fails.
__device__ __forceinline__ bool usable(float x, float y, float z, float confidence, float quality) {
    const float squared = x * x + y * y + z * z;
    return squared >= kMinRange * kMinRange && squared <= kMaxRange * kMaxRange && confidence >= 0.0f && quality >= 0.0f;
}

} // namespace ms
