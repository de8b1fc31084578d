// Residuals of a matched pair of points under a similarity transform, and their normal equations, for tracking and for
// the global solve (docs/algorithm.md, Tracking and Global optimisation). src/compute/residual is the definition.
//
// A moving point x is taken by a pose to P = A x + t and compared with a target. Residuals are predicted minus
// measured; Jacobian rows are derivatives by a left perturbation [tau, phi, sigma]. Everything is f32: a residual then
// has a random rounding error of a few 2^-24 of its operands (a unit ray, a distance, a pixel coordinate), about 1e-4
// of the sigma that weights it. Short sums are f32 too; the sums over them are wider.
//
// Multiply-adds are fused only where the source says so (-fmad=false), so every compiler gives the same bits.
#pragma once

#include "sim3.cuh"

namespace ms {

// A constant, because run-time compilers lack the INFINITY macro.
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// Squared norms of usable points, metres^2, before and after the transform.
constexpr float kLeastNorm2 = 1e-16f, kGreatestNorm2 = 1e16f;
constexpr float kLeastMovedNorm2 = 1e-24f, kGreatestMovedNorm2 = 1e24f;

// How residuals are weighted: 1 / sigma of (ray, distance), (pixel, log-depth) or (point, unused), and Huber's
// constant.
struct Noise {
    float inverse_sigma[2];
    float huber;
};

// The image that calibrated residuals project into. A projection counts while it is nearer than `reach` to the middle,
// `middle` = (size - 1) / 2, reach = middle - border, and deeper than `depth`.
struct View {
    float focal[2];
    float principal[2];
    float middle[2];
    float reach[2];
    float depth;
};

// Gates of a match that no pose changes: quality above `quality` and 0, target deeper than `depth` (-inf: any).
struct Gate {
    float quality;
    float depth;
};

__device__ __forceinline__ float squared_norm(const float (&p)[3]) { return p[0] * p[0] + p[1] * p[1] + p[2] * p[2]; }

// Whether a point is usable: finite, not at the camera, and within range. The same bits as on the CPU.
__device__ __forceinline__ bool has_place(const float (&p)[3]) {
    const float n = squared_norm(p);
    // False for NaN.
    return n > kLeastNorm2 && n < kGreatestNorm2;
}

// Whether a match can be used. Non-finite values are rejected here and nowhere later.
__device__ __forceinline__ bool accepts(const Gate& gate, const float (&moving)[3], const float (&target)[3],
                                        float quality) {
    return quality > gate.quality && quality > 0.0f && quality < infinity() && has_place(moving) && has_place(target) &&
           target[2] > gate.depth;
}

// Columns and then rows as rays, the x and y of K^-1 [u, v, 1], for an image of `width` columns and `height` rows.
struct Rays {
    const float* slopes;
    unsigned width;
    unsigned height;
};

// z K^-1 [u, v, 1]^T of a pixel below width * height: the CPU's bits.
__device__ __forceinline__ void on_ray(const Rays& rays, unsigned pixel, float z, float (&out)[3]) {
    const unsigned v = pixel / rays.width;
    const unsigned u = pixel - v * rays.width;
    out[0] = rays.slopes[u] * z;
    out[1] = rays.slopes[static_cast<unsigned long long>(rays.width) + v] * z;
    out[2] = z;
}

__device__ __forceinline__ void transform(const Pose& pose, const float (&x)[3], float (&p)[3]) {
    for (int r = 0; r < 3; ++r) {
        const float* a = pose.a + 3 * r;
        p[r] = __fmaf_rn(a[0], x[0], __fmaf_rn(a[1], x[1], __fmaf_rn(a[2], x[2], pose.t[r])));
    }
}

// Direction and length of a usable point; the same operations for prediction and measurement, so that points that are
// the same leave a residual of exactly zero.
__device__ __forceinline__ void split(const float (&p)[3], float (&ray)[3], float& length, float& inverse) {
    const float n = __fmaf_rn(p[0], p[0], __fmaf_rn(p[1], p[1], p[2] * p[2]));
    inverse = rsqrtf(n);
    // The instruction has an error of two ulp; one Newton step reduces it to one.
    inverse = __fmaf_rn(0.5f * inverse, __fmaf_rn(-n * inverse, inverse, 1.0f), inverse);
    length = n * inverse;
    for (int k = 0; k < 3; ++k) {
        ray[k] = p[k] * inverse;
    }
}

// Columns of `Sums`: the Hessian's upper triangle row by row, the gradient, and two costs.
constexpr int kGradient = 28;
constexpr int kCost = 35;
constexpr int kRobust = 36;
constexpr int kColumns = 37;

// Place of (r, c), r <= c, in a packed upper triangle.
__device__ constexpr int packed(int r, int c) { return r * (13 - r) / 2 + c; }

// Sums over matches: Hessian sum w row^T row, gradient sum w row^T e, cost 1/2 sum rho w^2 and Huber's function.
struct Sums {
    float column[kColumns];
    // Matches that passed every gate, and those of them that fit the pose.
    unsigned used;
    unsigned fitting;

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
            column[k] = 0.0f;
        }
        used = 0;
        fitting = 0;
    }
};

// Costs of one match, added up before they enter the sums, which shortens the chains of additions.
struct MatchCost {
    float cost = 0.0f;
    float robust = 0.0f;
};

// One scalar residual e with its Jacobian row and sqrt(q) / sigma. `Where` are the places of the row's entries that are
// not zero, in ascending order.
template <int... Where>
__device__ __forceinline__ void add_row(Sums& sums, MatchCost& cost, const float (&row)[sizeof...(Where)], float e,
                                        float root_information, float huber) {
    constexpr int kEntries = sizeof...(Where);
    constexpr int where[kEntries] = {Where...};
    const float whitened = fabsf(e * root_information);
    const float clipped = fminf(whitened, huber);
    // Huber: rho = 1 below k, k / |w| above.
    const float rho = whitened > huber ? __fdividef(huber, whitened) : 1.0f;
    const float weight = rho * root_information * root_information;
    cost.cost = __fmaf_rn(0.5f * whitened, clipped, cost.cost);
    cost.robust = __fmaf_rn(clipped, __fmaf_rn(-0.5f, clipped, whitened), cost.robust);
#pragma unroll
    for (int a = 0; a < kEntries; ++a) {
        const float scaled = weight * row[a];
        sums.column[kGradient + where[a]] = __fmaf_rn(scaled, e, sums.column[kGradient + where[a]]);
#pragma unroll
        for (int b = a; b < kEntries; ++b) {
            float& h = sums.column[packed(where[a], where[b])];
            h = __fmaf_rn(scaled, row[b], h);
        }
    }
}

// `fits`: the direction error is below the limit.
__device__ __forceinline__ void close_match(Sums& sums, const MatchCost& cost, bool fits) {
    sums.column[kCost] += cost.cost;
    sums.column[kRobust] += cost.robust;
    ++sums.used;
    sums.fitting += fits;
}

// Whether a transformed point can be compared.
__device__ __forceinline__ bool has_moved_place(const float (&p)[3]) {
    const float n = squared_norm(p);
    return n > kLeastMovedNorm2 && n < kGreatestMovedNorm2;
}

// A match for rays: moving point, the target's direction and distance, square root of the quality.
struct RayMatch {
    float moving[3];
    float ray[3];
    float length;
    float root_quality;
};

__device__ __forceinline__ RayMatch ray_match(const float (&moving)[3], const float (&target)[3], float quality) {
    RayMatch m;
    float inverse;
    split(target, m.ray, m.length, inverse);
    for (int k = 0; k < 3; ++k) {
        m.moving[k] = moving[k];
    }
    m.root_quality = sqrtf(quality);
    return m;
}

// e = (P/|P| - X/|X|, |P| - |X|); rows [(I - r r^T)/d, -r^, 0] and [r^T, 0, d]. A match fits if the ray's squared error is
// below `fits`.
__device__ __forceinline__ void add_rays(Sums& sums, const Pose& pose, const Noise& noise, const RayMatch& m,
                                         float fits) {
    float p[3], r[3], d, inverse;
    transform(pose, m.moving, p);
    if (!has_moved_place(p)) {
        return;
    }
    split(p, r, d, inverse);
    const float xy = -(r[0] * r[1]) * inverse, xz = -(r[0] * r[2]) * inverse, yz = -(r[1] * r[2]) * inverse;
    const float xx = __fmaf_rn(-r[0], r[0], 1.0f) * inverse;
    const float yy = __fmaf_rn(-r[1], r[1], 1.0f) * inverse;
    const float zz = __fmaf_rn(-r[2], r[2], 1.0f) * inverse;
    MatchCost cost;
    float s = m.root_quality * noise.inverse_sigma[0];
    const float e[3] = {r[0] - m.ray[0], r[1] - m.ray[1], r[2] - m.ray[2]};
    add_row<0, 1, 2, 4, 5>(sums, cost, {xx, xy, xz, r[2], -r[1]}, e[0], s, noise.huber);
    add_row<0, 1, 2, 3, 5>(sums, cost, {xy, yy, yz, -r[2], r[0]}, e[1], s, noise.huber);
    add_row<0, 1, 2, 3, 4>(sums, cost, {xz, yz, zz, r[1], -r[0]}, e[2], s, noise.huber);
    s = m.root_quality * noise.inverse_sigma[1];
    add_row<0, 1, 2, 6>(sums, cost, {r[0], r[1], r[2], d}, d - m.length, s, noise.huber);
    close_match(sums, cost, squared_norm(e) < fits);
}

// A calibrated match: moving point, the target's pixel and log-depth, square root of the quality, and the weight of the
// log-depth.
struct PixelMatch {
    float moving[3];
    float pixel[2];
    float log_depth;
    float root_quality;
    float inverse_depth_sigma;
};

__device__ __forceinline__ PixelMatch pixel_match(const float (&moving)[3], unsigned u, unsigned v, float depth,
                                                  float quality, float inverse_depth_sigma) {
    PixelMatch m;
    for (int k = 0; k < 3; ++k) {
        m.moving[k] = moving[k];
    }
    // Exact below 2^24.
    m.pixel[0] = static_cast<float>(u);
    m.pixel[1] = static_cast<float>(v);
    m.log_depth = logf(depth);
    m.root_quality = sqrtf(quality);
    m.inverse_depth_sigma = inverse_depth_sigma;
    return m;
}

// e = (u(P) - u, v(P) - v, log P_z - log z); a projection counts inside the view and in front of the camera. A match fits
// if the pixel's squared error is below `fits`.
__device__ __forceinline__ void add_pixels(Sums& sums, const Pose& pose, const View& view, const Noise& noise,
                                           const PixelMatch& m, float fits) {
    float p[3];
    transform(pose, m.moving, p);
    if (!(has_moved_place(p) && p[2] > view.depth)) {
        return;
    }
    const float inverse = 1.0f / p[2];
    const float x = p[0] * inverse, y = p[1] * inverse;
    const float fx = view.focal[0], fy = view.focal[1];
    const float u = __fmaf_rn(x, fx, view.principal[0]), v = __fmaf_rn(y, fy, view.principal[1]);
    // False for NaN.
    if (!(fabsf(u - view.middle[0]) < view.reach[0] && fabsf(v - view.middle[1]) < view.reach[1])) {
        return;
    }
    MatchCost cost;
    float s = m.root_quality * noise.inverse_sigma[0];
    const float xy = x * y;
    const float eu = u - m.pixel[0], ev = v - m.pixel[1];
    add_row<0, 2, 3, 4, 5>(sums, cost,
                           {inverse * fx, -(x * inverse) * fx, -xy * fx, __fmaf_rn(x, x, 1.0f) * fx, -y * fx},
                           eu, s, noise.huber);
    add_row<1, 2, 3, 4, 5>(sums, cost,
                           {inverse * fy, -(y * inverse) * fy, -__fmaf_rn(y, y, 1.0f) * fy, xy * fy, x * fy},
                           ev, s, noise.huber);
    s = m.root_quality * m.inverse_depth_sigma;
    add_row<2, 3, 4, 6>(sums, cost, {inverse, y, -x, 1.0f}, logf(p[2]) - m.log_depth, s, noise.huber);
    close_match(sums, cost, eu * eu + ev * ev < fits);
}

// One level of `sum_warp`: lanes that differ in bit `Mask` share the N columns between them.
template <int N, int Mask> __device__ __forceinline__ void halve(float (&v)[kColumns], bool upper) {
    constexpr int kHalf = (N + 1) / 2;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
        const float low = v[i];
        const float high = i + kHalf < N ? v[i + kHalf] : 0.0f;
        v[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, Mask);
    }
}

// Adds the columns up over a whole warp, in a fixed order, with 39 shuffles instead of 185, and writes them to
// out[0..kColumns]. Destroys the columns.
__device__ __forceinline__ void sum_warp(Sums& sums, unsigned lane, float* out) {
    float(&v)[kColumns] = sums.column;
    const bool b16 = lane & 16, b8 = lane & 8, b4 = lane & 4, b2 = lane & 2, b1 = lane & 1;
    // 37 -> 19 -> 10 -> 5 -> 3 -> 2 columns a lane. The last lanes' shares are short by one at three of the levels.
    halve<37, 16>(v, b16);
    halve<19, 8>(v, b8);
    halve<10, 4>(v, b4);
    halve<5, 2>(v, b2);
    halve<3, 1>(v, b1);
    // Where the lane's share begins, and how long it is.
    unsigned first = 0, length = kColumns;
    const auto take = [&](bool upper, unsigned half) {
        first += upper ? half : 0;
        length = upper ? (length > half ? length - half : 0) : (length < half ? length : half);
    };
    take(b16, 19);
    take(b8, 10);
    take(b4, 5);
    take(b2, 3);
    take(b1, 2);
    if (length > 0) {
        out[first] = v[0];
    }
    if (length > 1) {
        out[first + 1] = v[1];
    }
}

} // namespace ms
