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

// 64 queries a block, heads of 64 channels. Each of PARTS warpgroups takes a part of the keys, KEYS at a time, and they
// combine what they have at the end: a block for each multiprocessor or less would otherwise leave it mostly idle.
template <typename T, int KEYS, int STAGES, int PARTS>
__device__ __forceinline__ void attend(const AttentionArgs &p, const TensorMap &q_map, const TensorMap &k_map,
                                       const TensorMap &v_map) {
    constexpr int D = 64, ROW = D * 2, ALL_STAGES = PARTS * STAGES, WORKERS = PARTS * 128;
    constexpr uint32_t Q_BYTES = 64 * ROW, TILE_BYTES = KEYS * ROW;
    static_assert(PARTS == 1 || (PARTS <= 4 && D / 8 % PARTS == 0), "whole columns for each part");
    static_assert(PARTS == 1 || PARTS * (D / 2 + 4) * 128 * 4 <= ALL_STAGES * 2 * TILE_BYTES, "room for all parts");
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    // Queries; of each stage keys, then of each stage values; the barriers. A part's stages lie behind each other.
    const uint32_t keys = base + Q_BYTES, values = keys + ALL_STAGES * TILE_BYTES;
    const uint32_t queries_there = values + ALL_STAGES * TILE_BYTES;
    const uint32_t keys_there = queries_there + 8, values_there = keys_there + ALL_STAGES * 8;
    const uint32_t keys_done = values_there + ALL_STAGES * 8, values_done = keys_done + ALL_STAGES * 8;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int first = blockIdx.x * 64, head = blockIdx.y, item = blockIdx.z;
    const int all_tiles = (p.tokens + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        barrier_make(queries_there, 1);
        for (int i = 0; i < ALL_STAGES; i++) {
            barrier_make(keys_there + i * 8, 1);
            barrier_make(values_there + i * 8, 1);
            barrier_make(keys_done + i * 8, 4);
            barrier_make(values_done + i * 8, 4);
        }
        barriers_made();
    }
    __syncthreads();

    // The first tile of a part.
    auto begin_of = [&](int part) { return part * all_tiles / PARTS; };
    if (warp == PARTS * 4) {
        if (lane == 0) {
            const int source = (item + p.shift) % p.items;
            wait_for_launches();
            barrier_expect(queries_there, Q_BYTES);
            fetch(base, q_map, queries_there, head * D, first, item);
            // The last part has the most tiles.
            for (int tile = 0; tile < all_tiles - begin_of(PARTS - 1); tile++) {
                // The first round finds all stages empty.
                const uint32_t parity = (tile / STAGES & 1) ^ 1;
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const int begin = begin_of(part), stage = part * STAGES + tile % STAGES;
                    if (tile >= begin_of(part + 1) - begin) continue;
                    barrier_wait(keys_done + stage * 8, parity);
                    barrier_expect(keys_there + stage * 8, TILE_BYTES);
                    fetch(keys + stage * TILE_BYTES, k_map, keys_there + stage * 8, head * D, (begin + tile) * KEYS,
                          source);
                    barrier_wait(values_done + stage * 8, parity);
                    barrier_expect(values_there + stage * 8, TILE_BYTES);
                    fetch(values + stage * TILE_BYTES, v_map, values_there + stage * 8, head * D,
                          (begin + tile) * KEYS, source);
                }
            }
        }
        return;
    }

    const int part = PARTS == 1 ? 0 : warp / 4, begin = begin_of(part), tiles = begin_of(part + 1) - begin;
    // Keys of this part and of those behind it.
    const int left = p.tokens - begin * KEYS;
    const uint64_t q = tile_descriptor(base);
    float logits[KEYS / 2], out[D / 2] = {}, shrink[2];
    uint32_t weights[KEYS / 16][4];
    Rows rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    // Set before the first product begins.
#pragma unroll
    for (int i = 0; i < D / 2; i++) asm volatile("" : "+f"(out[i])::"memory");

    // Where this part's stages and barriers begin; the others of them lie whole numbers of stages behind.
    const uint32_t own_keys = keys + part * STAGES * TILE_BYTES, own_barriers = keys_there + part * STAGES * 8;
    constexpr uint32_t TO_VALUES = ALL_STAGES * TILE_BYTES, TO_BARRIERS = ALL_STAGES * 8;
    auto ask = [&](int tile) {
        barrier_wait(own_barriers + tile % STAGES * 8, tile / STAGES & 1);
        const uint64_t k = tile_descriptor(own_keys + tile % STAGES * TILE_BYTES);
        products_begin();
        multiply_first(logits, q, k, T());
#pragma unroll
        for (int d = 1; d < D / 16; d++) multiply_wide(logits, q + d * 2, k + d * 2, T());
        products_commit();
    };
    auto answer = [&](int tile) {
        barrier_wait(own_barriers + TO_BARRIERS + tile % STAGES * 8, tile / STAGES & 1);
        const uint64_t v = tile_descriptor(own_keys + TO_VALUES + tile % STAGES * TILE_BYTES);
        products_begin();
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) multiply_values(out, weights[j], v + j * (16 * ROW / 16), T());
        products_commit();
    };
    auto release_keys = [&](int tile) {
        if (lane == 0) barrier_arrive(own_barriers + 2 * TO_BARRIERS + tile % STAGES * 8);
    };
    auto release_values = [&](int tile) {
        if (lane == 0) barrier_arrive(own_barriers + 3 * TO_BARRIERS + tile % STAGES * 8);
    };
    auto keep = [&]() {
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) weights[j][i] = pack(logits[j * 8 + i * 2], logits[j * 8 + i * 2 + 1], T());
        }
    };

    // A part has no tile where there are fewer tiles than parts.
    if (PARTS == 1 || tiles > 0) {
        barrier_wait(queries_there, 0);
        ask(0);
        products_wait<0>();
        release_keys(0);
        soften<KEYS>(logits, rows, shrink, left);
        keep();
        for (int tile = 0; tile + 1 < tiles; tile++) {
            ask(tile + 1);
            answer(tile);
            products_wait<1>();
            release_keys(tile + 1);
            soften<KEYS>(logits, rows, shrink, left - (tile + 1) * KEYS);
            products_wait<0>();
            release_values(tile);
#pragma unroll
            for (int d = 0; d < D / 2; d++) out[d] *= shrink[d >> 1 & 1];
            keep();
        }
        answer(tiles - 1);
    }
    let_next_launch();
    products_wait<0>();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.sum[half] += __shfl_xor_sync(~0u, rows.sum[half], 1);
        rows.sum[half] += __shfl_xor_sync(~0u, rows.sum[half], 2);
    }

    // A part of the columns for each part of the keys.
    constexpr int COLUMNS = D / 8 / PARTS;
    const int thread = threadIdx.x % 128;
    float weight[PARTS][2];
    const float *all = reinterpret_cast<const float *>(shared + Q_BYTES);
    if (PARTS > 1) {
        // Keys and values lie where the parts' sums come.
        asm volatile("bar.sync 1, %0;\n" ::"n"(WORKERS) : "memory");
        float *own = reinterpret_cast<float *>(shared + Q_BYTES) + part * (D / 2 + 4) * 128 + thread;
#pragma unroll
        for (int d = 0; d < D / 2; d++) own[d * 128] = out[d];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            own[(D / 2 + half) * 128] = rows.largest[half];
            own[(D / 2 + 2 + half) * 128] = rows.sum[half];
        }
        asm volatile("bar.sync 1, %0;\n" ::"n"(WORKERS) : "memory");
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, total = 0.0f;
            auto of_part = [&](int i, int value) { return all[(i * (D / 2 + 4) + D / 2 + value + half) * 128 + thread]; };
#pragma unroll
            for (int i = 0; i < PARTS; i++) top = fmaxf(top, of_part(i, 0));
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                weight[i][half] = power_of_two((of_part(i, 0) - top) * LOG2_E);
                total += weight[i][half] * of_part(i, 2);
            }
            rows.sum[half] = total;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float scale = 1.0f / rows.sum[half];
        const int row = first + warp % 4 * 16 + (lane >> 2) + half * 8;
        if (row >= p.tokens) continue;
        T *to = reinterpret_cast<T *>(p.out) + item * p.out_item + static_cast<int64_t>(row) * p.out_stride +
                head * D + (lane & 3) * 2;
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
            const int d = part * COLUMNS + column;
            float x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (PARTS == 1) {
                    x[i] = out[column * 4 + half * 2 + i];
                    continue;
                }
                x[i] = 0.0f;
#pragma unroll
                for (int from = 0; from < PARTS; from++)
                    x[i] += weight[from][half] * all[(from * (D / 2 + 4) + d * 4 + half * 2 + i) * 128 + thread];
            }
            *reinterpret_cast<uint32_t *>(to + d * 8) = pack(x[0] * scale, x[1] * scale, T());
        }
    }
}

#endif

} // namespace native
