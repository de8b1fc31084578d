// The scale of a pointmap by measured depth, the field of what a pass gets wrong beside it, and their use: as
// src/compute/depth.rs and depth/field.rs. The medians are exact: keys are
// selected digit by digit, by histograms of integers. Sums are added in a fixed order, so that two runs give the same
// bits.
//
// Limit: 20 B a pixel read and 4 B written by the first kernel, 4 B read by each of the seven after it, and 48 B read
// and written by the last: 16 MB at 512x384 with two views, 3 us at 4.8 TB/s. Nine launches of a few microseconds
// decide.

#include "depth.cuh"
#include "index.cuh"

namespace {

using ms::Found;

constexpr unsigned kThreads = 256;
constexpr unsigned kBins = 2048;
constexpr unsigned kPatch = 16;
// The key of a pixel without point or depth is that of a NaN, which no finite ratio has.
constexpr unsigned kNothing = 0xffffffffu;

// State of a selection; `tickets` is zero between launches.
struct Selection {
    unsigned prefix; // digits found so far
    unsigned rank;   // of the wanted key among those with this prefix
    unsigned tickets;
    unsigned padding;
};

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

// `cuda::depth::Arguments`.
struct Arguments {
    const float* points;     // N x 3
    const float* confidence; // N
    const float* metres;     // N; 0: not measured
    const unsigned* used;    // 1 if `metres` holds anything; null: it does
    unsigned* keys;          // N
    unsigned* histogram;     // kBins, zero between launches
    unsigned* patches;       // zero between launches
    Selection* selection;
    double* partials;        // two a block
    Found* found;
    unsigned pixels;
    unsigned width;
    unsigned columns; // of patches
    unsigned patch_count;
    Limits limits;
};

// Unsigned numbers in the order of `f32::total_cmp`.
__device__ __forceinline__ unsigned ordered(float v) {
    const unsigned bits = __float_as_uint(v);
    return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

__device__ __forceinline__ float from_ordered(unsigned key) {
    return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

__device__ __forceinline__ bool has_depth(const Arguments& a) {
    return a.used == nullptr || *a.used != 0;
}

// Digits of a key, from the top: 11, 11 and 10 bits.
__device__ __forceinline__ unsigned shift_of(unsigned level) {
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}
__device__ __forceinline__ unsigned bits_of(unsigned level) {
    return level == 2 ? 10 : 11;
}

// Adds one to `counter[slot]` for each active lane, once for lanes with the same slot.
__device__ __forceinline__ void count_in(unsigned* counter, unsigned slot, bool active) {
    const unsigned lanes = __ballot_sync(0xffffffffu, active);
    if (active) {
        const unsigned same = __match_any_sync(lanes, slot);
        if (threadIdx.x % 32 == static_cast<unsigned>(__ffs(same)) - 1) {
            atomicAdd(counter + slot, static_cast<unsigned>(__popc(same)));
        }
    }
}

// Whether this block is the last of its grid to get here; all threads of a block call it.
__device__ bool is_last(unsigned* tickets) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Adds a block's histogram to that of the grid.
__device__ void publish(const unsigned* bins, unsigned* histogram) {
    __syncthreads();
    for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
        if (bins[b] != 0) {
            atomicAdd(histogram + b, bins[b]);
        }
    }
}

// The sum of a value over the block's threads with lower numbers, and over all of them.
__device__ unsigned exclusive_sum(unsigned value, unsigned& total) {
    __shared__ unsigned sums[kThreads];
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned step = 1; step < kThreads; step *= 2) {
        const unsigned before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    total = sums[kThreads - 1];
    const unsigned below = sums[threadIdx.x] - value;
    __syncthreads();
    return below;
}

// One block: finds the digit of the key with the wanted rank, and clears the histogram. Returns the number of keys.
__device__ unsigned select_digit(const Arguments& a, unsigned level, bool begin) {
    constexpr unsigned kEach = kBins / kThreads;
    unsigned counts[kEach];
    unsigned own = 0;
    for (unsigned k = 0; k < kEach; ++k) {
        unsigned* bin = a.histogram + threadIdx.x * kEach + k;
        // The other blocks' additions are in the second-level cache.
        counts[k] = __ldcg(bin);
        *bin = 0;
        own += counts[k];
    }
    unsigned total = 0;
    unsigned below = exclusive_sum(own, total);
    Selection* s = a.selection;
    // The upper median.
    const unsigned rank = begin ? total / 2 : s->rank;
    const unsigned prefix = begin ? 0 : s->prefix;
    __syncthreads();
    for (unsigned k = 0; k < kEach; ++k) {
        if (rank >= below && rank - below < counts[k]) {
            s->prefix = (prefix << bits_of(level)) | (threadIdx.x * kEach + k);
            s->rank = rank - below;
        }
        below += counts[k];
    }
    __syncthreads();
    return total;
}

// The sums of two values over the block, in a fixed order; valid in thread 0.
__device__ double2 block_sum(double2 value) {
    __shared__ double2 sums[kThreads];
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x].x += sums[threadIdx.x + half].x;
            sums[threadIdx.x].y += sums[threadIdx.x + half].y;
        }
        __syncthreads();
    }
    const double2 total = sums[0];
    __syncthreads();
    return total;
}

// `field::LAYERS` and `field::FIRST_LAYER`: layers of cells over depth, each for depths twice those of the one before.
constexpr unsigned kLayers = 4;
constexpr float kFirstLayer = 0.7f;

// `cuda::depth::field::LayoutArgument`: the image and the square cells of a layer.
struct Layout {
    unsigned width;
    unsigned height;
    unsigned columns;
    unsigned rows;
    unsigned side;
};

// `cuda::depth::field::FieldArguments`.
struct FieldArguments {
    const float* points;  // N x 3, before they are scaled
    const unsigned* keys; // N, as `ms_depth_ratios` left them
    const unsigned* used; // as in `Arguments`
    const Found* found;
    float2* cells;        // mean and weight of each
    float* field;         // a value a cell; stays as it is where the measurement was not accepted
    unsigned* tickets;    // zero between launches
    Layout layout;
    float sigmas;         // where a ratio no longer counts, in standard deviations
    float sigma_over_mad;
    float min_sigma;
    float full_cell;
    float stiffness;
    float way_back;
    unsigned sweeps;
};

// `cuda::depth::field::CameraArgument`: pixels of points in the first view's camera.
struct Camera {
    float focal[2];
    float principal[2];
};

// Where a place lies between the centres of the cells of an axis.
struct Between {
    unsigned low;
    unsigned high;
    float share; // of `high`
};

__device__ __forceinline__ Between between(float place, unsigned count) {
    // NaN becomes 0.
    const float at = fminf(fmaxf(place, 0.0f), static_cast<float>(count - 1));
    const unsigned low = static_cast<unsigned>(at);
    return {low, min(low + 1, count - 1), at - static_cast<float>(low)};
}

// The place of a depth in metres between the layers.
__device__ __forceinline__ Between layer_of(float depth) { return between(log2f(depth / kFirstLayer), kLayers); }

__device__ __forceinline__ float blend(float low, float high, float share) { return low + share * (high - low); }

// The field at column and row of the image and a depth in metres, linear along each.
__device__ __forceinline__ float field_at(const float* field, const Layout& l, float u, float v, float depth) {
    const float inverse_side = 1.0f / static_cast<float>(l.side);
    const Between x = between((u + 0.5f) * inverse_side - 0.5f, l.columns);
    const Between y = between((v + 0.5f) * inverse_side - 0.5f, l.rows);
    const Between z = layer_of(depth);
    const auto of_row = [&](unsigned layer, unsigned row) {
        const float* values = field + (layer * l.rows + row) * l.columns;
        return blend(values[x.low], values[x.high], x.share);
    };
    const auto of_layer = [&](unsigned layer) { return blend(of_row(layer, y.low), of_row(layer, y.high), y.share); };
    return blend(of_layer(z.low), of_layer(z.high), z.share);
}

// Whole warps for every round of a loop over pixels.
__device__ __forceinline__ unsigned long long rounds(unsigned pixels) {
    const unsigned long long count = ms::thread_count();
    return (pixels + count - 1) / count;
}

} // namespace

// Log ratios as keys, their number in each patch, and the first digit of their median.
extern "C" __global__ void __launch_bounds__(kThreads) ms_depth_ratios(const Arguments a) {
    if (!has_depth(a)) {
        if (ms::thread_index() == 0) {
            a.found->accepted = 0;
        }
        return;
    }
    __shared__ unsigned bins[kBins];
    for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
        bins[b] = 0;
    }
    __syncthreads();
    const unsigned long long all = rounds(a.pixels);
    for (unsigned long long round = 0; round < all; ++round) {
        const unsigned long long n = round * ms::thread_count() + ms::thread_index();
        unsigned key = kNothing;
        unsigned patch = 0;
        if (n < a.pixels) {
            const float depth = a.points[3 * n + 2];
            const float z = a.metres[n];
            if (a.confidence[n] > 0.0f && depth > 0.0f && z > 0.0f && isfinite(z)) {
                const float ratio = logf(z / depth);
                if (isfinite(ratio)) {
                    key = ordered(ratio);
                    const unsigned row = static_cast<unsigned>(n / a.width) / kPatch;
                    const unsigned column = static_cast<unsigned>(n % a.width) / kPatch;
                    patch = row * a.columns + min(column, a.columns - 1);
                }
            }
            a.keys[n] = key;
        }
        const bool measured = key != kNothing;
        count_in(a.patches, patch, measured);
        count_in(bins, key >> shift_of(0), measured);
    }
    publish(bins, a.histogram);
    if (is_last(&a.selection->tickets)) {
        const unsigned count = select_digit(a, 0, true);
        if (threadIdx.x == 0) {
            a.found->count = count;
        }
    }
}

// The next digit of the median of the log ratios, or with `distances` of how far they are from it.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_digit(const Arguments a, const unsigned distances, const unsigned level) {
    if (!has_depth(a) || a.found->count == 0) {
        return;
    }
    __shared__ unsigned bins[kBins];
    for (unsigned b = threadIdx.x; b < kBins; b += kThreads) {
        bins[b] = 0;
    }
    __syncthreads();
    const unsigned prefix = a.selection->prefix;
    const float median = a.found->median;
    const unsigned long long all = rounds(a.pixels);
    for (unsigned long long round = 0; round < all; ++round) {
        const unsigned long long n = round * ms::thread_count() + ms::thread_index();
        unsigned key = n < a.pixels ? a.keys[n] : kNothing;
        const bool measured = key != kNothing;
        if (distances != 0) {
            key = __float_as_uint(fabsf(from_ordered(key) - median));
        }
        const bool of_it = measured && (level == 0 || key >> (shift_of(level) + bits_of(level)) == prefix);
        count_in(bins, (key >> shift_of(level)) & ((1u << bits_of(level)) - 1), of_it);
    }
    publish(bins, a.histogram);
    if (is_last(&a.selection->tickets)) {
        select_digit(a, level, level == 0);
        if (threadIdx.x == 0 && level == 2) {
            const unsigned found = a.selection->prefix;
            if (distances != 0) {
                a.found->mad = __uint_as_float(found);
            } else {
                a.found->median = from_ordered(found);
            }
        }
    }
}

// The mean of the inliers, and the factor if the scale can be used.
extern "C" __global__ void __launch_bounds__(kThreads) ms_depth_mean(const Arguments a) {
    if (!has_depth(a)) {
        return;
    }
    const Limits& l = a.limits;
    const float median = a.found->median;
    const double mad = a.found->mad;
    const double limit = l.inliers * fmax(l.sigma_over_mad * mad, l.min_sigma);
    double2 own = make_double2(0.0, 0.0);
    for (unsigned long long n = ms::thread_index(); n < a.pixels; n += ms::thread_count()) {
        const unsigned key = a.keys[n];
        const double off = from_ordered(key) - median;
        if (key != kNothing && fabs(off) <= limit) {
            own.x += off;
            own.y += 1.0;
        }
    }
    const double2 of_block = block_sum(own);
    if (threadIdx.x == 0) {
        a.partials[2 * blockIdx.x] = of_block.x;
        a.partials[2 * blockIdx.x + 1] = of_block.y;
    }
    if (!is_last(&a.selection->tickets)) {
        return;
    }
    own = make_double2(0.0, 0.0);
    for (unsigned b = threadIdx.x; b < gridDim.x; b += kThreads) {
        own.x += __ldcg(a.partials + 2 * b);
        own.y += __ldcg(a.partials + 2 * b + 1);
    }
    const double2 sums = block_sum(own);
    own = make_double2(0.0, 0.0);
    for (unsigned p = threadIdx.x; p < a.patch_count; p += kThreads) {
        own.x += fmin(a.patches[p] / l.full_patch, 1.0);
        a.patches[p] = 0;
    }
    const double2 patches = block_sum(own);
    if (threadIdx.x != 0) {
        return;
    }
    Found* f = a.found;
    f->sum = sums.x;
    f->inliers = static_cast<unsigned>(sums.y);
    f->patches = patches.x;
    const double log_scale = median + sums.x / fmax(sums.y, 1.0);
    const bool enough = f->count > 0 && static_cast<double>(f->count) / a.pixels >= l.min_fraction;
    const double max_mad = f->agreed >= l.trusted ? l.max_trusted_mad : l.max_mad;
    f->max_mad = max_mad;
    if (enough) {
        f->agreed = mad <= l.max_mad ? min(f->agreed + 1, l.max_agreed) : f->agreed - min(f->agreed, 1u);
    }
    const bool usable = enough && fabs(log_scale) <= l.max_log_scale && mad <= max_mad;
    f->accepted = usable ? 1 : 0;
    if (usable) {
        f->factor = static_cast<float>(exp(log_scale));
    }
}

// Multiplies the points of one or two views by the newest scale that was accepted.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_rescale(float* first, float* second, const Found* found, const unsigned numbers) {
    const float factor = found->factor;
    if (factor == 1.0f) {
        return;
    }
    float* points = blockIdx.y == 0 ? first : second;
    const unsigned long long n = ms::thread_index();
    if (n < numbers) {
        points[n] *= factor;
    }
}

// The field of an accepted measurement. A block averages the ratios of a cell of each layer; the last one smooths the
// grid, with a thread for the at most kThreads cells of a layer.
extern "C" __global__ void __launch_bounds__(kThreads) ms_depth_field(const FieldArguments a) {
    if ((a.used != nullptr && *a.used == 0) || a.found->accepted == 0) {
        return;
    }
    const Layout& l = a.layout;
    const float scale = logf(a.found->factor);
    const float reach = a.sigmas * fmaxf(a.sigma_over_mad * a.found->mad, a.min_sigma);
    const unsigned left = blockIdx.x % l.columns * l.side;
    const unsigned above = blockIdx.x / l.columns * l.side;
    const float factor = a.found->factor;
    float2 own[kLayers] = {};
    const unsigned long long all = static_cast<unsigned long long>(l.side) * l.side;
    for (unsigned long long k = threadIdx.x; k < all; k += kThreads) {
        const unsigned u = left + static_cast<unsigned>(k % l.side);
        const unsigned v = above + static_cast<unsigned>(k / l.side);
        if (u >= l.width || v >= l.height) {
            continue;
        }
        const unsigned long long n = static_cast<unsigned long long>(v) * l.width + u;
        const unsigned key = a.keys[n];
        const float off = from_ordered(key) - scale;
        const float of_reach = off / reach;
        const float rest = 1.0f - of_reach * of_reach;
        // False for a pixel without a ratio.
        if (key != kNothing && rest > 0.0f) {
            const float weight = rest * rest;
            const Between z = layer_of(a.points[3 * n + 2] * factor);
#pragma unroll
            for (unsigned layer = 0; layer < kLayers; ++layer) {
                const float share = layer == z.low ? 1.0f - z.share : layer == z.high ? z.share : 0.0f;
                const float of_layer = share * weight;
                own[layer].x += of_layer * off;
                own[layer].y += of_layer;
            }
        }
    }
    __shared__ float2 sums[kLayers][kThreads];
    for (unsigned layer = 0; layer < kLayers; ++layer) {
        sums[layer][threadIdx.x] = own[layer];
    }
    __syncthreads();
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            for (unsigned layer = 0; layer < kLayers; ++layer) {
                sums[layer][threadIdx.x].x += sums[layer][threadIdx.x + half].x;
                sums[layer][threadIdx.x].y += sums[layer][threadIdx.x + half].y;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < kLayers) {
        const float2 sum = sums[threadIdx.x][0];
        const float mean = sum.y > 0.0f ? sum.x / sum.y : 0.0f;
        a.cells[threadIdx.x * gridDim.x + blockIdx.x] = make_float2(mean, fminf(sum.y / a.full_cell, 1.0f));
    }
    if (!is_last(a.tickets)) {
        return;
    }
    __shared__ float values[2][kLayers][kThreads];
    const unsigned cell = threadIdx.x;
    const unsigned row = cell / l.columns;
    const unsigned column = cell % l.columns;
    const unsigned count = l.columns * l.rows;
    const bool exists = cell < count;
    const bool has_left = column > 0, has_right = column + 1 < l.columns;
    const bool has_above = row > 0, has_below = row + 1 < l.rows;
    float2 measured[kLayers];
    for (unsigned layer = 0; layer < kLayers; ++layer) {
        // The other blocks' means are in the second-level cache.
        measured[layer] = exists ? __ldcg(a.cells + layer * count + cell) : make_float2(0.0f, 0.0f);
        values[0][layer][cell] = 0.0f;
    }
    __syncthreads();
    for (unsigned sweep = 0; sweep < a.sweeps; ++sweep) {
        for (unsigned layer = 0; exists && layer < kLayers; ++layer) {
            const float* old = values[sweep % 2][layer];
            const bool has_nearer = layer > 0, has_farther = layer + 1 < kLayers;
            float sum = has_left ? old[cell - 1] : 0.0f;
            sum += has_right ? old[cell + 1] : 0.0f;
            sum += has_above ? old[cell - l.columns] : 0.0f;
            sum += has_below ? old[cell + l.columns] : 0.0f;
            sum += has_nearer ? values[sweep % 2][layer - 1][cell] : 0.0f;
            sum += has_farther ? values[sweep % 2][layer + 1][cell] : 0.0f;
            const float neighbours =
                static_cast<float>(has_left + has_right + has_above + has_below + has_nearer + has_farther);
            values[(sweep + 1) % 2][layer][cell] =
                (measured[layer].y * measured[layer].x + a.stiffness * sum) /
                (measured[layer].y + a.stiffness * neighbours + a.way_back);
        }
        __syncthreads();
    }
    for (unsigned layer = 0; exists && layer < kLayers; ++layer) {
        a.field[layer * count + cell] = values[a.sweeps % 2][layer][cell];
    }
}

// Multiplies the points of one or two views, all in the first one's camera, by the newest scale that was accepted and
// the newest field: the first view's at their own pixels, the second's where the camera sees them.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_apply(float* first, float* second, const Found* found, const float* field, const Layout layout,
                   const Camera camera, const unsigned pixels) {
    const unsigned long long n = ms::thread_index();
    if (n >= pixels) {
        return;
    }
    float* p = (blockIdx.y == 0 ? first : second) + 3 * n;
    float scale = found->factor;
    if (blockIdx.y == 0) {
        const float u = static_cast<float>(static_cast<unsigned>(n) % layout.width);
        const float v = static_cast<float>(static_cast<unsigned>(n) / layout.width);
        scale *= expf(field_at(field, layout, u, v, p[2] * scale));
    } else if (p[2] > 0.0f) {
        const float u = p[0] / p[2] * camera.focal[0] + camera.principal[0];
        const float v = p[1] / p[2] * camera.focal[1] + camera.principal[1];
        scale *= expf(field_at(field, layout, u, v, p[2] * scale));
    }
    for (int k = 0; k < 3; ++k) {
        p[k] *= scale;
    }
}
