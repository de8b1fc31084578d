// Refines the Gaussian map within its pool: duplicates, splits and prunes rows in place, as in src/compute/splat/refine.
//
// Each row becomes no, one or two rows, decided by what it is, so the number of rows afterwards is known before anything
// is written. Row `r` keeps its place; second rows go to the places of rows that vanish (holes), in order, then behind the
// last row; holes that are left are filled from the end. Scratch: one 8-byte word per 2048 rows; codes and holes are kept
// in the statistics, which start again anyway.
//
// Limit: 2 x 52 B a row to decide; a split row is read once (236 B at degree 3), written twice, and its moments are
// zeroed (2 x 472 B). 10 M rows, all split: 16.0 GB, 3.3 ms at 4.8 TB/s.

#include "splat.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr unsigned kTile = 2048;
constexpr unsigned kPerThread = kTile / kThreads;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kSegments = kPerThread * kWarps;
constexpr unsigned kBins = 2048;
constexpr unsigned kNowhere = 0xffffffffu;
constexpr unsigned kRankBits = 30;
constexpr unsigned kRankMask = (1u << kRankBits) - 1;

enum Code : unsigned { kHole, kKeep, kDuplicate, kSplit };

// `RefineRules` of src/compute/splat/device.rs: logarithms and logits, so that no row needs an exponential.
struct Rules {
    unsigned long long seed;
    unsigned step;
    float hot;
    float ln_small;
    float ln_prune;
    float logit_prune;
    float ln_shrink;
    // 1: an opacity o of a split row becomes 1 - sqrt(1 - o).
    unsigned revised;
    unsigned reserved;
};

struct Counters {
    // What the first pass counted.
    unsigned long long holes, duplicates, splits;
    // What the second pass counted, which must agree.
    unsigned long long scanned_holes, scanned_extras;
    // While candidates are chosen: how many are still to be chosen.
    unsigned long long remaining;
    // Chosen: a larger gradient, or this one and at most this row.
    unsigned key_cut, row_cut;
    unsigned ticket;
    unsigned canary;
};

__device__ __forceinline__ float revised_opacity(float logit) {
    // 1 - o = 1 / (1 + e^logit), and the logit of 1 - sqrt(1 - o).
    const float kept = sqrtf(1.0f / (1.0f + expf(logit)));
    return logf((1.0f - kept) / kept);
}

// What becomes of a row, were there room for all; `key` orders gradients.
__device__ __forceinline__ unsigned decide(const SplatPool& pool, unsigned long long row, const Rules& s, unsigned& key) {
    // Not through the read-only cache: holes overwrite gradients within one launch.
    const float* mean = pool.planes[0][kMean] + row * 3;
    const float* scale = pool.planes[0][kScale] + row * 3;
    const float4 q = *reinterpret_cast<const float4*>(pool.planes[0][kRotation] + row * 4);
    float opacity = pool.planes[0][kOpacity][row];
    const float x = mean[0], y = mean[1], z = mean[2];
    const float a = scale[0], b = scale[1], c = scale[2];
    const float sum = __ldcg(pool.gradient + row);
    const unsigned seen = __ldcg(pool.seen + row);
    const bool sound = finite(x) && finite(y) && finite(z) && finite(a) && finite(b) && finite(c) && finite(opacity) &&
                       finite(q.x) && finite(q.y) && finite(q.z) && finite(q.w) &&
                       q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w >= 1e-8f;
    float mean_gradient = sum / static_cast<float>(seen > 0 ? seen : 1);
    mean_gradient = finite(mean_gradient) ? mean_gradient : 0.0f;
    const float size = fmaxf(a, fmaxf(b, c));
    const bool hot = mean_gradient > s.hot;
    unsigned code = kKeep;
    float child = size;
    key = 0;
    if (hot) {
        key = __float_as_uint(mean_gradient);
        code = size <= s.ln_small ? kDuplicate : kSplit;
        if (code == kSplit) {
            child = size - s.ln_shrink;
            if (s.revised != 0) {
                opacity = revised_opacity(opacity);
            }
        }
    }
    return sound && opacity >= s.logit_prune && !(child > s.ln_prune) ? code : kHole;
}

__device__ __forceinline__ unsigned decide_within(const SplatPool& pool, unsigned long long row, const Rules& s,
                                                  unsigned key_cut, unsigned row_cut) {
    unsigned key;
    const unsigned code = decide(pool, row, s, key);
    if (code >= kDuplicate && (key < key_cut || (key == key_cut && row > row_cut))) {
        return kKeep;
    }
    return code;
}

// Floats of a row that are moved at a time.
template <unsigned Width> struct Chunk {
    static constexpr unsigned kFloats = Width == 24 ? 8 : Width > 9 ? 9 : Width;
};

// Copies rows first..first + 31 to `to`, rows x width each; not where that is kNowhere.
template <unsigned Width>
__device__ __forceinline__ void copy_rows(float* plane, unsigned long long first, const unsigned* to) {
    constexpr unsigned kFloats = Chunk<Width>::kFloats;
    const unsigned lane = threadIdx.x % 32;
    for (unsigned begin = 0; begin < Width; begin += kFloats) {
        float value[kFloats];
#pragma unroll
        for (unsigned k = 0; k < kFloats; ++k) {
            const unsigned at = (begin + k) * 32 + lane;
            if (to[at / Width] != kNowhere) {
                value[k] = plane[first * Width + at];
            }
        }
#pragma unroll
        for (unsigned k = 0; k < kFloats; ++k) {
            const unsigned at = (begin + k) * 32 + lane;
            const unsigned row = to[at / Width];
            if (row != kNowhere) {
                plane[static_cast<unsigned long long>(row) * Width + at % Width] = value[k];
            }
        }
    }
}

template <unsigned Width> __device__ __forceinline__ void clear_rows(float* plane, const unsigned* to) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 3
    for (unsigned k = 0; k < Width; ++k) {
        const unsigned at = k * 32 + lane;
        const unsigned row = to[at / Width];
        if (row != kNowhere) {
            plane[static_cast<unsigned long long>(row) * Width + at % Width] = 0.0f;
        }
    }
}

__device__ __forceinline__ void copy_rest(float* plane, unsigned rest, unsigned long long first, const unsigned* to) {
    switch (rest) {
    case 9: copy_rows<9>(plane, first, to); break;
    case 24: copy_rows<24>(plane, first, to); break;
    case 45: copy_rows<45>(plane, first, to); break;
    default: break;
    }
}

__device__ __forceinline__ void clear_moments(const SplatPool& pool, unsigned rest, const unsigned* to) {
    for (unsigned moment = 1; moment < 3; ++moment) {
        float* const* planes = pool.planes[moment];
        clear_rows<3>(planes[kMean], to);
        clear_rows<3>(planes[kColour], to);
        switch (rest) {
        case 9: clear_rows<9>(planes[kRest], to); break;
        case 24: clear_rows<24>(planes[kRest], to); break;
        case 45: clear_rows<45>(planes[kRest], to); break;
        default: break;
        }
        clear_rows<3>(planes[kScale], to);
        clear_rows<4>(planes[kRotation], to);
        clear_rows<1>(planes[kOpacity], to);
    }
}

// Adds a child's offset, R S z, to its parent's mean.
__device__ __forceinline__ void offset(const Rules& rules, unsigned long long row, unsigned child, const float r[9],
                                       const float deviation[3], float mean[3]) {
    const uint4 random = philox(make_uint4(static_cast<unsigned>(row), rules.step, child, 0),
                                make_uint2(static_cast<unsigned>(rules.seed), static_cast<unsigned>(rules.seed >> 32)));
    const float2 a = normal_pair(random.x, random.y), b = normal_pair(random.z, random.w);
    const float x = deviation[0] * a.x, y = deviation[1] * a.y, z = deviation[2] * b.x;
#pragma unroll
    for (unsigned k = 0; k < 3; ++k) {
        mean[k] += r[3 * k] * x + r[3 * k + 1] * y + r[3 * k + 2] * z;
    }
}

// Number of holes below `row`.
__device__ __forceinline__ unsigned holes_below(const unsigned* list, unsigned holes, unsigned row) {
    unsigned low = 0, high = holes;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (list[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

} // namespace

// Counts what would become of the rows. Counters must be zero, `key_cut` 0 and `row_cut` large.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_refine_count(SplatPool pool, unsigned long long rows, Rules rules, Counters* counters) {
    unsigned counts[4] = {0, 0, 0, 0};
    for (unsigned long long row = thread_index(); row < rows; row += thread_count()) {
        unsigned key;
        const unsigned code = decide(pool, row, rules, key);
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) {
            counts[k] += code == k;
        }
    }
    __shared__ unsigned long long totals[4];
    if (threadIdx.x < 4) {
        totals[threadIdx.x] = 0;
    }
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
        // A warp sees fewer than 2^32 rows.
        const unsigned sum = __reduce_add_sync(0xffffffffu, counts[k]);
        if (threadIdx.x % 32 == 0 && sum != 0) {
            atomicAdd(&totals[k], static_cast<unsigned long long>(sum));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&counters->holes, totals[kHole]);
        atomicAdd(&counters->duplicates, totals[kDuplicate]);
        atomicAdd(&counters->splits, totals[kSplit]);
    }
}

// One of six passes that find the cut: histogram of the candidates that agree with what is known of it. Three passes over
// the gradients' bits (11, 11, 9), then three over the rows of those that are equal (11, 11, 10).
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_refine_histogram(SplatPool pool, unsigned long long rows, Rules rules, unsigned pass,
                              const Counters* counters, unsigned* bins) {
    __shared__ unsigned own[kBins];
    for (unsigned k = threadIdx.x; k < kBins; k += kThreads) {
        own[k] = 0;
    }
    __syncthreads();
    const unsigned key_cut = counters->key_cut, row_cut = counters->row_cut;
    for (unsigned long long row = thread_index(); row < rows; row += thread_count()) {
        unsigned key;
        if (decide(pool, row, rules, key) < kDuplicate) {
            continue;
        }
        const unsigned number = static_cast<unsigned>(row);
        unsigned bin = kNowhere;
        switch (pass) {
        case 0: bin = key >> 20; break;
        case 1: bin = key >> 20 == key_cut >> 20 ? key >> 9 & 0x7ffu : kNowhere; break;
        case 2: bin = key >> 9 == key_cut >> 9 ? key & 0x1ffu : kNowhere; break;
        case 3: bin = key == key_cut ? number >> 21 : kNowhere; break;
        case 4: bin = key == key_cut && number >> 21 == row_cut >> 21 ? number >> 10 & 0x7ffu : kNowhere; break;
        default: bin = key == key_cut && number >> 10 == row_cut >> 10 ? number & 0x3ffu : kNowhere; break;
        }
        if (bin != kNowhere) {
            atomicAdd(&own[bin], 1u);
        }
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < kBins; k += kThreads) {
        if (own[k] != 0) {
            atomicAdd(&bins[k], own[k]);
        }
    }
}

// Takes a pass's histogram into the cut, and clears it. One block.
extern "C" __global__ void __launch_bounds__(kThreads) ms_splat_refine_pick(unsigned pass, Counters* counters, unsigned* bins) {
    __shared__ unsigned own[kBins];
    for (unsigned k = threadIdx.x; k < kBins; k += kThreads) {
        own[k] = bins[k];
        bins[k] = 0;
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    // Gradients from the largest down, rows from the first up.
    unsigned long long remaining = counters->remaining;
    unsigned bin = 0;
    for (unsigned k = 0; k < kBins; ++k) {
        bin = pass < 3 ? kBins - 1 - k : k;
        if (own[bin] >= remaining) {
            break;
        }
        remaining -= own[bin];
    }
    counters->remaining = remaining;
    switch (pass) {
    case 0: counters->key_cut = bin << 20; break;
    case 1: counters->key_cut |= bin << 9; break;
    case 2: counters->key_cut |= bin; break;
    case 3: counters->row_cut = bin << 21; break;
    case 4: counters->row_cut |= bin << 10; break;
    default: counters->row_cut |= bin; break;
    }
}

// Decides again, within the cut, and numbers holes and second rows in the order of rows: code and number of a row go to
// `seen`, the k-th hole's row to the k-th gradient. `words` and `ticket` must be zero. A hole's number is at most its row,
// and every row up to it has been read once the sums before its tile are known, so nothing is overwritten too early.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_refine_number(SplatPool pool, unsigned long long rows, Rules rules, unsigned long long* words,
                           Counters* counters) {
    __shared__ unsigned tile;
    __shared__ unsigned counts[kSegments];
    __shared__ unsigned long long before;
    if (threadIdx.x == 0) {
        tile = atomicAdd(&counters->ticket, 1u);
    }
    __syncthreads();
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned long long first = static_cast<unsigned long long>(tile) * kTile;
    const unsigned key_cut = counters->key_cut, row_cut = counters->row_cut;
    unsigned codes[kPerThread], ranks[kPerThread];
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned long long row = first + k * kThreads + threadIdx.x;
        codes[k] = row < rows ? decide_within(pool, row, rules, key_cut, row_cut) : kKeep;
    }
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned holes = __ballot_sync(0xffffffffu, codes[k] == kHole);
        const unsigned extras = __ballot_sync(0xffffffffu, codes[k] >= kDuplicate);
        const unsigned earlier = (1u << lane) - 1;
        ranks[k] = static_cast<unsigned>(__popc((codes[k] == kHole ? holes : extras) & earlier));
        if (lane == 0) {
            counts[k * kWarps + warp] = static_cast<unsigned>(__popc(holes)) << 16 | static_cast<unsigned>(__popc(extras));
        }
    }
    __syncthreads();
    if (warp == 0) {
        // Two segments a lane.
        const unsigned low = counts[2 * lane], high = counts[2 * lane + 1];
        unsigned sum = low + high;
        for (unsigned step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) {
                sum += other;
            }
        }
        counts[2 * lane] = sum - low - high;
        counts[2 * lane + 1] = sum - high;
        const unsigned total = __shfl_sync(0xffffffffu, sum, 31);
        const unsigned long long own = static_cast<unsigned long long>(total >> 16) << 31 | (total & 0xffffu);
        const unsigned long long earlier = look_back(words, tile, own);
        if (lane == 0) {
            before = earlier;
            if (first + kTile >= rows) {
                counters->scanned_holes = (earlier + own) >> 31;
                counters->scanned_extras = (earlier + own) & 0x7fffffffu;
            }
        }
    }
    __syncthreads();
    const unsigned holes_before = static_cast<unsigned>(before >> 31);
    const unsigned extras_before = static_cast<unsigned>(before & 0x7fffffffu);
    unsigned* list = reinterpret_cast<unsigned*>(pool.gradient);
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned long long row = first + k * kThreads + threadIdx.x;
        if (row >= rows) {
            continue;
        }
        const unsigned segment = counts[k * kWarps + warp];
        unsigned rank = ranks[k];
        rank += codes[k] == kHole ? holes_before + (segment >> 16) : extras_before + (segment & 0xffffu);
        pool.seen[row] = codes[k] << kRankBits | (codes[k] == kKeep ? 0 : rank);
        if (codes[k] == kHole) {
            list[rank] = static_cast<unsigned>(row);
        }
    }
}

// Writes second rows, and changes split rows in place. Does nothing if both passes disagree. One block a multiprocessor
// is asked for, as two would need registers to spill on sm_110 and sm_120.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    ms_splat_refine_apply(SplatPool pool, unsigned rest, unsigned long long rows, unsigned long long holes,
                          unsigned long long extras, unsigned long long capacity, Rules rules,
                          const Counters* counters) {
    if (counters->scanned_holes != holes || counters->scanned_extras != extras) {
        return;
    }
    __shared__ unsigned seconds[kWarps][32], splits[kWarps][32];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned* second = seconds[warp];
    unsigned* split = splits[warp];
    const unsigned* list = reinterpret_cast<const unsigned*>(pool.gradient);
    const unsigned long long groups = (rows + 31) / 32, stride = thread_count() / 32;
    for (unsigned long long group = thread_index() / 32; group < groups; group += stride) {
        const unsigned long long first = group * 32, row = first + lane;
        const unsigned word = row < rows ? pool.seen[row] : static_cast<unsigned>(kKeep) << kRankBits;
        const unsigned code = word >> kRankBits, rank = word & kRankMask;
        unsigned long long to = kNowhere;
        if (code >= kDuplicate) {
            to = rank < holes ? list[rank] : rows + (rank - holes);
            to = to < capacity ? to : kNowhere;
        }
        if (__ballot_sync(0xffffffffu, to != kNowhere) == 0) {
            continue;
        }
        const bool splitting = code == kSplit && to != kNowhere;
        const bool any_split = __ballot_sync(0xffffffffu, splitting) != 0;
        second[lane] = static_cast<unsigned>(to);
        split[lane] = splitting ? static_cast<unsigned>(row) : kNowhere;
        __syncwarp();
        float* const* planes = pool.planes[0];
        copy_rows<3>(planes[kColour], first, second);
        copy_rest(planes[kRest], rest, first, second);
        copy_rows<4>(planes[kRotation], first, second);
        if (to != kNowhere) {
            float* mean = planes[kMean] + row * 3;
            float* scale = planes[kScale] + row * 3;
            float opacity = planes[kOpacity][row];
            float m[3] = {mean[0], mean[1], mean[2]}, s[3] = {scale[0], scale[1], scale[2]};
            float other[3] = {m[0], m[1], m[2]};
            if (splitting) {
                const float4 q4 = *reinterpret_cast<const float4*>(planes[kRotation] + row * 4);
                const float q[4] = {q4.x, q4.y, q4.z, q4.w};
                float r[9];
                rotation_matrix(q, r);
                const float e[3] = {expf(s[0]), expf(s[1]), expf(s[2])};
                offset(rules, row, 0, r, e, m);
                offset(rules, row, 1, r, e, other);
#pragma unroll
                for (unsigned k = 0; k < 3; ++k) {
                    s[k] -= rules.ln_shrink;
                    mean[k] = m[k];
                    scale[k] = s[k];
                }
                if (rules.revised != 0) {
                    opacity = revised_opacity(opacity);
                    planes[kOpacity][row] = opacity;
                }
            }
#pragma unroll
            for (unsigned k = 0; k < 3; ++k) {
                planes[kMean][to * 3 + k] = other[k];
                planes[kScale][to * 3 + k] = s[k];
            }
            planes[kOpacity][to] = opacity;
            pool.anchor[to] = pool.anchor[row];
            pool.observed[to] = 0;
            if (splitting) {
                pool.observed[row] = 0;
            }
        }
        clear_moments(pool, rest, second);
        if (any_split) {
            clear_moments(pool, rest, split);
        }
        __syncwarp();
    }
}

// Fills the holes that are left, from the end: with `extras` < `holes`, live rows at or above `after` move, in order, to
// the holes below it. Does nothing if both passes disagree.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_refine_close(SplatPool pool, unsigned rest, unsigned long long rows, unsigned long long holes,
                          unsigned long long extras, const Counters* counters) {
    if (counters->scanned_holes != holes || counters->scanned_extras != extras || extras >= holes) {
        return;
    }
    __shared__ unsigned targets[kWarps][32];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned* target = targets[warp];
    const unsigned* list = reinterpret_cast<const unsigned*>(pool.gradient);
    const unsigned count = static_cast<unsigned>(holes);
    const unsigned after = static_cast<unsigned>(rows - holes + extras);
    const unsigned kept = holes_below(list, count, after);
    if (kept <= extras) {
        return;
    }
    const unsigned long long groups = (rows - after + 31) / 32, stride = thread_count() / 32;
    for (unsigned long long group = thread_index() / 32; group < groups; group += stride) {
        const unsigned long long first = after + group * 32, row = first + lane;
        unsigned to = kNowhere;
        if (row < rows && pool.seen[row] >> kRankBits != kHole) {
            const unsigned number = static_cast<unsigned>(row);
            to = list[extras + (number - after) - (holes_below(list, count, number) - kept)];
        }
        if (__ballot_sync(0xffffffffu, to != kNowhere) == 0) {
            continue;
        }
        target[lane] = to;
        __syncwarp();
        for (unsigned copy = 0; copy < 3; ++copy) {
            float* const* planes = pool.planes[copy];
            copy_rows<3>(planes[kMean], first, target);
            copy_rows<3>(planes[kColour], first, target);
            copy_rest(planes[kRest], rest, first, target);
            copy_rows<3>(planes[kScale], first, target);
            copy_rows<4>(planes[kRotation], first, target);
            copy_rows<1>(planes[kOpacity], first, target);
        }
        if (to != kNowhere) {
            pool.anchor[to] = pool.anchor[row];
            pool.observed[to] = pool.observed[row];
        }
        __syncwarp();
    }
}

// Lowers opacities to at most `highest` (a logit) and zeroes their moments.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_reset_opacity(SplatPool pool, unsigned long long rows, float highest) {
    for (unsigned long long row = thread_index(); row < rows; row += thread_count()) {
        float& opacity = pool.planes[0][kOpacity][row];
        opacity = fminf(opacity, highest);
        pool.planes[1][kOpacity][row] = 0.0f;
        pool.planes[2][kOpacity][row] = 0.0f;
    }
}
