//! `mast3r-slam map`: inspects a map's file, checks that all of it can be read, and writes a compact copy of it.

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
    /// Write a compact copy of a map, to be kept or sent: localisation in it is as good. The network makes what the copy
    /// lacks when it is loaded, which takes a while.
    Pack(PackArgs),
}

#[derive(Debug, Args)]
pub struct PackArgs {
    /// A map of `run --map`, `run --save-map` or the node.
    #[arg(value_name = "IN")]
    pub from: PathBuf,
    /// The file to write.
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
    /// Replace a packed map.
    #[arg(long)]
    pub force: bool,
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
        MapCommand::Pack(args) => pack(args),
    }?;
    Ok(Finished::Done)
}

/// Whether the file has rows, packed or not.
fn is_store(path: &Path) -> Result<bool, SavedMapError> {
    Ok(matches!(Kind::of(path)?, Kind::Store | Kind::Packed))
}

fn size_of(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn info(path: &Path) -> Result<(), SavedMapError> {
    let bytes = size_of(path);
    if !is_store(path)? {
        let reader = saved::Reader::open(path)?;
        let header = reader.header();
        describe(path, "saved at once", header, bytes);
        return Ok(());
    }
    let reader = Reader::open(path)?;
    let session = reader.session().unwrap_or_default();
    let state = match session.strip_prefix("open ") {
        Some(holder) => format!("in use by {holder}, or not closed by it"),
        None if reader.is_packed() => "packed".to_owned(),
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
    if !is_store(path)? {
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

fn pack(args: &PackArgs) -> Result<(), SavedMapError> {
    let packed = store::pack(&args.from, &args.to, args.force)?;
    let [before, after] = [&args.from, &args.to].map(|path| size_of(path) as f64 / 1e6);
    let each = after / packed.keyframes.max(1) as f64;
    say(&format!(
        "{}: {} keyframes and {} edges in {after:.1} MB, {each:.2} MB for each keyframe; {before:.1} MB before",
        args.to.display(),
        packed.keyframes,
        packed.edges,
    ));
    if !packed.left_out.is_none() {
        say(&format!("damaged and left out: {}", packed.left_out));
    }
    Ok(())
}
