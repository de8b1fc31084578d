//! Reading datasets, videos and calibrations.

mod calibration;
mod datasets;
mod depth;
mod motion;
mod video;
