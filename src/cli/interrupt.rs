//! Ctrl-C: the first one ends the run after the current frame, the second one at once.

use super::CliError;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Exit code after Ctrl-C, as shells have it.
pub const EXIT_CODE: u8 = 130;

/// Starts catching Ctrl-C (and the system's request to terminate).
pub fn install() -> Result<(), CliError> {
    install_for("stopping after this frame, then writing the results; Ctrl-C again quits at once")
}

/// [`install`] for a command that says something else.
pub fn install_for(message: &'static str) -> Result<(), CliError> {
    ctrlc::set_handler(move || {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
        super::complain(&format!("\n{message}"));
    })?;
    Ok(())
}

/// Whether Ctrl-C was pressed.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
