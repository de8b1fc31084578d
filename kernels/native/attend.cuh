// Attention on Hopper: softmax(q · kᵀ) · v as in attention.cu, with products by warpgroups. One warp fetches keys and
// values; while a warpgroup's products with values run, it takes the softmax of the next logits (Shah et al.,
// FlashAttention-3, 2024, section 3.2).
#pragma once

#include "attention.cuh"
#include "tma.cuh"
#include "wide.cuh"

namespace native {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Two rows of a thread: their greatest logit and the sum of their weights.
struct Rows {
    float largest[2], sum[2];
};

// Logits to weights, in place; what earlier weights shrink by. `left`: keys that there still are.
template <int KEYS>
__device__ __forceinline__ void soften(float (&logits)[KEYS / 2], Rows &rows, float (&shrink)[2], int left) {
    if (left < KEYS) {
        const int column = (threadIdx.x & 3) * 2;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            if (i / 4 * 8 + column + (i & 1) >= left) logits[i] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = rows.largest[half];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) top = fmaxf(top, fmaxf(logits[j * 4 + half * 2], logits[j * 4 + half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        // There is at least one key, so `top` is finite unless a logit is not.
        const float offset = top * LOG2_E;
        shrink[half] = power_of_two(rows.largest[half] * LOG2_E - offset);
        rows.largest[half] = top;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = logits[j * 4 + half * 2 + i];
                x = power_of_two(fmaf(x, LOG2_E, -offset));
                part += x;
            }
        }
        rows.sum[half] = rows.sum[half] * shrink[half] + part;
    }
}

// 64 queries a block, KEYS keys at a time, heads of 64 channels.
template <typename T, int KEYS, int STAGES>
__device__ __forceinline__ void attend(const AttentionArgs &p, const TensorMap &q_map, const TensorMap &k_map,
                                       const TensorMap &v_map) {
    constexpr int D = 64, ROW = D * 2;
    constexpr uint32_t Q_BYTES = 64 * ROW, TILE_BYTES = KEYS * ROW;
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    // Queries; of each stage keys, then of each stage values; the barriers.
    const uint32_t keys = base + Q_BYTES, values = keys + STAGES * TILE_BYTES;
    const uint32_t queries_there = values + STAGES * TILE_BYTES;
    const uint32_t keys_there = queries_there + 8, values_there = keys_there + STAGES * 8;
    const uint32_t keys_done = values_there + STAGES * 8, values_done = keys_done + STAGES * 8;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int first = blockIdx.x * 64, head = blockIdx.y, item = blockIdx.z;
    const int tiles = (p.tokens + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        barrier_make(queries_there, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_make(keys_there + i * 8, 1);
            barrier_make(values_there + i * 8, 1);
            barrier_make(keys_done + i * 8, 4);
            barrier_make(values_done + i * 8, 4);
        }
        barriers_made();
    }
    __syncthreads();

    if (warp == 4) {
        if (lane == 0) {
            const int source = (item + p.shift) % p.items;
            wait_for_launches();
            barrier_expect(queries_there, Q_BYTES);
            fetch(base, q_map, queries_there, head * D, first, item);
            for (int tile = 0; tile < tiles; tile++) {
                const int stage = tile % STAGES;
                // The first round finds all stages empty.
                const uint32_t parity = (tile / STAGES & 1) ^ 1;
                barrier_wait(keys_done + stage * 8, parity);
                barrier_expect(keys_there + stage * 8, TILE_BYTES);
                fetch(keys + stage * TILE_BYTES, k_map, keys_there + stage * 8, head * D, tile * KEYS,
                              source);
                barrier_wait(values_done + stage * 8, parity);
                barrier_expect(values_there + stage * 8, TILE_BYTES);
                fetch(values + stage * TILE_BYTES, v_map, values_there + stage * 8, head * D, tile * KEYS,
                              source);
            }
        }
        return;
    }

    const uint64_t q = tile_descriptor(base);
    float logits[KEYS / 2], out[D / 2] = {}, shrink[2];
    uint32_t weights[KEYS / 16][4];
    Rows rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    // Set before the first product begins.
#pragma unroll
    for (int i = 0; i < D / 2; i++) asm volatile("" : "+f"(out[i])::"memory");

    auto ask = [&](int tile) {
        barrier_wait(keys_there + tile % STAGES * 8, tile / STAGES & 1);
        const uint64_t k = tile_descriptor(keys + tile % STAGES * TILE_BYTES);
        products_begin();
        multiply_first(logits, q, k, T());
#pragma unroll
        for (int d = 1; d < D / 16; d++) multiply_wide(logits, q + d * 2, k + d * 2, T());
        products_commit();
    };
    auto answer = [&](int tile) {
        barrier_wait(values_there + tile % STAGES * 8, tile / STAGES & 1);
        const uint64_t v = tile_descriptor(values + tile % STAGES * TILE_BYTES);
        products_begin();
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) multiply_values(out, weights[j], v + j * (16 * ROW / 16), T());
        products_commit();
    };
    auto release = [&](uint32_t barriers, int tile) {
        if (lane == 0) barrier_arrive(barriers + tile % STAGES * 8);
    };
    auto keep = [&]() {
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) weights[j][i] = pack(logits[j * 8 + i * 2], logits[j * 8 + i * 2 + 1], T());
        }
    };

    barrier_wait(queries_there, 0);
    ask(0);
    products_wait<0>();
    release(keys_done, 0);
    soften<KEYS>(logits, rows, shrink, p.tokens);
    keep();
    for (int tile = 0; tile + 1 < tiles; tile++) {
        ask(tile + 1);
        answer(tile);
        products_wait<1>();
        release(keys_done, tile + 1);
        soften<KEYS>(logits, rows, shrink, p.tokens - (tile + 1) * KEYS);
        products_wait<0>();
        release(values_done, tile);
#pragma unroll
        for (int d = 0; d < D / 2; d++) out[d] *= shrink[d >> 1 & 1];
        keep();
    }
    answer(tiles - 1);
    let_next_launch();
    products_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = rows.sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float scale = 1.0f / total;
        const int row = first + warp * 16 + (lane >> 2) + half * 8;
        if (row >= p.tokens) continue;
        T *to = reinterpret_cast<T *>(p.out) + item * p.out_item + static_cast<int64_t>(row) * p.out_stride +
                head * D + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *reinterpret_cast<uint32_t *>(to + d * 8) =
                pack(out[d * 4 + half * 2] * scale, out[d * 4 + half * 2 + 1] * scale, T());
    }
}

#endif

} // namespace native
