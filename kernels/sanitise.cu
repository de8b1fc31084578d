// Makes the network's outputs safe to compute with: as `sanitise` in src/inference/check.rs, both views in one launch.
//
// Limit: 116 B a pixel read (24 channels), hardly any written: 23 MB a view at 512x384, 5 us a view out of memory at
// 4.8 TB/s, less when the outputs still lie in the second-level cache.

#include "index.cuh"
#include "usable.cuh"

struct ViewPointers {
    float* points;                // N x 3
    float* confidence;            // N
    float* descriptors;           // N x channels
    float* descriptor_confidence; // N
};

struct SanitiseArgs {
    ViewPointers views[2];
    unsigned* unusable; // per view: pixels that cannot be used
    unsigned* scratch;  // per view: a sum and a counter, both zero between launches
    unsigned pixels;
    unsigned channels;
};

namespace {

constexpr unsigned kThreads = 256;
using ms::kExponent, ms::kMaxConfidence;

__device__ __forceinline__ unsigned largest_exponent(float4 v) {
    return max(max(__float_as_uint(v.x) & kExponent, __float_as_uint(v.y) & kExponent),
               max(__float_as_uint(v.z) & kExponent, __float_as_uint(v.w) & kExponent));
}

} // namespace

// Two lanes a pixel, which take its descriptor in turns; blockIdx.y is the view.
extern "C" __global__ void __launch_bounds__(kThreads) ms_sanitise(const SanitiseArgs a) {
    __shared__ unsigned total;
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    // A conditional instead of an index, which would move the arguments to local memory.
    const ViewPointers view = blockIdx.y == 0 ? a.views[0] : a.views[1];
    const unsigned long long n = ms::thread_index() / 2;
    const unsigned half = threadIdx.x & 1;
    const bool inside = n < a.pixels;
    bool usable = true;
    float* descriptor = view.descriptors + n * a.channels;
    // Whole quads in pairs; else value by value.
    const bool quads = a.channels % 8 == 0;
    if (inside) {
        unsigned largest = 0;
        if (quads) {
            for (unsigned k = half; k < a.channels / 4; k += 2) {
                largest = max(largest, largest_exponent(reinterpret_cast<const float4*>(descriptor)[k]));
            }
        } else {
            for (unsigned k = half; k < a.channels; k += 2) {
                largest = max(largest, __float_as_uint(descriptor[k]) & kExponent);
            }
        }
        usable = largest != kExponent;
    }
    // Every lane must take part in the exchange, so nothing may short-circuit before it.
    const bool other = __shfl_xor_sync(0xffffffffu, usable, 1);
    usable = usable && other;
    float c = 0.0f, q = 0.0f;
    if (inside) {
        const float3 p = make_float3(view.points[3 * n], view.points[3 * n + 1], view.points[3 * n + 2]);
        c = view.confidence[n];
        q = view.descriptor_confidence[n];
        usable = usable && ms::usable(p.x, p.y, p.z, c, q);
    }
    __syncwarp();
    if (inside && !usable) {
        for (unsigned k = half; k < a.channels; k += 2) {
            descriptor[k] = 0.0f;
        }
    }
    if (inside && half == 0) {
        if (!usable) {
            view.points[3 * n] = 0.0f;
            view.points[3 * n + 1] = 0.0f;
            view.points[3 * n + 2] = 0.0f;
        }
        if (!usable || c > kMaxConfidence) {
            view.confidence[n] = usable ? kMaxConfidence : 0.0f;
        }
        if (!usable || q > kMaxConfidence) {
            view.descriptor_confidence[n] = usable ? kMaxConfidence : 0.0f;
        }
    }
    const unsigned bad = __ballot_sync(0xffffffffu, inside && half == 0 && !usable);
    if (threadIdx.x % 32 == 0 && bad != 0) {
        atomicAdd(&total, static_cast<unsigned>(__popc(bad)));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned* sum = a.scratch + 2 * blockIdx.y;
        if (total != 0) {
            atomicAdd(sum, total);
        }
        __threadfence();
        // The last block of this view writes the sum and clears it; the counter wraps around by itself.
        if (atomicInc(sum + 1, gridDim.x - 1) == gridDim.x - 1) {
            __threadfence();
            a.unusable[blockIdx.y] = atomicExch(sum, 0u);
        }
    }
}
