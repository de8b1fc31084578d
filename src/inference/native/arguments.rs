//! Kernels' arguments, as the `.cu` files declare them.

use super::format::quantised_row;
use super::operand::{Addresses, Operand};
use super::step::{Form, Linear, Rotation};
use crate::gpu::KernelArgument;

/// `LinearArgs` of `linear.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LinearArgs {
    pub a: u64,
    pub weight: u64,
    pub scale: u64,
    pub bias: u64,
    pub rotary: u64,
    pub first: u64,
    pub second: u64,
    pub out: u64,
    /// Elements between groups in `a`, weight, bias, both summands and `out`.
    pub groups: [i64; 6],
    pub rows: i32,
    pub outputs: i32,
    pub inputs: i32,
    pub a_stride: i32,
    pub out_stride: i32,
    pub add_stride: i32,
    /// height, width, out_height, out_width, channels, step.
    pub map: [i32; 6],
    pub patch: i32,
    pub tokens: i32,
    pub head: i32,
    pub part: i32,
    pub rotated: u32,
    pub flags: u32,
}

/// `FeedArgs` of `fed.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct FeedArgs {
    pub across: i32,
    pub each: i32,
    pub images: i32,
    pub width_log2: i32,
}

/// `AttentionArgs` of `attention.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttentionArgs {
    /// Queries, keys, values, output.
    pub(super) at: [u64; 4],
    pub(super) item: [i64; 4],
    pub(super) stride: [i32; 4],
    pub(super) tokens: i32,
    pub(super) items: i32,
    pub(super) shift: i32,
}

/// `PatchArgs` of `tokens.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PatchArgs {
    pub(super) planes: u64,
    pub(super) out: u64,
    pub(super) height: i32,
    pub(super) width: i32,
    pub(super) patch: i32,
    pub(super) stride: i32,
    pub(super) tokens: i32,
}

/// `NormArgs` of `tokens.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct NormArgs {
    pub(super) x: u64,
    pub(super) scale: u64,
    pub(super) offset: u64,
    pub(super) out: u64,
    pub(super) out_f32: u64,
    pub(super) rows: i32,
    pub(super) width: i32,
    pub(super) out_stride: i32,
    pub(super) epsilon: f32,
}

/// `ConvertArgs` of `tokens.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ConvertArgs {
    pub(super) views: [u64; 2],
    pub(super) out: u64,
    pub(super) tokens: i32,
    pub(super) width: i32,
    pub(super) out_stride: i32,
    pub(super) items: i32,
    pub(super) partner: i32,
    pub(super) half: i32,
}

/// `CopyArgs` of `tokens.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CopyArgs {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) chunks: i32,
}

/// `Sanitising` of `heads.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Sanitising {
    pub(super) unusable: u64,
    pub(super) descriptors: u64,
    pub(super) quality: u64,
    pub(super) dim: u64,
}

/// `EnlargeArgs` of `heads.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct EnlargeArgs {
    pub(super) x: u64,
    pub(super) out: u64,
    pub(super) images: i32,
    pub(super) height: i32,
    pub(super) width: i32,
    pub(super) channels: i32,
    pub(super) full: [i32; 2],
    pub(super) kept: [i32; 2],
}

/// `PointArgs` of `heads.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PointArgs {
    pub(super) x: u64,
    pub(super) weight: u64,
    pub(super) bias: u64,
    pub(super) points: u64,
    pub(super) confidence: u64,
    pub(super) sanitising: Sanitising,
    pub(super) pixels: i32,
    pub(super) channels: i32,
    pub(super) lanes: i32,
}

/// `EnlargedArgs` of `enlarged.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct EnlargedArgs {
    pub(super) x: u64,
    pub(super) weight: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) point_weight: u64,
    pub(super) point_bias: u64,
    pub(super) points: [u64; 2],
    pub(super) confidence: [u64; 2],
    pub(super) sanitising: [Sanitising; 2],
    pub(super) images: i32,
    pub(super) height: i32,
    pub(super) width: i32,
    pub(super) out_height: i32,
    pub(super) out_width: i32,
}

/// `DescriptorArgs` of `heads.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DescriptorArgs {
    pub(super) x: u64,
    pub(super) descriptors: [u64; 2],
    pub(super) confidence: [u64; 2],
    pub(super) unusable: [u64; 2],
    pub(super) items: i32,
    pub(super) height: i32,
    pub(super) width: i32,
    pub(super) patch: i32,
    pub(super) dim: i32,
    pub(super) stride: i32,
}

macro_rules! arguments {
    ($($name:ident)*) => {$(
        // SAFETY: the same fields in the same order as in the `.cu` file.
        unsafe impl KernelArgument for $name {}
    )*};
}
arguments!(LinearArgs FeedArgs AttentionArgs PatchArgs NormArgs ConvertArgs CopyArgs EnlargeArgs EnlargedArgs PointArgs DescriptorArgs);

/// The arguments of a linear layer or convolution.
pub(super) fn linear(layer: &Linear, addresses: &Addresses) -> LinearArgs {
    let at = |operand| addresses.of(operand);
    let (map, patch) = match layer.form {
        Form::Rows => ([0; 6], 1),
        Form::Convolution(map) => (
            [
                map.height,
                map.width,
                map.out_height,
                map.out_width,
                map.channels,
                map.step,
            ]
            .map(|n| n as i32),
            1,
        ),
        Form::Patches { side, width } => ([0, width as i32, 0, 0, 0, 1], side as i32),
    };
    let rotation = layer.rotation.unwrap_or(Rotation {
        table: Operand::None,
        tokens: 1,
        head: 1,
        part: 1,
        parts: 0,
    });
    let row_of_weights = match layer.scale {
        Some(_) => quantised_row(layer.inputs),
        None => layer.inputs,
    };
    LinearArgs {
        a: at(layer.a),
        weight: addresses.weights + layer.weight as u64,
        scale: at(layer.scale.map_or(Operand::None, Operand::Weight)),
        bias: addresses.weights + layer.bias as u64,
        rotary: at(rotation.table),
        first: at(layer.first.at),
        second: at(layer.second.at),
        out: at(layer.out),
        groups: [
            layer.a_group,
            layer.outputs * row_of_weights,
            layer.outputs,
            layer.first.group,
            layer.second.group,
            layer.out_group,
        ]
        .map(|n| n as i64),
        rows: layer.rows as i32,
        outputs: layer.outputs as i32,
        inputs: layer.inputs as i32,
        a_stride: layer.a_stride as i32,
        out_stride: layer.out_stride as i32,
        add_stride: layer.outputs as i32,
        map,
        patch,
        tokens: rotation.tokens as i32,
        head: rotation.head as i32,
        part: rotation.part as i32,
        rotated: rotation.parts,
        flags: layer.flags.bits(),
    }
}
