// What the network's kernels share: 16-bit numbers, asynchronous copies, tensor-core products.
// Everything here exists from sm_80 on.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The run-time compiler has no <stdint.h>.
#include <cuda/std/cstdint>
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;

namespace native {

// A 16-bit floating point number, its pairs, and its conversions.
template <typename T> struct Pair;
template <> struct Pair<__half> {
    using Type = __half2;
};
template <> struct Pair<__nv_bfloat16> {
    using Type = __nv_bfloat162;
};

__device__ inline uint32_t pack(float a, float b, __half) {
    __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
}
__device__ inline uint32_t pack(float a, float b, __nv_bfloat16) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
}
__device__ inline float2 unpack(uint32_t bits, __half) {
    return __half22float2(*reinterpret_cast<__half2 *>(&bits));
}
__device__ inline float2 unpack(uint32_t bits, __nv_bfloat16) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&bits));
}
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// max(x, 0) of both halves; NaN stays NaN.
template <typename T> __device__ inline uint32_t relu2(uint32_t bits) {
    using P = typename Pair<T>::Type;
    uint32_t zero = 0;
    P r = __hmax2_nan(*reinterpret_cast<P *>(&bits), *reinterpret_cast<P *>(&zero));
    return *reinterpret_cast<uint32_t *>(&r);
}

// Pairs of binary16 numbers, 2⁻⁸ times the E4M3 numbers of bytes 0 and 2, and of bytes 1 and 3: both formats have the
// sign first, then the exponent, whose bias is 7 in one and 15 in the other. Subnormal numbers stay right.
__device__ inline uint2 widen(uint32_t bytes) {
    const uint32_t even = bytes << 8;
    return make_uint2((even & 0x80008000) | (even >> 1 & 0x3f803f80), (bytes & 0x80008000) | (bytes >> 1 & 0x3f803f80));
}

__device__ inline uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes to shared memory; zeros where `valid` is false, and then `src` is not read.
__device__ inline void copy16(uint32_t dst, const void *src, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes));
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;\n" ::); }
template <int PENDING> __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING));
}

// Stores 16 bytes at once, where the compiler would make four stores, to memory that the thread does not read
// afterwards.
__device__ inline void store16(void *to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b),
                 "r"(c), "r"(d));
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// c += a · b: 16 × 16 by 16 × 8, binary32 sums.
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                __half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                __nv_bfloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The byte offset of 16-byte chunk `chunk` of row `row` in a tile with CHUNKS chunks a row. Eight
// consecutive rows of one chunk lie in different banks, as ldmatrix wants it.
template <int CHUNKS> __device__ inline uint32_t tile_offset(int row, int chunk) {
    static_assert((CHUNKS & (CHUNKS - 1)) == 0, "a power of two");
    int at = row * CHUNKS + chunk;
    int turn = CHUNKS >= 8 ? row : at >> 3;
    return static_cast<uint32_t>((at ^ (turn & 7)) * 16);
}

// Waits for the launches before this one, if this one was started early. Each block of a kernel that may start early
// does this, so that all launches before the last one are over as well.
__device__ inline void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// Lets the next launch start as soon as every block has come here. Late in a kernel, so that the next one's blocks do
// not take the room of blocks that still have much to do.
__device__ inline void let_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

} // namespace native
