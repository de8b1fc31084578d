//! `mast3r-slam network`: inspects a weights file and exports it as ONNX.

use super::settings::positive;
use super::{CliError, Finished, say};
use crate::files::export::{self, ExportError};
use crate::inference::InferenceError;
use crate::network;
use crate::network::Stack;
use crate::network::onnx::{AttentionForm, EmitOptions, Precision, Views};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

/// Inspect and convert weights files.
#[derive(Debug, Clone, Subcommand)]
pub enum NetworkCommand {
    /// Print the contents of a weights file; all dimensions are inferred from its tensors.
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
    /// Size of the input in pixels, both sides a multiple of 16 (DUNE-MASt3R: 14).
    #[arg(long, value_name = "WxH", default_value = "512x384", value_parser = size)]
    pub size: (usize, usize),
    /// Batch size.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub batch: usize,
    /// Precision: fp32, fp16, bf16, fp8. Inputs and outputs are always fp32.
    #[arg(long, value_name = "TYPE", default_value_t = Precision::F32)]
    pub precision: Precision,
    /// Emit attention as the operators Attention and RotaryEmbedding of opset 23.
    #[arg(long)]
    pub fused: bool,
}

/// Runs the sub-command.
pub fn run(command: &NetworkCommand) -> Result<Finished, CliError> {
    match command {
        NetworkCommand::Info { weights } => say(&info(weights)?),
        NetworkCommand::Export(args) => {
            for file in export(args)? {
                say(&file.display().to_string());
            }
        }
    }
    Ok(Finished::Done)
}

/// Describes the contents of a weights file.
fn info(weights: &Path) -> Result<String, CliError> {
    super::readable("the weights", weights)?;
    let network = network::load_network(weights).map_err(InferenceError::from)?;
    let a = &network.architecture;
    let values: usize = a
        .expected_shapes()
        .values()
        .map(|shape| shape.iter().product::<usize>())
        .sum();
    let stack = |s: &Stack| {
        format!(
            "{} blocks of width {}, {} heads, hidden {}",
            s.depth, s.width, s.heads, s.hidden
        )
    };
    Ok(format!(
        "{}\n  encoder      {}\n  decoder      2 × {}\n  RoPE base    {}\n  DPT hooks    {:?}, layers {:?}, \
         features {}\n  descriptors  {} values, hidden {}\n  parameters   {values}",
        weights.display(),
        match &a.dune {
            None => stack(&a.encoder),
            Some(dune) => format!(
                "DUNE: {}, patches of {} pixels, {} registers, positions of {}x{} patches",
                stack(&a.encoder),
                a.patch(),
                dune.registers,
                dune.grid,
                dune.grid
            ),
        },
        stack(&a.decoder),
        a.rope_base,
        a.hooks,
        a.layer_dims,
        a.feature_dim,
        a.descriptor_dim,
        a.descriptor_hidden,
    ))
}

/// Writes encoder and decoder; weights go to a separate file next to each model where ONNX requires
/// it.
fn export(args: &ExportArgs) -> Result<Vec<PathBuf>, CliError> {
    super::readable("the weights", &args.weights)?;
    let network = network::load_network(&args.weights).map_err(InferenceError::from)?;
    let (width, height) = args.size;
    let size = (network.architecture.input_size(args.batch, width, height))
        .ok_or_else(|| super::no_such_size(&network, args.size))?;
    let options = EmitOptions {
        precision: args.precision,
        attention: match args.fused {
            true => AttentionForm::Fused,
            false => AttentionForm::Decomposed,
        },
        ..EmitOptions::default()
    };
    export::create_folder(&args.out)?;
    let mut files = Vec::with_capacity(2);
    for (name, model) in [
        ("encoder.onnx", network.encoder_as(size, options)),
        (
            "decoder.onnx",
            network.decoder_as(size, Views::Both, options),
        ),
    ] {
        let path = args.out.join(name);
        let saved = model.save(&path, false);
        saved.map_err(|e| ExportError::io("write", &path, e))?;
        files.push(path);
    }
    Ok(files)
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let fits = |(w, h): &(usize, usize)| {
        let multiples = |of: usize| w % of == 0 && h % of == 0;
        *w > 0 && *h > 0 && (multiples(16) || multiples(14))
    };
    text.split_once(['x', 'X', '×'])
        .and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)))
        .filter(fits)
        .ok_or_else(|| {
            "expected WIDTHxHEIGHT, both a multiple of 16 (DUNE-MASt3R: 14), such as 512x384".into()
        })
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
