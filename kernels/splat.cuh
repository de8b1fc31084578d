// The Gaussian map's pool, as in src/compute/cuda/splat: one plane per field, rows x width, for the parameters and both
// moments of Adam. A row's number fits 30 bits; offsets are 64-bit.
#pragma once

#include "index.cuh"

namespace ms {

constexpr unsigned kFields = 6;
// In the order of `Field` in src/compute/splat/layout.rs.
enum Field : unsigned { kMean, kScale, kRotation, kOpacity, kColour, kRest };

struct SplatPool {
    // Parameters, first moments, second moments.
    float* planes[3][kFields];
    // Statistics: sum of gradients in the image, and number of views. While rows are refined: list of holes, and codes.
    float* gradient;
    unsigned* seen;
    // Keyframe that a row moves with, and number of views that showed it.
    unsigned* anchor;
    unsigned* observed;
};

// Floats of a field's row; `rest` is the number of coefficients above the constant one.
__host__ __device__ constexpr unsigned field_width(unsigned field, unsigned rest) {
    return field == kRest ? rest : field == kRotation ? 4 : field == kOpacity ? 1 : 3;
}

__device__ __forceinline__ bool finite(float x) {
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// Stores after all earlier accesses of this block (call after a barrier), and loads before all later ones.
__device__ __forceinline__ void store_release(unsigned long long* at, unsigned long long value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* at) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

// Decoupled look-back. A tile's word: state in the upper two bits (nothing, its own sum, the sum up to and including it),
// below it the sum, up to 62 bits, or two sums side by side that do not overflow into each other.
constexpr unsigned long long kOwnSum = 1ull << 62, kFullSum = 2ull << 62, kSumBits = kOwnSum - 1;

// Called by a whole warp with the tile's own sum; returns the sum of all earlier tiles. Tiles must be numbered in the
// order in which blocks start.
__device__ __forceinline__ unsigned long long look_back(unsigned long long* words, unsigned tile, unsigned long long own) {
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) {
        store_release(&words[tile], (tile == 0 ? kFullSum : kOwnSum) | own);
    }
    if (tile == 0) {
        return 0;
    }
    unsigned long long before = 0;
    for (long long end = tile;;) {
        const long long at = end - 1 - lane;
        unsigned long long word = kFullSum;
        if (at >= 0) {
            do {
                word = load_acquire(&words[at]);
            } while (word >> 62 == 0);
        }
        // The nearest full sum ends the search.
        const unsigned full = __ballot_sync(0xffffffffu, word >> 62 == 2);
        const unsigned last = full == 0 ? 31 : static_cast<unsigned>(__ffs(static_cast<int>(full))) - 1;
        unsigned long long sum = lane <= last ? word & kSumBits : 0;
        for (unsigned step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, static_cast<int>(step));
        }
        before += sum;
        if (full != 0) {
            break;
        }
        end -= 32;
    }
    if (lane == 0) {
        store_release(&words[tile], kFullSum | (before + own));
    }
    return before;
}

// Philox4x32-10 (Salmon et al. 2011).
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(0xd2511f53u, counter.x), low0 = 0xd2511f53u * counter.x;
        const unsigned high1 = __umulhi(0xcd9e8d57u, counter.z), low1 = 0xcd9e8d57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}

// Two normal numbers of two uniform ones (Box and Muller). The largest is 6.66.
__device__ __forceinline__ float2 normal_pair(unsigned a, unsigned b) {
    const float u = (static_cast<float>(a) + 1.0f) * 2.3283064365386963e-10f;
    const float v = static_cast<float>(b) * 2.3283064365386963e-10f;
    const float radius = sqrtf(-2.0f * logf(u));
    float sine, cosine;
    sincospif(2.0f * v, &sine, &cosine);
    return make_float2(radius * cosine, radius * sine);
}

// Rotation matrix of a quaternion w, x, y, z of any length but zero, row by row.
__device__ __forceinline__ void rotation_matrix(const float q[4], float r[9]) {
    const float scale = 1.0f / sqrtf(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    const float w = q[0] * scale, x = q[1] * scale, y = q[2] * scale, z = q[3] * scale;
    r[0] = 1.0f - 2.0f * (y * y + z * z);
    r[1] = 2.0f * (x * y - w * z);
    r[2] = 2.0f * (x * z + w * y);
    r[3] = 2.0f * (x * y + w * z);
    r[4] = 1.0f - 2.0f * (x * x + z * z);
    r[5] = 2.0f * (y * z - w * x);
    r[6] = 2.0f * (x * z - w * y);
    r[7] = 2.0f * (y * z + w * x);
    r[8] = 1.0f - 2.0f * (x * x + y * y);
}

} // namespace ms
