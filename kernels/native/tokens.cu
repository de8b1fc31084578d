// What happens to tokens between the linear layers: patches from an image, normalisation, conversion.

#include "native.cuh"

namespace {

using namespace native;

// The same fields in the same order as in src/inference/native/arguments.rs.
struct PatchArgs {
    uint64_t planes, out;
    int32_t height, width, patch, stride; // stride: elements of a row of `out`
    int32_t tokens;
};

struct NormArgs {
    uint64_t x, scale, offset, out, out_f32;
    int32_t rows, width, out_stride;
    float epsilon;
};

struct ConvertArgs {
    uint64_t views[2]; // items × tokens × width each
    uint64_t out;
    int32_t tokens, width, out_stride, items;
    int32_t partner; // 1: of view 2, item i is item i ^ 1
    int32_t half;    // 1: views are 16-bit numbers already, not binary32
};

struct CopyArgs {
    uint64_t from, to;
    int32_t chunks; // of 16 bytes
};

template <typename T> __device__ __forceinline__ void patches(const PatchArgs &p) {
    wait_for_launches();
    let_next_launch();
    // Two values a thread: k = channel · P² + row · P + column.
    const int pairs = p.stride / 2;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int token = static_cast<int>(at / pairs), k = static_cast<int>(at % pairs) * 2;
    if (token >= p.tokens) return;
    const float *planes = reinterpret_cast<const float *>(p.planes);
    const int square = p.patch * p.patch, columns = p.width / p.patch;
    const int ty = token / columns, tx = token % columns;
    float v[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = (k + i) / square, pixel = (k + i) % square;
        if (c < 3) {
            const int y = ty * p.patch + pixel / p.patch, x = tx * p.patch + pixel % p.patch;
            v[i] = planes[(static_cast<int64_t>(c) * p.height + y) * p.width + x];
        }
    }
    T *out = reinterpret_cast<T *>(p.out) + static_cast<int64_t>(token) * p.stride + k;
    *reinterpret_cast<uint32_t *>(out) = pack(v[0], v[1], T());
}

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// A warp a row; VECTORS · 128 is the greatest width.
template <typename T, int VECTORS> __device__ __forceinline__ void norm(const NormArgs &p) {
    wait_for_launches();
    let_next_launch();
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.rows) return;
    const float4 *x = reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(p.x) +
                                                       static_cast<int64_t>(row) * p.width);
    const int count = p.width / 4;
    float4 v[VECTORS];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = lane + i * 32;
        v[i] = at < count ? x[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    const float mean = warp_sum(sum) / static_cast<float>(p.width);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (lane + i * 32 < count) {
            v[i].x -= mean;
            v[i].y -= mean;
            v[i].z -= mean;
            v[i].w -= mean;
            squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
        }
    }
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(p.width) + p.epsilon);
    const float4 *gains = reinterpret_cast<const float4 *>(p.scale);
    const float4 *offsets = reinterpret_cast<const float4 *>(p.offset);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int at = lane + i * 32;
        if (at >= count) continue;
        float4 y = make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
        if (gains) {
            const float4 g = gains[at], o = offsets[at];
            y = make_float4(y.x * g.x + o.x, y.y * g.y + o.y, y.z * g.z + o.z, y.w * g.w + o.w);
        }
        if (p.out) {
            T *out = reinterpret_cast<T *>(p.out) + static_cast<int64_t>(row) * p.out_stride;
            reinterpret_cast<uint2 *>(out)[at] = make_uint2(pack(y.x, y.y, T()), pack(y.z, y.w, T()));
        }
        if (p.out_f32) {
            float *out = reinterpret_cast<float *>(p.out_f32) + static_cast<int64_t>(row) * p.width;
            reinterpret_cast<float4 *>(out)[at] = y;
        }
    }
}

// Tokens as 16-bit numbers, side by side with what else a row has; blockIdx.y is the view. Four values a thread.
template <typename T> __device__ __forceinline__ void convert(const ConvertArgs &p) {
    wait_for_launches();
    let_next_launch();
    const int each = p.width / 4, view = blockIdx.y;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int row = static_cast<int>(at / each), c = static_cast<int>(at % each) * 4;
    if (row >= p.items * p.tokens) return;
    int item = row / p.tokens;
    const int token = row - item * p.tokens;
    if (view == 1 && p.partner) item ^= 1;
    const int64_t source = (static_cast<int64_t>(item) * p.tokens + token) * p.width + c;
    const int64_t to = static_cast<int64_t>(view) * p.items * p.tokens + row;
    T *out = reinterpret_cast<T *>(p.out) + to * p.out_stride + c;
    if (p.half) {
        *reinterpret_cast<uint2 *>(out) =
            *reinterpret_cast<const uint2 *>(reinterpret_cast<const T *>(p.views[view]) + source);
        return;
    }
    const float4 v =
        *reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(p.views[view]) + source);
    *reinterpret_cast<uint2 *>(out) = make_uint2(pack(v.x, v.y, T()), pack(v.z, v.w, T()));
}

} // namespace

extern "C" __global__ void __launch_bounds__(256) ms_native_copy(const __grid_constant__ CopyArgs args) {
    wait_for_launches();
    let_next_launch();
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < args.chunks)
        reinterpret_cast<uint4 *>(args.to)[at] = reinterpret_cast<const uint4 *>(args.from)[at];
}

#define TOKENS(TYPE, T)                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        ms_native_patches_##TYPE(const __grid_constant__ PatchArgs args) {                         \
        patches<T>(args);                                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        ms_native_norm_256_##TYPE(const __grid_constant__ NormArgs args) {                         \
        norm<T, 2>(args);                                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        ms_native_norm_1024_##TYPE(const __grid_constant__ NormArgs args) {                        \
        norm<T, 8>(args);                                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        ms_native_convert_##TYPE(const __grid_constant__ ConvertArgs args) {                       \
        convert<T>(args);                                                                          \
    }
TOKENS(f16, __half)
TOKENS(bf16, __nv_bfloat16)
