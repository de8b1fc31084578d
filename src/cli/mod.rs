//! The command line: one module per sub-command.
//!
//! Exit codes: 0 success, 1 error, 2 invalid command line, 130 ended by Ctrl-C with the results
//! written.

#[cfg(feature = "bags")]
mod bag;
#[cfg(feature = "bags")]
mod bag_args;
#[cfg(feature = "cuda")]
mod bench;
mod codebook;
mod doctor;
mod engines;
mod error;
mod eval;
mod frames;
mod grid;
mod interrupt;
mod jobs;
mod manual;
mod map;
mod motion_args;
mod network;
#[cfg(any(feature = "dds", feature = "r2r"))]
mod node;
mod output;
mod plan;
mod progress;
#[cfg(all(feature = "bags", feature = "ros"))]
mod record;
mod run;
mod selftest;
mod session;
mod settings;
mod sizes;
mod splat;
mod version;
#[cfg(feature = "view")]
mod view_args;
mod weights;

pub use error::CliError;

use crate::slam::Note;
use clap::{Parser, Subcommand};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Monocular dense SLAM with MASt3R: images in, metric poses and a dense cloud out.
#[derive(Debug, Parser)]
#[command(name = "mast3r-slam", version, long_version = version::long(), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the bundled model on the bundled sequence and write a report.
    Demo(run::DemoArgs),
    Run(Box<run::RunArgs>),
    Eval(eval::EvalArgs),
    #[command(subcommand)]
    Network(network::NetworkCommand),
    #[command(subcommand)]
    Engine(engines::EngineCommand),
    #[command(subcommand)]
    Codebook(codebook::CodebookCommand),
    #[command(subcommand)]
    Map(map::MapCommand),
    #[command(subcommand)]
    Splat(splat::SplatCommand),
    /// Print the memory plan of a run on a GPU, buffer by buffer, and what to lower. Needs no GPU.
    Plan(plan::PlanArgs),
    /// Measure every stage on the GPU and compare it with the GPU's limits.
    #[cfg(feature = "cuda")]
    Bench(bench::BenchArgs),
    #[cfg(any(feature = "dds", feature = "r2r"))]
    Node(node::NodeArgs),
    #[cfg(feature = "bags")]
    #[command(subcommand)]
    Bag(bag::BagCommand),
    Doctor(doctor::DoctorArgs),
    #[command(name = "selftest")]
    SelfTest(selftest::SelfTestArgs),
    #[command(subcommand)]
    Weights(weights::WeightsCommand),
    Manual(manual::ManualArgs),
    /// Inspect configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration as YAML.
    Show(settings::ConfigArgs),
}

impl Cli {
    /// Default log level if `RUST_LOG` is not set: a node logs its activity, like other nodes.
    pub fn log_filter(&self) -> &'static str {
        match &self.command {
            #[cfg(any(feature = "dds", feature = "r2r"))]
            Command::Node(_) => "warn,mast3r_slam=info,rustdds=error,r2r=off",
            _ => "warn",
        }
    }
}

/// Parses the command line, sets up logging and runs the command.
pub fn program() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new(cli.log_filter()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // An old console of Windows would show colours as characters.
        .with_ansi(cfg!(not(windows)) && std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .log_internal_errors(false)
        .init();
    match execute(&cli) {
        Ok(finished) => finished.into(),
        Err(error) => {
            complain(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// How a successful command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    Done,
    /// Ctrl-C ended it early; the results so far are written.
    Interrupted,
}

impl From<Finished> for ExitCode {
    fn from(finished: Finished) -> Self {
        match finished {
            Finished::Done => Self::SUCCESS,
            Finished::Interrupted => Self::from(interrupt::EXIT_CODE),
        }
    }
}

/// Runs the command.
fn execute(cli: &Cli) -> Result<Finished, CliError> {
    match &cli.command {
        Command::Demo(args) => run::demo(args),
        Command::Run(args) => run::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Network(command) => network::run(command),
        Command::Engine(command) => engines::run(command),
        Command::Codebook(command) => codebook::run(command),
        Command::Map(command) => map::run(command),
        Command::Splat(command) => splat::run(command),
        Command::Plan(args) => plan::run(args),
        #[cfg(feature = "cuda")]
        Command::Bench(args) => bench::run(args),
        #[cfg(any(feature = "dds", feature = "r2r"))]
        Command::Node(args) => node::run(args),
        #[cfg(feature = "bags")]
        Command::Bag(command) => bag::run(command),
        Command::Doctor(args) => doctor::run(args),
        Command::SelfTest(args) => selftest::run(args),
        Command::Weights(command) => weights::run(command),
        Command::Manual(args) => manual::run(args),
        Command::Config(ConfigCommand::Show(args)) => {
            say(args.builder().effective_config()?.to_yaml()?.trim_end());
            Ok(Finished::Done)
        }
    }
}

/// Prints a line on standard output. A closed reader (`| head`) is not an error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints the choices made; warnings go to the log.
fn tell(notes: &[Note]) {
    for note in notes {
        match note.is_warning() {
            true => tracing::warn!("{note}"),
            false => say(&note.to_string()),
        }
    }
}

/// Prints a line on standard error, where `eprintln!` would panic if it is closed.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// An image size that is not a multiple of the network's patch side.
fn no_such_size(network: &crate::network::Network, (width, height): (usize, usize)) -> CliError {
    CliError::Usage(format!(
        "{width}x{height}: with these weights both sides must be multiples of {}",
        network.architecture.patch()
    ))
}

/// Rejects a file or folder that cannot be opened, before any work.
fn readable(what: &'static str, path: &Path) -> Result<(), CliError> {
    // Windows refuses to open a folder as a file.
    let opened = match path.is_dir() {
        true => std::fs::read_dir(path).map(drop),
        false => std::fs::File::open(path).map(drop),
    };
    opened.map_err(|cause| CliError::Unreadable {
        what,
        path: path.to_owned(),
        cause,
    })
}
