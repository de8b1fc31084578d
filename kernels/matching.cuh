// Counts of a matching, which its kernels write and tracking reads.
#pragma once

namespace ms {

// Exact counts of one call.
struct MatchCounts {
    unsigned valid;   // matches that may be used, by geometry alone
    unsigned refined; // of those, moved by the descriptors
    unsigned good;    // quality above q_conf
    unsigned used;    // past every gate
    unsigned unique;  // distinct target pixels of valid matches
    unsigned reserved[3];
};

} // namespace ms
