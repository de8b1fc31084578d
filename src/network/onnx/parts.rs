//! A finished graph and its serialised model.

use super::number::Number;
use super::operators::{CONTRIB, OperatorSet};
use super::proto::{
    EXTERNAL, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};

/// A stored weight and its location in the weight buffer.
pub struct Stored {
    pub name: String,
    pub number: Number,
    pub shape: Vec<usize>,
    pub offset: usize,
    pub bytes: usize,
}

/// A finished graph without its weights.
pub struct GraphParts {
    pub(super) operators: OperatorSet,
    /// Whether any node belongs to [`CONTRIB`].
    pub(super) contrib: bool,
    /// Multiplications and additions of all products and convolutions.
    pub operations: u64,
    pub(super) graph: GraphProto,
    pub stored: Vec<Stored>,
}

impl GraphParts {
    /// Names and dimensions of the inputs, then of the outputs.
    pub fn tensors(&self) -> Vec<(&str, Vec<usize>)> {
        let all = self.graph.input.iter().chain(&self.graph.output);
        all.map(|info| {
            let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
            let shape = tensor.and_then(|t| t.shape.as_ref());
            let extents = shape.iter().flat_map(|shape| &shape.dim);
            let extents = extents.map(|d| d.dim_value.unwrap_or(0) as usize);
            (info.name(), extents.collect())
        })
        .collect()
    }

    /// The model with embedded weights.
    pub fn embedded(&self, weights: &[u8]) -> ModelProto {
        self.model(|stored| TensorProto {
            raw_data: Some(weights[stored.offset..stored.offset + stored.bytes].to_vec()),
            ..Default::default()
        })
    }

    /// The model with references into the file `location` in the same folder.
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
                data_type: Some(stored.number.data_type()),
                name: Some(stored.name.clone()),
                ..data(stored)
            }));
        ModelProto {
            ir_version: Some(self.operators.ir_version),
            producer_name: Some(env!("CARGO_PKG_NAME").to_owned()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            graph: Some(graph),
            opset_import: [("", self.operators.opset), (CONTRIB, 1)]
                .into_iter()
                .take(if self.contrib { 2 } else { 1 })
                .map(|(domain, version)| OperatorSetIdProto {
                    domain: Some(domain.to_owned()),
                    version: Some(version),
                })
                .collect(),
        }
    }
}
