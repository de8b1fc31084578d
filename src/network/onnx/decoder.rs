//! The decoder: two branches, one per view, with cross-attention between them.

use super::super::stack::Stack;
use super::blocks::Rotary;
use super::fp8::Input;
use super::graph::Value;
use super::{Emitter, Finish, Views, names};

/// Name prefixes of the two branches' blocks.
pub const BRANCHES: [&str; 2] = ["dec_blocks", "dec_blocks2"];

impl Emitter<'_> {
    /// Emits both branches layer by layer, then the heads of the requested views.
    pub(super) fn decoder(&mut self, views: Views, finish: Finish) {
        let architecture = &self.network.architecture;
        let (stack, hooks) = (architecture.decoder.clone(), architecture.hooks);
        let shape = [
            self.size.batch,
            self.size.tokens(),
            architecture.encoder.width,
        ];
        self.graph.set_scope("decoder");
        let features = names::VIEW_FEATURES.map(|name| self.input(name, &shape));
        let rotary = self.rotary(&stack, self.size.batch);
        let (weight, bias) = self.weights_of("decoder_embed");
        let mut x = [0, 1].map(|view| {
            let encoded = Input::Norm("enc_norm");
            self.linear_in(&features[view], "decoder_embed", (&weight, &bias), encoded)
        });
        // Tokens at the four hooks, by view; hook 0 is the encoder output.
        let mut hooked = [0, 1].map(|view| [0, 1, 2, 3].map(|_| features[view].clone()));
        let wanted = match views {
            Views::Both => 2,
            Views::First => 1,
        };
        for layer in 0..stack.depth {
            // Both branches read the previous layer. The last layer is needed only for the
            // requested views.
            let last = layer + 1 == stack.depth;
            let branches = if last { wanted } else { 2 };
            let before = x.clone();
            for view in 0..branches {
                let block = format!("{}.{layer}", BRANCHES[view]);
                x[view] =
                    self.decoder_block(&before[view], &before[1 - view], &block, &stack, &rotary);
                if last {
                    self.graph.set_scope(&format!("decoder.norm{}", view + 1));
                    x[view] = self.layer_norm(&x[view], "dec_norm");
                }
                for (slot, &hook) in hooks.iter().enumerate() {
                    if hook == layer + 1 {
                        hooked[view][slot] = x[view].clone();
                    }
                }
            }
        }
        for (view, tokens) in hooked.iter().enumerate().take(wanted) {
            self.head(view, tokens, finish);
        }
    }

    fn decoder_block(
        &mut self,
        x: &Value,
        y: &Value,
        block: &str,
        stack: &Stack,
        rotary: &Rotary,
    ) -> Value {
        self.graph.set_scope(block);
        let x = self.residual_self_attention(x, block, stack, Some(rotary));
        let x = self.residual_cross_attention(&x, y, block, stack, rotary);
        self.residual_mlp(&x, block, "norm3")
    }
}
