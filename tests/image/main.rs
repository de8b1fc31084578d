//! Decoding, cropping, resizing and undistorting images.

mod decode;
mod geometry;
mod reference;
