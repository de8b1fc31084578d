// Pixel matching (docs/algorithm.md, Matching): ray image, and iterative projective search. matching_refine.cu does the
// rest. Only the directions of points count here, so that the scale by depth may still be measured meanwhile. Equals
// src/compute/matching bit for bit: compile with -fmad=false and IEEE division and roots.
//
// Limits at 512x384 (N = 196,608 pixels) on an H200 (4.8 TB/s of memory):
// * rays: 12 B read, 48 B written a pixel: 12 MB, 2.5 us of memory.
// * search: 192 B of cached taps per sample, 1 to 11 samples per pixel: at most 0.4 GB, 14 us; latency dominates.

#include "index.cuh"
#include "matching.cuh"
#include "points.cuh"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Ray image: [R(3), 0, Gu(3), 0, Gv(3), 0] a pixel.

constexpr int kRayTileW = 32, kRayTileH = 8;

// A neighbour's index, reflected at the border: -1 becomes 1, n becomes n - 2. Farther out (tiles that reach beyond the
// image; the result is not used) any index inside.
__device__ __forceinline__ int reflect(int i, int n) {
    const int last = n - 1;
    i = i < 0 ? -i : (i > last ? 2 * last - i : i);
    return max(0, min(i, last));
}

// X / max(|X|, 1e-12).
__device__ __forceinline__ float3 unit(float3 p) {
    const float norm = fmaxf(sqrtf(p.x * p.x + p.y * p.y + p.z * p.z), 1e-12f);
    return make_float3(p.x / norm, p.y / norm, p.z / norm);
}

__device__ __forceinline__ float scharr(float p0, float p1, float p2, float m0, float m1, float m2) {
    return (3.0f * (p0 - m0) + 10.0f * (p1 - m1) + 3.0f * (p2 - m2)) * (1.0f / 32.0f);
}

} // namespace

// Fills `rays` (N x 12 floats) from `points` (N x 3), and clears the counters of later launches: `seen`, one bit per
// pixel in whole words (may be null), and `counts`. Images narrower or lower than 3 pixels have no rays.
extern "C" __global__ void __launch_bounds__(kRayTileW* kRayTileH)
    ms_match_rays(const float* __restrict__ points, unsigned width, unsigned height, float4* __restrict__ rays,
                  unsigned* __restrict__ seen, ms::MatchCounts* __restrict__ counts) {
    __shared__ float3 tile[kRayTileH + 2][kRayTileW + 2];
    __shared__ float4 out[kRayTileH][kRayTileW * 3];
    const int thread = threadIdx.x;
    const unsigned long long block = static_cast<unsigned long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned long long number = block * (kRayTileW * kRayTileH) + thread;
    const unsigned long long pixels = static_cast<unsigned long long>(width) * height;
    // There are at least as many threads as pixels, so also as words.
    if (seen != nullptr && number < (pixels + 31) / 32) {
        seen[number] = 0;
    }
    if (number < sizeof(ms::MatchCounts) / sizeof(unsigned)) {
        reinterpret_cast<unsigned*>(counts)[number] = 0;
    }
    if (width < 3 || height < 3) {
        return;
    }
    const int u0 = blockIdx.x * kRayTileW, v0 = blockIdx.y * kRayTileH;
    for (int i = thread; i < (kRayTileW + 2) * (kRayTileH + 2); i += kRayTileW * kRayTileH) {
        const int x = i % (kRayTileW + 2), y = i / (kRayTileW + 2);
        const int u = reflect(u0 + x - 1, width), v = reflect(v0 + y - 1, height);
        tile[y][x] = unit(ms::point(points, static_cast<size_t>(v) * width + u));
    }
    __syncthreads();
    const int x = thread % kRayTileW, y = thread / kRayTileW;
    {
        const float3 a = tile[y][x], b = tile[y][x + 1], c = tile[y][x + 2];
        const float3 d = tile[y + 1][x], e = tile[y + 1][x + 1], f = tile[y + 1][x + 2];
        const float3 g = tile[y + 2][x], h = tile[y + 2][x + 1], i = tile[y + 2][x + 2];
        out[y][3 * x] = make_float4(e.x, e.y, e.z, 0.0f);
        out[y][3 * x + 1] = make_float4(scharr(c.x, f.x, i.x, a.x, d.x, g.x), scharr(c.y, f.y, i.y, a.y, d.y, g.y),
                                        scharr(c.z, f.z, i.z, a.z, d.z, g.z), 0.0f);
        out[y][3 * x + 2] = make_float4(scharr(g.x, h.x, i.x, a.x, b.x, c.x), scharr(g.y, h.y, i.y, a.y, b.y, c.y),
                                        scharr(g.z, h.z, i.z, a.z, b.z, c.z), 0.0f);
    }
    // One warp wrote and reads one row of `out`.
    __syncwarp();
    const int v = v0 + y;
    if (v >= static_cast<int>(height)) {
        return;
    }
    const int columns = min(kRayTileW, static_cast<int>(width) - u0);
    float4* row = rays + (static_cast<size_t>(v) * width + u0) * 3;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const int at = x + k * kRayTileW;
        if (at < 3 * columns) {
            row[at] = out[y][at];
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Projective search.

struct SearchArgs {
    const float4* rays;        // of view 1
    const float* query_points; // N x 3, view 2, in the frame of view 1
    const unsigned* start;     // N earlier matches, or null; may be `index` itself
    const unsigned* use_start; // null, or a flag: 0 means that `start` is not used
    unsigned* index;           // N
    unsigned char* converged;  // N
    unsigned width, height, max_iter;
    float lambda_init, convergence, noise;
};

namespace {

using ms::dot;

// Clamps to [1, last]; NaN becomes 1.
__device__ __forceinline__ float clamp_to(float x, float last) { return fminf(fmaxf(x, 1.0f), last); }

struct Look {
    float3 gu, gv; // gradients
    float3 error;  // renormalised ray minus target direction
    float cost;    // its squared length
};

__device__ __forceinline__ float3 blend(float4 w, float4 a, float4 b, float4 c, float4 d) {
    return make_float3((w.x * a.x + w.y * b.x) + (w.z * c.x + w.w * d.x),
                       (w.x * a.y + w.y * b.y) + (w.z * c.y + w.w * d.y),
                       (w.x * a.z + w.y * b.z) + (w.z * c.z + w.w * d.z));
}

// 1 <= u <= width - 2, the same for v, so that all four taps are inside.
__device__ __forceinline__ Look look(const float4* __restrict__ rays, unsigned width, float u, float v, float3 p) {
    const unsigned u0 = static_cast<unsigned>(u), v0 = static_cast<unsigned>(v);
    const float du = u - static_cast<float>(u0), dv = v - static_cast<float>(v0);
    const float4* top = rays + (static_cast<size_t>(v0) * width + u0) * 3;
    const float4* bottom = top + static_cast<size_t>(width) * 3;
    const float4 w =
        make_float4((1.0f - du) * (1.0f - dv), du * (1.0f - dv), (1.0f - du) * dv, du * dv);
    const float3 r = blend(w, top[0], top[3], bottom[0], bottom[3]);
    Look l;
    l.gu = blend(w, top[1], top[4], bottom[1], bottom[4]);
    l.gv = blend(w, top[2], top[5], bottom[2], bottom[5]);
    const float inverse = 1.0f / sqrtf(r.x * r.x + r.y * r.y + r.z * r.z);
    l.error = make_float3(r.x * inverse - p.x, r.y * inverse - p.y, r.z * inverse - p.z);
    l.cost = dot(l.error, l.error);
    return l;
}

} // namespace

// One thread a pixel of view 2. `index` gets the truncated position.
extern "C" __global__ void __launch_bounds__(128) ms_match_search(const SearchArgs a) {
    const unsigned long long pixels = static_cast<unsigned long long>(a.width) * a.height;
    const unsigned long long n = ms::thread_index();
    if (n >= pixels) {
        return;
    }
    unsigned from = static_cast<unsigned>(n);
    if (a.start != nullptr && (a.use_start == nullptr || *a.use_start != 0)) {
        const unsigned earlier = a.start[n];
        from = earlier < pixels ? earlier : from;
    }
    if (a.width < 3 || a.height < 3) {
        a.index[n] = from;
        a.converged[n] = 0;
        return;
    }
    const float u_last = static_cast<float>(a.width - 2), v_last = static_cast<float>(a.height - 2);
    float u = clamp_to(static_cast<float>(from % a.width), u_last);
    float v = clamp_to(static_cast<float>(from / a.width), v_last);
    const float3 x = ms::point(a.query_points, n);
    bool converged = false;
    if (ms::usable(x)) {
        const float3 p = unit(x);
        float lambda = a.lambda_init;
        Look here = look(a.rays, a.width, u, v, p);
        // Comparisons that NaN fails: a NaN cost is never improved.
        for (unsigned k = 0; here.cost >= a.noise && k < a.max_iter; ++k) {
            // Damped Gauss-Newton step by the adjugate.
            const float aa = dot(here.gu, here.gu) + lambda;
            const float bb = dot(here.gu, here.gv);
            const float dd = dot(here.gv, here.gv) + lambda;
            const float gx = -dot(here.gu, here.error), gy = -dot(here.gv, here.error);
            const float inverse = 1.0f / (aa * dd - bb * bb);
            const float new_u = clamp_to(u + (dd * gx - bb * gy) * inverse, u_last);
            const float new_v = clamp_to(v + (aa * gy - bb * gx) * inverse, v_last);
            const Look there = look(a.rays, a.width, new_u, new_v, p);
            if (there.cost < here.cost) {
                u = new_u;
                v = new_v;
                lambda *= 0.1f;
                here = there;
            } else {
                lambda *= 10.0f;
            }
        }
        converged = a.max_iter > 0 && here.cost < a.convergence;
    }
    a.index[n] = static_cast<unsigned>(v) * a.width + static_cast<unsigned>(u);
    a.converged[n] = converged;
}
