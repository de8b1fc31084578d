// Relocation of the Gaussian map's dead rows (MCMC), as in src/compute/splat/relocate.rs: opacities are summed up as
// integers, rows are drawn by binary search in the sums, drawn rows share their opacity with their copies.
//
// The sums take the place of the statistics, which start again anyway. Runs once in a hundred steps or so.

#include "splat.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kTile = 2048;
constexpr unsigned kPerThread = kTile / kThreads;

__device__ __forceinline__ bool dead(const SplatPool& pool, unsigned long long row, float limit) {
    const float* const* planes = pool.planes[0];
    const float opacity = planes[kOpacity][row];
    const float4 q = *reinterpret_cast<const float4*>(planes[kRotation] + row * 4);
    bool sound = finite(opacity) && finite(q.x) && finite(q.y) && finite(q.z) && finite(q.w) &&
                 q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w >= 1e-8f;
    for (unsigned k = 0; k < 3; ++k) {
        sound = sound && finite(planes[kMean][row * 3 + k]) && finite(planes[kScale][row * 3 + k]);
    }
    return !(sound && opacity > limit);
}

// Exclusive sums over the block's threads, and over all earlier blocks.
__device__ __forceinline__ unsigned long long sums_before(unsigned long long own, unsigned tile, unsigned long long* words,
                                                          unsigned long long& all) {
    __shared__ unsigned long long sums[kWarps];
    __shared__ unsigned long long before;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = own;
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned long long other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    unsigned long long earlier = 0, total = 0;
    for (unsigned k = 0; k < kWarps; ++k) {
        earlier += k < warp ? sums[k] : 0;
        total += sums[k];
    }
    if (warp == 0) {
        const unsigned long long found = look_back(words, tile, total);
        if (lane == 0) {
            before = found;
        }
    }
    __syncthreads();
    all = before + total;
    return before + earlier + sum - own;
}

__device__ __forceinline__ unsigned long long sum_at(const SplatPool& pool, unsigned long long row) {
    return static_cast<unsigned long long>(pool.seen[row]) << 32 | __float_as_uint(pool.gradient[row]);
}

} // namespace

// Sums of the weights up to and including each row, into the statistics; the last one also to `total`. `words` and
// `ticket` must be zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_relocate_weigh(SplatPool pool, unsigned long long rows, float limit, unsigned long long* words,
                            unsigned* ticket, unsigned long long* total) {
    __shared__ unsigned tile;
    if (threadIdx.x == 0) {
        tile = atomicAdd(ticket, 1u);
    }
    __syncthreads();
    const unsigned long long first = static_cast<unsigned long long>(tile) * kTile + threadIdx.x * kPerThread;
    // Weights wait in the statistics: more registers would be needed beside the sums of the block.
    unsigned long long own = 0;
    for (unsigned k = 0; k < kPerThread && first + k < rows; ++k) {
        unsigned weight = 0;
        if (!dead(pool, first + k, limit)) {
            const double opacity = 1.0 / (1.0 + exp(-static_cast<double>(pool.planes[0][kOpacity][first + k])));
            weight = static_cast<unsigned>(static_cast<float>(opacity) * 16777216.0f);
        }
        pool.gradient[first + k] = __uint_as_float(weight);
        own += weight;
    }
    unsigned long long all;
    unsigned long long sum = sums_before(own, tile, words, all);
    for (unsigned k = 0; k < kPerThread && first + k < rows; ++k) {
        sum += __float_as_uint(pool.gradient[first + k]);
        pool.gradient[first + k] = __uint_as_float(static_cast<unsigned>(sum));
        pool.seen[first + k] = static_cast<unsigned>(sum >> 32);
    }
    if (threadIdx.x == 0 && static_cast<unsigned long long>(tile + 1) * kTile >= rows) {
        *total = all;
    }
}

// Lists the dead rows in order, the first `room` of them; `total` is how many there are.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_relocate_dead(SplatPool pool, unsigned long long rows, float limit, unsigned room, unsigned long long* words,
                           unsigned* ticket, unsigned long long* total, unsigned* list) {
    __shared__ unsigned tile;
    if (threadIdx.x == 0) {
        tile = atomicAdd(ticket, 1u);
    }
    __syncthreads();
    const unsigned long long first = static_cast<unsigned long long>(tile) * kTile + threadIdx.x * kPerThread;
    unsigned found = 0, count = 0;
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        if (first + k < rows && dead(pool, first + k, limit)) {
            found |= 1u << k;
            ++count;
        }
    }
    unsigned long long all;
    unsigned long long at = sums_before(count, tile, words, all);
    for (unsigned k = 0; k < kPerThread; ++k) {
        if ((found >> k & 1u) != 0) {
            if (at < room) {
                list[at] = static_cast<unsigned>(first + k);
            }
            ++at;
        }
    }
    if (threadIdx.x == 0 && static_cast<unsigned long long>(tile + 1) * kTile >= rows) {
        *total = all;
    }
}

// Draws a source for each of `count` slots: key source, value slot.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_relocate_draw(SplatPool pool, unsigned long long rows, unsigned long long total, unsigned long long seed,
                           unsigned step, unsigned purpose, unsigned count, unsigned* __restrict__ keys,
                           unsigned* __restrict__ values) {
    const unsigned long long i = thread_index();
    if (i >= count) {
        return;
    }
    const uint4 random = philox(make_uint4(static_cast<unsigned>(i), step, 0, purpose),
                                make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)));
    const unsigned long long word = static_cast<unsigned long long>(random.x) << 32 | random.y;
    const unsigned long long target = __umul64hi(word, total);
    unsigned long long low = 0, high = rows;
    while (low < high) {
        const unsigned long long middle = low + (high - low) / 2;
        if (sum_at(pool, middle) <= target) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    keys[i] = static_cast<unsigned>(low);
    values[i] = static_cast<unsigned>(i);
}

// Each source, `keys` sorted: its opacity and deviations become those of one of its copies.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_relocate_share(SplatPool pool, unsigned rest, const unsigned* __restrict__ keys, unsigned count) {
    const unsigned long long i = thread_index();
    if (i >= count || (i > 0 && keys[i - 1] == keys[i])) {
        return;
    }
    const unsigned long long row = keys[i];
    // Draws beyond the fifty-first do not count.
    unsigned copies = 1;
    while (copies < 51 && i + copies - 1 < count && keys[i + copies - 1] == keys[i]) {
        ++copies;
    }
    float& logit = pool.planes[0][kOpacity][row];
    const double opacity = 1.0 / (1.0 + exp(-static_cast<double>(logit)));
    double share = 1.0 - pow(1.0 - opacity, 1.0 / copies);
    double sum = 0.0, term = -1.0;
    for (unsigned k = 1; k <= copies; ++k) {
        term *= -share * static_cast<double>(copies - k + 1) / static_cast<double>(k);
        sum += term / sqrt(static_cast<double>(k));
    }
    share = fmin(fmax(share, static_cast<double>(0.005f)), static_cast<double>(1.0f - 1e-7f));
    logit = static_cast<float>(log(share / (1.0 - share)));
    const float shift = static_cast<float>(log(opacity / sum));
    for (unsigned k = 0; k < 3; ++k) {
        pool.planes[0][kScale][row * 3 + k] += shift;
    }
    for (unsigned moment = 1; moment < 3; ++moment) {
        for (unsigned field = 0; field < kFields; ++field) {
            const unsigned width = field_width(field, rest);
            for (unsigned k = 0; k < width; ++k) {
                pool.planes[moment][field][row * width + k] = 0.0f;
            }
        }
    }
}

// Copies sources to their slots, a warp each: those of the list, or from row `first` on.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_relocate_copy(SplatPool pool, unsigned rest, const unsigned* __restrict__ keys,
                           const unsigned* __restrict__ values, unsigned count, const unsigned* __restrict__ list,
                           unsigned long long first) {
    const unsigned long long i = thread_index() / 32;
    const unsigned lane = threadIdx.x % 32;
    if (i >= count) {
        return;
    }
    const unsigned long long from = keys[i];
    const unsigned long long to = list != nullptr ? list[values[i]] : first + values[i];
    for (unsigned field = 0; field < kFields; ++field) {
        const unsigned width = field_width(field, rest);
        for (unsigned k = lane; k < width; k += 32) {
            pool.planes[0][field][to * width + k] = pool.planes[0][field][from * width + k];
            pool.planes[1][field][to * width + k] = 0.0f;
            pool.planes[2][field][to * width + k] = 0.0f;
        }
    }
    if (lane == 0) {
        pool.anchor[to] = pool.anchor[from];
        pool.observed[to] = 0;
    }
}
