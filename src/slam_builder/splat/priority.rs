//! Lowest priority for threads whose work can wait.

/// Gives the current thread the lowest priority. Elsewhere than on Linux, its priority stays.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!("the Gaussian map has a thread of normal priority: {error}");
    }
}
