// From a raw camera image to the network's input: decode, undistort, resample, crop, normalise. Exact integer
// arithmetic up to the last step; equals src/image (encoding, undistort, resample) and the normalisation of
// src/inference bit for bit.
//
// Two launches. The horizontal one decodes (and undistorts) each raw pixel it needs into shared memory and resamples
// the rows, four at a time; the vertical one resamples the columns and writes every form of the result.
//
// Limits for 1920x1080 nv12 to 512x288 on an H200: 3.1 MB read, 2.2 MB of middle written and read, 0.4 MB u8, 1.8 MB
// f32 and 0.9 MB f16 written: 11 MB, 2 us of memory. 23 taps of 3 channels are 38 M multiplications in the first pass
// and 10 M in the second, 3 us at half the f32 rate; the 2 M conversions from YUV take as long. The rest is the launch
// and the latency of two kernels that fill a fraction of the GPU: about 10 us in all.

#include <cuda_fp16.h>

#include "index.cuh"

// As `Encoding` in src/image/encoding.rs.
enum Encoding : unsigned {
    kRgb8,
    kBgr8,
    kRgba8,
    kBgra8,
    kMono8,
    kMono16,
    kMono16BigEndian,
    kUyvy,
    kYuyv,
    kNv12,
    kBayerRggb8,
    kBayerGrbg8,
    kBayerGbrg8,
    kBayerBggr8,
};

struct RawArgs {
    const unsigned char* data;
    const short2* taps;        // width x height: upper left neighbour in the raw image; null: no undistortion
    const uchar2* steps;       // the same: 1/32 pixel to the right and down of it
    const uint2* spans;        // for each column: first input, how many
    const int* weights;        // tap by tap, `columns` each
    unsigned* middle;          // rows x columns, R | G << 8 | B << 16
    unsigned long long stride; // bytes from row to row
    unsigned width, height;
    unsigned encoding;
    unsigned columns;         // of the result
    unsigned first_row, rows; // of the undistorted image, that the vertical pass reads
};

namespace {

constexpr int kWeightBits = 22;
constexpr int kHalf = 1 << (kWeightBits - 1);
constexpr unsigned kThreads = 128;
// Rows that a block of the horizontal pass takes, and raw pixels of each that it holds at a time.
constexpr unsigned kRows = 4;
constexpr unsigned kHeld = 1024;

struct Rgb {
    int r, g, b;
};

__device__ __forceinline__ int clip(int sum) { return max(0, min(255, sum >> kWeightBits)); }

__device__ __forceinline__ unsigned pack(const Rgb& p) {
    return static_cast<unsigned>(p.r) | static_cast<unsigned>(p.g) << 8 | static_cast<unsigned>(p.b) << 16;
}

// BT.601, limited range, coefficients in units of 2^-20.
__device__ __forceinline__ Rgb from_yuv(int y, int u, int v) {
    const int luma = max(y - 16, 0) * 1220542 + (1 << 19);
    const auto level = [](int sum) { return max(0, min(255, sum >> 20)); };
    u -= 128;
    v -= 128;
    return {level(luma + 1673527 * v), level(luma - 852492 * v - 409993 * u), level(luma + 2116026 * u)};
}

// Reflects at the border, -1 to 1 and n to n - 2, which keeps the Bayer colour; an image of one pixel repeats it.
__device__ __forceinline__ unsigned mirror(int i, unsigned n) {
    const int last = static_cast<int>(n) - 1;
    i = i < 0 ? -i : (i > last ? 2 * last - i : i);
    return static_cast<unsigned>(max(0, min(i, last)));
}

// Bilinear demosaicing: a missing colour is the rounded mean of the two or four neighbours of that colour. Red lies
// where x and y have the parities `rx` and `ry`.
__device__ __forceinline__ Rgb from_bayer(const RawArgs& a, unsigned x, unsigned y, unsigned rx, unsigned ry) {
    const unsigned left = mirror(static_cast<int>(x) - 1, a.width), right = mirror(static_cast<int>(x) + 1, a.width);
    const unsigned char* here = a.data + y * a.stride;
    const unsigned char* above = a.data + mirror(static_cast<int>(y) - 1, a.height) * a.stride;
    const unsigned char* below = a.data + mirror(static_cast<int>(y) + 1, a.height) * a.stride;
    const int own = here[x];
    const int beside = here[left] + here[right], upright = above[x] + below[x];
    const bool red_column = (x & 1) == rx, red_row = (y & 1) == ry;
    if (red_column != red_row) {
        const int across = (beside + 1) >> 1, along = (upright + 1) >> 1;
        return red_row ? Rgb{across, own, along} : Rgb{along, own, across};
    }
    const int green = (beside + upright + 2) >> 2;
    const int other = (above[left] + above[right] + below[left] + below[right] + 2) >> 2;
    return red_row ? Rgb{own, green, other} : Rgb{other, green, own};
}

// Pixel (x, y) of the raw image, which is inside it.
__device__ __forceinline__ Rgb decode(const RawArgs& a, unsigned x, unsigned y) {
    const unsigned char* row = a.data + y * a.stride;
    switch (a.encoding) {
    case kRgb8:
        return {row[3 * x], row[3 * x + 1], row[3 * x + 2]};
    case kBgr8:
        return {row[3 * x + 2], row[3 * x + 1], row[3 * x]};
    case kRgba8:
        return {row[4 * x], row[4 * x + 1], row[4 * x + 2]};
    case kBgra8:
        return {row[4 * x + 2], row[4 * x + 1], row[4 * x]};
    case kMono8: {
        const int v = row[x];
        return {v, v, v};
    }
    case kMono16:
    case kMono16BigEndian: {
        const unsigned high = a.encoding == kMono16 ? 1 : 0;
        const int v = (row[2 * x + high] << 8 | row[2 * x + 1 - high]) + 128;
        return {v / 257, v / 257, v / 257};
    }
    case kUyvy: {
        const unsigned pair = x / 2 * 4;
        return from_yuv(row[2 * x + 1], row[pair], row[pair + 2]);
    }
    case kYuyv: {
        const unsigned pair = x / 2 * 4;
        return from_yuv(row[2 * x], row[pair + 1], row[pair + 3]);
    }
    case kNv12: {
        const unsigned char* chroma = a.data + (a.height + y / 2) * a.stride + x / 2 * 2;
        return from_yuv(row[x], chroma[0], chroma[1]);
    }
    default: {
        const unsigned pattern = a.encoding - kBayerRggb8;
        return from_bayer(a, x, y, pattern & 1, pattern >> 1 & 1);
    }
    }
}

// Pixel (x, y) of the undistorted image: bilinear in 1/32 steps, black outside the raw one.
__device__ __forceinline__ Rgb undistorted(const RawArgs& a, unsigned x, unsigned y) {
    const size_t n = static_cast<size_t>(y) * a.width + x;
    const short2 at = a.taps[n];
    const int right = a.steps[n].x, down = a.steps[n].y;
    Rgb sum = {512, 512, 512};
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
        const int u = at.x + (k & 1), v = at.y + (k >> 1);
        if (u < 0 || v < 0 || u >= static_cast<int>(a.width) || v >= static_cast<int>(a.height)) {
            continue;
        }
        const int weight = (k & 1 ? right : 32 - right) * (k >> 1 ? down : 32 - down);
        const Rgb p = decode(a, u, v);
        sum.r += weight * p.r;
        sum.g += weight * p.g;
        sum.b += weight * p.b;
    }
    return {sum.r >> 10, sum.g >> 10, sum.b >> 10};
}

__device__ __forceinline__ void add(Rgb& sum, int weight, unsigned pixel) {
    sum.r += weight * static_cast<int>(pixel & 255);
    sum.g += weight * static_cast<int>(pixel >> 8 & 255);
    sum.b += weight * static_cast<int>(pixel >> 16);
}

} // namespace

// A thread makes one column of four rows of `middle`.
extern "C" __global__ void __launch_bounds__(kThreads) ms_preprocess_horizontal(const RawArgs a) {
    __shared__ uint4 held[kHeld];
    const unsigned first_column = blockIdx.x * kThreads;
    const unsigned column = first_column + threadIdx.x;
    const unsigned last_column = min(first_column + kThreads, a.columns) - 1;
    const unsigned row = blockIdx.y * kRows;
    // Columns go up, and so do their first and last inputs.
    const unsigned begin = a.spans[first_column].x;
    const unsigned end = a.spans[last_column].x + a.spans[last_column].y;
    const uint2 span = column < a.columns ? a.spans[column] : make_uint2(0, 0);
    Rgb sums[kRows];
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
        sums[k] = {kHalf, kHalf, kHalf};
    }
    for (unsigned from = begin; from < end; from += kHeld) {
        const unsigned to = min(end, from + kHeld);
        if (from != begin) {
            __syncthreads();
        }
        for (unsigned x = from + threadIdx.x; x < to; x += kThreads) {
            unsigned pixels[kRows];
#pragma unroll
            for (unsigned k = 0; k < kRows; ++k) {
                // Rows beyond the last repeat it and are not written.
                const unsigned y = a.first_row + min(row + k, a.rows - 1);
                pixels[k] = pack(a.taps != nullptr ? undistorted(a, x, y) : decode(a, x, y));
            }
            held[x - from] = make_uint4(pixels[0], pixels[1], pixels[2], pixels[3]);
        }
        __syncthreads();
        const unsigned stop = min(span.x + span.y, to);
        for (unsigned x = max(span.x, from); x < stop; ++x) {
            const int weight = a.weights[static_cast<size_t>(x - span.x) * a.columns + column];
            const uint4 p = held[x - from];
            add(sums[0], weight, p.x);
            add(sums[1], weight, p.y);
            add(sums[2], weight, p.z);
            add(sums[3], weight, p.w);
        }
    }
    if (column >= a.columns) {
        return;
    }
#pragma unroll
    for (unsigned k = 0; k < kRows; ++k) {
        if (row + k < a.rows) {
            a.middle[static_cast<size_t>(row + k) * a.columns + column] =
                pack({clip(sums[k].r), clip(sums[k].g), clip(sums[k].b)});
        }
    }
}

struct ResultArgs {
    const unsigned* middle;
    const uint2* spans;   // for each row of the result: first row of `middle`, how many
    const int* weights;   // row by row, `taps` each
    unsigned char* image; // rows x columns x 3, or null
    float* planes;        // 3 x rows x columns, byte / 127.5 - 1; or null
    __half* half_planes;  // the same rounded to f16; or null
    unsigned taps;
    unsigned columns, rows;
    unsigned reserved;
};

// A thread makes one pixel; blocks are parts of rows.
extern "C" __global__ void __launch_bounds__(kThreads) ms_preprocess_vertical(const ResultArgs a) {
    const unsigned column = blockIdx.x * kThreads + threadIdx.x, row = blockIdx.y;
    if (column >= a.columns) {
        return;
    }
    const uint2 span = a.spans[row];
    const int* weights = a.weights + static_cast<size_t>(row) * a.taps;
    const unsigned* line = a.middle + static_cast<size_t>(span.x) * a.columns + column;
    Rgb sum = {kHalf, kHalf, kHalf};
#pragma unroll 8
    for (unsigned k = 0; k < span.y; ++k) {
        add(sum, weights[k], line[static_cast<size_t>(k) * a.columns]);
    }
    const int levels[3] = {clip(sum.r), clip(sum.g), clip(sum.b)};
    const size_t at = static_cast<size_t>(row) * a.columns + column;
    const size_t plane = static_cast<size_t>(a.rows) * a.columns;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
        if (a.image != nullptr) {
            a.image[3 * at + c] = static_cast<unsigned char>(levels[c]);
        }
        const float value = static_cast<float>(levels[c]) / 127.5f - 1.0f;
        if (a.planes != nullptr) {
            a.planes[c * plane + at] = value;
        }
        if (a.half_planes != nullptr) {
            a.half_planes[c * plane + at] = __float2half_rn(value);
        }
    }
}
