//! Every reader of foreign input, on inputs that a seeded mutator makes of good ones: none panics, and none takes more
//! memory than its input warrants. A program with a single test, because it counts the bytes in use of the process.

#[path = "../../fuzz/targets.rs"]
mod targets;

mod mutate;
mod seeds;

use mutate::Mutator;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use targets::{TARGETS, Target};
use testkit::counting::{self, Counting};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Inputs for each target, unless MAST3R_FUZZ_SECONDS says for how long.
const INPUTS: usize = 400;
/// Bytes that a reader may use, whatever the input (a bag's chunk of 64 MiB, packed and unpacked), and for each byte of
/// it: a deflated file unpacks into a thousand times its size, and what a pickle makes of a byte has 40.
const ALWAYS: usize = 160 << 20;
const PER_BYTE: usize = 2048;
/// Targets whose memory is not checked. The crate mcap (0.26) reserves what the length of a string in a record claims,
/// up to 4 GiB, before it finds that the record is shorter; it does not touch that memory. An open defect, see
/// docs/security.md.
const UNCHECKED: [&str; 1] = ["mcap"];

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

fn folder(kind: &str, target: &str) -> PathBuf {
    testkit::repository("fuzz").join(kind).join(target)
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a file");
    let all = paths
        .iter()
        .map(|path| (path.display().to_string(), read(path)));
    all.collect()
}

/// Runs a target; a panic or too much memory is an error.
fn run(name: &str, target: Target, data: &[u8]) -> Result<(), String> {
    let mut ended = Ok(());
    let peak = counting::peak(|| {
        ended =
            catch_unwind(AssertUnwindSafe(|| target(data))).map_err(|_| "it panicked".to_owned());
    });
    let limit = ALWAYS + PER_BYTE * data.len();
    if peak > limit as isize && !UNCHECKED.contains(&name) {
        return Err(format!("{peak} bytes were in use, at most {limit} may be"));
    }
    ended
}

/// Keeps an input that failed, and ends the test.
fn report(name: &str, data: &[u8], why: &str) -> ! {
    let path = std::env::temp_dir().join(format!("fuzz-{name}-{}", std::process::id()));
    std::fs::write(&path, data).expect("a file");
    panic!("{name}: {why}; the input is {}", path.display());
}

#[test]
fn no_reader_panics_or_takes_memory_that_its_input_does_not_warrant() {
    let seed = number("MAST3R_FUZZ_SEED").unwrap_or(1);
    let seconds = number("MAST3R_FUZZ_SECONDS").map(Duration::from_secs);
    let only = std::env::var("MAST3R_FUZZ_TARGET").ok();
    for (name, target) in TARGETS {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        for (path, data) in files(&folder("regressions", name)) {
            if let Err(why) = run(name, target, &data) {
                panic!("{path}: {why}");
            }
        }
        let mut seeds = seeds::of(name);
        seeds.extend(
            files(&folder("seeds", name))
                .into_iter()
                .map(|(_, data)| data),
        );
        assert!(!seeds.is_empty(), "{name} has no seed");
        for data in &seeds {
            if let Err(why) = run(name, target, data) {
                report(name, data, &why);
            }
        }
        let mut mutator = Mutator::new(seed, seeds);
        let start = Instant::now();
        let mut inputs = 0;
        loop {
            let goes_on = seconds.map_or(inputs < INPUTS, |limit| start.elapsed() < limit);
            if !goes_on {
                break;
            }
            let data = mutator.next();
            if let Err(why) = run(name, target, &data) {
                report(name, &data, &why);
            }
            inputs += 1;
        }
        println!(
            "{name}: {inputs} inputs in {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
}
