// Pose of a frame relative to its keyframe (docs/algorithm.md, Tracking): gathering, all Gauss-Newton iterations with
// damping and retries, and the stop rules in one cooperative launch. src/compute/pose_solver.rs is the definition.
//
// Each warp keeps the matches that it gathered, 32 bytes each, in shared memory (the overflow in global memory), so an
// iteration reads only the sums of the other blocks from outside the multiprocessor. Each block adds up the sums of all
// blocks in the same order and takes the same decisions: one grid barrier per evaluation of the normal equations. Two
// runs give the same bits.
//
// Limit, 196,608 matches on an H200: 37 sums of 3 or 4 residuals are about 350 instructions a match, 2.2 us for 132
// multiprocessors at 1.8 GHz; gathering reads 32 B per pixel once, 6.3 MB, 1.3 us from memory at 4.8 TB/s. The rest of
// an evaluation is latency: barrier, sums and a 7x7 solve by one warp. A block takes at most half of a multiprocessor,
// so that the mapper's solve and the tracker's can be resident together and neither blocks the other's barrier.

#include "depth.cuh"
#include "grid_barrier.cuh"
#include "residual.cuh"
#include "solve7.cuh"
#include "tracking.cuh"

#include <cuda_fp16.h>

namespace {

using namespace ms;

constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
// Columns of the normal equations, matches used, matches that point outside the image, matches that fit.
constexpr unsigned kUsed = kColumns;
constexpr unsigned kOutsideImage = kColumns + 1;
constexpr unsigned kFitting = kColumns + 2;
constexpr unsigned kSlots = kColumns + 3;
// The sums of all blocks are read four at a time; kParts groups of threads share the blocks, with kReads reads in
// flight.
constexpr unsigned kStride = 40;
constexpr unsigned kQuads = kStride / 4;
constexpr unsigned kParts = kThreads / kQuads;
constexpr unsigned kReads = 6;
// Rounds whose matches are gathered together, so that their reads overlap.
constexpr unsigned kTogether = 3;

// As in src/compute/pose_solver.rs.
constexpr double kFloor = 1e-12;
constexpr double kFirstDamping = 1e-4;
constexpr unsigned kTries = 10;

// `cuda::tracking::Problem`.
struct Problem {
    // N x 3 points, and for each pixel of the keyframe its pixel of the frame and the match's quality, in one of two
    // formats: the other pointer is null.
    const float* frame_points;
    const float* keyframe_points;
    const unsigned* index;
    const __half* half_quality;
    const float* quality;
    // The matcher's counts, or null: then any number of matches is accepted.
    const MatchCounts* counts;
    // Initial pose, replaced by the solution; null: the identity.
    double* pose;
    Outcome* outcome;
    // Matches beyond the shared rounds: 2 float4 for each thread of the grid and each round.
    float4* batch;
    // 2 x blocks x kStride, 16-byte aligned.
    float* partials;
    // The barrier's counter: 0 at first; a launch leaves it ready for the next.
    unsigned* arrived;
    // Calibrated only.
    Rays rays;
    unsigned long long pixels;
    double rel_error;
    double delta_norm;
    // Relative error of a sum over matches.
    double rounding;
    // Pixels that each thread gathers, and how many of their matches fit in shared memory.
    unsigned rounds;
    unsigned shared_rounds;
    unsigned max_iters;
    float least_fraction;
    // Minimum part of the matches that must fit the pose, and the squared direction error below which one does.
    float min_fit;
    float fits;
    Noise noise;
    Gate gate;
    View view;
    // Calibrated only.
    MeasuredDepths measured;
    // The weight of a log-depth of which the sensor measured both ends.
    float inverse_measured_sigma;
};
static_assert(kUsed == 4 * (kQuads - 1) + 1 && kSlots == kStride, "the last quad");
static_assert(sizeof(Problem) == 256, "the size of `cuda::tracking::Problem`");

// State of the deciding warp, the same in every block.
struct Control {
    Sim3 at;
    Sim3 candidate;
    double damping;
    double previous_cost;
    double step_norm;
    unsigned tries;
    unsigned iterations;
    unsigned evaluations;
    unsigned converged;
    // Which of the two buffers belongs to `at`.
    unsigned current;
    unsigned status;
    unsigned started;
    unsigned done;
};

struct Shared {
    double part[kParts][kStride];
    double total[2][kStride];
    // Hessian and gradient scaled to a unit diagonal, and the scales.
    double hessian[2][28];
    double gradient[2][7];
    double scale[2][7];
    Control control;
    Pose pose;
    float column[kWarps][kColumns];
    unsigned used[kWarps];
    unsigned outside[kWarps];
    unsigned fitting[kWarps];
};

// Rays and distances.
struct RaysModel {
    static __device__ __forceinline__ bool gather(const Problem& p, unsigned long long n, unsigned m, float quality,
                                                  float4& a, float4& b) {
        const float* from = p.frame_points + 3ull * m;
        const float* to = p.keyframe_points + 3ull * n;
        const float moving[3] = {from[0], from[1], from[2]};
        const float target[3] = {to[0], to[1], to[2]};
        if (!accepts(p.gate, moving, target, quality)) {
            return false;
        }
        const RayMatch match = ray_match(moving, target, quality);
        a = make_float4(moving[0], moving[1], moving[2], match.root_quality);
        b = make_float4(match.ray[0], match.ray[1], match.ray[2], match.length);
        return true;
    }

    static __device__ __forceinline__ void add(Sums& sums, const Problem& p, const Pose& pose, const float4& a,
                                               const float4& b) {
        add_rays(sums, pose, p.noise, {{a.x, a.y, a.z}, {b.x, b.y, b.z}, b.w, a.w}, p.fits);
    }
};

// Pixels and log-depths, of pointmaps that are put on their pixels' rays: only their depths are read.
struct PixelsModel {
    static __device__ __forceinline__ bool gather(const Problem& p, unsigned long long n, unsigned m, float quality,
                                                  float4& a, float4& b) {
        const unsigned pixel = static_cast<unsigned>(n);
        float moving[3], target[3];
        on_ray(p.rays, m, p.frame_points[3ull * m + 2], moving);
        on_ray(p.rays, pixel, p.keyframe_points[3ull * n + 2], target);
        if (!accepts(p.gate, moving, target, quality)) {
            return false;
        }
        const unsigned v = pixel / p.rays.width;
        const MeasuredDepths& d = p.measured;
        const bool by_sensor = d.frame != nullptr && d.of_frame->accepted != 0 && *d.of_keyframe != 0 &&
                               d.frame[m] > 0.0f && d.keyframe[n] > 0.0f;
        const float inverse_sigma = by_sensor ? p.inverse_measured_sigma : p.noise.inverse_sigma[1];
        const PixelMatch match = pixel_match(moving, pixel - v * p.rays.width, v, target[2], quality, inverse_sigma);
        a = make_float4(moving[0], moving[1], moving[2], match.root_quality);
        b = make_float4(match.pixel[0], match.pixel[1], match.log_depth, inverse_sigma);
        return true;
    }

    static __device__ __forceinline__ void add(Sums& sums, const Problem& p, const Pose& pose, const float4& a,
                                               const float4& b) {
        add_pixels(sums, pose, p.view, p.noise, {{a.x, a.y, a.z}, {b.x, b.y}, b.z, a.w, b.w}, p.fits);
    }
};

// Where a thread's match of a round is stored, in two halves.
struct Place {
    float4* first;
    float4* second;
};

__device__ __forceinline__ Place place(const Problem& p, float4* held, unsigned round, unsigned thread) {
    if (round < p.shared_rounds) {
        float4* first = held + round * kThreads + thread;
        return {first, first + p.shared_rounds * kThreads};
    }
    const unsigned long long blocks = gridDim.x;
    const unsigned long long beyond = p.rounds - p.shared_rounds;
    float4* first = p.batch + ((round - p.shared_rounds) * blocks + blockIdx.x) * kThreads + thread;
    return {first, first + beyond * blocks * kThreads};
}

// The bits of a pixel's quality as they are in memory: unpacking while loading would wait for them.
__device__ __forceinline__ unsigned quality_bits(const Problem& p, unsigned long long pixel) {
    return p.half_quality != nullptr ? reinterpret_cast<const unsigned short*>(p.half_quality)[pixel]
                                     : reinterpret_cast<const unsigned*>(p.quality)[pixel];
}

__device__ __forceinline__ float unpacked(const Problem& p, unsigned bits) {
    return p.half_quality != nullptr ? __half2float(__ushort_as_half(static_cast<unsigned short>(bits)))
                                     : __uint_as_float(bits);
}

// Gathers the usable matches of this warp's pixels. Its groups of 32 pixels are strided over the image, so matched and
// unmatched regions are spread over all warps. Returns the number of matches, stored without gaps from the first lane
// on.
template <class Model>
__device__ __forceinline__ unsigned gather(const Problem& p, float4* held, unsigned& outside) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned count = 0;
    for (unsigned first = 0; first < p.rounds; first += kTogether) {
        unsigned index[kTogether], bits[kTogether];
        unsigned long long pixel[kTogether];
#pragma unroll
        for (unsigned k = 0; k < kTogether; ++k) {
            const unsigned long long group =
                static_cast<unsigned long long>((first + k) * kWarps + warp) * gridDim.x + blockIdx.x;
            pixel[k] = group * 32 + lane;
            const bool there = first + k < p.rounds && pixel[k] < p.pixels;
            bits[k] = there ? quality_bits(p, pixel[k]) : 0;
            index[k] = there ? p.index[pixel[k]] : 0;
        }
        bool kept[kTogether];
        float4 a[kTogether], b[kTogether];
#pragma unroll
        for (unsigned k = 0; k < kTogether; ++k) {
            const float quality = unpacked(p, bits[k]);
            // False for NaN.
            const bool asked = quality > p.gate.quality && quality > 0.0f;
            const bool inside = index[k] < p.pixels;
            outside += asked && !inside;
            kept[k] = asked && inside && Model::gather(p, pixel[k], index[k], quality, a[k], b[k]);
        }
#pragma unroll
        for (unsigned k = 0; k < kTogether; ++k) {
            const unsigned ballot = __ballot_sync(kAll, kept[k]);
            if (kept[k]) {
                const unsigned at = count + __popc(ballot & ((1u << lane) - 1));
                const Place to = place(p, held, at / 32, warp * 32 + at % 32);
                *to.first = a[k];
                *to.second = b[k];
            }
            count += __popc(ballot);
        }
    }
    // Lanes read what other lanes wrote.
    __syncwarp();
    return count;
}

// Writes the normal equations of all blocks at `shared.pose` into `shared.part`, which the caller adds up.
template <class Model>
__device__ __forceinline__ void evaluate(const Problem& p, Shared& shared, float4* held, unsigned count,
                                         unsigned evaluation) {
    const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    Sums sums;
    sums.clear();
    const Pose pose = shared.pose;
    // The next match is loaded while this one is processed.
    float4 a, b;
    const auto load = [&](unsigned at) {
        const Place from = place(p, held, at / 32, thread);
        a = *from.first;
        b = *from.second;
    };
    if (lane < count) {
        load(lane);
    }
    for (unsigned at = lane; at < count; at += 32) {
        const float4 first = a, second = b;
        if (at + 32 < count) {
            load(at + 32);
        }
        Model::add(sums, p, pose, first, second);
    }
    sum_warp(sums, lane, shared.column[warp]);
    const unsigned used = __reduce_add_sync(kAll, sums.used), fitting = __reduce_add_sync(kAll, sums.fitting);
    if (lane == 0) {
        shared.used[warp] = used;
        shared.fitting[warp] = fitting;
    }
    __syncthreads();

    const unsigned long long blocks = gridDim.x;
    float* partials = p.partials + (evaluation % 2) * blocks * kStride;
    if (thread < kStride) {
        float value;
        if (thread < kColumns) {
            double sum = 0.0;
            for (unsigned w = 0; w < kWarps; ++w) {
                sum += static_cast<double>(shared.column[w][thread]);
            }
            value = static_cast<float>(sum);
        } else {
            const unsigned* counts = thread == kUsed      ? shared.used
                                     : thread == kFitting ? shared.fitting
                                                          : shared.outside;
            unsigned sum = 0;
            for (unsigned w = 0; w < kWarps; ++w) {
                sum += counts[w];
            }
            value = __uint_as_float(sum);
        }
        partials[blockIdx.x * static_cast<unsigned long long>(kStride) + thread] = value;
    }
    // One barrier is enough: two buffers alternate, and no block reaches the second next before all have read this one.
    wait_for_grid(p.arrived);

    const unsigned part = thread / kQuads, quad = thread % kQuads;
    if (part < kParts) {
        double sum[4] = {0.0, 0.0, 0.0, 0.0};
        for (unsigned long long first = part; first < blocks; first += kReads * kParts) {
            float4 read[kReads];
#pragma unroll
            for (unsigned k = 0; k < kReads; ++k) {
                const unsigned long long block = first + k * kParts;
                // Bypasses the first-level cache, which other multiprocessors do not update.
                read[k] = block < blocks ? __ldcg(reinterpret_cast<const float4*>(partials + block * kStride) + quad)
                                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (unsigned k = 0; k < kReads; ++k) {
                sum[0] += static_cast<double>(read[k].x);
                // The last quad holds the last column and three counts below 2^32, whose sums are exact.
                const bool counts = quad == kQuads - 1;
                sum[1] += counts ? static_cast<double>(__float_as_uint(read[k].y)) : static_cast<double>(read[k].y);
                sum[2] += counts ? static_cast<double>(__float_as_uint(read[k].z)) : static_cast<double>(read[k].z);
                sum[3] += counts ? static_cast<double>(__float_as_uint(read[k].w)) : static_cast<double>(read[k].w);
            }
        }
        for (unsigned k = 0; k < 4; ++k) {
            shared.part[part][4 * quad + k] = sum[k];
        }
    }
    __syncthreads();
}

// Adds up `shared.part` into the fresh buffer and scales it; whether all of it is finite. One warp.
__device__ __forceinline__ bool settle(Shared& shared, unsigned fresh, unsigned lane) {
    double* total = shared.total[fresh];
    for (unsigned slot = lane; slot < kSlots; slot += 32) {
        // Two interleaved chains of additions take half the time of one.
        double even = 0.0, odd = 0.0;
        for (unsigned part = 0; part + 1 < kParts; part += 2) {
            even += shared.part[part][slot];
            odd += shared.part[part + 1][slot];
        }
        total[slot] = even + odd + (kParts % 2 != 0 ? shared.part[kParts - 1][slot] : 0.0);
    }
    __syncwarp();
    const bool finite = isfinite(total[lane]) && (lane + 32 >= kColumns || isfinite(total[lane + 32]));
    // Any positive scale near the exact one is good enough.
    if (lane < 7) {
        shared.scale[fresh][lane] = static_cast<double>(rsqrtf(static_cast<float>(total[packed(lane, lane)])));
    }
    __syncwarp();
    const double* scale = shared.scale[fresh];
    if (lane < 28) {
        const unsigned r = (lane >= 7) + (lane >= 13) + (lane >= 18) + (lane >= 22) + (lane >= 25) + (lane >= 27);
        const unsigned c = lane - r * (13 - r) / 2;
        shared.hessian[fresh][lane] = total[lane] * scale[r] * scale[c];
    }
    if (lane < 7) {
        shared.gradient[fresh][lane] = total[kGradient + lane] * scale[lane];
    }
    __syncwarp();
    return __all_sync(kAll, finite);
}

// Whether the step from `old` to `fresh` is progress. Costs are compared per match; a match that comes into view may
// cost up to five times the average; a difference within rounding is ignored.
__device__ __forceinline__ bool is_progress(const double* old, const double* fresh, double rounding) {
    const double old_used = fmax(old[kUsed], 1.0), used = fmax(fresh[kUsed], 1.0);
    const double gained = fmax(used - old_used, 0.0) / old_used;
    const double slack = rounding + 4.0 * gained;
    return used >= 0.5 * old_used && fresh[kRobust] * old_used <= old[kRobust] * used * (1.0 + slack);
}

// What a solution of the scaled equations is used for.
enum class Task : int {
    kJudge,   // solves the fresh linearisation, if it is accepted
    kRetry,   // solves the current one with more damping
    kVerdict, // solves the current one undamped: no step lowers the cost; a short one means a minimum
    kNone,
};

// The damping after an accepted step.
__device__ __forceinline__ double relaxed(double damping) { return damping > kFirstDamping ? damping * 0.1 : 0.0; }

// Increases the damping; returns the next action.
__device__ __forceinline__ Task harder(Control& c) {
    c.damping = fmax(c.damping * 10.0, kFirstDamping);
    return ++c.tries < kTries ? Task::kRetry : Task::kVerdict;
}

// Decides the next action from a solution, its validity, its length, and whether the equations determine the pose:
// evaluate a candidate, solve again, or end. One thread.
__device__ __forceinline__ Task decide(const Problem& p, Shared& shared, Task task, bool finite, bool determined,
                                       bool solved, const double (&step)[7], double norm) {
    Control& c = shared.control;
    if (task == Task::kVerdict) {
        c.converged = solved && norm < p.delta_norm;
        c.done = 1;
        return Task::kNone;
    }
    if (task == Task::kJudge) {
        const double* old = shared.total[c.current];
        const double* total = shared.total[1 - c.current];
        ++c.evaluations;
        if (!c.started) {
            c.status = total[kOutsideImage] > 0.0 ? kOutside
                       : total[kUsed] == 0.0      ? kNoCorrespondences
                       : !finite                  ? kNotFinite
                       : !determined              ? kSingular
                                                  : kSolved;
            c.started = 1;
            c.done = c.status != kSolved || p.max_iters == 0;
        } else if (finite && determined && is_progress(old, total, p.rounding)) {
            // NaN at first, when the previous cost is infinite.
            const double fall = (c.previous_cost - old[kCost]) / c.previous_cost;
            // A rise within rounding counts as a fall of zero; with `rel_error` 0 no fall is small enough.
            const bool little = p.rel_error > 0.0 && fall >= -p.rounding && fall < p.rel_error;
            c.converged = c.step_norm < p.delta_norm || little || old[kCost] == 0.0;
            c.previous_cost = old[kCost];
            c.damping = relaxed(c.damping);
            c.tries = 0;
            c.at = c.candidate;
            ++c.iterations;
            c.done = c.converged || c.iterations >= p.max_iters;
        } else {
            return c.step_norm < p.delta_norm ? Task::kVerdict : harder(c);
        }
        c.current = 1 - c.current;
        if (c.done) {
            return Task::kNone;
        }
    }
    if (solved) {
        c.candidate = sim3_retract(c.at, step);
        c.step_norm = norm;
        if (sim3_is_finite(c.candidate)) {
            shared.pose = sim3_pose(c.candidate);
            return Task::kNone;
        }
        if (norm < p.delta_norm) {
            return Task::kVerdict;
        }
    }
    return harder(c);
}

// Computes the next candidate from the sums at the current one, or ends the iterations. One warp.
__device__ __forceinline__ void advance(const Problem& p, Shared& shared, unsigned lane) {
    const unsigned fresh = 1 - shared.control.current;
    const bool finite = settle(shared, fresh, lane);
    Task task = Task::kJudge;
    while (task != Task::kNone) {
        const unsigned buffer = task == Task::kJudge ? fresh : shared.control.current;
        const double damping = shared.control.damping;
        double diagonal = 1.0 + kFloor;
        diagonal += task == Task::kJudge ? relaxed(damping) : task == Task::kRetry ? damping : 0.0;
        // Another lane tests whether the equations determine the pose: H - limit I is positive definite exactly if no
        // eigenvalue is below the limit. Rounding moves an entry of the scaled Hessian by at most `rounding`, and an
        // eigenvalue by at most seven times that.
        diagonal = lane == 1 ? 1.0 - 7.0 * p.rounding : diagonal;
        double step[7];
        const bool ok = solve(shared.hessian[buffer], shared.gradient[buffer], diagonal, step);
        const bool determined = __shfl_sync(kAll, ok, 1);
        if (lane == 0) {
            bool solved = ok;
            double squares = 0.0;
#pragma unroll
            for (int k = 0; k < 7; ++k) {
                step[k] *= -shared.scale[buffer][k];
                solved = solved && isfinite(step[k]);
                squares = fma(step[k], step[k], squares);
            }
            task = decide(p, shared, task, finite, determined, solved, step, sqrt(squares));
        }
        __syncwarp();
        task = static_cast<Task>(__shfl_sync(kAll, static_cast<int>(task), 0));
    }
}

__device__ __forceinline__ Sim3 initial(const Problem& p) {
    return p.pose == nullptr ? sim3_identity() : sim3_load(p.pose);
}

// Reads the pose and the gate's counts. One thread.
__device__ __forceinline__ void begin(const Problem& p, Shared& shared) {
    Control& c = shared.control;
    c.at = initial(p);
    c.candidate = c.at;
    c.damping = 0.0;
    c.previous_cost = infinity();
    c.step_norm = 0.0;
    c.tries = c.iterations = c.evaluations = c.converged = c.current = c.started = 0;
    c.status = kSolved;
    if (p.counts != nullptr) {
        const float used = static_cast<float>(p.counts->used) / static_cast<float>(p.pixels);
        c.status = used < p.least_fraction ? kFewMatches : kSolved;
    }
    if (c.status == kSolved && !sim3_is_finite(c.at)) {
        c.status = kBadPose;
    }
    c.done = c.status != kSolved;
    shared.pose = sim3_pose(c.at);
}

// Writes the outcome. One thread of one block, after all blocks have read the pose.
__device__ __forceinline__ void report(const Problem& p, const Shared& shared) {
    const Control& c = shared.control;
    const double* total = shared.total[c.current];
    Outcome& out = *p.outcome;
    const bool evaluated = c.started != 0;
    const double used = evaluated ? total[kUsed] : 0.0, fitting = evaluated ? total[kFitting] : 0.0;
    const bool unfit = c.status == kSolved && fitting < static_cast<double>(p.min_fit) * used;
    const Sim3 pose = unfit ? initial(p) : c.at;
    sim3_store(pose, out.pose);
    out.cost = evaluated ? total[kCost] : 0.0;
    out.robust = evaluated ? total[kRobust] : 0.0;
    for (int k = 0; k < 28; ++k) {
        out.hessian[k] = evaluated ? total[k] : 0.0;
    }
    const Pose transform = sim3_pose(pose);
    for (int k = 0; k < 9; ++k) {
        out.transform[k] = transform.a[k];
    }
    for (int k = 0; k < 3; ++k) {
        out.transform[9 + k] = transform.t[k];
    }
    out.status = unfit ? kUnfit : c.status;
    out.iterations = c.iterations;
    out.converged = c.converged;
    out.used = static_cast<unsigned>(used);
    out.fitting = static_cast<unsigned>(fitting);
    out.outside = evaluated ? static_cast<unsigned>(total[kOutsideImage]) : 0;
    out.evaluations = c.evaluations;
    const MatchCounts counts = p.counts == nullptr ? MatchCounts{} : *p.counts;
    out.counts = counts;
    const float pixels = static_cast<float>(p.pixels);
    out.used_fraction = static_cast<float>(counts.used) / pixels;
    out.unique_fraction = static_cast<float>(counts.unique) / pixels;
    out.padding = 0;
    if (p.pose != nullptr && out.status == kSolved) {
        sim3_store(c.at, p.pose);
    }
}

template <class Model> __device__ __forceinline__ void run(const Problem& p) {
    extern __shared__ float4 held[];
    __shared__ Shared shared;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        begin(p, shared);
    }
    unsigned outside = 0;
    const unsigned count = gather<Model>(p, held, outside);
    outside = __reduce_add_sync(kAll, outside);
    if (lane == 0) {
        shared.outside[warp] = outside;
    }
    __syncthreads();
    // Every block takes the same decisions, so no block waits at a barrier for one that has ended.
    for (unsigned evaluation = 0; shared.control.done == 0; ++evaluation) {
        evaluate<Model>(p, shared, held, count, evaluation);
        if (warp == 0) {
            advance(p, shared, lane);
        }
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        report(p, shared);
    }
}

} // namespace

// Uncalibrated. All blocks must be resident: a cooperative launch with 256 threads per block and 8 KiB of dynamic
// shared memory for each round that is kept there.
extern "C" __global__ void __launch_bounds__(kThreads, 2) ms_tracking_solve_rays(const Problem p) { run<RaysModel>(p); }

// Calibrated; the same.
extern "C" __global__ void __launch_bounds__(kThreads, 2) ms_tracking_solve_pixels(const Problem p) {
    run<PixelsModel>(p);
}
