//! The command line: one module a sub-command.
//!
//! Exit codes: 0 done, 1 an error, 2 a command line that makes no sense, 130 ended by Ctrl-C with
//! the results written.

mod assets;
mod backend;
#[cfg(feature = "bags")]
mod bag;
#[cfg(feature = "cuda")]
mod bench;
mod codebook;
mod device;
mod engine;
mod engines;
mod error;
mod eval;
mod frames;
mod interrupt;
mod network;
#[cfg(any(feature = "dds", feature = "r2r"))]
mod node;
mod output;
mod plan;
mod progress;
#[cfg(feature = "bags")]
mod record;
mod results;
mod run;
mod session;
mod settings;
mod sizes;

pub use error::CliError;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Monocular dense SLAM with MASt3R: images in, metric poses and a dense cloud out.
#[derive(Debug, Parser)]
#[command(name = "mast3r-slam", version, arg_required_else_help = true)]
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
    /// Say what memory a run on a GPU takes, buffer by buffer, and what to lower. Needs no GPU.
    Plan(plan::PlanArgs),
    /// Time every stage on the GPU and compare it with what the GPU can do.
    #[cfg(feature = "cuda")]
    Bench(bench::BenchArgs),
    #[cfg(any(feature = "dds", feature = "r2r"))]
    Node(node::NodeArgs),
    #[cfg(feature = "bags")]
    #[command(subcommand)]
    Bag(bag::BagCommand),
    /// Look at configurations.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration as YAML.
    Show(settings::ConfigArgs),
}

impl Cli {
    /// What is logged where `RUST_LOG` does not say: a node tells what it does, as nodes do.
    pub fn log_filter(&self) -> &'static str {
        match &self.command {
            #[cfg(any(feature = "dds", feature = "r2r"))]
            Command::Node(_) => "warn,mast3r_slam=info,rustdds=error,r2r=off",
            _ => "warn",
        }
    }
}

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// Everything is done.
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

/// Does what the command line says.
pub fn execute(cli: &Cli) -> Result<Finished, CliError> {
    match &cli.command {
        Command::Demo(args) => run::demo(args),
        Command::Run(args) => run::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Network(command) => network::run(command),
        Command::Engine(command) => engines::run(command),
        Command::Codebook(command) => codebook::run(command),
        Command::Plan(args) => plan::run(args),
        #[cfg(feature = "cuda")]
        Command::Bench(args) => bench::run(args),
        #[cfg(any(feature = "dds", feature = "r2r"))]
        Command::Node(args) => node::run(args),
        #[cfg(feature = "bags")]
        Command::Bag(command) => bag::run(command),
        Command::Config(ConfigCommand::Show(args)) => {
            say(args.config(None, None)?.to_yaml()?.trim_end());
            Ok(Finished::Done)
        }
    }
}

/// A line on standard output. A reader that has gone away (`| head`) is no error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A line on standard error, where `eprintln!` would panic once nobody reads it any more.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// An image size that is not in whole patches of the network's.
fn no_such_size(network: &crate::network::Network, (width, height): (usize, usize)) -> CliError {
    CliError::Usage(format!(
        "{width}x{height}: with these weights both sides must be multiples of {}",
        network.architecture.patch()
    ))
}

/// Refuses a file or folder that cannot be opened, before any work is done.
fn readable(what: &'static str, path: &Path) -> Result<(), CliError> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(cause) => Err(CliError::Unreadable {
            what,
            path: path.to_owned(),
            cause,
        }),
    }
}
