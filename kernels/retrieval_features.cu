// From encoder tokens to an image's strongest whitened features (docs/algorithm.md, Place
// recognition, steps 1 and 2; CPU: src/compute/retrieval/whitening.rs).
//
// y = (x - m) p has about f64's precision without an f64 instruction: numbers are unevaluated sums of two f32 (48
// bits), and products are accumulated with their rounding errors (Ogita, Rump, Oishi, "Accurate sum and dot product",
// SIAM J. Sci. Comput. 26(6), 2005: Dot2). Plain f32 would differ from the CPU's f64 in the last bits of every feature,
// and sometimes in the word that a feature is assigned to.
//
// Limit: 12 instructions per product and T C^2 products: 9.7 G at 768 x 1024 tokens, 0.29 ms of one H200's 33 T/s. The
// bytes (T C features, 2 C^2 of the projection in two parts: 11 MB) are negligible.

#include <cub/block/block_scan.cuh>
#include <cuda_fp16.h>

#include "retrieval.cuh"

namespace {

using namespace ms::retrieval;

// s + e = a + b exactly (Knuth).
__device__ __forceinline__ void two_sum(float a, float b, float& s, float& e) {
    s = __fadd_rn(a, b);
    const float z = __fsub_rn(s, a);
    e = __fadd_rn(__fsub_rn(a, __fsub_rn(s, z)), __fsub_rn(b, z));
}

__device__ __forceinline__ bool is_finite(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }

} // namespace

// Clears the results of the last image.
extern "C" __global__ void __launch_bounds__(32) ms_retrieval_begin(Status* __restrict__ status) {
    if (threadIdx.x == 0) {
        *status = {kNone, kNone, 0, 0, 0, 0, 0};
    }
}

// features - mean as two parts, transposed: dst[c * padded_tokens + t], zero beyond `tokens` and `dim`. The features
// are tokens x dim, `half_features` unless that is null, else `features`. The mean comes in two parts too. Reports
// values that are not finite, and whether any is not zero. Grid (padded_tokens / 32, padded_dim / 32 rounded up), block
// (32, 8).
extern "C" __global__ void __launch_bounds__(256)
    ms_retrieval_centre(const __half* __restrict__ half_features, const float* __restrict__ features,
                        const float* __restrict__ mean_high, const float* __restrict__ mean_low, float* __restrict__ high,
                        float* __restrict__ low, unsigned tokens, unsigned padded_tokens, unsigned dim, unsigned padded_dim,
                        Status* __restrict__ status) {
    __shared__ float tile_high[32][33];
    __shared__ float tile_low[32][33];
    const unsigned first_token = blockIdx.x * 32;
    const unsigned first_component = blockIdx.y * 32;
    unsigned bad = kNone;
    unsigned nonzero = 0;
    for (unsigned r = threadIdx.y; r < 32; r += 8) {
        const unsigned t = first_token + r;
        const unsigned c = first_component + threadIdx.x;
        float h = 0.0f;
        float l = 0.0f;
        if (t < tokens && c < dim) {
            const unsigned long long at = static_cast<unsigned long long>(t) * dim + c;
            const float v = half_features != nullptr ? __half2float(half_features[at]) : features[at];
            if (!is_finite(v)) {
                bad = min(bad, t);
            }
            nonzero |= v != 0.0f;
            float s, e;
            two_sum(v, -mean_high[c], s, e);
            e = __fsub_rn(e, mean_low[c]);
            h = __fadd_rn(s, e);
            l = __fsub_rn(e, __fsub_rn(h, s));
        }
        tile_high[r][threadIdx.x] = h;
        tile_low[r][threadIdx.x] = l;
    }
    __syncthreads();
    for (unsigned r = threadIdx.y; r < 32; r += 8) {
        const unsigned c = first_component + r;
        const unsigned t = first_token + threadIdx.x;
        if (c < padded_dim && t < padded_tokens) {
            const unsigned long long at = static_cast<unsigned long long>(c) * padded_tokens + t;
            high[at] = tile_high[threadIdx.x][r];
            low[at] = tile_low[threadIdx.x][r];
        }
    }
    bad = __reduce_min_sync(0xffffffffu, bad);
    nonzero = __reduce_or_sync(0xffffffffu, nonzero);
    if (threadIdx.x == 0) {
        if (bad != kNone) {
            atomicMin(&status->feature_row, bad);
        }
        if (nonzero) {
            atomicOr(&status->nonzero, 1u);
        }
    }
}

// dst = centred x projection. `high` and `low` are padded_dim x padded_tokens, written by the kernel before; the two
// parts of the projection are padded_dim x padded_columns; dst is tokens x dim. Grid (padded_tokens / 32,
// padded_columns / 64); padded_tokens is a multiple of 32, padded_columns of 64, padded_dim of 16.
extern "C" __global__ void __launch_bounds__(128)
    ms_retrieval_whiten(const float* __restrict__ high, const float* __restrict__ low, const float* __restrict__ projection_high,
                        const float* __restrict__ projection_low, float* __restrict__ dst, unsigned tokens,
                        unsigned padded_tokens, unsigned dim, unsigned padded_dim, unsigned padded_columns,
                        Status* __restrict__ status) {
    constexpr unsigned kRows = 32;
    constexpr unsigned kColumns = 64;
    // [stage][part][component][row or column]
    __shared__ alignas(16) float a[2][2][kStep][kRows];
    __shared__ alignas(16) float b[2][2][kStep][kColumns];
    const unsigned first_row = blockIdx.x * kRows;
    const unsigned first_column = blockIdx.y * kColumns;
    const unsigned thread = threadIdx.x;
    const unsigned row = thread / 16 * 4;
    const unsigned column = thread % 16 * 4;

    const auto load = [&](unsigned stage, unsigned start) {
        // 16 components of 32 rows are one 16-byte access of each thread and part, of 64 columns two.
        const unsigned k = thread / 8;
        const unsigned r = thread % 8 * 4;
        const unsigned long long from = static_cast<unsigned long long>(start + k) * padded_tokens + first_row + r;
        copy16(&a[stage][0][k][r], high + from);
        copy16(&a[stage][1][k][r], low + from);
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned kb = half * 8 + thread / 16;
            const unsigned long long at = static_cast<unsigned long long>(start + kb) * padded_columns + first_column + column;
            copy16(&b[stage][0][kb][column], projection_high + at);
            copy16(&b[stage][1][kb][column], projection_low + at);
        }
        copies_commit();
    };

    float sum[4][4] = {};
    float rest[4][4] = {};
    load(0, 0);
    const unsigned steps = padded_dim / kStep;
    for (unsigned step = 0; step < steps; ++step) {
        const unsigned stage = step % 2;
        if (step + 1 < steps) {
            load(1 - stage, (step + 1) * kStep);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
#pragma unroll 4
        for (unsigned k = 0; k < kStep; ++k) {
            const float4 ah4 = *reinterpret_cast<const float4*>(&a[stage][0][k][row]);
            const float4 al4 = *reinterpret_cast<const float4*>(&a[stage][1][k][row]);
            const float4 bh4 = *reinterpret_cast<const float4*>(&b[stage][0][k][column]);
            const float4 bl4 = *reinterpret_cast<const float4*>(&b[stage][1][k][column]);
            const float ah[4] = {ah4.x, ah4.y, ah4.z, ah4.w};
            const float al[4] = {al4.x, al4.y, al4.z, al4.w};
            const float bh[4] = {bh4.x, bh4.y, bh4.z, bh4.w};
            const float bl[4] = {bl4.x, bl4.y, bl4.z, bl4.w};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
#pragma unroll
                for (unsigned j = 0; j < 4; ++j) {
                    const float p = __fmul_rn(ah[i], bh[j]);
                    float e = __fmaf_rn(ah[i], bh[j], -p);
                    e = __fmaf_rn(ah[i], bl[j], e);
                    e = __fmaf_rn(al[i], bh[j], e);
                    float lost;
                    two_sum(sum[i][j], p, sum[i][j], lost);
                    rest[i][j] = __fadd_rn(rest[i][j], __fadd_rn(lost, e));
                }
            }
        }
        // The rest stays small beside the sum, so the rounding errors of its own additions are negligible.
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                two_sum(sum[i][j], rest[i][j], sum[i][j], rest[i][j]);
            }
        }
        __syncthreads();
    }

    unsigned bad = kNone;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned t = first_row + row + i;
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
            const unsigned c = first_column + column + j;
            if (t < tokens && c < dim) {
                // The last two_sum left the rounded total in `sum`.
                const float y = sum[i][j];
                if (!is_finite(y)) {
                    bad = min(bad, t);
                }
                dst[static_cast<unsigned long long>(t) * dim + c] = y;
            }
        }
    }
    bad = __reduce_min_sync(0xffffffffu, bad);
    if (bad != kNone && thread % 32 == 0) {
        atomicMin(&status->whitened_row, bad);
    }
}

// Squared L2 norms of rows (tokens x dim), in f64 and in the order of the components: the bits that the CPU compares.
// f64 is allowed here: T C additions (0.8 M) take 20 us even where f64 runs at 1/64 of f32's rate. Block: 128 threads
// for 32 rows.
extern "C" __global__ void __launch_bounds__(128)
    ms_retrieval_norms(const float* __restrict__ rows, unsigned tokens, unsigned dim, unsigned long long* __restrict__ norms) {
    constexpr unsigned kThreads = 128;
    constexpr unsigned kTile = 64;
    constexpr unsigned kReads = 32 * kTile / kThreads;
    __shared__ float tile[32][kTile + 1];
    const unsigned first = blockIdx.x * 32;
    // The next tile is loaded while this one is added up.
    float read[kReads];
    const auto load = [&](unsigned start) {
#pragma unroll
        for (unsigned k = 0; k < kReads; ++k) {
            const unsigned at = k * kThreads + threadIdx.x;
            const unsigned t = first + at / kTile;
            const unsigned c = start + at % kTile;
            // Zeros beyond the end change no sum.
            read[k] = t < tokens && c < dim ? rows[static_cast<unsigned long long>(t) * dim + c] : 0.0f;
        }
    };
    load(0);
    double sum = 0.0;
    for (unsigned start = 0; start < dim; start += kTile) {
#pragma unroll
        for (unsigned k = 0; k < kReads; ++k) {
            const unsigned at = k * kThreads + threadIdx.x;
            tile[at / kTile][at % kTile] = read[k];
        }
        __syncthreads();
        load(start + kTile);
        if (threadIdx.x < 32) {
#pragma unroll 16
            for (unsigned c = 0; c < kTile; ++c) {
                const double v = static_cast<double>(tile[threadIdx.x][c]);
                sum = __dadd_rn(sum, __dmul_rn(v, v));
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < 32 && first + threadIdx.x < tokens) {
        // Squares are not negative, so their bits sort like their values.
        norms[first + threadIdx.x] = static_cast<unsigned long long>(__double_as_longlong(sum));
    }
}

// The `keep` (at most kKept) tokens with the largest norm, the first of equals, in ascending order, then kNone up to
// kKeptPadded. No token if the image cannot be described. One block.
extern "C" __global__ void __launch_bounds__(1024)
    ms_retrieval_select(const unsigned long long* __restrict__ norms, unsigned tokens, unsigned keep,
                        unsigned* __restrict__ kept, Status* __restrict__ status) {
    using Scan = cub::BlockScan<unsigned, 1024>;
    __shared__ typename Scan::TempStorage scan;
    __shared__ unsigned long long tile[1024];
    const unsigned thread = threadIdx.x;
    keep = min(keep, kKept);
    unsigned done = 0;
    if (describable(*status)) {
        for (unsigned base = 0; base < tokens; base += 1024) {
            const unsigned mine = base + thread;
            const unsigned long long norm = mine < tokens ? norms[mine] : 0;
            unsigned before = 0;
            for (unsigned other = 0; other < tokens; other += 1024) {
                __syncthreads();
                tile[thread] = other + thread < tokens ? norms[other + thread] : 0;
                __syncthreads();
                const unsigned count = min(1024u, tokens - other);
                // Equal norms: the earlier token comes first.
                const unsigned equal = mine > other ? min(mine - other, count) : 0;
                for (unsigned i = 0; i < equal; ++i) {
                    before += tile[i] >= norm;
                }
                for (unsigned i = equal; i < count; ++i) {
                    before += tile[i] > norm;
                }
            }
            const unsigned chosen = mine < tokens && before < keep;
            unsigned place, total;
            Scan(scan).ExclusiveSum(chosen, place, total);
            if (chosen && done + place < kKept) {
                kept[done + place] = mine;
            }
            done += total;
            __syncthreads();
        }
    }
    for (unsigned i = done + thread; i < kKeptPadded; i += 1024) {
        kept[i] = kNone;
    }
    // This launch does not read that field.
    if (thread == 0) {
        status->kept = done;
    }
}

// The chosen rows transposed: dst[c * kKeptPadded + i], zero beyond them and beyond `dim`. Grid (kKeptPadded / 32,
// padded_dim / 32 rounded up), block (32, 8).
extern "C" __global__ void __launch_bounds__(256)
    ms_retrieval_gather(const float* __restrict__ rows, const unsigned* __restrict__ kept, float* __restrict__ dst, unsigned dim,
                        unsigned padded_dim) {
    __shared__ float tile[32][33];
    const unsigned first_row = blockIdx.x * 32;
    const unsigned first_component = blockIdx.y * 32;
    for (unsigned r = threadIdx.y; r < 32; r += 8) {
        const unsigned t = kept[first_row + r];
        const unsigned c = first_component + threadIdx.x;
        tile[r][threadIdx.x] =
            t != kNone && c < dim ? rows[static_cast<unsigned long long>(t) * dim + c] : 0.0f;
    }
    __syncthreads();
    for (unsigned r = threadIdx.y; r < 32; r += 8) {
        const unsigned c = first_component + r;
        if (c < padded_dim) {
            dst[static_cast<unsigned long long>(c) * kKeptPadded + first_row + threadIdx.x] = tile[threadIdx.x][r];
        }
    }
}
