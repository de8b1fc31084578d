// The database of keyframes and its queries (docs/algorithm.md, Place recognition, step 5; CPU:
// src/compute/retrieval/database.rs).
//
// The CPU has a list of keyframes for each word. Here the query is inverted instead, into a table from word to place in
// the query, and the words of every keyframe are looked up in it: one coalesced pass over 1.2 kB per keyframe, with a
// fixed capacity, and nothing moves when keyframes come and go. Bits are read only for common words. Sums are integers,
// so they equal the CPU's.
//
// Limit: 6 MB at 5,000 keyframes of 300 words, 1.3 us at 4.8 TB/s, and 256 bytes for each common word.

#include "retrieval.cuh"

namespace {

using namespace ms::retrieval;

constexpr unsigned kWarps = 8;

} // namespace

// lookup[word] = place in the query + 1, for the query's words. The rest of the table is zero and stays so.
extern "C" __global__ void __launch_bounds__(256)
    ms_retrieval_mark(const unsigned* __restrict__ query_words, const Status* __restrict__ status,
                      unsigned short* __restrict__ lookup) {
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    if (i < status->query_words) {
        lookup[query_words[i]] = static_cast<unsigned short>(i + 1);
    }
}

// For each place of the database the sum of (C - 2 Hamming)^3 over common words whose similarity is not negative, and
// keys = (inverted bits of the score) << 32 | id for keyframes that score more than `least`, all ones for others. A
// keyframe has `stride` words and stride * integers integers of bits; `slots` is the number of places ever used. A warp
// per keyframe; grid ceil(capacity / 8). f64 is allowed here: one division by C^3, one square root and one division per
// keyframe, which give the CPU's bits.
extern "C" __global__ void __launch_bounds__(kWarps * 32)
    ms_retrieval_score(const unsigned* __restrict__ words, const unsigned* __restrict__ bits, const unsigned* __restrict__ counts,
                       const unsigned* __restrict__ ids, unsigned capacity, unsigned stride,
                       const unsigned* __restrict__ slots, const unsigned short* __restrict__ lookup,
                       const unsigned* __restrict__ query_bits, unsigned dim, unsigned integers, float least,
                       const Status* __restrict__ status, long long* __restrict__ sums, unsigned long long* __restrict__ keys) {
    const unsigned slot = blockIdx.x * kWarps + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (slot >= min(capacity, *slots)) {
        return;
    }
    const unsigned count = min(counts[slot], stride);
    const unsigned long long base = static_cast<unsigned long long>(slot) * stride;
    long long sum = 0;
    for (unsigned start = 0; start < count; start += 32) {
        const unsigned at = start + lane;
        const unsigned place = at < count ? lookup[words[base + at]] : 0;
        // All lanes work together on one common word after the other.
        unsigned common = __ballot_sync(0xffffffffu, place != 0);
        while (common != 0) {
            const unsigned from = __ffs(common) - 1;
            common &= common - 1;
            const unsigned query = __shfl_sync(0xffffffffu, place, from) - 1;
            const unsigned* const stored = bits + (base + start + from) * integers;
            const unsigned* const asked = query_bits + static_cast<unsigned long long>(query) * integers;
            unsigned differing = 0;
            for (unsigned i = lane; i < integers; i += 32) {
                differing += __popc(stored[i] ^ asked[i]);
            }
            differing = __reduce_add_sync(0xffffffffu, differing);
            const long long similarity = static_cast<long long>(dim) - 2 * static_cast<long long>(differing);
            if (similarity > 0) {
                sum += similarity * similarity * similarity;
            }
        }
    }
    if (lane != 0) {
        return;
    }
    sums[slot] = sum;
    unsigned long long key = ~0ull;
    if (sum > 0 || (count > 0 && least < 0.0f)) {
        const double cube = __dmul_rn(__dmul_rn(static_cast<double>(dim), static_cast<double>(dim)), static_cast<double>(dim));
        const double norm =
            __dsqrt_rn(__dmul_rn(static_cast<double>(status->query_words), static_cast<double>(count)));
        const float score =
            norm > 0.0 ? static_cast<float>(__ddiv_rn(__ddiv_rn(static_cast<double>(sum), cube), norm)) : 0.0f;
        if (score > least) {
            // Scores are not negative, so their bits sort like their values.
            key = static_cast<unsigned long long>(~__float_as_uint(score)) << 32 | ids[slot];
        }
    }
    keys[slot] = key;
}

// The best k; of equal scores the lower id first. hits[i] = (id, bits of the score). Then clears the query's words from
// the table. One block.
extern "C" __global__ void __launch_bounds__(1024)
    ms_retrieval_best(const unsigned long long* __restrict__ keys, unsigned capacity, const unsigned* __restrict__ slots, unsigned k,
                      const unsigned* __restrict__ query_words, unsigned short* __restrict__ lookup, uint2* __restrict__ hits,
                      Status* __restrict__ status) {
    __shared__ unsigned long long least[32];
    const unsigned thread = threadIdx.x;
    const unsigned count = min(capacity, *slots);
    k = min(k, kHits);
    for (unsigned i = thread; i < status->query_words; i += 1024) {
        lookup[query_words[i]] = 0;
    }
    // Keys are distinct, because ids are: the next is the smallest above the last.
    unsigned long long last = 0;
    unsigned found = 0;
    for (; found < k; ++found) {
        unsigned long long mine = ~0ull;
        for (unsigned i = thread; i < count; i += 1024) {
            const unsigned long long key = keys[i];
            if (key < mine && (found == 0 || key > last)) {
                mine = key;
            }
        }
#pragma unroll
        for (unsigned offset = 16; offset > 0; offset /= 2) {
            mine = min(mine, __shfl_xor_sync(0xffffffffu, mine, offset));
        }
        if (thread % 32 == 0) {
            least[thread / 32] = mine;
        }
        __syncthreads();
        last = least[thread % 32];
#pragma unroll
        for (unsigned offset = 16; offset > 0; offset /= 2) {
            last = min(last, __shfl_xor_sync(0xffffffffu, last, offset));
        }
        __syncthreads();
        if (last == ~0ull) {
            break;
        }
        if (thread == 0) {
            hits[found] = make_uint2(static_cast<unsigned>(last), ~static_cast<unsigned>(last >> 32));
        }
    }
    if (thread == 0) {
        status->hits = found;
    }
}

// Copies the description's stored words to a place in the database. An image that could not be described has none. Grid
// kKept, block 128.
extern "C" __global__ void __launch_bounds__(128)
    ms_retrieval_insert(const unsigned* __restrict__ stored_words, const unsigned* __restrict__ stored_bits,
                        const Status* __restrict__ status, unsigned slot, unsigned id, unsigned capacity, unsigned stride,
                        unsigned integers, unsigned* __restrict__ words, unsigned* __restrict__ bits,
                        unsigned* __restrict__ counts, unsigned* __restrict__ ids, unsigned* __restrict__ slots) {
    const unsigned count = min(status->stored_words, stride);
    const unsigned i = blockIdx.x;
    if (slot >= capacity) {
        return;
    }
    if (i == 0 && threadIdx.x == 0) {
        counts[slot] = count;
        ids[slot] = id;
        *slots = max(*slots, slot + 1);
    }
    if (i >= count) {
        return;
    }
    const unsigned long long at = static_cast<unsigned long long>(slot) * stride + i;
    if (threadIdx.x == 0) {
        words[at] = stored_words[i];
    }
    for (unsigned c = threadIdx.x; c < integers; c += 128) {
        bits[at * integers + c] = stored_bits[static_cast<unsigned long long>(i) * integers + c];
    }
}
