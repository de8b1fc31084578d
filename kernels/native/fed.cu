// Linear layers and convolutions on Hopper, see fed.cuh.

#include "fed.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace native;

// Shared memory: STAGES · ((64 · GROUPS + BN) · 128 + 16) + BN · 4 bytes, and of halves another 32 · GROUPS · BN · 4;
// threads: as Threads says. BLOCKS: of a multiprocessor.
#define FED(NAME, T, GROUPS, BN, STAGES, SPLIT, SOURCE, BLOCKS)                                    \
    extern "C" __global__ void __launch_bounds__(Threads<GROUPS, BN>::COUNT, BLOCKS)                 \
        NAME(const __grid_constant__ LinearArgs args, const __grid_constant__ FeedArgs feed,       \
             const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap weight) {      \
        fed<T, GROUPS, BN, STAGES, SPLIT, SOURCE>(args, feed, a, weight);                          \
    }

#define FEDS(TYPE, T)                                                                              \
    FED(ms_native_fed_low_64_##TYPE, T, 1, 64, 6, 1, ROWS, 2)                                      \
    FED(ms_native_fed_64_##TYPE, T, 2, 64, 8, 1, ROWS, 1)                                          \
    FED(ms_native_fed_128_##TYPE, T, 2, 128, 6, 1, ROWS, 1)                                        \
    FED(ms_native_fed_144_##TYPE, T, 2, 144, 6, 1, ROWS, 1)                                        \
    FED(ms_native_fed_192_##TYPE, T, 2, 192, 5, 1, ROWS, 1)                                        \
    FED(ms_native_fed_tall_48_##TYPE, T, 3, 48, 7, 1, ROWS, 1)                                     \
    FED(ms_native_fed_tall_192_##TYPE, T, 3, 192, 4, 1, ROWS, 1)                                   \
    FED(ms_native_fed_tall_240_##TYPE, T, 3, 240, 4, 1, ROWS, 1)                                   \
    FED(ms_native_fed_split_##TYPE, T, 2, 96, 7, 2, ROWS, 1)                                       \
    FED(ms_native_fed_tall_split_##TYPE, T, 3, 96, 5, 2, ROWS, 1)                                  \
    FED(ms_native_fed_conv_split_##TYPE, T, 2, 64, 8, 2, PIXELS, 1)                                \
    FED(ms_native_fed_conv_64_##TYPE, T, 2, 64, 4, 1, PIXELS, 2)                                   \
    FED(ms_native_fed_conv_128_##TYPE, T, 2, 128, 6, 1, PIXELS, 1)                                 \
    FED(ms_native_fed_conv_128_many_##TYPE, T, 2, 128, 3, 1, PIXELS, 2)                            \
    FED(ms_native_fed_conv_relu_split_##TYPE, T, 2, 64, 8, 2, POSITIVE_PIXELS, 1)                  \
    FED(ms_native_fed_conv_relu_64_##TYPE, T, 2, 64, 4, 1, POSITIVE_PIXELS, 2)                     \
    FED(ms_native_fed_conv_relu_128_##TYPE, T, 2, 128, 6, 1, POSITIVE_PIXELS, 1)
FEDS(f16, __half)
FEDS(bf16, __nv_bfloat16)
#endif
