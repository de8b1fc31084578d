// From the gradients by what a row is in the image to those by its parameters and the camera, and Adam's step: visible
// rows only, packed. As in src/compute/splat/backward.rs and adam.rs, within rounding.
//
// Limit: a step reads and writes a row and its moments (3 x 236 B each way at degree 3) and reads 64 B of gradients:
// 1 M visible rows 1.5 GB, 0.31 ms at 4.8 TB/s.

#include "splat_view.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 128;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kBands = 15;

// `AdamStep` of src/compute/splat/device.rs, ready for use.
struct Step {
    unsigned long long seed;
    // In the order of fields.
    float rates[kFields];
    float bias1, bias2;
    // Weights of the opacity's and the deviations' means, per row and axis.
    float opacity_weight, scale_weight;
    float noise;
    unsigned step;
};

// A gradient that is not finite counts as 0.
__device__ __forceinline__ float sound(float x) {
    return finite(x) ? x : 0.0f;
}

struct Moments {
    float parameter, first, second;
};

__device__ __forceinline__ Moments adam(float parameter, float first, float second, float gradient, float rate,
                                        const Step& step) {
    first = fmaf(0.9f, first, 0.1f * gradient);
    second = fmaf(0.999f, second, 0.001f * gradient * gradient);
    parameter -= rate * (first / step.bias1) / (sqrtf(second / step.bias2) + 1e-15f);
    return {parameter, first, second};
}

template <unsigned Width>
__device__ __forceinline__ void adam_row(const SplatPool& pool, unsigned field, unsigned long long row,
                                         const float* gradient, const Step& step, float* result) {
    const unsigned long long at = row * Width;
#pragma unroll
    for (unsigned k = 0; k < Width; ++k) {
        float& p = pool.planes[0][field][at + k];
        float& m = pool.planes[1][field][at + k];
        float& v = pool.planes[2][field][at + k];
        const Moments next = adam(p, m, v, gradient[k], step.rates[field], step);
        p = next.parameter;
        m = next.first;
        v = next.second;
        result[k] = next.parameter;
    }
}

// Unit direction from the camera, and one over the distance.
__device__ __forceinline__ float4 direction(const SplatCamera& camera, const float mean[3]) {
    const float x = mean[0] - camera.centre[0], y = mean[1] - camera.centre[1], z = mean[2] - camera.centre[2];
    const float inverse = rsqrtf(fmaf(x, x, fmaf(y, y, z * z)));
    return make_float4(x * inverse, y * inverse, z * inverse, inverse);
}

__device__ __forceinline__ double warp_sum(double value) {
    for (unsigned step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, static_cast<int>(step));
    }
    return value;
}

} // namespace

// Turns a visible row's gradients by the image into those by its parameters, in place; adds to the statistics if asked
// for, and the gradient by the camera (left perturbation: translation, rotation) to `pose`.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_row_gradients(SplatPool pool, unsigned rest, SplatCamera camera, const unsigned* __restrict__ rows,
                           const float4* __restrict__ colours, unsigned count, unsigned statistics,
                           float* __restrict__ gradients, double* __restrict__ pose) {
    __shared__ double sums[kWarps][6];
    const unsigned long long i = thread_index();
    float motion[6] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (i < count) {
        const unsigned long long row = rows[i];
        const float* const* planes = pool.planes[0];
        const float mean[3] = {planes[kMean][row * 3], planes[kMean][row * 3 + 1], planes[kMean][row * 3 + 2]};
        const float4 q4 = *reinterpret_cast<const float4*>(planes[kRotation] + row * 4);
        const float q[4] = {q4.x, q4.y, q4.z, q4.w};
        float s[3];
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            s[k] = expf(planes[kScale][row * 3 + k]);
        }
        float4* record = reinterpret_cast<float4*>(gradients + i * kGradients);
        const float4 g0 = record[0], g1 = record[1], g2 = record[2];
        const float du = g0.x, dv = g0.y, ka = g0.z, kb = g0.w, kc = g1.x, by_opacity = g1.y;
        const float by_depth = g2.y;
        const unsigned open = __float_as_uint(colours[i].w);
        const float by_colour[3] = {open & 1u ? g1.z : 0.0f, open & 2u ? g1.w : 0.0f, open & 4u ? g2.x : 0.0f};
        // The projection again.
        float p[3];
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            p[k] = fmaf(camera.r[3 * k], mean[0],
                        fmaf(camera.r[3 * k + 1], mean[1], fmaf(camera.r[3 * k + 2], mean[2], camera.t[k])));
        }
        float r[9], l[9], m[6];
        rotation_matrix(q, r);
        axes(r, s, l);
        jacobian_rotation(camera, p[0], p[1], p[2], m);
        float v0[3], v1[3];
        float xx = kLowPass, xy = 0.0f, yy = kLowPass;
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            v0[k] = fmaf(m[0], l[k], fmaf(m[1], l[3 + k], m[2] * l[6 + k]));
            v1[k] = fmaf(m[3], l[k], fmaf(m[4], l[3 + k], m[5] * l[6 + k]));
            xx = fmaf(v0[k], v0[k], xx);
            xy = fmaf(v0[k], v1[k], xy);
            yy = fmaf(v1[k], v1[k], yy);
        }
        const float scaled = 1.0f / difference_of_products(xx, yy, xy, xy);
        const float a = yy * scaled, b = -xy * scaled, c = xx * scaled;
        // A = -K dK K.
        const float t00 = fmaf(ka, a, kb * b), t01 = fmaf(ka, b, kb * c);
        const float t10 = fmaf(kb, a, kc * b), t11 = fmaf(kb, b, kc * c);
        const float a00 = -fmaf(a, t00, b * t10), a01 = -fmaf(a, t01, b * t11), a11 = -fmaf(b, t01, c * t11);
        // With V = M L: dV = 2 A V, so dL = M^T dV and dM = dV L^T.
        float w0[3], w1[3];
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            w0[k] = 2.0f * fmaf(a00, v0[k], a01 * v1[k]);
            w1[k] = 2.0f * fmaf(a01, v0[k], a11 * v1[k]);
        }
        float dl[9], dm[6];
#pragma unroll
        for (unsigned j = 0; j < 3; ++j) {
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                dl[3 * j + k] = fmaf(m[j], w0[k], m[3 + j] * w1[k]);
            }
            dm[j] = fmaf(w0[0], l[3 * j], fmaf(w0[1], l[3 * j + 1], w0[2] * l[3 * j + 2]));
            dm[3 + j] = fmaf(w1[0], l[3 * j], fmaf(w1[1], l[3 * j + 1], w1[2] * l[3 * j + 2]));
        }
        // dJ = dM R^T; dR_view = J^T dM.
        const float inverse = 1.0f / p[2];
        const float x_z = p[0] * inverse, y_z = p[1] * inverse;
        const float tx = fminf(fmaxf(x_z, -camera.limit_x), camera.limit_x);
        const float ty = fminf(fmaxf(y_z, -camera.limit_y), camera.limit_y);
        const float j00 = camera.fx * inverse, j02 = -camera.fx * tx * inverse;
        const float j11 = camera.fy * inverse, j12 = -camera.fy * ty * inverse;
        const float* view = camera.r;
        const float dj00 = fmaf(dm[0], view[0], fmaf(dm[1], view[1], dm[2] * view[2]));
        const float dj02 = fmaf(dm[0], view[6], fmaf(dm[1], view[7], dm[2] * view[8]));
        const float dj11 = fmaf(dm[3], view[3], fmaf(dm[4], view[4], dm[5] * view[5]));
        const float dj12 = fmaf(dm[3], view[6], fmaf(dm[4], view[7], dm[5] * view[8]));
        // J02 = -fx x / z^2 within the limit, -fx limit / z beyond it.
        const bool free_x = tx == x_z, free_y = ty == y_z;
        float dp[3];
        dp[0] = inverse * (camera.fx * du - (free_x ? camera.fx * inverse * dj02 : 0.0f));
        dp[1] = inverse * (camera.fy * dv - (free_y ? camera.fy * inverse * dj12 : 0.0f));
        dp[2] = inverse * (-(camera.fx * x_z * du + camera.fy * y_z * dv) -
                           inverse * (camera.fx * dj00 + camera.fy * dj11) +
                           inverse * ((free_x ? 2.0f : 1.0f) * camera.fx * tx * dj02 +
                                      (free_y ? 2.0f : 1.0f) * camera.fy * ty * dj12)) +
                by_depth;
        float dr[9];
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            dr[k] = j00 * dm[k];
            dr[3 + k] = j11 * dm[3 + k];
            dr[6 + k] = fmaf(j02, dm[k], j12 * dm[3 + k]);
        }
        // The colour's direction.
        float by_mean[3] = {0.0f, 0.0f, 0.0f};
        if (camera.used > 0) {
            const float4 d = direction(camera, mean);
            float weights[kBands];
            const float* own = planes[kRest] + row * rest;
#pragma unroll
            for (unsigned k = 0; k < kBands; ++k) {
                weights[k] = k < camera.used ? fmaf(own[3 * k], by_colour[0],
                                                    fmaf(own[3 * k + 1], by_colour[1], own[3 * k + 2] * by_colour[2]))
                                             : 0.0f;
            }
            const float3 g = harmonics_gradient(d.x, d.y, d.z, camera.used, weights);
            const float along = fmaf(g.x, d.x, fmaf(g.y, d.y, g.z * d.z));
            by_mean[0] = sound((g.x - d.x * along) * d.w);
            by_mean[1] = sound((g.y - d.y * along) * d.w);
            by_mean[2] = sound((g.z - d.z * along) * d.w);
        }
        // Q = dR_view R^T: its skew part turns the camera.
        const float q21 = fmaf(dr[6], view[3], fmaf(dr[7], view[4], dr[8] * view[5]));
        const float q12 = fmaf(dr[3], view[6], fmaf(dr[4], view[7], dr[5] * view[8]));
        const float q02 = fmaf(dr[0], view[6], fmaf(dr[1], view[7], dr[2] * view[8]));
        const float q20 = fmaf(dr[6], view[0], fmaf(dr[7], view[1], dr[8] * view[2]));
        const float q10 = fmaf(dr[3], view[0], fmaf(dr[4], view[1], dr[5] * view[2]));
        const float q01 = fmaf(dr[0], view[3], fmaf(dr[1], view[4], dr[2] * view[5]));
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            motion[k] = sound(dp[k] + (view[3 * k] * by_mean[0] + view[3 * k + 1] * by_mean[1] + view[3 * k + 2] * by_mean[2]));
        }
        motion[3] = sound(p[1] * dp[2] - p[2] * dp[1] + (q21 - q12));
        motion[4] = sound(p[2] * dp[0] - p[0] * dp[2] + (q02 - q20));
        motion[5] = sound(p[0] * dp[1] - p[1] * dp[0] + (q10 - q01));
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            by_mean[k] += fmaf(view[k], dp[0], fmaf(view[3 + k], dp[1], view[6 + k] * dp[2]));
        }
        // Deviations, and the rotation's matrix.
        float ds[3], dq[9];
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            ds[k] = fmaf(dl[k], l[k], fmaf(dl[3 + k], l[3 + k], dl[6 + k] * l[6 + k]));
        }
#pragma unroll
        for (unsigned k = 0; k < 9; ++k) {
            dq[k] = dl[k] * s[k % 3];
        }
        const float length = 1.0f / sqrtf(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
        const float w = q[0] * length, x = q[1] * length, y = q[2] * length, z = q[3] * length;
        float h[4];
        h[0] = 2.0f * (x * (dq[7] - dq[5]) + y * (dq[2] - dq[6]) + z * (dq[3] - dq[1]));
        h[1] = 2.0f * (w * (dq[7] - dq[5]) + y * (dq[1] + dq[3]) + z * (dq[2] + dq[6]) - 2.0f * x * (dq[4] + dq[8]));
        h[2] = 2.0f * (w * (dq[2] - dq[6]) + x * (dq[1] + dq[3]) + z * (dq[5] + dq[7]) - 2.0f * y * (dq[0] + dq[8]));
        h[3] = 2.0f * (w * (dq[3] - dq[1]) + x * (dq[2] + dq[6]) + y * (dq[5] + dq[7]) - 2.0f * z * (dq[0] + dq[4]));
        const float radial = w * h[0] + x * h[1] + y * h[2] + z * h[3];
        const float opacity = 1.0f / (1.0f + expf(-planes[kOpacity][row]));
        record[0] = make_float4(sound(by_mean[0]), sound(by_mean[1]), sound(by_mean[2]), sound(ds[0]));
        record[1] = make_float4(sound(ds[1]), sound(ds[2]), sound((h[0] - w * radial) * length),
                                sound((h[1] - x * radial) * length));
        record[2] = make_float4(sound((h[2] - y * radial) * length), sound((h[3] - z * radial) * length),
                                sound(by_opacity * opacity * (1.0f - opacity)), sound(by_colour[0]));
        record[3] = make_float4(sound(by_colour[1]), sound(by_colour[2]), 0.0f, 0.0f);
        if (statistics != 0) {
            const float gx = du * (0.5f * static_cast<float>(camera.width));
            const float gy = dv * (0.5f * static_cast<float>(camera.height));
            pool.gradient[row] += sound(sqrtf(fmaf(gx, gx, gy * gy)));
            pool.seen[row] += 1;
            const unsigned observed = pool.observed[row];
            pool.observed[row] = observed + (observed != 0xffffffffu);
        }
    }
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned k = 0; k < 6; ++k) {
        const double sum = warp_sum(static_cast<double>(motion[k]));
        if (lane == 0) {
            sums[warp][k] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < 6) {
        double sum = 0.0;
        for (unsigned k = 0; k < kWarps; ++k) {
            sum += sums[k][threadIdx.x];
        }
        atomicAdd(&pose[threadIdx.x], sum);
    }
}

// Adam's step of the visible rows. A warp takes 32 rows: a lane one row's narrow fields, then all lanes the wide field.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_step(SplatPool pool, unsigned rest, SplatCamera camera, const unsigned* __restrict__ rows, unsigned count,
                  const float* __restrict__ gradients, Step step) {
    // Values of the harmonics and gradients by colour, per row.
    __shared__ float values[kWarps][32][kBands], colours[kWarps][32][3];
    __shared__ unsigned numbers[kWarps][32];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned long long i = thread_index();
    if (i < count) {
        const unsigned long long row = rows[i];
        const float4* record = reinterpret_cast<const float4*>(gradients + i * kGradients);
        const float4 g0 = record[0], g1 = record[1], g2 = record[2], g3 = record[3];
        const float old[3] = {pool.planes[0][kMean][row * 3], pool.planes[0][kMean][row * 3 + 1],
                              pool.planes[0][kMean][row * 3 + 2]};
        const float by_colour[3] = {g2.w, g3.x, g3.y};
        if (rest > 0) {
            const float4 d = direction(camera, old);
            float value[kBands];
#pragma unroll
            for (unsigned k = 0; k < kBands; ++k) {
                value[k] = 0.0f;
            }
            harmonics(d.x, d.y, d.z, camera.used, value);
#pragma unroll
            for (unsigned k = 0; k < kBands; ++k) {
                values[warp][lane][k] = value[k];
            }
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                colours[warp][lane][k] = by_colour[k];
            }
        }
        numbers[warp][lane] = static_cast<unsigned>(row);
        const float logit = pool.planes[0][kOpacity][row];
        float by_scale[3] = {g0.w, g1.x, g1.y};
        if (step.scale_weight != 0.0f) {
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                by_scale[k] += step.scale_weight * expf(pool.planes[0][kScale][row * 3 + k]);
            }
        }
        float by_opacity[1] = {g2.z};
        if (step.opacity_weight != 0.0f) {
            const float opacity = 1.0f / (1.0f + expf(-logit));
            by_opacity[0] += step.opacity_weight * opacity * (1.0f - opacity);
        }
        const float by_mean[3] = {g0.x, g0.y, g0.z}, by_rotation[4] = {g1.z, g1.w, g2.x, g2.y};
        const float by_constant[3] = {kC0 * by_colour[0], kC0 * by_colour[1], kC0 * by_colour[2]};
        float mean[3], scale[3], q[4], opacity[1], constant[3];
        adam_row<3>(pool, kMean, row, by_mean, step, mean);
        adam_row<3>(pool, kScale, row, by_scale, step, scale);
        adam_row<4>(pool, kRotation, row, by_rotation, step, q);
        adam_row<1>(pool, kOpacity, row, by_opacity, step, opacity);
        adam_row<3>(pool, kColour, row, by_constant, step, constant);
        const float norm2 = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
        if (step.noise != 0.0f && norm2 >= 1e-8f) {
            // Sigma z, less for rows that are opaque.
            const uint4 random = philox(make_uint4(static_cast<unsigned>(row), step.step, 0, 3),
                                        make_uint2(static_cast<unsigned>(step.seed), static_cast<unsigned>(step.seed >> 32)));
            const float2 first = normal_pair(random.x, random.y), second = normal_pair(random.z, random.w);
            const float z[3] = {first.x, first.y, second.x};
            const float o = 1.0f / (1.0f + expf(-opacity[0]));
            const float amount = step.noise / (1.0f + expf(100.0f * o - 0.5f));
            float r[9], l[9], t[3];
            rotation_matrix(q, r);
            const float s[3] = {expf(scale[0]), expf(scale[1]), expf(scale[2])};
            axes(r, s, l);
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                t[k] = l[k] * z[0] + l[3 + k] * z[1] + l[6 + k] * z[2];
            }
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                const float shift = l[3 * k] * t[0] + l[3 * k + 1] * t[1] + l[3 * k + 2] * t[2];
                pool.planes[0][kMean][row * 3 + k] = mean[k] + sound(amount * shift);
            }
        }
    }
    __syncwarp();
    if (rest == 0) {
        return;
    }
    const unsigned long long first = i - lane;
    const unsigned own = first >= count ? 0 : count - first < 32 ? static_cast<unsigned>(count - first) : 32;
    for (unsigned at = lane; at < own * rest; at += 32) {
        const unsigned which = at / rest, k = at - which * rest;
        const float gradient = sound(values[warp][which][k / 3] * colours[warp][which][k % 3]);
        const unsigned long long place = static_cast<unsigned long long>(numbers[warp][which]) * rest + k;
        float& p = pool.planes[0][kRest][place];
        float& m = pool.planes[1][kRest][place];
        float& v = pool.planes[2][kRest][place];
        const Moments next = adam(p, m, v, gradient, step.rates[kRest], step);
        p = next.parameter;
        m = next.first;
        v = next.second;
    }
}

// Writes the gradients by all parameters: count x (14 + rest), in the order of fields.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_write_gradients(SplatPool pool, unsigned rest, SplatCamera camera, const unsigned* __restrict__ rows,
                             unsigned first, unsigned count, const float* __restrict__ gradients, float* __restrict__ to) {
    const unsigned long long i = thread_index();
    if (i >= count) {
        return;
    }
    const float* g = gradients + (first + i) * kGradients;
    const unsigned long long row = rows[first + i];
    float* own = to + i * (14 + rest);
    for (unsigned k = 0; k < 11; ++k) {
        own[k] = g[k];
    }
    for (unsigned c = 0; c < 3; ++c) {
        own[11 + c] = kC0 * g[11 + c];
    }
    const float mean[3] = {pool.planes[0][kMean][row * 3], pool.planes[0][kMean][row * 3 + 1],
                           pool.planes[0][kMean][row * 3 + 2]};
    float value[kBands];
#pragma unroll
    for (unsigned k = 0; k < kBands; ++k) {
        value[k] = 0.0f;
    }
    const float4 d = direction(camera, mean);
    harmonics(d.x, d.y, d.z, camera.used, value);
#pragma unroll
    for (unsigned k = 0; k < kBands; ++k) {
        if (3 * k < rest) {
            for (unsigned c = 0; c < 3; ++c) {
                own[14 + 3 * k + c] = sound(value[k] * g[11 + c]);
            }
        }
    }
}
