//! `--jobs`: the threads of a command.

use super::CliError;

/// Sets the size of the thread pool; returns it.
pub fn start_threads(jobs: Option<usize>) -> Result<usize, CliError> {
    let jobs = match jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(jobs)
        .build_global()
        .map_err(|cause| CliError::Threads { jobs, cause })?;
    Ok(jobs)
}
