//! The ViT encoder.

use super::super::architecture::PATCH;
use super::{Emitter, names};

impl Emitter<'_> {
    /// Patches, blocks, final norm.
    pub(super) fn encoder(&mut self) {
        let stack = self.network.architecture.encoder.clone();
        let size = self.size;
        self.graph.set_scope("encoder");
        let image = self.input(names::IMAGE, &[size.batch, 3, size.height, size.width]);
        let weight = self.stored("patch_embed.proj.weight", &[stack.width, 3, PATCH, PATCH]);
        let bias = self.stored("patch_embed.proj.bias", &[stack.width]);
        let map = self.graph.conv(&image, &weight, Some(&bias), PATCH, 0);
        let map = self
            .graph
            .reshape(&map, &[size.batch, stack.width, size.tokens()]);
        let mut x = self.graph.transpose(&map, &[0, 2, 1]);

        let rotary = self.rotary(&stack, size.batch);
        for block in 0..stack.depth {
            let name = format!("enc_blocks.{block}");
            self.graph.set_scope(&name);
            x = self.residual_self_attention(&x, &name, &stack, &rotary);
            x = self.residual_mlp(&x, &name, "norm2");
        }
        self.graph.set_scope("encoder");
        let features = self.layer_norm(&x, "enc_norm");
        self.graph.output(&features, names::FEATURES);
    }
}
