// Pointmaps in metres: multiplies the points of a pass by the scale and the field that ms_depth_measure found, as
// src/compute/depth/field.rs.
//
// Limit: 24 B a pixel and view read and written: 9.4 MB at 512x384 with two views, 2 us at 4.8 TB/s, and 1.3 to
// 1.5 us to approach the depths of one view.

#include "depth.cuh"
#include "index.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;

// `cuda::depth::field::CameraArgument`: pixels of points in the first view's camera.
struct Camera {
    float focal[2];
    float principal[2];
};

__device__ __forceinline__ float blend(float low, float high, float share) { return low + share * (high - low); }

// The field at column and row of the image and a depth in metres, linear along each.
__device__ __forceinline__ float field_at(const float* field, const Layout& l, float u, float v, float depth) {
    const float inverse_side = 1.0f / static_cast<float>(l.side);
    const Between x = between((u + 0.5f) * inverse_side - 0.5f, l.columns);
    const Between y = between((v + 0.5f) * inverse_side - 0.5f, l.rows);
    const Between z = layer_of(depth);
    const auto of_row = [&](unsigned layer, unsigned row) {
        const float* values = field + (layer * l.rows + row) * l.columns;
        return blend(values[x.low], values[x.high], x.share);
    };
    const auto of_layer = [&](unsigned layer) { return blend(of_row(layer, y.low), of_row(layer, y.high), y.share); };
    return blend(of_layer(z.low), of_layer(z.high), z.share);
}

} // namespace

// Multiplies the points of one or two views by the newest scale that was accepted.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_rescale(float* first, float* second, const Found* found, const unsigned numbers) {
    const float factor = found->factor;
    if (factor == 1.0f) {
        return;
    }
    float* points = blockIdx.y == 0 ? first : second;
    const unsigned long long n = thread_index();
    if (n < numbers) {
        points[n] *= factor;
    }
}

// Multiplies the points of one or two views, all in the first one's camera, by the newest scale that was accepted and
// the newest field: the first view's at their own pixels, the second's where the camera sees them.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_apply(float* first, float* second, const Found* found, const float* field, const Layout layout,
                   const Camera camera, const unsigned pixels) {
    const unsigned long long n = thread_index();
    if (n >= pixels) {
        return;
    }
    float* p = (blockIdx.y == 0 ? first : second) + 3 * n;
    float scale = found->factor;
    if (blockIdx.y == 0) {
        const float u = static_cast<float>(static_cast<unsigned>(n) % layout.width);
        const float v = static_cast<float>(static_cast<unsigned>(n) / layout.width);
        scale *= expf(field_at(field, layout, u, v, p[2] * scale));
    } else if (p[2] > 0.0f) {
        const float u = p[0] / p[2] * camera.focal[0] + camera.principal[0];
        const float v = p[1] / p[2] * camera.focal[1] + camera.principal[1];
        scale *= expf(field_at(field, layout, u, v, p[2] * scale));
    }
    for (int k = 0; k < 3; ++k) {
        p[k] *= scale;
    }
}

// Brings points that are in metres nearer to the depths of their own pixels, and changes the points' confidences, if
// the depths were accepted. Without confidences: null.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_depth_approach(float* points, float* confidence, const float* metres, const Found* found,
                      const unsigned width, const unsigned pixels) {
    const unsigned long long n = thread_index();
    if (n >= pixels || found->accepted == 0) {
        return;
    }
    float* p = points + 3 * n;
    const DepthImage image = {metres, width, pixels};
    const float before = confidence == nullptr ? 0.0f : confidence[n];
    float after = before;
    const float scale = bring_own(found, found->own, image, static_cast<unsigned>(n), p[2], after);
    if (after != before) {
        confidence[n] = after;
    }
    for (int k = 0; k < 3; ++k) {
        p[k] *= scale;
    }
}
