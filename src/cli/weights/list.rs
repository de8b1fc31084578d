//! `mast3r-slam weights list`.

use super::{ListArgs, size};
use crate::cli::{CliError, Finished, say};
use crate::weights::{CATALOGUE, Entry, Origin, folder, locate};
use serde_json::{Value, json};

/// Runs the sub-command.
pub fn run(args: &ListArgs) -> Result<Finished, CliError> {
    say(&match args.json {
        true => {
            let entries: Vec<Value> = CATALOGUE.iter().map(value).collect();
            let report = json!({ "folder": folder().display().to_string(), "weights": entries });
            // Strings and numbers always have a JSON form.
            serde_json::to_string_pretty(&report).unwrap_or_default()
        }
        false => {
            let entries: Vec<String> = CATALOGUE.iter().map(text).collect();
            let folder = folder();
            format!(
                "{}\nfetched weights are kept in {}",
                entries.join("\n"),
                folder.display()
            )
        }
    });
    Ok(Finished::Done)
}

fn state(entry: &Entry) -> &'static str {
    match (entry.bundled(), locate(entry, &folder())) {
        (true, _) => "bundled",
        (false, Ok(_)) => "fetched",
        (false, Err(_)) => "not fetched",
    }
}

fn address(entry: &Entry, file: &str) -> Option<String> {
    match entry.origin {
        Origin::Bundled(_) => None,
        Origin::Server(base) => Some(format!("{base}/{file}")),
    }
}

fn text(entry: &Entry) -> String {
    let Entry {
        name,
        about,
        licence,
        ..
    } = entry;
    let mut text = format!(
        "{name}: {}\n  {about}\n  licence {}, {}\n",
        state(entry),
        licence.name,
        licence.address
    );
    for file in entry.files {
        let place = address(entry, file.name).unwrap_or_else(|| file.name.to_owned());
        let hash = match file.sha256 {
            Some(hash) => format!("SHA-256 {hash}"),
            None => "SHA-256 not known to this program; `--sha256` checks one".into(),
        };
        text += &format!("  {place}\n    {}, {hash}\n", size(file.bytes));
    }
    text
}

fn value(entry: &Entry) -> Value {
    let files: Vec<Value> = (entry.files.iter())
        .map(|file| {
            json!({
                "name": file.name,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "address": address(entry, file.name),
            })
        })
        .collect();
    json!({
        "name": entry.name,
        "about": entry.about,
        "licence": { "name": entry.licence.name, "address": entry.licence.address },
        "state": state(entry),
        "files": files,
    })
}
