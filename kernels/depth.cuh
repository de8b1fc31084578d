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
    unsigned surfaces;  // whether points take depths of surfaces that the network has not resolved
    float confidence;   // minimum of points that agree with their depth
    int spread;         // maximum difference of two ratios of one surface, in steps
};

// `cuda::tracking::MeasuredDepthsArgument`: depths of a frame and of its keyframe.
struct MeasuredDepths {
    const float* frame;          // N metres; 0: not measured
    const float* keyframe;       // N
    const Found* of_frame;       // the frame's count if it was accepted; all null: there are none
    const unsigned* of_keyframe; // 0: the keyframe has none
};

// A measured depth over a point's; 0 if either is invalid: `pixels::over`.
__device__ __forceinline__ float over(float metres, float depth) {
    return metres > 0.0f && depth > 0.0f ? metres / depth : 0.0f;
}

// What brings a point nearer to its measured depth, which is `whole` over the point's, and the log ratio that is left,
// of positive sign; infinite if the depth does not count: `OfPixels::bring`.
__device__ __forceinline__ float bring(const Found* found, float gain, float whole, float& scale) {
    const float rest = logf(whole);
    const float of_reach = rest / found->reach;
    const float squared = of_reach * of_reach;
    const float weight = 1.0f - squared * squared;
    // False for a rest that is not finite, which a `whole` of 0 has.
    if (!(weight > 0.0f)) {
        scale = 1.0f;
        return INFINITY;
    }
    const float part = gain * weight;
    scale = expf(part * rest);
    return fabsf(rest * (1.0f - part));
}

// `around::SAME_SURFACE`, `around::SURFACE`, `pixels::AGREES`, `around::EDGE`, `depth::TRUSTED` and `pixels::DOUBTED`.
constexpr float kSameSurface = 0.05f;
constexpr unsigned kSurface = 2;
constexpr float kAgrees = 0.02f;
constexpr unsigned kEdge = 2;
constexpr unsigned kTrusted = 10;
constexpr float kDoubted = 0.6f;

// `around::DepthImage`.
struct DepthImage {
    const float* metres;
    unsigned width;
    unsigned pixels;
};

// Whether two depths are near enough to each other; false without the first: `around::same_surface`.
__device__ __forceinline__ bool same_surface(float z, float other) {
    return z > 0.0f && other > z * (1.0f - kSameSurface) && other < z * (1.0f + kSameSurface);
}

// Hands the depths of the pixels around one, up to a distance in rows and columns, to `use`; 0 beyond the image.
template <unsigned kDistance, typename Use>
__device__ __forceinline__ void around(const DepthImage& image, unsigned n, const Use& use) {
    constexpr int kFar = static_cast<int>(kDistance);
    const unsigned u = n % image.width, v = n / image.width, rows = image.pixels / image.width;
    for (int down = -kFar; down <= kFar; ++down) {
        // Unsigned: what is above the first row is beyond the last.
        const unsigned row = v + static_cast<unsigned>(down);
        // A row's loads do not wait for each other.
#pragma unroll
        for (int right = -kFar; right <= kFar; ++right) {
            const unsigned column = u + static_cast<unsigned>(right);
            const bool other = (down != 0 || right != 0) && row < rows && column < image.width;
            use(other ? image.metres[row * image.width + column] : 0.0f);
        }
    }
}

// Whether enough of the pixels around one have its depth: `DepthImage::is_of_surface`.
__device__ __forceinline__ bool is_of_surface(const DepthImage& image, unsigned n) {
    const float own = image.metres[n];
    unsigned same = 0;
    around<1>(image, n, [&](float other) { same += same_surface(own, other); });
    return same >= kSurface;
}

// Whether a point of this depth lies between the depths around its pixel, and on none of them: `DepthImage::is_of_edge`.
__device__ __forceinline__ bool is_of_edge(const DepthImage& image, unsigned n, float depth) {
    bool nearer = false, farther = false, on_one = false;
    around<kEdge>(image, n, [&](float other) {
        const bool measured = other > 0.0f;
        on_one |= measured && same_surface(depth, other);
        nearer |= measured && other < depth;
        farther |= measured && other > depth;
    });
    return nearer && farther && !on_one;
}

// `bring` with the depth of the point's own pixel `n`, which also changes the point's confidence:
// `OfPixels::bring_own`.
__device__ __forceinline__ float bring_own(const Found* found, float gain, const DepthImage& image, unsigned n,
                                           float depth, float& confidence) {
    const float whole = over(image.metres[n], depth);
    float scale;
    float left = bring(found, gain, whole, scale);
    const bool apart = left >= kSameSurface && found->surfaces != 0 && found->agreed >= kTrusted;
    if (apart && whole > 0.0f && isfinite(whole) && is_of_surface(image, n)) {
        scale = whole;
        left = 0.0f;
    }
    if (confidence > 0.0f && left < kAgrees) {
        confidence = fmaxf(confidence, found->confidence);
    } else if (apart && found->confidence > 0.0f && confidence > kDoubted * found->confidence &&
               is_of_edge(image, n, depth * scale)) {
        confidence = kDoubted * found->confidence;
    }
    return scale;
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
