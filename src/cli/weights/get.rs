//! `mast3r-slam weights get`.

use super::{GetArgs, size};
use crate::cli::{CliError, Finished, complain, interrupt, say};
use crate::inference::InferenceError;
use crate::network;
use crate::weights::{CATALOGUE, Client, Entry, KnownFile, Origin, Outcome, Wanted, Watch, folder};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{BufRead, IsTerminal};
use std::path::Path;

/// Runs the sub-command.
pub fn run(args: &GetArgs) -> Result<Finished, CliError> {
    let Some(entry) = CATALOGUE.iter().find(|entry| entry.name == args.name) else {
        let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        return Err(CliError::Usage(format!(
            "expected the name of known weights ({}), found {:?}; see mast3r-slam weights list",
            names.join(", "),
            args.name
        )));
    };
    let base = match (entry.origin, &args.from) {
        (Origin::Bundled(_), _) => {
            say(&format!(
                "{} comes with the program: there is nothing to fetch",
                entry.name
            ));
            return Ok(Finished::Done);
        }
        (Origin::Server(_), Some(from)) => from.trim_end_matches('/'),
        (Origin::Server(base), None) => base,
    };
    agree(entry, args.accept_licence)?;
    let own = args.folder.clone().unwrap_or_else(folder).join(entry.name);
    interrupt::install_for(
        "stopping; the same command continues later. Ctrl-C again quits at once",
    )?;
    let client = Client::default();
    for (number, file) in entry.files.iter().enumerate() {
        let target = own.join(file.name);
        // The option names the hash of the weights themselves.
        let asked = args.sha256.as_deref().filter(|_| number == 0);
        if target.is_file() && asked.is_none() {
            say(&format!("{} is there already", target.display()));
            continue;
        }
        let wanted = Wanted {
            address: &format!("{base}/{}", file.name),
            target: &target,
            bytes: file
                .bytes
                .filter(|_| args.from.is_none() || file.sha256.is_some()),
            sha256: asked.or(file.sha256),
        };
        match fetch(&client, file, &wanted, !args.no_progress)? {
            Outcome::Stopped { bytes } => {
                say(&format!(
                    "stopped after {}; the same command continues",
                    size(Some(bytes))
                ));
                return Ok(Finished::Interrupted);
            }
            Outcome::Done { bytes, sha256 } => {
                if number == 0 {
                    check(&target)?;
                }
                let checked = match wanted.sha256 {
                    Some(_) => "as expected",
                    None => "nothing to compare it with",
                };
                say(&format!(
                    "{}: {}, SHA-256 {sha256}, {checked}",
                    target.display(),
                    size(Some(bytes))
                ));
            }
        }
    }
    say(&format!("use them with --weights {}", entry.name));
    Ok(Finished::Done)
}

/// Shows the licence, and takes agreement from the option or from a person at the terminal.
fn agree(entry: &Entry, accepted: bool) -> Result<(), CliError> {
    let licence = entry.licence;
    say(&format!(
        "{}: {}\n{}\nsee {}",
        entry.name, licence.name, licence.conditions, licence.address
    ));
    if accepted {
        say("agreed to by --accept-licence");
        return Ok(());
    }
    let refused = || {
        CliError::Usage(format!(
            "{} are fetched only after you agree to the licence above; repeat the command with --accept-licence",
            entry.name
        ))
    };
    if !std::io::stdin().is_terminal() {
        return Err(refused());
    }
    complain("Do you agree? Type yes:");
    let mut answer = String::new();
    match std::io::stdin().lock().read_line(&mut answer) {
        Ok(_) if answer.trim().eq_ignore_ascii_case("yes") => Ok(()),
        _ => Err(refused()),
    }
}

/// Rejects a file that is not weights at all, such as a page about an error, and removes it.
fn check(weights: &Path) -> Result<(), CliError> {
    network::patch_size(weights).map(|_| ()).map_err(|error| {
        // The error below matters more than a file that cannot be removed.
        let _ = std::fs::remove_file(weights);
        InferenceError::from(error).into()
    })
}

fn fetch(
    client: &Client,
    file: &KnownFile,
    wanted: &Wanted<'_>,
    bar: bool,
) -> Result<Outcome, CliError> {
    let watch = Bar::new(file.name, bar);
    let outcome = client.fetch(wanted, &watch);
    if let Some(bar) = &watch.0 {
        bar.finish_and_clear();
    }
    Ok(outcome?)
}

/// A bar of bytes, if standard error is a terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(name: &str, wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            say(&format!("fetching {name}"));
            return Self(None);
        }
        let bar = ProgressBar::new(0);
        let template =
            "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(name.to_owned());
        Self(Some(bar))
    }
}

impl Watch for Bar {
    fn at(&self, bytes: u64, total: Option<u64>) {
        if let Some(bar) = &self.0 {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(bytes);
        }
    }

    fn stop(&self) -> bool {
        interrupt::requested()
    }
}
