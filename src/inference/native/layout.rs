//! What the plans of encoder, decoder and heads have in common.

use super::layer::{Layer, rotary};
use super::operand::{HALF, HEADS, Operand, SINGLE, WIDEST};
use super::plan::Draft;
use super::step::{Flags, Form, Linear, Rotation, Step, Summand};
use super::unavailable;
use super::weights::{Source, StoredLayer};
use crate::inference::InferenceError;
use crate::network::InputSize;
use crate::network::{Architecture, Stack};

/// Rows of an activation in memory: where they begin, elements from row to row and from group to group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) at: Operand,
    pub(super) stride: usize,
    pub(super) group: usize,
}

/// Attention heads as the kernels take them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) count: usize,
    /// Channels of a head as it is stored.
    pub(super) stored: usize,
    /// The same with zeros up to a number of channels that there is a kernel for.
    pub(super) wide: usize,
}

impl Heads {
    /// The heads of a stack that [`check`] accepted.
    pub(super) fn of(stack: &Stack) -> Self {
        let stored = stack.width / stack.heads;
        let wide = HEADS.into_iter().find(|&wide| wide >= stored);
        Self {
            count: stack.heads,
            stored,
            wide: wide.unwrap_or(stored),
        }
    }

    /// Channels of all heads.
    pub(super) fn width(self) -> usize {
        self.count * self.wide
    }
}

/// Writes plans of one network for one size of images.
pub(super) struct Layout<'a> {
    pub(super) architecture: &'a Architecture,
    pub(super) size: InputSize,
    pub(super) source: Source<'a>,
    pub(super) draft: Draft,
}

impl<'a> Layout<'a> {
    pub(super) fn new(architecture: &'a Architecture, size: InputSize, source: Source<'a>) -> Self {
        Self {
            architecture,
            size,
            source,
            draft: Draft::default(),
        }
    }

    /// A buffer of 16-bit numbers.
    pub(super) fn halves(&mut self, elements: usize) -> Operand {
        self.draft.buffer(elements * HALF)
    }

    /// A buffer of binary32 numbers.
    pub(super) fn singles(&mut self, elements: usize) -> Operand {
        self.draft.buffer(elements * SINGLE)
    }

    /// A layer's step in its plainest form: `rows` rows of `a` to `out`, whose rows are as wide as the layer.
    pub(super) fn linear(
        a: Rows,
        layer: StoredLayer,
        rows: usize,
        groups: usize,
        out: Operand,
    ) -> Linear {
        Linear {
            a: a.at,
            a_stride: a.stride,
            a_group: a.group,
            weight: layer.weight,
            scale: layer.scale,
            bias: layer.bias,
            rows,
            outputs: layer.outputs,
            inputs: layer.inputs,
            groups,
            form: Form::Rows,
            rotation: None,
            flags: Flags::NONE,
            first: Summand::NONE,
            second: Summand::NONE,
            out,
            out_stride: layer.outputs,
            out_group: rows * layer.outputs,
        }
    }

    /// `x += Linear(a)`; `x` is binary32.
    pub(super) fn add_to(
        &mut self,
        x: Operand,
        a: Rows,
        layer: StoredLayer,
        rows: usize,
        groups: usize,
    ) {
        let group = rows * layer.outputs;
        self.draft.push(Step::Linear(Linear {
            flags: Flags::OUT_F32.and(Flags::ADD_F32),
            first: Summand { at: x, group },
            ..Self::linear(a, layer, rows, groups, x)
        }));
    }

    /// Normalised rows of `x`, without scale and offset, which the next layer has.
    pub(super) fn norm(&mut self, x: Operand, rows: usize, width: usize, epsilon: f32) -> Operand {
        let out = self.halves(rows * width);
        self.draft.push(Step::Norm {
            x,
            gain: [Operand::None; 2],
            out,
            stride: width,
            out_f32: Operand::None,
            rows,
            width,
            epsilon: epsilon.to_bits(),
        });
        out
    }

    /// Scale and offset of the norm called `name`.
    pub(super) fn gain(&mut self, name: &str) -> Result<[Operand; 2], InferenceError> {
        let mut values = |part: &str| {
            let name = format!("{name}.{part}");
            let at = self.source.values(&name, |network| network.weight(&name));
            at.map(Operand::Weight)
        };
        Ok([values("weight")?, values("bias")?])
    }

    /// The rotation of a layer whose outputs are parts of all heads each; bit `i` of `parts`: part `i` is
    /// rotated.
    pub(super) fn rotation(
        &mut self,
        stack: &Stack,
        parts: u32,
    ) -> Result<Rotation, InferenceError> {
        let heads = Heads::of(stack);
        let (tokens, columns) = (self.size.tokens(), self.size.columns());
        let base = self.architecture.rope_base;
        let make = |_: &_| rotary((heads.stored, heads.wide), tokens, columns, base);
        let table = self
            .source
            .values(&format!("rotary.{}", heads.stored), make)?;
        Ok(Rotation {
            table: Operand::Weight(table),
            tokens,
            head: heads.wide,
            part: heads.width(),
            parts,
        })
    }

    /// A layer with one group's weights.
    pub(super) fn layer(
        &mut self,
        name: &str,
        make: impl FnOnce(&crate::network::Network) -> Layer,
    ) -> Result<StoredLayer, InferenceError> {
        self.source.layer(name, |network| vec![make(network)])
    }
}

/// Refuses networks that there are no kernels for.
pub(super) fn check(architecture: &Architecture) -> Result<(), InferenceError> {
    let refuse = |reason: String| Err(unavailable(format!("{reason}; choose another backend")));
    for (what, stack) in [
        ("encoder", &architecture.encoder),
        ("decoder", &architecture.decoder),
    ] {
        let (head, most) = (stack.width / stack.heads, HEADS[HEADS.len() - 1]);
        if head > most {
            return refuse(format!(
                "the {what}'s attention heads have {head} channels, and there are kernels for up to {most}"
            ));
        }
        if !stack.width.is_multiple_of(8) {
            return refuse(format!(
                "the {what}'s tokens have {} channels, and the kernels need a multiple of 8",
                stack.width
            ));
        }
        if stack.width > WIDEST {
            return refuse(format!(
                "the {what}'s tokens have {} channels, and there are kernels for up to {WIDEST}",
                stack.width
            ));
        }
    }
    Ok(())
}
