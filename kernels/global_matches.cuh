// Memory layout of the matches of a global solve, and a warp's iteration over them.
#pragma once

#include <cuda_fp16.h>

#include "global_sums.cuh"

namespace ms::global {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kLanes = 32;
// Pixels of a warp and of a block when matches are added up; `CHUNK` in src/compute/cuda/global is their product.
constexpr unsigned kTile = 1024;
constexpr unsigned kTileWords = kTile / kLanes;

struct Keyframe {
    const float* points; // pixels x 3
    const __half* confidence;
};

// Pixels of j matched with pixels of i; quality 0 means no match.
struct Direction {
    const unsigned* index;
    const __half* quality;
    unsigned i;
    unsigned j;
};

// Constants of a solve.
struct Problem {
    const Keyframe* keyframes;
    const Direction* directions;
    unsigned pixels;
    unsigned words;  // of one bit per pixel
    unsigned chunks; // of kWarps * kTile pixels
    // pixel / width = (pixel * magic >> 32) >> shift, exactly, for pixels below 2^31.
    unsigned width;
    unsigned magic;
    unsigned shift;
    unsigned calibrated;
    // Gates: quality and confidence above these, a target's depth above this (-inf: any).
    float quality;
    float confidence;
    float depth;
    Noise noise;
    View view;
    float inverse_focal[2];
};

__device__ __forceinline__ unsigned row_of(const Problem& p, unsigned pixel) {
    return __umulhi(pixel, p.magic) >> p.shift;
}

// z K^-1 [u, v, 1]^T, with one f32 rounding more than on the CPU, which computes the ray in f64. Only a point within
// 1e-7 of the limits of usable norms (10 nm, 100,000 km) could be judged differently.
__device__ __forceinline__ void on_ray(const Problem& p, unsigned pixel, float z, float (&out)[3]) {
    const unsigned v = row_of(p, pixel);
    const unsigned u = pixel - v * p.width;
    out[0] = (static_cast<float>(u) - p.view.principal[0]) * p.inverse_focal[0] * z;
    out[1] = (static_cast<float>(v) - p.view.principal[1]) * p.inverse_focal[1] * z;
    out[2] = z;
}

// The points of a match in the form that a model reads.
struct FullPoints {
    float moving[3];
    float target[3];

    __device__ __forceinline__ void load(const float* __restrict__ from, const float* __restrict__ to, unsigned n,
                                         unsigned m) {
        const float* a = from + 3ull * n;
        const float* b = to + 3ull * m;
        for (int c = 0; c < 3; ++c) {
            moving[c] = __ldg(a + c);
            target[c] = __ldg(b + c);
        }
    }
};

struct Depths {
    float moving;
    float target;

    __device__ __forceinline__ void load(const float* __restrict__ from, const float* __restrict__ to, unsigned n,
                                         unsigned m) {
        moving = __ldg(from + 3ull * n + 2);
        target = __ldg(to + 3ull * m + 2);
    }
};

// Whether a transformed point can be compared; false for NaN.
__device__ __forceinline__ bool moved_to_a_place(const float (&p)[3], float& norm2) {
    norm2 = fused(p[0], p[0], fused(p[1], p[1], p[2] * p[2]));
    return norm2 > kLeastMovedNorm2 && norm2 < kGreatestMovedNorm2;
}

// Each adds the match of pixel n of j and pixel m of i to the sums and returns whether it did. Quality 0 means no
// match; the points are then undefined.
template <class Model> struct RayOrPoint {
    using Loaded = FullPoints;

    template <bool kCost>
    static __device__ __forceinline__ bool add(float (&s)[kSums], const Problem&, const Pose& pose, const Weights& weights,
                                               const Loaded& points, unsigned, unsigned, float q) {
        float p[3], norm2;
        transform(pose, points.moving, p);
        const bool counts = moved_to_a_place(p, norm2) && q > 0.0f;
        if (counts) {
            Model::template add<kCost>(s, p, norm2, points.target, q, weights);
        }
        return counts;
    }
};

struct Calibrated {
    using Loaded = Depths;

    template <bool kCost>
    static __device__ __forceinline__ bool add(float (&s)[kSums], const Problem& problem, const Pose& pose,
                                               const Weights& weights, const Loaded& points, unsigned n, unsigned m,
                                               float q) {
        float x[3], p[3], norm2;
        on_ray(problem, n, points.moving, x);
        transform(pose, x, p);
        if (!(moved_to_a_place(p, norm2) && q > 0.0f && p[2] > problem.view.depth)) {
            return false;
        }
        const unsigned v = row_of(problem, m);
        const unsigned u = m - v * problem.width;
        // Exact: columns and rows are far below 2^24.
        return PixelSums::add<kCost>(s, p, static_cast<float>(u), static_cast<float>(v), points.target, q, weights,
                                     problem.view);
    }
};

// A match being loaded: pixel n of j, pixel m of i; quality 0: no match. Using it early would stall the warp, so it is
// read only where there is a match, instead of being selected afterwards, and its quality stays as it is in memory.
struct Record {
    unsigned n;
    unsigned m;
    unsigned q;

    __device__ __forceinline__ float quality() const {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(q)));
    }
};

// Loads the bits of a quality, streamed.
__device__ __forceinline__ unsigned stream_bits(const __half* p) {
    return __ldcs(reinterpret_cast<const unsigned short*>(p));
}

// The matches of a warp's pixels, nearly all of which count, in order. All pixels are inside the image.
struct DenseMatches {
    const unsigned* __restrict__ index; // of the lane's first pixel
    const __half* __restrict__ quality; // of the same
    unsigned first;                     // that pixel
    unsigned bits;                      // the lane's word
    unsigned lane;

    // The lane's match in a round of the warp; beyond the last round the first ones repeat without effect.
    __device__ __forceinline__ Record operator[](unsigned round) const {
        const unsigned at = round % kTileWords * kLanes;
        Record r = {first + at, 0, 0};
        if ((__shfl_sync(kAllLanes, bits, round) >> lane & 1) != 0) {
            // Streamed, to keep the caches for the points.
            r.m = __ldcs(index + at);
            r.q = stream_bits(quality + at);
        }
        return r;
    }
};

// The same where some are missing: the matches that count are listed first, which costs a sixteenth of the arithmetic
// that it saves.
struct ListedMatches {
    const unsigned* __restrict__ index;
    const __half* __restrict__ quality;
    const unsigned short* list;
    unsigned first; // pixel of the warp
    unsigned count;
    unsigned lane;

    // Where there is no match, the first pixels of both.
    __device__ __forceinline__ Record operator[](unsigned round) const {
        Record r = {first, 0, 0};
        const unsigned k = round * kLanes + lane;
        if (k < count) {
            r.n = first + list[k];
            r.m = __ldcs(index + r.n);
            r.q = stream_bits(quality + r.n);
        }
        return r;
    }
};

// Adds a warp's matches to `s`; how many counted is added to `used`.
template <class Model, bool kCost, class Matches>
__device__ __forceinline__ void add_matches(float (&s)[kSums], unsigned& used, const Problem& p, const Pose& pose,
                                            const Matches& matches, const float* __restrict__ from,
                                            const float* __restrict__ to, unsigned rounds) {
    const Weights factors = weights(p.noise);
    // Matches are read two rounds ahead, points one.
    Record now = matches[0], next = matches[1];
    typename Model::Loaded points;
    points.load(from, to, now.n, now.m);
#pragma unroll 2
    for (unsigned round = 0; round < rounds; ++round) {
        typename Model::Loaded next_points;
        next_points.load(from, to, next.n, next.m);
        const Record after = matches[round + 2];
        used += Model::template add<kCost>(s, p, pose, factors, points, now.n, now.m, now.quality());
        now = next;
        next = after;
        points = next_points;
    }
}

} // namespace ms::global
