//! The program `mast3r-slam`; everything is in the library.

use clap::Parser;
use mast3r_slam::cli::{self, Cli};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new(cli.log_filter()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .log_internal_errors(false)
        .init();
    match cli::execute(&cli) {
        Ok(finished) => finished.into(),
        Err(error) => {
            cli::complain(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
