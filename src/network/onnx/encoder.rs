//! The ViT encoders: MASt3R's own and DUNE's.

use super::super::dune::{self, Dune};
use super::super::stack::Stack;
use super::blocks::LAYER_NORM_EPSILON;
use super::graph::Value;
use super::{Emitter, Maps, names};

const PATCHES: &str = "patch_embed.proj";

impl Emitter<'_> {
    pub(super) fn encoder(&mut self) {
        let stack = self.network.architecture.encoder.clone();
        let size = self.size;
        self.graph.set_scope("encoder");
        let image = self.input(names::IMAGE, &[size.batch, 3, size.height, size.width]);
        if let Some(dune) = self.network.architecture.dune.clone() {
            return self.dune(&image, &stack, &dune);
        }
        let (weight, bias) = self.weights_of(PATCHES);
        let mut x = self.embed_patches(&image, &weight, &bias);

        let rotary = self.rotary(&stack, size.batch);
        for block in 0..stack.depth {
            x = self.encoder_block(&x, block, &stack, Some(&rotary));
        }
        self.features(&x, LAYER_NORM_EPSILON);
    }

    /// DUNE adds learnt positions to the patches; the class and register tokens are prepended, and
    /// dropped at the end.
    fn dune(&mut self, image: &Value, stack: &Stack, dune: &Dune) {
        let (size, width) = (self.size, stack.width);
        let (weight, bias) = self.dune_patches();
        let x = self.embed_patches(image, &weight, &bias);
        let learnt = self.network.weight("pos_embed");
        let (of_class, learnt) = learnt.split_at(width);
        let places = (size.rows(), size.columns());
        let positions = dune::positions(learnt, dune.grid, places, width);
        let shape = [1, size.tokens(), width];
        let positions = self.graph.weight("positions", &shape, &positions);
        let x = self.graph.binary("Add", &x, &positions);

        let class = self.network.weight("cls_token");
        let mut prefix: Vec<f32> = class.iter().zip(of_class).map(|(c, p)| c + p).collect();
        prefix.extend(self.network.optional("register_tokens").unwrap_or_default());
        let shape = [size.batch, dune.prefix(), width];
        let prefix = (self.graph).weight("prefix", &shape, &prefix.repeat(size.batch));
        let mut x = self.graph.concat(&[&prefix, &x], 1);
        for block in 0..stack.depth {
            x = self.encoder_block(&x, block, stack, None);
        }
        self.graph.set_scope("encoder");
        let parts = (self.graph).split(&x, 1, &[dune.prefix(), size.tokens()]);
        self.features(&parts[1], dune::NORM_EPSILON);
    }

    fn encoder_block(
        &mut self,
        x: &Value,
        block: usize,
        stack: &Stack,
        rotary: Option<&super::blocks::Rotary>,
    ) -> Value {
        let name = format!("enc_blocks.{block}");
        self.graph.set_scope(&name);
        let x = self.residual_self_attention(x, &name, stack, rotary);
        self.residual_mlp(&x, &name, "norm2")
    }

    /// Emits the final norm and makes it the model's output.
    fn features(&mut self, x: &Value, epsilon: f32) {
        self.graph.set_scope("encoder");
        let features = self.layer_norm_with(x, "enc_norm", epsilon);
        self.graph.output(&features, names::FEATURES);
    }

    /// DUNE's patch embedding, rewritten for the model's input range `2·colour − 1` instead of its
    /// own `(colour − mean)/deviation`. This is exact because patches do not overlap and there is
    /// no padding.
    fn dune_patches(&self) -> (Vec<f32>, Vec<f32>) {
        let (mut weight, mut bias) = self.weights_of(PATCHES);
        let pixels = self.network.architecture.patch().pow(2);
        for (filter, bias) in weight.chunks_exact_mut(3 * pixels).zip(&mut bias) {
            let mut sum = f64::from(*bias);
            let colours = filter.chunks_exact_mut(pixels).zip(dune::COLOURS);
            for (of_colour, (mean, deviation)) in colours {
                let (scale, offset) = (0.5 / deviation, (0.5 - mean) / deviation);
                for w in of_colour {
                    sum += offset * f64::from(*w);
                    *w = (scale * f64::from(*w)) as f32;
                }
            }
            *bias = sum as f32;
        }
        (weight, bias)
    }

    /// Embeds the image's patches as tokens; `weight` is `C × 3 × P × P`.
    fn embed_patches(&mut self, image: &Value, weight: &[f32], bias: &[f32]) -> Value {
        let (size, patch) = (self.size, self.network.architecture.patch());
        let (batch, rows, columns, width) = (size.batch, size.rows(), size.columns(), bias.len());
        if self.maps == Maps::Nchw {
            let shape = [width, 3, patch, patch];
            let weight = (self.graph).weight(&format!("{PATCHES}.weight"), &shape, weight);
            let bias = (self.graph).weight(&format!("{PATCHES}.bias"), &[width], bias);
            let map = self.graph.conv(image, &weight, Some(&bias), patch, 0);
            let map = self.graph.reshape(&map, &[batch, width, size.tokens()]);
            return self.graph.transpose(&map, &[0, 2, 1]);
        }
        // Patches do not overlap, so a linear layer over each patch's values is equivalent.
        let shape = [batch, 3, rows, patch, columns, patch];
        let patches = self.graph.reshape(image, &shape);
        let patches = self.graph.transpose(&patches, &[0, 2, 4, 1, 3, 5]);
        let shape = [batch, size.tokens(), 3 * patch * patch];
        let patches = self.graph.reshape(&patches, &shape);
        self.linear_of(&patches, PATCHES, weight, bias)
    }
}
