//! What a network takes of a GPU's memory, found out without one.

use super::device::Part;
use super::format::Format;
use super::weights::{Collected, Index, Source};
use super::{layout, make_plan, make_plans};
use crate::inference::{InferenceError, input_size};
use crate::network::Network;
use crate::network::architecture::Architecture;
use crate::network::onnx::Precision;

/// A network's weights as they would be laid out.
pub struct Outline {
    architecture: Architecture,
    index: Index,
    weight_bytes: usize,
    half_tokens: bool,
}

/// Bytes of workspaces for one size of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workspaces {
    /// For a handle that encodes and decodes single pairs.
    pub single: usize,
    /// For a handle that also decodes several edges at once.
    pub edges: usize,
    /// For a handle that encodes only.
    pub encoder: usize,
}

impl Outline {
    /// The outline of a network for images of `width × height`; without a `precision` it is fp16. Values of weights do
    /// not matter.
    ///
    /// # Errors
    /// [`InferenceError::Shape`] for an impossible size, [`InferenceError::Unavailable`] for a network or a precision that
    /// there are no kernels for.
    pub fn new(
        network: &Network,
        (width, height): (usize, usize),
        precision: Option<Precision>,
    ) -> Result<Self, InferenceError> {
        let format = Format::of(precision.unwrap_or(Precision::F16))?;
        layout::check(&network.architecture)?;
        let size = input_size(network, width, height)?;
        let (_, collected) = make_plans(network, size, Collected::counting(format))?;
        Ok(Self {
            architecture: network.architecture.clone(),
            weight_bytes: collected.bytes(),
            index: collected.into_index(),
            half_tokens: format.half_tokens(),
        })
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Whether tokens are in half precision; see [`crate::inference::DeviceBackend::takes_half_tokens`].
    pub fn half_tokens(&self) -> bool {
        self.half_tokens
    }

    /// Workspaces for images of `width × height` and up to `edges` edges at once.
    ///
    /// # Errors
    /// [`InferenceError::Shape`] for an impossible size.
    pub fn workspaces(
        &self,
        (width, height): (usize, usize),
        edges: usize,
    ) -> Result<Workspaces, InferenceError> {
        let size = (self.architecture.input_size(1, width, height))
            .ok_or_else(|| super::super::no_such_size(&self.architecture, width, height))?;
        let largest = |parts: &[Part]| {
            let mut largest = 0;
            for &part in parts {
                let source = Source::Known(&self.index);
                let plan = make_plan(&self.architecture, size, source, part)?;
                largest = largest.max(plan.workspace_bytes());
            }
            Ok::<_, InferenceError>(largest)
        };
        Ok(Workspaces {
            single: largest(&Part::SINGLE)?,
            edges: largest(&Part::with_edges(edges))?,
            encoder: largest(&[Part::Encoder])?,
        })
    }
}
