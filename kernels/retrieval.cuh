// What the kernels of place recognition share. The sizes are repeated in src/compute/cuda/retrieval/mod.rs.
#pragma once

namespace ms {
namespace retrieval {

// Most features of an image that are used (spec 7.2), and that number padded to whole tiles of `kRowTile`.
constexpr unsigned kKept = 300;
constexpr unsigned kRowTile = 64;
constexpr unsigned kKeptPadded = 320;
// Words that a feature of a query belongs to.
constexpr unsigned kNearest = 5;
// Words that lie side by side in the codebook: component c of word w is at ((w / 256) * C' + c) * 256 + w % 256, where C' is
// C padded to whole steps of `kStep`.
constexpr unsigned kPanel = 256;
// Components that are loaded at once.
constexpr unsigned kStep = 16;
// Most pairs of word and feature of an image.
constexpr unsigned kPairs = kKept * kNearest;
// Most hits of a query.
constexpr unsigned kHits = 32;

constexpr unsigned kNone = 0xffffffffu;

// What became of an image's features: kNone means no such row.
struct Status {
    unsigned feature_row;   // first token with a component that is not finite
    unsigned whitened_row;  // first such token after whitening
    unsigned nonzero;       // whether any component of any token is not zero
    unsigned kept;          // features in use; 0 if the image cannot be described
    unsigned query_words;   // distinct words of the query,
    unsigned stored_words;  // and of what is stored
    unsigned hits;          // entries of the hit list
};

__device__ __forceinline__ bool describable(const Status& s) {
    return s.feature_row == kNone && s.whitened_row == kNone && s.nonzero != 0;
}

// 16 bytes from global to shared memory, past the registers (PTX ISA, cp.async).
__device__ __forceinline__ void copy16(void* shared, const void* global) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Left` of the newest groups are under way.
template <int Left> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

} // namespace retrieval
} // namespace ms
