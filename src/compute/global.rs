//! Global Gauss-Newton over keyframe poses (spec 6.4 to 6.7).
