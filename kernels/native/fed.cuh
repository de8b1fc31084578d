// Linear layers and convolutions on Hopper, fed by the tensor memory accelerator: one warp copies tiles to
// shared memory, warpgroups multiply them.
#pragma once

#include "finish.cuh"
#include "tma.cuh"
#include "wide.cuh"

namespace native {

// Convolutions: a block's rows are a rectangle of output pixels. As in src/inference/native/arguments.rs.
struct FeedArgs {
    // Rectangles side by side, and those of an image; images of a group.
    int32_t across, each, images;
    // Binary logarithm of a rectangle's width.
    int32_t width_log2;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum Source { ROWS, PIXELS, POSITIVE_PIXELS };

// Threads of a block. A warp beside the warpgroups fetches, unless the sums need its registers: then the first one does.
template <int GROUPS, int BN> struct Threads {
    static constexpr bool FETCHER = GROUPS < 3 || BN <= 128;
    static constexpr int COUNT = GROUPS * 128 + (FETCHER ? 32 : 0);
};

// 64 · WARPGROUPS rows by BN outputs a block. With SPLIT 2, the two blocks of a cluster take a half of k each, and their
// sums are added.
template <typename T, int WARPGROUPS, int BN, int STAGES, int SPLIT, Source SOURCE>
__device__ __forceinline__ void fed(const LinearArgs &p, const FeedArgs &feed, const TensorMap &a_map,
                                    const TensorMap &weight_map) {
    constexpr int BM = WARPGROUPS * 64, STRIDE = BN + 8, WORKERS = WARPGROUPS * 128;
    constexpr uint32_t A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
    constexpr bool FETCHER = Threads<WARPGROUPS, BN>::FETCHER;
    static_assert(SPLIT == 1 || SPLIT == 2, "whole, or halves");
    // Rows that a block finishes, whose sums it keeps in shared memory. Threads and warps that finish.
    constexpr int FINISHED = BM / SPLIT, FINISHERS = WORKERS / SPLIT, FINISHING_WARPS = FINISHERS / 32;
    static_assert(FINISHED * STRIDE * 4 <= STAGES * STAGE_BYTES, "room for the sums");

    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    // Barriers of each stage: its data are there; they are no longer needed.
    const uint32_t full = base + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    // The bias of the block's outputs; the other part's sums.
    constexpr uint32_t BIAS = STAGES * (STAGE_BYTES + 16), OTHER = BIAS + BN * 4;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int group = blockIdx.z / SPLIT, part = blockIdx.z % SPLIT, n0 = blockIdx.y * BN;

    // Steps of k: those of each tap, then of this part.
    const int depth = SOURCE == ROWS ? p.k : p.channels;
    const int steps_each = static_cast<uint32_t>(depth + BK - 1) / BK;
    const int all_steps = SOURCE == ROWS ? steps_each : 9 * steps_each;
    const int begin = part * all_steps / SPLIT, steps = (part + 1) * all_steps / SPLIT - begin;
    const int at_once = min(steps, STAGES);

    auto fetch_weight = [&](int step) {
        const int stage = step % STAGES, k = begin + step;
        const int tap = SOURCE == ROWS ? 0 : k / steps_each;
        fetch(base + stage * STAGE_BYTES + A_BYTES, weight_map, full + stage * 8,
              tap * p.channels + (k - tap * steps_each) * BK, n0, group);
    };
    // Before anything else, so that they are on their way as soon as possible: the weights do not depend on launches
    // before this one.
    if (threadIdx.x == (FETCHER ? WORKERS : 0)) {
        for (int i = 0; i < STAGES; i++) {
            barrier_make(full + i * 8, 1);
            barrier_make(empty + i * 8, WARPGROUPS * 4);
        }
        barriers_made();
        fence_for_products();
#pragma unroll 1
        for (int step = 0; step < at_once; step++) {
            barrier_expect(full + step * 8, STAGE_BYTES);
            fetch_weight(step);
        }
        prepare_map(a_map);
    }
    __syncwarp();
    // The other block exists from where this is waited for.
    if (SPLIT > 1) cluster_arrive();
    __syncthreads();

    // Where the rectangle of pixels lies.
    int image = 0, top = 0, left = 0;
    if (SOURCE != ROWS) {
        const int tile = blockIdx.x, height = BM >> feed.width_log2;
        image = tile / feed.each;
        const int place = tile - image * feed.each;
        top = place / feed.across * height;
        left = (place - place / feed.across * feed.across) << feed.width_log2;
    }

    auto fetch_a = [&](int step) {
        const int stage = step % STAGES, k = begin + step;
        const uint32_t to = base + stage * STAGE_BYTES, barrier = full + stage * 8;
        if (SOURCE == ROWS) {
            fetch(to, a_map, barrier, k * BK, blockIdx.x * BM, group);
        } else {
            const int tap = k / steps_each;
            // Beyond the last image everything is zero, as beyond the borders.
            fetch(to, a_map, barrier, (k - tap * steps_each) * BK, left + tap % 3 - 1, top + tap / 3 - 1,
                  image < feed.images ? group * feed.images + image : 1 << 24);
        }
    };
    auto fetch_first = [&] {
        wait_for_launches();
#pragma unroll 1
        for (int step = 0; step < at_once; step++) fetch_a(step);
    };
    auto fetch_further = [&](int step) {
        barrier_wait(empty + step % STAGES * 8, (step / STAGES & 1) ^ 1);
        barrier_expect(full + step % STAGES * 8, STAGE_BYTES);
        fetch_weight(step);
        fetch_a(step);
    };
    if (FETCHER && warp == WARPGROUPS * 4) {
        if (lane == 0) {
            fetch_first();
#pragma unroll 1
            for (int step = STAGES; step < steps; step++) fetch_further(step);
        }
        __syncwarp();
        if (SPLIT > 1) {
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
    if (!FETCHER && threadIdx.x == 0) fetch_first();
    __syncwarp();
    for (int i = threadIdx.x; i < BN; i += WORKERS) {
        const float *bias = reinterpret_cast<const float *>(p.bias) + group * p.bias_group + n0;
        reinterpret_cast<float *>(shared + BIAS)[i] = p.bias && n0 + i < p.n ? bias[i] : 0.0f;
    }
    const bool finishes = SPLIT == 1 || warp / FINISHING_WARPS == part;
    const Finish finish = SOURCE == ROWS ? finish_of(p) : Finish::ANY;
    const Sixteen<T, BN> sixteen = {p, group, static_cast<int>(blockIdx.x) * BM + warp * 16, n0, threadIdx.x & 31};
    typename Sixteen<T, BN>::More more;
    // Without a fetcher there are no registers for it.
    constexpr bool EARLY = FETCHER && SOURCE == ROWS;
    if (EARLY && finishes) {
        // How outputs turn does not depend on launches before this one.
        if (finish != Finish::TURNED) wait_for_launches();
        sixteen.before(finish, more);
    }

    // Set before the first product begins: otherwise the compiler lets the products wait for each other.
    float sums[BN / 2] = {};
#pragma unroll
    for (int i = 0; i < BN / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");
    auto release = [&](int step) {
        if (lane == 0) barrier_arrive(empty + step % STAGES * 8);
    };
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        const uint32_t from = base + stage * STAGE_BYTES;
        barrier_wait(full + stage * 8, step / STAGES & 1);
        const uint64_t b = tile_descriptor(from + A_BYTES);
        if constexpr (SOURCE == POSITIVE_PIXELS) {
            uint32_t af[BK / 16][4];
#pragma unroll
            for (int k = 0; k < BK / 16; k++) {
                load_matrices(af[k], from + tile_offset<CHUNKS>(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
                for (int j = 0; j < 4; j++) af[k][j] = relu2<T>(af[k][j]);
            }
            products_begin();
#pragma unroll
            for (int k = 0; k < BK / 16; k++) multiply_wide(sums, af[k], b + k * 2, T());
            products_commit();
            // The fragments are registers, which the next step overwrites.
            products_wait<0>();
            release(step);
        } else {
            const uint64_t a = tile_descriptor(from + warp / 4 * 64 * BK * 2);
            products_begin();
#pragma unroll
            for (int k = 0; k < BK / 16; k++) multiply_wide(sums, a + k * 2, b + k * 2, T());
            products_commit();
            products_wait<1>();
            if (step > 0) release(step - 1);
            if constexpr (!FETCHER) {
                if (threadIdx.x == 0 && step > 0 && step - 1 + STAGES < steps) fetch_further(step - 1 + STAGES);
                __syncwarp();
            }
        }
    }
    products_wait<0>();
    let_next_launch();
    wait_for_launches();
    if (SPLIT > 1) {
        // Each of the two blocks finishes the rows of half of the warps, and gets the other's sums of them.
        cluster_wait();
        if (!finishes) {
            const uint32_t other = address_at(base + OTHER + threadIdx.x % FINISHERS * 16, 1 - part);
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                store_there(other + j * FINISHERS * 16,
                            make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
        }
        cluster_arrive();
        cluster_wait();
        if (!finishes) return;
        const float4 *theirs = reinterpret_cast<const float4 *>(shared + OTHER) + threadIdx.x % FINISHERS;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float4 more = theirs[j * FINISHERS];
            sums[4 * j] += more.x;
            sums[4 * j + 1] += more.y;
            sums[4 * j + 2] += more.z;
            sums[4 * j + 3] += more.w;
        }
    } else {
        // What the last stage's readers need is no longer there after this.
        asm volatile("bar.sync 1, %0;\n" ::"n"(WORKERS) : "memory");
    }
    float *staged = reinterpret_cast<float *>(shared) + warp * 16 % FINISHED * STRIDE;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        float *to = staged + (lane >> 2) * STRIDE + j * 8 + (lane & 3) * 2;
        *reinterpret_cast<float2 *>(to) = make_float2(sums[4 * j], sums[4 * j + 1]);
        *reinterpret_cast<float2 *>(to + 8 * STRIDE) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
    __syncwarp();
    const float *biases = reinterpret_cast<const float *>(shared + BIAS);
    if constexpr (SOURCE == ROWS) {
        if (!EARLY) sixteen.before(finish, more);
        switch (finish) {
        case Finish::PLAIN: sixteen.template write<Finish::PLAIN>(staged, biases, more); return;
        case Finish::TURNED: sixteen.template write<Finish::TURNED>(staged, biases, more); return;
        case Finish::ACTIVATED: sixteen.template write<Finish::ACTIVATED>(staged, biases, more); return;
        case Finish::ADDED: sixteen.add(staged, biases, more); return;
        case Finish::ANY: break;
        }
    }
    // 64 outputs at a time: eight a lane in each of four rows.
    int m[4];
    bool inside[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int block_row = warp * 16 + i * 4 + (lane >> 3);
        m[i] = blockIdx.x * BM + block_row;
        inside[i] = m[i] < p.m;
        if (SOURCE != ROWS) {
            const int y = top + (block_row >> feed.width_log2);
            const int x = left + (block_row & ((1 << feed.width_log2) - 1));
            m[i] = (image * p.out_height + y) * p.out_width + x;
            inside[i] = image < feed.images && y < p.out_height && x < p.out_width;
        }
    }
#pragma unroll 1
    for (int column = (lane & 7) * 8; column < BN && n0 + column < p.n; column += 64) {
        const Outputs<T> outputs(p, group, n0 + column);
        Addends addends[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (inside[i]) addends[i] = outputs.addends(m[i]);
        float bias[8];
        load8(bias, biases + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[8];
            load8(v, staged + (i * 4 + (lane >> 3)) * STRIDE + column);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] += bias[k];
            if (inside[i]) outputs.finish(v, m[i], addends[i]);
        }
    }
}

#endif

} // namespace native
