// Ratios of measured and predicted depth as keys: src/compute/depth/ratio.rs is the definition.
#pragma once

namespace ms {

// Steps of a log ratio, and the largest in steps.
constexpr float kSteps = 4096.0f;
constexpr int kLargest = 32767;
// A key is a log ratio in steps, moved so that it is positive; this one is that of a pixel without.
constexpr unsigned kNothing = 0xffffu;

// `ratio::of`: ln(metres / depth) in steps, without a library's logarithm, so that the CPU rounds alike.
__device__ __forceinline__ bool log_ratio(float metres, float depth, int& steps) {
    const float ratio = metres / depth;
    const int bits = __float_as_int(ratio);
    int exponent = bits >> 23;
    // False for what is not positive, not normal or not finite.
    if (!(depth > 0.0f && exponent > 0 && exponent < 255)) {
        return false;
    }
    exponent -= 127;
    float m = __int_as_float((bits & 0x7fffff) | 0x3f800000);
    if (m > 4.0f / 3.0f) {
        m *= 0.5f;
        exponent += 1;
    }
    const float s = (m - 1.0f) / (m + 1.0f);
    const float q = s * s;
    const float series = 1.0f + q * (1.0f / 3.0f + q * (0.2f + q * (1.0f / 7.0f)));
    const float log = static_cast<float>(exponent) * 0.69314718f + 2.0f * s * series;
    steps = min(max(__float2int_rn(log * kSteps), -kLargest), kLargest);
    return true;
}

// The log ratio of a key, off the scale.
__device__ __forceinline__ float off_scale(unsigned key, float log_scale) {
    return static_cast<float>(static_cast<int>(key) - kLargest) * (1.0f / kSteps) - log_scale;
}

// Positive if a key's ratio counts.
__device__ __forceinline__ float rest_of(unsigned key, float log_scale, float reach) {
    const float of_reach = off_scale(key, log_scale) / reach;
    return key == kNothing ? 0.0f : 1.0f - of_reach * of_reach;
}

} // namespace ms
