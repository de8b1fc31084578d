// Linear layers and convolutions: out = act(A · Wᵀ + bias) + residuals, on tensor cores.
//
// A convolution is the same product with A gathered on the way into shared memory: row m is an
// output pixel, column k = (ky, kx, channel). Maps are B × H × W × C.
// A 1 × 1 layer may read rows of any stride, and may put its outputs in place as the pixels of
// patches, which is a transposed convolution whose stride is its kernel's side.
// Its weights may be E4M3 numbers with a factor for each output, see src/inference/native/format.rs.

#include "linear.cuh"
#include "wide.cuh"

namespace {

using namespace native;

// What each thread of a block copies into a stage: one 16-byte chunk of rows ROWS apart. Weights of type W.
template <typename T, typename W, int BM, int BN, int THREADS, int KERNEL> struct Loader {
    static constexpr int ROWS = THREADS / CHUNKS;
    // Values in a chunk of weights, and chunks of a row.
    static constexpr int VALUES = 16 / sizeof(W), W_CHUNKS = BK / VALUES, W_ROWS = THREADS / W_CHUNKS;
    static constexpr int A_LOADS = BM / ROWS, B_LOADS = BN / W_ROWS;
    static constexpr uint32_t A_BYTES = BM * BK * 2, STAGE_BYTES = A_BYTES + BN * BK * sizeof(W);
    static_assert(BM % ROWS == 0 && BN % W_ROWS == 0, "tiles");

    const LinearArgs &p;
    const T *a;
    const W *weight;
    int row, chunk, n0;
    // Where each row of A begins; of convolutions the upper left tap.
    int32_t a_at[A_LOADS], top[A_LOADS], left[A_LOADS];
    // The position of the chunk in k; of convolutions its tap and channel.
    int k_at, tap, channel;

    __device__ __forceinline__ Loader(const LinearArgs &p, int group, int m0, int n0)
        : p(p), a(reinterpret_cast<const T *>(p.a) + group * p.a_group),
          weight(reinterpret_cast<const W *>(p.weight) + group * p.weight_group),
          row(threadIdx.x / CHUNKS), chunk(threadIdx.x % CHUNKS), n0(n0), k_at(chunk * 8), tap(0),
          channel(chunk * 8) {
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const int m = m0 + row + i * ROWS;
            if (KERNEL == 1) {
                a_at[i] = m * p.a_stride;
                top[i] = m < p.m ? 0 : -1;
                left[i] = 0;
            } else {
                const int pixels = p.out_height * p.out_width;
                const int image = m / pixels, pixel = m - image * pixels;
                const int y = pixel / p.out_width, x = pixel - y * p.out_width;
                top[i] = m < p.m ? y * p.step - KERNEL / 2 : -(1 << 20);
                left[i] = x * p.step - KERNEL / 2;
                a_at[i] = image * p.height * p.width;
            }
        }
        if (KERNEL > 1) {
            tap = channel / p.channels;
            channel -= tap * p.channels;
        }
    }

    // Copies the next BK values of k to the stage at `to`.
    __device__ __forceinline__ void load(uint32_t to) {
        const bool in_k = k_at < p.k;
        const int ky = KERNEL > 1 ? tap / KERNEL : 0, kx = KERNEL > 1 ? tap - ky * KERNEL : 0;
#pragma unroll
        for (int i = 0; i < A_LOADS; i++) {
            const uint32_t dst = to + tile_offset<CHUNKS>(row + i * ROWS, chunk);
            if (KERNEL == 1) {
                const bool valid = in_k && top[i] == 0;
                copy16(dst, valid ? a + a_at[i] + k_at : a, valid);
            } else {
                const int y = top[i] + ky, x = left[i] + kx;
                const bool valid = in_k && y >= 0 && y < p.height && x >= 0 && x < p.width;
                const int32_t at = (a_at[i] + y * p.width + x) * p.a_stride + channel;
                copy16(dst, valid ? a + at : a, valid);
            }
        }
        if constexpr (VALUES == 8) {
#pragma unroll
            for (int i = 0; i < B_LOADS; i++) {
                const int n = n0 + row + i * ROWS;
                const bool valid = in_k && n < p.n;
                const uint32_t dst = to + A_BYTES + tile_offset<CHUNKS>(row + i * ROWS, chunk);
                copy16(dst, valid ? weight + n * p.k + k_at : weight, valid);
            }
        } else {
            // Rows are filled up to whole chunks.
            const int w_row = threadIdx.x / W_CHUNKS, w_chunk = threadIdx.x % W_CHUNKS;
            const int w_at = k_at - chunk * 8 + w_chunk * VALUES, stride = (p.k + VALUES - 1) / VALUES * VALUES;
#pragma unroll
            for (int i = 0; i < B_LOADS; i++) {
                const int n = n0 + w_row + i * W_ROWS;
                const bool valid = w_at < stride && n < p.n;
                const uint32_t dst = to + A_BYTES + tile_offset<W_CHUNKS>(w_row + i * W_ROWS, w_chunk);
                copy16(dst, valid ? weight + n * stride + w_at : weight, valid);
            }
        }
        k_at += BK;
        if (KERNEL > 1) {
            channel += BK;
            while (channel >= p.channels) {
                channel -= p.channels;
                tap++;
            }
        }
    }
};

// Sums of a block from shared memory, where each thread finishes eight neighbouring outputs.
template <typename T, typename W, int BM, int BN, int THREADS>
__device__ __forceinline__ void finish_all(const LinearArgs &p, const float *staged, int group, int m0, int n0) {
    constexpr int STRIDE = BN + 4, OUT_CHUNKS = BN / 8;
    const int column = threadIdx.x % OUT_CHUNKS * 8;
    if (n0 + column >= p.n) return;
    const Outputs<T> outputs(p, group, n0 + column);
    float bias[8] = {};
    if (p.bias) add8(bias, outputs.bias());
    float scale[8] = {};
    if (sizeof(W) == 1) add8(scale, reinterpret_cast<const float *>(p.scale) + group * p.n + n0 + column);
    for (int row = threadIdx.x / OUT_CHUNKS; row < BM; row += THREADS / OUT_CHUNKS) {
        const int m = m0 + row;
        if (m >= p.m) break;
        const Addends addends = outputs.addends(m);
        float v[8];
        if constexpr (sizeof(W) == 1) {
            float sums[8] = {};
            add8(sums, staged + row * STRIDE + column);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = fmaf(sums[i], scale[i], bias[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = bias[i];
            add8(v, staged + row * STRIDE + column);
        }
        outputs.finish(v, m, addends);
    }
}

// With the tensor-core products of sm_80 and newer.
template <typename T, typename W, int BM, int BN, int WM, int WN, int STAGES, int KERNEL>
__device__ __forceinline__ void linear(const LinearArgs &p) {
    constexpr int WARPS_N = BN / WN, THREADS = (BM / WM) * WARPS_N * 32;
    constexpr int MT = WM / 16, NT = WN / 8, STRIDE = BN + 4;
    using Loads = Loader<T, W, BM, BN, THREADS, KERNEL>;
    constexpr uint32_t STAGE_BYTES = Loads::STAGE_BYTES, A_BYTES = Loads::A_BYTES;
    static_assert(NT % (4 / sizeof(W)) == 0, "whole loads of tiles");
    static_assert(BM * STRIDE * 4 <= STAGES * STAGE_BYTES, "room for the sums");

    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = blockIdx.z, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    Loads loads(p, group, m0, n0);
    wait_for_launches();
    const int steps = (p.k + BK - 1) / BK;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) loads.load(base + stage * STAGE_BYTES);
        copies_commit();
    }

    const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    float sums[MT][NT][4] = {};
    const bool relu_input = p.flags & RELU_INPUT;
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) loads.load(base + (step + STAGES - 1) % STAGES * STAGE_BYTES);
        copies_commit();
        const uint32_t from = base + step % STAGES * STAGE_BYTES;
        // The next fragments are on their way while these are multiplied.
        uint32_t af[2][MT][4], bf[2][NT / 2][4];
        auto fragments = [&](int k) {
#pragma unroll
            for (int i = 0; i < MT; i++) {
                int row = warp_m + i * 16 + (lane & 15), chunk = k * 2 + (lane >> 4);
                load_matrices(af[k & 1][i], from + tile_offset<CHUNKS>(row, chunk));
            }
            if constexpr (sizeof(W) == 1) {
#pragma unroll
                for (int j = 0; j < NT / 4; j++) {
                    uint32_t bytes[4];
                    load_matrices(bytes, from + A_BYTES + tile_offset<BK / 16>(warp_n + j * 32 + lane, k));
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint2 wide = widen(bytes[i]);
                        bf[k & 1][2 * j + i / 2][i % 2 * 2] = wide.x;
                        bf[k & 1][2 * j + i / 2][i % 2 * 2 + 1] = wide.y;
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < NT / 2; j++) {
                    int row = warp_n + j * 16 + (lane & 7) + ((lane >> 4) << 3);
                    int chunk = k * 2 + ((lane >> 3) & 1);
                    load_matrices(bf[k & 1][j], from + A_BYTES + tile_offset<CHUNKS>(row, chunk));
                }
            }
        };
        fragments(0);
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            if (k + 1 < BK / 16) fragments(k + 1);
            if (relu_input) {
#pragma unroll
                for (int i = 0; i < MT; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) af[k & 1][i][j] = relu2<T>(af[k & 1][i][j]);
                }
            }
#pragma unroll
            for (int i = 0; i < MT; i++) {
#pragma unroll
                for (int j = 0; j < NT; j++)
                    multiply(sums[i][j], af[k & 1][i], bf[k & 1][j / 2][j % 2 * 2],
                             bf[k & 1][j / 2][j % 2 * 2 + 1], T());
            }
        }
    }
    copies_wait<0>();
    let_next_launch();
    __syncthreads();
    float *staged = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float *to = staged + (warp_m + i * 16 + (lane >> 2)) * STRIDE + warp_n + j * 8 + (lane & 3) * 2;
            *reinterpret_cast<float2 *>(to) = make_float2(sums[i][j][0], sums[i][j][1]);
            *reinterpret_cast<float2 *>(to + 8 * STRIDE) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
    }
    __syncthreads();
    finish_all<T, W, BM, BN, THREADS>(p, staged, group, m0, n0);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// With Hopper's products of 64 rows by a warpgroup, both factors in shared memory; two warpgroups a block.
template <typename T, int BN, int STAGES, int KERNEL, bool RELU_IN>
__device__ __forceinline__ void wide(const LinearArgs &p) {
    constexpr int BM = 128, THREADS = 256, STRIDE = BN + 4;
    using Loads = Loader<T, T, BM, BN, THREADS, KERNEL>;
    constexpr uint32_t STAGE_BYTES = Loads::STAGE_BYTES, A_BYTES = Loads::A_BYTES;
    static_assert(BM * STRIDE * 4 <= STAGES * STAGE_BYTES, "room for the sums");
    // A stage is read until the step after its own is done, so this many are on their way.
    constexpr int AHEAD = STAGES - 2;

    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = blockIdx.z, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    Loads loads(p, group, m0, n0);
    wait_for_launches();
    const int steps = (p.k + BK - 1) / BK;
#pragma unroll
    for (int stage = 0; stage < AHEAD; stage++) {
        if (stage < steps) loads.load(base + stage * STAGE_BYTES);
        copies_commit();
    }
    const uint32_t a_rows = warp / 4 * 64;
    float sums[BN / 2] = {};
    for (int step = 0; step < steps; step++) {
        copies_wait<AHEAD - 1>();
        fence_for_products();
        __syncthreads();
        const uint32_t from = base + step % STAGES * STAGE_BYTES;
        const uint64_t b = tile_descriptor(from + A_BYTES);
        if (RELU_IN) {
            uint32_t af[BK / 16][4];
#pragma unroll
            for (int k = 0; k < BK / 16; k++) {
                int row = warp * 16 + (lane & 15), chunk = k * 2 + (lane >> 4);
                load_matrices(af[k], from + tile_offset<CHUNKS>(row, chunk));
#pragma unroll
                for (int j = 0; j < 4; j++) af[k][j] = relu2<T>(af[k][j]);
            }
            products_begin();
#pragma unroll
            for (int k = 0; k < BK / 16; k++) multiply_wide(sums, af[k], b + k * 2, T());
            products_commit();
            // The fragments are registers, which the next step overwrites.
            products_wait<0>();
        } else {
            const uint64_t a = tile_descriptor(from + a_rows * BK * 2);
            products_begin();
#pragma unroll
            for (int k = 0; k < BK / 16; k++) multiply_wide(sums, a + k * 2, b + k * 2, T());
            products_commit();
        }
        // The products of the step before the last one, which read that stage, were over before the barrier.
        if (step + AHEAD < steps) loads.load(base + (step + AHEAD) % STAGES * STAGE_BYTES);
        copies_commit();
        products_wait<1>();
    }
    products_wait<0>();
    copies_wait<0>();
    let_next_launch();
    __syncthreads();
    float *staged = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        float *to = staged + (warp * 16 + (lane >> 2)) * STRIDE + j * 8 + (lane & 3) * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(sums[4 * j], sums[4 * j + 1]);
        *reinterpret_cast<float2 *>(to + 8 * STRIDE) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
    __syncthreads();
    finish_all<T, T, BM, BN, THREADS>(p, staged, group, m0, n0);
}
#endif

} // namespace

// Shared memory: STAGES · (BM + BN) · 128 bytes, of weights in bytes STAGES · (2 · BM + BN) · 64;
// threads: BM / WM · BN / WN · 32.
#define LINEAR(NAME, T, W, BM, BN, WM, WN, STAGES, KERNEL)                                         \
    extern "C" __global__ void __launch_bounds__((BM / WM) * (BN / WN) * 32)                       \
        NAME(const __grid_constant__ LinearArgs args) {                                            \
        linear<T, W, BM, BN, WM, WN, STAGES, KERNEL>(args);                                        \
    }
#define LINEARS(TYPE, T)                                                                           \
    LINEAR(ms_native_linear_small_##TYPE, T, T, 64, 64, 32, 32, 3, 1)                              \
    LINEAR(ms_native_linear_narrow_##TYPE, T, T, 128, 32, 32, 32, 3, 1)                            \
    LINEAR(ms_native_conv_small_##TYPE, T, T, 64, 64, 32, 32, 3, 3)                                \
    LINEAR(ms_native_conv_narrow_##TYPE, T, T, 128, 32, 32, 32, 3, 3)

LINEARS(f16, __half)
LINEARS(bf16, __nv_bfloat16)
LINEAR(ms_native_linear_small_e4m3, __half, uint8_t, 64, 64, 32, 32, 4, 1)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Shared memory: STAGES · (128 + BN) · 128 bytes; 256 threads. Only in code for sm_90a.
#define WIDE(NAME, T, BN, STAGES, KERNEL, RELU_IN)                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        NAME(const __grid_constant__ LinearArgs args) {                                            \
        wide<T, BN, STAGES, KERNEL, RELU_IN>(args);                                                \
    }
#define WIDES(TYPE, T)                                                                             \
    WIDE(ms_native_linear_wide_128_##TYPE, T, 128, 4, 1, false)                                    \
    WIDE(ms_native_linear_wide_64_##TYPE, T, 64, 4, 1, false)                                      \
    WIDE(ms_native_conv_wide_128_##TYPE, T, 128, 4, 3, false)                                      \
    WIDE(ms_native_conv_wide_64_##TYPE, T, 64, 4, 3, false)                                        \
    WIDE(ms_native_conv_wide_relu_128_##TYPE, T, 128, 4, 3, true)                                  \
    WIDE(ms_native_conv_wide_relu_64_##TYPE, T, 64, 4, 3, true)

WIDES(f16, __half)
WIDES(bf16, __nv_bfloat16)
#endif
