//! The state machine with all its transitions.
//!
//! ```text
//!            first usable frame              too little in common
//!   Empty ------------------------> Tracking --------------------> Lost
//!     ^                               |   ^                        |  |
//!     |  the first keyframe was bad   |   |   found, or new submap |  | not found
//!     +-------------------------------+   +------------------------+  +--> Lost
//! ```

use super::metric::tracked_scale::TrackedScale;
use super::pose_table::Anchor;

/// Number of frames after which the reply to a live camera's request is expected: one that waits for mapping to take
/// it up, and one that it takes.
const AHEAD: f32 = 2.0;

/// State of the tracking side: it decides what the next frame is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum State {
    /// Nothing: no keyframe exists yet.
    Empty,
    /// The active keyframe.
    Tracking(ActiveKeyframe),
    /// The whole map: the camera is being relocalised.
    Lost(Search),
}

/// The keyframe that frames are tracked against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActiveKeyframe {
    /// Id of the keyframe.
    pub id: u32,
    /// Frames tracked against it.
    pub tracked: usize,
    /// Fraction of its pixels that the last frame matched, 1 before the first.
    pub fraction: f32,
    /// Whether it was borrowed from the map, which keeps it unchanged.
    pub lent: bool,
    /// The open request for a nearer keyframe.
    pub asked: Option<Question>,
    /// Number of times that the map had no keyframe to take instead of it.
    pub refused: u8,
    /// The keyframe that was left for this one, if both were in the map.
    pub left: Option<u32>,
    /// Its scale by the depth of frames that were tracked against it.
    pub scale: TrackedScale,
}

/// The search for a lost camera.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Search {
    /// Number of frames searched for without success.
    pub tries: usize,
    /// The open request about a lost frame.
    pub asked: Option<Question>,
}

/// A frame about which the mapper was asked. At most one request is open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Question {
    /// Number of the frame in the history.
    pub frame: usize,
    /// Its place at the time of the request; `None` if it was lost.
    pub then: Option<Anchor>,
}

/// How a search goes on with the next usable frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchStep {
    /// Send a request for the frame to the mapper.
    Ask,
    /// Wait for the reply about an earlier frame.
    Wait,
    /// Give up and start an unconnected submap.
    StartSubmap,
}

impl ActiveKeyframe {
    /// Counts a frame tracked against the keyframe, which matched this fraction of its pixels.
    pub fn with_tracked_frame(self, fraction: f32) -> Self {
        Self {
            tracked: self.tracked + 1,
            fraction,
            ..self
        }
    }

    /// The fraction when the reply to a request is expected, if it goes on falling as from the last frame to `now`.
    pub fn expected_fraction(&self, now: f32) -> f32 {
        now - AHEAD * (self.fraction - now).max(0.0)
    }

    /// Whether the map's first frame was a bad start: it is the only keyframe, and no frame was
    /// tracked against it.
    pub fn is_bad_start(&self, keyframes: u32) -> bool {
        keyframes == 1 && self.tracked == 0 && !self.lent
    }
}

impl Search {
    /// Decides how to go on with the next usable frame: after more than `max_tries` failures a map that may grow
    /// gets a new submap.
    pub fn next_step(&self, may_grow: bool, max_tries: usize) -> SearchStep {
        if self.asked.is_some() {
            SearchStep::Wait
        } else if may_grow && self.tries > max_tries {
            SearchStep::StartSubmap
        } else {
            SearchStep::Ask
        }
    }
}

impl State {
    /// A frame became keyframe `id`.
    pub fn started(id: u32) -> Self {
        Self::tracking(id, false, None)
    }

    /// The mapper located the frame: as a new keyframe, or relative to keyframe `id`, which it
    /// lends. `left` is the keyframe that was tracked against before.
    pub fn found(id: u32, lent: bool, left: Option<u32>) -> Self {
        Self::tracking(id, lent, left)
    }

    fn tracking(id: u32, lent: bool, left: Option<u32>) -> Self {
        Self::Tracking(ActiveKeyframe {
            id,
            tracked: 0,
            fraction: 1.0,
            lent,
            asked: None,
            refused: 0,
            left,
            scale: TrackedScale::default(),
        })
    }

    /// A frame became keyframe `id` while a request was open, whose reply is no longer needed.
    pub fn started_with_open_request(id: u32, asked: Option<Question>) -> Self {
        match asked {
            Some(question) => Self::started(id).asked(question),
            None => Self::started(id),
        }
    }

    /// Whether the reply to the open request comes too late: the frame that it is about was tracked against a
    /// keyframe that is no longer active.
    pub fn has_moved_on(&self) -> bool {
        let Self::Tracking(active) = self else {
            return false;
        };
        let then = active.asked.and_then(|question| question.then);
        then.is_some_and(|then| then.keyframe != active.id)
    }

    /// The active keyframe and the frame do not overlap enough. An open request stays open.
    pub fn lost(active: &ActiveKeyframe) -> Self {
        Self::Lost(Search {
            tries: 0,
            asked: active.asked,
        })
    }

    /// A map was loaded: the camera is somewhere in it.
    pub fn loaded() -> Self {
        Self::Lost(Search::default())
    }

    /// A request was sent to the mapper.
    pub fn asked(self, question: Question) -> Self {
        let asked = Some(question);
        match self {
            Self::Empty => Self::Empty,
            Self::Tracking(active) => Self::Tracking(ActiveKeyframe { asked, ..active }),
            Self::Lost(search) => Self::Lost(Search { asked, ..search }),
        }
    }

    /// The mapper did not find the frame.
    pub fn not_found(self) -> Self {
        let asked = None;
        match self {
            Self::Empty => Self::Empty,
            Self::Tracking(active) => Self::Tracking(ActiveKeyframe {
                asked,
                refused: active
                    .refused
                    .saturating_add(u8::from(!self.has_moved_on())),
                ..active
            }),
            Self::Lost(search) => Self::Lost(Search {
                tries: search.tries + 1,
                asked,
            }),
        }
    }

    /// The open request.
    pub fn question(&self) -> Option<Question> {
        match self {
            Self::Empty => None,
            Self::Tracking(active) => active.asked,
            Self::Lost(search) => search.asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        frame: 7,
        then: None,
    };

    #[test]
    fn a_search_gives_up_before_it_asks_once_too_often() {
        let mut search = Search::default();
        let step = |search: &Search| search.next_step(true, 2);
        for _ in 0..=2 {
            assert_eq!(step(&search), SearchStep::Ask);
            let asked = State::Lost(search).asked(QUESTION);
            let State::Lost(waiting) = asked else {
                panic!("{asked:?}");
            };
            assert_eq!(step(&waiting), SearchStep::Wait);
            let State::Lost(next) = asked.not_found() else {
                panic!("{asked:?}");
            };
            assert_eq!((next.tries, next.asked), (search.tries + 1, None));
            search = next;
        }
        assert_eq!(step(&search), SearchStep::StartSubmap);
        // In a map that may not grow, the search never gives up.
        assert_eq!(search.next_step(false, 2), SearchStep::Ask);
    }

    #[test]
    fn a_question_outlives_a_loss_and_ends_with_its_answer() {
        let asked = State::started(3).asked(QUESTION);
        assert_eq!(asked.question(), Some(QUESTION));
        let State::Tracking(active) = asked else {
            panic!("{asked:?}");
        };
        let lost = State::lost(&active);
        assert_eq!(lost.question(), Some(QUESTION));
        assert_eq!(lost.not_found().question(), None);
        let State::Tracking(refused) = asked.not_found() else {
            panic!("{asked:?}");
        };
        assert_eq!((refused.id, refused.asked, refused.refused), (3, None, 1));
        assert_eq!(State::found(5, true, None).question(), None);
        assert_eq!(State::Empty.asked(QUESTION).question(), None);
    }

    #[test]
    fn a_fraction_that_falls_is_expected_lower_and_one_that_rises_is_not_higher() {
        let State::Tracking(active) = State::started(0) else {
            panic!("a keyframe is tracked against");
        };
        assert!((active.expected_fraction(0.9) - 0.7).abs() < 1e-6);
        let active = active.with_tracked_frame(0.5);
        assert_eq!(active.expected_fraction(0.5), 0.5);
        assert_eq!(active.expected_fraction(0.8), 0.8);
    }

    #[test]
    fn a_reply_about_a_keyframe_that_was_left_comes_too_late() {
        let question = Question {
            then: Some(Anchor::at(3)),
            ..QUESTION
        };
        let asked = State::started(3).asked(question);
        assert!(!asked.has_moved_on());
        let moved = State::started_with_open_request(4, asked.question());
        assert!(moved.has_moved_on() && moved.question().is_some());
        assert_eq!(
            moved.not_found(),
            State::started(4),
            "it says nothing about 4"
        );
        assert!(!State::started_with_open_request(4, None).has_moved_on());
        let State::Tracking(active) = moved else {
            panic!("{moved:?}");
        };
        // A lost camera takes any place.
        assert!(!State::lost(&active).has_moved_on());
    }

    #[test]
    fn only_a_lone_keyframe_without_frames_is_a_bad_start() {
        let State::Tracking(first) = State::started(0) else {
            panic!("a keyframe is tracked against");
        };
        assert!(first.is_bad_start(1));
        assert!(!first.is_bad_start(2));
        assert!(!first.with_tracked_frame(0.5).is_bad_start(1));
        let State::Tracking(lent) = State::found(0, true, None) else {
            panic!("a keyframe is tracked against");
        };
        assert!(!lent.is_bad_start(1));
    }
}
