// Solves the normal equations of one pose, in f64, in one thread.
#pragma once

#include "residual.cuh"

namespace ms {

// H y = g by L D L^T, with the diagonal of H (packed upper triangle) multiplied by `diagonal`. False if the matrix is
// not positive definite. H should be scaled to a unit diagonal, so that no pivot is out of range.
__device__ __forceinline__ bool solve(const double (&hessian)[28], const double (&gradient)[7], double diagonal,
                                      double (&y)[7]) {
    double h[28];
#pragma unroll
    for (int k = 0; k < 28; ++k) {
        h[k] = hessian[k];
    }
#pragma unroll
    for (int k = 0; k < 7; ++k) {
        h[packed(k, k)] *= diagonal;
        y[k] = gradient[k];
    }
    bool ok = true;
#pragma unroll
    for (int k = 0; k < 7; ++k) {
        const double pivot = h[packed(k, k)];
        // Written so that NaN is refused too.
        ok = ok && pivot > 0.0;
        const double inverse = 1.0 / pivot;
#pragma unroll
        for (int r = k + 1; r < 7; ++r) {
            const double share = h[packed(k, r)] * inverse;
#pragma unroll
            for (int c = r; c < 7; ++c) {
                h[packed(r, c)] = fma(-share, h[packed(k, c)], h[packed(r, c)]);
            }
            y[r] = fma(-share, y[k], y[r]);
            h[packed(k, r)] = share;
        }
        y[k] *= inverse;
    }
#pragma unroll
    for (int k = 5; k >= 0; --k) {
#pragma unroll
        for (int c = k + 1; c < 7; ++c) {
            y[k] = fma(-h[packed(k, c)], y[c], y[k]);
        }
    }
    return ok;
}

} // namespace ms
