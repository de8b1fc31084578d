// The coloured cloud of the map (CPU: src/map/cloud.rs): keyframe after keyframe, points above a confidence go through the
// keyframe's Sim(3), and of each cube of space the most confident one stays, the first of equals; cubes stand in the order in which
// they were first met. The result is the CPU's, bit for bit, on every run.
//
// A cube is found through an open-addressing table. Its entries are numbers of points, not keys: of a point in the store (below
// `capacity`) or of a pixel of the keyframe in work (`capacity` + pixel). Positions of both were written by earlier launches, so a probe
// compares whole cubes (any i64 of them) and never waits for another thread. Which pixel of a new cube becomes its entry is a matter of
// chance; the first and the best pixel of each cube, on which the result depends, are integer minima and maxima.
//
// f64 is allowed in ms_cloud_points and ms_cloud_claim: the CPU transforms in f64, and a point that rounds differently may fall into another
// cube. It is about 45 f64 instructions a point: nothing where f64 runs at half of f32's rate, 0.2 ms a keyframe at 1/64 of it on
// the smallest device (196,608 points, 42 G f64/s), on the stream of lowest priority.
//
// Limit: 27 bytes a pixel read, 17 written and 17 read again, and the table: 12 MB a keyframe of 512x384, 2.5 us at 4.8 TB/s.

#include <cub/block/block_scan.cuh>
#include <cuda_fp16.h>

#include "index.cuh"

namespace {

constexpr unsigned kEmpty = 0xffffffffu;   // of the table: free
constexpr unsigned kRefused = 0xfffffffeu; // of the table: a cube for which the store had no room
constexpr unsigned kNone = 0xffffffffu;
constexpr unsigned kBlock = 1024; // pixels of a block in the kernels that count
constexpr unsigned kScan = 256;   // threads of the one that adds their counts up

// What a pixel is to its cube.
constexpr unsigned char kOther = 0;
constexpr unsigned char kFirstOfKnown = 1; // first of this keyframe in a cube of the store
constexpr unsigned char kFirstOfNew = 2;   // first of all in a new cube, or any point where there are no cubes

// A keyframe as it lies in its slot, and how it becomes part of the cloud (repeated in src/compute/cuda/cloud.rs).
struct Frame {
    double rotation[9]; // scaled rotation of world_from_camera, row-major
    double translation[3];
    double fx, fy, cx, cy; // used if `calibrated`
    const float* points;           // pixels x 3
    const __half* half_confidence; // pixels, unless null; else
    const float* confidence;       // pixels
    const unsigned char* image;    // pixels x 3, RGB
    float least_confidence;        // points need more
    unsigned calibrated;
    unsigned keyframe; // its id
    unsigned reserved;
};

// The state of the cloud.
struct Cloud {
    unsigned long long points;  // in the store
    unsigned long long refused; // points of cubes for which there was no room
    unsigned long long wanted;  // points that the keyframe in work would leave if there were room
};

struct alignas(16) Stored {
    float x, y, z;
    unsigned rgb; // 0x00RRGGBB, as PCL and RViz read a field `rgb`
};

__device__ __forceinline__ bool is_finite(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }
__device__ __forceinline__ bool is_finite(double v) {
    const unsigned long long exponent = 0x7ff0000000000000ull;
    return (static_cast<unsigned long long>(__double_as_longlong(v)) & exponent) != exponent;
}

struct Cube {
    long long x, y, z;
};
__device__ __forceinline__ bool operator==(const Cube& a, const Cube& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

// The conversion saturates, as Rust's cast does.
__device__ __forceinline__ Cube cube_of(float x, float y, float z, double per_metre) {
    return {__double2ll_rd(__dmul_rn(static_cast<double>(x), per_metre)),
            __double2ll_rd(__dmul_rn(static_cast<double>(y), per_metre)),
            __double2ll_rd(__dmul_rn(static_cast<double>(z), per_metre))};
}

// A finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) over the three coordinates.
__device__ __forceinline__ unsigned hash(const Cube& c) {
    unsigned long long h = static_cast<unsigned long long>(c.x) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 32 ^ static_cast<unsigned long long>(c.y)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 29 ^ static_cast<unsigned long long>(c.z)) * 0x94d049bb133111ebull;
    return static_cast<unsigned>(h >> 32);
}

// Orders confidences as `>` does: both zeros are alike.
__device__ __forceinline__ unsigned order_of(float confidence) {
    const unsigned bits = __float_as_uint(__fadd_rn(confidence, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

} // namespace

// An empty cloud: table (`slots` entries), first and best (`known` of each: capacity + pixels), counts.
extern "C" __global__ void __launch_bounds__(256)
    ms_cloud_clear(unsigned* __restrict__ table, unsigned long long slots, unsigned* __restrict__ first,
                   unsigned long long* __restrict__ best, unsigned long long known, Cloud* __restrict__ cloud) {
    const unsigned long long step = ms::thread_count();
    for (unsigned long long i = ms::thread_index(); i < slots; i += step) {
        table[i] = kEmpty;
    }
    for (unsigned long long i = ms::thread_index(); i < known; i += step) {
        first[i] = kNone;
        best[i] = 0;
    }
    if (ms::thread_index() == 0) {
        *cloud = {0, 0, 0};
    }
}

// staged[pixel] = (x, y, z, confidence) in the world; a confidence of NaN says that the pixel has no point.
extern "C" __global__ void __launch_bounds__(256)
    ms_cloud_points(const __grid_constant__ Frame frame, unsigned width, unsigned pixels, float4* __restrict__ staged) {
    const unsigned long long at = ms::thread_index();
    if (at >= pixels) {
        return;
    }
    const unsigned i = static_cast<unsigned>(at);
    float4 out = make_float4(0.0f, 0.0f, 0.0f, __uint_as_float(0x7fc00000u));
    const float confidence = frame.half_confidence != nullptr ? __half2float(frame.half_confidence[i]) : frame.confidence[i];
    if (confidence > frame.least_confidence && is_finite(confidence)) {
        const float* const p = frame.points + at * 3;
        double x = static_cast<double>(p[0]);
        double y = static_cast<double>(p[1]);
        double z = static_cast<double>(p[2]);
        // A NaN in x or y marks a point that was never measured, also where the ray replaces them.
        bool valid = is_finite(x) && is_finite(y);
        if (frame.calibrated) {
            const double u = static_cast<double>(i % width);
            const double v = static_cast<double>(i / width);
            x = __dmul_rn(__ddiv_rn(__dsub_rn(u, frame.cx), frame.fx), z);
            y = __dmul_rn(__ddiv_rn(__dsub_rn(v, frame.cy), frame.fy), z);
        }
        valid = valid && is_finite(x) && is_finite(y) && is_finite(z);
        const double* const m = frame.rotation;
        const double* const t = frame.translation;
        float world[3];
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            const double a = __dadd_rn(__dmul_rn(m[3 * r], x), __dmul_rn(m[3 * r + 1], y));
            world[r] = __double2float_rn(__dadd_rn(__dadd_rn(a, __dmul_rn(m[3 * r + 2], z)), t[r]));
            valid = valid && is_finite(world[r]);
        }
        if (valid) {
            out = make_float4(world[0], world[1], world[2], confidence);
        }
    }
    staged[i] = out;
}

// Finds or makes each point's cube. places[pixel] = its place in the table, or kNone; first and best of the cube's number become the first
// pixel and (order of confidence, inverted pixel) of the best. Pixels beside each other mostly share a cube: the first of a run of them
// within a warp acts for all. `mask` is the number of places less one, a power of two less one.
extern "C" __global__ void __launch_bounds__(256)
    ms_cloud_claim(const float4* __restrict__ staged, unsigned pixels, const Stored* __restrict__ store, unsigned capacity,
                   double per_metre, unsigned* table, unsigned mask, unsigned* __restrict__ first,
                   unsigned long long* __restrict__ best, unsigned* __restrict__ places, const Cloud* __restrict__ cloud) {
    const unsigned long long at = ms::thread_index();
    const unsigned lane = threadIdx.x % 32;
    const unsigned i = static_cast<unsigned>(at < pixels ? at : 0);
    const float4 p = staged[i];
    const bool valid = at < pixels && p.w == p.w;
    const Cube cube = valid ? cube_of(p.x, p.y, p.z, per_metre) : Cube{0, 0, 0};

    const Cube left = {__shfl_up_sync(0xffffffffu, cube.x, 1), __shfl_up_sync(0xffffffffu, cube.y, 1),
                       __shfl_up_sync(0xffffffffu, cube.z, 1)};
    const unsigned all_valid = __ballot_sync(0xffffffffu, valid);
    const bool joins = valid && lane > 0 && (all_valid >> (lane - 1) & 1u) && left == cube;
    const unsigned leaders = __ballot_sync(0xffffffffu, valid && !joins);
    const bool leads = leaders >> lane & 1u;
    // The end of this lane's run: the next lane that leads or has no point.
    const unsigned breaks = (leaders | ~all_valid) & ~((2u << lane) - 1);
    const unsigned end = breaks == 0 ? 32 : __ffs(breaks) - 1;

    unsigned long long rank = valid ? static_cast<unsigned long long>(order_of(p.w)) << 32 | ~i : 0;
#pragma unroll
    for (unsigned offset = 1; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_down_sync(0xffffffffu, rank, offset);
        if (lane + offset < end && other > rank) {
            rank = other;
        }
    }

    unsigned place = kNone;
    if (leads) {
        // A full store takes no more cubes, and so neither does the table: it stays at most 3/4 full and every search ends.
        const bool full = cloud->points >= capacity;
        unsigned probe = hash(cube) & mask;
        for (unsigned tries = 0; tries <= mask; ++tries) {
            unsigned number = *reinterpret_cast<volatile unsigned*>(table + probe);
            if (number == kEmpty) {
                if (full) {
                    break;
                }
                number = atomicCAS(table + probe, kEmpty, capacity + i);
                if (number == kEmpty) {
                    number = capacity + i;
                }
            }
            // Of a refused cube nothing is known any more; its points find no cube.
            if (number != kRefused) {
                bool same;
                if (number < capacity) {
                    const Stored s = store[number];
                    same = cube_of(s.x, s.y, s.z, per_metre) == cube;
                } else {
                    const unsigned pixel = number - capacity;
                    const float4 s = staged[pixel < pixels ? pixel : i];
                    same = cube_of(s.x, s.y, s.z, per_metre) == cube;
                }
                if (same) {
                    place = probe;
                    atomicMin(first + number, i);
                    atomicMax(best + number, rank);
                    break;
                }
            }
            probe = (probe + 1) & mask;
        }
    }
    const unsigned leader = 31 - __clz(leaders & ((2u << lane) - 1));
    place = __shfl_sync(0xffffffffu, place, valid ? leader : lane);
    if (at < pixels) {
        places[i] = valid ? place : kNone;
    }
}

// What each pixel is, and how many of a block are new. `cubes` 0: every point is. Block 1024.
extern "C" __global__ void __launch_bounds__(kBlock)
    ms_cloud_count(const float4* __restrict__ staged, unsigned pixels, unsigned cubes, unsigned capacity,
                   const unsigned* __restrict__ table, const unsigned* __restrict__ first, const unsigned* __restrict__ places,
                   unsigned char* __restrict__ roles, unsigned* __restrict__ block_counts) {
    const unsigned long long at = ms::thread_index();
    unsigned char role = kOther;
    if (at < pixels) {
        const unsigned i = static_cast<unsigned>(at);
        if (cubes == 0) {
            const float confidence = staged[i].w;
            role = confidence == confidence ? kFirstOfNew : kOther;
        } else if (places[i] != kNone) {
            const unsigned number = table[places[i]];
            if (first[number] == i) {
                role = number < capacity ? kFirstOfKnown : kFirstOfNew;
            }
        }
        roles[i] = role;
    }
    const int count = __syncthreads_count(role == kFirstOfNew);
    if (threadIdx.x == 0) {
        block_counts[blockIdx.x] = static_cast<unsigned>(count);
    }
}

// Where each block's new points go in the store, and the cloud's new size. One block.
extern "C" __global__ void __launch_bounds__(kScan)
    ms_cloud_scan(const unsigned* __restrict__ block_counts, unsigned blocks, unsigned capacity,
                  unsigned long long* __restrict__ block_starts, Cloud* __restrict__ cloud) {
    using Scan = cub::BlockScan<unsigned, kScan>;
    __shared__ typename Scan::TempStorage scan;
    unsigned long long next = cloud->points;
    for (unsigned base = 0; base < blocks; base += kScan) {
        const unsigned mine = base + threadIdx.x;
        // A block counts at most kBlock points, so kScan of them fit 32 bits.
        unsigned start, total;
        Scan(scan).ExclusiveSum(mine < blocks ? block_counts[mine] : 0u, start, total);
        if (mine < blocks) {
            block_starts[mine] = next + start;
        }
        next += total;
        __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cloud->wanted = next;
        cloud->points = next < capacity ? next : capacity;
    }
}

// Writes new points to their places and better ones over those of known cubes. Block 1024, blocks as in ms_cloud_count.
extern "C" __global__ void __launch_bounds__(kBlock)
    ms_cloud_store(const __grid_constant__ Frame frame, const float4* __restrict__ staged, unsigned pixels, unsigned cubes,
                   unsigned capacity, const unsigned char* __restrict__ roles,
                   const unsigned long long* __restrict__ block_starts, const unsigned* __restrict__ places,
                   unsigned* __restrict__ table, unsigned* __restrict__ first, unsigned long long* __restrict__ best,
                   Stored* __restrict__ store, float* __restrict__ confidences, unsigned* __restrict__ keyframes) {
    using Scan = cub::BlockScan<unsigned, kBlock>;
    __shared__ typename Scan::TempStorage scan;
    const unsigned long long at = ms::thread_index();
    const unsigned i = static_cast<unsigned>(at < pixels ? at : 0);
    const unsigned char role = at < pixels ? roles[i] : kOther;
    unsigned place;
    Scan(scan).ExclusiveSum(role == kFirstOfNew ? 1u : 0u, place);
    if (role == kOther) {
        return;
    }
    // Only the first pixel of a cube comes here, so nobody else touches its entries.
    unsigned source = i;
    unsigned number = 0;
    if (cubes != 0) {
        number = table[places[i]];
        source = ~static_cast<unsigned>(best[number]);
        first[number] = kNone;
        best[number] = 0;
    }
    const unsigned long long target = role == kFirstOfKnown ? number : block_starts[blockIdx.x] + place;
    if (role == kFirstOfNew && cubes != 0) {
        table[places[i]] = target < capacity ? static_cast<unsigned>(target) : kRefused;
    }
    if (target >= capacity || source >= pixels) {
        return;
    }
    const float4 p = staged[source];
    if (role == kFirstOfKnown && !(p.w > confidences[target])) {
        return;
    }
    const unsigned char* const rgb = frame.image + static_cast<unsigned long long>(source) * 3;
    store[target] = {p.x, p.y, p.z, static_cast<unsigned>(rgb[0]) << 16 | static_cast<unsigned>(rgb[1]) << 8 | rgb[2]};
    confidences[target] = p.w;
    keyframes[target] = frame.keyframe;
}

// Counts the points that found no room. Nothing to do while the store has some.
extern "C" __global__ void __launch_bounds__(256)
    ms_cloud_refused(const float4* __restrict__ staged, unsigned pixels, unsigned cubes, unsigned capacity,
                     const unsigned* __restrict__ table, const unsigned* __restrict__ places, Cloud* __restrict__ cloud) {
    if (cloud->points < capacity) {
        return;
    }
    const unsigned long long at = ms::thread_index();
    bool refused = false;
    if (cubes == 0) {
        if (at == 0) {
            cloud->refused += cloud->wanted - capacity;
        }
        return;
    }
    if (at < pixels) {
        const unsigned i = static_cast<unsigned>(at);
        const float confidence = staged[i].w;
        refused = confidence == confidence && (places[i] == kNone || table[places[i]] == kRefused);
    }
    const int count = __syncthreads_count(refused);
    if (threadIdx.x == 0 && count > 0) {
        atomicAdd(&cloud->refused, static_cast<unsigned long long>(count));
    }
}

// Points `from` to `from + count` of the store in the layout of a PointCloud2 message: x, y, z, rgb, then the confidence and then the
// keyframe and `revision`, as `fields` (bit 0, bit 1) asks; 4 bytes each.
extern "C" __global__ void __launch_bounds__(256)
    ms_cloud_pack(const Stored* __restrict__ store, const float* __restrict__ confidences, const unsigned* __restrict__ keyframes,
                  unsigned long long from, unsigned long long count, unsigned fields, unsigned revision,
                  unsigned* __restrict__ dst) {
    const unsigned long long at = ms::thread_index();
    if (at >= count) {
        return;
    }
    const unsigned words = 4 + (fields & 1u) + (fields & 2u);
    const Stored p = store[from + at];
    unsigned* out = dst + at * words;
    out[0] = __float_as_uint(p.x);
    out[1] = __float_as_uint(p.y);
    out[2] = __float_as_uint(p.z);
    out[3] = p.rgb;
    out += 4;
    if (fields & 1u) {
        *out++ = __float_as_uint(confidences[from + at]);
    }
    if (fields & 2u) {
        out[0] = keyframes[from + at];
        out[1] = revision;
    }
}
