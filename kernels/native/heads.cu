// What the dense heads do beside convolutions: enlargement, and the activations of points, descriptors
// and confidences. Maps are B × H × W × C.

#include "heads.cuh"

namespace {

using namespace native;

// The same fields in the same order as in src/inference/native/arguments.rs.
struct EnlargeArgs {
    uint64_t x, out;
    int32_t images, height, width, channels;
    int32_t full_height, full_width; // of the enlarged map
    int32_t out_height, out_width;   // of its upper left part that is wanted
};

struct PointArgs {
    uint64_t x, weight, bias; // weight: 4 × channels, binary32
    uint64_t points, confidence;
    Sanitising sanitising;
    int32_t pixels, channels, lanes;
};

struct DescriptorArgs {
    uint64_t x; // tokens × stride: P² descriptors of a token, then P² confidences
    uint64_t descriptors[2], confidence[2];
    uint64_t unusable[2]; // see `Sanitising`
    int32_t items, height, width, patch, dim, stride;
};

// Bilinear, corner pixels on corner pixels: src = i · (in − 1) / (out − 1). Eight channels a thread.
template <typename T> __device__ __forceinline__ void enlarge(const EnlargeArgs &p) {
    wait_for_launches();
    let_next_launch();
    // blockIdx.y and z: row and image.
    const int chunks = p.channels / 8, at = blockIdx.x * blockDim.x + threadIdx.x;
    const int x = at / chunks, chunk = at - x * chunks, y = blockIdx.y, image = blockIdx.z;
    if (x >= p.out_width) return;
    const int below = p.full_height - 1, right = p.full_width - 1;
    const int ny = y * (p.height - 1), nx = x * (p.width - 1);
    const int y0 = ny / below, x0 = nx / right;
    const float fy = static_cast<float>(ny - y0 * below) / static_cast<float>(below);
    const float fx = static_cast<float>(nx - x0 * right) / static_cast<float>(right);
    const int y1 = min(y0 + 1, p.height - 1), x1 = min(x0 + 1, p.width - 1);
    const T *from = reinterpret_cast<const T *>(p.x) +
                    static_cast<int64_t>(image) * p.height * p.width * p.channels + chunk * 8;
    auto load = [&](int row, int column) {
        return *reinterpret_cast<const uint4 *>(
            from + (static_cast<int64_t>(row) * p.width + column) * p.channels);
    };
    const uint4 out = blend<T>(load(y0, x0), load(y0, x1), load(y1, x0), load(y1, x1), fx, fy);
    T *to = reinterpret_cast<T *>(p.out) +
            ((static_cast<int64_t>(image) * p.out_height + y) * p.out_width + x) * p.channels + chunk * 8;
    *reinterpret_cast<uint4 *>(to) = out;
}

constexpr int POINT_STEPS = 8; // pixels of a thread, one after the other

// The last layer, to four channels, and its activations: points a/‖a‖ · (e^‖a‖ − 1), confidences 1 + e^κ.
// `lanes` threads a pixel.
template <typename T> __device__ __forceinline__ void points(const PointArgs &p) {
    wait_for_launches();
    let_next_launch();
    extern __shared__ __align__(16) float weights[];
    const float *stored = reinterpret_cast<const float *>(p.weight);
    for (int i = threadIdx.x; i < 4 * p.channels; i += blockDim.x) weights[i] = stored[i];
    __syncthreads();
    const int lane = threadIdx.x % p.lanes, each = blockDim.x / p.lanes;
    // This thread's part of the weights, if each of its pixels takes one load.
    const bool one = p.channels == p.lanes * 8;
    float kept[4][8];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 8; i++) kept[j][i] = one ? weights[j * p.channels + lane * 8 + i] : 0.0f;
    }
    const float *bias = reinterpret_cast<const float *>(p.bias);
    const float offset[4] = {bias[0], bias[1], bias[2], bias[3]};
    for (int step = 0; step < POINT_STEPS; step++) {
        const int pixel = (blockIdx.x * POINT_STEPS + step) * each + threadIdx.x / p.lanes;
        const bool inside = pixel < p.pixels;
        const T *x = reinterpret_cast<const T *>(p.x) + static_cast<int64_t>(inside ? pixel : 0) * p.channels;
        float a[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int c = lane * 8; c < p.channels; c += p.lanes * 8) {
            const uint4 bits = *reinterpret_cast<const uint4 *>(x + c);
            const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 v = unpack(pairs[i], T());
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float *w = weights + j * p.channels + c + i * 2;
                    a[j] += v.x * (one ? kept[j][2 * i] : w[0]) + v.y * (one ? kept[j][2 * i + 1] : w[1]);
                }
            }
        }
        for (int distance = p.lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] += __shfl_xor_sync(~0u, a[j], distance);
        }
        if (!inside || lane != 0) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) a[j] += offset[j];
        put_point(a, reinterpret_cast<float *>(p.points), reinterpret_cast<float *>(p.confidence), pixel, 0,
                  p.sanitising);
    }
}

// Pixels out of their patches: descriptors δ/‖δ‖, their confidences e^ω, as far as they can be sanitised without the
// points. A thread a pixel; blockIdx.y is the view.
template <typename T> __device__ __forceinline__ void descriptors(const DescriptorArgs &p) {
    wait_for_launches();
    let_next_launch();
    const int view = blockIdx.y, pixels = p.height * p.width;
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const int item = at / pixels, pixel = at - item * pixels;
    unsigned *unusable = reinterpret_cast<unsigned *>(p.unusable[view]);
    if (unusable && at < p.items) unusable[at] = 0;
    if (item >= p.items) return;
    const int y = pixel / p.width, x = pixel - y * p.width;
    const int columns = p.width / p.patch, square = p.patch * p.patch;
    const int token = y / p.patch * columns + x / p.patch;
    const int place = y % p.patch * p.patch + x % p.patch;
    const int64_t row = (static_cast<int64_t>(view) * p.items + item) * (pixels / square) + token;
    const T *from = reinterpret_cast<const T *>(p.x) + row * p.stride;
    float *to = reinterpret_cast<float *>(p.descriptors[view]) + static_cast<int64_t>(at) * p.dim;
    const T *raw = from + place * p.dim;
    float squares = 0.0f;
    bool finite = true;
    if (p.dim % 8 == 0) {
        for (int c = 0; c < p.dim; c += 8) {
            const uint4 bits = *reinterpret_cast<const uint4 *>(raw + c);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 v = unpack(reinterpret_cast<const uint32_t *>(&bits)[i], T());
                squares += v.x * v.x + v.y * v.y;
            }
        }
        // A zero vector has no direction, and NaN says so.
        const float scale = 1.0f / sqrtf(squares);
        for (int c = 0; c < p.dim; c += 8) {
            const uint4 bits = *reinterpret_cast<const uint4 *>(raw + c);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float2 v = unpack(reinterpret_cast<const uint32_t *>(&bits)[2 * i], T());
                const float2 w = unpack(reinterpret_cast<const uint32_t *>(&bits)[2 * i + 1], T());
                const float4 d = make_float4(v.x * scale, v.y * scale, w.x * scale, w.y * scale);
                finite = finite && ms::finite(d.x) && ms::finite(d.y) && ms::finite(d.z) && ms::finite(d.w);
                *reinterpret_cast<float4 *>(to + c + 4 * i) = d;
            }
        }
    } else {
        for (int c = 0; c < p.dim; c++) squares += to_float(raw[c]) * to_float(raw[c]);
        const float scale = 1.0f / sqrtf(squares);
        for (int c = 0; c < p.dim; c++) {
            to[c] = to_float(raw[c]) * scale;
            finite = finite && ms::finite(to[c]);
        }
    }
    float quality = expf(to_float(from[square * p.dim + place]));
    if (unusable) {
        quality = quality > ms::kMaxConfidence ? ms::kMaxConfidence : quality;
        if (!finite) {
            quality = __int_as_float(0x7fffffff);
            for (int c = 0; c < p.dim; c++) to[c] = 0.0f;
        }
    }
    reinterpret_cast<float *>(p.confidence[view])[at] = quality;
}

} // namespace

#define HEADS(TYPE, T)                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        ms_native_enlarge_##TYPE(const __grid_constant__ EnlargeArgs args) {                       \
        enlarge<T>(args);                                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        ms_native_points_##TYPE(const __grid_constant__ PointArgs args) {                          \
        points<T>(args);                                                                           \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        ms_native_descriptors_##TYPE(const __grid_constant__ DescriptorArgs args) {                \
        descriptors<T>(args);                                                                      \
    }
HEADS(f16, __half)
HEADS(bf16, __nv_bfloat16)
