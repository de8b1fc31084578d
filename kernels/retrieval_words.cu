// From an image's features to its visual words and their binary residuals (docs/algorithm.md, Place
// recognition, steps 3 and 4; CPU: src/compute/retrieval/codebook.rs and words.rs).
//
// Products are summed in f32 with fused multiply-adds in the order of the components, one accumulator for each pair of
// feature and word: the CPU's bits where the CPU has fused multiply-adds too.
//
// Limit: 300 x K x C fused multiply-adds, 20 G at K = 65,536 and C = 1024: 0.61 ms of one H200's 33 T/s. The codebook
// has 268 MB, 0.06 ms at 4.8 TB/s: the blocks of one panel of words are neighbours, so it is read from memory once.

#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>

#include "retrieval.cuh"

namespace {

using namespace ms::retrieval;

// Unsigned integers in the order of the floats, both zeros alike; kNone for NaN and +infinity, which are not ranks.
__device__ __forceinline__ unsigned order_of_rank(float rank) {
    const unsigned bits = __float_as_uint(__fadd_rn(rank, 0.0f));
    const unsigned order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return rank < __uint_as_float(0x7f800000u) ? order : kNone;
}

__device__ __forceinline__ float rank_of_order(unsigned order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

} // namespace

// The kNearest nearest words of a panel to each feature: candidates[(panel * kKeptPadded + row) * kNearest] = (order of
// rank, word), (kNone, kNone) where there are fewer. `rows` is padded_dim x kKeptPadded, `codebook` in panels,
// `half_norms` infinite beyond the last word. Grid (kKeptPadded / kRowTile, panels), so that the blocks of a panel are
// neighbours.
extern "C" __global__ void __launch_bounds__(256, 2)
    ms_retrieval_assign(const float* __restrict__ rows, const float* __restrict__ codebook, const float* __restrict__ half_norms,
                        unsigned padded_dim, const Status* __restrict__ status, uint2* __restrict__ candidates) {
    __shared__ alignas(16) float a[2][kStep][kRowTile];
    __shared__ alignas(16) float b[2][kStep][kPanel];
    const unsigned thread = threadIdx.x;
    const unsigned lane = thread % 32;
    const unsigned first_row = blockIdx.x * kRowTile;
    // A warp has 8 rows, a lane words 4 l to 4 l + 3 and 128 + 4 l to 128 + 4 l + 3.
    const unsigned row = thread / 32 * 8;
    if (first_row >= status->kept) {
        return; // their candidates are never read
    }
    const float* const panel = codebook + static_cast<unsigned long long>(blockIdx.y) * padded_dim * kPanel;

    const auto load = [&](unsigned stage, unsigned start) {
        {
            const unsigned k = thread / 16;
            const unsigned r = thread % 16 * 4;
            copy16(&a[stage][k][r], rows + static_cast<unsigned long long>(start + k) * kKeptPadded + first_row + r);
        }
#pragma unroll
        for (unsigned part = 0; part < 4; ++part) {
            const unsigned k = part * 4 + thread / 64;
            const unsigned w = thread % 64 * 4;
            copy16(&b[stage][k][w], panel + static_cast<unsigned long long>(start + k) * kPanel + w);
        }
        copies_commit();
    };

    float sum[8][8] = {};
    load(0, 0);
    const unsigned steps = padded_dim / kStep;
    for (unsigned step = 0; step < steps; ++step) {
        const unsigned stage = step % 2;
        copies_wait<0>();
        // The stage is complete for all threads, and the other one is no longer read.
        __syncthreads();
        if (step + 1 < steps) {
            load(1 - stage, (step + 1) * kStep);
        }
#pragma unroll
        for (unsigned k = 0; k < kStep; ++k) {
            const float4 y0 = *reinterpret_cast<const float4*>(&a[stage][k][row]);
            const float4 y1 = *reinterpret_cast<const float4*>(&a[stage][k][row + 4]);
            const float4 c0 = *reinterpret_cast<const float4*>(&b[stage][k][lane * 4]);
            const float4 c1 = *reinterpret_cast<const float4*>(&b[stage][k][lane * 4 + 128]);
            const float y[8] = {y0.x, y0.y, y0.z, y0.w, y1.x, y1.y, y1.z, y1.w};
            const float c[8] = {c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w};
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) {
#pragma unroll
                for (unsigned j = 0; j < 8; ++j) {
                    sum[i][j] = __fmaf_rn(y[i], c[j], sum[i][j]);
                }
            }
        }
    }

    const unsigned first_word = blockIdx.y * kPanel + lane * 4;
    float half[8];
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) {
        half[j] = half_norms[first_word + j % 4 + j / 4 * 128];
    }
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        unsigned order[8];
#pragma unroll
        for (unsigned j = 0; j < 8; ++j) {
            order[j] = order_of_rank(__fsub_rn(half[j], sum[i][j]));
        }
        uint2 found = make_uint2(kNone, kNone);
#pragma unroll
        for (unsigned round = 0; round < kNearest; ++round) {
            unsigned least = order[0];
#pragma unroll
            for (unsigned j = 1; j < 8; ++j) {
                least = min(least, order[j]);
            }
            const unsigned best = __reduce_min_sync(0xffffffffu, least);
            // A lane's words ascend with j.
            unsigned word = kNone;
#pragma unroll
            for (unsigned j = 8; j-- > 0;) {
                word = order[j] == best ? first_word + j % 4 + j / 4 * 128 : word;
            }
            word = __reduce_min_sync(0xffffffffu, best == kNone ? kNone : word);
#pragma unroll
            for (unsigned j = 0; j < 8; ++j) {
                order[j] = first_word + j % 4 + j / 4 * 128 == word ? kNone : order[j];
            }
            if (lane == round) {
                found = make_uint2(best, word);
            }
        }
        if (lane < kNearest) {
            const unsigned long long at =
                (static_cast<unsigned long long>(blockIdx.y) * kKeptPadded + first_row + row + i) * kNearest + lane;
            candidates[at] = found;
        }
    }
}

// The nearest words of all panels: words[row * kNearest] and their ranks, nearest first, ties to the lower word; kNone
// and infinity where there are fewer. Grid kKept, one block per row.
extern "C" __global__ void __launch_bounds__(128)
    ms_retrieval_nearest(const uint2* __restrict__ candidates, unsigned panels, const Status* __restrict__ status,
                         unsigned* __restrict__ words, float* __restrict__ ranks) {
    __shared__ unsigned long long least[4];
    const unsigned row = blockIdx.x;
    const unsigned thread = threadIdx.x;
    const bool used = row < status->kept;
    // Pairs of rank and word are distinct: the next is the smallest above the last.
    unsigned long long last = 0;
    bool first = true;
    for (unsigned place = 0; place < kNearest; ++place) {
        unsigned long long mine = ~0ull;
        if (used) {
            for (unsigned at = thread; at < panels * kNearest; at += 128) {
                const unsigned panel = at / kNearest;
                const uint2 c = candidates[(static_cast<unsigned long long>(panel) * kKeptPadded + row) * kNearest + at % kNearest];
                const unsigned long long pair = static_cast<unsigned long long>(c.x) << 32 | c.y;
                if (pair < mine && (first || pair > last)) {
                    mine = pair;
                }
            }
        }
#pragma unroll
        for (unsigned offset = 16; offset > 0; offset /= 2) {
            mine = min(mine, __shfl_xor_sync(0xffffffffu, mine, offset));
        }
        if (thread % 32 == 0) {
            least[thread / 32] = mine;
        }
        __syncthreads();
        last = min(min(least[0], least[1]), min(least[2], least[3]));
        first = false;
        if (thread == 0) {
            const unsigned word = static_cast<unsigned>(last);
            words[row * kNearest + place] = word;
            ranks[row * kNearest + place] =
                word == kNone ? __uint_as_float(0x7f800000u) : rank_of_order(static_cast<unsigned>(last >> 32));
        }
        __syncthreads();
    }
}

// Groups features by word. Block 0 takes the kNearest words of each feature (the query), block 1 the nearest (the
// stored words). For each of the two, `groups` has kPairs words, then kPairs + 1 offsets where their features start,
// then kPairs features (rows among the kept ones), by word and then by row. Words are below 2^23.
extern "C" __global__ void __launch_bounds__(512)
    ms_retrieval_group(const unsigned* __restrict__ nearest, unsigned* __restrict__ groups, Status* __restrict__ status) {
    constexpr unsigned kThreads = 512;
    constexpr unsigned kItems = 4;
    constexpr unsigned kRowBits = 9;
    static_assert(kThreads * kItems >= kPairs && kKept <= 1u << kRowBits, "every pair has a place");
    using Sort = cub::BlockRadixSort<unsigned, kThreads, kItems>;
    using Scan = cub::BlockScan<unsigned, kThreads>;
    __shared__ union {
        typename Sort::TempStorage sort;
        typename Scan::TempStorage scan;
        unsigned keys[kThreads * kItems];
    } shared;
    const unsigned which = blockIdx.x;
    const unsigned thread = threadIdx.x;
    const unsigned count = status->kept * (which == 0 ? kNearest : 1);
    unsigned* const words = groups + which * (3 * kPairs + 1);
    unsigned* const starts = words + kPairs;
    unsigned* const rows = starts + kPairs + 1;

    unsigned keys[kItems];
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
        const unsigned pair = thread * kItems + i;
        keys[i] = kNone;
        if (pair < count) {
            const unsigned row = which == 0 ? pair / kNearest : pair;
            const unsigned word = nearest[which == 0 ? pair : pair * kNearest];
            keys[i] = word == kNone ? kNone : word << kRowBits | row;
        }
    }
    Sort(shared.sort).Sort(keys);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
        shared.keys[thread * kItems + i] = keys[i];
    }
    __syncthreads();
    unsigned before = thread == 0 ? kNone : shared.keys[thread * kItems - 1];
    __syncthreads();
    unsigned heads = 0;
    unsigned valid = 0;
    bool head[kItems];
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
        const bool is = keys[i] != kNone;
        head[i] = is && ((thread == 0 && i == 0) || keys[i] >> kRowBits != before >> kRowBits);
        heads += head[i];
        valid += is;
        before = keys[i];
    }
    // One scan for both counts, which are at most 2048.
    unsigned place, total;
    Scan(shared.scan).ExclusiveSum(heads | valid << 16, place, total);
    unsigned group = place & 0xffffu;
    unsigned at = place >> 16;
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
        if (keys[i] == kNone || at >= kPairs) {
            continue;
        }
        if (head[i]) {
            words[group] = keys[i] >> kRowBits;
            starts[group] = at;
            ++group;
        }
        rows[at] = keys[i] & ((1u << kRowBits) - 1);
        ++at;
    }
    if (thread == 0) {
        const unsigned found = total & 0xffffu;
        starts[found] = total >> 16;
        if (which == 0) {
            status->query_words = found;
        } else {
            status->stored_words = found;
        }
    }
}

// Signs of the summed residuals y - c of each word's features, in ascending order of the features: bit c % 32 of
// integer c / 32 is set where the sum is positive. `integers` is 2 * ceil(dim / 64). Grid (kPairs, 2), block 256.
extern "C" __global__ void __launch_bounds__(256)
    ms_retrieval_residuals(const float* __restrict__ whitened, const unsigned* __restrict__ kept,
                           const float* __restrict__ codebook, const unsigned* __restrict__ groups,
                           const Status* __restrict__ status, unsigned dim, unsigned padded_dim, unsigned integers,
                           unsigned* __restrict__ query_bits, unsigned* __restrict__ stored_bits) {
    const unsigned which = blockIdx.y;
    const unsigned group = blockIdx.x;
    if (group >= (which == 0 ? status->query_words : status->stored_words)) {
        return;
    }
    const unsigned* const words = groups + which * (3 * kPairs + 1);
    const unsigned* const starts = words + kPairs;
    const unsigned* const rows = starts + kPairs + 1;
    const unsigned word = words[group];
    const unsigned start = starts[group];
    const unsigned end = starts[group + 1];
    const float* const centroid =
        codebook + static_cast<unsigned long long>(word / kPanel) * padded_dim * kPanel + word % kPanel;
    unsigned* const bits = (which == 0 ? query_bits : stored_bits) + static_cast<unsigned long long>(group) * integers;
    for (unsigned base = 0; base < integers * 32; base += 256) {
        const unsigned c = base + threadIdx.x;
        float sum = 0.0f;
        if (c < dim) {
            const float centre = centroid[static_cast<unsigned long long>(c) * kPanel];
            for (unsigned at = start; at < end; ++at) {
                const float y = whitened[static_cast<unsigned long long>(kept[rows[at]]) * dim + c];
                sum = __fadd_rn(sum, __fsub_rn(y, centre));
            }
        }
        const unsigned ballot = __ballot_sync(0xffffffffu, sum > 0.0f);
        if (threadIdx.x % 32 == 0 && c / 32 < integers) {
            bits[c / 32] = ballot;
        }
    }
}
