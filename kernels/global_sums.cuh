// Contribution of one match to the normal equations of a global solve (docs/algorithm.md, Global optimisation): three
// models of 32 sums each; with `kCost` the robust cost alone, with the same bits.
//
// A thread keeps its sums in registers; 32 sums are one per lane when a warp adds up. All three models fit: entries of
// the Hessian that are always zero are not kept, nor is the one that follows from two others. Instructions limit the
// time (see global.cu), so products common to several rows are shared: 96 for a match's rays instead of 112. Everything
// is f32: a residual has an error of a few 2^-24 of its operands (a unit ray, a distance, a pixel coordinate), about
// 1e-4 of the sigma that weights it.
//
// A shared term is a sum of products of two entries of one row and its weight, each at most sqrt(H_aa H_bb): the error
// of entry (a, b) is a few 2^-24 of that, also for few matches. Along its ray a point has 10^7 times less information
// than across (at the default sigmas), so a difference of two across-ray terms would leave only noise there.
#pragma once

#include "residual.cuh"

namespace ms::global {

constexpr int kSums = 32;
constexpr int kRobustSum = 31;

enum Model : unsigned { kRays, kPixels, kPoints, kModels };

// Where the sums of each model belong: 8 r + c for (r, c) of the Hessian's upper triangle, 8 r + 7 for the gradient, 56
// for the robust cost, 63 for unused. The rays' block of translation and rotation lacks entry (2, 5): its trace is
// zero.
constexpr unsigned kRobustPlace = 56, kNoPlace = 63;
__constant__ unsigned char kPlaces[kModels][kSums] = {
    {0,  1,  2,  9,  10, 18, 3,  4,  5,  11, 12, 13, 19, 20, 27, 28,
     29, 36, 37, 45, 6,  14, 22, 54, 7,  15, 23, 31, 39, 47, 55, kRobustPlace},
    {0,  2,  3,  4,  5,  9,  10, 11, 12, 13, 18, 19, 20, 21, 22, 27,
     28, 29, 30, 36, 37, 38, 45, 54, 7,  15, 23, 31, 39, 47, 55, kRobustPlace},
    {0,  9,  18, 4,  5,  11, 13, 19, 20, 6,  14, 22, 30, 38, 46, 54, kNoPlace, kNoPlace,
     27, 28, 29, 36, 37, 45, 7,  15, 23, 31, 39, 47, 55, kRobustPlace},
};

// Accurate to two or three units in the last place, less than one rounding of a residual. The gates leave only normal
// numbers as arguments.
__device__ __forceinline__ float inverse_root(float v) {
    float out;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

__device__ __forceinline__ float root(float v) {
    float out;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

__device__ __forceinline__ float inverse(float v) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

// Natural logarithm; absolute error 2^-22 near 1.
__device__ __forceinline__ float logarithm(float v) {
    float out;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out * 0.693147180559945309f;
}

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Adds Huber's function of a whitened residual to `robust`; its weight rho / sigma^2 q. `s` is sqrt(q) / sigma, `ks` is
// huber q / sigma^2: rho is 1 below `huber`, huber / |w| above.
__device__ __forceinline__ float weigh(float e, float s, float ks, float huber, float& robust) {
    const float whitened = fabsf(e * s);
    const float clipped = fminf(whitened, huber);
    robust = fused(clipped, fused(-0.5f, clipped, whitened), robust);
    return ks * inverse(fmaxf(whitened, huber));
}

// sigma-dependent factors, the same for all matches.
struct Weights {
    float inverse_sigma[2];
    float huber_information[2]; // huber / sigma^2
    float huber;
};

__device__ __forceinline__ Weights weights(const Noise& noise) {
    Weights w;
    for (int k = 0; k < 2; ++k) {
        w.inverse_sigma[k] = noise.inverse_sigma[k];
        w.huber_information[k] = noise.huber * noise.inverse_sigma[k] * noise.inverse_sigma[k];
    }
    w.huber = noise.huber;
    return w;
}

// v^T diag(w) v with v = -p^, six sums from `first`; `xx` to `yz` are the products of p's components.
__device__ __forceinline__ void add_rotation(float (&sums)[kSums], int first, const float (&w)[3], float xx, float yy,
                                             float zz, float xy, float xz, float yz) {
    float* s = sums + first;
    s[0] = fused(w[1], zz, fused(w[2], yy, s[0]));
    s[1] = fused(-w[2], xy, s[1]);
    s[2] = fused(-w[1], xz, s[2]);
    s[3] = fused(w[0], zz, fused(w[2], xx, s[3]));
    s[4] = fused(-w[0], yz, s[4]);
    s[5] = fused(w[0], yy, fused(w[1], xx, s[5]));
}

// sums += p x f, three sums from `first`.
__device__ __forceinline__ void add_moment(float (&sums)[kSums], int first, const float (&p)[3], const float (&f)[3]) {
    float* s = sums + first;
    s[0] = fused(p[1], f[2], fused(-p[2], f[1], s[0]));
    s[1] = fused(p[2], f[0], fused(-p[0], f[2], s[1]));
    s[2] = fused(p[0], f[1], fused(-p[1], f[0], s[2]));
}

// e = (P/|P| - X/|X|, |P| - |X|); rows [M, -r^, 0] and [r^T, 0, d] with r = P/|P|, d = |P|, M = (I - r r^T)/d.
//
// With W the weights of the ray's components, w_d the distance's, r = (x, y, z), v = W/d, n_k = 1 - r_k^2 as the sum of
// the other two squares, b_k = v_k n_k, and m_ab = b_a + v_c r_a^2 for the c that is neither a nor b:
//   tau phi      M W (-r^): (a, a) is x y z (v_b - v_c) for a, b, c in cyclic order, (a, b) is r_c m_ab, + where b
//                follows a, else -
//   tau tau      M W M + w_d r r^T: (a, a) is (r_b^2 m_ac + r_c^2 m_ab)/d + w_d r_a^2, (a, b) is
//                r_a r_b (w_d - (b_a + b_b - v_c r_c^2)/d)
//   phi phi      (-r^)^T W (-r^)
//   tau sigma    w_d d r;  sigma sigma  w_d d^2;  phi sigma  0
//   gradient     M W e + w_d e_d r;  r x W e;  w_d e_d d
struct RaySums {
    template <bool kCost>
    static __device__ __forceinline__ void add(float (&s)[kSums], const float (&p)[3], float norm2, const float (&x)[3],
                                               float q, const Weights& k) {
        const float i = inverse_root(norm2);
        const float d = norm2 * i;
        const float r[3] = {p[0] * i, p[1] * i, p[2] * i};
        const float x2 = fused(x[0], x[0], fused(x[1], x[1], x[2] * x[2]));
        const float xi = inverse_root(x2);
        const float e[3] = {fused(-x[0], xi, r[0]), fused(-x[1], xi, r[1]), fused(-x[2], xi, r[2])};
        const float ed = fused(-x2, xi, d);

        const float rq = root(q);
        const float sr = rq * k.inverse_sigma[0], kr = q * k.huber_information[0];
        float& robust = s[kRobustSum];
        const float w[3] = {weigh(e[0], sr, kr, k.huber, robust), weigh(e[1], sr, kr, k.huber, robust),
                            weigh(e[2], sr, kr, k.huber, robust)};
        const float wd =
            weigh(ed, rq * k.inverse_sigma[1], q * k.huber_information[1], k.huber, robust);
        if constexpr (kCost) {
            return;
        }

        const float xx = r[0] * r[0], yy = r[1] * r[1], zz = r[2] * r[2];
        const float xy = r[0] * r[1], xz = r[0] * r[2], yz = r[1] * r[2];
        const float v[3] = {w[0] * i, w[1] * i, w[2] * i};
        const float n[3] = {yy + zz, xx + zz, xx + yy};
        const float b[3] = {v[0] * n[0], v[1] * n[1], v[2] * n[2]};
        const float m01 = fused(v[2], xx, b[0]), m02 = fused(v[1], xx, b[0]);
        const float m10 = fused(v[2], yy, b[1]), m12 = fused(v[0], yy, b[1]);
        const float m20 = fused(v[1], zz, b[2]), m21 = fused(v[0], zz, b[2]);

        s[0] = fused(i, fused(yy, m02, zz * m01), fused(wd, xx, s[0]));
        s[1] = fused(xy, fused(-i, fused(-v[2], zz, b[0] + b[1]), wd), s[1]);
        s[2] = fused(xz, fused(-i, fused(-v[1], yy, b[0] + b[2]), wd), s[2]);
        s[3] = fused(i, fused(xx, m12, zz * m10), fused(wd, yy, s[3]));
        s[4] = fused(yz, fused(-i, fused(-v[0], xx, b[1] + b[2]), wd), s[4]);
        s[5] = fused(i, fused(xx, m21, yy * m20), fused(wd, zz, s[5]));

        const float xyz = xy * r[2];
        s[6] = fused(xyz, v[1] - v[2], s[6]);
        s[7] = fused(r[2], m01, s[7]);
        s[8] = fused(-r[1], m02, s[8]);
        s[9] = fused(-r[2], m10, s[9]);
        s[10] = fused(xyz, v[2] - v[0], s[10]);
        s[11] = fused(r[0], m12, s[11]);
        s[12] = fused(r[1], m20, s[12]);
        s[13] = fused(-r[0], m21, s[13]);

        add_rotation(s, 14, w, xx, yy, zz, xy, xz, yz);

        const float wdd = wd * d;
        s[20] = fused(wdd, r[0], s[20]);
        s[21] = fused(wdd, r[1], s[21]);
        s[22] = fused(wdd, r[2], s[22]);
        s[23] = fused(wdd, d, s[23]);

        const float f[3] = {w[0] * e[0], w[1] * e[1], w[2] * e[2]};
        const float fd = wd * ed;
        const float g[3] = {v[0] * e[0], v[1] * e[1], v[2] * e[2]};
        s[24] = fused(n[0], g[0], fused(-xy, g[1], fused(-xz, g[2], fused(r[0], fd, s[24]))));
        s[25] = fused(n[1], g[1], fused(-xy, g[0], fused(-yz, g[2], fused(r[1], fd, s[25]))));
        s[26] = fused(n[2], g[2], fused(-xz, g[0], fused(-yz, g[1], fused(r[2], fd, s[26]))));
        add_moment(s, 27, r, f);
        s[30] = fused(fd, d, s[30]);
    }
};

// e = P - X; rows [I, -P^, P].
struct PointSums {
    template <bool kCost>
    static __device__ __forceinline__ void add(float (&s)[kSums], const float (&p)[3], float norm2, const float (&x)[3],
                                               float q, const Weights& k) {
        (void)norm2;
        const float e[3] = {p[0] - x[0], p[1] - x[1], p[2] - x[2]};
        const float sp = root(q) * k.inverse_sigma[0], kp = q * k.huber_information[0];
        float& robust = s[kRobustSum];
        const float w[3] = {weigh(e[0], sp, kp, k.huber, robust), weigh(e[1], sp, kp, k.huber, robust),
                            weigh(e[2], sp, kp, k.huber, robust)};
        if constexpr (kCost) {
            return;
        }
        s[0] += w[0];
        s[1] += w[1];
        s[2] += w[2];
        s[3] = fused(w[0], p[2], s[3]);
        s[4] = fused(-w[0], p[1], s[4]);
        s[5] = fused(-w[1], p[2], s[5]);
        s[6] = fused(w[1], p[0], s[6]);
        s[7] = fused(w[2], p[1], s[7]);
        s[8] = fused(-w[2], p[0], s[8]);
        s[9] = fused(w[0], p[0], s[9]);
        s[10] = fused(w[1], p[1], s[10]);
        s[11] = fused(w[2], p[2], s[11]);
        const float xx = p[0] * p[0], yy = p[1] * p[1], zz = p[2] * p[2];
        const float xy = p[0] * p[1], xz = p[0] * p[2], yz = p[1] * p[2];
        s[12] = fused(w[2] - w[1], yz, s[12]);
        s[13] = fused(w[0] - w[2], xz, s[13]);
        s[14] = fused(w[1] - w[0], xy, s[14]);
        s[15] = fused(w[0], xx, fused(w[1], yy, fused(w[2], zz, s[15])));
        add_rotation(s, 18, w, xx, yy, zz, xy, xz, yz);
        const float f[3] = {w[0] * e[0], w[1] * e[1], w[2] * e[2]};
        s[24] += f[0];
        s[25] += f[1];
        s[26] += f[2];
        add_moment(s, 27, p, f);
        s[30] = fused(f[0], p[0], fused(f[1], p[1], fused(f[2], p[2], s[30])));
    }
};

// e = (u(P) - u, v(P) - v, log P_z - log z) with the target (u, v, z); a projection counts inside the view and in front
// of the camera. Rows, with (x, y) = (P_x, P_y)/P_z and i = 1/P_z:
//   u      f_x [i, 0, -x i, -x y, 1 + x^2, -y, 0]
//   v      f_y [0, i, -y i, -(1 + y^2), x y, x, 0]
//   log z  [0, 0, i, y, -x, 0, 1]
// The focal lengths are part of the weights and residuals.
struct PixelSums {
    // Adds the match if it counts, and returns whether it does.
    template <bool kCost>
    static __device__ __forceinline__ bool add(float (&s)[kSums], const float (&p)[3], float u, float v, float z, float q,
                                               const Weights& k, const View& view) {
        const float i = inverse(p[2]);
        const float x = p[0] * i, y = p[1] * i;
        const float fx = view.focal[0], fy = view.focal[1];
        const float up = fused(x, fx, view.principal[0]), vp = fused(y, fy, view.principal[1]);
        // False for NaN.
        if (!(fabsf(up - view.middle[0]) < view.reach[0] && fabsf(vp - view.middle[1]) < view.reach[1])) {
            return false;
        }
        const float rq = root(q);
        const float sp = rq * k.inverse_sigma[0], kp = q * k.huber_information[0];
        float& robust = s[kRobustSum];
        if constexpr (kCost) {
            weigh(up - u, sp, kp, k.huber, robust);
            weigh(vp - v, sp, kp, k.huber, robust);
            const float e = logarithm(p[2] * inverse(z));
            weigh(e, rq * k.inverse_sigma[1], q * k.huber_information[1], k.huber, robust);
            return true;
        }
        const float xy = x * y, xi = x * i, yi = y * i;
        {
            const float e = up - u;
            // w f^2 e/f row'^T = w f e row'^T.
            const float w = weigh(e, sp, kp, k.huber, robust) * fx;
            const float g = w * e, h = w * fx;
            const float turn = fused(x, x, 1.0f);
            const float b0 = h * i, b2 = h * xi, b3 = h * xy, b4 = h * turn, b5 = h * y;
            s[0] = fused(b0, i, s[0]);
            s[1] = fused(-b0, xi, s[1]);
            s[2] = fused(-b0, xy, s[2]);
            s[3] = fused(b0, turn, s[3]);
            s[4] = fused(-b0, y, s[4]);
            s[10] = fused(b2, xi, s[10]);
            s[11] = fused(b2, xy, s[11]);
            s[12] = fused(-b2, turn, s[12]);
            s[13] = fused(b2, y, s[13]);
            s[15] = fused(b3, xy, s[15]);
            s[16] = fused(-b3, turn, s[16]);
            s[17] = fused(b3, y, s[17]);
            s[19] = fused(b4, turn, s[19]);
            s[20] = fused(-b4, y, s[20]);
            s[22] = fused(b5, y, s[22]);
            s[24] = fused(g, i, s[24]);
            s[26] = fused(-g, xi, s[26]);
            s[27] = fused(-g, xy, s[27]);
            s[28] = fused(g, turn, s[28]);
            s[29] = fused(-g, y, s[29]);
        }
        {
            const float e = vp - v;
            const float w = weigh(e, sp, kp, k.huber, robust) * fy;
            const float g = w * e, h = w * fy;
            const float turn = fused(y, y, 1.0f);
            const float b1 = h * i, b2 = h * yi, b3 = h * turn, b4 = h * xy, b5 = h * x;
            s[5] = fused(b1, i, s[5]);
            s[6] = fused(-b1, yi, s[6]);
            s[7] = fused(-b1, turn, s[7]);
            s[8] = fused(b1, xy, s[8]);
            s[9] = fused(b1, x, s[9]);
            s[10] = fused(b2, yi, s[10]);
            s[11] = fused(b2, turn, s[11]);
            s[12] = fused(-b2, xy, s[12]);
            s[13] = fused(-b2, x, s[13]);
            s[15] = fused(b3, turn, s[15]);
            s[16] = fused(-b3, xy, s[16]);
            s[17] = fused(-b3, x, s[17]);
            s[19] = fused(b4, xy, s[19]);
            s[20] = fused(b4, x, s[20]);
            s[22] = fused(b5, x, s[22]);
            s[25] = fused(g, i, s[25]);
            s[26] = fused(-g, yi, s[26]);
            s[27] = fused(-g, turn, s[27]);
            s[28] = fused(g, xy, s[28]);
            s[29] = fused(g, x, s[29]);
        }
        {
            const float e = logarithm(p[2] * inverse(z));
            const float w = weigh(e, rq * k.inverse_sigma[1], q * k.huber_information[1], k.huber, robust);
            const float wi = w * i, wx = w * x, wy = w * y, g = w * e;
            s[10] = fused(wi, i, s[10]);
            s[11] = fused(wi, y, s[11]);
            s[12] = fused(-wi, x, s[12]);
            s[14] += wi;
            s[15] = fused(wy, y, s[15]);
            s[16] = fused(-wx, y, s[16]);
            s[18] += wy;
            s[19] = fused(wx, x, s[19]);
            s[21] -= wx;
            s[23] += w;
            s[26] = fused(g, i, s[26]);
            s[27] = fused(g, y, s[27]);
            s[28] = fused(-g, x, s[28]);
            s[30] += g;
        }
        return true;
    }
};

} // namespace ms::global
