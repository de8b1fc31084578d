// Results of the tracker's pose solve on the device. The fusion reads them, and the host after the frame.
#pragma once

#include "matching.cuh"

namespace ms {

// How a solve ended: `cuda::tracking::Status`, in its order. 0: no solve has run.
enum Status : unsigned {
    kSolved = 1,
    kFewMatches = 2, // below the minimum fraction of matched pixels
    kBadPose = 3,    // the initial pose is not finite
    kOutside = 4,    // matches point outside the image
    kNoCorrespondences = 5,
    kNotFinite = 6, // the normal equations are not finite
    kSingular = 7,  // the matches leave some motion undetermined
    kUnfit = 8,     // too few matches fit the pose
};

// `cuda::tracking::Outcome`. If the solve failed, the pose is the initial one.
struct Outcome {
    double pose[8];
    double cost;
    double robust;
    double hessian[28];
    float transform[12];
    unsigned status;
    unsigned iterations;
    unsigned converged;
    unsigned used;
    unsigned outside;
    unsigned evaluations;
    MatchCounts counts; // in pixels of the keyframe; unique: of the frame
    float used_fraction;
    float unique_fraction;
    unsigned fitting; // of `used`
    unsigned padding;
};
static_assert(sizeof(Outcome) == 424, "the size of `cuda::tracking::Outcome`");

} // namespace ms
