//! A small ONNX graph builder: static shapes, unique names, weights in one buffer.

use super::fp8::to_e4m3;
use super::parts::{CONTRIB, GraphParts, Stored};
use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};
use half::{bf16, f16};
use rayon::prelude::*;
use std::collections::HashMap;

/// Which operators there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorSet {
    pub(super) opset: i64,
    /// The file format's version that goes with it.
    pub(super) ir_version: i64,
}

/// The first set with `Gelu`; every runtime in use reads it.
pub const WITH_GELU: OperatorSet = OperatorSet {
    opset: 20,
    ir_version: 9,
};
/// The first set with `Attention` and `RotaryEmbedding`.
pub const WITH_ATTENTION: OperatorSet = OperatorSet {
    opset: 23,
    ir_version: 11,
};
/// Weights start at multiples of this, so that a runtime can use them in place.
const ALIGNMENT: usize = 64;

/// The numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// binary32
    F32,
    /// binary16
    F16,
    /// The upper half of binary32.
    BF16,
    /// 8 bits, E4M3: only between a quantisation and the way back.
    F8,
    /// 64-bit integers: shapes, axes, sizes.
    I64,
}

impl Number {
    pub(super) fn data_type(self) -> i32 {
        match self {
            Self::F32 => data_type::FLOAT,
            Self::F16 => data_type::FLOAT16,
            Self::BF16 => data_type::BFLOAT16,
            Self::F8 => data_type::FLOAT8E4M3FN,
            Self::I64 => data_type::INT64,
        }
    }
}

/// A tensor of the graph: its name, its numbers, and its shape, which is always known.
#[derive(Debug, Clone)]
pub struct Value {
    name: String,
    number: Number,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

impl Value {
    /// An input that is left out.
    pub(super) fn absent(number: Number) -> Self {
        Self {
            name: String::new(),
            number,
            shape: Vec::new(),
        }
    }

    pub(super) fn number(&self) -> Number {
        self.number
    }
}

/// An attribute's value.
pub enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Text(&'a str),
}

/// The graph under construction.
pub struct Graph {
    name: String,
    operators: OperatorSet,
    /// Of the weights that are added next.
    number: Number,
    nodes: Vec<NodeProto>,
    /// Constants that lie in the model itself.
    small: Vec<TensorProto>,
    stored: Vec<Stored>,
    /// Indices into `stored` by what the weights are, in the order in which they came.
    named: HashMap<String, Vec<usize>>,
    weights: Vec<u8>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    scope: String,
    counter: usize,
    /// Multiplications and additions of products and convolutions so far.
    operations: u64,
    /// Whether there are nodes of [`CONTRIB`].
    contrib: bool,
}

impl Graph {
    pub fn new(name: &str, operators: OperatorSet) -> Self {
        Self {
            name: name.to_owned(),
            operators,
            number: Number::F32,
            nodes: Vec::new(),
            small: Vec::new(),
            stored: Vec::new(),
            named: HashMap::new(),
            weights: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scope: String::new(),
            counter: 0,
            operations: 0,
            contrib: false,
        }
    }

    /// Names of what follows start with `scope`, so that profiles and errors can be read.
    pub fn set_scope(&mut self, scope: &str) {
        scope.clone_into(&mut self.scope);
    }

    /// Weights that follow are stored as `number`.
    pub fn set_number(&mut self, number: Number) {
        self.number = number;
    }

    /// A unique name: no other value, weight or node of the graph has the number at its end.
    fn unique(&mut self, what: &str) -> String {
        self.counter += 1;
        format!("{}/{what}_{}", self.scope, self.counter)
    }

    /// An input, binary32.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        self.inputs.push(value_info(name, shape));
        Value {
            name: name.to_owned(),
            number: Number::F32,
            shape: shape.to_vec(),
        }
    }

    /// Makes `value` an output of the graph, under the given name, as binary32.
    pub fn output(&mut self, value: &Value, name: &str) {
        let value = &self.cast(value, Number::F32);
        for node in &mut self.nodes {
            for used in node.input.iter_mut().chain(&mut node.output) {
                if *used == value.name {
                    name.clone_into(used);
                }
            }
        }
        self.outputs.push(value_info(name, &value.shape));
    }

    /// A constant tensor.
    pub fn weight(&mut self, what: &str, shape: &[usize], values: &[f32]) -> Value {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{what}");
        self.weights
            .resize(self.weights.len().next_multiple_of(ALIGNMENT), 0);
        let offset = self.weights.len();
        // Element by element into place compiles to a copy; collecting bytes does not.
        match self.number {
            Number::F16 => put(&mut self.weights, values, |v| {
                f16::from_f32(v).to_le_bytes()
            }),
            Number::BF16 => put(&mut self.weights, values, |v| {
                bf16::from_f32(v).to_le_bytes()
            }),
            Number::F8 => put(&mut self.weights, values, |v| [to_e4m3(v)]),
            Number::F32 | Number::I64 => put(&mut self.weights, values, f32::to_le_bytes),
        }
        let same_name = self.named.entry(what.to_owned()).or_default();
        let (before, new) = self.weights.split_at(offset);
        let again = same_name.iter().map(|&n| &self.stored[n]).find(|stored| {
            let same_kind = stored.number == self.number && stored.shape == shape;
            same_kind && before[stored.offset..stored.offset + stored.bytes] == *new
        });
        let name = match again {
            // Layers that both views go through.
            Some(stored) => {
                let name = stored.name.clone();
                self.weights.truncate(offset);
                name
            }
            None => {
                // The same in every model that the weight is part of.
                let name = match same_name.len() {
                    0 => what.to_owned(),
                    n => format!("{what}_{n}"),
                };
                same_name.push(self.stored.len());
                self.stored.push(Stored {
                    name: name.clone(),
                    number: self.number,
                    shape: shape.to_vec(),
                    offset,
                    bytes: self.weights.len() - offset,
                });
                name
            }
        };
        Value {
            name,
            number: self.number,
            shape: shape.to_vec(),
        }
    }

    /// A constant of one element that broadcasts against anything. Stored in the model itself: runtimes
    /// give such constants other shapes when they move layouts about.
    pub fn scalar(&mut self, value: f32) -> Value {
        let raw = match self.number {
            Number::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Number::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        self.constant("scalar", self.number, &[1], raw)
    }

    /// A vector of integers: shapes, axes, sizes. Always stored in the model itself, because
    /// runtimes need them to infer shapes.
    pub(super) fn integers(&mut self, what: &str, values: &[i64]) -> Value {
        let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(what, Number::I64, &[values.len()], raw)
    }

    /// A small constant, stored in the model itself.
    fn constant(&mut self, what: &str, number: Number, shape: &[usize], raw: Vec<u8>) -> Value {
        let name = self.unique(what);
        self.small.push(TensorProto {
            dims: shape.iter().map(|&n| n as i64).collect(),
            data_type: Some(number.data_type()),
            name: Some(name.clone()),
            raw_data: Some(raw),
            ..Default::default()
        });
        Value {
            name,
            number,
            shape: shape.to_vec(),
        }
    }

    /// Adds a node with several outputs, whose numbers are the first input's.
    fn node_n(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        shapes: &[Vec<usize>],
    ) -> Vec<Value> {
        let number = inputs[0].number;
        let floats = inputs.iter().filter(|v| v.number != Number::I64);
        for other in floats.filter(|v| !v.name.is_empty()) {
            assert_eq!(other.number, number, "{op}");
        }
        self.add(op, inputs, attributes, number, shapes)
    }

    /// Adds a node whose outputs have numbers of their own.
    fn add(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        number: Number,
        shapes: &[Vec<usize>],
    ) -> Vec<Value> {
        let name = self.unique(op);
        let outputs: Vec<Value> = shapes
            .iter()
            .map(|shape| Value {
                name: self.unique("out"),
                number,
                shape: shape.clone(),
            })
            .collect();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|v| v.name.clone()).collect(),
            output: outputs.iter().map(|v| v.name.clone()).collect(),
            name: Some(name),
            op_type: Some(op.to_owned()),
            domain: None,
            attribute: attributes
                .iter()
                .map(|(name, value)| attribute(name, value))
                .collect(),
        });
        outputs
    }

    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        shape: Vec<usize>,
    ) -> Value {
        self.node_n(op, inputs, attributes, &[shape]).remove(0)
    }

    /// As [`Graph::node`], an operator of ONNX Runtime's own.
    pub(super) fn contrib_node(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        shape: Vec<usize>,
    ) -> Value {
        let value = self.node(op, inputs, attributes, shape);
        if let Some(node) = self.nodes.last_mut() {
            node.domain = Some(CONTRIB.to_owned());
        }
        self.contrib = true;
        value
    }

    /// `x` as other numbers.
    pub fn cast(&mut self, x: &Value, number: Number) -> Value {
        if x.number == number {
            return x.clone();
        }
        let to = [("to", Attribute::Int(i64::from(number.data_type())))];
        let cast = self.node("Cast", &[x], &to, x.shape.clone());
        Value { number, ..cast }
    }

    /// `x` as it is after 8-bit floats have held `x / scale`.
    pub fn through_fp8(&mut self, x: &Value, scale: f32) -> Value {
        let scale = self.weight("scale", &[], &[scale]);
        let number = self.number;
        self.number = Number::F8;
        // It says which 8-bit floats are meant.
        let zero = self.weight("zero", &[], &[0.0]);
        self.number = number;
        let shape = [x.shape.clone()];
        let quantised = self.add(
            "QuantizeLinear",
            &[x, &scale, &zero],
            &[],
            Number::F8,
            &shape,
        );
        self.out_of_fp8(&quantised[0], &scale)
    }

    /// A constant tensor of `values / scale` in 8-bit floats, and the way back.
    pub fn weight_fp8(&mut self, what: &str, shape: &[usize], values: &[f32], scale: f32) -> Value {
        let scaled: Vec<f32> = values.iter().map(|v| v / scale).collect();
        let number = self.number;
        self.number = Number::F8;
        let stored = self.weight(what, shape, &scaled);
        self.number = number;
        let scale = self.weight("scale", &[], &[scale]);
        self.out_of_fp8(&stored, &scale)
    }

    fn out_of_fp8(&mut self, x: &Value, scale: &Value) -> Value {
        let shape = [x.shape.clone()];
        let attributes = &[];
        self.add(
            "DequantizeLinear",
            &[x, scale],
            attributes,
            scale.number,
            &shape,
        )
        .remove(0)
    }

    /// An element-wise operator of one input.
    pub fn unary(&mut self, op: &str, x: &Value) -> Value {
        self.node(op, &[x], &[], x.shape.clone())
    }

    /// An element-wise operator of two inputs; `b` may broadcast to `a`.
    pub fn binary(&mut self, op: &str, a: &Value, b: &Value) -> Value {
        let offset = a.shape.len() - b.shape.len();
        for (i, &extent) in b.shape.iter().enumerate() {
            assert!(extent == 1 || extent == a.shape[offset + i], "{op}");
        }
        self.node(op, &[a, b], &[], a.shape.clone())
    }

    /// `a · b` over the last two axes; a matrix `b` serves every batch item of `a`, more of them one each.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let (ra, rb) = (a.shape.len(), b.shape.len());
        assert_eq!(a.shape[ra - 1], b.shape[rb - 2], "matmul");
        let mut shape = a.shape.clone();
        shape[ra - 1] = b.shape[rb - 1];
        self.count(&shape, a.shape[ra - 1]);
        self.node("MatMul", &[a, b], &[], shape)
    }

    pub fn softmax(&mut self, x: &Value) -> Value {
        let axis = [("axis", Attribute::Int(-1))];
        self.node("Softmax", &[x], &axis, x.shape.clone())
    }

    /// Normalises the last axis.
    pub fn layer_norm(&mut self, x: &Value, scale: &Value, bias: &Value, epsilon: f32) -> Value {
        let attributes = [
            ("axis", Attribute::Int(-1)),
            ("epsilon", Attribute::Float(epsilon)),
        ];
        self.node(
            "LayerNormalization",
            &[x, scale, bias],
            &attributes,
            x.shape.clone(),
        )
    }

    /// Euclidean norm along one axis, which stays with extent 1.
    pub fn norm(&mut self, x: &Value, axis: usize) -> Value {
        let axes = self.integers("axes", &[axis as i64]);
        let mut shape = x.shape.clone();
        shape[axis] = 1;
        let keep = [("keepdims", Attribute::Int(1))];
        self.node("ReduceL2", &[x, &axes], &keep, shape)
    }

    /// `softmax(q·kᵀ)·v` for joint heads, `B × T × (H·D)` each. The logits' scale is in `q` already.
    pub fn attention(&mut self, q: &Value, k: &Value, v: &Value, heads: usize) -> Value {
        let attributes = [
            ("q_num_heads", Attribute::Int(heads as i64)),
            ("kv_num_heads", Attribute::Int(heads as i64)),
            ("scale", Attribute::Float(1.0)),
        ];
        // Products with keys, then with values.
        self.count(&q.shape, k.shape[1]);
        self.count(&q.shape, k.shape[1]);
        self.node("Attention", &[q, k, v], &attributes, q.shape.clone())
    }

    /// Turns the halves of each head of `x`, `B × T × (H·D)`, by tables of `B × T × D/2`.
    pub fn rotary_embedding(&mut self, x: &Value, [cos, sin]: [&Value; 2], heads: usize) -> Value {
        let attributes = [("num_heads", Attribute::Int(heads as i64))];
        self.node(
            "RotaryEmbedding",
            &[x, cos, sin],
            &attributes,
            x.shape.clone(),
        )
    }

    pub fn reshape(&mut self, x: &Value, shape: &[usize]) -> Value {
        assert_eq!(
            x.shape.iter().product::<usize>(),
            shape.iter().product::<usize>(),
            "reshape"
        );
        let extents: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let extents = self.integers("shape", &extents);
        self.node("Reshape", &[x, &extents], &[], shape.to_vec())
    }

    pub fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        let perm: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
        let shape = order.iter().map(|&axis| x.shape[axis]).collect();
        self.node(
            "Transpose",
            &[x],
            &[("perm", Attribute::Ints(&perm))],
            shape,
        )
    }

    /// Cuts `x` along `axis` into pieces of the given extents.
    pub fn split(&mut self, x: &Value, axis: usize, extents: &[usize]) -> Vec<Value> {
        assert_eq!(extents.iter().sum::<usize>(), x.shape[axis], "split");
        let sizes: Vec<i64> = extents.iter().map(|&n| n as i64).collect();
        let sizes = self.integers("split", &sizes);
        let shapes: Vec<Vec<usize>> = extents
            .iter()
            .map(|&extent| {
                let mut shape = x.shape.clone();
                shape[axis] = extent;
                shape
            })
            .collect();
        let axis = [("axis", Attribute::Int(axis as i64))];
        self.node_n("Split", &[x, &sizes], &axis, &shapes)
    }

    /// Items `which` of the first axis.
    pub fn gather(&mut self, x: &Value, which: &[usize]) -> Value {
        let indices: Vec<i64> = which.iter().map(|&n| n as i64).collect();
        let indices = self.integers("indices", &indices);
        let mut shape = x.shape.clone();
        shape[0] = which.len();
        self.node(
            "Gather",
            &[x, &indices],
            &[("axis", Attribute::Int(0))],
            shape,
        )
    }

    /// Joins along `axis`.
    pub fn concat(&mut self, parts: &[&Value], axis: usize) -> Value {
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        self.node(
            "Concat",
            parts,
            &[("axis", Attribute::Int(axis as i64))],
            shape,
        )
    }

    /// Counts what `outputs` sums of `terms` products take.
    pub(super) fn count(&mut self, outputs: &[usize], terms: usize) {
        let sums = outputs.iter().map(|&n| n as u64).product::<u64>();
        self.operations += 2 * sums * terms as u64;
    }

    /// The finished description, weights apart.
    pub fn finish(self) -> (GraphParts, Vec<u8>) {
        let parts = GraphParts {
            graph: GraphProto {
                node: self.nodes,
                name: Some(self.name),
                initializer: self.small,
                input: self.inputs,
                output: self.outputs,
            },
            stored: self.stored,
            operators: self.operators,
            contrib: self.contrib,
            operations: self.operations,
        };
        (parts, self.weights)
    }
}

/// Values that one thread writes at a time.
const PIECE: usize = 1 << 18;

/// Appends all values as bytes.
fn put<const N: usize>(to: &mut Vec<u8>, values: &[f32], bytes: impl Fn(f32) -> [u8; N] + Sync) {
    let start = to.len();
    to.resize(start + values.len() * N, 0);
    let pieces = to[start..].par_chunks_mut(PIECE * N);
    pieces
        .zip(values.par_chunks(PIECE))
        .for_each(|(to, values)| {
            let (elements, _) = to.as_chunks_mut::<N>();
            for (element, value) in elements.iter_mut().zip(values) {
                *element = bytes(*value);
            }
        });
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let mut proto = AttributeProto {
        name: Some(name.to_owned()),
        ..Default::default()
    };
    proto.r#type = Some(match value {
        Attribute::Int(i) => {
            proto.i = Some(*i);
            attribute_type::INT
        }
        Attribute::Ints(ints) => {
            proto.ints = ints.to_vec();
            attribute_type::INTS
        }
        Attribute::Float(f) => {
            proto.f = Some(*f);
            attribute_type::FLOAT
        }
        Attribute::Text(s) => {
            proto.s = Some(s.as_bytes().to_vec());
            attribute_type::STRING
        }
    });
    proto
}

fn value_info(name: &str, shape: &[usize]) -> ValueInfoProto {
    let dim = shape
        .iter()
        .map(|&extent| DimensionProto {
            dim_value: Some(extent as i64),
        })
        .collect();
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorTypeProto {
                elem_type: Some(data_type::FLOAT),
                shape: Some(TensorShapeProto { dim }),
            }),
        }),
    }
}
