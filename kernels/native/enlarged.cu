// A 3 × 3 convolution of an enlarged map that no kernel stores: a block enlarges the pixels that its outputs need into
// shared memory. With points, the kernel also computes the layer that follows. Maps are B × H × W × C.

#include "heads.cuh"

namespace {

using namespace native;

// The same fields in the same order as in src/inference/native/arguments.rs.
struct EnlargedArgs {
    uint64_t x, weight, bias;           // weight: views × outputs × 9 channels; bias: binary32
    uint64_t out;                       // a map; or, with points, absent
    uint64_t point_weight, point_bias;  // views × 4 × outputs, and views × 4, binary32
    uint64_t points[2], confidence[2];
    Sanitising sanitising[2];
    int32_t images, height, width;      // images of a view
    int32_t out_height, out_width;
};

constexpr int OUTPUTS = 32;
// Output pixels of a block, a row of them for each warp, and what they need around them.
constexpr int COLUMNS = 32, LINES = 8, THREADS = LINES * 32;
constexpr int WIDE = COLUMNS + 2, HIGH = LINES + 2;

// Between which pixels a row or column of the enlarged map lies; `first` is negative beyond the map.
struct Between {
    int first, second;
    float part;
};

__device__ inline Between between(int at, int full, int stored) {
    if (at < 0 || at >= full) return {-1, -1, 0.0f};
    const int scaled = at * (stored - 1), first = scaled / (full - 1);
    return {first, min(first + 1, stored - 1),
            static_cast<float>(scaled - first * (full - 1)) / static_cast<float>(full - 1)};
}

// blockIdx.x: the tile; blockIdx.y and z: image and view.
template <typename T, int C, bool POINTS> __device__ __forceinline__ void enlarged(const EnlargedArgs &p) {
    // Bytes from pixel to pixel and from output to output: odd numbers of 16 bytes, so that eight of them lie in
    // different banks, as ldmatrix wants it.
    constexpr int EACH = C / 8, PIXEL = C * 2 + 16, FILTER = 9 * C * 2 + 16;
    static_assert(PIXEL / 16 % 2 == 1 && FILTER / 16 % 2 == 1, "no bank twice");
    extern __shared__ __align__(128) uint8_t shared[];
    uint8_t *pixels = shared, *filters = pixels + WIDE * HIGH * PIXEL;
    float *bias = reinterpret_cast<float *>(filters + OUTPUTS * FILTER);
    // The weights of a point's four values, for each output channel.
    float4 *last = reinterpret_cast<float4 *>(bias + OUTPUTS);
    Between *columns = reinterpret_cast<Between *>(last + OUTPUTS), *lines = columns + WIDE;

    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int across = (p.out_width + COLUMNS - 1) / COLUMNS;
    const int top = blockIdx.x / across * LINES, left = (blockIdx.x - blockIdx.x / across * across) * COLUMNS;
    const int image = blockIdx.y, view = blockIdx.z;

    // What does not depend on launches before this one.
    const T *weight = reinterpret_cast<const T *>(p.weight) + view * OUTPUTS * 9 * C;
    for (int i = thread; i < OUTPUTS * 9 * EACH; i += THREADS) {
        const int output = i / (9 * EACH), chunk = i - output * 9 * EACH;
        copy16(shared_address(filters) + output * FILTER + chunk * 16, weight + i * 8, true);
    }
    copies_commit();
    if (thread < OUTPUTS) {
        bias[thread] = reinterpret_cast<const float *>(p.bias)[view * OUTPUTS + thread];
        if (POINTS) {
            const float *of_view = reinterpret_cast<const float *>(p.point_weight) + view * 4 * OUTPUTS + thread;
            last[thread] = make_float4(of_view[0], of_view[OUTPUTS], of_view[2 * OUTPUTS], of_view[3 * OUTPUTS]);
        }
    }
    if (thread < WIDE) columns[thread] = between(left + thread - 1, p.out_width, p.width);
    if (thread >= 64 && thread < 64 + HIGH) lines[thread - 64] = between(top + thread - 65, p.out_height, p.height);
    wait_for_launches();
    __syncthreads();

    const T *x = reinterpret_cast<const T *>(p.x) +
                 (static_cast<int64_t>(view) * p.images + image) * p.height * p.width * C;
#pragma unroll 3
    for (int i = thread; i < WIDE * HIGH * EACH; i += THREADS) {
        const int pixel = i / EACH, chunk = i - pixel * EACH;
        const int line = pixel / WIDE;
        const Between v = lines[line], h = columns[pixel - line * WIDE];
        uint4 value = make_uint4(0, 0, 0, 0);
        if (v.first >= 0 && h.first >= 0) {
            const T *from = x + chunk * 8;
            auto load = [&](int row, int column) {
                return __ldg(reinterpret_cast<const uint4 *>(from + (row * p.width + column) * C));
            };
            value = blend<T>(load(v.first, h.first), load(v.first, h.second), load(v.second, h.first),
                             load(v.second, h.second), h.part, v.part);
        }
        *reinterpret_cast<uint4 *>(pixels + pixel * PIXEL + chunk * 16) = value;
    }
    copies_wait<0>();
    __syncthreads();

    // A warp's row in two halves of 16 pixels.
    float sums[2][OUTPUTS / 8][4] = {};
    const uint32_t a_from = shared_address(pixels) + (warp * WIDE + (lane & 15)) * PIXEL + (lane >> 4) * 16;
    const uint32_t b_from = shared_address(filters) + ((lane & 7) + ((lane >> 4) << 3)) * FILTER + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
#pragma unroll
        for (int k = 0; k < C / 16; k++) {
            uint32_t a[2][4], b[OUTPUTS / 16][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_matrices(a[i], a_from + (tap / 3 * WIDE + tap % 3 + i * 16) * PIXEL + k * 32);
#pragma unroll
            for (int j = 0; j < OUTPUTS / 16; j++)
                load_matrices(b[j], b_from + j * 16 * FILTER + tap * C * 2 + k * 32);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int j = 0; j < OUTPUTS / 8; j++)
                    multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
            }
        }
    }
    let_next_launch();

    // A thread has two neighbouring channels of every eight, of four pixels, which are eight apart.
    const int y = top + warp, channel = (lane & 3) * 2;
    if (POINTS) {
        float a[2][2][4] = {};
#pragma unroll
        for (int j = 0; j < OUTPUTS / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = j * 8 + channel + e;
                const float4 w = last[c];
                const float offset = bias[c];
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float v = sums[i][j][half * 2 + e] + offset;
                        // max(v, 0) would lose NaN.
                        v = v < 0.0f ? 0.0f : v;
                        a[i][half][0] += v * w.x;
                        a[i][half][1] += v * w.y;
                        a[i][half][2] += v * w.z;
                        a[i][half][3] += v * w.w;
                    }
                }
            }
        }
        // Four threads have the sums of four pixels in parts; each of them gets a pixel's.
        const bool second = lane & 2, odd = lane & 1;
        float of_half[2][4], own[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float given = second ? a[0][half][i] : a[1][half][i];
                of_half[half][i] = (second ? a[1][half][i] : a[0][half][i]) + __shfl_xor_sync(~0u, given, 2);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float given = odd ? of_half[0][i] : of_half[1][i];
            own[i] = (odd ? of_half[1][i] : of_half[0][i]) + __shfl_xor_sync(~0u, given, 1);
        }
        const int at = left + (second ? 16 : 0) + (odd ? 8 : 0) + (lane >> 2);
        if (y >= p.out_height || at >= p.out_width) return;
        const float *offsets = reinterpret_cast<const float *>(p.point_bias) + view * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) own[i] += offsets[i];
        put_point(own, reinterpret_cast<float *>(p.points[view]), reinterpret_cast<float *>(p.confidence[view]),
                  (static_cast<int64_t>(image) * p.out_height + y) * p.out_width + at, image, p.sanitising[view]);
        return;
    }
    if (y >= p.out_height) return;
    T *out = reinterpret_cast<T *>(p.out) +
             ((static_cast<int64_t>(view) * p.images + image) * p.out_height + y) * p.out_width * OUTPUTS;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = left + i * 16 + half * 8 + (lane >> 2);
            if (at >= p.out_width) continue;
#pragma unroll
            for (int j = 0; j < OUTPUTS / 8; j++) {
                const int c = j * 8 + channel;
                *reinterpret_cast<uint32_t *>(out + at * OUTPUTS + c) =
                    pack(sums[i][j][half * 2] + bias[c], sums[i][j][half * 2 + 1] + bias[c + 1], T());
            }
        }
    }
}

} // namespace

// Shared memory: (34 · 10 · (C + 8) + 32 · (9 · C + 8)) · 2 + 32 · 20 + 44 · 12 bytes; threads: 256.
#define ENLARGED(NAME, T, C, POINTS)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        NAME(const __grid_constant__ EnlargedArgs args) {                                          \
        enlarged<T, C, POINTS>(args);                                                              \
    }
#define ENLARGEDS(TYPE, T)                                                                         \
    ENLARGED(ms_native_enlarged_64_##TYPE, T, 64, false)                                           \
    ENLARGED(ms_native_enlarged_32_points_##TYPE, T, 32, true)
ENLARGEDS(f16, __half)
ENLARGEDS(bf16, __nv_bfloat16)
