// Depth moved by the camera's motion: as src/compute/depth/moved.rs, with the same bits: each sum and product is rounded
// by itself, and the order in which points fall on a pixel does not matter to a minimum.
//
// Limit: 4 B a pixel read and 4 B written by the first kernel (behind one that fills), 8 B by the second: 3 MB at
// 512x384, 0.7 us at 4.8 TB/s. Three launches of a few microseconds decide.

#include "index.cuh"

namespace {

constexpr unsigned kThreads = 256;
// What a pixel holds on which no point has fallen: above the bits of every positive number.
constexpr unsigned kNothing = 0xffffffffu;

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

// One thread a pixel of `metres`. `moved` holds kNothing everywhere; positive numbers have the order of their bits.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_move(const float* __restrict__ metres, unsigned* __restrict__ moved, const Motion m, unsigned width,
                  unsigned height) {
    const unsigned long long n = ms::thread_index();
    if (n >= static_cast<unsigned long long>(width) * height) {
        return;
    }
    const float z = metres[n];
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
    if (z > 0.0f && p[2] > 0.0f && inside) {
        const unsigned long long at =
            static_cast<unsigned long long>(y) * width + static_cast<unsigned long long>(x);
        atomicMin(moved + at, __float_as_uint(p[2]));
    }
}

// Pixels on which no point has fallen have no depth.
extern "C" __global__ void __launch_bounds__(kThreads) ms_depth_settle(unsigned* __restrict__ moved, unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n < pixels && moved[n] == kNothing) {
        moved[n] = 0;
    }
}
