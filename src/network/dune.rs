//! DUNE-MASt3R: MASt3R's decoder and heads on top of DUNE's distilled encoder, a ViT-S/14 or
//! ViT-B/14 with learnt positions, a class token, register tokens and layer scale.
//!
//! In the published files, the decoder (`dunemast3r_cvpr25_vit*.pth`) names its encoder
//! (`dune_vit*.pth`), which must be in the same folder; a single file with the tensors of both is
//! accepted as well. Tensors are renamed to MASt3R's names.

use super::checkpoint::{Checkpoint, CheckpointError, Tensor};
use super::stack::Stack;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Side of a patch in pixels.
pub const PATCH: usize = 14;

/// Epsilon of the norm between encoder and decoder.
pub const NORM_EPSILON: f32 = 1e-5;

/// Mean and standard deviation of each colour channel (range 0 to 1) by which the encoder's input
/// is normalised.
pub const COLOURS: [(f64, f64); 3] = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)];

/// The parts of DUNE's encoder that MASt3R's encoder does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dune {
    /// Number of register tokens, in addition to the class token.
    pub registers: usize,
    /// Side of the square patch grid for which positions were learnt.
    pub grid: usize,
}

impl Dune {
    /// Infers the dimensions from the tensors; an error names missing tensors and impossible
    /// shapes.
    pub(super) fn infer(tensors: &BTreeMap<String, Tensor>) -> Result<Self, CheckpointError> {
        let rows = |name: &str| match tensors.get(name).map(|tensor| &tensor.shape[..]) {
            Some(&[1, rows, _]) => Ok(rows),
            Some(shape) => Err((
                Vec::new(),
                vec![format!(
                    "{} (expected [1, tokens, channels], found {shape:?})",
                    stored_name(name)
                )],
            )),
            None => Err((vec![stored_name(name)], Vec::new())),
        };
        let problem = |(missing, misshapen)| CheckpointError::Tensors {
            missing,
            extra: Vec::new(),
            misshapen,
        };
        let positions = rows("pos_embed").map_err(problem)?;
        let registers = match tensors.contains_key("register_tokens") {
            true => rows("register_tokens").map_err(problem)?,
            false => 0,
        };
        let grid = positions.saturating_sub(1).isqrt();
        if grid == 0 || grid * grid + 1 != positions {
            return Err(problem((
                Vec::new(),
                vec![format!(
                    "{} (expected positions of a square grid and one more, found {positions})",
                    stored_name("pos_embed")
                )],
            )));
        }
        Ok(Self { registers, grid })
    }

    /// Number of tokens before the patch tokens.
    pub fn prefix(&self) -> usize {
        1 + self.registers
    }

    /// Encoder tensors other than those of the blocks and the patch embedding, with their shapes.
    pub(super) fn shapes(&self, stack: &Stack) -> Vec<(String, Vec<usize>)> {
        let width = stack.width;
        let mut shapes = vec![
            ("cls_token".into(), vec![1, 1, width]),
            (
                "pos_embed".into(),
                vec![1, 1 + self.grid * self.grid, width],
            ),
        ];
        if self.registers > 0 {
            shapes.push(("register_tokens".into(), vec![1, self.registers, width]));
        }
        for block in 0..stack.depth {
            for scale in ["ls1", "ls2"] {
                shapes.push((format!("enc_blocks.{block}.{scale}.gamma"), vec![width]));
            }
        }
        shapes
    }
}

/// Whether a checkpoint is a DUNE-MASt3R, or only its decoder.
pub fn is(checkpoint: &Checkpoint) -> bool {
    let mut names = checkpoint.tensors.keys();
    names.any(|name| name.starts_with("mast3r.") || name.starts_with(BACKBONE))
}

const BACKBONE: &str = "dune_backbone.";
/// All blocks are in a single chunk.
const BLOCKS: &str = "dune_backbone.blocks.0.";

/// Maps a tensor name in a file to the name used here; `None` for tensors that inference does not
/// read: constants, and unused remains of MASt3R's own encoder.
fn name_here(stored: &str) -> Option<String> {
    if let Some(rest) = stored.strip_prefix(BLOCKS) {
        return Some(format!("enc_blocks.{rest}"));
    }
    if let Some(rest) = stored.strip_prefix(BACKBONE) {
        // The encoder's own final norm is not applied.
        return (!rest.starts_with("norm.") && rest != "mask_token").then(|| rest.to_owned());
    }
    if let Some(rest) = stored.strip_prefix("norm.") {
        return Some(format!("enc_norm.{rest}"));
    }
    match stored.strip_prefix("mast3r.") {
        Some(rest) => {
            let unused = ["patch_embed.", "enc_blocks.", "enc_norm.", "mask_token"];
            let unused = unused.iter().any(|start| rest.starts_with(start));
            (!unused).then(|| rest.to_owned())
        }
        None if matches!(stored, "imagenet_mean" | "imagenet_std") => None,
        // An unknown name is kept, so that the completeness check reports it.
        None => Some(stored.to_owned()),
    }
}

/// Maps a tensor name used here to its name in a file.
pub fn stored_name(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("enc_blocks.") {
        return format!("{BLOCKS}{rest}");
    }
    if let Some(rest) = name.strip_prefix("enc_norm.") {
        return format!("norm.{rest}");
    }
    let own = ["patch_embed.", "cls_token", "pos_embed", "register_tokens"];
    match own.iter().any(|start| name.starts_with(start)) {
        true => format!("{BACKBONE}{name}"),
        false => format!("mast3r.{name}"),
    }
}

/// Renames the tensors of `checkpoint` from file names to the names used here.
pub fn rename(checkpoint: &mut Checkpoint) {
    let tensors = std::mem::take(&mut checkpoint.tensors);
    let renamed = tensors.into_iter();
    checkpoint.tensors = renamed
        .filter_map(|(name, tensor)| Some((name_here(&name)?, tensor)))
        .collect();
}

/// Candidate files for the encoder of the decoder at `path`; `None` if the file includes its
/// encoder or is not a decoder-only file.
pub fn encoder_beside(path: &Path, checkpoint: &Checkpoint) -> Option<Vec<PathBuf>> {
    let has_own = checkpoint
        .tensors
        .keys()
        .any(|name| name.starts_with(BACKBONE));
    if !is(checkpoint) || has_own {
        return None;
    }
    // For example, `dune_vitbase_14_448_paper_encoder` is stored in `dune_vitbase14_448_paper.pth`.
    let name = checkpoint.backbone.as_deref().unwrap_or_default();
    let file = name
        .strip_suffix("_encoder")
        .unwrap_or(name)
        .replacen("_14_", "14_", 1);
    let plain = file.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let named = (plain && file.starts_with("dune_")).then_some(file);
    Some(match named {
        Some(file) => ["pth", "safetensors"]
            .map(|extension| path.with_file_name(format!("{file}.{extension}")))
            .to_vec(),
        None => Vec::new(),
    })
}

/// Adds the tensors of `encoder` to a decoder's.
pub fn add_encoder(checkpoint: &mut Checkpoint, encoder: Checkpoint) {
    for (name, tensor) in encoder.tensors {
        // Prefixes added by data-parallel training and by `torch.compile`.
        let name = name.replace("module.", "").replace("_orig_mod.", "");
        // The remaining tensors are projections to the teacher networks.
        if let Some(rest) = name.strip_prefix("encoder.") {
            checkpoint
                .tensors
                .insert(format!("{BACKBONE}{rest}"), tensor);
        }
    }
}

/// Position embeddings for `rows × columns` patches, interpolated from those learnt on a square
/// grid of side `grid`, `grid² × channels`.
///
/// Bicubic interpolation (Keys, a = −3/4), `src = (dst + 1/2)·grid/(n + 0.1) − 1/2`, clamped at the
/// border. The 0.1 comes from DINO, which guards against rounding of the size; the weights were
/// trained with it.
pub fn positions(
    learnt: &[f32],
    grid: usize,
    (rows, columns): (usize, usize),
    channels: usize,
) -> Vec<f32> {
    if (rows, columns) == (grid, grid) {
        return learnt.to_vec();
    }
    let (down, across) = (taps(grid, rows), taps(grid, columns));
    let mut out = Vec::with_capacity(rows * columns * channels);
    for down in &down {
        for across in &across {
            for channel in 0..channels {
                let at = |row: usize, column: usize| {
                    f64::from(learnt[(row * grid + column) * channels + channel])
                };
                let along = |row: usize| -> f64 {
                    across
                        .iter()
                        .map(|&(column, weight)| weight * at(row, column))
                        .sum()
                };
                let sum: f64 = down.iter().map(|&(row, weight)| weight * along(row)).sum();
                out.push(sum as f32);
            }
        }
    }
    out
}

/// The four source indices and weights for each of `n` positions along an axis of `grid` values.
fn taps(grid: usize, n: usize) -> Vec<[(usize, f64); 4]> {
    let scale = grid as f64 / (n as f64 + 0.1);
    let place = |i: usize| {
        let source = (i as f64 + 0.5) * scale - 0.5;
        let first = source.floor();
        let weights = cubic(source - first);
        let at = |k: usize| (first + k as f64 - 1.0).clamp(0.0, (grid - 1) as f64) as usize;
        [0, 1, 2, 3].map(|k| (at(k), weights[k]))
    };
    (0..n).map(place).collect()
}

/// Keys' weights for the four neighbours of a position that lies `t` behind the second.
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |t: f64| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f64| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_four_neighbours_whose_weights_sum_to_one() {
        assert_eq!(cubic(0.0), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(cubic(0.5), [-0.09375, 0.59375, 0.59375, -0.09375]);
        for (grid, n) in [(32, 37), (32, 24), (24, 32), (4, 3), (1, 5)] {
            for (i, taps) in taps(grid, n).iter().enumerate() {
                let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-12, "{grid} {n} {i}: {sum}");
                // The taps surround the position, clamped to the grid.
                let source = (i as f64 + 0.5) * grid as f64 / (n as f64 + 0.1) - 0.5;
                let expected =
                    (-1..3).map(|k| (source.floor() as i64 + k).clamp(0, grid as i64 - 1));
                let found = taps.iter().map(|(at, _)| *at as i64);
                assert!(found.eq(expected), "{grid} {n} {i}: {taps:?}");
            }
        }
    }

    #[test]
    fn names_go_there_and_back() {
        for name in [
            "patch_embed.proj.weight",
            "cls_token",
            "register_tokens",
            "pos_embed",
            "enc_blocks.11.ls1.gamma",
            "enc_norm.bias",
            "decoder_embed.weight",
            "dec_blocks2.3.norm_y.bias",
            "downstream_head1.dpt.head.0.weight",
        ] {
            assert_eq!(name_here(&stored_name(name)).as_deref(), Some(name));
        }
        for unused in [
            "mast3r.enc_norm.weight",
            "dune_backbone.mask_token",
            "imagenet_std",
        ] {
            assert_eq!(name_here(unused), None);
        }
        assert_eq!(name_here("surprise").as_deref(), Some("surprise"));
    }

    #[test]
    fn the_encoder_is_looked_for_where_the_decoder_says() {
        let mut checkpoint = Checkpoint::default();
        let path = Path::new("/weights/decoder.pth");
        assert_eq!(encoder_beside(path, &checkpoint), None);
        let tensor = Tensor::from_f32(vec![1], &[0.0]).expect("a tensor");
        let decoder = checkpoint
            .tensors
            .insert("mast3r.dec_norm.bias".into(), tensor.clone());
        assert!(decoder.is_none());
        assert_eq!(encoder_beside(path, &checkpoint), Some(Vec::new()));
        checkpoint.backbone = Some("../dune_secret".into());
        assert_eq!(encoder_beside(path, &checkpoint), Some(Vec::new()));
        checkpoint.backbone = Some("dune_vitsmall_14_448_encoder".into());
        let found = encoder_beside(path, &checkpoint).expect("places");
        assert_eq!(found[0], Path::new("/weights/dune_vitsmall14_448.pth"));
        checkpoint
            .tensors
            .insert("dune_backbone.cls_token".into(), tensor);
        assert_eq!(encoder_beside(path, &checkpoint), None);
    }
}
