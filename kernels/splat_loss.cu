// The training loss of a rendered view and its gradient by the image, as in src/compute/splat/ssim.rs and the loss in
// backward.rs, within rounding: (1 - l) L1 + l (1 - SSIM) of colours, and the depth term.
//
// SSIM's window is 11 x 11 with zeros beyond the image, as a row and a column. One colour channel a launch, so that the
// three maps between the launches take 12 B a pixel.

#include "splat_view.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr int kRadius = 5;
constexpr int kWindow = 2 * kRadius + 1;
constexpr int kHalo = kSide + 2 * kRadius;
constexpr float kC1 = 1e-4f, kC2 = 9e-4f;
__constant__ float kWeights[kWindow] = {0.00102838008f, 0.00759875814f, 0.0360007721f, 0.10936069f,
                                        0.213005538f,   0.266011725f,   0.213005538f,  0.10936069f,
                                        0.0360007721f,  0.00759875814f, 0.00102838008f};

// Sums of the loss: of |difference|, of squared differences, of SSIM, of |depth difference|.
enum Sum : unsigned { kAbsolute, kSquared, kSimilarity, kDepth };

// Adds the block's values to a sum.
__device__ __forceinline__ void add(float value, double* sum, float* scratch) {
    for (unsigned step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, static_cast<int>(step));
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (unsigned k = 0; k < kThreads / 32; ++k) {
            total += scratch[k];
        }
        atomicAdd(sum, static_cast<double>(total));
    }
    __syncthreads();
}

} // namespace

// SSIM of one channel, and its derivatives by the window's mean, mean square and mean product: maps, 3 x pixels. One
// block per 16 x 16 pixels.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_ssim(const float* __restrict__ colour, const unsigned char* __restrict__ image, unsigned width,
                  unsigned height, unsigned channel, float* __restrict__ maps, double* __restrict__ sums) {
    __shared__ float xs[kHalo][kHalo], ys[kHalo][kHalo];
    __shared__ float across[5][kHalo][kSide];
    __shared__ float scratch[kThreads / 32];
    const int left = static_cast<int>(blockIdx.x * kSide), top = static_cast<int>(blockIdx.y * kSide);
    for (unsigned k = threadIdx.x; k < kHalo * kHalo; k += kThreads) {
        const int row = static_cast<int>(k) / kHalo, column = static_cast<int>(k) % kHalo;
        const int px = left + column - kRadius, py = top + row - kRadius;
        const bool inside = px >= 0 && py >= 0 && px < static_cast<int>(width) && py < static_cast<int>(height);
        const unsigned long long at = (static_cast<unsigned long long>(py) * width + static_cast<unsigned>(px)) * 3 + channel;
        xs[row][column] = inside ? colour[at] : 0.0f;
        ys[row][column] = inside ? static_cast<float>(image[at]) / 255.0f : 0.0f;
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < kHalo * kSide; k += kThreads) {
        const unsigned row = k / kSide, column = k % kSide;
        float sum[5] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < kWindow; ++j) {
            const float x = xs[row][column + j], y = ys[row][column + j], w = kWeights[j];
            sum[0] = fmaf(w, x, sum[0]);
            sum[1] = fmaf(w, y, sum[1]);
            sum[2] = fmaf(w * x, x, sum[2]);
            sum[3] = fmaf(w * y, y, sum[3]);
            sum[4] = fmaf(w * x, y, sum[4]);
        }
#pragma unroll
        for (unsigned j = 0; j < 5; ++j) {
            across[j][row][column] = sum[j];
        }
    }
    __syncthreads();
    const unsigned row = threadIdx.x / kSide, column = threadIdx.x % kSide;
    const unsigned px = blockIdx.x * kSide + column, py = blockIdx.y * kSide + row;
    float sum[5] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
#pragma unroll
        for (unsigned k = 0; k < 5; ++k) {
            sum[k] = fmaf(kWeights[j], across[k][row + j][column], sum[k]);
        }
    }
    const bool inside = px < width && py < height;
    const float a = sum[0], b = sum[1];
    const float xx = fmaf(-a, a, sum[2]), yy = fmaf(-b, b, sum[3]), xy = fmaf(-a, b, sum[4]);
    const float a1 = fmaf(2.0f * a, b, kC1), a2 = fmaf(2.0f, xy, kC2);
    const float b1 = fmaf(a, a, fmaf(b, b, kC1)), b2 = xx + yy + kC2;
    const float over = 1.0f / (b1 * b2);
    const float ssim = a1 * a2 * over;
    const unsigned long long pixels = static_cast<unsigned long long>(width) * height;
    if (inside) {
        const unsigned long long at = static_cast<unsigned long long>(py) * width + px;
        maps[at] = 2.0f * (b * (a2 - a1) * over + a * ssim * (1.0f / b2 - 1.0f / b1));
        maps[pixels + at] = -ssim / b2;
        maps[2 * pixels + at] = 2.0f * a1 * over;
    }
    const float difference = xs[row + kRadius][column + kRadius] - ys[row + kRadius][column + kRadius];
    add(inside ? fabsf(difference) : 0.0f, &sums[kAbsolute], scratch);
    add(inside ? difference * difference : 0.0f, &sums[kSquared], scratch);
    add(inside ? ssim : 0.0f, &sums[kSimilarity], scratch);
}

// The loss's gradient by one channel of the colours. `absolute` and `similarity` are the weights of both parts, divided
// by the number of values.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_colour_gradient(const float* __restrict__ colour, const unsigned char* __restrict__ image, unsigned width,
                             unsigned height, unsigned channel, const float* __restrict__ maps, float absolute,
                             float similarity, float* __restrict__ by_colour) {
    __shared__ float part[3][kHalo][kHalo];
    __shared__ float across[3][kHalo][kSide];
    const int left = static_cast<int>(blockIdx.x * kSide), top = static_cast<int>(blockIdx.y * kSide);
    const unsigned long long pixels = static_cast<unsigned long long>(width) * height;
    for (unsigned k = threadIdx.x; k < kHalo * kHalo; k += kThreads) {
        const int row = static_cast<int>(k) / kHalo, column = static_cast<int>(k) % kHalo;
        const int px = left + column - kRadius, py = top + row - kRadius;
        const bool inside = px >= 0 && py >= 0 && px < static_cast<int>(width) && py < static_cast<int>(height);
        const unsigned long long at = static_cast<unsigned long long>(py) * width + static_cast<unsigned>(px);
#pragma unroll
        for (unsigned j = 0; j < 3; ++j) {
            part[j][row][column] = inside ? maps[j * pixels + at] : 0.0f;
        }
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < 3 * kHalo * kSide; k += kThreads) {
        const unsigned map = k / (kHalo * kSide), row = k / kSide % kHalo, column = k % kSide;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kWindow; ++j) {
            sum = fmaf(kWeights[j], part[map][row][column + j], sum);
        }
        across[map][row][column] = sum;
    }
    __syncthreads();
    const unsigned row = threadIdx.x / kSide, column = threadIdx.x % kSide;
    const unsigned px = blockIdx.x * kSide + column, py = blockIdx.y * kSide + row;
    if (px >= width || py >= height) {
        return;
    }
    float sum[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
#pragma unroll
        for (unsigned k = 0; k < 3; ++k) {
            sum[k] = fmaf(kWeights[j], across[k][row + j][column], sum[k]);
        }
    }
    const unsigned long long at = (static_cast<unsigned long long>(py) * width + px) * 3 + channel;
    const float x = colour[at], y = static_cast<float>(image[at]) / 255.0f;
    const float sign = x > y ? 1.0f : x < y ? -1.0f : 0.0f;
    by_colour[at] = fmaf(absolute, sign, -similarity * fmaf(2.0f * x, sum[1], fmaf(y, sum[2], sum[0])));
}

// Gradients of weight |D - S d| by depth and silhouette; 0 where nothing was measured.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_depth_gradient(const float* __restrict__ depth, const float* __restrict__ left,
                            const float* __restrict__ measured, unsigned pixels, float weight,
                            float* __restrict__ by_depth, float* __restrict__ by_silhouette, double* __restrict__ sums) {
    __shared__ float scratch[kThreads / 32];
    const unsigned long long i = thread_index();
    float absolute = 0.0f;
    if (i < pixels) {
        const float d = measured[i];
        float sign = 0.0f;
        if (finite(d) && d > 0.0f) {
            const float difference = fmaf(left[i] - 1.0f, d, depth[i]);
            absolute = fabsf(difference);
            sign = difference > 0.0f ? weight : difference < 0.0f ? -weight : 0.0f;
            by_silhouette[i] = -sign * d;
        } else {
            by_silhouette[i] = 0.0f;
        }
        by_depth[i] = sign;
    }
    add(absolute, &sums[kDepth], scratch);
}
