// Averages of a noisy sensor's depth: src/compute/depth/smooth.rs is the definition.
#pragma once

#include "depth.cuh"
#include "depth_ratio.cuh"

namespace ms {

// Pixels that a block averages at a time, and the widest margin around them.
constexpr unsigned kTileColumns = 64;
constexpr unsigned kTileRows = 16;
constexpr unsigned kMargin = 8;
// A row's sum of log ratios and their number, fewer than 32, are one number.
constexpr int kCounts = 32;
static_assert(2 * kMargin + 1 < kCounts && (2 * kMargin + 1) * (kLargest + 1) < (1 << 26), "rows of a window");

struct Averages {
    const float* points;        // N x 3
    const unsigned short* keys; // N
    float* metres;              // N
    unsigned width;
    unsigned height;
    float bias;      // of the mean of log depth
    unsigned radius; // of the window, up to kMargin
    int spread;      // of ratios of one surface, in steps
};

// Whether the mean of so many ratios is near that of a pixel, if the pixel has one.
__device__ __forceinline__ bool is_near(unsigned key, int sum, int count, int spread) {
    return key == kNothing || abs(sum - count * (static_cast<int>(key) - kLargest)) <= count * spread;
}

// `smooth::SAME_DEPTH`.
constexpr int kSameDepth = 205;

// Averages of depths over windows: `Smoother::run`, by `blocks` blocks, of which this one is the `block`th. Ratios that
// are nearer than `reach` to the scale count.
template <unsigned kThreads>
__device__ void average(const Averages& a, float log_scale, float reach, unsigned block, unsigned blocks) {
    constexpr unsigned kColumns = kTileColumns + 2 * kMargin, kRows = kTileRows + 2 * kMargin;
    __shared__ float depths[kRows][kColumns];
    __shared__ unsigned short keys[kRows][kColumns]; // of the ratios that count
    __shared__ int rows[kRows][kTileColumns];
    const unsigned across = (a.width + kTileColumns - 1) / kTileColumns;
    const unsigned tiles = across * ((a.height + kTileRows - 1) / kTileRows);
    const unsigned first = kMargin - a.radius, side = 2 * a.radius + 1;
    for (unsigned tile = block; tile < tiles; tile += blocks) {
        const int left = static_cast<int>(tile % across * kTileColumns) - static_cast<int>(kMargin);
        const int above = static_cast<int>(tile / across * kTileRows) - static_cast<int>(kMargin);
        __syncthreads();
        for (unsigned k = threadIdx.x; k < kRows * kColumns; k += kThreads) {
            const int u = left + static_cast<int>(k % kColumns), v = above + static_cast<int>(k / kColumns);
            const bool inside = u >= 0 && v >= 0 && u < static_cast<int>(a.width) && v < static_cast<int>(a.height);
            const unsigned n = inside ? static_cast<unsigned>(v) * a.width + static_cast<unsigned>(u) : 0;
            const unsigned key = inside ? a.keys[n] : kNothing;
            depths[k / kColumns][k % kColumns] = inside ? a.points[3 * n + 2] : 0.0f;
            keys[k / kColumns][k % kColumns] = rest_of(key, log_scale, reach) > 0.0f ? key : kNothing;
        }
        __syncthreads();
        for (unsigned k = threadIdx.x; k < kRows * kTileColumns; k += kThreads) {
            const unsigned row = k / kTileColumns, column = k % kTileColumns;
            const float z = depths[row][column + kMargin];
            const unsigned middle = keys[row][column + kMargin];
            int sums = 0;
            for (unsigned other = column + first; other < column + first + side; ++other) {
                const unsigned key = keys[row][other];
                const int steps = static_cast<int>(key) - kLargest;
                if (key != kNothing && same_surface(z, depths[row][other]) && is_near(middle, steps, 1, a.spread)) {
                    sums += steps * kCounts + 1;
                }
            }
            rows[row][column] = sums;
        }
        __syncthreads();
        for (unsigned k = threadIdx.x; k < kTileRows * kTileColumns; k += kThreads) {
            const unsigned row = k / kTileColumns, column = k % kTileColumns;
            const unsigned u = tile % across * kTileColumns + column, v = tile / across * kTileRows + row;
            if (u >= a.width || v >= a.height) {
                continue;
            }
            const float z = depths[row + kMargin][column + kMargin];
            const unsigned middle = keys[row + kMargin][column + kMargin];
            int sum = 0, count = 0;
            for (unsigned other = row + first; other < row + first + side; ++other) {
                if (same_surface(z, depths[other][column + kMargin])) {
                    const int sums = rows[other][column];
                    const int of_row = sums & (kCounts - 1), sum_of_row = (sums - of_row) / kCounts;
                    if (is_near(middle, sum_of_row, of_row, a.spread)) {
                        sum += sum_of_row;
                        count += of_row;
                    }
                }
            }
            const unsigned n = v * a.width + u;
            const bool measured = middle != kNothing;
            bool gap = a.keys[n] == kNothing && a.metres[n] <= 0.0f;
            if (gap && count > 0) {
                // Whether a pixel near it has about the depth that it would get, or none was measured.
                bool any = false, same = false;
                for (unsigned v2 = row + kMargin - kEdge; v2 <= row + kMargin + kEdge; ++v2) {
                    for (unsigned u2 = column + kMargin - kEdge; u2 <= column + kMargin + kEdge; ++u2) {
                        const unsigned key = keys[v2][u2];
                        int over;
                        if (key != kNothing) {
                            any = true;
                            same |= log_ratio(depths[v2][u2], z, over) &&
                                    abs(count * (over + static_cast<int>(key) - kLargest) - sum) <=
                                        count * max(a.spread, kSameDepth);
                        }
                    }
                }
                gap = same || !any;
            }
            if (count > 0 && (measured || gap)) {
                a.metres[n] = z * expf(a.bias + static_cast<float>(sum) / (static_cast<float>(count) * kSteps));
            }
        }
    }
}

} // namespace ms
