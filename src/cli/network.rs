//! `mast3r-slam network`: what a weights file holds, and its export as ONNX.

use super::settings::positive;
use super::{CliError, Finished, layers, say};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Look into weights files and convert them.
#[derive(Debug, Clone, Subcommand)]
pub enum NetworkCommand {
    /// Print what a weights file holds: every dimension is read off its tensors.
    Info {
        /// Network weights, .pth or .safetensors.
        weights: PathBuf,
    },
    /// Write encoder and decoder as ONNX models.
    Export(ExportArgs),
}

/// Options of `network export`.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Network weights, .pth or .safetensors.
    pub weights: PathBuf,
    /// Folder for the models.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Size of the input in pixels, both sides a multiple of 16.
    #[arg(long, value_name = "WxH", default_value = "512x384", value_parser = size)]
    pub size: (usize, usize),
    /// Images in a batch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub batch: usize,
}

/// Runs the sub-command.
pub fn run(command: &NetworkCommand) -> Result<Finished, CliError> {
    match command {
        NetworkCommand::Info { weights } => say(&layers::network_info(weights)?),
        NetworkCommand::Export(args) => {
            let files = layers::export_network(args)?;
            for file in files {
                say(&file.display().to_string());
            }
        }
    }
    Ok(Finished::Done)
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let side = |text: &str| text.parse().ok().filter(|n| n % 16 == 0 && *n > 0);
    text.split_once(['x', 'X', '×'])
        .and_then(|(w, h)| Some((side(w)?, side(h)?)))
        .ok_or_else(|| "expected WIDTHxHEIGHT, both a multiple of 16, such as 512x384".into())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_two_multiples_of_sixteen() {
        assert_eq!(size("512x384"), Ok((512, 384)));
        assert_eq!(size("192X256"), Ok((192, 256)));
        for text in [
            "",
            "512",
            "512x",
            "x384",
            "512x380",
            "0x16",
            "-16x16",
            "512x384x3",
            "1e2x16",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
