//! A buffer of other nodes' `/tf` and `/tf_static`, sufficient to look up a transform at a given
//! time.

use crate::time::Stamp;
use crate::wire::messages::geometry::TfMessage;
use nalgebra::Isometry3;
use std::collections::{BTreeMap, HashMap};

/// Duration for which moving transforms are kept, as in tf2.
const KEPT_NANOS: i64 = 10_000_000_000;
/// Maximum number of moving transforms kept per frame (10 s at 1 kHz).
const KEPT_COUNT: usize = 10_000;
/// Maximum number of frames: names come from outside.
const FRAMES: usize = 4096;
/// Moving transforms of all frames together: 10 s of 20 frames at 1 kHz, about 20 MB.
const KEPT_IN_ALL: usize = 200_000;
/// Longest name of a frame that is taken, in bytes.
const NAME_BYTES: usize = 255;
/// Maximum chain length; a longer chain is a cycle.
const DEPTH: usize = 64;

#[derive(Debug)]
struct Edge {
    parent: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// `parent_from_child`
    Static(Isometry3<f64>),
    /// By time.
    Moving(BTreeMap<i64, Isometry3<f64>>),
}

/// Transforms indexed by child frame.
#[derive(Debug, Default)]
pub struct TfBuffer {
    edges: HashMap<String, Edge>,
    /// Moving transforms of all frames together, at most [`KEPT_IN_ALL`] and one for each frame.
    moving: usize,
}

/// Error from looking up a transform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TfError {
    /// The frames are not connected.
    #[error("{source_frame} and {target} are not connected on /tf and /tf_static")]
    Unconnected {
        target: String,
        source_frame: String,
    },
    /// The frames are connected, but not at that time; the transform may still arrive.
    #[error("the transform from {child} is known from {from} to {to}, not at {at}")]
    NotAt {
        child: String,
        at: Stamp,
        /// Oldest known.
        from: Stamp,
        /// Newest known.
        to: Stamp,
    },
}

/// Removes the leading slash used by tf1.
fn clean(frame: &str) -> &str {
    frame.strip_prefix('/').unwrap_or(frame)
}

impl TfBuffer {
    /// Handles a message of `/tf` or, if `fixed`, of `/tf_static`. Returns the number of invalid
    /// transforms: not finite, not a rotation, without names, or from a frame to itself.
    pub fn take(&mut self, message: &TfMessage, fixed: bool) -> usize {
        let mut refused = 0;
        for t in &message.transforms {
            let (parent, child) = (clean(&t.header.frame_id), clean(&t.child_frame_id));
            let isometry = t.transform.isometry();
            let named = |name: &str| !name.is_empty() && name.len() <= NAME_BYTES;
            let fine = named(parent) && named(child) && parent != child;
            let (Some(isometry), true) = (isometry, fine) else {
                refused += 1;
                continue;
            };
            if !self.edges.contains_key(child) && self.edges.len() >= FRAMES {
                refused += 1;
                continue;
            }
            self.insert(
                parent,
                child,
                Stamp::from(&t.header.stamp).nanos,
                isometry,
                fixed,
            );
        }
        refused
    }

    fn insert(&mut self, parent: &str, child: &str, nanos: i64, t: Isometry3<f64>, fixed: bool) {
        let before = self.moving_of(child);
        let full = self.moving >= KEPT_IN_ALL;
        self.insert_one(parent, child, nanos, t, fixed);
        // Once all frames together fill the buffer, each keeps as many as it has, the newest ones.
        if full
            && let Some(Edge {
                kind: Kind::Moving(times),
                ..
            }) = self.edges.get_mut(child)
            && times.len() > before.max(1)
        {
            times.pop_first();
        }
        self.moving = self.moving + self.moving_of(child) - before;
    }

    /// How many moving transforms of a frame are kept.
    fn moving_of(&self, child: &str) -> usize {
        match self.edges.get(child) {
            Some(Edge {
                kind: Kind::Moving(times),
                ..
            }) => times.len(),
            _ => 0,
        }
    }

    fn insert_one(
        &mut self,
        parent: &str,
        child: &str,
        nanos: i64,
        t: Isometry3<f64>,
        fixed: bool,
    ) {
        let new = || match fixed {
            true => Kind::Static(t),
            false => Kind::Moving(BTreeMap::from([(nanos, t)])),
        };
        let Some(edge) = self.edges.get_mut(child) else {
            let edge = Edge {
                parent: parent.to_owned(),
                kind: new(),
            };
            self.edges.insert(child.to_owned(), edge);
            return;
        };
        if edge.parent != parent {
            edge.parent = parent.to_owned();
            edge.kind = new();
            return;
        }
        match &mut edge.kind {
            Kind::Moving(times) if !fixed => {
                times.insert(nanos, t);
                let newest = times.last_key_value().map_or(nanos, |(&k, _)| k);
                while let Some((&oldest, _)) = times.first_key_value() {
                    if newest.saturating_sub(oldest) <= KEPT_NANOS && times.len() <= KEPT_COUNT {
                        break;
                    }
                    times.remove(&oldest);
                }
            }
            kind => *kind = new(),
        }
    }

    /// The parent of `frame`.
    pub fn parent(&self, frame: &str) -> Option<&str> {
        self.edges.get(clean(frame)).map(|e| e.parent.as_str())
    }

    /// Removes moving transforms after a jump back in time.
    pub fn forget_moving(&mut self) {
        self.edges.retain(|_, e| matches!(e.kind, Kind::Static(_)));
        self.moving = 0;
    }

    /// `target_from_source` at a given time.
    ///
    /// # Errors
    /// The frames are not connected, or not at that time.
    pub fn lookup(&self, target: &str, source: &str, at: Stamp) -> Result<Isometry3<f64>, TfError> {
        self.find(target, source, |edge, child| edge.at(child, at))
    }

    /// Like [`TfBuffer::lookup`], for frames that do not move although their transforms may be
    /// repeated: the last one before `at` is used if no later one has arrived.
    ///
    /// # Errors
    /// The frames are not connected, or only after that time.
    pub fn lookup_held(
        &self,
        target: &str,
        source: &str,
        at: Stamp,
    ) -> Result<Isometry3<f64>, TfError> {
        self.find(target, source, |edge, child| match &edge.kind {
            Kind::Moving(times) => match times.last_key_value() {
                Some((newest, held)) if *newest < at.nanos => Ok(*held),
                _ => edge.at(child, at),
            },
            Kind::Static(fixed) => Ok(*fixed),
        })
    }

    /// `target_from_source`, using `of` for the transform of each child frame along the chain.
    fn find(
        &self,
        target: &str,
        source: &str,
        of: impl Fn(&Edge, &str) -> Result<Isometry3<f64>, TfError>,
    ) -> Result<Isometry3<f64>, TfError> {
        let (target, source) = (clean(target), clean(source));
        let unconnected = || TfError::Unconnected {
            target: target.to_owned(),
            source_frame: source.to_owned(),
        };
        let up = self.ancestors(source);
        let down = self.ancestors(target);
        let common = up.iter().find(|frame| down.contains(frame));
        let common = common.ok_or_else(unconnected)?;
        let to_common = self.chain(&up, common, &of)?;
        let from_common = self.chain(&down, common, &of)?;
        Ok(from_common.inverse() * to_common)
    }

    /// The frame and its ancestors.
    fn ancestors<'a>(&'a self, frame: &'a str) -> Vec<&'a str> {
        let mut all = vec![frame];
        while let Some(edge) = all.last().and_then(|f| self.edges.get(*f)) {
            if all.len() > DEPTH || all.contains(&edge.parent.as_str()) {
                break;
            }
            all.push(&edge.parent);
        }
        all
    }

    /// `top_from_first` along a list of ancestors.
    fn chain(
        &self,
        frames: &[&str],
        top: &str,
        of: impl Fn(&Edge, &str) -> Result<Isometry3<f64>, TfError>,
    ) -> Result<Isometry3<f64>, TfError> {
        let mut whole = Isometry3::identity();
        for frame in frames.iter().take_while(|f| **f != top) {
            if let Some(edge) = self.edges.get(*frame) {
                whole = of(edge, frame)? * whole;
            }
        }
        Ok(whole)
    }
}

impl Edge {
    /// Interpolates between the neighbouring times.
    fn at(&self, child: &str, at: Stamp) -> Result<Isometry3<f64>, TfError> {
        let times = match &self.kind {
            Kind::Static(t) => return Ok(*t),
            Kind::Moving(times) => times,
        };
        let before = times.range(..=at.nanos).next_back();
        let after = times.range(at.nanos..).next();
        match (before, after) {
            (Some((&t0, a)), Some((&t1, b))) => {
                let part = match t1 - t0 {
                    0 => 0.0,
                    span => (at.nanos - t0) as f64 / span as f64,
                };
                // Opposite rotations cannot be interpolated; the nearer end is used.
                let nearest = if part < 0.5 { a } else { b };
                Ok(a.try_lerp_slerp(b, part, 1e-9).unwrap_or(*nearest))
            }
            _ => {
                let stamp = |entry: Option<(&i64, _)>| Stamp {
                    nanos: entry.map_or(0, |(&nanos, _): (&i64, &Isometry3<f64>)| nanos),
                };
                Err(TfError::NotAt {
                    child: child.to_owned(),
                    at,
                    from: stamp(times.first_key_value()),
                    to: stamp(times.last_key_value()),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::Header;
    use crate::wire::messages::geometry::{Transform, TransformStamped};

    fn message(edges: &[(&str, &str, i64, f64)]) -> TfMessage {
        let transform = |&(parent, child, millis, x): &(&str, &str, i64, f64)| TransformStamped {
            header: Header::new(
                Stamp {
                    nanos: millis * 1_000_000,
                },
                parent,
            ),
            child_frame_id: child.into(),
            transform: Transform::from(&Isometry3::translation(x, 0.0, 0.0)),
        };
        TfMessage {
            transforms: edges.iter().map(transform).collect(),
        }
    }

    fn x(buffer: &TfBuffer, target: &str, source: &str, millis: i64) -> Result<f64, TfError> {
        let at = Stamp {
            nanos: millis * 1_000_000,
        };
        buffer.lookup(target, source, at).map(|t| t.translation.x)
    }

    #[test]
    fn all_frames_together_are_bounded() {
        let mut buffer = TfBuffer::default();
        let frames = 100;
        for millis in 0..3000 {
            for frame in 0..frames {
                let name = format!("wheel_{frame}");
                buffer.take(&message(&[("base", &name, millis, millis as f64)]), false);
            }
        }
        let kept: usize = (0..frames)
            .map(|f| buffer.moving_of(&format!("wheel_{f}")))
            .sum();
        assert_eq!(kept, buffer.moving);
        assert!(
            (KEPT_IN_ALL..=KEPT_IN_ALL + frames).contains(&kept),
            "{kept}"
        );
        // The newest are kept, and a frame that comes late finds room.
        assert_eq!(x(&buffer, "base", "wheel_3", 2999), Ok(2999.0));
        buffer.take(&message(&[("base", "late", 1, 5.0)]), false);
        assert_eq!(x(&buffer, "base", "late", 1), Ok(5.0));
        let long = "f".repeat(NAME_BYTES + 1);
        assert_eq!(buffer.take(&message(&[("base", &long, 0, 1.0)]), true), 1);
        buffer.forget_moving();
        assert_eq!(buffer.moving, 0);
    }

    #[test]
    fn chains_are_followed_up_and_down_and_times_interpolated() {
        let mut buffer = TfBuffer::default();
        buffer.take(
            &message(&[
                ("base", "mast", 0, 1.0),
                ("mast", "camera", 0, 0.5),
                ("base", "arm", 0, -2.0),
            ]),
            true,
        );
        buffer.take(
            &message(&[("odom", "base", 1000, 10.0), ("odom", "base", 2000, 12.0)]),
            false,
        );
        assert_eq!(x(&buffer, "base", "camera", 77), Ok(1.5));
        assert_eq!(x(&buffer, "camera", "arm", 77), Ok(-3.5));
        assert_eq!(x(&buffer, "odom", "base", 1500), Ok(11.0));
        assert_eq!(x(&buffer, "odom", "camera", 2000), Ok(13.5));
        assert!(matches!(
            x(&buffer, "odom", "base", 2001),
            Err(TfError::NotAt { .. })
        ));
        assert!(matches!(
            x(&buffer, "map", "base", 1500),
            Err(TfError::Unconnected { .. })
        ));
        buffer.forget_moving();
        assert!(matches!(
            x(&buffer, "odom", "base", 1500),
            Err(TfError::Unconnected { .. })
        ));
        assert_eq!(x(&buffer, "base", "camera", 77), Ok(1.5));
    }

    /// Joint states come a little later than the images.
    #[test]
    fn what_does_not_move_holds_on_until_more_is_known() {
        let mut buffer = TfBuffer::default();
        buffer.take(&message(&[("base", "mast", 0, 1.0)]), true);
        let moving = [("mast", "camera", 1000, 0.5), ("mast", "camera", 2000, 0.7)];
        buffer.take(&message(&moving), false);
        let held = |millis: i64| {
            let at = Stamp {
                nanos: millis * 1_000_000,
            };
            let found = buffer.lookup_held("base", "camera", at);
            found.map(|t| (t.translation.x * 1e6).round() / 1e6)
        };
        assert_eq!(held(2000), Ok(1.7));
        assert_eq!(held(2001), Ok(1.7));
        assert_eq!(held(1500), Ok(1.6));
        assert!(matches!(held(999), Err(TfError::NotAt { .. })));
        assert!(matches!(
            buffer.lookup_held("odom", "camera", Stamp { nanos: 0 }),
            Err(TfError::Unconnected { .. })
        ));
    }

    #[test]
    fn invalid_transforms_are_refused_and_counted() {
        let mut buffer = TfBuffer::default();
        let mut bad = message(&[
            ("a", "b", 0, f64::NAN),
            ("a", "a", 0, 0.0),
            ("", "b", 0, 0.0),
            ("a", "c", 0, 1.0),
        ]);
        bad.transforms.push(TransformStamped::default());
        let mut no_rotation = message(&[("a", "d", 0, 0.0)]);
        no_rotation.transforms[0].transform.rotation.w = 0.0;
        assert_eq!(buffer.take(&bad, true), 4);
        assert_eq!(buffer.take(&no_rotation, true), 1);
        assert_eq!(x(&buffer, "a", "c", 0), Ok(1.0));
        assert!(x(&buffer, "a", "d", 0).is_err());
    }

    #[test]
    fn circles_and_floods_end() {
        let mut buffer = TfBuffer::default();
        buffer.take(&message(&[("a", "b", 0, 0.0), ("b", "a", 0, 0.0)]), true);
        assert!(x(&buffer, "c", "a", 0).is_err());
        for k in 0..30_000 {
            buffer.take(&message(&[("odom", "base", k, 0.0)]), false);
        }
        let Kind::Moving(times) = &buffer.edges["base"].kind else {
            panic!("expected a moving frame");
        };
        assert!(times.len() <= KEPT_COUNT + 1, "{}", times.len());
        for k in 0..2 * FRAMES {
            buffer.take(&message(&[("x", &format!("f{k}"), 0, 0.0)]), true);
        }
        assert!(buffer.edges.len() <= FRAMES);
    }
}
