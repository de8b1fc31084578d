// What the kernels that the tensor memory accelerator feeds do with their sums: code for each of the usual ways, as the
// code for everything that LinearArgs can say takes several times as long.
#pragma once

#include "linear.cuh"

namespace native {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum class Finish {
    // In any way that LinearArgs can say.
    ANY,
    // To 16-bit numbers, with the bias alone, turned, or by GELU.
    PLAIN,
    TURNED,
    ACTIVATED,
    // Added to binary32 numbers, and written as such.
    ADDED,
};

__device__ inline Finish finish_of(const LinearArgs &p) {
    if (p.patch > 1 || p.add2) return Finish::ANY;
    if (p.rotary) return p.flags == 0 && !p.add1 ? Finish::TURNED : Finish::ANY;
    if (p.add1) return p.flags == (OUT_F32 | ADD_F32) ? Finish::ADDED : Finish::ANY;
    return p.flags == GELU ? Finish::ACTIVATED : p.flags == 0 ? Finish::PLAIN : Finish::ANY;
}

// Eight values of shared memory, whose neighbours the neighbouring lanes read. Every other four lanes read the second
// half first, so that all banks are read from at once.
__device__ __forceinline__ void load8(float (&v)[8], const float *from) {
    const bool second = threadIdx.x & 4;
    const float4 a = *reinterpret_cast<const float4 *>(from + (second ? 4 : 0));
    const float4 b = *reinterpret_cast<const float4 *>(from + (second ? 0 : 4));
    const float4 low = second ? b : a, high = second ? a : b;
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// Sixteen rows of a layer, which a warp finishes from their sums in shared memory, BN + 8 a row; from row m0 and output
// n0 on.
template <typename T, int BN> struct Sixteen {
    // For ADDED: a lane's vectors of four values each, beside those of its neighbours, and the vectors of a row. So many
    // are read before there are sums as leave registers for these.
    static constexpr uint32_t VECTORS = BN / 8, OF_ROW = BN / 4;
    static constexpr uint32_t BEFORE = VECTORS <= 12 ? VECTORS : 8;
    // What is read then: what is added, or how rows turn.
    using More = float4[BEFORE < 8 ? 8 : BEFORE];

    const LinearArgs &p;
    int group, m0, n0;
    uint32_t lane;

    __device__ __forceinline__ int row(uint32_t vector) const { return (vector * 32 + lane) / OF_ROW; }
    __device__ __forceinline__ int column(uint32_t vector) const { return (vector * 32 + lane) % OF_ROW * 4; }
    __device__ __forceinline__ bool inside(uint32_t vector) const {
        return m0 + row(vector) < p.m && n0 + column(vector) < p.n;
    }
    __device__ __forceinline__ float4 added(uint32_t vector) const {
        if (!inside(vector)) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float *add = reinterpret_cast<const float *>(p.add1) + group * p.add1_group;
        return *reinterpret_cast<const float4 *>(add + (m0 + row(vector)) * p.add_stride + n0 + column(vector));
    }

    // How the rows turn: the same for all of a lane's outputs, as whole heads lie between them.
    __device__ __forceinline__ void turns(More &t) const {
        const uint32_t channel = static_cast<uint32_t>(n0 + (lane & 7) * 8) % static_cast<uint32_t>(p.head);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t token = static_cast<uint32_t>(m0 + (lane >> 3) + i * 4) % static_cast<uint32_t>(p.tokens);
            const float4 *of_token =
                reinterpret_cast<const float4 *>(reinterpret_cast<const float *>(p.rotary) + token * p.head + channel);
            t[2 * i] = of_token[0];
            t[2 * i + 1] = of_token[1];
        }
    }

    // What can be done before there are sums.
    __device__ __forceinline__ void before(Finish finish, More &more) const {
        if (finish == Finish::ADDED) {
#pragma unroll
            for (uint32_t i = 0; i < BEFORE; i++) more[i] = added(i);
        } else if (finish == Finish::TURNED) {
            turns(more);
        }
    }

    __device__ __forceinline__ void add(const float *sums, const float *bias, More &more) const {
        float *out = reinterpret_cast<float *>(p.out) + group * p.out_group + n0;
#pragma unroll
        for (uint32_t begin = 0; begin < VECTORS; begin += BEFORE) {
#pragma unroll
            for (uint32_t i = 0; i < BEFORE && begin > 0; i++)
                if (begin + i < VECTORS) more[i] = added(begin + i);
#pragma unroll
            for (uint32_t i = 0; i < BEFORE; i++) {
                const uint32_t vector = begin + i;
                if (vector >= VECTORS) continue;
                const float4 s = *reinterpret_cast<const float4 *>(sums + row(vector) * (BN + 8) + column(vector));
                const float4 b = *reinterpret_cast<const float4 *>(bias + column(vector)), &a = more[i];
                if (!inside(vector)) continue;
                store16(out + (m0 + row(vector)) * p.out_stride + column(vector), __float_as_uint(s.x + b.x + a.x),
                        __float_as_uint(s.y + b.y + a.y), __float_as_uint(s.z + b.z + a.z),
                        __float_as_uint(s.w + b.w + a.w));
            }
        }
    }

    // PLAIN, TURNED or ACTIVATED: a lane has eight outputs in each of four rows, then those 64 further, and so on.
    template <Finish FINISH>
    __device__ __forceinline__ void write(const float *sums, const float *biases, const float4 *turns) const {
        const int first_row = m0 + (lane >> 3);
        T *out = reinterpret_cast<T *>(p.out) + group * p.out_group + first_row * p.out_stride + n0;
#pragma unroll 1
        for (int column = (lane & 7) * 8; column < BN && n0 + column < p.n; column += 64) {
            bool turned = false;
            if (FINISH == Finish::TURNED)
                turned = p.rotated >> (static_cast<uint32_t>(n0 + column) / static_cast<uint32_t>(p.part)) & 1;
            float bias[8];
            load8(bias, biases + column);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v[8];
                load8(v, sums + (i * 4 + (lane >> 3)) * (BN + 8) + column);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[k] += bias[k];
                    if (FINISH == Finish::ACTIVATED) v[k] = gelu(v[k]);
                }
                if (FINISH == Finish::TURNED && turned) {
                    // Pairs of channels side by side, turned by their token's position.
                    const float4 t[2] = {turns[2 * i], turns[2 * i + 1]};
                    turn(v[0], v[1], t[0].x, t[0].y);
                    turn(v[2], v[3], t[0].z, t[0].w);
                    turn(v[4], v[5], t[1].x, t[1].y);
                    turn(v[6], v[7], t[1].z, t[1].w);
                }
                if (first_row + i * 4 < p.m)
                    store16(out + i * 4 * p.out_stride + column, pack(v[0], v[1], T()), pack(v[2], v[3], T()),
                            pack(v[4], v[5], T()), pack(v[6], v[7], T()));
            }
        }
    }
};

#endif

} // namespace native
