//! The tracker's search for a keyframe of the map to track against instead of a new one.

use super::error::SlamError;
use super::frame::Frame;
use super::map_link::MapLink;
use super::pose_table::Anchor;
use super::reuse::ProbeRequest;
use super::state::{ActiveKeyframe, Question, State};
use super::tracker::Tracker;

/// Number of frames for which the keyframe just left is no candidate for the next one: two keyframes that are
/// equally far away would otherwise take turns.
const STAY: usize = 5;

/// Number of requests about one keyframe: when its fraction becomes low, and when a frame should become a keyframe; of
/// a live camera twice before that.
const REQUESTS: u8 = 2;

impl Tracker {
    /// Looks for a keyframe of the map to track against instead of a new one: when the fraction has become or will
    /// become low, and once more when the frame should become a keyframe. Files wait for the reply before a keyframe is made; with a
    /// live camera the keyframe is made if there is no reply yet. If one was found, also returns the frame's place
    /// relative to it.
    pub fn probe(
        &mut self,
        frame: &Frame<'_>,
        number: usize,
        active: ActiveKeyframe,
        anchor: &Anchor,
        (wants, min_match_fraction): (bool, f32),
        map: &mut MapLink,
    ) -> Result<(State, Option<Anchor>), SlamError> {
        let state = State::Tracking(active);
        let (asked, reply) = if active.asked.is_some() {
            let reply = match wants {
                true => map.expect_reply()?,
                false => None,
            };
            (state, reply)
        } else {
            // A live camera's keyframe does not wait, so that the reply would be of no use.
            let asks = match map.is_live() {
                true => !wants && active.refused < REQUESTS,
                false => active.refused < REQUESTS - u8::from(!wants),
            };
            if !asks || !map.has_room() {
                return Ok((state, None));
            }
            let handle = self.device_mut().stash_frame()?;
            let request = ProbeRequest {
                info: map.next_keyframe(frame),
                handle,
                from: *anchor,
                left: active.left.filter(|_| active.tracked < STAY),
                min_match_fraction,
            };
            let reply = map.probe(request, wants)?;
            let question = Question {
                frame: number,
                then: Some(*anchor),
            };
            (state.asked(question), reply)
        };
        let (Some(reply), Some(question)) = (reply, asked.question()) else {
            return Ok((asked, None));
        };
        let (state, place) = self.accept(asked, reply, map)?;
        let place = place.zip(question.then).map(|(place, then)| {
            let since = then.keyframe_from_camera.inverse() * anchor.keyframe_from_camera;
            Anchor {
                keyframe: place.anchor.keyframe,
                keyframe_from_camera: place.anchor.keyframe_from_camera * since,
            }
        });
        Ok((state, place))
    }
}
