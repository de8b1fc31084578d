//! Edges between keyframes: made by a symmetric decode and two searches, judged by what they match (spec 6.1, 6.2).

use crate::compute::matching::{Matcher, View, match_quality};
use crate::config::MatchingConfig;
use crate::inference::{Backend, InferenceError, NetworkShape, PairOutput, sanitise};

/// An undirected edge with the matches of both directions. `i < j` does not hold in general.
pub struct GraphEdge {
    /// A keyframe id.
    pub i: u32,
    /// The other keyframe's id.
    pub j: u32,
    /// For each pixel of j its pixel in i.
    pub index_i_from_j: Vec<u32>,
    /// Whether that match holds.
    pub valid_j: Vec<u8>,
    /// Its quality; 0 where it does not hold.
    pub quality_j: Vec<f32>,
    /// For each pixel of i its pixel in j.
    pub index_j_from_i: Vec<u32>,
    /// Whether that match holds.
    pub valid_i: Vec<u8>,
    /// Its quality; 0 where it does not hold.
    pub quality_i: Vec<f32>,
    /// The smaller of the two fractions of pixels matched with enough quality.
    pub match_fraction: f32,
}

impl GraphEdge {
    /// Whether this edge joins `a` and `b`, in either order.
    pub fn joins(&self, a: u32, b: u32) -> bool {
        (self.i, self.j) == (a, b) || (self.i, self.j) == (b, a)
    }
}

/// Makes edges; holds the network's output buffers and the search's scratch.
pub struct EdgeMaker {
    matcher: Matcher,
    from_i: PairOutput,
    from_j: PairOutput,
    pixels: usize,
}

impl EdgeMaker {
    /// Buffers for `shape`.
    pub fn new(shape: &NetworkShape) -> Self {
        Self {
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim),
            from_i: PairOutput::zeros(shape),
            from_j: PairOutput::zeros(shape),
            pixels: shape.pixels(),
        }
    }

    /// Decodes `(i, j)` and `(j, i)` and matches both ways. `i` and `j` are an id and its tokens.
    pub fn make(
        &mut self,
        backend: &mut dyn Backend,
        i: (u32, &[f32]),
        j: (u32, &[f32]),
        q_conf: f32,
        matching: &MatchingConfig,
    ) -> Result<GraphEdge, InferenceError> {
        backend.decode(i.1, j.1, &mut self.from_i)?;
        backend.decode(j.1, i.1, &mut self.from_j)?;
        let n = self.pixels;
        let mut edge = GraphEdge {
            i: i.0,
            j: j.0,
            index_i_from_j: vec![0; n],
            valid_j: vec![0; n],
            quality_j: vec![0.0; n],
            index_j_from_i: vec![0; n],
            valid_i: vec![0; n],
            quality_i: vec![0.0; n],
            match_fraction: 0.0,
        };
        let good_j = match_pair(
            &mut self.matcher,
            &mut self.from_i,
            matching,
            q_conf,
            (
                &mut edge.index_i_from_j,
                &mut edge.valid_j,
                &mut edge.quality_j,
            ),
        );
        let good_i = match_pair(
            &mut self.matcher,
            &mut self.from_j,
            matching,
            q_conf,
            (
                &mut edge.index_j_from_i,
                &mut edge.valid_i,
                &mut edge.quality_i,
            ),
        );
        edge.match_fraction = good_i.min(good_j) as f32 / n as f32;
        Ok(edge)
    }
}

/// Matches view 2's pixels into view 1 and returns how many have a quality above `q_conf`.
fn match_pair(
    matcher: &mut Matcher,
    output: &mut PairOutput,
    matching: &MatchingConfig,
    q_conf: f32,
    (index, valid, quality): (&mut [u32], &mut [u8], &mut [f32]),
) -> usize {
    let PairOutput { view1, view2 } = output;
    sanitise(view1);
    sanitise(view2);
    matcher.run(
        View {
            points: &view1.points,
            descriptors: &view1.descriptors,
        },
        View {
            points: &view2.points,
            descriptors: &view2.descriptors,
        },
        None,
        matching,
        index,
        valid,
    );
    match_quality(
        &view1.descriptor_confidence,
        &view2.descriptor_confidence,
        index,
        valid,
        quality,
    );
    quality.iter().filter(|&&q| q > q_conf).count()
}
