// Pixel matching (docs/algorithm.md, Matching): ray image, iterative projective search with occlusion check, descriptor
// refinement, match quality, and the tracker's gates. Equals src/compute/matching bit for bit: compile with -fmad=false
// and IEEE division and roots.
//
// Limits at 512x384 (N = 196,608 pixels), 24 channels, radius 3, 5 levels, on an H200 (132 SMs, 1.8 GHz, 128 B a clock
// of first-level cache each: 30 TB/s; 4.8 TB/s of memory; 34 T separate f32 operations a second):
// * rays: 12 B read, 48 B written a pixel: 12 MB, 2.5 us of memory.
// * search: 192 B of cached taps per sample, 1 to 11 samples per pixel: at most 0.4 GB, 14 us; latency dominates.
// * refinement: 245 candidates of 96 B a pixel are 4.6 GB out of the first-level cache, 153 us, and 2.3 G operations,
//   67 us. Two lanes share a pixel, lane h with channels k where k mod 8 is in 4h..4h+3, which is one half of the
//   defined sum ((0+1)+(2+3)) + ((4+5)+(6+7)): a candidate is then three 16-byte loads a lane and one addition between
//   the lanes; the four pixels of eight lanes are 96 B apart, which touches each bank once, without another layout.
//   One thread per pixel would hit each bank twice; eight lanes per pixel would issue four times the loads.
//   A larger tile refills the first-level cache less often from the second level: on one NVIDIA H200 smooth matches
//   took 209 us with tiles of 32x16 pixels, one per multiprocessor, 223 with two of 16x16, 260 with four of 16x8;
//   scattered ones 334, 351 and 387.
// * quality, gates and distinct matches are part of the refinement's last step: 30 B per pixel, 1 us; half
//   of it for an edge, which has no gates and qualities of 2 B.

#include "index.cuh"
#include "points.cuh"

#include <cuda_fp16.h>

namespace {

constexpr unsigned kFull = 0xffffffffu;

// ---------------------------------------------------------------------------------------------------------------------
// Ray image: [R(3), 0, Gu(3), 0, Gv(3), 0] a pixel.

constexpr int kRayTileW = 32, kRayTileH = 8;

// A neighbour's index, reflected at the border: -1 becomes 1, n becomes n - 2. Farther out (tiles that reach beyond the
// image; the result is not used) any index inside.
__device__ __forceinline__ int reflect(int i, int n) {
    const int last = n - 1;
    i = i < 0 ? -i : (i > last ? 2 * last - i : i);
    return max(0, min(i, last));
}

// X / max(|X|, 1e-12).
__device__ __forceinline__ float3 unit(float3 p) {
    const float norm = fmaxf(sqrtf(p.x * p.x + p.y * p.y + p.z * p.z), 1e-12f);
    return make_float3(p.x / norm, p.y / norm, p.z / norm);
}

__device__ __forceinline__ float scharr(float p0, float p1, float p2, float m0, float m1, float m2) {
    return (3.0f * (p0 - m0) + 10.0f * (p1 - m1) + 3.0f * (p2 - m2)) * (1.0f / 32.0f);
}

} // namespace

// Exact counts of one call.
struct MatchCounts {
    unsigned valid;   // matches that may be used, by geometry alone
    unsigned refined; // of those, moved by the descriptors
    unsigned good;    // quality above q_conf
    unsigned used;    // past every gate
    unsigned unique;  // distinct target pixels of valid matches
    unsigned reserved[3];
};

// Fills `rays` (N x 12 floats) from `points` (N x 3), and clears the counters of later launches: `seen`, one bit per
// pixel in whole words (may be null), and `counts`. Images narrower or lower than 3 pixels have no rays.
extern "C" __global__ void __launch_bounds__(kRayTileW* kRayTileH)
    ms_match_rays(const float* __restrict__ points, unsigned width, unsigned height, float4* __restrict__ rays,
                  unsigned* __restrict__ seen, MatchCounts* __restrict__ counts) {
    __shared__ float3 tile[kRayTileH + 2][kRayTileW + 2];
    __shared__ float4 out[kRayTileH][kRayTileW * 3];
    const int thread = threadIdx.x;
    const unsigned long long block = static_cast<unsigned long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned long long number = block * (kRayTileW * kRayTileH) + thread;
    const unsigned long long pixels = static_cast<unsigned long long>(width) * height;
    // There are at least as many threads as pixels, so also as words.
    if (seen != nullptr && number < (pixels + 31) / 32) {
        seen[number] = 0;
    }
    if (number < sizeof(MatchCounts) / sizeof(unsigned)) {
        reinterpret_cast<unsigned*>(counts)[number] = 0;
    }
    if (width < 3 || height < 3) {
        return;
    }
    const int u0 = blockIdx.x * kRayTileW, v0 = blockIdx.y * kRayTileH;
    for (int i = thread; i < (kRayTileW + 2) * (kRayTileH + 2); i += kRayTileW * kRayTileH) {
        const int x = i % (kRayTileW + 2), y = i / (kRayTileW + 2);
        const int u = reflect(u0 + x - 1, width), v = reflect(v0 + y - 1, height);
        tile[y][x] = unit(ms::point(points, static_cast<size_t>(v) * width + u));
    }
    __syncthreads();
    const int x = thread % kRayTileW, y = thread / kRayTileW;
    {
        const float3 a = tile[y][x], b = tile[y][x + 1], c = tile[y][x + 2];
        const float3 d = tile[y + 1][x], e = tile[y + 1][x + 1], f = tile[y + 1][x + 2];
        const float3 g = tile[y + 2][x], h = tile[y + 2][x + 1], i = tile[y + 2][x + 2];
        out[y][3 * x] = make_float4(e.x, e.y, e.z, 0.0f);
        out[y][3 * x + 1] = make_float4(scharr(c.x, f.x, i.x, a.x, d.x, g.x), scharr(c.y, f.y, i.y, a.y, d.y, g.y),
                                        scharr(c.z, f.z, i.z, a.z, d.z, g.z), 0.0f);
        out[y][3 * x + 2] = make_float4(scharr(g.x, h.x, i.x, a.x, b.x, c.x), scharr(g.y, h.y, i.y, a.y, b.y, c.y),
                                        scharr(g.z, h.z, i.z, a.z, b.z, c.z), 0.0f);
    }
    // One warp wrote and reads one row of `out`.
    __syncwarp();
    const int v = v0 + y;
    if (v >= static_cast<int>(height)) {
        return;
    }
    const int columns = min(kRayTileW, static_cast<int>(width) - u0);
    float4* row = rays + (static_cast<size_t>(v) * width + u0) * 3;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const int at = x + k * kRayTileW;
        if (at < 3 * columns) {
            row[at] = out[y][at];
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Projective search.

struct SearchArgs {
    const float4* rays;         // of view 1
    const float* target_points; // N x 3, view 1
    const float* query_points;  // N x 3, view 2, in the frame of view 1
    const unsigned* start;      // N earlier matches, or null; may be `index` itself
    const unsigned* use_start;  // null, or a flag: 0 means that `start` is not used
    unsigned* index;            // N
    unsigned char* valid;       // N
    unsigned width, height, max_iter;
    float lambda_init, convergence, noise, distance;
    unsigned reserved;
};

namespace {

__device__ __forceinline__ float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

// Clamps to [1, last]; NaN becomes 1.
__device__ __forceinline__ float clamp_to(float x, float last) { return fminf(fmaxf(x, 1.0f), last); }

struct Look {
    float3 gu, gv; // gradients
    float3 error;  // renormalised ray minus target direction
    float cost;    // its squared length
};

__device__ __forceinline__ float3 blend(float4 w, float4 a, float4 b, float4 c, float4 d) {
    return make_float3((w.x * a.x + w.y * b.x) + (w.z * c.x + w.w * d.x),
                       (w.x * a.y + w.y * b.y) + (w.z * c.y + w.w * d.y),
                       (w.x * a.z + w.y * b.z) + (w.z * c.z + w.w * d.z));
}

// 1 <= u <= width - 2, the same for v, so that all four taps are inside.
__device__ __forceinline__ Look look(const float4* __restrict__ rays, unsigned width, float u, float v, float3 p) {
    const unsigned u0 = static_cast<unsigned>(u), v0 = static_cast<unsigned>(v);
    const float du = u - static_cast<float>(u0), dv = v - static_cast<float>(v0);
    const float4* top = rays + (static_cast<size_t>(v0) * width + u0) * 3;
    const float4* bottom = top + static_cast<size_t>(width) * 3;
    const float4 w =
        make_float4((1.0f - du) * (1.0f - dv), du * (1.0f - dv), (1.0f - du) * dv, du * dv);
    const float3 r = blend(w, top[0], top[3], bottom[0], bottom[3]);
    Look l;
    l.gu = blend(w, top[1], top[4], bottom[1], bottom[4]);
    l.gv = blend(w, top[2], top[5], bottom[2], bottom[5]);
    const float inverse = 1.0f / sqrtf(r.x * r.x + r.y * r.y + r.z * r.z);
    l.error = make_float3(r.x * inverse - p.x, r.y * inverse - p.y, r.z * inverse - p.z);
    l.cost = dot(l.error, l.error);
    return l;
}

} // namespace

// One thread a pixel of view 2. `index` gets the truncated position, `valid` whether the search converged on a point
// close to the query's.
extern "C" __global__ void __launch_bounds__(128) ms_match_search(const SearchArgs a) {
    const unsigned long long pixels = static_cast<unsigned long long>(a.width) * a.height;
    const unsigned long long n = ms::thread_index();
    if (n >= pixels) {
        return;
    }
    unsigned from = static_cast<unsigned>(n);
    if (a.start != nullptr && (a.use_start == nullptr || *a.use_start != 0)) {
        const unsigned earlier = a.start[n];
        from = earlier < pixels ? earlier : from;
    }
    if (a.width < 3 || a.height < 3) {
        a.index[n] = from;
        a.valid[n] = 0;
        return;
    }
    const float u_last = static_cast<float>(a.width - 2), v_last = static_cast<float>(a.height - 2);
    float u = clamp_to(static_cast<float>(from % a.width), u_last);
    float v = clamp_to(static_cast<float>(from / a.width), v_last);
    const float3 x = ms::point(a.query_points, n);
    bool converged = false;
    if (ms::usable(x)) {
        const float3 p = unit(x);
        float lambda = a.lambda_init;
        Look here = look(a.rays, a.width, u, v, p);
        // Comparisons that NaN fails: a NaN cost is never improved.
        bool running = here.cost >= a.noise;
        for (unsigned k = 0; running && k < a.max_iter; ++k) {
            // Damped Gauss-Newton step by the adjugate.
            const float aa = dot(here.gu, here.gu) + lambda;
            const float bb = dot(here.gu, here.gv);
            const float dd = dot(here.gv, here.gv) + lambda;
            const float gx = -dot(here.gu, here.error), gy = -dot(here.gv, here.error);
            const float inverse = 1.0f / (aa * dd - bb * bb);
            const float new_u = clamp_to(u + (dd * gx - bb * gy) * inverse, u_last);
            const float new_v = clamp_to(v + (aa * gy - bb * gx) * inverse, v_last);
            const Look there = look(a.rays, a.width, new_u, new_v, p);
            if (there.cost < here.cost) {
                u = new_u;
                v = new_v;
                lambda *= 0.1f;
                here = there;
                running = here.cost >= a.noise;
            } else {
                lambda *= 10.0f;
            }
        }
        converged = a.max_iter > 0 && here.cost < a.convergence;
    }
    const unsigned pixel = static_cast<unsigned>(v) * a.width + static_cast<unsigned>(u);
    const float3 y = ms::point(a.target_points, pixel);
    const float3 apart = make_float3(y.x - x.x, y.y - x.y, y.z - x.z);
    const bool close = sqrtf(dot(apart, apart)) < a.distance;
    a.index[n] = pixel;
    a.valid[n] = converged && close && ms::usable(y);
}

// ---------------------------------------------------------------------------------------------------------------------
// Refinement, quality, gates.

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

struct RefineArgs {
    const float* target_points;        // N x 3
    const float4* target_descriptors;  // N x 4 quads, 16-byte aligned
    const float4* query_descriptors;   // the same
    const float* target_quality;       // N descriptor confidences, or null: no quality, no gates
    const float* query_quality;        // the same
    const float* target_confidence;    // N point confidences of view 1, or null: no gates
    const float* key_confidence;       // N accumulated point confidences of the keyframe, with the former
    const unsigned* key_count;         // how many estimates they accumulate
    unsigned* index;                   // N, in and out
    const unsigned char* valid;        // N
    float* quality;                    // N, or null
    __half* stored;                    // N: the same as an edge keeps it, rounded to nearest; or null
    float* gated;                      // N, or null
    unsigned* seen;                    // bitmap of target pixels, cleared; or null
    MatchCounts* counts;               // cleared
    unsigned width, height;
    unsigned quads;   // 16-byte groups of a descriptor, even
    unsigned radius;  // at most max(width, height)
    unsigned levels;  // the widest step; 0: no refinement
    unsigned all;     // refine invalid pixels too
    float q_conf, c_conf;
};

namespace {

// Pixels of a block; a warp has 16 of a row. More registers leave room for fewer.
constexpr unsigned kTileW = 32, kTileH = 16;
constexpr unsigned kAnyTileW = 16, kAnyTileH = 16;
// Candidates of a column that are scored together: all of radius 3.
constexpr unsigned kGroup = 7;

// The candidates of one level: a grid in the image, `step` pixels apart.
struct Window {
    unsigned origin; // upper left pixel
    unsigned columns, rows;
};

// The best candidate so far; `order` is its place in the order of search: column times rows, plus row.
struct Best {
    float score;
    unsigned order;
};

__device__ __forceinline__ float4 fold(float4 sum, float4 a, float4 b) {
    return make_float4(sum.x + a.x * b.x, sum.y + a.y * b.y, sum.z + a.z * b.z, sum.w + a.w * b.w);
}

// This lane's half of a score.
template <unsigned kQuads>
__device__ __forceinline__ float half_score(const float4* query, const float4* __restrict__ target, unsigned quads) {
    const float4 q = query[0], t = target[0];
    float4 sum = make_float4(q.x * t.x, q.y * t.y, q.z * t.z, q.w * t.w);
    if constexpr (kQuads > 0) {
#pragma unroll
        for (unsigned k = 2; k < kQuads; k += 2) {
            sum = fold(sum, query[k / 2], target[k]);
        }
    } else {
        for (unsigned k = 2; k < quads; k += 2) {
            sum = fold(sum, query[k], target[k]);
        }
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

// Row `r` of a window; the last one again beyond its end, which never beats what was before.
__device__ __forceinline__ unsigned row_of(const Window& w, unsigned r) { return min(r, w.rows - 1); }

template <unsigned kQuads> struct BytesOf {
    using Type = unsigned;
};
template <> struct BytesOf<0> {
    using Type = size_t;
};
template <unsigned kQuads> using Bytes = typename BytesOf<kQuads>::Type;

// Scans a window, columns from the left, rows from the top; lane 0 of a pair judges the upper half of each group of
// seven, lane 1 the lower. `best` is the best so far. All lanes of a warp call it together; `columns` is
// the maximum over the lanes, `stride` the same for rows in whole groups. A checked scan also tests whether a candidate
// may be a match.
template <unsigned kQuads, bool kChecked>
__device__ __forceinline__ Best scan(const RefineArgs& a, const float4* query, Window window, unsigned step,
                                     unsigned columns, unsigned stride, Best best) {
    const unsigned half = threadIdx.x & 1;
    const unsigned quads = kQuads > 0 ? kQuads : a.quads;
    // Offset from one row to the next, and from one column. The host ensures that 32 bits hold them for 24 channels.
    const Bytes<kQuads> down = static_cast<Bytes<kQuads>>(step) * a.width * quads * sizeof(float4);
    const Bytes<kQuads> right = static_cast<Bytes<kQuads>>(step) * quads * sizeof(float4);
    const char* column = reinterpret_cast<const char*>(a.target_descriptors + half) +
                         static_cast<size_t>(window.origin) * quads * sizeof(float4);
    unsigned order = 3 * half;
    for (unsigned i = 0; i < columns; ++i) {
        for (unsigned first = 0; first < (kQuads > 0 ? kGroup : stride); first += kGroup) {
            float sums[kGroup];
#pragma unroll
            for (unsigned r = 0; r < kGroup; ++r) {
                const size_t below = static_cast<size_t>(row_of(window, first + r)) * down;
                sums[r] = half_score<kQuads>(query, reinterpret_cast<const float4*>(column + below), quads);
            }
#pragma unroll
            for (unsigned r = 0; r < (kGroup + 1) / 2; ++r) {
                const float mine = half ? sums[r + 3] : sums[r];
                const float other = half ? sums[r] : sums[r + 3];
                const float total = mine + __shfl_xor_sync(kFull, other, 1);
                bool better = total > best.score;
                if constexpr (kChecked) {
                    if (better) {
                        const unsigned row = row_of(window, first + 3 * half + r);
                        const unsigned pixel = window.origin + min(i, window.columns - 1) * step + row * step * a.width;
                        better = isfinite(total) && ms::usable(ms::point(a.target_points, pixel));
                    }
                }
                if (better) {
                    best.score = total;
                    best.order = order + r;
                }
            }
            order += kGroup;
        }
        if (i + 1 < window.columns) {
            column += right;
        }
    }
    // The better of both lanes; the earlier of equals.
    const float other_score = __shfl_xor_sync(kFull, best.score, 1);
    const unsigned other_order = __shfl_xor_sync(kFull, best.order, 1);
    if (other_score > best.score || (other_score == best.score && other_order < best.order)) {
        best = {other_score, other_order};
    }
    return best;
}

// Steps from `at` towards 0, at most `radius`, that stay inside.
__device__ __forceinline__ unsigned steps_inside(unsigned at, unsigned radius, unsigned step) {
    return at >= radius * step ? radius : at / step;
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

// Two lanes a pixel of view 2, blocks of kWidth x kHeight pixels.
template <unsigned kQuads, unsigned kWidth, unsigned kHeight>
__device__ __forceinline__ void refine(const RefineArgs& a) {
    __shared__ unsigned totals[5];
    if (threadIdx.x < 5) {
        totals[threadIdx.x] = 0;
    }
    __syncthreads();

    const unsigned half = threadIdx.x & 1;
    const unsigned px = blockIdx.x * kWidth + threadIdx.x % (2 * kWidth) / 2;
    const unsigned py = blockIdx.y * kHeight + threadIdx.x / (2 * kWidth);
    const bool inside = px < a.width && py < a.height;
    const unsigned n = inside ? py * a.width + px : 0;
    unsigned u, v;
    {
        // A lane outside reads nothing: the owner of pixel 0 may be writing it.
        const unsigned found = inside ? a.index[n] : 0;
        v = found / a.width;
        u = found - v * a.width;
    }
    const bool active = inside && (a.all != 0 || a.valid[n] != 0);

    if (a.levels > 0 && __any_sync(kFull, active)) {
        const unsigned quads = kQuads > 0 ? kQuads : a.quads;
        const float4* own = a.query_descriptors + static_cast<size_t>(n) * quads + half;
        float4 kept[kQuads > 0 ? kQuads / 2 : 1];
        if constexpr (kQuads > 0) {
#pragma unroll
            for (unsigned k = 0; k < kQuads / 2; ++k) {
                kept[k] = own[2 * k];
            }
        }
        const float4* query = kQuads > 0 ? kept : own;
        const unsigned radius = active ? a.radius : 0;
        // No score exceeds infinity, so this pixel stays where it is.
        float score = active ? 0.0f : __int_as_float(0x7f800000);
        for (unsigned step = a.levels; step > 0; --step) {
            // (u, v) becomes the window's upper left corner; `here` is where in the order of search it was.
            const unsigned left = steps_inside(u, radius, step);
            const unsigned up = steps_inside(v, radius, step);
            Window window = {0, left + steps_inside(a.width - 1 - u, radius, step) + 1,
                             up + steps_inside(a.height - 1 - v, radius, step) + 1};
            u -= left * step;
            v -= up * step;
            window.origin = v * a.width + u;
            const unsigned columns = __reduce_max_sync(kFull, window.columns);
            unsigned stride = kGroup;
            if constexpr (kQuads == 0) {
                stride = (__reduce_max_sync(kFull, window.rows) + kGroup - 1) / kGroup * kGroup;
            }
            const Best here = {score, left * stride + up};
            Best best = scan<kQuads, false>(a, query, window, step, columns, stride, here);

            // Hardly any best candidate is unusable, so that is tested only now; then the level is repeated.
            const auto place = [&](unsigned order) {
                const unsigned column = order / stride, row = row_of(window, order - column * stride);
                return make_uint2(column * step, row * step);
            };
            uint2 at = place(best.order);
            bool refused = false;
            if (best.score > here.score) {
                const unsigned pixel = window.origin + at.y * a.width + at.x;
                refused = !(isfinite(best.score) && ms::usable(ms::point(a.target_points, pixel)));
            }
            if (__any_sync(kFull, refused)) {
                const Best again = scan<kQuads, true>(a, query, window, step, columns, stride, here);
                best = refused ? again : best;
                at = place(best.order);
            }
            score = best.score;
            u += at.x;
            v += at.y;
        }
    }

    // Lane 0 of each pair finishes its pixel. These two are read again, because the loops above need the registers.
    const bool valid = inside && *const_cast<const volatile unsigned char*>(a.valid + n) != 0;
    const bool ok = valid && half == 0;
    const unsigned end = v * a.width + u;
    const bool moved = ok && *const_cast<const volatile unsigned*>(a.index + n) != end;
    bool good = false, used = false;
    if (inside && half == 0) {
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
    count(&totals[0], ok);
    count(&totals[1], moved);
    count(&totals[2], good);
    count(&totals[3], used);
    const unsigned valid_lanes = __ballot_sync(kFull, ok);
    if (a.seen != nullptr && ok) {
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
extern "C" __global__ void __launch_bounds__(2 * kTileW * kTileH, 1) ms_match_refine(const RefineArgs a) {
    refine<6, kTileW, kTileH>(a);
}

// Any number of channels that is a multiple of eight, any radius.
extern "C" __global__ void __launch_bounds__(2 * kAnyTileW * kAnyTileH, 1) ms_match_refine_any(const RefineArgs a) {
    refine<0, kAnyTileW, kAnyTileH>(a);
}
