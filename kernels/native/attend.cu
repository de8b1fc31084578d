// Attention on Hopper, see attend.cuh.

#include "attend.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace native;

// Shared memory: (64 + 2 · STAGES · KEYS) · 128 + 8 + STAGES · 32 bytes; threads: 160. BLOCKS: of a multiprocessor.
#define ATTEND(NAME, T, KEYS, STAGES, BLOCKS)                                                      \
    extern "C" __global__ void __launch_bounds__(160, BLOCKS)                                      \
        NAME(const __grid_constant__ AttentionArgs args, const __grid_constant__ TensorMap q,      \
             const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v) {           \
        attend<T, KEYS, STAGES>(args, q, k, v);                                                    \
    }

ATTEND(ms_native_attend_64_f16, __half, 64, 4, 3)
ATTEND(ms_native_attend_96_f16, __half, 96, 3, 2)
#endif
