// Occlusion check, descriptor refinement, match quality and the tracker's gates (docs/algorithm.md, Matching). Equals
// src/compute/matching bit for bit: compile with -fmad=false and IEEE roots.
//
// Limits at 512x384 (N = 196,608 pixels), 24 channels, radius 3, 5 levels, on an H200 (132 SMs, 1.8 GHz, 128 B a clock
// of first-level cache each: 30 TB/s; 4.8 TB/s of memory; 15 T dot products of four 8-bit channels a second):
// * rounding: 96 B read and 24 B written for a pixel of both views: 47 MB, 10 us of memory.
// * levels: 245 candidates of 24 B a pixel are 1.2 GB out of the first-level cache, 39 us, and 0.29 G dot products of
//   four channels, 20 us. A pixel's 24 B are three 8-byte loads; those of the 16 neighbours of a half-warp touch each
//   bank once. In f32 (96 B a candidate) the levels took 209 us on one NVIDIA H200.
// * the end in f32: 9 candidates of 96 B, 0.17 GB, 6 us.
// * quality, gates and distinct matches: 30 B per pixel, 1 us; half of it for an edge, which has no gates and qualities
//   of 2 B.

#include "index.cuh"
#include "matching.cuh"
#include "points.cuh"

#include <cuda_fp16.h>

// `dst` (N x padded) = `src` (N x dim) with zero channels behind.
extern "C" __global__ void __launch_bounds__(256)
    ms_match_pad(const float* __restrict__ src, unsigned dim, unsigned padded, float* __restrict__ dst,
                 unsigned long long values) {
    const unsigned long long i = ms::thread_index();
    if (i < values) {
        const unsigned long long n = i / padded;
        const unsigned k = static_cast<unsigned>(i % padded);
        dst[i] = k < dim ? src[n * dim + k] : 0.0f;
    }
}

// A channel in 127ths; 0 for values that no unit vector has, NaN and those beyond 1.
__device__ __forceinline__ unsigned rounded(float x) {
    // The conversion saturates, and turns NaN to 0.
    const unsigned value = static_cast<unsigned>(__float2int_rn(x * 127.0f));
    return value + 127u <= 254u ? value & 0xffu : 0u;
}

// Rounds descriptors of both views, `words` groups of four channels each.
extern "C" __global__ void __launch_bounds__(256)
    ms_match_round(const float4* __restrict__ target, const float4* __restrict__ query, unsigned* __restrict__ target_out,
                   unsigned* __restrict__ query_out, unsigned long long words) {
    const unsigned long long i = ms::thread_index();
    if (i >= 2 * words) {
        return;
    }
    const bool first = i < words;
    const unsigned long long n = first ? i : i - words;
    const float4 x = (first ? target : query)[n];
    (first ? target_out : query_out)[n] = rounded(x.x) | rounded(x.y) << 8 | rounded(x.z) << 16 | rounded(x.w) << 24;
}

struct RefineArgs {
    const float* target_points;        // N x 3, view 1
    const float* query_points;         // N x 3, view 2, in the frame of view 1
    const float4* target_descriptors;  // N x quads, 16-byte aligned
    const float4* query_descriptors;   // the same
    const uint2* target_rounded;       // N x quads / 2, by ms_match_round
    const uint2* query_rounded;        // the same
    const float* target_quality;       // N descriptor confidences, or null: no quality, no gates
    const float* query_quality;        // the same
    const float* target_confidence;    // N point confidences of view 1, or null: no gates
    const float* key_confidence;       // N accumulated point confidences of the keyframe, with the former
    const unsigned* key_count;         // how many estimates they accumulate
    unsigned* index;                   // N, in and out
    unsigned char* valid;              // N; in: whether the search converged
    float* quality;                    // N, or null
    __half* stored;                    // N: the same as an edge keeps it, rounded to nearest; or null
    float* gated;                      // N, or null
    unsigned* seen;                    // bitmap of target pixels, cleared; or null
    ms::MatchCounts* counts;           // cleared
    unsigned width, height;
    unsigned quads;   // groups of four channels of a descriptor, even
    unsigned radius;  // at most max(width, height)
    unsigned levels;  // the widest step; 0: no refinement
    unsigned all;     // refine invalid pixels too
    float q_conf, c_conf;
    float distance; // of the two points of a match, in metres
    unsigned reserved;
};

namespace {

constexpr unsigned kFull = 0xffffffffu;
// Pixels of a block.
constexpr unsigned kTileW = 16, kTileH = 16;
// Candidates of a column that are scored together: all of radius 3.
constexpr unsigned kGroup = 7;

// The candidates of one level: a grid in the image, `step` pixels apart.
struct Window {
    unsigned origin; // upper left pixel
    unsigned columns, rows;
};

// Steps from `at` towards 0, at most `radius`, that stay inside.
__device__ __forceinline__ unsigned steps_inside(unsigned at, unsigned radius, unsigned step) {
    return at >= radius * step ? radius : at / step;
}

__device__ __forceinline__ Window window_around(const RefineArgs& a, unsigned pixel, unsigned radius, unsigned step) {
    const unsigned v = pixel / a.width, u = pixel - v * a.width;
    const unsigned left = steps_inside(u, radius, step), up = steps_inside(v, radius, step);
    return {pixel - left * step - up * step * a.width, left + steps_inside(a.width - 1 - u, radius, step) + 1,
            up + steps_inside(a.height - 1 - v, radius, step) + 1};
}

// A constant number of values, in registers; where that is 0, they stay where they are.
template <unsigned kCount, typename T>
__device__ __forceinline__ const T* keep(const T* __restrict__ from, T* kept) {
    if constexpr (kCount == 0) {
        return from;
    } else {
#pragma unroll
        for (unsigned k = 0; k < kCount; ++k) {
            kept[k] = from[k];
        }
        return kept;
    }
}

// The best candidate so far.
struct Best {
    int score;
    unsigned pixel;
};

__device__ __forceinline__ bool may_match(const RefineArgs& a, unsigned pixel) {
    return ms::usable(ms::point(a.target_points, pixel));
}

// Whether the points of a match are close to each other: none hides the other.
__device__ __forceinline__ bool are_close(const RefineArgs& a, unsigned n, unsigned pixel) {
    const float3 x = ms::point(a.query_points, n), y = ms::point(a.target_points, pixel);
    const float3 apart = make_float3(y.x - x.x, y.y - x.y, y.z - x.z);
    return sqrtf(ms::dot(apart, apart)) < a.distance && ms::usable(y);
}

__device__ __forceinline__ int add_products(uint2 a, uint2 b, int sum) {
    sum = __dp4a(static_cast<int>(a.x), static_cast<int>(b.x), sum);
    return __dp4a(static_cast<int>(a.y), static_cast<int>(b.y), sum);
}

// Score of rounded descriptors.
template <unsigned kPairs>
__device__ __forceinline__ int rounded_score(const uint2* query, const uint2* __restrict__ target, unsigned pairs) {
    int sum = 0;
    // The compiler chooses how far: ms_match_refine_any spills registers if its loop is not unrolled.
#pragma unroll
    for (unsigned k = 0; k < (kPairs > 0 ? kPairs : pairs); ++k) {
        sum = add_products(query[k], target[k], sum);
    }
    return sum;
}

// Scans a window, columns from the left, rows from the top. A checked scan also tests whether a candidate may be a
// match.
template <unsigned kPairs, bool kChecked>
__device__ __forceinline__ Best scan(const RefineArgs& a, const uint2* query, const Window& window, unsigned step,
                                     Best best) {
    const unsigned pairs = kPairs > 0 ? kPairs : a.quads / 2;
    const unsigned down = step * a.width;
    for (unsigned i = 0; i < window.columns; ++i) {
        const unsigned top = window.origin + i * step;
        for (unsigned first = 0; first < (kPairs > 0 ? 1 : window.rows); first += kGroup) {
            int scores[kGroup];
#pragma unroll
            for (unsigned r = 0; r < kGroup; ++r) {
                // The last one again beyond the end, which never beats what was before.
                const unsigned pixel = top + min(first + r, window.rows - 1) * down;
                scores[r] = rounded_score<kPairs>(query, a.target_rounded + static_cast<size_t>(pixel) * pairs, pairs);
            }
#pragma unroll
            for (unsigned r = 0; r < kGroup; ++r) {
                const unsigned pixel = top + min(first + r, window.rows - 1) * down;
                bool better = scores[r] > best.score;
                if constexpr (kChecked) {
                    better = better && may_match(a, pixel);
                }
                if (better) {
                    best = {scores[r], pixel};
                }
            }
        }
    }
    return best;
}

__device__ __forceinline__ float4 fold(float4 sum, float4 a, float4 b) {
    return make_float4(sum.x + a.x * b.x, sum.y + a.y * b.y, sum.z + a.z * b.z, sum.w + a.w * b.w);
}

// Score in f32: products of eight lanes, k mod 8, added as ((0+1)+(2+3)) + ((4+5)+(6+7)).
template <unsigned kQuads>
__device__ __forceinline__ float exact_score(const float4* __restrict__ query, const float4* __restrict__ target,
                                             unsigned quads) {
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 low = zero, high = zero;
    constexpr unsigned kUnrolled = kQuads > 0 ? kQuads / 2 : 1;
#pragma unroll kUnrolled
    for (unsigned k = 0; k < (kQuads > 0 ? kQuads : quads); k += 2) {
        low = fold(low, query[k], target[k]);
        high = fold(high, query[k + 1], target[k + 1]);
    }
    return ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
}

// Moves from `pixel` to the best of its neighbours by exact scores as long as one is better, at most `a.radius` times.
template <unsigned kQuads>
__device__ __forceinline__ unsigned settle(const RefineArgs& a, unsigned n, unsigned pixel) {
    const unsigned quads = kQuads > 0 ? kQuads : a.quads;
    float4 kept[kQuads > 0 ? kQuads : 1];
    const float4* query = keep<kQuads>(a.query_descriptors + static_cast<size_t>(n) * quads, kept);
    float best = 0.0f;
    unsigned end = pixel;
    const auto consider = [&](unsigned candidate) {
        const float4* target = a.target_descriptors + static_cast<size_t>(candidate) * quads;
        const float score = exact_score<kQuads>(query, target, quads);
        if (score > best && isfinite(score) && may_match(a, candidate)) {
            best = score;
            end = candidate;
        }
    };
    consider(pixel);
    for (unsigned k = 0; k < a.radius; ++k) {
        const unsigned middle = end;
        const Window window = window_around(a, middle, 1, 1);
        for (unsigned i = 0; i < window.columns; ++i) {
#pragma unroll
            for (unsigned r = 0; r < 3; ++r) {
                consider(window.origin + i + min(r, window.rows - 1) * a.width);
            }
        }
        if (end == middle) {
            break;
        }
    }
    return end;
}

// Adds a warp's counts to the block's.
__device__ __forceinline__ void count(unsigned* total, bool what) {
    const unsigned votes = __ballot_sync(kFull, what);
    if (threadIdx.x % 32 == 0 && votes != 0) {
        atomicAdd(total, static_cast<unsigned>(__popc(votes)));
    }
}

// Marks target pixel `pixel` as matched; returns how many bits were new, counted by one lane of those that share a
// word. Called by the lanes of `mask`.
__device__ __forceinline__ unsigned mark(unsigned* seen, unsigned mask, unsigned pixel) {
    const unsigned word = pixel / 32;
    const unsigned peers = __match_any_sync(mask, word);
    const unsigned bits = __reduce_or_sync(peers, 1u << (pixel % 32));
    if (threadIdx.x % 32 != static_cast<unsigned>(__ffs(peers)) - 1) {
        return 0;
    }
    return __popc(bits & ~atomicOr(seen + word, bits));
}

// `MAX_QUALITY` in src/compute/matching.
constexpr float kMaxQuality = 65504.0f;

// A thread a pixel of view 2.
template <unsigned kQuads>
__device__ __forceinline__ void refine(const RefineArgs& a) {
    __shared__ unsigned totals[5];
    if (threadIdx.x < 5) {
        totals[threadIdx.x] = 0;
    }
    __syncthreads();

    const unsigned px = blockIdx.x * kTileW + threadIdx.x % kTileW;
    const unsigned py = blockIdx.y * kTileH + threadIdx.x / kTileW;
    const bool inside = px < a.width && py < a.height;
    const unsigned n = inside ? py * a.width + px : 0;
    // A thread outside reads nothing: the owner of pixel 0 may be writing it.
    const unsigned found = inside ? a.index[n] : 0;
    unsigned end = found;
    bool fits = inside && a.valid[n] != 0;
    if (fits && !are_close(a, n, found)) {
        fits = false;
        a.valid[n] = 0;
    }
    if (a.levels > 0 && inside && (a.all != 0 || fits)) {
        constexpr unsigned kPairs = kQuads / 2;
        const unsigned pairs = kPairs > 0 ? kPairs : a.quads / 2;
        uint2 kept[kPairs > 0 ? kPairs : 1];
        const uint2* query = keep<kPairs>(a.query_rounded + static_cast<size_t>(n) * pairs, kept);
        Best best = {0, found};
        for (unsigned step = a.levels; step > 0; --step) {
            const Window window = window_around(a, best.pixel, a.radius, step);
            const Best here = best;
            best = scan<kPairs, false>(a, query, window, step, here);
            // Hardly any best candidate is unusable, so that is tested only now; then the level is repeated.
            if (best.score > here.score && !may_match(a, best.pixel)) {
                best = scan<kPairs, true>(a, query, window, step, here);
            }
        }
        end = settle<kQuads>(a, n, best.pixel);
    }

    // Read again, because the loops above need the registers.
    const bool valid = inside && *const_cast<const volatile unsigned char*>(a.valid + n) != 0;
    const bool moved = valid && found != end;
    bool good = false, used = false;
    if (inside) {
        a.index[n] = end;
        if (a.target_quality != nullptr) {
            const float root = sqrtf(a.target_quality[end] * a.query_quality[n]);
            const float quality = valid && isfinite(root) ? fminf(root, kMaxQuality) : 0.0f;
            good = quality > a.q_conf;
            if (a.quality != nullptr) {
                a.quality[n] = quality;
            }
            if (a.stored != nullptr) {
                a.stored[n] = __float2half_rn(quality);
            }
            if (a.target_confidence != nullptr) {
                const float average = a.key_confidence[n] / static_cast<float>(max(*a.key_count, 1u));
                used = good && average > a.c_conf && a.target_confidence[end] > a.c_conf;
                if (a.gated != nullptr) {
                    a.gated[n] = used ? quality : 0.0f;
                }
            }
        }
    }
    count(&totals[0], valid);
    count(&totals[1], moved);
    count(&totals[2], good);
    count(&totals[3], used);
    const unsigned valid_lanes = __ballot_sync(kFull, valid);
    if (a.seen != nullptr && valid) {
        const unsigned fresh = mark(a.seen, valid_lanes, end);
        if (fresh != 0) {
            atomicAdd(&totals[4], fresh);
        }
    }
    __syncthreads();
    if (threadIdx.x < 5 && totals[threadIdx.x] != 0) {
        atomicAdd(reinterpret_cast<unsigned*>(a.counts) + threadIdx.x, totals[threadIdx.x]);
    }
}

} // namespace

// 24 channels, radius at most 3.
extern "C" __global__ void __launch_bounds__(kTileW* kTileH, 3) ms_match_refine(const RefineArgs a) {
    refine<6>(a);
}

// Any number of channels that is a multiple of eight, any radius.
extern "C" __global__ void __launch_bounds__(kTileW* kTileH) ms_match_refine_any(const RefineArgs a) {
    refine<0>(a);
}
