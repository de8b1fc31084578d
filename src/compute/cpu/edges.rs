//! Edges between keyframes: made by a symmetric decode and two searches (spec 6.1, 6.2).

use crate::compute::matching::{Matcher, View, match_quality};
use crate::config::MatchingConfig;
use crate::inference::{Backend, InferenceError, NetworkShape, PairOutput, sanitise};

/// An undirected edge with the matches of both directions. `i < j` does not hold in general.
pub struct Edge {
    /// A keyframe id.
    pub i: u32,
    /// The other keyframe's id.
    pub j: u32,
    /// Pixels of j and their matches in i.
    pub i_from_j: Matches,
    /// Pixels of i and their matches in j.
    pub j_from_i: Matches,
}

/// One direction's matches, an entry a pixel.
pub struct Matches {
    /// Its pixel in the other keyframe.
    pub index: Vec<u32>,
    /// Whether that match holds.
    pub valid: Vec<u8>,
    /// Its quality; 0 where it does not hold.
    pub quality: Vec<f32>,
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

    /// Decodes `(i, j)` and `(j, i)` and matches both ways; also gives the smaller of the two fractions of
    /// pixels matched with enough quality. `i` and `j` are an id and its tokens.
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

/// Matches view 2's pixels into view 1; also gives how many have a quality above `q_conf`.
fn match_pair(
    matcher: &mut Matcher,
    output: &mut PairOutput,
    matching: &MatchingConfig,
    q_conf: f32,
    pixels: usize,
) -> (Matches, usize) {
    let PairOutput { view1, view2 } = output;
    sanitise(view1);
    sanitise(view2);
    let mut found = Matches {
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
