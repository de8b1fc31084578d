#![no_main]

#[allow(dead_code, reason = "each binary runs one of the targets")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::splat(data));
