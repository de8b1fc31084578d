//! Edges between keyframes: symmetric decoding and matching in both directions (docs/algorithm.md,
//! Factor graph and loop closure).

use crate::compute::device::MatchContent;
use crate::compute::matching::{Matcher, View, match_quality};
use crate::config::MatchingConfig;
use crate::inference::{Backend, InferenceError, NetworkShape, PairOutput, sanitise};

/// An undirected edge with the matches of both directions. In general `i < j` does not hold.
pub struct Edge {
    pub i: u32,
    pub j: u32,
    /// Matches of j's pixels in i.
    pub i_from_j: MatchContent,
    /// Matches of i's pixels in j.
    pub j_from_i: MatchContent,
}

/// Makes edges. Owns the network's output buffers and the matcher's scratch memory.
pub struct EdgeMaker {
    matcher: Matcher,
    from_i: PairOutput,
    from_j: PairOutput,
    pixels: usize,
}

impl EdgeMaker {
    pub fn new(shape: &NetworkShape) -> Self {
        Self {
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim),
            from_i: PairOutput::zeros(shape),
            from_j: PairOutput::zeros(shape),
            pixels: shape.pixels(),
        }
    }

    /// Decodes `(i, j)` and `(j, i)` and matches in both directions; also returns the smaller of
    /// the two fractions of pixels matched with sufficient quality. `i` and `j` are pairs of id and
    /// tokens.
    pub fn make(
        &mut self,
        backend: &mut dyn Backend,
        i: (u32, &[f32]),
        j: (u32, &[f32]),
        q_conf: f32,
        matching: &MatchingConfig,
    ) -> Result<(Edge, f32), InferenceError> {
        backend.decode(i.1, j.1, &mut self.from_i)?;
        backend.decode(j.1, i.1, &mut self.from_j)?;
        let n = self.pixels;
        let (i_from_j, good_j) =
            match_pair(&mut self.matcher, &mut self.from_i, matching, q_conf, n);
        let (j_from_i, good_i) =
            match_pair(&mut self.matcher, &mut self.from_j, matching, q_conf, n);
        let edge = Edge {
            i: i.0,
            j: j.0,
            i_from_j,
            j_from_i,
        };
        Ok((edge, good_i.min(good_j) as f32 / n as f32))
    }
}

/// Matches view 2's pixels to view 1; also returns the number of matches with a quality above
/// `q_conf`.
fn match_pair(
    matcher: &mut Matcher,
    output: &mut PairOutput,
    matching: &MatchingConfig,
    q_conf: f32,
    pixels: usize,
) -> (MatchContent, usize) {
    let PairOutput { view1, view2 } = output;
    sanitise(view1);
    sanitise(view2);
    let mut found = MatchContent {
        index: vec![0; pixels],
        valid: vec![0; pixels],
        quality: vec![0.0; pixels],
    };
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
        &mut found.index,
        &mut found.valid,
    );
    match_quality(
        &view1.descriptor_confidence,
        &view2.descriptor_confidence,
        &found.index,
        &found.valid,
        &mut found.quality,
    );
    let good = found.quality.iter().filter(|&&q| q > q_conf).count();
    (found, good)
}
