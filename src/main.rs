//! The program `mast3r-slam`; everything is in the library.

fn main() -> std::process::ExitCode {
    mast3r_slam::program()
}
