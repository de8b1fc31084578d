//! Relative pose of a frame to its keyframe (spec 5).
