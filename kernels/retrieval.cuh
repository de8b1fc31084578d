// Sizes and types shared by the kernels of place recognition. The sizes are repeated in
// src/compute/cuda/retrieval/mod.rs.
#pragma once

namespace ms {
namespace retrieval {

// Maximum number of features used per image, and that number padded to whole tiles of `kRowTile`.
constexpr unsigned kKept = 300;
constexpr unsigned kRowTile = 64;
constexpr unsigned kKeptPadded = 320;
// Nearest words that a query takes for each feature.
constexpr unsigned kNearest = 5;
// Words that lie side by side in the codebook: component c of word w is at ((w / 256) * C' + c) * 256 + w % 256, where
// C' is C padded to whole steps of `kStep`.
constexpr unsigned kPanel = 256;
// Components that are loaded at once.
constexpr unsigned kStep = 16;
// Maximum number of pairs of word and feature per image.
constexpr unsigned kPairs = kKept * kNearest;
// Maximum number of hits of a query.
constexpr unsigned kHits = 32;

constexpr unsigned kNone = 0xffffffffu;

// Result for an image's features; kNone: no such row.
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

// Copies 16 bytes from global to shared memory without registers (PTX ISA, cp.async).
__device__ __forceinline__ void copy16(void* shared, const void* global) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the newest `Left` groups are in flight.
template <int Left> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

} // namespace retrieval
} // namespace ms
