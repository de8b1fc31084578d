//! A small ONNX graph builder: static shapes, unique names, all weights in one buffer.

use super::number::Number;
use super::operators::{CONTRIB, OperatorSet};
use super::parts::{GraphParts, Stored};
use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, data_type,
};
use crate::network::e4m3::to_e4m3;
use half::{bf16, f16};
use rayon::prelude::*;
use std::collections::HashMap;

/// Alignment of weights in bytes, so that a runtime can use them in place.
const ALIGNMENT: usize = 64;

/// A tensor of the graph: its name, element type and static shape.
#[derive(Debug, Clone)]
pub struct Value {
    name: String,
    number: Number,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl Value {
    /// An omitted optional input.
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
    /// Element type of weights added from now on.
    number: Number,
    nodes: Vec<NodeProto>,
    /// Constants stored in the model itself.
    small: Vec<TensorProto>,
    stored: Vec<Stored>,
    /// Indices into `stored` by weight name, in insertion order.
    named: HashMap<String, Vec<usize>>,
    weights: Vec<u8>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    scope: String,
    counter: usize,
    /// Multiplications and additions in products and convolutions so far.
    operations: u64,
    /// Whether any node belongs to [`CONTRIB`].
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

    /// Prefixes the names of all later values with `scope`, to make profiles and errors readable.
    pub fn set_scope(&mut self, scope: &str) {
        scope.clone_into(&mut self.scope);
    }

    /// Sets the element type of weights added from now on.
    pub fn set_number(&mut self, number: Number) {
        self.number = number;
    }

    /// A unique name: `what` with a counter that no other value, weight or node of the graph
    /// shares.
    fn unique(&mut self, what: &str) -> String {
        self.counter += 1;
        format!("{}/{what}_{}", self.scope, self.counter)
    }

    /// Adds a binary32 input.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        self.inputs.push(value_info(name, shape));
        Value {
            name: name.to_owned(),
            number: Number::F32,
            shape: shape.to_vec(),
        }
    }

    /// Makes `value` an output of the graph under `name`, converted to binary32.
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

    /// Adds a constant tensor.
    pub fn weight(&mut self, what: &str, shape: &[usize], values: &[f32]) -> Value {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{what}");
        self.weights
            .resize(self.weights.len().next_multiple_of(ALIGNMENT), 0);
        let offset = self.weights.len();
        // Writing elements in place compiles to a copy; collecting bytes does not.
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
            // Layers shared by both views are stored once.
            Some(stored) => {
                let name = stored.name.clone();
                self.weights.truncate(offset);
                name
            }
            None => {
                // The name is the same in every model that includes the weight.
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

    /// A scalar constant that broadcasts against any tensor. It is stored in the model itself
    /// because runtimes reshape such constants when they change layouts.
    pub fn scalar(&mut self, value: f32) -> Value {
        let raw = match self.number {
            Number::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Number::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        self.constant("scalar", self.number, &[1], raw)
    }

    /// A vector of integers: shapes, axes, sizes. Always stored in the model itself because
    /// runtimes need it for shape inference.
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

    /// Adds a node with several outputs of the first input's element type.
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

    /// Adds a node with outputs of element type `number`.
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

    /// Like [`Graph::node`], for an operator of ONNX Runtime's contrib domain.
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

    /// Converts `x` to another element type.
    pub fn cast(&mut self, x: &Value, number: Number) -> Value {
        if x.number == number {
            return x.clone();
        }
        let to = [("to", Attribute::Int(i64::from(number.data_type())))];
        let cast = self.node("Cast", &[x], &to, x.shape.clone());
        Value { number, ..cast }
    }

    /// Quantises `x / scale` to FP8 and dequantises it.
    pub fn through_fp8(&mut self, x: &Value, scale: f32) -> Value {
        let scale = self.weight("scale", &[], &[scale]);
        let number = self.number;
        self.number = Number::F8;
        // The type of the zero point selects the FP8 variant.
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

    /// Adds a constant tensor of `values / scale` in FP8, followed by its dequantisation.
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

    /// A unary element-wise operator.
    pub fn unary(&mut self, op: &str, x: &Value) -> Value {
        self.node(op, &[x], &[], x.shape.clone())
    }

    /// A binary element-wise operator; `b` may broadcast to `a`.
    pub fn binary(&mut self, op: &str, a: &Value, b: &Value) -> Value {
        let offset = a.shape.len() - b.shape.len();
        for (i, &extent) in b.shape.iter().enumerate() {
            assert!(extent == 1 || extent == a.shape[offset + i], "{op}");
        }
        self.node(op, &[a, b], &[], a.shape.clone())
    }

    /// `a · b` over the last two axes; a single matrix `b` is shared by all batch items of `a`.
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

    /// Euclidean norm along one axis, which is kept with extent 1.
    pub fn norm(&mut self, x: &Value, axis: usize) -> Value {
        let axes = self.integers("axes", &[axis as i64]);
        let mut shape = x.shape.clone();
        shape[axis] = 1;
        let keep = [("keepdims", Attribute::Int(1))];
        self.node("ReduceL2", &[x, &axes], &keep, shape)
    }

    /// `softmax(q·kᵀ)·v` for joint heads, `B × T × (H·D)` each. `q` already includes the logit
    /// scale.
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

    /// Rotates the halves of each head of `x`, `B × T × (H·D)`, by tables of `B × T × D/2`.
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

    /// Splits `x` along `axis` into parts of the given extents.
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

    /// Selects items `which` of the first axis.
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

    /// Concatenates along `axis`.
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

    /// Counts the operations of `outputs` sums of `terms` products each.
    pub(super) fn count(&mut self, outputs: &[usize], terms: usize) {
        let sums = outputs.iter().map(|&n| n as u64).product::<u64>();
        self.operations += 2 * sums * terms as u64;
    }

    /// Returns the finished graph and its weights.
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

/// Number of values that one task converts at a time.
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
