// What kernels of the dense heads share: interpolation, a point's activation, and sanitising.
#pragma once

#include "../usable.cuh"
#include "native.cuh"

namespace native {

// Eight channels between four pixels: two above, two below; `x` and `y`: how far to the right and down.
template <typename T>
__device__ inline uint4 blend(uint4 upper_left, uint4 upper_right, uint4 lower_left, uint4 lower_right, float x, float y) {
    const uint4 c[4] = {upper_left, upper_right, lower_left, lower_right};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = unpack(reinterpret_cast<const uint32_t *>(&c[j])[i], T());
        const float top_x = v[0].x + (v[1].x - v[0].x) * x, top_y = v[0].y + (v[1].y - v[0].y) * x;
        const float low_x = v[2].x + (v[3].x - v[2].x) * x, low_y = v[2].y + (v[3].y - v[2].y) * x;
        out[i] = pack(top_x + (low_x - top_x) * y, top_y + (low_y - top_y) * y, T());
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// What the last step of a view reads and writes to sanitise its outputs as `sanitise` in src/inference/check.rs. The
// descriptors' kernel, which runs before it, clears the counts, and gives a descriptor with a value that is no number
// zeros and the confidence NaN.
struct Sanitising {
    uint64_t unusable;             // a count for each item; 0: the outputs are not sanitised
    uint64_t descriptors, quality; // of the same view: items × pixels × dim, and items × pixels
    uint64_t dim;
};

// A point a/‖a‖ · (e^‖a‖ − 1) and its confidence 1 + e^κ, from the last layer's four values.
__device__ inline void put_point(const float (&a)[4], float *points, float *confidence, int64_t pixel, int item,
                                 const Sanitising &p) {
    const float norm = sqrtf(a[0] * a[0] + a[1] * a[1] + a[2] * a[2]);
    const float scale = expm1f(norm) / fmaxf(norm, 1e-8f);
    float x = a[0] * scale, y = a[1] * scale, z = a[2] * scale, c = 1.0f + expf(a[3]);
    if (p.unusable) {
        float *quality = reinterpret_cast<float *>(p.quality) + pixel;
        if (!ms::usable(x, y, z, c, *quality)) {
            x = y = z = c = 0.0f;
            *quality = 0.0f;
            float *descriptor = reinterpret_cast<float *>(p.descriptors) + pixel * static_cast<int64_t>(p.dim);
            for (uint64_t k = 0; k < p.dim; k++) descriptor[k] = 0.0f;
            atomicAdd(reinterpret_cast<unsigned *>(p.unusable) + item, 1u);
        }
        c = c > ms::kMaxConfidence ? ms::kMaxConfidence : c;
    }
    float *to = points + pixel * 3;
    to[0] = x;
    to[1] = y;
    to[2] = z;
    confidence[pixel] = c;
}

} // namespace native
