//! A small ONNX graph builder: static shapes, unique names, weights in one buffer.

use super::proto::{
    AttributeProto, DimensionProto, EXTERNAL, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, attribute_type, data_type,
};

/// Operators are those of this set. 20 is the first with `Gelu`, and every runtime in use reads it.
const OPSET: i64 = 20;
/// The file format's version that goes with opset 20.
const IR_VERSION: i64 = 9;
/// Weights start at multiples of this, so that a runtime can use them in place.
const ALIGNMENT: usize = 64;

/// A tensor of the graph: its name, and its shape, which is always known.
#[derive(Debug, Clone)]
pub struct Value {
    name: String,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

/// An attribute's value.
pub enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Text(&'a str),
}

/// A stored weight: where its bytes lie in the weights buffer.
struct Stored {
    name: String,
    shape: Vec<usize>,
    offset: usize,
    bytes: usize,
}

/// The graph under construction.
pub struct Graph {
    name: String,
    nodes: Vec<NodeProto>,
    shapes: Vec<TensorProto>,
    stored: Vec<Stored>,
    weights: Vec<u8>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    scope: String,
    counter: usize,
}

impl Graph {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: Vec::new(),
            shapes: Vec::new(),
            stored: Vec::new(),
            weights: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scope: String::new(),
            counter: 0,
        }
    }

    /// Names of what follows start with `scope`, so that profiles and errors can be read.
    pub fn set_scope(&mut self, scope: &str) {
        scope.clone_into(&mut self.scope);
    }

    /// A unique name: no other value, weight or node of the graph has the number at its end.
    fn unique(&mut self, what: &str) -> String {
        self.counter += 1;
        format!("{}/{what}_{}", self.scope, self.counter)
    }

    pub fn input(&mut self, name: &str, shape: &[usize]) -> Value {
        self.inputs.push(value_info(name, shape));
        Value {
            name: name.to_owned(),
            shape: shape.to_vec(),
        }
    }

    /// Makes `value` an output of the graph, under the given name.
    pub fn output(&mut self, value: &Value, name: &str) {
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
        self.weights.resize(offset + values.len() * 4, 0);
        // Element by element into place compiles to a copy; collecting bytes does not.
        let (elements, _) = self.weights[offset..].as_chunks_mut::<4>();
        for (element, value) in elements.iter_mut().zip(values) {
            *element = value.to_le_bytes();
        }
        let name = self.unique(what);
        self.stored.push(Stored {
            name: name.clone(),
            shape: shape.to_vec(),
            offset,
            bytes: self.weights.len() - offset,
        });
        Value {
            name,
            shape: shape.to_vec(),
        }
    }

    /// A constant of one element that broadcasts against anything.
    pub fn scalar(&mut self, value: f32) -> Value {
        self.weight("scalar", &[1], &[value])
    }

    /// A vector of integers: shapes, axes, sizes. Always stored in the model itself, because
    /// runtimes need them to infer shapes.
    fn integers(&mut self, what: &str, values: &[i64]) -> Value {
        let name = self.unique(what);
        self.shapes.push(TensorProto {
            dims: vec![values.len() as i64],
            data_type: Some(data_type::INT64),
            name: Some(name.clone()),
            raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            ..Default::default()
        });
        Value {
            name,
            shape: vec![values.len()],
        }
    }

    /// Adds a node with several outputs.
    fn node_n(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        shapes: &[Vec<usize>],
    ) -> Vec<Value> {
        let name = self.unique(op);
        let outputs: Vec<Value> = shapes
            .iter()
            .map(|shape| Value {
                name: self.unique("out"),
                shape: shape.clone(),
            })
            .collect();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|v| v.name.clone()).collect(),
            output: outputs.iter().map(|v| v.name.clone()).collect(),
            name: Some(name),
            op_type: Some(op.to_owned()),
            attribute: attributes
                .iter()
                .map(|(name, value)| attribute(name, value))
                .collect(),
        });
        outputs
    }

    fn node(
        &mut self,
        op: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute)],
        shape: Vec<usize>,
    ) -> Value {
        self.node_n(op, inputs, attributes, &[shape]).remove(0)
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

    /// `a · b` over the last two axes; a matrix `b` serves every batch item of `a`.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let (ra, rb) = (a.shape.len(), b.shape.len());
        assert_eq!(a.shape[ra - 1], b.shape[rb - 2], "matmul");
        let mut shape = a.shape.clone();
        shape[ra - 1] = b.shape[rb - 1];
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

    /// Keeps the first `height` rows and `width` columns of an NCHW map.
    pub fn crop(&mut self, x: &Value, height: usize, width: usize) -> Value {
        if x.shape[2..] == [height, width] {
            return x.clone();
        }
        let starts = self.integers("starts", &[0, 0]);
        let ends = self.integers("ends", &[height as i64, width as i64]);
        let axes = self.integers("axes", &[2, 3]);
        let shape = vec![x.shape[0], x.shape[1], height, width];
        self.node("Slice", &[x, &starts, &ends, &axes], &[], shape)
    }

    /// 2-D convolution with a square kernel, the same padding on all sides.
    pub fn conv(
        &mut self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        stride: usize,
        padding: usize,
    ) -> Value {
        let kernel = weight.shape[2];
        assert_eq!(x.shape[1], weight.shape[1], "conv");
        let out = |n: usize| (n + 2 * padding - kernel) / stride + 1;
        let shape = vec![
            x.shape[0],
            weight.shape[0],
            out(x.shape[2]),
            out(x.shape[3]),
        ];
        self.convolve("Conv", x, weight, bias, stride, padding, shape)
    }

    /// Transposed 2-D convolution whose stride is its kernel's side: patches do not overlap.
    pub fn conv_transpose(&mut self, x: &Value, weight: &Value, bias: &Value) -> Value {
        let kernel = weight.shape[2];
        assert_eq!(x.shape[1], weight.shape[0], "conv_transpose");
        let shape = vec![
            x.shape[0],
            weight.shape[1],
            x.shape[2] * kernel,
            x.shape[3] * kernel,
        ];
        self.convolve("ConvTranspose", x, weight, Some(bias), kernel, 0, shape)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the two convolutions' common part"
    )]
    fn convolve(
        &mut self,
        op: &str,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        stride: usize,
        padding: usize,
        shape: Vec<usize>,
    ) -> Value {
        let kernel = weight.shape[2] as i64;
        let attributes = [
            ("kernel_shape", Attribute::Ints(&[kernel, kernel])),
            ("strides", Attribute::Ints(&[stride as i64; 2])),
            ("pads", Attribute::Ints(&[padding as i64; 4])),
        ];
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        self.node(op, &inputs, &attributes, shape)
    }

    /// Bilinear enlargement by two, corner pixels on corner pixels: `src = i·(in−1)/(out−1)`.
    pub fn upsample(&mut self, x: &Value) -> Value {
        let shape = vec![x.shape[0], x.shape[1], x.shape[2] * 2, x.shape[3] * 2];
        let sizes: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let sizes = self.integers("sizes", &sizes);
        let absent = Value {
            name: String::new(),
            shape: Vec::new(),
        };
        let attributes = [
            ("mode", Attribute::Text("linear")),
            (
                "coordinate_transformation_mode",
                Attribute::Text("align_corners"),
            ),
        ];
        self.node("Resize", &[x, &absent, &absent, &sizes], &attributes, shape)
    }

    /// The finished description, weights apart.
    pub fn finish(self) -> (GraphParts, Vec<u8>) {
        let parts = GraphParts {
            graph: GraphProto {
                node: self.nodes,
                name: Some(self.name),
                initializer: self.shapes,
                input: self.inputs,
                output: self.outputs,
            },
            stored: self.stored,
        };
        (parts, self.weights)
    }
}

/// A finished graph without its weights.
pub struct GraphParts {
    graph: GraphProto,
    stored: Vec<Stored>,
}

impl GraphParts {
    /// The model with its weights inside.
    pub fn embedded(&self, weights: &[u8]) -> ModelProto {
        self.model(|stored| TensorProto {
            raw_data: Some(weights[stored.offset..stored.offset + stored.bytes].to_vec()),
            ..Default::default()
        })
    }

    /// The model with references into the file `location`, which lies beside it.
    pub fn referring_to(&self, location: &str) -> ModelProto {
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
        };
        self.model(|stored| TensorProto {
            external_data: vec![
                entry("location", location.to_owned()),
                entry("offset", stored.offset.to_string()),
                entry("length", stored.bytes.to_string()),
            ],
            data_location: Some(EXTERNAL),
            ..Default::default()
        })
    }

    fn model(&self, data: impl Fn(&Stored) -> TensorProto) -> ModelProto {
        let mut graph = self.graph.clone();
        graph
            .initializer
            .extend(self.stored.iter().map(|stored| TensorProto {
                dims: stored.shape.iter().map(|&n| n as i64).collect(),
                data_type: Some(data_type::FLOAT),
                name: Some(stored.name.clone()),
                ..data(stored)
            }));
        ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some(env!("CARGO_PKG_NAME").to_owned()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto {
                domain: Some(String::new()),
                version: Some(OPSET),
            }],
        }
    }
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
