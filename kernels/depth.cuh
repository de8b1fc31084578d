// The scale of a pointmap by measured depth, and what is left of its errors: shared by the kernels that measure, apply
// and fuse. src/compute/depth.rs and depth/ are the definition.
#pragma once

namespace ms {

// `cuda::depth::Found`.
struct Found {
    double sum;         // of the inliers' log ratios, off the median
    double patches;     // measurements that the pixels count as
    double max_mad;     // that was allowed
    unsigned count;     // pixels with both
    unsigned inliers;
    float median;       // of the log ratios
    float mad;
    float factor;       // the newest scale that was accepted
    unsigned accepted;  // whether this measurement's was
    unsigned agreed;    // `compute::depth::Trust`
    float own;          // `compute::depth::pixels::OfPixels` of the newest fit
    float matched;
    float keyframe;
    float reach;
    unsigned radius;    // of the window over which depth was averaged
    float bias;         // of the mean of log depth
    unsigned reserved;
};

// `cuda::tracking::MeasuredDepthsArgument`: depths of a frame and of its keyframe.
struct MeasuredDepths {
    const float* frame;          // N metres; 0: not measured
    const float* keyframe;       // N
    const Found* of_frame;       // the frame's count if it was accepted; all null: there are none
    const unsigned* of_keyframe; // 0: the keyframe has none
};

// What a point at `depth`, of which `metres` were measured, is multiplied with, and whether it counts:
// `OfPixels::bring`.
__device__ __forceinline__ bool bring(const Found* found, float gain, float metres, float depth, float& scale) {
    const float rest = logf(metres / depth);
    const float of_reach = rest / found->reach;
    const float squared = of_reach * of_reach;
    const float weight = 1.0f - squared * squared;
    // False for a rest that is not finite.
    if (!(metres > 0.0f && depth > 0.0f && weight > 0.0f)) {
        scale = 1.0f;
        return false;
    }
    scale = expf(gain * weight * rest);
    return true;
}

// `field::LAYERS` and `field::FIRST_LAYER`: layers of cells over depth, each for depths twice those of the one before.
constexpr unsigned kLayers = 4;
constexpr float kFirstLayer = 0.7f;

// `cuda::depth::field::LayoutArgument`: the image and the square cells of a layer.
struct Layout {
    unsigned width;
    unsigned height;
    unsigned columns;
    unsigned rows;
    unsigned side;
};

// Where a place lies between the centres of the cells of an axis.
struct Between {
    unsigned low;
    unsigned high;
    float share; // of `high`
};

__device__ __forceinline__ Between between(float place, unsigned count) {
    // NaN becomes 0.
    const float at = fminf(fmaxf(place, 0.0f), static_cast<float>(count - 1));
    const unsigned low = static_cast<unsigned>(at);
    return {low, min(low + 1, count - 1), at - static_cast<float>(low)};
}

// The place of a depth in metres between the layers.
__device__ __forceinline__ Between layer_of(float depth) { return between(log2f(depth / kFirstLayer), kLayers); }

} // namespace ms
