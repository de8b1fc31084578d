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

FED(ms_native_fed_low_64_f16, __half, 1, 64, 6, 1, ROWS, 2)
FED(ms_native_fed_64_f16, __half, 2, 64, 8, 1, ROWS, 1)
FED(ms_native_fed_128_f16, __half, 2, 128, 6, 1, ROWS, 1)
FED(ms_native_fed_144_f16, __half, 2, 144, 6, 1, ROWS, 1)
FED(ms_native_fed_192_f16, __half, 2, 192, 5, 1, ROWS, 1)
FED(ms_native_fed_tall_48_f16, __half, 3, 48, 7, 1, ROWS, 1)
FED(ms_native_fed_tall_192_f16, __half, 3, 192, 4, 1, ROWS, 1)
FED(ms_native_fed_tall_240_f16, __half, 3, 240, 4, 1, ROWS, 1)
FED(ms_native_fed_split_f16, __half, 2, 96, 7, 2, ROWS, 1)
FED(ms_native_fed_tall_split_f16, __half, 3, 96, 5, 2, ROWS, 1)
FED(ms_native_fed_conv_split_f16, __half, 2, 64, 8, 2, PIXELS, 1)
FED(ms_native_fed_conv_64_f16, __half, 2, 64, 4, 1, PIXELS, 2)
FED(ms_native_fed_conv_128_f16, __half, 2, 128, 6, 1, PIXELS, 1)
FED(ms_native_fed_conv_128_many_f16, __half, 2, 128, 3, 1, PIXELS, 2)
FED(ms_native_fed_conv_relu_split_f16, __half, 2, 64, 8, 2, POSITIVE_PIXELS, 1)
FED(ms_native_fed_conv_relu_64_f16, __half, 2, 64, 4, 1, POSITIVE_PIXELS, 2)
FED(ms_native_fed_conv_relu_128_f16, __half, 2, 128, 6, 1, POSITIVE_PIXELS, 1)
#endif
