// Fusion of a new pointmap into a keyframe (docs/algorithm.md, Pointmap fusion), and the export of the keyframe's
// pointmap. The same bits as src/compute/fusion.rs. The new points are in the frame's camera and are moved by the
// tracked pose on the way. A lost frame changes nothing; that is decided here, so the host is not waited for.
//
// Limit: 16 B read of the new estimate, 16 B read and 16 B written of the old one a pixel: 9.4 MB at 512x384, 2 us at
// 4.8 TB/s. The export reads 16 B and writes 14 to 18 B. The score of mode best_score is one block's work, which is
// slow (about 0.1 ms) and rare.

#include "depth.cuh"
#include "index.cuh"
#include "residual.cuh"
#include "tracking.cuh"

#include <cuda_fp16.h>

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr unsigned kScoreThreads = 1024;
constexpr float kMaxConfidence = 1e18f;
constexpr float kMaxHalf = 65504.0f;
// `compute::fusion::MAX_COUNT` and the part of the sums that is kept there.
constexpr unsigned kMaxCount = 1u << 16;
constexpr float kFade = static_cast<float>(kMaxCount) / static_cast<float>(kMaxCount + 1);

// `config::FilteringMode`, in its order.
enum Mode : unsigned { kWeighted = 0, kSpherical = 1, kRecent = 2, kFirst = 3, kBestScore = 4, kIndependent = 5 };

// State of a fused pointmap: the words of `cuda::fusion::STATE_WORDS`.
struct State {
    unsigned count;   // estimates that the confidences accumulate
    unsigned updates; // since the restart
    float score;      // score of the kept estimate
    // The current update's score, and whether it replaces the kept estimate.
    float fresh_score;
    unsigned replace;
    // Blocks that have read the state; 0 between launches.
    unsigned ticket;
    unsigned padding[2];
};

// `cuda::fusion::UpdateArguments`.
struct Update {
    // Null: the points need no transform, and no tracking could have failed.
    const Outcome* outcome;
    // N x 3 and N, the new estimate.
    const float* points;
    const float* confidence;
    // N x 3 and N, the fused pointmap.
    float* held_points;
    float* held_confidence;
    State* state;
    // N, for the score.
    unsigned* keys;
    // Depths of the frame's and of the keyframe's pixels, and N matches from these to those.
    MeasuredDepths measured;
    const unsigned* index;
    const unsigned char* valid;
    unsigned long long pixels;
    unsigned mode;
    // Whether the score is the mean, not the median.
    unsigned mean;
    // Whether the pointmap restarts from this estimate.
    unsigned restart;
    // Columns of the depths; 0 without.
    unsigned width;
};

// `cuda::fusion::ExportArguments`.
struct Export {
    const float* held_points;
    const float* held_confidence;
    const State* state;
    // Puts points on their pixels' rays; null slopes: leaves them.
    Rays rays;
    // N x 3, and N average confidences in one or both formats.
    float* points;
    float* confidence;
    __half* half_confidence;
    unsigned long long pixels;
};

struct Estimate {
    float point[3];
    float confidence;
};

// Comparisons that NaN fails.
__device__ __forceinline__ bool usable(const float (&point)[3], float confidence) {
    const float squared = squared_norm(point);
    return squared > 1e-24f && squared < infinity() && confidence > 0.0f && confidence < infinity();
}

// The new estimate of a pixel, in the keyframe's camera, with its unlimited confidence; returns whether it is usable.
__device__ __forceinline__ bool read(const Update& u, unsigned long long n, Estimate& out) {
    const float* from = u.points + 3 * n;
    float x = from[0], y = from[1], z = from[2];
    out.confidence = u.confidence[n];
    const MeasuredDepths& measured = u.measured;
    const Found* found = measured.of_frame;
    // `OfPixels::approach_matches`.
    bool corrected = false;
    if (found != nullptr && found->accepted != 0 && u.valid[n] != 0 && u.index[n] < u.pixels) {
        float scale;
        corrected = bring(found, found->matched, over(measured.frame[u.index[n]], z), scale) < INFINITY;
        x *= scale;
        y *= scale;
        z *= scale;
    }
    if (u.outcome == nullptr) {
        out.point[0] = x;
        out.point[1] = y;
        out.point[2] = z;
    } else {
        const float* a = u.outcome->transform;
        for (int r = 0; r < 3; ++r) {
            out.point[r] = a[3 * r] * x + a[3 * r + 1] * y + a[3 * r + 2] * z + a[9 + r];
        }
    }
    if (found != nullptr && *measured.of_keyframe != 0) {
        // `OfPixels::approach_keyframe`.
        const float gain = corrected ? found->keyframe : found->own;
        const DepthImage image = {measured.keyframe, u.width, static_cast<unsigned>(u.pixels)};
        const float scale = bring_own(found, gain, image, static_cast<unsigned>(n), out.point[2], out.confidence);
        for (int r = 0; r < 3; ++r) {
            out.point[r] *= scale;
        }
    }
    const bool ok = usable(out.point, out.confidence);
    out.confidence = fminf(out.confidence, kMaxConfidence);
    return ok;
}

// Weights of the old and the new estimate, and their common confidence.
struct Shares {
    float old, fresh, confidence;
};

__device__ __forceinline__ Shares shares(const Estimate& old, const Estimate& fresh) {
    const float sum = old.confidence + fresh.confidence;
    return {old.confidence / sum, fresh.confidence / sum, fminf(sum, kMaxConfidence)};
}

// X <- (C X + C' X') / (C + C'), C <- C + C'.
__device__ __forceinline__ void merge_points(Estimate& old, const Estimate& fresh) {
    const Shares s = shares(old, fresh);
    for (int k = 0; k < 3; ++k) {
        old.point[k] = s.old * old.point[k] + s.fresh * fresh.point[k];
    }
    old.confidence = s.confidence;
}

// The same mean of the range and of the direction, as a vector (docs/reference-defects.md, B42). Opposite directions
// that cancel keep the old one.
__device__ __forceinline__ void merge_spherical(Estimate& old, const Estimate& fresh) {
    const Shares s = shares(old, fresh);
    const float old_range = fmaxf(sqrtf(squared_norm(old.point)), 1e-12f);
    const float fresh_range = sqrtf(squared_norm(fresh.point));
    const float range = s.old * old_range + s.fresh * fresh_range;
    const float a = s.old / old_range, b = s.fresh / fresh_range;
    float sum[3];
    for (int k = 0; k < 3; ++k) {
        sum[k] = a * old.point[k] + b * fresh.point[k];
    }
    const float length = sqrtf(squared_norm(sum));
    const bool apart = length > 1e-6f;
    const float factor = range / (apart ? length : old_range);
    for (int k = 0; k < 3; ++k) {
        old.point[k] = (apart ? sum[k] : old.point[k]) * factor;
    }
    old.confidence = s.confidence;
}

__device__ __forceinline__ bool lost(const Outcome* outcome) {
    return outcome != nullptr && outcome->status != kSolved;
}

} // namespace

// Absorbs a new estimate; one thread a pixel. Mode best_score: after the two launches below.
extern "C" __global__ void __launch_bounds__(kThreads) ms_fusion_update(const Update u) {
    if (lost(u.outcome)) {
        return;
    }
    const bool restart = u.restart != 0;
    const unsigned count = restart ? 0 : u.state->count;
    const bool first = count == 0;
    const bool accumulates = u.mode == kWeighted || u.mode == kSpherical;
    // Then the sums of all pixels shrink by one part, and the count stays.
    const bool full = accumulates && count >= kMaxCount;
    // The reference's `first` keeps the second estimate: its counter is 1 when that arrives.
    const bool skip = (u.mode == kFirst && !(first || (!restart && u.state->updates == 1))) ||
                      (u.mode == kBestScore && u.state->replace == 0);
    const unsigned long long n = thread_index();
    Estimate fresh;
    if (n < u.pixels && !skip) {
        const bool ok = read(u, n, fresh);
        Estimate held = {{0.0f, 0.0f, 0.0f}, 0.0f};
        if (!restart) {
            held = {{u.held_points[3 * n], u.held_points[3 * n + 1], u.held_points[3 * n + 2]}, u.held_confidence[n]};
        }
        if (ok) {
            if (!(held.confidence > 0.0f)) {
                held = fresh;
            } else if (u.mode == kWeighted) {
                merge_points(held, fresh);
            } else if (u.mode == kSpherical) {
                merge_spherical(held, fresh);
            } else if (u.mode != kIndependent || fresh.confidence > held.confidence) {
                held = fresh;
            }
        }
        if (full) {
            held.confidence *= kFade;
        }
        if (ok || restart || full) {
            for (int k = 0; k < 3; ++k) {
                u.held_points[3 * n + k] = held.point[k];
            }
            u.held_confidence[n] = held.confidence;
        }
    }
    // The last block to arrive replaces the state, which all others have read.
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicInc(&u.state->ticket, gridDim.x - 1) == gridDim.x - 1) {
            // Read only now: it would take registers that the pixels need.
            const State state = *u.state;
            const unsigned updates = restart ? 0 : state.updates;
            u.state->count = !accumulates ? 1 : full ? count : count + 1;
            u.state->updates = updates == 0xffffffffu ? updates : updates + 1;
            if (u.mode == kBestScore && state.replace != 0) {
                u.state->score = state.fresh_score;
            } else if (restart) {
                u.state->score = -infinity();
            }
        }
    }
}

// Mode best_score, first launch: the confidences as sortable integers, 0 where an estimate is not usable.
extern "C" __global__ void __launch_bounds__(kThreads) ms_fusion_keys(const Update u) {
    const unsigned long long n = thread_index();
    if (lost(u.outcome) || n >= u.pixels) {
        return;
    }
    Estimate fresh;
    const bool ok = read(u, n, fresh);
    u.keys[n] = ok ? __float_as_uint(fresh.confidence) : 0;
}

namespace {

// The number of non-zero keys, returned to all threads of the block.
__device__ unsigned long long count_keys(const unsigned* keys, unsigned long long pixels) {
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    unsigned long long own = 0;
    for (unsigned long long n = threadIdx.x; n < pixels; n += kScoreThreads) {
        own += keys[n] != 0;
    }
    atomicAdd(&total, own);
    __syncthreads();
    return total;
}

// The non-zero key of this rank (from 0), by radix selection from the highest byte down.
__device__ unsigned select_key(const unsigned* keys, unsigned long long pixels, unsigned long long rank) {
    __shared__ unsigned long long bucket[256];
    __shared__ unsigned long long rank_left;
    __shared__ unsigned prefix;
    if (threadIdx.x == 0) {
        rank_left = rank;
        prefix = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) {
            bucket[threadIdx.x] = 0;
        }
        __syncthreads();
        const unsigned known = shift == 24 ? 0 : prefix >> (shift + 8);
        // Whole warps: lanes of the same byte count together.
        const unsigned long long end = (pixels + 31) / 32 * 32;
        for (unsigned long long n = threadIdx.x; n < end; n += kScoreThreads) {
            const unsigned key = n < pixels ? keys[n] : 0;
            const bool counts = key != 0 && (shift == 24 || key >> (shift + 8) == known);
            const unsigned byte = counts ? key >> shift & 255u : 256u;
            const unsigned peers = __match_any_sync(0xffffffffu, byte);
            if (counts && (peers & ((1u << threadIdx.x % 32) - 1)) == 0) {
                atomicAdd(&bucket[byte], static_cast<unsigned long long>(__popc(peers)));
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned byte = 0;
            while (byte < 255 && rank_left >= bucket[byte]) {
                rank_left -= bucket[byte++];
            }
            prefix |= byte << shift;
        }
        __syncthreads();
    }
    return prefix;
}

// Sum of the keys' values in a fixed order. Exact, and so equal to the CPU's, while the values span less than 2^53 of
// the sum's last place: 2^18 confidences from 1 to 2^11.
__device__ double sum_values(const unsigned* keys, unsigned long long pixels) {
    __shared__ double part[kScoreThreads];
    double own = 0.0;
    for (unsigned long long n = threadIdx.x; n < pixels; n += kScoreThreads) {
        own += static_cast<double>(__uint_as_float(keys[n]));
    }
    part[threadIdx.x] = own;
    for (unsigned half = kScoreThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
    }
    __syncthreads();
    return part[0];
}

} // namespace

// Mode best_score, second launch, one block: lower median or mean of the usable confidences, and whether it beats the
// kept one.
extern "C" __global__ void __launch_bounds__(kScoreThreads) ms_fusion_score(const Update u) {
    if (lost(u.outcome)) {
        return;
    }
    const unsigned long long count = count_keys(u.keys, u.pixels);
    float score = -infinity();
    if (count > 0) {
        score = u.mean != 0 ? static_cast<float>(sum_values(u.keys, u.pixels) / static_cast<double>(count))
                            : __uint_as_float(select_key(u.keys, u.pixels, (count - 1) / 2));
    }
    if (threadIdx.x == 0) {
        const bool first = u.restart != 0 || u.state->count == 0;
        u.state->fresh_score = score;
        u.state->replace = first || score > u.state->score;
    }
}

// The pointmap with average confidences, on its pixels' rays if asked.
extern "C" __global__ void __launch_bounds__(kThreads) ms_fusion_export(const Export e) {
    const unsigned long long n = thread_index();
    if (n >= e.pixels) {
        return;
    }
    const float count = static_cast<float>(max(e.state->count, 1u));
    const float* from = e.held_points + 3 * n;
    float point[3] = {from[0], from[1], from[2]};
    if (e.rays.slopes != nullptr) {
        on_ray(e.rays, static_cast<unsigned>(n), from[2], point);
    }
    for (int k = 0; k < 3; ++k) {
        e.points[3 * n + k] = point[k];
    }
    const float average = e.held_confidence[n] / count;
    if (e.confidence != nullptr) {
        e.confidence[n] = average;
    }
    if (e.half_confidence != nullptr) {
        e.half_confidence[n] = __float2half_rn(fminf(average, kMaxHalf));
    }
}

// Puts each of N x 3 points on its pixel's ray and keeps its depth; `out` may be `points`.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_fusion_constrain(const float* points, const Rays rays, float* out, unsigned long long pixels) {
    const unsigned long long n = thread_index();
    if (n >= pixels) {
        return;
    }
    float point[3];
    on_ray(rays, static_cast<unsigned>(n), points[3 * n + 2], point);
    for (int k = 0; k < 3; ++k) {
        out[3 * n + k] = point[k];
    }
}
