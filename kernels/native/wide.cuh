// Hopper's products by warpgroups (wgmma), which only code for sm_90a may hold.
#pragma once

#include "native.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace native {

// Makes this thread's writes to shared memory visible to its own copies by the tensor memory accelerator, and to those
// and to products after the block's next barrier.
__device__ inline void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// A tile with rows of 128 bytes whose 16-byte chunks are exchanged as tile_offset<8> does it, k along the rows.
// Rows lie in groups of eight, 1024 bytes apart. 32 bytes along k are 2 more.
__device__ inline uint64_t tile_descriptor(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (static_cast<uint64_t>(1) << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (static_cast<uint64_t>(1) << 62);
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING> __device__ inline void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

// The first so many sums: their places in an instruction, and themselves.
#define PLACES_24 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18" \
    ", %19, %20, %21, %22, %23"
#define SUMS_24 \
    "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), \
    "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), \
    "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), \
    "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
#define PLACES_32 \
    PLACES_24 \
    ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_32 \
    SUMS_24, \
    "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), \
    "+f"(c[30]), "+f"(c[31])
#define PLACES_48 \
    PLACES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_48 \
    SUMS_32, \
    "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), \
    "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), \
    "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
#define PLACES_64 \
    PLACES_48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_64 \
    SUMS_48, \
    "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), \
    "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), \
    "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
#define PLACES_72 \
    PLACES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SUMS_72 \
    SUMS_64, \
    "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), \
    "+f"(c[70]), "+f"(c[71])
#define PLACES_96 \
    PLACES_72 \
    ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87" \
    ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_96 \
    SUMS_72, \
    "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), \
    "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), \
    "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), \
    "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95])
#define PLACES_120 \
    PLACES_96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109" \
    ", %110, %111, %112, %113, %114, %115, %116, %117, %118, %119"
#define SUMS_120 \
    SUMS_96, \
    "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), \
    "+f"(c[102]), "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), \
    "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]), \
    "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119])

// c += a · bᵀ, or c = a · bᵀ: 64 rows of a, as many of b as c has columns, 16 values of k. COUNT is half the columns,
// FROM and AT are the places behind the sums.
#define PRODUCT_OF(T, TYPE, NAME, COUNT, COLUMNS, FROM, AT, ADD)                                   \
    __device__ inline void NAME(float (&c)[COUNT], uint64_t a, uint64_t b, T) {                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE       \
                     " {" PLACES_##COUNT "}, %" #FROM ", %" #AT ", " #ADD ", 1, 1, 0, 0;\n"        \
                     : SUMS_##COUNT                                                                \
                     : "l"(a), "l"(b));                                                            \
    }
#define PRODUCT(...)                                                                               \
    PRODUCT_OF(__half, f16, __VA_ARGS__)                                                           \
    PRODUCT_OF(__nv_bfloat16, bf16, __VA_ARGS__)
PRODUCT(multiply_wide, 24, 48, 24, 25, 1)
PRODUCT(multiply_wide, 32, 64, 32, 33, 1)
PRODUCT(multiply_wide, 48, 96, 48, 49, 1)
PRODUCT(multiply_wide, 64, 128, 64, 65, 1)
PRODUCT(multiply_wide, 72, 144, 72, 73, 1)
PRODUCT(multiply_wide, 96, 192, 96, 97, 1)
PRODUCT(multiply_wide, 120, 240, 120, 121, 1)
PRODUCT(multiply_first, 24, 48, 24, 25, 0)
PRODUCT(multiply_first, 32, 64, 32, 33, 0)
PRODUCT(multiply_first, 48, 96, 48, 49, 0)

// The same with a in registers: each warp has 16 rows in the layout of mma.m16n8k16. TRANSPOSED 1: c += a · b, where b
// has 16 rows of 64 values, a row after the other as in tile_descriptor.
#define PRODUCT_FROM_REGISTERS_OF(T, TYPE, NAME, COUNT, COLUMNS, A0, A1, A2, A3, AT, TRANSPOSED)   \
    __device__ inline void NAME(float (&c)[COUNT], const uint32_t (&a)[4], uint64_t b, T) {        \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." #TYPE "." #TYPE       \
                     " {" PLACES_##COUNT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #AT      \
                     ", 1, 1, 1, " #TRANSPOSED ";\n"                                               \
                     : SUMS_##COUNT                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
#define PRODUCT_FROM_REGISTERS(...)                                                                \
    PRODUCT_FROM_REGISTERS_OF(__half, f16, __VA_ARGS__)                                            \
    PRODUCT_FROM_REGISTERS_OF(__nv_bfloat16, bf16, __VA_ARGS__)
PRODUCT_FROM_REGISTERS(multiply_wide, 32, 64, 32, 33, 34, 35, 36, 0)
PRODUCT_FROM_REGISTERS(multiply_wide, 64, 128, 64, 65, 66, 67, 68, 0)
PRODUCT_FROM_REGISTERS(multiply_values, 32, 64, 32, 33, 34, 35, 36, 1)

} // namespace native

#endif
