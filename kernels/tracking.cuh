// What the tracker's pose solve leaves on the device, and who reads it: the fusion, and the host after the frame.
#pragma once

namespace ms {

// How a solve ended: `cuda::tracking::Status`, in its order. 0 is what no solve has written.
enum Status : unsigned {
    kSolved = 1,
    kFewMatches = 2, // below the least fraction of matched pixels
    kBadPose = 3,    // the pose to start from is not finite
    kOutside = 4,    // matches point outside the image
    kNoCorrespondences = 5,
    kNotFinite = 6, // the normal equations are not
    kSingular = 7,  // the matches leave some motion undetermined
};

// What the matching counts: `MatchCounts` of matching.cu, pixels of the keyframe.
struct Counts {
    unsigned valid;   // matched by geometry
    unsigned refined; // moved by the descriptors
    unsigned good;    // of good quality
    unsigned used;    // past every gate
    unsigned unique;  // distinct pixels of the frame
    unsigned reserved[3];
};

// `cuda::tracking::Outcome`. Unless solved, the pose is the one that the solve started from.
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
    Counts counts;
    float used_fraction;
    float unique_fraction;
    unsigned wants_keyframe;
    unsigned padding;
};
static_assert(sizeof(Outcome) == 424, "the size of `cuda::tracking::Outcome`");

} // namespace ms
