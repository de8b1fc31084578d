// The scale of a pointmap by measured depth, and the field of what a pass gets wrong beside it, in one cooperative
// launch: as src/compute/depth.rs and depth/field.rs. Medians are those of ratios in whole steps, found by two digits
// of 8 bits each. Every block adds up all blocks' counts and takes the same decisions. Sums are integers or added in a
// fixed order, so that two runs give the same bits.
//
// Limit: 20 B a pixel read and 2 B written by the ratios, and 6 B read by the cells: 5.5 MB at 512x384, 1.2 us at
// 4.8 TB/s. Six barriers of the grid and the 32 sweeps that smooth the field decide. While one block does these, the
// others average a noisy sensor's depth: 6 B a pixel read again and 4 B written.

#include "depth.cuh"
#include "depth_average.cuh"
#include "depth_ratio.cuh"
#include "grid_barrier.cuh"
#include "index.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 512;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kBins = 256;
// Histograms of the digits, used in turns: one is cleared while another is filled and a third may be read.
constexpr unsigned kHistograms = 3;
constexpr unsigned kPatch = 16;
// Keys that a thread keeps in registers: all of its keys if the GPU has a multiprocessor for each block that is wanted
// (`cuda::depth::PIXELS`).
constexpr unsigned kOwn = 4;
// Threads that measure a cell, of which a block measures several at a time.
constexpr unsigned kCellThreads = 256;
constexpr unsigned kCellWarps = kCellThreads / 32;
// Cells of all layers that a thread smooths.
constexpr unsigned kCells = 2;
constexpr unsigned kMaxCells = kCells * kThreads;

// `cuda::depth::Limits`.
struct Limits {
    double min_fraction;
    double max_mad;
    double max_trusted_mad;
    double max_log_scale;
    double inliers;
    double sigma_over_mad;
    double min_sigma;
    double full_patch;
    unsigned trusted;
    unsigned max_agreed;
};

// Sums of a block; `cuda::depth::PARTIAL` words.
struct Partial {
    long long sum;
    unsigned long long count;
};

// `cuda::depth::field::FitArguments`.
struct Fit {
    float2* cells; // mean and weight of each; null: no field is wanted
    float* field;  // a value a cell; stays as it is where the measurement was not accepted
    Layout layout;
    float sigmas; // where a ratio no longer counts, in standard deviations
    float full_cell;
    float stiffness;
    float way_back;
    unsigned sweeps;
    unsigned min_pairs;
    unsigned max_distance; // of neighbours in a row
    unsigned max_radius;   // of a window, up to kMargin
    float confidence;      // minimum of points that agree with their depth
    double matched_sigma;
    double averaged;
    double deviations;
    double min_spread;
    double wanted_noise;
    double per_gap;
};

// `cuda::depth::Arguments`.
struct Arguments {
    const float* points;     // N x 3
    const float* confidence; // N
    float* metres;           // N; 0: not measured; become averages with a fit
    const unsigned* used;    // 0 if `metres` holds nothing; null: it does
    unsigned short* keys;    // N
    unsigned* histograms;    // kHistograms x kBins, zero between launches
    unsigned* patches;       // zero between launches
    Partial* partials;       // two a block
    unsigned* arrived;       // the barrier's
    Found* found;
    unsigned pixels;
    unsigned width;
    unsigned columns; // of patches
    unsigned patch_count;
    Limits limits;
    Fit fit;
};

// Adds one to `counter[slot]` for each active lane, once for lanes with the same slot.
__device__ __forceinline__ void count_in(unsigned* counter, unsigned slot, bool active) {
    const unsigned lanes = __ballot_sync(kAll, active);
    if (active) {
        const unsigned same = __match_any_sync(lanes, slot);
        if (threadIdx.x % 32 == static_cast<unsigned>(__ffs(same)) - 1) {
            atomicAdd(counter + slot, static_cast<unsigned>(__popc(same)));
        }
    }
}

// A digit's bins, and what a block's threads tell each other.
struct Shared {
    unsigned bins[kBins];
    unsigned of_warps[kBins / 32];
    unsigned digit;
    unsigned rank;
    Partial sums[kWarps];
};

// What is known of a wanted key.
struct Selected {
    unsigned rank;  // among the keys with the digits found so far
    unsigned digit; // the newest
    unsigned total; // keys counted for it
};

__device__ __forceinline__ void clear(unsigned* bins) {
    for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
        bins[b] = 0;
    }
}

// Adds this block's bins to the histogram of a round, waits for all blocks, and finds the digit of the key with the
// wanted rank: `rank` or, with `median`, that of the upper median. The bins are clear afterwards.
__device__ Selected select_digit(const Arguments& a, Shared& shared, unsigned round, bool median, unsigned rank) {
    unsigned* histogram = a.histograms + round % kHistograms * kBins;
    __syncthreads();
    for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
        if (shared.bins[b] != 0) {
            atomicAdd(histogram + b, shared.bins[b]);
            shared.bins[b] = 0;
        }
    }
    wait_for_grid(a.arrived);
    // The other blocks' additions are in the second-level cache.
    const unsigned own = threadIdx.x < kBins ? __ldcg(histogram + threadIdx.x) : 0;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned sum = own;
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned before = __shfl_up_sync(kAll, sum, step);
        sum += lane >= step ? before : 0;
    }
    if (threadIdx.x < kBins && lane == 31) {
        shared.of_warps[warp] = sum;
    }
    if (threadIdx.x == 0) {
        shared.digit = 0;
        shared.rank = 0;
    }
    __syncthreads();
    unsigned below = sum - own, total = 0;
    for (unsigned w = 0; w < kBins / 32; ++w) {
        const unsigned of_warp = shared.of_warps[w];
        below += w < warp ? of_warp : 0;
        total += of_warp;
    }
    const unsigned wanted = median ? total / 2 : rank;
    if (threadIdx.x < kBins && wanted >= below && wanted - below < own) {
        shared.digit = threadIdx.x;
        shared.rank = wanted - below;
    }
    __syncthreads();
    return {shared.rank, shared.digit, total};
}

// The sum over a block, the same in each thread.
__device__ Partial sum_of_block(Shared& shared, Partial p) {
    for (unsigned step = 16; step > 0; step /= 2) {
        p.sum += __shfl_xor_sync(kAll, p.sum, step);
        p.count += __shfl_xor_sync(kAll, p.count, step);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shared.sums[threadIdx.x / 32] = p;
    }
    __syncthreads();
    Partial all = {0, 0};
    for (unsigned w = 0; w < kWarps; ++w) {
        all.sum += shared.sums[w].sum;
        all.count += shared.sums[w].count;
    }
    return all;
}

// The sum over all blocks, the same in each; `partials` are this sum's own, one a block.
__device__ Partial sum_of_grid(const Arguments& a, Shared& shared, Partial* partials, const Partial& own) {
    const Partial block = sum_of_block(shared, own);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = block;
    }
    wait_for_grid(a.arrived);
    Partial part = {0, 0};
    for (unsigned b = threadIdx.x; b < gridDim.x; b += kThreads) {
        part.sum += __ldcg(&partials[b].sum);
        part.count += __ldcg(&partials[b].count);
    }
    return sum_of_block(shared, part);
}

// The pixel of a thread in a round.
__device__ __forceinline__ unsigned long long pixel_of(unsigned long long round) {
    return round * thread_count() + thread_index();
}

// Log ratios as keys, their number in each patch, and the upper digits of the keys. The first keys of a thread are `own`.
__device__ void count_ratios(const Arguments& a, Shared& shared, unsigned (&own)[kOwn]) {
    const auto count = [&](unsigned long long n, bool used, float metres, float depth) {
        unsigned key = kNothing;
        unsigned patch = 0;
        int steps;
        if (used && log_ratio(metres, depth, steps)) {
            key = static_cast<unsigned>(steps + kLargest);
            const unsigned row = static_cast<unsigned>(n) / a.width / kPatch;
            const unsigned column = static_cast<unsigned>(n) % a.width / kPatch;
            patch = row * a.columns + min(column, a.columns - 1);
            atomicAdd(shared.bins + key / kBins, 1u);
        }
        if (n < a.pixels) {
            a.keys[n] = static_cast<unsigned short>(key);
        }
        count_in(a.patches, patch, key != kNothing);
        return key;
    };
    const auto load = [&](unsigned long long n, bool& used, float& metres, float& depth) {
        const bool inside = n < a.pixels;
        used = inside && a.confidence[n] > 0.0f;
        metres = inside ? a.metres[n] : 0.0f;
        depth = inside ? a.points[3 * n + 2] : 0.0f;
    };
    // All loads first.
    float metres[kOwn], depth[kOwn];
    bool used[kOwn];
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
        load(pixel_of(k), used[k], metres[k], depth[k]);
    }
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
        own[k] = count(pixel_of(k), used[k], metres[k], depth[k]);
    }
    // Whole warps for every round.
    const unsigned long long rounds = (a.pixels + thread_count() - 1) / thread_count();
    for (unsigned long long round = kOwn; round < rounds; ++round) {
        load(pixel_of(round), used[0], metres[0], depth[0]);
        count(pixel_of(round), used[0], metres[0], depth[0]);
    }
}

// Calls `f` with each key of this thread.
template <class F>
__device__ __forceinline__ void for_each_key(const Arguments& a, const unsigned (&own)[kOwn], const F& f) {
#pragma unroll
    for (unsigned k = 0; k < kOwn; ++k) {
        if (own[k] != kNothing) {
            f(own[k]);
        }
    }
    for (unsigned long long n = pixel_of(kOwn); n < a.pixels; n += thread_count()) {
        const unsigned key = a.keys[n];
        if (key != kNothing) {
            f(key);
        }
    }
}

// Counts digits of the keys or, with `distances`, of how far they are from the median: the upper ones, or the lower
// ones of those with the upper digit `prefix`.
__device__ void count_digits(const Arguments& a, Shared& shared, const unsigned (&own)[kOwn], bool distances,
                             unsigned median, bool lower, unsigned prefix) {
    for_each_key(a, own, [&](unsigned key) {
        const unsigned value = !distances ? key : key > median ? key - median : median - key;
        if (!lower) {
            atomicAdd(shared.bins + value / kBins, 1u);
        } else if (value / kBins == prefix) {
            atomicAdd(shared.bins + value % kBins, 1u);
        }
    });
}

// What the ratios show; `Ratios` and its scale.
struct Scale {
    double median;
    double mad;
    double max_mad;
    double log_scale;
    unsigned count;
    bool enough; // pixels
    bool usable;
};

// One block: writes what was found, with `Trust::note`, and clears the patches.
__device__ void write(const Arguments& a, const Scale& scale, const Partial& sums) {
    __shared__ double of_patches[kThreads];
    double own = 0.0;
    for (unsigned p = threadIdx.x; p < a.patch_count; p += kThreads) {
        own += fmin(__ldcg(a.patches + p) / a.limits.full_patch, 1.0);
        a.patches[p] = 0;
    }
    of_patches[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            of_patches[threadIdx.x] += of_patches[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) {
        return;
    }
    const Limits& l = a.limits;
    Found* f = a.found;
    f->sum = static_cast<double>(sums.sum) / kSteps;
    f->patches = of_patches[0];
    f->max_mad = scale.max_mad;
    f->count = scale.count;
    f->inliers = static_cast<unsigned>(sums.count);
    f->median = static_cast<float>(scale.median);
    f->mad = static_cast<float>(scale.mad);
    if (scale.enough) {
        f->agreed = scale.mad <= l.max_mad ? min(f->agreed + 1, l.max_agreed) : f->agreed - min(f->agreed, 1u);
    }
    f->accepted = scale.usable ? 1 : 0;
    if (scale.usable) {
        f->factor = static_cast<float>(exp(scale.log_scale));
    }
}

// Means and weights of the cells, of which each block has some; returns this thread's differences of neighbours.
__device__ Partial measure_cells(const Arguments& a, float log_scale, float factor, float reach) {
    __shared__ float2 of_warps[kWarps][kLayers];
    constexpr unsigned kAtOnce = kThreads / kCellThreads;
    const Layout& l = a.fit.layout;
    const unsigned count = l.columns * l.rows;
    const unsigned part = threadIdx.x / kCellThreads, thread = threadIdx.x % kCellThreads;
    Partial differences = {0, 0};
    for (unsigned first = blockIdx.x * kAtOnce; first < count; first += gridDim.x * kAtOnce) {
        const unsigned cell = first + part;
        const unsigned left = cell % l.columns * l.side;
        const unsigned above = cell / l.columns * l.side;
        const unsigned pixels = cell < count ? l.side * l.side : 0;
        float2 own[kLayers] = {};
        for (unsigned k = thread; k < pixels; k += kCellThreads) {
            const unsigned u = left + k % l.side;
            const unsigned v = above + k / l.side;
            if (u >= l.width || v >= l.height) {
                continue;
            }
            const unsigned long long n = static_cast<unsigned long long>(v) * l.width + u;
            const unsigned key = a.keys[n];
            const float rest = rest_of(key, log_scale, reach);
            if (!(rest > 0.0f)) {
                continue;
            }
            const float weight = rest * rest;
            const Between z = layer_of(a.points[3 * n + 2] * factor);
#pragma unroll
            for (unsigned layer = 0; layer < kLayers; ++layer) {
                const float share = layer == z.low ? 1.0f - z.share : layer == z.high ? z.share : 0.0f;
                const float of_layer = share * weight;
                own[layer].x += of_layer * off_scale(key, log_scale);
                own[layer].y += of_layer;
            }
            // The nearest measured pixel to the right.
            unsigned next = kNothing;
            const unsigned last = min(a.fit.max_distance, l.width - 1 - u);
            for (unsigned k = 1; k <= last && next == kNothing; ++k) {
                next = a.keys[n + k];
            }
            if (rest_of(next, log_scale, reach) > 0.0f) {
                differences.sum += next > key ? next - key : key - next;
                differences.count += 1;
            }
        }
#pragma unroll
        for (unsigned layer = 0; layer < kLayers; ++layer) {
            for (unsigned step = 16; step > 0; step /= 2) {
                own[layer].x += __shfl_xor_sync(kAll, own[layer].x, step);
                own[layer].y += __shfl_xor_sync(kAll, own[layer].y, step);
            }
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (unsigned layer = 0; layer < kLayers; ++layer) {
                of_warps[threadIdx.x / 32][layer] = own[layer];
            }
        }
        __syncthreads();
        if (thread < kLayers && cell < count) {
            float2 sum = make_float2(0.0f, 0.0f);
            for (unsigned w = 0; w < kCellWarps; ++w) {
                sum.x += of_warps[part * kCellWarps + w][thread].x;
                sum.y += of_warps[part * kCellWarps + w][thread].y;
            }
            const float mean = sum.y > 0.0f ? sum.x / sum.y : 0.0f;
            a.fit.cells[thread * count + cell] = make_float2(mean, fminf(sum.y / a.fit.full_cell, 1.0f));
        }
    }
    return differences;
}

// One block: Jacobi sweeps from zero over the cells of all layers.
__device__ void smooth(const Fit& f) {
    __shared__ float values[2][kMaxCells];
    const Layout& l = f.layout;
    const unsigned layer_cells = l.columns * l.rows;
    const unsigned count = layer_cells * kLayers;
    float2 measured[kCells];
    float inverse[kCells];
    // Bits: left, right, above, below, nearer, farther.
    unsigned neighbours[kCells];
#pragma unroll
    for (unsigned k = 0; k < kCells; ++k) {
        const unsigned cell = threadIdx.x + k * kThreads;
        const unsigned layer = cell / layer_cells, in_layer = cell % layer_cells;
        const unsigned row = in_layer / l.columns, column = in_layer % l.columns;
        const bool exists = cell < count;
        // The other blocks' means are in the second-level cache.
        measured[k] = exists ? __ldcg(f.cells + cell) : make_float2(0.0f, 0.0f);
        neighbours[k] = (column > 0 ? 1 : 0) | (column + 1 < l.columns ? 2 : 0) | (row > 0 ? 4 : 0) |
                        (row + 1 < l.rows ? 8 : 0) | (layer > 0 ? 16 : 0) | (layer + 1 < kLayers ? 32 : 0);
        inverse[k] =
            1.0f / (measured[k].y + f.stiffness * static_cast<float>(__popc(neighbours[k])) + f.way_back);
        measured[k].x *= measured[k].y;
        values[0][cell] = 0.0f;
    }
    __syncthreads();
    for (unsigned sweep = 0; sweep < f.sweeps; ++sweep) {
        const float* old = values[sweep % 2];
#pragma unroll
        for (unsigned k = 0; k < kCells; ++k) {
            const unsigned cell = threadIdx.x + k * kThreads;
            const unsigned at = neighbours[k];
            if (cell < count) {
                float sum = (at & 1) != 0 ? old[cell - 1] : 0.0f;
                sum += (at & 2) != 0 ? old[cell + 1] : 0.0f;
                sum += (at & 4) != 0 ? old[cell - l.columns] : 0.0f;
                sum += (at & 8) != 0 ? old[cell + l.columns] : 0.0f;
                sum += (at & 16) != 0 ? old[cell - layer_cells] : 0.0f;
                sum += (at & 32) != 0 ? old[cell + layer_cells] : 0.0f;
                values[(sweep + 1) % 2][cell] = (measured[k].x + f.stiffness * sum) * inverse[k];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned k = 0; k < kCells; ++k) {
        const unsigned cell = threadIdx.x + k * kThreads;
        if (cell < count) {
            f.field[cell] = values[f.sweeps % 2][cell];
        }
    }
}

} // namespace

// All blocks must be resident: a cooperative launch.
extern "C" __global__ void __launch_bounds__(kThreads, 1) ms_depth_measure(const Arguments a) {
    if (a.used != nullptr && *a.used == 0) {
        if (thread_index() == 0) {
            a.found->accepted = 0;
        }
        return;
    }
    __shared__ Shared shared;
    const Limits& l = a.limits;
    Scale scale;
    // Before the first barrier: block 0 changes it at the end.
    scale.max_mad = a.found->agreed >= l.trusted ? l.max_trusted_mad : l.max_mad;
    clear(shared.bins);
    __syncthreads();
    unsigned keys[kOwn];
    count_ratios(a, shared, keys);
    Selected s = select_digit(a, shared, 0, true, 0);
    scale.count = s.total;
    const unsigned upper = s.digit;
    count_digits(a, shared, keys, false, 0, true, upper);
    s = select_digit(a, shared, 1, false, s.rank);
    const unsigned median = upper * kBins + s.digit;
    // Every block has read the histogram of two rounds ago, and none fills it before the next barrier.
    if (blockIdx.x == 0) {
        clear(a.histograms);
    }
    count_digits(a, shared, keys, true, median, false, 0);
    s = select_digit(a, shared, 2, true, 0);
    const unsigned far = s.digit;
    if (blockIdx.x == 0) {
        clear(a.histograms + kBins);
    }
    count_digits(a, shared, keys, true, median, true, far);
    s = select_digit(a, shared, 3, false, s.rank);
    if (blockIdx.x == 0) {
        clear(a.histograms + 2 * kBins);
    }
    scale.median = scale.count > 0 ? (static_cast<int>(median) - kLargest) / static_cast<double>(kSteps) : 0.0;
    scale.mad = (far * kBins + s.digit) / static_cast<double>(kSteps);
    const double sigma = fmax(l.sigma_over_mad * scale.mad, l.min_sigma);
    Partial own = {0, 0};
    for_each_key(a, keys, [&](unsigned key) {
        const int off = static_cast<int>(key) - static_cast<int>(median);
        if (abs(off) / static_cast<double>(kSteps) <= l.inliers * sigma) {
            own.sum += off;
            own.count += 1;
        }
    });
    const Partial sums = sum_of_grid(a, shared, a.partials, own);
    const double inliers = fmax(static_cast<double>(sums.count), 1.0);
    scale.log_scale = scale.median + static_cast<double>(sums.sum) / kSteps / inliers;
    scale.enough = scale.count > 0 && static_cast<double>(scale.count) / a.pixels >= l.min_fraction;
    scale.usable = scale.enough && fabs(scale.log_scale) <= l.max_log_scale && scale.mad <= scale.max_mad;
    if (blockIdx.x == 0) {
        clear(a.histograms);
    }
    // The first block smooths the field, and the others average meanwhile, if there are others.
    const bool is_last = blockIdx.x == gridDim.x - 1;
    if (a.fit.cells == nullptr || !scale.usable) {
        if (is_last) {
            write(a, scale, sums);
        }
        return;
    }
    const float factor = static_cast<float>(exp(scale.log_scale));
    const float reach = a.fit.sigmas * static_cast<float>(sigma);
    Partial differences = measure_cells(a, static_cast<float>(scale.log_scale), factor, reach);
    differences = sum_of_grid(a, shared, a.partials + gridDim.x, differences);
    if (blockIdx.x == 0) {
        smooth(a.fit);
        if (!is_last) {
            return;
        }
    }
    __shared__ unsigned radius;
    __shared__ float bias;
    __shared__ int spread;
    if (threadIdx.x == 0) {
        // `OfPixels::new` and `Window::of`; half the root of pi.
        const double mean = static_cast<double>(differences.sum) / kSteps / static_cast<double>(differences.count);
        const double noise = 0.886226925452758 * mean;
        const bool known = differences.count >= a.fit.min_pairs;
        const double fraction = static_cast<double>(scale.count) / a.pixels;
        const double of_wanted = noise / a.fit.wanted_noise;
        const double wanted = fmax(of_wanted * of_wanted, a.fit.per_gap * (1.0 - fraction));
        unsigned r = 0;
        while (known && r < a.fit.max_radius && fraction * ((2 * r + 1) * (2 * r + 1)) < wanted) {
            r += 1;
        }
        radius = r;
        // `Average::new`.
        bias = static_cast<float>(0.5 * (noise * noise));
        spread = static_cast<int>(fmin(fmax(a.fit.deviations * noise, a.fit.min_spread) * kSteps, 2.0 * kLargest));
        if (is_last) {
            const double measured = fmax(fraction * ((2 * r + 1) * (2 * r + 1)), 1.0);
            const double of_average = noise * noise / measured;
            const double of_network = fmax(sigma * sigma - noise * noise, 0.0);
            const double of_match = a.fit.matched_sigma * a.fit.matched_sigma;
            const bool errs = known && of_network > 0.0;
            Found* f = a.found;
            f->own = errs ? static_cast<float>(of_network / (of_network + of_average)) : 0.0f;
            f->matched = errs ? static_cast<float>(of_network / (of_network + of_average / a.fit.averaged)) : 0.0f;
            f->keyframe = known ? static_cast<float>(of_match / (of_match + of_average)) : 0.0f;
            f->reach = reach;
            f->surfaces = known;
            f->confidence = a.fit.confidence;
            f->radius = r;
            f->bias = known ? bias : 0.0f;
            f->spread = known ? spread : 0;
        }
    }
    __syncthreads();
    if (is_last) {
        write(a, scale, sums);
    }
    if (radius > 0) {
        const unsigned others = max(gridDim.x - 1, 1u);
        const unsigned block = (blockIdx.x + others - 1) % others;
        const Averages averages = {a.points, a.keys, a.metres, a.fit.layout.width, a.fit.layout.height,
                                   bias,     radius, spread};
        average<kThreads>(averages, static_cast<float>(scale.log_scale), reach, block, others);
    }
}
