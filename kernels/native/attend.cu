// Attention on Hopper, see attend.cuh.

#include "attend.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace native;

// Shared memory: (64 + 2 · PARTS · STAGES · KEYS) · 128 + 8 + PARTS · STAGES · 32 bytes; threads: PARTS · 128 + 32.
// BLOCKS: of a multiprocessor.
#define ATTEND(NAME, T, KEYS, STAGES, PARTS, BLOCKS)                                               \
    extern "C" __global__ void __launch_bounds__(PARTS * 128 + 32, BLOCKS)                         \
        NAME(const __grid_constant__ AttentionArgs args, const __grid_constant__ TensorMap q,      \
             const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v) {           \
        attend<T, KEYS, STAGES, PARTS>(args, q, k, v);                                             \
    }

// With halves and quarters, five warps on a quarter of a multiprocessor leave each thread 96 registers.
#define ATTENDS(TYPE, T)                                                                           \
    ATTEND(ms_native_attend_64_##TYPE, T, 64, 4, 1, 3)                                             \
    ATTEND(ms_native_attend_96_##TYPE, T, 96, 3, 1, 2)                                             \
    ATTEND(ms_native_attend_halves_##TYPE, T, 48, 2, 2, 2)                                         \
    ATTEND(ms_native_attend_quarters_##TYPE, T, 48, 2, 4, 1)
ATTENDS(f16, __half)
ATTENDS(bf16, __nv_bfloat16)
#endif
