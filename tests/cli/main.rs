//! The program, run as users run it.

mod device;
mod doctor;
mod map_file;
mod maps;
mod packed;
mod plan;
mod repeat;
mod run;
mod saving;
mod selftest;
mod splat;
mod usage;
mod weights;
