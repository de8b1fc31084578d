// The arguments of attention.
#pragma once

#include "native.cuh"

namespace native {

// The same fields in the same order as in src/inference/native/arguments.rs.
struct AttentionArgs {
    uint64_t q, k, v, out;
    // Elements from item to item, and from token to token.
    int64_t q_item, k_item, v_item, out_item;
    int32_t q_stride, k_stride, v_stride, out_stride;
    int32_t tokens;
    // Item i reads the keys and values of item (i + shift) mod items.
    int32_t items, shift;
};

constexpr float LOG2_E = 1.4426950408889634f;

} // namespace native
