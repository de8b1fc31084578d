// What the kernels of linear layers and convolutions share: their arguments, and what happens to a sum.
#pragma once

#include "native.cuh"

namespace native {

// The same fields in the same order as in src/inference/native/arguments.rs.
struct LinearArgs {
    // rotary: tokens × head, of each pair of a head's channels the cosine and the sine.
    // scale: groups × n factors of the sums, where weights are bytes.
    uint64_t a, weight, scale, bias, rotary, add1, add2, out;
    // Distance between the groups' data, in elements; a group has weights of its own.
    int64_t a_group, weight_group, bias_group, add1_group, add2_group, out_group;
    int32_t m, n, k;
    // Elements from row to row (of A: from pixel to pixel).
    int32_t a_stride, out_stride, add_stride;
    // Convolutions: input and output maps. Patches: input map.
    int32_t height, width, out_height, out_width, channels, step;
    // Side of the patches that outputs are put in place as, or 1.
    int32_t patch;
    // Rotation: tokens of an image, channels of a head and of a part; bit i: part i of the outputs is turned.
    int32_t tokens, head, part;
    uint32_t rotated;
    uint32_t flags;
};

constexpr uint32_t RELU_INPUT = 1, GELU = 2, RELU = 4, OUT_F32 = 8, ADD_F32 = 16;

constexpr int BK = 64;         // values of k in a stage
constexpr int CHUNKS = BK / 8; // 16-byte chunks of them

// x · Φ(x) = max(x, 0) − |x| · Φ(−|x|), with Φ(−z) as a power of two. The polynomial is fitted to log2(Φ(−z)) on
// 0 ≤ z ≤ 5.5 such that the result is within 9.4e-6, and for x < 0 within half of what binary16 rounds it by.
// bfloat16 rounds in proportion however small a number is: there, results below 3e-5 may be off by more than that.
__device__ inline float gelu(float x) {
    const float z = fabsf(x);
    float p = fmaf(z, -3.4662190e-4f, 6.0765254e-3f);
    p = fmaf(z, p, -4.9059063e-2f);
    p = fmaf(z, p, -4.6303302e-1f);
    p = fmaf(z, p, -1.1496694f);
    p = fmaf(z, p, -1.0000860f);
    float tail;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(tail) : "f"(p));
    // fmaxf(NaN, 0) is 0, but then the tail is NaN.
    return fmaf(-z, tail, fmaxf(x, 0.0f));
}

__device__ __forceinline__ void turn(float &x, float &y, float cosine, float sine) {
    const float turned = x * cosine - y * sine;
    y = y * cosine + x * sine;
    x = turned;
}

template <typename T> __device__ inline void add8(float (&v)[8], uint4 bits) {
    const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack(pairs[i], T());
        v[2 * i] += pair.x;
        v[2 * i + 1] += pair.y;
    }
}

__device__ inline void add8(float (&v)[8], const float *add) {
    const float4 a = *reinterpret_cast<const float4 *>(add);
    const float4 b = *reinterpret_cast<const float4 *>(add + 4);
    const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += values[i];
}

// What is added to eight outputs at the end, as it is in memory; or how they turn, as nothing is added to outputs that do.
struct Addends {
    uint4 first[2], second;
};

// Outputs n to n + 7 of any row.
template <typename T> struct Outputs {
    const LinearArgs &p;
    int group, n;
    bool turned;
    // Where patches are put in place: the pixel of the patch, and its first output.
    int pixel, pixel_n;

    __device__ __forceinline__ Outputs(const LinearArgs &p, int group, int n)
        : p(p), group(group), n(n), turned(p.rotary && (p.rotated >> (n / p.part) & 1)), pixel(0), pixel_n(0) {
        if (p.patch > 1) {
            const int channels = p.n / (p.patch * p.patch);
            pixel = n / channels;
            pixel_n = pixel * channels;
        }
    }

    __device__ __forceinline__ const float *bias() const {
        return reinterpret_cast<const float *>(p.bias) + group * p.bias_group + n;
    }

    __device__ __forceinline__ Addends addends(int m) const {
        Addends all = {};
        if (p.rotary) {
            // The same for outputs a whole number of heads away.
            const uint4 *turns = reinterpret_cast<const uint4 *>(reinterpret_cast<const float *>(p.rotary) +
                                                                 m % p.tokens * p.head + n % p.head);
            all.first[0] = turns[0];
            all.first[1] = turns[1];
            return all;
        }
        const int at = m * p.add_stride + n;
        if (p.add1 && p.flags & ADD_F32) {
            const uint4 *add =
                reinterpret_cast<const uint4 *>(reinterpret_cast<const float *>(p.add1) + group * p.add1_group + at);
            all.first[0] = add[0];
            all.first[1] = add[1];
        } else if (p.add1) {
            const T *add = reinterpret_cast<const T *>(p.add1) + group * p.add1_group + at;
            all.first[0] = *reinterpret_cast<const uint4 *>(add);
        }
        if (p.add2) {
            const T *add = reinterpret_cast<const T *>(p.add2) + group * p.add2_group + at;
            all.second = *reinterpret_cast<const uint4 *>(add);
        }
        return all;
    }

    // From their sums with the bias.
    __device__ __forceinline__ void finish(float (&v)[8], int m, const Addends &addends) const {
        if (turned) {
            // Pairs of channels side by side, turned by their token's position.
            float t[8];
            *reinterpret_cast<uint4 *>(t) = addends.first[0];
            *reinterpret_cast<uint4 *>(t + 4) = addends.first[1];
#pragma unroll
            for (int i = 0; i < 8; i += 2) turn(v[i], v[i + 1], t[i], t[i + 1]);
        }
        if (p.flags & GELU) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = gelu(v[i]);
        }
        if (p.flags & RELU) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = v[i] < 0.0f ? 0.0f : v[i];
        }
        if (p.add1 && p.flags & ADD_F32) {
            float add[8];
            *reinterpret_cast<uint4 *>(add) = addends.first[0];
            *reinterpret_cast<uint4 *>(add + 4) = addends.first[1];
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += add[i];
        } else if (p.add1) {
            add8<T>(v, addends.first[0]);
        }
        if (p.add2) add8<T>(v, addends.second);
        int at = m * p.out_stride + n;
        if (p.patch > 1) {
            const int line = m / p.width, column = m - line * p.width;
            const int py = pixel / p.patch, px = pixel - py * p.patch;
            at = (((line * p.patch + py) * p.width + column) * p.patch + px) * p.out_stride + n - pixel_n;
        }
        if (p.flags & OUT_F32) {
            float *out = reinterpret_cast<float *>(p.out) + group * p.out_group + at;
            *reinterpret_cast<float4 *>(out) = make_float4(v[0], v[1], v[2], v[3]);
            *reinterpret_cast<float4 *>(out + 4) = make_float4(v[4], v[5], v[6], v[7]);
        } else {
            T *out = reinterpret_cast<T *>(p.out) + group * p.out_group + at;
            *reinterpret_cast<uint4 *>(out) = make_uint4(pack(v[0], v[1], T()), pack(v[2], v[3], T()),
                                                         pack(v[4], v[5], T()), pack(v[6], v[7], T()));
        }
    }
};

} // namespace native
