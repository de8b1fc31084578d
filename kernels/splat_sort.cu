// Stable radix sort of 32-bit keys with 32-bit values, 8 bits a pass: counts of all digits first, then each pass reads
// and writes once ("onesweep", Adinets and Merrill 2022). Written here because CUB's device-wide sort needs the CUDA
// run-time library on the host.
//
// Limit: 4 B a key to count, then 16 B a pair and pass. 40 M keys of 32 bits: 2.7 GB, 0.6 ms at 4.8 TB/s.

#include "splat.cuh"

namespace {

using namespace ms;

constexpr unsigned kThreads = 256;
constexpr unsigned kWarps = kThreads / 32;
constexpr unsigned kPerThread = 16;
constexpr unsigned kTile = kThreads * kPerThread;
constexpr unsigned kDigits = 256;
constexpr unsigned kPasses = 4;

// A tile's word for a digit: state in the upper two bits, below it a count of keys.
constexpr unsigned kOwn = 1u << 30, kFull = 2u << 30, kCount = kOwn - 1;

__device__ __forceinline__ void publish(unsigned* at, unsigned value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned observe(const unsigned* at) {
    unsigned value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Exclusive prefix sum over the block's 256 threads.
__device__ __forceinline__ unsigned scan(unsigned value, unsigned* sums) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned sum = value;
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    unsigned before = 0;
    for (unsigned k = 0; k < kWarps; ++k) {
        before += k < warp ? sums[k] : 0;
    }
    __syncthreads();
    return before + sum - value;
}

} // namespace

// Counts each digit of `passes` passes: passes x 256, which must be zero.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_sort_count(const unsigned* __restrict__ keys, unsigned n, unsigned passes, unsigned* __restrict__ counts) {
    __shared__ unsigned own[kPasses * kDigits];
    for (unsigned k = threadIdx.x; k < kPasses * kDigits; k += kThreads) {
        own[k] = 0;
    }
    __syncthreads();
    for (unsigned long long i = thread_index(); i < n; i += thread_count()) {
        const unsigned key = keys[i];
        for (unsigned pass = 0; pass < passes; ++pass) {
            atomicAdd(&own[pass * kDigits + (key >> 8 * pass & 0xffu)], 1u);
        }
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < passes * kDigits; k += kThreads) {
        if (own[k] != 0) {
            atomicAdd(&counts[k], own[k]);
        }
    }
}

// One pass. `words` (tiles x 256) and `ticket` must be zero. Without `values_in` a key's value is its place.
extern "C" __global__ void __launch_bounds__(kThreads)
    ms_splat_sort_pass(const unsigned* __restrict__ keys_in, const unsigned* __restrict__ values_in,
                       unsigned* __restrict__ keys_out, unsigned* __restrict__ values_out, unsigned n, unsigned pass,
                       const unsigned* __restrict__ counts, unsigned* words, unsigned* ticket) {
    __shared__ unsigned tile_number;
    __shared__ unsigned sums[kWarps];
    // Counts of digits per warp, then where they start within the tile; afterwards the sorted keys or values.
    __shared__ unsigned shared[kTile];
    __shared__ unsigned starts[kDigits], targets[kDigits];
    static_assert(kWarps * kDigits <= kTile, "counts fit");
    if (threadIdx.x == 0) {
        tile_number = atomicAdd(ticket, 1u);
    }
    for (unsigned k = threadIdx.x; k < kWarps * kDigits; k += kThreads) {
        shared[k] = 0;
    }
    __syncthreads();
    const unsigned tile = tile_number, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned long long first = static_cast<unsigned long long>(tile) * kTile;
    const unsigned long long own = first + warp * (32 * kPerThread) + lane;
    unsigned keys[kPerThread], ranks[kPerThread];
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned long long i = own + k * 32;
        // Keys beyond the last sort behind it.
        keys[k] = i < n ? keys_in[i] : 0xffffffffu;
    }
    unsigned* mine = shared + warp * kDigits;
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned digit = keys[k] >> 8 * pass & 0xffu;
        unsigned peers = 0xffffffffu;
#pragma unroll
        for (unsigned bit = 0; bit < 8; ++bit) {
            const bool set = (digit >> bit & 1u) != 0;
            const unsigned votes = __ballot_sync(0xffffffffu, set);
            peers &= set ? votes : ~votes;
        }
        const unsigned before = mine[digit];
        __syncwarp();
        const unsigned earlier = peers & ((1u << lane) - 1);
        if (earlier == 0) {
            mine[digit] = before + static_cast<unsigned>(__popc(peers));
        }
        __syncwarp();
        ranks[k] = before + static_cast<unsigned>(__popc(earlier));
    }
    __syncthreads();
    // One digit a thread: its keys in earlier warps, in this tile, in earlier tiles.
    const unsigned digit = threadIdx.x;
    unsigned total = 0;
#pragma unroll
    for (unsigned k = 0; k < kWarps; ++k) {
        const unsigned count = shared[k * kDigits + digit];
        shared[k * kDigits + digit] = total;
        total += count;
    }
    unsigned valid = total;
    if (first + kTile > n && digit == 0xffu) {
        valid -= static_cast<unsigned>(first + kTile - n);
    }
    unsigned* word = words + static_cast<unsigned long long>(tile) * kDigits + digit;
    publish(word, (tile == 0 ? kFull : kOwn) | valid);
    unsigned before = 0;
    if (tile != 0) {
        const unsigned* earlier = word;
        unsigned seen;
        do {
            earlier -= kDigits;
            do {
                seen = observe(earlier);
            } while (seen >> 30 == 0);
            before += seen & kCount;
        } while (seen >> 30 != 2);
        publish(word, kFull | (before + valid));
    }
    const unsigned start = scan(total, sums);
    const unsigned base = scan(counts[pass * kDigits + digit], sums);
    starts[digit] = start;
    // Where the tile's first key of this digit goes, less its place in the tile.
    targets[digit] = base + before - start;
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned d = keys[k] >> 8 * pass & 0xffu;
        ranks[k] += starts[d] + mine[d];
    }
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        shared[ranks[k]] = keys[k];
    }
    __syncthreads();
    const unsigned long long left = n - first;
    const unsigned count = left < kTile ? static_cast<unsigned>(left) : kTile;
    unsigned to[kPerThread];
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned i = k * kThreads + threadIdx.x;
        const unsigned key = shared[i];
        to[k] = targets[key >> 8 * pass & 0xffu] + i;
        if (i < count) {
            keys_out[to[k]] = key;
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned long long i = own + k * 32;
        if (i < n) {
            shared[ranks[k]] = values_in != nullptr ? values_in[i] : static_cast<unsigned>(i);
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned k = 0; k < kPerThread; ++k) {
        const unsigned i = k * kThreads + threadIdx.x;
        if (i < count) {
            values_out[to[k]] = shared[i];
        }
    }
}
