// Points in rows of three floats.
#pragma once

namespace ms {

__device__ __forceinline__ float3 point(const float* __restrict__ points, size_t n) {
    return make_float3(points[3 * n], points[3 * n + 1], points[3 * n + 2]);
}

__device__ __forceinline__ float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// Whether a point has a direction: finite, of finite squared length, and longer than 1e-12.
__device__ __forceinline__ bool usable(float3 p) {
    const float squared = dot(p, p);
    return isfinite(squared) && squared > 1e-24f;
}

} // namespace ms
