// Depth moved by the camera's motion: as src/compute/depth/moved.rs, with the same bits: each sum and product is rounded
// by itself, and the order in which points fall on a pixel does not matter to a minimum.
//
// Limit: 8 B a pixel filled, 4 B read and up to 16 B read and written by the first kernel, 12 B by the second: 8 MB at
// 512x384, 1.6 us at 4.8 TB/s. Three launches of a few microseconds decide.

#include "index.cuh"

namespace {

constexpr unsigned kThreads = 256;
// The rank of a pixel on which no point falls.
constexpr unsigned long long kNothing = ~0ull;

// `compute::depth::moved::DepthMotion`.
struct Motion {
    float first[3];
    float down[3];
    float right[3];
    float shift[3];
    float focal[2];
    float centre[2];
};

} // namespace

// One thread a pixel, whose depth is `metres[n * stride]`: 3 for the z of points. `ranks` holds kNothing everywhere.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_rank(const float* __restrict__ metres, unsigned stride, unsigned long long* __restrict__ ranks,
                  const Motion m, unsigned width, unsigned height) {
    const unsigned long long n = ms::thread_index();
    if (n >= static_cast<unsigned long long>(width) * height) {
        return;
    }
    const float z = metres[n * stride];
    const float u = static_cast<float>(n % width);
    const float v = static_cast<float>(n / width);
    float p[3];
    for (unsigned k = 0; k < 3; ++k) {
        const float ray = __fadd_rn(__fadd_rn(m.first[k], __fmul_rn(v, m.down[k])), __fmul_rn(u, m.right[k]));
        p[k] = __fadd_rn(__fmul_rn(ray, z), m.shift[k]);
    }
    const float inverse = __fdiv_rn(1.0f, p[2]);
    const float x = __fadd_rn(__fmul_rn(__fmul_rn(p[0], inverse), m.focal[0]), m.centre[0]);
    const float y = __fadd_rn(__fmul_rn(__fmul_rn(p[1], inverse), m.focal[1]), m.centre[1]);
    // False for a point that is not finite.
    const bool inside = x >= 0.0f && y >= 0.0f && x < static_cast<float>(width) && y < static_cast<float>(height);
    if (!(z > 0.0f && p[2] > 0.0f && inside)) {
        return;
    }
    const unsigned long long column = static_cast<unsigned long long>(x);
    const unsigned long long row = static_cast<unsigned long long>(y);
    const float right = __fsub_rn(__fsub_rn(x, static_cast<float>(column)), 0.5f);
    const float down = __fsub_rn(__fsub_rn(y, static_cast<float>(row)), 0.5f);
    const float off = __fmul_rn(__fadd_rn(__fmul_rn(right, right), __fmul_rn(down, down)), 8388608.0f);
    const unsigned long long bits = __float_as_uint(p[2]);
    const unsigned long long rank = (bits >> 22) << 55 | static_cast<unsigned long long>(off) << 32 | bits;
    atomicMin(ranks + row * width + column, rank);
}

// The depths of the points that count.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_take(const unsigned long long* __restrict__ ranks, float* __restrict__ moved, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels) {
        const unsigned long long rank = ranks[n];
        moved[n] = rank == kNothing ? 0.0f : __uint_as_float(static_cast<unsigned>(rank));
    }
}
