// What a measurement of a pointmap's scale by depth leaves behind.
#pragma once

namespace ms {

// `cuda::depth::Found`.
struct Found {
    double sum;         // of the inliers' log ratios, off the median
    double patches;     // measurements that the pixels count as
    double max_mad;     // that was allowed
    unsigned count;     // pixels with both
    unsigned inliers;
    float median;       // of the log ratios
    float mad;
    float factor;       // the newest scale that was accepted
    unsigned accepted;  // whether this measurement's was
    unsigned agreed;    // `compute::depth::Trust`
    unsigned reserved;
};

} // namespace ms
