//! With the feature `cuda`: compiles every `kernels/**/*.cu` into a fat binary that the library embeds.
//! Without it there is nothing to do and nothing but Rust is needed.
//!
//! `OUT_DIR` then holds, for each `NAME.cu`, `NAME.fatbin`, the compiler's report `NAME.log`
//! (registers, shared memory, spills), and `kernels.rs` and `native_kernels.rs`, which the library
//! includes.

fn main() -> std::process::ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return std::process::ExitCode::SUCCESS;
    }
    println!("cargo::rerun-if-changed=kernels/build.rs");
    match kernels::build() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            std::process::ExitCode::FAILURE
        }
    }
}

#[path = "kernels/build.rs"]
mod kernels;
