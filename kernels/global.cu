// Global Gauss-Newton over keyframe poses (docs/algorithm.md, Global optimisation): the sums over the matches of every
// edge, as in src/compute/global. The host solves the small sparse system.
//
// Once per solve, gates that do not depend on a pose become bits: three for each pixel of a keyframe (its confidence is
// high enough, its point can move, its point can be a target), then one for each match. A linearisation reads per match
//   index and quality, 6 B, streamed; the point of j, 12 B, in order; the point of i, 12 B, gathered: 30 B,
// and every point is shared by the edges of its keyframe. At 512 x 384 (196,608 pixels) with 600 directed edges of 200
// keyframes that is 118 M matches, of which
//   0.71 GB of matches + 0.47 GB of points (once, while L2 holds the keyframes of neighbouring edges) = 1.2 GB, 0.27 ms
//     at 4.4 TB/s (3.5 GB, 0.80 ms without L2);
//   189 instructions each (rays, sm_90), 7.0e8 for warps: 0.73 ms on 132 multiprocessors that issue four a cycle at
//     1.8 GHz.
// Instructions are the limit, so they are what this saves: shared products (global_sums.cuh), matches packed densely
// before the arithmetic, one shuffle tree per thousand matches. The gates read 6 B per match and 14 B per pixel, 1.3
// GB, 0.3 ms.
//
// A warp sums 1024 pixels in f32, within the lanes and then by a tree; a block adds four of these; later sums are f64.
// Work is divided by pixel number alone, so the same input gives the same bits.

#include "global_matches.cuh"
#include "sim3.cuh"

namespace ms::global {
namespace {

constexpr unsigned kWarps = 4;
// Blocks of 128 threads with 96 registers that fit on a multiprocessor.
constexpr unsigned kResidentBlocks = 5;
// The same where only the cost is added up, with 64 registers.
constexpr unsigned kCostBlocks = 8;
// Threads of a block that only tests pixels or matches.
constexpr unsigned kTestThreads = 256;
// Pixels that a thread tests of a keyframe.
constexpr unsigned kMaskPixels = 4;
// Matches that a thread tests: kQuads times kQuad in a row; and words of bits of a block.
constexpr unsigned kQuad = 4, kQuads = 2;
constexpr unsigned kTestWords = kTestThreads * kQuad * kQuads / kLanes;

// Masks of a keyframe, `words` each.
constexpr unsigned kTrusted = 0, kMovable = 1, kTarget = 2, kMasks = 3;

// Adds 32 sums over the lanes: lane l is left with sum l. Lanes that differ in one bit exchange halves, so that 31
// shuffles do what 160 would.
template <unsigned Half> __device__ __forceinline__ void exchange(float (&v)[kSums], unsigned lane) {
    const bool upper = (lane & Half) != 0;
#pragma unroll
    for (unsigned k = 0; k < Half; ++k) {
        const float kept = upper ? v[k + Half] : v[k];
        const float given = upper ? v[k] : v[k + Half];
        v[k] = kept + __shfl_xor_sync(kAllLanes, given, Half);
    }
}

__device__ __forceinline__ float sum_over_lanes(float (&v)[kSums], unsigned lane) {
    exchange<16>(v, lane);
    exchange<8>(v, lane);
    exchange<4>(v, lane);
    exchange<2>(v, lane);
    exchange<1>(v, lane);
    return v[0];
}

// One sum over the lanes, added up as above.
__device__ __forceinline__ float sum_over_lanes(float v) {
#pragma unroll
    for (unsigned half = kLanes / 2; half > 0; half /= 2) {
        v += __shfl_xor_sync(kAllLanes, v, half);
    }
    return v;
}

// Prefetches the cache line of an address.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// The sums of a block's pixels of one direction; with `kCost` all but the robust cost are zero.
template <class Model, bool kCost>
__device__ __forceinline__ void linearise(const Problem& p, const unsigned* __restrict__ gates,
                                          const Pose* __restrict__ relative, const unsigned char* __restrict__ active,
                                          float* __restrict__ sums, unsigned* __restrict__ used) {
    __shared__ unsigned short listed[kWarps][kTile];
    __shared__ float totals[kWarps][kSums];
    __shared__ unsigned counts[kWarps];
    const unsigned direction = blockIdx.x / p.chunks;
    // The sums that are not written then are not read.
    if (active[direction / 2] == 0) {
        return;
    }
    const unsigned lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
    const unsigned first_word = ((blockIdx.x - direction * p.chunks) * kWarps + warp) * kTileWords;
    const unsigned own_word = first_word + lane;
    const unsigned bits =
        own_word < p.words ? __ldg(gates + static_cast<unsigned long long>(direction) * p.words + own_word) : 0;
    const unsigned count = __reduce_add_sync(kAllLanes, __popc(bits));

    float s[kSums];
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
        s[k] = 0.0f;
    }
    unsigned counted = 0;
    if (count > 0) {
        const Direction d = p.directions[direction];
        const float* from = p.keyframes[d.j].points;
        const float* to = p.keyframes[d.i].points;
        const Pose pose = relative[direction];
        const unsigned first = first_word * kLanes;
        // Prefetches the matches of all rounds, a line of indices and half a line of qualities per lane: reading two
        // rounds ahead, as below, does not hide the latency of memory. On one NVIDIA H200 this saves 5 % of the sums.
        if (bits != 0) {
            prefetch(d.index + own_word * kLanes);
            prefetch(d.quality + own_word * kLanes);
        }
        const unsigned rounds = (count + kLanes - 1) / kLanes;
        if (rounds + 2 > kTileWords && first + kTile <= p.pixels) {
            const unsigned own = first + lane;
            const DenseMatches matches = {d.index + own, d.quality + own, own, bits, lane};
            add_matches<Model, kCost>(s, counted, p, pose, matches, from, to, kTileWords);
        } else {
            const unsigned before = (1u << lane) - 1;
            unsigned next = 0;
#pragma unroll 4
            for (unsigned w = 0; w < kTileWords; ++w) {
                const unsigned word = __shfl_sync(kAllLanes, bits, w);
                if ((word >> lane & 1) != 0) {
                    listed[warp][next + __popc(word & before)] = static_cast<unsigned short>(w * kLanes + lane);
                }
                next += __popc(word);
            }
            __syncwarp();
            const ListedMatches matches = {d.index, d.quality, listed[warp], first, count, lane};
            add_matches<Model, kCost>(s, counted, p, pose, matches, from, to, rounds);
        }
    }
    if constexpr (kCost) {
        const float cost = sum_over_lanes(s[kRobustSum]);
        totals[warp][lane] = lane == kRobustSum ? cost : 0.0f;
    } else {
        totals[warp][lane] = sum_over_lanes(s, lane);
    }
    counted = __reduce_add_sync(kAllLanes, counted);
    if (lane == 0) {
        counts[warp] = counted;
    }
    __syncthreads();
    if (warp == 0) {
        float total = 0.0f;
        unsigned matches = 0;
        for (unsigned w = 0; w < kWarps; ++w) {
            total += totals[w][lane];
            matches += counts[w];
        }
        sums[static_cast<unsigned long long>(blockIdx.x) * kSums + lane] = total;
        if (lane == 0) {
            used[blockIdx.x] = matches;
        }
    }
}

// One edge, both directions together, by left perturbations of world poses: `Term` of src/compute/global.
struct Equations {
    double hessian[28]; // upper triangle, row by row
    double gradient[7]; // at j; negated at i
    double robust;
    unsigned long long matches;
};

// Ad(T^-1) of a pose, whose inverse is (t', R', s'): [[s'R', t'^R', -t'], [0, R', 0], [0, 0, 1]].
__device__ __forceinline__ void inverse_adjoint(const Sim3& pose, double (&a)[7][7]) {
    const Sim3 inv = sim3_inverse(pose);
    for (int c = 0; c < 7; ++c) {
        for (int r = 0; r < 7; ++r) {
            a[r][c] = r == 6 && c == 6 ? 1.0 : 0.0;
        }
    }
    for (int c = 0; c < 3; ++c) {
        const double axis[3] = {c == 0 ? 1.0 : 0.0, c == 1 ? 1.0 : 0.0, c == 2 ? 1.0 : 0.0};
        double column[3];
        rotate(inv.q, axis, column);
        const double(&t)[3] = inv.t;
        const double moment[3] = {t[1] * column[2] - t[2] * column[1], t[2] * column[0] - t[0] * column[2],
                                  t[0] * column[1] - t[1] * column[0]};
        for (int r = 0; r < 3; ++r) {
            a[r][c] = inv.s * column[r];
            a[r][c + 3] = moment[r];
            a[r + 3][c + 3] = column[r];
        }
        a[c][6] = -t[c];
    }
}

// Threads of `ms_global_reduce`: two warps for each direction's sums, one for each direction's adjoint.
constexpr unsigned kReduceThreads = 192;

} // namespace
} // namespace ms::global

using namespace ms::global;

// Bits of every pixel of keyframe blockIdx.y: masks[keyframe][kTrusted, kMovable, kTarget][words]. A warp has
// kMaskPixels words in a row and issues all reads before it uses a pixel.
extern "C" __global__ void __launch_bounds__(kTestThreads) ms_global_mask(const Problem p, unsigned* __restrict__ masks) {
    const Keyframe keyframe = p.keyframes[blockIdx.y];
    const unsigned lane = threadIdx.x % kLanes;
    const unsigned first = (blockIdx.x * kTestThreads + threadIdx.x - lane) * kMaskPixels + lane;
    float points[kMaskPixels][3], confidence[kMaskPixels];
#pragma unroll
    for (unsigned k = 0; k < kMaskPixels; ++k) {
        const unsigned n = min(first + k * kLanes, p.pixels - 1);
        const float* at = keyframe.points + 3ull * n;
        for (int c = 0; c < 3; ++c) {
            points[k][c] = __ldg(at + c);
        }
        confidence[k] = __half2float(keyframe.confidence[n]);
    }
#pragma unroll
    for (unsigned k = 0; k < kMaskPixels; ++k) {
        const unsigned n = first + k * kLanes;
        const bool inside = n < p.pixels;
        const bool trusted = inside && confidence[k] > p.confidence;
        const bool placed = inside && ms::has_place(points[k]);
        const bool target = placed && trusted && points[k][2] > p.depth;
        bool movable = placed;
        if (p.calibrated != 0) {
            float constrained[3];
            on_ray(p, n, points[k][2], constrained);
            movable = inside && ms::has_place(constrained);
        }
        const unsigned words[kMasks] = {__ballot_sync(kAllLanes, trusted), __ballot_sync(kAllLanes, movable),
                                        __ballot_sync(kAllLanes, target)};
        const unsigned word = n / kLanes;
        if (lane == 0 && word < p.words) {
            unsigned* out = masks + static_cast<unsigned long long>(blockIdx.y) * kMasks * p.words + word;
            for (unsigned m = 0; m < kMasks; ++m) {
                out[static_cast<unsigned long long>(m) * p.words] = words[m];
            }
        }
    }
}

namespace {

// kQuad matches in a row, from pixel `n`.
struct Quad {
    unsigned index[kQuad];
    // Two in a word, the lower bits first, as in memory: unpacking while loading would wait for them. 0 beyond the last
    // pixel.
    unsigned packed[kQuad / 2];

    __device__ __forceinline__ float quality(unsigned k) const {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(packed[k / 2] >> k % 2 * 16)));
    }

    // Streamed, to keep the caches for the bits. `whole`: the arrays are aligned for vector loads.
    __device__ __forceinline__ void load(const Direction& d, unsigned n, unsigned pixels, bool whole) {
        if (whole && n + kQuad <= pixels) {
            const uint4 i = __ldcs(reinterpret_cast<const uint4*>(d.index + n));
            const uint2 q = __ldcs(reinterpret_cast<const uint2*>(d.quality + n));
            index[0] = i.x, index[1] = i.y, index[2] = i.z, index[3] = i.w;
            packed[0] = q.x, packed[1] = q.y;
            return;
        }
        packed[0] = packed[1] = 0;
#pragma unroll
        for (unsigned k = 0; k < kQuad; ++k) {
            const unsigned at = min(n + k, pixels - 1);
            index[k] = __ldcs(d.index + at);
            const unsigned bits = stream_bits(d.quality + at);
            packed[k / 2] |= (at == n + k ? bits : 0) << k % 2 * 16;
        }
    }
};

__device__ __forceinline__ bool starts_at(const void* p, unsigned bytes) {
    return reinterpret_cast<unsigned long long>(p) % bytes == 0;
}

} // namespace

// gates[direction][words]: a bit for each pixel of j whose match passes every gate that does not depend on a pose.
// Matches that would pass but point outside the image are counted in `outside`. A direction has `blocks` of kTestWords
// words. A thread issues all its reads before it uses one: 48 B in flight, with 2048 threads per multiprocessor twice
// what hides the latency of memory.
extern "C" __global__ void __launch_bounds__(kTestThreads)
    ms_global_gate(const Problem p, const unsigned* __restrict__ masks, unsigned blocks, unsigned* __restrict__ gates,
                   unsigned long long* __restrict__ outside) {
    // Threads of a word.
    constexpr unsigned kSharers = kLanes / kQuad;
    const unsigned direction = blockIdx.x / blocks;
    const unsigned lane = threadIdx.x % kLanes;
    const unsigned first = (blockIdx.x - direction * blocks) * kTestWords * kLanes +
                           (threadIdx.x - lane) * kQuad * kQuads + lane * kQuad;
    const Direction d = p.directions[direction];
    const bool whole = starts_at(d.index, 16) && starts_at(d.quality, 8);
    Quad quads[kQuads];
#pragma unroll
    for (unsigned g = 0; g < kQuads; ++g) {
        quads[g].load(d, first + g * kQuad * kLanes, p.pixels, whole);
    }
    const unsigned* from = masks + static_cast<unsigned long long>(d.j) * kMasks * p.words;
    const unsigned* targets = masks + (static_cast<unsigned long long>(d.i) * kMasks + kTarget) * p.words;
    unsigned strays = 0;
#pragma unroll
    for (unsigned g = 0; g < kQuads; ++g) {
        const Quad& quad = quads[g];
        const unsigned word = first / kLanes + g * kQuad;
        const unsigned shift = lane % kSharers * kQuad;
        const unsigned at = min(word, p.words - 1);
        const unsigned trusted = __ldg(from + kTrusted * p.words + at) >> shift;
        const unsigned movable = __ldg(from + kMovable * p.words + at) >> shift;
        unsigned bits = 0;
#pragma unroll
        for (unsigned k = 0; k < kQuad; ++k) {
            const float quality = quad.quality(k);
            const unsigned m = quad.index[k];
            const bool wanted = quality > p.quality && (trusted >> k & 1) != 0;
            const bool inside = m < p.pixels;
            strays += wanted && !inside;
            const bool good = wanted && inside && quality > 0.0f && quality < INFINITY && (movable >> k & 1) != 0;
            // Any index reads a word of this keyframe.
            const unsigned target = __ldg(targets + (inside ? m / kLanes : 0));
            bits |= (good && (target >> (m % kLanes) & 1) != 0 ? 1u : 0u) << (shift + k);
        }
#pragma unroll
        for (unsigned step = kSharers / 2; step > 0; step /= 2) {
            bits |= __shfl_xor_sync(kAllLanes, bits, step);
        }
        if (lane % kSharers == 0 && word < p.words) {
            gates[static_cast<unsigned long long>(direction) * p.words + word] = bits;
        }
    }
    strays = __reduce_add_sync(kAllLanes, strays);
    if (lane == 0 && strays != 0) {
        atomicAdd(outside, static_cast<unsigned long long>(strays)); // integers: their order means nothing
    }
}

// relative[direction] = T_i^-1 T_j, in f64, because positions far from the origin cancel. One thread per direction.
extern "C" __global__ void __launch_bounds__(kTestThreads)
    ms_global_relate(const Problem p, const double* __restrict__ poses, unsigned directions, ms::Pose* __restrict__ relative) {
    const unsigned direction = blockIdx.x * kTestThreads + threadIdx.x;
    if (direction >= directions) {
        return;
    }
    const Direction d = p.directions[direction];
    const ms::Sim3 i = ms::sim3_load(poses + 8ull * d.i), j = ms::sim3_load(poses + 8ull * d.j);
    relative[direction] = ms::sim3_pose(ms::sim3_compose(ms::sim3_inverse(i), j));
}

// Sums of kWarps * kTile pixels of one direction: block b of direction d is blockIdx.x = d * chunks + b, and so are its
// results. Edges that are not active are left out.
#define MS_GLOBAL_SUMS(name, residents, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(kWarps* kLanes, residents)                                              \
        name(const Problem p, const unsigned* gates, const ms::Pose* relative, const unsigned char* active, float* sums, \
             unsigned* used) {                                                                                           \
        linearise<__VA_ARGS__>(p, gates, relative, active, sums, used);                                                  \
    }

MS_GLOBAL_SUMS(ms_global_rays, kResidentBlocks, RayOrPoint<RaySums>, false)
MS_GLOBAL_SUMS(ms_global_points, kResidentBlocks, RayOrPoint<PointSums>, false)
MS_GLOBAL_SUMS(ms_global_pixels, kResidentBlocks, Calibrated, false)
MS_GLOBAL_SUMS(ms_global_rays_cost, kCostBlocks, RayOrPoint<RaySums>, true)
MS_GLOBAL_SUMS(ms_global_points_cost, kCostBlocks, RayOrPoint<PointSums>, true)
MS_GLOBAL_SUMS(ms_global_pixels_cost, kCostBlocks, Calibrated, true)

#undef MS_GLOBAL_SUMS

// The equations of edge blockIdx.x in world poses, from the sums of its two directions: A^T H A and A^T g of each
// direction with A = Ad(T_i^-1); the second direction has i and j exchanged. f64: the last stage of the sums. One block
// per edge; `out` is host memory.
extern "C" __global__ void __launch_bounds__(kReduceThreads)
    ms_global_reduce(const Problem p, const double* __restrict__ poses, const unsigned char* __restrict__ active,
                     const float* __restrict__ sums, const unsigned* __restrict__ used, unsigned model,
                     Equations* __restrict__ out) {
    __shared__ double parts[4][kSums];
    __shared__ unsigned long long matches[4];
    // Rows and columns as in `kPlaces`: the gradient is column 7, the robust cost (7, 0).
    __shared__ double h[2][8][8];
    __shared__ double a[2][7][7];
    __shared__ double ha[2][7][7];
    const unsigned edge = blockIdx.x, t = threadIdx.x;
    const unsigned lane = t % kLanes, warp = t / kLanes;
    double* entries = out[edge].hessian;
    if (active[edge] == 0) {
        if (t < 28) {
            entries[t] = 0.0;
        } else if (t < 35) {
            out[edge].gradient[t - 28] = 0.0;
        } else if (t == 35) {
            out[edge].robust = 0.0;
        } else if (t == 36) {
            out[edge].matches = 0;
        }
        return;
    }
    if (warp < 4) {
        const unsigned long long direction = 2ull * edge + warp / 2;
        const unsigned middle = p.chunks / 2;
        const unsigned begin = warp % 2 == 0 ? 0 : middle, end = warp % 2 == 0 ? middle : p.chunks;
        const float* column = sums + direction * p.chunks * kSums + lane;
        double sum = 0.0;
#pragma unroll 8
        for (unsigned c = begin; c < end; ++c) {
            sum += static_cast<double>(column[static_cast<unsigned long long>(c) * kSums]);
        }
        unsigned long long count = 0;
        for (unsigned c = begin + lane; c < end; c += kLanes) {
            count += used[direction * p.chunks + c];
        }
        for (unsigned step = kLanes / 2; step > 0; step /= 2) {
            count += __shfl_xor_sync(kAllLanes, count, step);
        }
        parts[warp][lane] = sum;
        if (lane == 0) {
            matches[warp] = count;
        }
    } else if (lane == 0) {
        const Direction d = p.directions[2ull * edge + (warp - 4)];
        inverse_adjoint(ms::sim3_load(poses + 8ull * d.i), a[warp - 4]);
    }
    for (unsigned k = t; k < 128; k += kReduceThreads) {
        h[k / 64][k / 8 % 8][k % 8] = 0.0;
    }
    __syncthreads();
    if (t < 2 * kSums) {
        const unsigned d = t / kSums, k = t % kSums;
        const unsigned place = kPlaces[model][k];
        const unsigned r = place / 8, c = place % 8;
        const double value = parts[2 * d][k] + parts[2 * d + 1][k];
        if (place != kNoPlace) {
            h[d][r][c] = value;
            if (c < 7 && r < 7) {
                h[d][c][r] = value;
            }
        }
    }
    __syncthreads();
    if (model == kRays && t < 2) {
        h[t][2][5] = h[t][5][2] = -(h[t][0][3] + h[t][1][4]);
    }
    __syncthreads();
    const unsigned d = t / 96, k = t % 96;
    if (k < 49) {
        const unsigned r = k / 7, c = k % 7;
        double sum = 0.0;
        for (unsigned e = 0; e < 7; ++e) {
            sum = fma(h[d][r][e], a[d][e][c], sum);
        }
        ha[d][r][c] = sum;
    }
    __syncthreads();
    if (t < 28) {
        unsigned r = 0, c = t;
        while (c >= 7 - r) {
            c -= 7 - r;
            ++r;
        }
        c += r;
        double sum = 0.0;
        for (unsigned side = 0; side < 2; ++side) {
            for (unsigned e = 0; e < 7; ++e) {
                sum = fma(a[side][e][r], ha[side][e][c], sum);
            }
        }
        entries[t] = sum;
    } else if (t < 35) {
        const unsigned r = t - 28;
        double there = 0.0, back = 0.0;
        for (unsigned e = 0; e < 7; ++e) {
            there = fma(a[0][e][r], h[0][e][7], there);
            back = fma(a[1][e][r], h[1][e][7], back);
        }
        out[edge].gradient[r] = there - back;
    } else if (t == 35) {
        out[edge].robust = h[0][7][0] + h[1][7][0];
    } else if (t == 36) {
        out[edge].matches = (matches[0] + matches[1]) + (matches[2] + matches[3]);
    }
}
