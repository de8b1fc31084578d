//! The builder's list of an engine's kernels: what kind each is, its operations and bytes.

use super::recipe::Gpu;
use serde::Serialize;
use std::ops::AddAssign;

/// Kinds of kernels, by what limits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Both products of attention with the softmax between them.
    Attention,
    /// A linear layer, with what is fused into it.
    Linear,
    /// A convolution, transposed or not, with what is fused into it.
    Convolution,
    /// A LayerNorm, with what is fused into it.
    Norm,
    /// Bilinear enlargement of a map.
    Enlargement,
    /// The rotation of queries and keys, with the move of heads to where attention reads them.
    Rotation,
    /// Other arithmetic on each element.
    Elementwise,
    /// No arithmetic: copies, other layouts, other types.
    Reformat,
}

impl LayerKind {
    /// All kinds, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::Linear,
        Self::Attention,
        Self::Convolution,
        Self::Norm,
        Self::Rotation,
        Self::Enlargement,
        Self::Elementwise,
        Self::Reformat,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Linear => "linear layer",
            Self::Convolution => "convolution",
            Self::Norm => "norm",
            Self::Enlargement => "enlargement",
            Self::Rotation => "rotation of queries and keys",
            Self::Elementwise => "element-wise",
            Self::Reformat => "reformat",
        }
    }

    /// From a kernel's type and name, which TensorRT puts together of its operations: `__myl_FcAddAdd_myl0_11`.
    fn of(layer_type: &str, name: &str) -> Self {
        let has = |word: &str| name.contains(word);
        match layer_type {
            "gemm" => return Self::Linear,
            "correlation" | "deconv" => return Self::Convolution,
            _ if has("mha") => return Self::Attention,
            _ => {}
        }
        let operations = words(name);
        let one_of = |known: &[&str]| operations.iter().any(|word| known.contains(&word.as_str()));
        if one_of(&["Fc"]) {
            Self::Linear
        } else if one_of(&["Corr"]) {
            Self::Convolution
        } else if one_of(&["Resi"]) {
            Self::Enlargement
        } else if one_of(&["Mean"]) {
            Self::Norm
        } else if one_of(&["Conc"]) && one_of(&["Mul"]) && !one_of(&["Sqrt"]) {
            Self::Rotation
        } else if operations.iter().all(|word| MOVES.contains(&word.as_str())) {
            Self::Reformat
        } else {
            Self::Elementwise
        }
    }
}

/// Operations without arithmetic, as names abbreviate them; `Etc` stands for those that a name leaves out.
const MOVES: [&str; 9] = [
    "Cast", "Conc", "Etc", "Gath", "Move", "Resh", "Slic", "Spli", "Tran",
];

/// The operations in a kernel's name: capitals begin them.
fn words(name: &str) -> Vec<String> {
    let name = name.trim_start_matches("__myl_");
    let name = name.split('_').next().unwrap_or_default();
    let mut words: Vec<String> = Vec::new();
    for letter in name.chars() {
        match words.last_mut() {
            Some(word) if !letter.is_ascii_uppercase() => word.push(letter),
            _ => words.push(letter.into()),
        }
    }
    words
}

/// An input, output or weight of a kernel.
#[derive(Debug, Clone, PartialEq)]
struct Tensor<'a> {
    extents: Vec<f64>,
    datatype: &'a str,
}

impl<'a> Tensor<'a> {
    /// The tensors in a part of a kernel's line.
    fn all(text: &'a str) -> Vec<Self> {
        let parts = text.split("Dimensions: [").skip(1);
        let tensor = |part: &'a str| {
            let (extents, rest) = part.split_once(']')?;
            let datatype = rest.split("Datatype: ").nth(1)?;
            Some(Self {
                extents: extents.split(',').filter_map(|n| n.parse().ok()).collect(),
                datatype: datatype.split([',', ' ']).next()?,
            })
        };
        parts.filter_map(tensor).collect()
    }

    fn elements(&self) -> f64 {
        self.extents.iter().product()
    }

    fn bytes(&self) -> f64 {
        let each = match self.datatype {
            "Half" | "BFloat16" => 2.0,
            "FP8" | "Int8" | "Bool" => 1.0,
            "Int64" => 8.0,
            _ => 4.0,
        };
        each * self.elements()
    }
}

/// One kernel of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer<'a> {
    /// TensorRT's name of it.
    pub name: &'a str,
    pub kind: LayerKind,
    /// TensorRT's name of the type that it reads: `Half`, `Float`.
    pub datatype: &'a str,
    /// Multiplications and additions of its products.
    pub operations: f64,
    /// Bytes of its inputs, weights and outputs.
    pub bytes: f64,
}

impl<'a> Layer<'a> {
    /// The kernels of the builder's list, which has one a line.
    pub fn all(list: &'a str) -> Vec<Self> {
        list.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &'a str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("Name: ")?.split_once(", LayerType: ")?;
        let (layer_type, rest) = rest.split_once(", Inputs: [")?;
        let (inputs, rest) = rest.split_once("Constants: [")?;
        let (constants, rest) = rest.split_once("Outputs: [")?;
        let outputs = rest.split("TacticName:").next()?;
        let kind = LayerKind::of(layer_type, name);
        let [inputs, constants, outputs] = [inputs, constants, outputs].map(Tensor::all);
        let all = inputs.iter().chain(&constants).chain(&outputs);
        Some(Self {
            name,
            kind,
            datatype: inputs.first().map_or("", |tensor| tensor.datatype),
            operations: operations(kind, layer_type, &inputs, &constants, &outputs),
            bytes: all.map(Tensor::bytes).sum(),
        })
    }

    /// Milliseconds on a GPU, predicted: operations divided by the rate that is reached, or bytes by bandwidth,
    /// whichever takes longer.
    fn predict(&self, gpu: &Gpu) -> f64 {
        let rate = match self.datatype {
            "Float" => gpu.fp16_tflops / 2.0,
            "FP8" => gpu.fp8_tflops,
            _ => gpu.fp16_tflops,
        };
        let compute = self.operations / (rate * 1e12 * gpu.efficiency);
        1e3 * compute.max(self.bytes / (gpu.bandwidth_gb_s * 1e9))
    }
}

/// Multiplications and additions of a kernel's products.
fn operations(
    kind: LayerKind,
    layer_type: &str,
    inputs: &[Tensor<'_>],
    constants: &[Tensor<'_>],
    outputs: &[Tensor<'_>],
) -> f64 {
    let Some(output) = outputs.first().map(Tensor::elements) else {
        return 0.0;
    };
    let largest = |a: &&Tensor<'_>, b: &&Tensor<'_>| a.elements().total_cmp(&b.elements());
    let weight = constants.iter().max_by(largest).map(|w| &w.extents[..]);
    match (kind, weight, inputs) {
        // Queries are H × T × D, keys H × D × T.
        (LayerKind::Attention, _, [queries, keys, ..]) => {
            let tokens = keys.extents.last().copied().unwrap_or_default();
            4.0 * queries.elements() * tokens
        }
        // Filters are out × in × k × k, transposed ones in × out × k × k without overlap.
        (LayerKind::Convolution, Some(&[inputs, _, _, _]), _) if layer_type == "deconv" => {
            2.0 * output * inputs
        }
        (LayerKind::Convolution, Some(&[_, inputs, height, width]), _) => {
            2.0 * output * inputs * height * width
        }
        // Weights are in × out, or turned: the input's size says which.
        (LayerKind::Linear, Some(&[.., a, b]), _) => {
            let read = |terms: f64, outputs: f64| {
                let mut sizes = inputs.iter().map(Tensor::elements);
                sizes.any(|size| size == output / outputs * terms)
            };
            let terms = if read(a, b) { a } else { b };
            2.0 * output * terms
        }
        _ => 0.0,
    }
}

/// Kernels of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct KindSum {
    /// Number of kernels.
    pub layers: usize,
    /// Multiplications and additions of their products.
    pub operations: f64,
    /// Bytes of inputs, weights and outputs.
    pub bytes: f64,
    /// Milliseconds, predicted, where a GPU was given.
    pub predicted_ms: Option<f64>,
}

impl AddAssign<(&Layer<'_>, Option<&Gpu>)> for KindSum {
    fn add_assign(&mut self, (layer, gpu): (&Layer<'_>, Option<&Gpu>)) {
        self.layers += 1;
        self.operations += layer.operations;
        self.bytes += layer.bytes;
        if let Some(gpu) = gpu {
            *self.predicted_ms.get_or_insert(0.0) += layer.predict(gpu);
        }
    }
}

/// Sums of the kinds that occur in a list of kernels, for a GPU if one is given.
pub fn kinds(list: &str, gpu: Option<&Gpu>) -> Vec<(LayerKind, KindSum)> {
    let layers = Layer::all(list);
    let sum = |kind: LayerKind| {
        let mut sum = KindSum::default();
        let of_kind = layers.iter().filter(|layer| layer.kind == kind);
        of_kind.for_each(|layer| sum += (layer, gpu));
        (kind, sum)
    };
    let all = LayerKind::ALL.into_iter().map(sum);
    all.filter(|(_, sum)| sum.layers > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, layer_type: &str, [inputs, constants, outputs]: [&[&str]; 3]) -> String {
        let tensors = |extents: &[&str]| {
            let all = extents.iter().map(|extents| {
                format!("{{ Name: t, Dimensions: [{extents}], Strides: [1], Datatype: Half, Format: (Linear) }}")
            });
            all.collect::<Vec<_>>().join(", ")
        };
        format!(
            "Name: {name}, LayerType: {layer_type}, Inputs: [ {}], Constants: [ {}], Outputs: [ {}], TacticName: , \
             StreamId: 0, Metadata: [ONNX Layer: x]",
            tensors(inputs),
            tensors(constants),
            tensors(outputs),
        )
    }

    #[test]
    fn kernels_are_of_the_kinds_that_their_names_say() {
        for (name, layer_type, kind) in [
            ("_gemm_mha_v2_myl0_5", "kgen", LayerKind::Attention),
            ("__myl_FcAddAdd_myl0_7", "runtime_fusion", LayerKind::Linear),
            ("dec_blocks2.9/MatMul_12_myl0_1", "gemm", LayerKind::Linear),
            (
                "downstream_head1.dpt.head/Conv_3_myl0_2",
                "correlation",
                LayerKind::Convolution,
            ),
            (
                "__myl_CorrAddRelu_myl0_16",
                "runtime_fusion",
                LayerKind::Convolution,
            ),
            (
                "__myl_CastMeanSubMulMeanAddSqrtDivMulCastMulAdd_myl0_8",
                "kgen",
                LayerKind::Norm,
            ),
            ("__myl_ReshResi_myl0_9", "kgen", LayerKind::Enlargement),
            (
                "__myl_ReshTranSlicSlicMulSlicSlicConcMulAddSlicReshTranSlicReshMoveReshMoveReshMove_myl0_2",
                "kgen",
                LayerKind::Rotation,
            ),
            (
                "__myl_AddSqrtDivMulCastMulAddConc_myl0_3",
                "kgen",
                LayerKind::Elementwise,
            ),
            (
                "__myl_AddReshTranReshMove_myl0_2",
                "kgen",
                LayerKind::Elementwise,
            ),
            ("__myl_MoveReshTran_myl0_6", "kgen", LayerKind::Reformat),
            ("__myl_Cast_myl0_0", "kgen", LayerKind::Reformat),
            ("__myl_Relu_myl0_5", "kgen", LayerKind::Elementwise),
        ] {
            assert_eq!(LayerKind::of(layer_type, name), kind, "{name}");
        }
    }

    #[test]
    fn operations_and_bytes_are_those_of_the_shapes() {
        let residual: [&[&str]; 3] = [
            &["2,768,192", "2,768,384"],
            &["2,1,192", "2,384,192"],
            &["2,768,192"],
        ];
        let turned: [&[&str]; 3] = [&["1,768,1024"], &["1,96,1024", "1"], &["1,96,768"]];
        let attention: [&[&str]; 3] = [
            &["12,768,64", "12,64,768", "12,768,64"],
            &[],
            &["12,768,64"],
        ];
        let convolution: [&[&str]; 3] = [
            &["1,64,24,32", "1,128,24,32"],
            &["128,64,3,3", "1,128,1,1"],
            &["1,128,24,32"],
        ];
        let patches: [&[&str]; 3] = [&["1,48,24,32"], &["48,32,2,2"], &["1,32,48,64"]];
        let rows = [
            (
                line("__myl_FcAddAdd_myl0_1", "runtime_fusion", residual),
                2.0 * 2.0 * 768.0 * 384.0 * 192.0,
            ),
            (
                line("a/MatMul_1_myl0_1", "gemm", turned),
                2.0 * 768.0 * 1024.0 * 96.0,
            ),
            (
                line("_gemm_mha_v2_myl0_1", "kgen", attention),
                4.0 * 12.0 * 768.0 * 768.0 * 64.0,
            ),
            (
                line("__myl_CorrAddRelu_myl0_1", "runtime_fusion", convolution),
                2.0 * 768.0 * 128.0 * 64.0 * 9.0,
            ),
            (
                line("a/ConvTranspose_1_myl0_1", "deconv", patches),
                2.0 * 32.0 * 48.0 * 64.0 * 48.0,
            ),
        ];
        for (line, operations) in &rows {
            let [layer] = &Layer::all(line)[..] else {
                panic!("one kernel: {line}");
            };
            assert_eq!(layer.operations, *operations, "{line}");
            assert_eq!(layer.datatype, "Half");
        }
        // Two inputs, bias, weight, output.
        let values = 2.0 * 768.0 * (192.0 + 384.0) + 2.0 * 192.0 + 2.0 * 384.0 * 192.0;
        let bytes = 2.0 * (values + 2.0 * 768.0 * 192.0);
        assert_eq!(Layer::all(&rows[0].0)[0].bytes, bytes);
    }

    #[test]
    fn a_kind_s_time_is_the_sum_of_the_longer_of_products_and_bytes() {
        let gpu = Gpu {
            name: "round".into(),
            fp16_tflops: 1e-3,
            fp8_tflops: 0.0,
            bandwidth_gb_s: 1.0,
            efficiency: 0.5,
            source: String::new(),
        };
        // 2·10⁶ operations at 0.5·10⁹ a second, 60,000 bytes at 10⁹ a second.
        let products: [&[&str]; 3] = [&["100,100"], &["100,100"], &["100,100"]];
        let products = line("__myl_Fc_myl0_1", "runtime_fusion", products);
        // 80,000 bytes.
        let bytes = line(
            "__myl_Move_myl0_2",
            "kgen",
            [&["200,100"], &[], &["200,100"]],
        );
        let text = format!("{products}\n{products}\n{bytes}\nBindings:\n");
        let found = kinds(&text, Some(&gpu));
        let [(linear, two), (reformat, one)] = &found[..] else {
            panic!("two kinds: {found:?}");
        };
        assert_eq!((*linear, two.layers), (LayerKind::Linear, 2));
        assert_eq!((*reformat, one.layers), (LayerKind::Reformat, 1));
        assert!((two.predicted_ms.unwrap_or_default() - 8.0).abs() < 1e-9);
        assert!((one.predicted_ms.unwrap_or_default() - 0.08).abs() < 1e-9);
        assert_eq!(kinds(&text, None)[0].1.predicted_ms, None);
    }
}
