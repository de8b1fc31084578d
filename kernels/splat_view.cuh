// A row in a camera: what both directions of the renderer compute, as in src/compute/splat.
#pragma once

#include "splat.cuh"

namespace ms {

// `DeviceCamera` of src/compute/cuda/splat.
struct SplatCamera {
    // p = R x + t; row by row.
    float r[9];
    float t[3];
    float centre[3];
    float fx, fy, cx, cy;
    // Largest |x/z| and |y/z| within the Jacobian.
    float limit_x, limit_y;
    float background[3];
    unsigned width, height;
    unsigned tiles_x, tiles_y;
    // Coefficients above the constant one that are used: 0, 3, 8 or 15.
    unsigned used;
};

constexpr float kNear = 0.01f;
constexpr float kLowPass = 0.3f;
constexpr float kMaxAlpha = 0.99f, kMinAlpha = 1.0f / 255.0f;
constexpr float kMinTransmittance = 1e-4f;
constexpr float kMaxSigmas = 3.33f;
constexpr float kC0 = 0.28209479f;
constexpr unsigned kSide = 16;
// Floats of a visible row's gradients. By the image: mean 2, conic 3, opacity, colour 3, depth. Then by the parameters:
// mean 3, scale 3, rotation 4, opacity, colour 3.
constexpr unsigned kGradients = 16;

// What a row is in the image.
struct Projection {
    // In the camera frame.
    float x, y, z;
    // In the image.
    float u, v;
    // Covariance, with the low-pass filter, and its inverse.
    float xx, xy, yy;
    float a, b, c;
    float opacity;
    // Squared extent in standard deviations.
    float reach;
};

// a b - c d without cancellation.
__device__ __forceinline__ float difference_of_products(float a, float b, float c, float d) {
    const float product = c * d;
    return fmaf(a, b, -product) + fmaf(-c, d, product);
}

// M = J R of a camera-frame point, 2 x 3.
__device__ __forceinline__ void jacobian_rotation(const SplatCamera& camera, float x, float y, float z, float m[6]) {
    const float inverse = 1.0f / z;
    const float tx = fminf(fmaxf(x * inverse, -camera.limit_x), camera.limit_x);
    const float ty = fminf(fmaxf(y * inverse, -camera.limit_y), camera.limit_y);
    const float j00 = camera.fx * inverse, j02 = -camera.fx * tx * inverse;
    const float j11 = camera.fy * inverse, j12 = -camera.fy * ty * inverse;
#pragma unroll
    for (unsigned k = 0; k < 3; ++k) {
        m[k] = fmaf(j00, camera.r[k], j02 * camera.r[6 + k]);
        m[3 + k] = fmaf(j11, camera.r[3 + k], j12 * camera.r[6 + k]);
    }
}

// L = R_q S, 3 x 3.
__device__ __forceinline__ void axes(const float r[9], const float s[3], float l[9]) {
#pragma unroll
    for (unsigned k = 0; k < 9; ++k) {
        l[k] = r[k] * s[k % 3];
    }
}

// False for a row that is not drawn: behind the camera, too faint, not finite.
__device__ __forceinline__ bool project(const SplatCamera& camera, const float mean[3], const float scale[3],
                                        const float q[4], float logit, Projection& p) {
    p.x = fmaf(camera.r[0], mean[0], fmaf(camera.r[1], mean[1], fmaf(camera.r[2], mean[2], camera.t[0])));
    p.y = fmaf(camera.r[3], mean[0], fmaf(camera.r[4], mean[1], fmaf(camera.r[5], mean[2], camera.t[1])));
    p.z = fmaf(camera.r[6], mean[0], fmaf(camera.r[7], mean[1], fmaf(camera.r[8], mean[2], camera.t[2])));
    if (!(p.z >= kNear) || !finite(p.z)) {
        return false;
    }
    p.opacity = 1.0f / (1.0f + expf(-logit));
    const float norm2 = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
    if (!(p.opacity >= kMinAlpha) || !(norm2 >= 1e-8f)) {
        return false;
    }
    const float inverse = 1.0f / p.z;
    p.u = fmaf(camera.fx, p.x * inverse, camera.cx);
    p.v = fmaf(camera.fy, p.y * inverse, camera.cy);
    float r[9], l[9], m[6];
    rotation_matrix(q, r);
    const float s[3] = {expf(scale[0]), expf(scale[1]), expf(scale[2])};
    axes(r, s, l);
    jacobian_rotation(camera, p.x, p.y, p.z, m);
    // Cov = (M L) (M L)^T.
    float xx = kLowPass, xy = 0.0f, yy = kLowPass;
#pragma unroll
    for (unsigned k = 0; k < 3; ++k) {
        const float v0 = fmaf(m[0], l[k], fmaf(m[1], l[3 + k], m[2] * l[6 + k]));
        const float v1 = fmaf(m[3], l[k], fmaf(m[4], l[3 + k], m[5] * l[6 + k]));
        xx = fmaf(v0, v0, xx);
        xy = fmaf(v0, v1, xy);
        yy = fmaf(v1, v1, yy);
    }
    const float determinant = difference_of_products(xx, yy, xy, xy);
    if (!(determinant > 0.0f) || !finite(determinant) || !finite(p.u) || !finite(p.v)) {
        return false;
    }
    const float scaled = 1.0f / determinant;
    p.xx = xx;
    p.xy = xy;
    p.yy = yy;
    p.a = yy * scaled;
    p.b = -xy * scaled;
    p.c = xx * scaled;
    p.reach = fminf(kMaxSigmas * kMaxSigmas, 2.0f * logf(255.0f * p.opacity));
    return true;
}

// A visible row's ellipse: where alpha can reach the minimum.
struct Ellipse {
    float u, v;
    float a, b, c;
    float reach;
};

// Tile rows that an ellipse touches: first and past the last.
__device__ __forceinline__ uint2 tile_rows(float v, float yy, float reach, unsigned tiles_y) {
    const float extent = sqrtf(reach * yy) + 0.01f;
    const float low = floorf((v - extent) * (1.0f / kSide)), high = floorf((v + extent) * (1.0f / kSide)) + 1.0f;
    const float limit = static_cast<float>(tiles_y);
    return make_uint2(static_cast<unsigned>(fminf(fmaxf(low, 0.0f), limit)),
                      static_cast<unsigned>(fminf(fmaxf(high, 0.0f), limit)));
}

// Tiles of a tile row that an ellipse touches: first and past the last. The ellipse's right edge is a concave function of
// y, so its largest value within the row is at its own maximum or at the nearer border; the left edge mirrors it.
__device__ __forceinline__ uint2 tile_span(const Ellipse& e, unsigned tile_row, unsigned tiles_x) {
    const float determinant = fmaxf(difference_of_products(e.a, e.c, e.b, e.b), 1e-30f);
    const float inverse = 1.0f / determinant;
    const float top = sqrtf(e.reach * e.a * inverse);
    const float right = sqrtf(e.reach * e.c * inverse);
    // The y of the rightmost point: Cov_xy / sqrt(Cov_xx) times the reach.
    const float bend = -e.b / e.c * right;
    const float begin = static_cast<float>(tile_row * kSide) - e.v;
    const float low = fminf(fmaxf(begin - 0.01f, -top), top), high = fminf(fmaxf(begin + 15.01f, -top), top);
    const float y_right = fminf(fmaxf(bend, low), high), y_left = fminf(fmaxf(-bend, low), high);
    const float over = 1.0f / e.a;
    const float far_right = (-e.b * y_right + sqrtf(fmaxf(fmaf(e.a, e.reach, -determinant * y_right * y_right), 0.0f))) * over;
    const float far_left = (-e.b * y_left - sqrtf(fmaxf(fmaf(e.a, e.reach, -determinant * y_left * y_left), 0.0f))) * over;
    const float pad = 0.01f;
    const float first = floorf((e.u + far_left - pad) * (1.0f / kSide));
    const float last = floorf((e.u + far_right + pad) * (1.0f / kSide)) + 1.0f;
    const float limit = static_cast<float>(tiles_x);
    const unsigned from = static_cast<unsigned>(fminf(fmaxf(first, 0.0f), limit));
    const unsigned to = static_cast<unsigned>(fminf(fmaxf(last, 0.0f), limit));
    return make_uint2(from, to > from ? to : from);
}

// Values of the spherical harmonics above the constant one in a direction, and their derivatives.
__device__ __forceinline__ void harmonics(float x, float y, float z, unsigned used, float value[15]) {
    if (used < 3) {
        return;
    }
    value[0] = -0.48860251f * y;
    value[1] = 0.48860251f * z;
    value[2] = -0.48860251f * x;
    if (used < 8) {
        return;
    }
    const float xx = x * x, yy = y * y, zz = z * z;
    value[3] = 1.09254843f * x * y;
    value[4] = -1.09254843f * y * z;
    value[5] = 0.31539157f * (2.0f * zz - xx - yy);
    value[6] = -1.09254843f * x * z;
    value[7] = 0.54627422f * (xx - yy);
    if (used < 15) {
        return;
    }
    value[8] = -0.59004359f * y * (3.0f * xx - yy);
    value[9] = 2.89061144f * x * y * z;
    value[10] = -0.45704580f * y * (4.0f * zz - xx - yy);
    value[11] = 0.37317633f * z * (2.0f * zz - 3.0f * xx - 3.0f * yy);
    value[12] = -0.45704580f * x * (4.0f * zz - xx - yy);
    value[13] = 1.44530572f * z * (xx - yy);
    value[14] = -0.59004359f * x * (xx - 3.0f * yy);
}

// Gradient by the direction of sum(weight_k Y_k).
__device__ __forceinline__ float3 harmonics_gradient(float x, float y, float z, unsigned used, const float w[15]) {
    float3 g = make_float3(0.0f, 0.0f, 0.0f);
    if (used < 3) {
        return g;
    }
    g.x = -0.48860251f * w[2];
    g.y = -0.48860251f * w[0];
    g.z = 0.48860251f * w[1];
    if (used < 8) {
        return g;
    }
    g.x += 1.09254843f * (y * w[3] - z * w[6]) - 0.63078313f * x * w[5] + 1.09254843f * x * w[7];
    g.y += 1.09254843f * (x * w[3] - z * w[4]) - 0.63078313f * y * w[5] - 1.09254843f * y * w[7];
    g.z += -1.09254843f * (y * w[4] + x * w[6]) + 1.26156626f * z * w[5];
    if (used < 15) {
        return g;
    }
    const float xx = x * x, yy = y * y, zz = z * z;
    g.x += -0.59004359f * 6.0f * x * y * w[8] + 2.89061144f * y * z * w[9] + 0.45704580f * 2.0f * x * y * w[10] -
           0.37317633f * 6.0f * x * z * w[11] - 0.45704580f * (4.0f * zz - 3.0f * xx - yy) * w[12] +
           1.44530572f * 2.0f * x * z * w[13] - 0.59004359f * 3.0f * (xx - yy) * w[14];
    g.y += -0.59004359f * 3.0f * (xx - yy) * w[8] + 2.89061144f * x * z * w[9] -
           0.45704580f * (4.0f * zz - xx - 3.0f * yy) * w[10] - 0.37317633f * 6.0f * y * z * w[11] +
           0.45704580f * 2.0f * x * y * w[12] - 1.44530572f * 2.0f * y * z * w[13] + 0.59004359f * 6.0f * x * y * w[14];
    g.z += 2.89061144f * x * y * w[9] - 0.45704580f * 8.0f * y * z * w[10] +
           0.37317633f * (6.0f * zz - 3.0f * xx - 3.0f * yy) * w[11] - 0.45704580f * 8.0f * x * z * w[12] +
           1.44530572f * (xx - yy) * w[13];
    return g;
}

} // namespace ms
