//! `mast3r-slam map`: what is in a map's file, and whether all of it can be read.

use super::{CliError, Finished, say};
use crate::map::saved::{self, Header};
use crate::map::store::{self, Kind, Reader, StoreError};
use crate::slam::SavedMapError;
use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Inspect maps.
#[derive(Debug, Subcommand)]
pub enum MapCommand {
    /// Print what a map holds and what it was made with.
    Info(MapArgs),
    /// Read all of a map, and name what is damaged. Another program may be using it.
    Check(MapArgs),
}

#[derive(Debug, Args)]
pub struct MapArgs {
    /// A file of `run --map`, `run --save-map` or the node.
    pub path: PathBuf,
}

/// Runs the sub-command.
pub fn run(command: &MapCommand) -> Result<Finished, CliError> {
    match command {
        MapCommand::Info(args) => info(&args.path),
        MapCommand::Check(args) => check(&args.path),
    }?;
    Ok(Finished::Done)
}

fn kind(path: &Path) -> Result<Kind, SavedMapError> {
    let kind = store::kind_of(path).map_err(|cause| StoreError::Open {
        path: path.to_owned(),
        cause,
    })?;
    Ok(kind)
}

fn info(path: &Path) -> Result<(), SavedMapError> {
    let bytes = path.metadata().map_or(0, |meta| meta.len());
    if kind(path)? != Kind::Store {
        let reader = saved::Reader::open(path)?;
        let header = reader.header();
        describe(path, "saved at once", header, bytes);
        return Ok(());
    }
    let reader = Reader::open(path)?;
    let session = reader.session().unwrap_or_default();
    let state = match session.strip_prefix("open ") {
        Some(holder) => format!("in use by {holder}, or not closed by it"),
        None => "closed".to_owned(),
    };
    describe(path, &state, reader.header(), bytes);
    let submaps = BTreeSet::from_iter(reader.keyframes().iter().map(|k| k.submap));
    say(&format!(
        "submaps: {}\nfactors: {}\nremoved keyframes: {}",
        submaps.len(),
        reader.factors().len(),
        reader.removed().len()
    ));
    if !reader.damage().is_none() {
        say(&format!("damaged: {}", reader.damage()));
    }
    Ok(())
}

fn describe(path: &Path, state: &str, header: &Header, bytes: u64) {
    let shape = header.shape;
    let camera = match &header.intrinsics {
        Some(k) => format!("calibrated, f = {:.1} × {:.1} px", k.fx, k.fy),
        None => "uncalibrated".to_owned(),
    };
    let megabytes = bytes as f64 / 1e6;
    let each = megabytes / f64::from(header.keyframes.max(1));
    say(&format!(
        "map: {}\nstate: {state}\nwritten by: {}\nweights: {}\nimages: {}×{}, {camera}\nkeyframes: {}\nedges: {}\n\
         size: {megabytes:.1} MB, {each:.2} MB for each keyframe with its edges",
        path.display(),
        header.program,
        header.weights,
        shape.width,
        shape.height,
        header.keyframes,
        header.edges,
    ));
}

fn check(path: &Path) -> Result<(), SavedMapError> {
    let fine = |header: &Header| {
        say(&format!(
            "{}: {} keyframes and {} edges, undamaged",
            path.display(),
            header.keyframes,
            header.edges
        ));
    };
    if kind(path)? != Kind::Store {
        let mut reader = saved::Reader::open(path)?;
        reader.verify()?;
        fine(reader.header());
        return Ok(());
    }
    let mut reader = Reader::open(path)?;
    let (damage, structure) = reader.check();
    if damage.is_none() && structure.is_empty() {
        fine(reader.header());
        return Ok(());
    }
    for line in &structure {
        say(&format!("structure: {line}"));
    }
    let what = match damage.is_none() {
        true => "the file's structure".to_owned(),
        false => damage.to_string(),
    };
    Err(StoreError::Damaged {
        path: path.to_owned(),
        what,
    }
    .into())
}
