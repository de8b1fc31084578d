// Similarity transforms in f64, as in src/geometry/sim3.rs: p -> s R p + t, tangents [tau, phi, sigma], left
// perturbations Exp(xi) T. One thread does it; f64, because small steps cancel in f32.
#pragma once

namespace ms {

// The layout of `Sim3::to_array`: translation, quaternion x y z w, scale.
struct Sim3 {
    double t[3];
    double q[4];
    double s;
};

// A pose for points in f32: P = A x + t, A = s R row by row.
struct Pose {
    float a[9];
    float t[3];
};

__device__ __forceinline__ Sim3 sim3_identity() { return {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0, 1.0}, 1.0}; }

__device__ __forceinline__ Sim3 sim3_load(const double* p) {
    return {{p[0], p[1], p[2]}, {p[3], p[4], p[5], p[6]}, p[7]};
}

__device__ __forceinline__ void sim3_store(const Sim3& pose, double* p) {
    for (int k = 0; k < 3; ++k) {
        p[k] = pose.t[k];
    }
    for (int k = 0; k < 4; ++k) {
        p[3 + k] = pose.q[k];
    }
    p[7] = pose.s;
}

// Whether every component is finite and the scale positive.
__device__ __forceinline__ bool sim3_is_finite(const Sim3& pose) {
    bool ok = isfinite(pose.s) && pose.s > 0.0;
    for (double v : pose.t) {
        ok = ok && isfinite(v);
    }
    for (double v : pose.q) {
        ok = ok && isfinite(v);
    }
    return ok;
}

// out = R v: v + 2 w (u x v) + 2 u x (u x v).
__device__ __forceinline__ void rotate(const double (&q)[4], const double (&v)[3], double (&out)[3]) {
    const double cx = 2.0 * (q[1] * v[2] - q[2] * v[1]);
    const double cy = 2.0 * (q[2] * v[0] - q[0] * v[2]);
    const double cz = 2.0 * (q[0] * v[1] - q[1] * v[0]);
    out[0] = fma(q[3], cx, v[0]) + (q[1] * cz - q[2] * cy);
    out[1] = fma(q[3], cy, v[1]) + (q[2] * cx - q[0] * cz);
    out[2] = fma(q[3], cz, v[2]) + (q[0] * cy - q[1] * cx);
}

// (t1 + s1 R1 t2, q1 q2, s1 s2).
__device__ __forceinline__ Sim3 sim3_compose(const Sim3& a, const Sim3& b) {
    Sim3 out;
    double moved[3];
    rotate(a.q, b.t, moved);
    for (int k = 0; k < 3; ++k) {
        out.t[k] = fma(a.s, moved[k], a.t[k]);
    }
    const double(&p)[4] = a.q;
    const double(&q)[4] = b.q;
    out.q[0] = (p[3] * q[0] + p[0] * q[3]) + (p[1] * q[2] - p[2] * q[1]);
    out.q[1] = (p[3] * q[1] + p[1] * q[3]) + (p[2] * q[0] - p[0] * q[2]);
    out.q[2] = (p[3] * q[2] + p[2] * q[3]) + (p[0] * q[1] - p[1] * q[0]);
    out.q[3] = (p[3] * q[3] - p[0] * q[0]) - (p[1] * q[1] + p[2] * q[2]);
    out.s = a.s * b.s;
    return out;
}

// (-R^T t / s, R^T, 1 / s).
__device__ __forceinline__ Sim3 sim3_inverse(const Sim3& pose) {
    Sim3 out;
    for (int k = 0; k < 3; ++k) {
        out.q[k] = -pose.q[k];
    }
    out.q[3] = pose.q[3];
    out.s = 1.0 / pose.s;
    double moved[3];
    rotate(out.q, pose.t, moved);
    for (int k = 0; k < 3; ++k) {
        out.t[k] = -moved[k] * out.s;
    }
    return out;
}

// Exp of a tangent with |phi| + |sigma| below 1/16, by its power series. The terms left out are below 1e-17 of the
// result.
__device__ __forceinline__ Sim3 sim3_exp_near(const double (&xi)[7]) {
    Sim3 out;
    const double x = xi[3], y = xi[4], z = xi[5], sigma = xi[6];
    // t = W tau, W = sum_k X^k / (k + 1)!, X = phi^ + sigma I, by Horner's rule: 8 terms leave (1/16)^9 / 10! = 4e-18.
    double t[3] = {xi[0], xi[1], xi[2]};
#pragma unroll
    for (int k = 8; k >= 1; --k) {
        const double share = 1.0 / (k + 1);
        const double a = fma(sigma, t[0], y * t[2] - z * t[1]);
        const double b = fma(sigma, t[1], z * t[0] - x * t[2]);
        const double c = fma(sigma, t[2], x * t[1] - y * t[0]);
        t[0] = fma(a, share, xi[0]);
        t[1] = fma(b, share, xi[1]);
        t[2] = fma(c, share, xi[2]);
    }
    for (int k = 0; k < 3; ++k) {
        out.t[k] = t[k];
    }
    // cos and sin of the half angle h, with h^2 below 2^-10: the fifth terms left out are below 1e-21.
    const double h2 = 0.25 * fma(x, x, fma(y, y, z * z));
    const double cosine =
        fma(h2, fma(h2, fma(h2, fma(h2, 1.0 / 40320.0, -1.0 / 720.0), 1.0 / 24.0), -1.0 / 2.0), 1.0);
    const double sinc =
        fma(h2, fma(h2, fma(h2, fma(h2, 1.0 / 362880.0, -1.0 / 5040.0), 1.0 / 120.0), -1.0 / 6.0), 1.0);
    out.q[0] = 0.5 * x * sinc;
    out.q[1] = 0.5 * y * sinc;
    out.q[2] = 0.5 * z * sinc;
    out.q[3] = cosine;
    // e^sigma: ten terms leave (1/16)^10 / 10! = 3e-19.
    double s = 1.0;
#pragma unroll
    for (int k = 9; k >= 1; --k) {
        s = fma(s * sigma, 1.0 / k, 1.0);
    }
    out.s = s;
    return out;
}

// The exponential map: R = exp(phi^), s = e^sigma, t = W tau. Long tangents are halved until the series holds, and the
// result is squared as often; the rounding error grows with the length, as for the sine of a large angle. Not finite
// for tangents of a million radians, which no valid solver step has.
__device__ __forceinline__ Sim3 sim3_exp(const double (&xi)[7]) {
    double length = sqrt(fma(xi[3], xi[3], fma(xi[4], xi[4], xi[5] * xi[5]))) + fabs(xi[6]);
    double share = 1.0;
    int halvings = 0;
    // Written so that NaN is refused too.
    if (!(length < 1048576.0)) {
        share = nan("");
        length = 0.0;
    }
    while (length >= 0.0625) {
        length *= 0.5;
        share *= 0.5;
        ++halvings;
    }
    double part[7];
    for (int k = 0; k < 7; ++k) {
        part[k] = xi[k] * share;
    }
    Sim3 out = sim3_exp_near(part);
    for (; halvings > 0; --halvings) {
        out = sim3_compose(out, out);
    }
    return out;
}

// Exp(xi) T, with the quaternion normalised again.
__device__ __forceinline__ Sim3 sim3_retract(const Sim3& pose, const double (&xi)[7]) {
    Sim3 out = sim3_compose(sim3_exp(xi), pose);
    const double(&q)[4] = out.q;
    const double inverse = 1.0 / sqrt(fma(q[0], q[0], fma(q[1], q[1], fma(q[2], q[2], q[3] * q[3]))));
    for (double& v : out.q) {
        v *= inverse;
    }
    return out;
}

// For points in f32: the CPU's operations in the CPU's order (nalgebra's rotation matrix times the scale, rounded), so
// the same pose gives the same bits.
__device__ __forceinline__ Pose sim3_pose(const Sim3& pose) {
    const double i = pose.q[0], j = pose.q[1], k = pose.q[2], w = pose.q[3];
    const double ww = w * w, ii = i * i, jj = j * j, kk = k * k;
    const double ij = i * j * 2.0, wk = w * k * 2.0, wj = w * j * 2.0;
    const double ik = i * k * 2.0, jk = j * k * 2.0, wi = w * i * 2.0;
    const double r[9] = {ww + ii - jj - kk, ij - wk, wj + ik, wk + ij, ww - ii + jj - kk,
                         jk - wi, ik - wj, wi + jk, ww - ii - jj + kk};
    Pose out;
    for (int e = 0; e < 9; ++e) {
        out.a[e] = static_cast<float>(r[e] * pose.s);
    }
    for (int e = 0; e < 3; ++e) {
        out.t[e] = static_cast<float>(pose.t[e]);
    }
    return out;
}

} // namespace ms
