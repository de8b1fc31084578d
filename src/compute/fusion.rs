//! Fusion of a new pointmap into a keyframe (spec 4.1).
