//! Edges between keyframes: symmetric decoding and matching in both directions (docs/algorithm.md,
//! Factor graph and loop closure).

use crate::compute::device::MatchContent;
use crate::compute::mask;
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

/// A keyframe of an edge.
#[derive(Clone, Copy)]
pub struct End<'a> {
    pub id: u32,
    pub tokens: &'a [f32],
    /// Its confidences, if pixels may be hidden: those without any are.
    pub hides: Option<&'a [f32]>,
}

/// Makes the outputs safe to match.
fn prepare(output: &mut PairOutput, first: Option<&[f32]>, second: Option<&[f32]>) {
    let views = [(&mut output.view1, first), (&mut output.view2, second)];
    for (view, hides) in views {
        sanitise(view);
        if let Some(confidence) = hides {
            mask::hide_as_in(view, confidence);
        }
    }
}

/// Makes edges. Owns the network's output buffers and the matcher's scratch memory.
pub struct EdgeMaker {
    matcher: Matcher,
    from_i: PairOutput,
    from_j: PairOutput,
    /// Flags of the direction being matched. They are not stored: quality 0 means no match.
    valid: Vec<u8>,
}

impl EdgeMaker {
    pub fn new(shape: &NetworkShape) -> Self {
        Self {
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim),
            from_i: PairOutput::zeros(shape),
            from_j: PairOutput::zeros(shape),
            valid: vec![0; shape.pixels()],
        }
    }

    /// Decodes `(i, j)` and `(j, i)` and matches in both directions; also returns the smaller of
    /// the two fractions of pixels matched with sufficient quality. `i` and `j` are id, tokens, and
    /// the confidences of a keyframe that may have hidden pixels.
    pub fn make(
        &mut self,
        backend: &mut dyn Backend,
        i: End<'_>,
        j: End<'_>,
        q_conf: f32,
        matching: &MatchingConfig,
    ) -> Result<(Edge, f32), InferenceError> {
        backend.decode(i.tokens, j.tokens, &mut self.from_i)?;
        backend.decode(j.tokens, i.tokens, &mut self.from_j)?;
        prepare(&mut self.from_i, i.hides, j.hides);
        prepare(&mut self.from_j, j.hides, i.hides);
        let (matcher, valid) = (&mut self.matcher, &mut self.valid);
        let (i_from_j, good_j) = match_pair(matcher, &self.from_i, matching, q_conf, valid);
        let (j_from_i, good_i) = match_pair(matcher, &self.from_j, matching, q_conf, valid);
        let edge = Edge {
            i: i.id,
            j: j.id,
            i_from_j,
            j_from_i,
        };
        Ok((edge, good_i.min(good_j) as f32 / self.valid.len() as f32))
    }
}

/// Matches view 2's pixels to view 1; also returns the number of matches with a quality above
/// `q_conf`. `valid` is scratch memory, one flag for each pixel.
fn match_pair(
    matcher: &mut Matcher,
    output: &PairOutput,
    matching: &MatchingConfig,
    q_conf: f32,
    valid: &mut [u8],
) -> (MatchContent, usize) {
    let PairOutput { view1, view2 } = output;
    let mut found = MatchContent {
        index: vec![0; valid.len()],
        quality: vec![0.0; valid.len()],
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
        valid,
    );
    match_quality(
        &view1.descriptor_confidence,
        &view2.descriptor_confidence,
        &found.index,
        valid,
        &mut found.quality,
    );
    let good = found.quality.iter().filter(|&&q| q > q_conf).count();
    (found, good)
}
