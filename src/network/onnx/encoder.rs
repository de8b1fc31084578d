//! The ViT encoder.

use super::super::architecture::PATCH;
use super::graph::Value;
use super::{Emitter, Maps, names};

impl Emitter<'_> {
    /// Patches, blocks, final norm.
    pub(super) fn encoder(&mut self) {
        let stack = self.network.architecture.encoder.clone();
        let size = self.size;
        self.graph.set_scope("encoder");
        let image = self.input(names::IMAGE, &[size.batch, 3, size.height, size.width]);
        let mut x = self.embed_patches(&image, stack.width);

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
    /// The image's patches as tokens.
    fn embed_patches(&mut self, image: &Value, width: usize) -> Value {
        const NAME: &str = "patch_embed.proj";
        let size = self.size;
        let (batch, rows, columns) = (size.batch, size.rows(), size.columns());
        if self.maps == Maps::ChannelsFirst {
            let weight = self.stored(&format!("{NAME}.weight"), &[width, 3, PATCH, PATCH]);
            let bias = self.stored(&format!("{NAME}.bias"), &[width]);
            let map = self.graph.conv(image, &weight, Some(&bias), PATCH, 0);
            let map = self.graph.reshape(&map, &[batch, width, size.tokens()]);
            return self.graph.transpose(&map, &[0, 2, 1]);
        }
        // Patches do not overlap: one layer over the values of each.
        let shape = [batch, 3, rows, PATCH, columns, PATCH];
        let patches = self.graph.reshape(image, &shape);
        let patches = self.graph.transpose(&patches, &[0, 2, 4, 1, 3, 5]);
        let shape = [batch, size.tokens(), 3 * PATCH * PATCH];
        let patches = self.graph.reshape(&patches, &shape);
        self.linear(&patches, NAME)
    }
}
