// Draws the Gaussian map: projects rows, sorts them by depth, lists the tiles that each touches, and blends per pixel,
// front to back; then the gradients by what the rows are in the image, back to front. As in src/compute/splat/render.rs
// and backward.rs, within rounding.
//
// Visible rows are packed, in the order of rows. Tiles of an ellipse are exact (not of its bounding box), which changes no
// pixel, as an alpha outside is below the minimum.

#include "splat_view.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kTile = 2048;
constexpr unsigned kPerThread = kTile / kThreads;
constexpr unsigned kMaxTileRows = 1024;

// Packed arrays, one element per visible row.
struct Visible {
    unsigned* row;
    // Centre in the image, opacity, depth.
    float4* place;
    // Inverse covariance, squared extent.
    float4* conic;
    // Colour, and which channels are not clamped (bits 0 to 2, as an integer).
    float4* colour;
    // Variance in y, for the range of tile rows.
    float* height;
    // Depth as an integer of the same order.
    unsigned* key;
};

__device__ __forceinline__ Ellipse ellipse(const float4& place, const float4& conic) {
    return {place.x, place.y, conic.x, conic.y, conic.z, conic.w};
}

// Whether an integer from 0 to `size` - 1 lies within `centre` +- `extent`.
__device__ __forceinline__ bool covers(float centre, float extent, unsigned size) {
    const float first = fmaxf(ceilf(centre - extent), 0.0f);
    const float last = fminf(floorf(centre + extent), static_cast<float>(size) - 1.0f);
    return first <= last;
}

// Position of this thread's pixel in its tile: a warp covers 8 x 4 pixels.
__device__ __forceinline__ uint2 pixel_in_tile() {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return make_uint2((warp % 2) * 8 + lane % 8, (warp / 2) * 4 + lane / 8);
}

// Adds values of pairs of lanes, each keeping half of them.
template <unsigned Width, unsigned Step> __device__ __forceinline__ void fold(float v[16], unsigned lane) {
    const bool upper = (lane & Step) != 0;
#pragma unroll
    for (unsigned j = 0; j < Width; ++j) {
        const float keep = upper ? v[j + Width] : v[j];
        const float give = upper ? v[j] : v[j + Width];
        v[j] = keep + __shfl_xor_sync(0xffffffffu, give, static_cast<int>(Step));
    }
}

} // namespace

// Projects all rows and packs those that are visible, at most `limit` of them; `total` is how many there are. Adds the
// tiles that they touch to `row_tiles`, by tile row. `words`, `ticket`, `total` and `row_tiles` must be zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_project(SplatPool pool, unsigned rest, unsigned long long rows, SplatCamera camera, Visible visible,
                     unsigned limit, unsigned long long* words, unsigned* ticket, unsigned long long* total,
                     unsigned long long* row_tiles) {
    __shared__ unsigned tile;
    __shared__ unsigned counts[kPerThread * kWarps];
    __shared__ unsigned long long before;
    __shared__ unsigned tiles_of[kMaxTileRows];
    if (threadIdx.x == 0) {
        tile = atomicAdd(ticket, 1u);
    }
    for (unsigned k = threadIdx.x; k < camera.tiles_y; k += kThreads) {
        tiles_of[k] = 0;
    }
    __syncthreads();
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned long long first = static_cast<unsigned long long>(tile) * kTile;
    const float* const* planes = pool.planes[0];
    unsigned seen = 0;
    unsigned ranks[kPerThread];
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned long long row = first + k * kThreads + threadIdx.x;
        bool is = false;
        if (row < rows) {
            const float mean[3] = {planes[kMean][row * 3], planes[kMean][row * 3 + 1], planes[kMean][row * 3 + 2]};
            // A row behind the camera needs no more than its mean.
            const float z = fmaf(camera.r[6], mean[0], fmaf(camera.r[7], mean[1], fmaf(camera.r[8], mean[2], camera.t[2])));
            if (z >= kNear) {
                const float scale[3] = {planes[kScale][row * 3], planes[kScale][row * 3 + 1], planes[kScale][row * 3 + 2]};
                const float4 q4 = *reinterpret_cast<const float4*>(planes[kRotation] + row * 4);
                const float q[4] = {q4.x, q4.y, q4.z, q4.w};
                Projection p;
                is = project(camera, mean, scale, q, planes[kOpacity][row], p) &&
                     covers(p.u, sqrtf(p.reach * p.xx), camera.width) && covers(p.v, sqrtf(p.reach * p.yy), camera.height);
            }
        }
        const unsigned votes = __ballot_sync(0xffffffffu, is);
        ranks[k] = static_cast<unsigned>(__popc(votes & ((1u << lane) - 1)));
        seen |= is ? 1u << k : 0;
        if (lane == 0) {
            counts[k * kWarps + warp] = static_cast<unsigned>(__popc(votes));
        }
    }
    __syncthreads();
    if (warp == 0) {
        const unsigned low = counts[2 * lane], high = counts[2 * lane + 1];
        unsigned sum = low + high;
        for (unsigned step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        counts[2 * lane] = sum - low - high;
        counts[2 * lane + 1] = sum - high;
        const unsigned own = __shfl_sync(0xffffffffu, sum, 31);
        const unsigned long long earlier = look_back(words, tile, own);
        if (lane == 0) {
            before = earlier;
            if (first + kTile >= rows) {
                *total = earlier + own;
            }
        }
    }
    __syncthreads();
    // Again for the visible ones only, so that a thread need not keep eight projections.
#pragma unroll 1
    for (unsigned k = 0; k < kPerThread; ++k) {
        unsigned rank = 0;
#pragma unroll
        for (unsigned j = 0; j < kPerThread; ++j) {
            rank = j == k ? ranks[j] : rank;
        }
        const unsigned long long at = before + counts[k * kWarps + warp] + rank;
        if ((seen >> k & 1u) == 0 || at >= limit) {
            continue;
        }
        const unsigned long long row = first + k * kThreads + threadIdx.x;
        const float mean[3] = {planes[kMean][row * 3], planes[kMean][row * 3 + 1], planes[kMean][row * 3 + 2]};
        const float scale[3] = {planes[kScale][row * 3], planes[kScale][row * 3 + 1], planes[kScale][row * 3 + 2]};
        const float4 q4 = *reinterpret_cast<const float4*>(planes[kRotation] + row * 4);
        const float q[4] = {q4.x, q4.y, q4.z, q4.w};
        Projection p;
        project(camera, mean, scale, q, planes[kOpacity][row], p);
        float colour[3];
#pragma unroll
        for (unsigned c = 0; c < 3; ++c) {
            colour[c] = fmaf(kC0, planes[kColour][row * 3 + c], 0.5f);
        }
        if (camera.used > 0) {
            const float x = mean[0] - camera.centre[0], y = mean[1] - camera.centre[1], z = mean[2] - camera.centre[2];
            const float inverse = rsqrtf(fmaf(x, x, fmaf(y, y, z * z)));
            float value[15];
            harmonics(x * inverse, y * inverse, z * inverse, camera.used, value);
            const float* own = planes[kRest] + row * rest;
#pragma unroll
            for (unsigned j = 0; j < 15; ++j) {
                if (j < camera.used) {
#pragma unroll
                    for (unsigned c = 0; c < 3; ++c) {
                        colour[c] = fmaf(value[j], own[j * 3 + c], colour[c]);
                    }
                }
            }
        }
        unsigned open = 0;
#pragma unroll
        for (unsigned c = 0; c < 3; ++c) {
            const bool positive = finite(colour[c]) && colour[c] > 0.0f;
            colour[c] = positive ? colour[c] : 0.0f;
            open |= positive ? 1u << c : 0;
        }
        visible.row[at] = static_cast<unsigned>(row);
        const float4 place = make_float4(p.u, p.v, p.opacity, p.z), conic = make_float4(p.a, p.b, p.c, p.reach);
        visible.place[at] = place;
        visible.conic[at] = conic;
        visible.colour[at] = make_float4(colour[0], colour[1], colour[2], __uint_as_float(open));
        visible.height[at] = p.yy;
        visible.key[at] = __float_as_uint(p.z);
        const uint2 range = tile_rows(p.v, p.yy, p.reach, camera.tiles_y);
        const Ellipse e = ellipse(place, conic);
        for (unsigned ty = range.x; ty < range.y; ++ty) {
            const uint2 span = tile_span(e, ty, camera.tiles_x);
            if (span.y > span.x) {
                atomicAdd(&tiles_of[ty], span.y - span.x);
            }
        }
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < camera.tiles_y; k += kThreads) {
        if (tiles_of[k] != 0) {
            atomicAdd(&row_tiles[k], static_cast<unsigned long long>(tiles_of[k]));
        }
    }
}

// Lists the tiles of tile rows `begin` to `end` - 1 that each row touches, in the order of depth: key (tile within the
// band) and value (packed row). `words` and `ticket` must be zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_list(const float4* __restrict__ places, const float4* __restrict__ conics, const float* __restrict__ heights,
                  const unsigned* __restrict__ order, unsigned count, unsigned begin, unsigned end, unsigned tiles_x,
                  unsigned limit, unsigned long long* words, unsigned* ticket, unsigned* __restrict__ keys,
                  unsigned* __restrict__ values) {
    __shared__ unsigned tile;
    __shared__ unsigned long long before;
    __shared__ unsigned sums[kWarps];
    __shared__ unsigned starts[kThreads + 1];
    __shared__ Ellipse ellipses[kThreads];
    __shared__ uint2 ranges[kThreads];
    __shared__ unsigned packed[kThreads];
    if (threadIdx.x == 0) {
        tile = atomicAdd(ticket, 1u);
    }
    __syncthreads();
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned long long at = static_cast<unsigned long long>(tile) * kThreads + threadIdx.x;
    unsigned own = 0;
    if (at < count) {
        const unsigned index = order[at];
        const float4 place = places[index], conic = conics[index];
        const Ellipse e = ellipse(place, conic);
        uint2 range = tile_rows(e.v, heights[index], e.reach, end);
        range.x = range.x > begin ? range.x : begin;
        for (unsigned ty = range.x; ty < range.y; ++ty) {
            const uint2 span = tile_span(e, ty, tiles_x);
            own += span.y - span.x;
        }
        ellipses[threadIdx.x] = e;
        ranges[threadIdx.x] = range;
        packed[threadIdx.x] = index;
    }
    unsigned sum = own;
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    unsigned earlier = 0, total = 0;
    for (unsigned k = 0; k < kWarps; ++k) {
        earlier += k < warp ? sums[k] : 0;
        total += sums[k];
    }
    starts[threadIdx.x] = earlier + sum - own;
    if (threadIdx.x == 0) {
        starts[kThreads] = total;
    }
    if (warp == 0) {
        const unsigned long long found = look_back(words, tile, total);
        if (lane == 0) {
            before = found;
        }
    }
    __syncthreads();
    for (unsigned slot = threadIdx.x; slot < total; slot += kThreads) {
        // The last row that starts at or before the slot.
        unsigned low = 0;
#pragma unroll
        for (unsigned step = kThreads / 2; step > 0; step /= 2) {
            low += starts[low + step] <= slot ? step : 0;
        }
        unsigned left = slot - starts[low];
        const Ellipse e = ellipses[low];
        const uint2 range = ranges[low];
        unsigned key = 0;
        for (unsigned ty = range.x; ty < range.y; ++ty) {
            const uint2 span = tile_span(e, ty, tiles_x);
            const unsigned width = span.y - span.x;
            if (left < width) {
                key = (ty - begin) * tiles_x + span.x + left;
                break;
            }
            left -= width;
        }
        const unsigned long long to = before + slot;
        if (to < limit) {
            keys[to] = key;
            values[to] = packed[low];
        }
    }
}

// First entry and past the last of each tile in the sorted list; `ranges` must be zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_ranges(const unsigned* __restrict__ keys, unsigned count, uint2* __restrict__ ranges) {
    for (unsigned long long i = thread_index(); i < count; i += thread_count()) {
        const unsigned key = keys[i];
        if (i == 0 || keys[i - 1] != key) {
            ranges[key].x = static_cast<unsigned>(i);
        }
        if (i + 1 == count || keys[i + 1] != key) {
            ranges[key].y = static_cast<unsigned>(i) + 1;
        }
    }
}

// Blends the tiles from tile row `begin` on, one block each. Writes colour (pixels x 3), depth, the transmittance that is
// left, and how many entries of the tile's list count.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_blend(const float4* __restrict__ places, const float4* __restrict__ conics, const float4* __restrict__ colours,
                   const unsigned* __restrict__ values, const uint2* __restrict__ ranges, unsigned begin,
                   SplatCamera camera, float* __restrict__ colour, float* __restrict__ depth, float* __restrict__ left,
                   unsigned* __restrict__ last) {
    __shared__ float4 place[kThreads], conic[kThreads], shade[kThreads];
    const unsigned tx = blockIdx.x % camera.tiles_x, ty = begin + blockIdx.x / camera.tiles_x;
    const uint2 own = pixel_in_tile();
    const unsigned px = tx * kSide + own.x, py = ty * kSide + own.y;
    const bool inside = px < camera.width && py < camera.height;
    const float x = static_cast<float>(px), y = static_cast<float>(py);
    const uint2 range = ranges[blockIdx.x];
    float transmittance = 1.0f, red = 0.0f, green = 0.0f, blue = 0.0f, far = 0.0f;
    unsigned used = 0;
    bool done = !inside;
    for (unsigned first = range.x; first < range.y; first += kThreads) {
        // Also the barrier before the arrays are written again.
        if (__syncthreads_count(done) == kThreads) {
            break;
        }
        const unsigned i = first + threadIdx.x;
        if (i < range.y) {
            const unsigned index = values[i];
            place[threadIdx.x] = places[index];
            conic[threadIdx.x] = conics[index];
            shade[threadIdx.x] = colours[index];
        }
        __syncthreads();
        const unsigned count = min(kThreads, range.y - first);
        for (unsigned k = 0; k < count && !done; ++k) {
            const float4 p = place[k], q = conic[k];
            const float dx = p.x - x, dy = p.y - y;
            const float power = fmaf(-0.5f, fmaf(q.x * dx, dx, q.z * dy * dy), -q.y * dx * dy);
            const float alpha = fminf(kMaxAlpha, p.z * __expf(power));
            if (power > 0.0f || alpha < kMinAlpha) {
                continue;
            }
            const float next = transmittance * (1.0f - alpha);
            if (next < kMinTransmittance) {
                done = true;
                break;
            }
            const float weight = alpha * transmittance;
            const float4 c = shade[k];
            red = fmaf(c.x, weight, red);
            green = fmaf(c.y, weight, green);
            blue = fmaf(c.z, weight, blue);
            far = fmaf(p.w, weight, far);
            transmittance = next;
            used = first - range.x + k + 1;
        }
    }
    if (inside) {
        const unsigned long long pixel = static_cast<unsigned long long>(py) * camera.width + px;
        colour[pixel * 3] = fmaf(transmittance, camera.background[0], red);
        colour[pixel * 3 + 1] = fmaf(transmittance, camera.background[1], green);
        colour[pixel * 3 + 2] = fmaf(transmittance, camera.background[2], blue);
        depth[pixel] = far;
        left[pixel] = transmittance;
        last[pixel] = used;
    }
}

// Gradients by what the rows are in the image, added to `gradients` (packed rows x kGradients): mean 2, conic 3 (the
// middle one once), opacity, colour 3, depth. Gradients by the image: colour (pixels x 3), and depth and silhouette
// (pixels each) or null.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_blend_backward(const float4* __restrict__ places, const float4* __restrict__ conics,
                            const float4* __restrict__ colours, const unsigned* __restrict__ values,
                            const uint2* __restrict__ ranges, unsigned begin, SplatCamera camera,
                            const float* __restrict__ left, const unsigned* __restrict__ last,
                            const float* __restrict__ by_colour, const float* __restrict__ by_depth,
                            const float* __restrict__ by_silhouette, float* __restrict__ gradients) {
    __shared__ float4 place[kThreads], conic[kThreads], shade[kThreads];
    __shared__ unsigned packed[kThreads];
    __shared__ unsigned deepest;
    const unsigned tx = blockIdx.x % camera.tiles_x, ty = begin + blockIdx.x / camera.tiles_x;
    const uint2 own = pixel_in_tile();
    const unsigned lane = threadIdx.x % 32;
    const unsigned px = tx * kSide + own.x, py = ty * kSide + own.y;
    const bool inside = px < camera.width && py < camera.height;
    const float x = static_cast<float>(px), y = static_cast<float>(py);
    const unsigned long long pixel = static_cast<unsigned long long>(py) * camera.width + px;
    const uint2 range = ranges[blockIdx.x];
    const unsigned used = inside ? last[pixel] : 0;
    float transmittance = inside ? left[pixel] : 1.0f;
    float dc[3] = {0.0f, 0.0f, 0.0f}, dd = 0.0f, ds = 0.0f;
    if (inside) {
        dc[0] = by_colour[pixel * 3];
        dc[1] = by_colour[pixel * 3 + 1];
        dc[2] = by_colour[pixel * 3 + 2];
        dd = by_depth != nullptr ? by_depth[pixel] : 0.0f;
        ds = (by_silhouette != nullptr ? by_silhouette[pixel] : 0.0f) * transmittance;
    }
    // What lies behind, times the gradients by the image: colour and depth together.
    float behind = dc[0] * camera.background[0] + dc[1] * camera.background[1] + dc[2] * camera.background[2];
    if (threadIdx.x == 0) {
        deepest = 0;
    }
    __syncthreads();
    const unsigned warp_used = __reduce_max_sync(0xffffffffu, used);
    if (lane == 0) {
        atomicMax(&deepest, warp_used);
    }
    __syncthreads();
    const unsigned total = deepest;
    for (unsigned done = 0; done < total; done += kThreads) {
        __syncthreads();
        const unsigned count = min(kThreads, total - done);
        if (threadIdx.x < count) {
            const unsigned index = values[range.x + total - 1 - done - threadIdx.x];
            packed[threadIdx.x] = index;
            place[threadIdx.x] = places[index];
            conic[threadIdx.x] = conics[index];
            shade[threadIdx.x] = colours[index];
        }
        __syncthreads();
        // Entries behind all of the warp's pixels are passed over.
        const unsigned end = total - done;
        for (unsigned k = end > warp_used ? end - warp_used : 0; k < count; ++k) {
            const float4 p = place[k], q = conic[k];
            const float dx = p.x - x, dy = p.y - y;
            const float power = fmaf(-0.5f, fmaf(q.x * dx, dx, q.z * dy * dy), -q.y * dx * dy);
            const float gaussian = __expf(power);
            const float alpha = fminf(kMaxAlpha, p.z * gaussian);
            const bool counts = end - k <= used && !(power > 0.0f || alpha < kMinAlpha);
            if (!__any_sync(0xffffffffu, counts)) {
                continue;
            }
            float v[16];
#pragma unroll
            for (unsigned j = 0; j < 16; ++j) {
                v[j] = 0.0f;
            }
            if (counts) {
                const float4 c = shade[k];
                const float over = __fdividef(1.0f, 1.0f - alpha);
                transmittance *= over;
                const float weight = alpha * transmittance;
                v[6] = weight * dc[0];
                v[7] = weight * dc[1];
                v[8] = weight * dc[2];
                v[9] = weight * dd;
                const float front = fmaf(c.x, dc[0], fmaf(c.y, dc[1], fmaf(c.z, dc[2], p.w * dd)));
                const float by_alpha = fmaf(transmittance, front - behind, ds * over);
                behind = fmaf(alpha, front - behind, behind);
                if (p.z * gaussian <= kMaxAlpha) {
                    v[5] = gaussian * by_alpha;
                    // Gradient by the exponent.
                    const float g = -p.z * gaussian * by_alpha;
                    v[0] = g * fmaf(q.x, dx, q.y * dy);
                    v[1] = g * fmaf(q.y, dx, q.z * dy);
                    const float half = 0.5f * g;
                    v[2] = half * dx * dx;
                    v[3] = half * dx * dy;
                    v[4] = half * dy * dy;
                }
            }
            // Sums over the warp; lane 2 j ends with value j's.
            fold<8, 16>(v, lane);
            fold<4, 8>(v, lane);
            fold<2, 4>(v, lane);
            fold<1, 2>(v, lane);
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], 1);
            if (lane % 2 == 0 && lane < 20) {
                atomicAdd(gradients + static_cast<unsigned long long>(packed[k]) * kGradients + lane / 2, v[0]);
            }
        }
    }
}
