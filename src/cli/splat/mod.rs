//! `mast3r-slam splat`: maps of Gaussian splats and their files.

#[cfg(feature = "cuda")]
mod bench;
pub mod live;
mod progress;
mod train;

use super::{CliError, Finished, say};
use crate::compute::splat::trainer::Quality;
use crate::map::splat::{self, Format, Reader, Splat};
use crate::slam_builder::splat::Measured;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

/// Make, inspect and convert maps of Gaussian splats.
#[derive(Debug, Subcommand)]
pub enum SplatCommand {
    /// Make splats of a map's keyframes, refine them until they look as the images do, and write them to a file. The
    /// quality is measured on keyframes that are left out. Without a GPU it takes long: use small images and few
    /// iterations there.
    Train(Box<train::TrainArgs>),
    /// Read a file of splats, and print what it holds: PLY in the layout of 3D Gaussian Splatting, compressed PLY or spz
    /// version 4.
    Info(InfoArgs),
    /// Write a file of splats in the format that the name of OUT says: .ply, .compressed.ply or .spz.
    Convert(ConvertArgs),
    /// Time refinement, rendering and training on the GPU, and show that they allocate nothing.
    #[cfg(feature = "cuda")]
    Bench(bench::BenchArgs),
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A file of splats.
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A file of splats.
    #[arg(value_name = "IN")]
    pub from: PathBuf,
    /// The file to write.
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
    /// Replace OUT if it exists.
    #[arg(long)]
    pub force: bool,
}

/// Runs the sub-command.
pub fn run(command: &SplatCommand) -> Result<Finished, CliError> {
    match command {
        SplatCommand::Train(args) => return train::run(args),
        SplatCommand::Info(args) => info(&args.path),
        SplatCommand::Convert(args) => convert(args),
        #[cfg(feature = "cuda")]
        SplatCommand::Bench(args) => return bench::run(args),
    }?;
    Ok(Finished::Done)
}

/// Where the rows lie, and how opaque they are.
#[derive(Debug)]
struct Summary {
    min: [f32; 3],
    max: [f32; 3],
    opacity: f64,
    rows: u64,
}

impl Summary {
    /// Reads all rows.
    fn read(reader: &mut Reader) -> Result<Self, CliError> {
        let mut all = Self {
            min: [f32::INFINITY; 3],
            max: [f32::NEG_INFINITY; 3],
            opacity: 0.0,
            rows: 0,
        };
        let mut row = Splat::default();
        while reader.next(&mut row)? {
            for (k, v) in row.mean.into_iter().enumerate() {
                all.min[k] = all.min[k].min(v);
                all.max[k] = all.max[k].max(v);
            }
            all.opacity += 1.0 / (1.0 + f64::from(-row.opacity).exp());
            all.rows += 1;
        }
        Ok(all)
    }
}

fn info(path: &Path) -> Result<(), CliError> {
    let mut reader = Reader::open(path)?;
    let info = *reader.info();
    let all = Summary::read(&mut reader)?;
    let place = match all.rows {
        0 => "no rows".to_owned(),
        rows => {
            let range = |k: usize| format!("{:.2} … {:.2}", all.min[k], all.max[k]);
            format!(
                "x {}, y {}, z {} m; mean opacity {:.2}",
                range(0),
                range(1),
                range(2),
                all.opacity / rows as f64
            )
        }
    };
    say(&format!(
        "splats: {}\nformat: {}\nrows: {}\ndegree of the spherical harmonics: {}\nsize: {:.1} MB, {:.1} bytes a row\n\
         within: {place}",
        path.display(),
        info.format.name(),
        info.count,
        info.degree,
        info.bytes as f64 / 1e6,
        info.bytes as f64 / info.count.max(1) as f64,
    ));
    Ok(())
}

/// The format of a file to write.
fn format_of(path: &Path) -> Result<Format, CliError> {
    Format::of(path).ok_or_else(|| {
        CliError::Usage(format!(
            "{}: expected a name that ends in .ply, .compressed.ply or .spz",
            path.display()
        ))
    })
}

/// The quality of splats, in words.
fn told(measured: &Measured) -> String {
    let what = match measured.held_out {
        true => "held-out views",
        false => "views, all trained on",
    };
    let Quality {
        views, psnr, ssim, ..
    } = measured.given;
    let mut text = format!("PSNR {psnr:.2} dB, SSIM {ssim:.3} on {views} {what}, at SLAM's poses");
    if let Some(Quality { psnr, ssim, .. }) = measured.aligned {
        text += &format!("; {psnr:.2} dB, {ssim:.3} at poses aligned with the splats");
    }
    if let Some(Quality {
        views, psnr, ssim, ..
    }) = measured.trained
    {
        text += &format!("; {psnr:.2} dB, {ssim:.3} on the {views} trained on, at their poses");
    }
    text
}

/// A file that is not replaced.
fn exists(path: &Path) -> CliError {
    CliError::Usage(format!(
        "{} exists; choose another name or replace it with --force",
        path.display()
    ))
}

fn convert(args: &ConvertArgs) -> Result<(), CliError> {
    let format = format_of(&args.to)?;
    if args.to.exists() && !args.force {
        return Err(exists(&args.to));
    }
    let mut reader = Reader::open(&args.from)?;
    // An invalid row is named before anything is written.
    Summary::read(&mut reader)?;
    let before = reader.info().bytes as f64 / 1e6;
    let bytes = splat::write(&args.to, format, &mut reader)?;
    say(&format!(
        "{}: {} rows as {} in {:.1} MB; {before:.1} MB before",
        args.to.display(),
        reader.info().count,
        format.name(),
        bytes as f64 / 1e6,
    ));
    Ok(())
}
