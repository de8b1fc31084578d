//! Gives SLAM the depth of a source's frames.

use crate::compute::device::DeviceError;
use crate::image::depth::{DepthCamera, DepthReader};
use crate::slam::{FrameDepth, Slam};
use crate::source::{SourceDepth, SourceFrame};
use crate::time::Stamp;

/// Gives SLAM the depth of a source's frames, and counts it. A depth image that cannot be used is reported once and
/// left out.
#[derive(Debug)]
pub struct DepthFeed {
    reader: DepthReader,
    camera: DepthCamera,
    frames: usize,
    with_depth: usize,
    unusable: usize,
    /// Sum of the measured parts of the network's images.
    filled: f64,
    /// Stamp of the newest depth image that a frame took.
    taken: Option<Stamp>,
}

impl DepthFeed {
    /// For depth images of `camera`; `None` without `depth.use`.
    pub fn new(slam: &Slam, camera: &DepthCamera) -> Option<Self> {
        Some(Self {
            reader: slam.depth_reader()?,
            camera: *camera,
            frames: 0,
            with_depth: 0,
            unusable: 0,
            filled: 0.0,
            taken: None,
        })
    }

    /// Gives the frame that is processed next its depth, if it has any. If that is late, by an offset that is set or was
    /// found, it is the image that came with the frame after it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn give(
        &mut self,
        slam: &mut Slam,
        frame: &SourceFrame,
        next: Option<&SourceFrame>,
    ) -> Result<(), DeviceError> {
        self.frames += 1;
        let Some(depth) = choose(frame, next, slam.depth_offset(), self.taken) else {
            return Ok(());
        };
        self.taken = Some(depth.stamp);
        let after = frame.stamp.seconds_to(depth.stamp);
        match self.reader.read(&depth.image, &self.camera) {
            Ok(depth) => {
                self.with_depth += 1;
                self.filled += depth.measured as f64 / depth.metres.len().max(1) as f64;
                let metres = depth.metres;
                slam.set_depth(Some(FrameDepth { metres, after }))
            }
            Err(error) => {
                if self.unusable == 0 {
                    tracing::warn!("{error}; frames without depth are tracked without it");
                }
                self.unusable += 1;
                Ok(())
            }
        }
    }

    /// For people: how many frames had depth.
    pub fn summary(&self) -> String {
        let mut text = format!("depth: {} of {} frames", self.with_depth, self.frames);
        if self.with_depth > 0 {
            let filled = 100.0 * self.filled / self.with_depth as f64;
            text += &format!(", on average {filled:.0} % of their pixels");
        }
        if self.unusable > 0 {
            text += &format!("; {} depth images could not be used", self.unusable);
        }
        text
    }
}

/// The depth of a frame: that of the one after it if it was measured nearer to this one than to that and than the frame's
/// own, `offset` seconds after their stamps. An image that an earlier frame has `taken` is not given again.
fn choose<'a>(
    frame: &'a SourceFrame,
    next: Option<&'a SourceFrame>,
    offset: f64,
    taken: Option<Stamp>,
) -> Option<&'a SourceDepth> {
    let is_new = |depth: &&SourceDepth| taken.is_none_or(|taken| depth.stamp > taken);
    let own = frame.depth.as_ref().filter(is_new);
    let distance =
        |depth: &SourceDepth, to: &SourceFrame| (to.stamp.seconds_to(depth.stamp) + offset).abs();
    let late = next.and_then(|next| {
        let depth = next.depth.as_ref()?;
        let nearest = own.map_or(f64::INFINITY, |own| distance(own, frame));
        (distance(depth, frame) < distance(depth, next).min(nearest)).then_some(depth)
    });
    late.or(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::RgbImage;

    /// A frame and its depth, at these milliseconds.
    fn frame(at: i64, depth: Option<i64>) -> SourceFrame {
        let stamp = |millis: i64| Stamp {
            nanos: millis * 1_000_000,
        };
        SourceFrame {
            index: 0,
            stamp: stamp(at),
            origin: "test".into(),
            image: RgbImage::new(2, 2),
            depth: depth.map(|millis| SourceDepth {
                stamp: stamp(millis),
                image: Default::default(),
            }),
        }
    }

    /// Milliseconds of the depth of each of these frames.
    fn chosen(frames: &[SourceFrame], offset: f64) -> Vec<Option<i64>> {
        let mut taken = None;
        let nexts = frames.iter().skip(1).map(Some).chain([None]);
        let depth = frames.iter().zip(nexts).map(|(frame, next)| {
            let depth = choose(frame, next, offset, taken)?;
            taken = Some(depth.stamp);
            Some(depth.stamp.nanos / 1_000_000)
        });
        depth.collect()
    }

    #[test]
    fn late_depth_is_that_of_the_frame_before() {
        let all = [0, 33, 66, 99].map(|at| frame(at, Some(at)));
        let own = [0, 33, 66, 99].map(Some);
        for offset in [0.0, 0.05, -0.016] {
            assert_eq!(chosen(&all, offset), own, "{offset}");
        }
        let before = [Some(33), Some(66), Some(99), None];
        for offset in [-0.017, -0.033, -0.045] {
            assert_eq!(chosen(&all, offset), before, "{offset}");
        }
        // Slower than the camera.
        let some =
            [(0, None), (33, Some(35)), (66, None), (99, Some(99))].map(|(at, d)| frame(at, d));
        let before = [Some(35), None, Some(99), None];
        assert_eq!(chosen(&some, -0.033), before);
        assert_eq!(chosen(&some, 0.0), [None, Some(35), None, Some(99)]);
    }

    #[test]
    fn depth_between_two_frames_is_given_once() {
        let fast = [(0, 8), (16, 8), (33, 41), (49, 41)].map(|(at, d)| frame(at, Some(d)));
        assert_eq!(chosen(&fast, 0.0), [Some(8), None, Some(41), None]);
    }
}
