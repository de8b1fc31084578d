//! Pixel matching: iterative projective search and descriptor refinement (spec 3).
