// Moves the rows of keyframes, as in src/compute/splat/anchors.rs.
//
// Limit: 4 B a row to look, and twice a moved row's 40 B (220 B at degree 3).

#include "splat.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;

// Floats of a move: s R by rows 9, t 3, quaternion 4, ln s, matrices of the bands 9 + 25 + 49.
constexpr unsigned kFloats = 100;

// Coefficients of one band, 3 colours each, times the band's matrix.
template <unsigned N> __device__ __forceinline__ void turn(float* band, const float* __restrict__ matrix) {
#pragma unroll 1
    for (unsigned c = 0; c < 3; ++c) {
        float old[N];
#pragma unroll
        for (unsigned k = 0; k < N; ++k) {
            old[k] = band[3 * k + c];
        }
#pragma unroll
        for (unsigned j = 0; j < N; ++j) {
            float sum = 0.0f;
#pragma unroll
            for (unsigned k = 0; k < N; ++k) {
                sum = fmaf(matrix[j * N + k], old[k], sum);
            }
            band[3 * j + c] = sum;
        }
    }
}

} // namespace

// `anchors` ascend; `moves` is count x kFloats.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_move(SplatPool pool, unsigned rest, unsigned long long rows, const unsigned* __restrict__ anchors,
                  const float* __restrict__ moves, unsigned count) {
    for (unsigned long long row = thread_index(); row < rows; row += thread_count()) {
        const unsigned anchor = pool.anchor[row];
        unsigned low = 0, high = count;
        while (low < high) {
            const unsigned middle = low + (high - low) / 2;
            if (anchors[middle] < anchor) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if (low == count || anchors[low] != anchor) {
            continue;
        }
        const float* move = moves + low * kFloats;
        float* const* planes = pool.planes[0];
        float* mean = planes[kMean] + row * 3;
        const float x = mean[0], y = mean[1], z = mean[2];
        float* scale = planes[kScale] + row * 3;
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            mean[k] = fmaf(move[3 * k], x, fmaf(move[3 * k + 1], y, fmaf(move[3 * k + 2], z, move[9 + k])));
            scale[k] += move[16];
        }
        // Product of quaternions w, x, y, z.
        float* q = planes[kRotation] + row * 4;
        const float a = q[0], b = q[1], c = q[2], d = q[3];
        const float w = move[12], i = move[13], j = move[14], k = move[15];
        q[0] = w * a - i * b - j * c - k * d;
        q[1] = w * b + i * a + j * d - k * c;
        q[2] = w * c - i * d + j * a + k * b;
        q[3] = w * d + i * c - j * b + k * a;
        float* own = planes[kRest] + row * rest;
        if (rest >= 9) {
            turn<3>(own, move + 17);
        }
        if (rest >= 24) {
            turn<5>(own + 9, move + 26);
        }
        if (rest >= 45) {
            turn<7>(own + 24, move + 51);
        }
    }
}
