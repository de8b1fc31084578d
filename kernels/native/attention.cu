// softmax(q · kᵀ) · v, a tile of queries a block, keys in tiles with a running softmax (Dao et al.,
// FlashAttention-2, 2023, algorithm 1). Queries and keys are rotated, and the logits' scale is in the
// queries: the projections before this did both.

#include "attention.cuh"

namespace {

using namespace native;

constexpr int TILE = 64; // queries of a block, and keys at a time
constexpr int THREADS = 128;

template <typename T, int D> __device__ __forceinline__ void attention(const AttentionArgs &p) {
    constexpr int CHUNKS = D / 8;
    constexpr int LOADS = TILE * CHUNKS / THREADS > 0 ? TILE * CHUNKS / THREADS : 1;
    constexpr uint32_t TILE_BYTES = TILE * D * 2;
    static_assert(TILE * CHUNKS % THREADS == 0, "whole loads");

    // Two tiles of keys, then two of values; the queries lie where the second keys come.
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int first = blockIdx.x * TILE, head = blockIdx.y, item = blockIdx.z;
    const int source = (item + p.shift) % p.items;
    const T *q = reinterpret_cast<const T *>(p.q) + item * p.q_item + head * D;
    const T *k = reinterpret_cast<const T *>(p.k) + source * p.k_item + head * D;
    const T *v = reinterpret_cast<const T *>(p.v) + source * p.v_item + head * D;

    // What this thread loads of each tile: chunk `thread % CHUNKS` of rows THREADS / CHUNKS apart.
    const int load_chunk = thread % CHUNKS, load_row = thread / CHUNKS;
    constexpr int ROWS = THREADS / CHUNKS;
    auto copy = [&](const T *from, int stride, int tile, int slot) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = load_row + i * ROWS;
            const bool valid = tile + row < p.tokens;
            copy16(base + slot * TILE_BYTES + tile_offset<CHUNKS>(row, load_chunk),
                   valid ? from + static_cast<int64_t>(tile + row) * stride + load_chunk * 8 : from, valid);
        }
    };

    wait_for_launches();
    copy(q, p.q_stride, first, 1);
    copy(k, p.k_stride, 0, 0);
    copies_commit();
    copy(v, p.v_stride, 0, 2);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    uint32_t qf[D / 16][4];
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        load_matrices(qf[d], base + TILE_BYTES +
                                 tile_offset<CHUNKS>(warp * 16 + (lane & 15), d * 2 + (lane >> 4)));

    float out[D / 8][4] = {};
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    const int tiles = (p.tokens + TILE - 1) / TILE;
    for (int tile = 0; tile < tiles; tile++) {
        const int buffer = tile & 1;
        const bool more = tile + 1 < tiles;
        copies_wait<0>();
        __syncthreads();
        if (more) {
            copy(k, p.k_stride, (tile + 1) * TILE, buffer ^ 1);
            copy(v, p.v_stride, (tile + 1) * TILE, 2 + (buffer ^ 1));
            copies_commit();
        }
        const uint32_t keys = base + buffer * TILE_BYTES, values = base + (2 + buffer) * TILE_BYTES;

        float logits[TILE / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
#pragma unroll
            for (int j = 0; j < TILE / 16; j++) {
                uint32_t kf[4];
                int row = j * 16 + (lane & 7) + ((lane >> 4) << 3), chunk = d * 2 + ((lane >> 3) & 1);
                load_matrices(kf, keys + tile_offset<CHUNKS>(row, chunk));
                multiply(logits[2 * j], qf[d], kf[0], kf[1], T());
                multiply(logits[2 * j + 1], qf[d], kf[2], kf[3], T());
            }
        }
        const int left = p.tokens - tile * TILE;
        if (left < TILE) {
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (j * 8 + (lane & 3) * 2 + (i & 1) >= left) logits[j][i] = -INFINITY;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = largest[half];
#pragma unroll
            for (int j = 0; j < TILE / 8; j++)
                top = fmaxf(top, fmaxf(logits[j][half * 2], logits[j][half * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            // The first tile has at least one key, so `top` is finite unless a logit is not.
            const float shrink = exp2f((largest[half] - top) * LOG2_E), offset = top * LOG2_E;
            largest[half] = top;
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float e = exp2f(logits[j][half * 2 + i] * LOG2_E - offset);
                    logits[j][half * 2 + i] = e;
                    part += e;
                }
            }
            sum[half] = sum[half] * shrink + part;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                out[d][half * 2] *= shrink;
                out[d][half * 2 + 1] *= shrink;
            }
        }
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            const uint32_t weights[4] = {
                pack(logits[2 * j][0], logits[2 * j][1], T()),
                pack(logits[2 * j][2], logits[2 * j][3], T()),
                pack(logits[2 * j + 1][0], logits[2 * j + 1][1], T()),
                pack(logits[2 * j + 1][2], logits[2 * j + 1][3], T()),
            };
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t vf[4];
                load_matrices_transposed(
                    vf, values + tile_offset<CHUNKS>(j * 16 + (lane & 15), d * 2 + (lane >> 4)));
                multiply(out[2 * d], weights, vf[0], vf[1], T());
                multiply(out[2 * d + 1], weights, vf[2], vf[3], T());
            }
        }
    }

    let_next_launch();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float scale = 1.0f / total;
        const int row = first + warp * 16 + (lane >> 2) + half * 8;
        if (row >= p.tokens) continue;
        T *to = reinterpret_cast<T *>(p.out) + item * p.out_item +
                static_cast<int64_t>(row) * p.out_stride + head * D + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *reinterpret_cast<uint32_t *>(to + d * 8) =
                pack(out[d][half * 2] * scale, out[d][half * 2 + 1] * scale, T());
    }
}

} // namespace

// Shared memory: 4 · 64 · D · 2 bytes.
#define ATTENTION(TYPE, T, D)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        ms_native_attention_##D##_##TYPE(const __grid_constant__ AttentionArgs args) {             \
        attention<T, D>(args);                                                                     \
    }
#define ATTENTIONS(TYPE, T)                                                                        \
    ATTENTION(TYPE, T, 16)                                                                         \
    ATTENTION(TYPE, T, 32)                                                                         \
    ATTENTION(TYPE, T, 64)
ATTENTIONS(f16, __half)
ATTENTIONS(bf16, __nv_bfloat16)
