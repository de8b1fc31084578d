//! A system in the room whose mapper's network can be made to fail, panic, wait or go blind.

use super::{RoomBackend, SIZE, Spoil, cpu_slam};
use mast3r_slam::config::{Config, Loops, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput};
use mast3r_slam::map::FrameRecord;
use mast3r_slam::slam::{Frame, Pace, Slam, SlamError, TrackedFrame};
use mast3r_slam::time::Stamp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Half a pixel on a wall that is the room's 8 m away, in metres: what matches of whole pixels leave
/// open.
pub const TOLERANCE: f64 = 8.0 / (0.7 * SIZE.0 as f64) / 2.0;

/// The next action of the mapper's network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mood {
    Works,
    Fails,
    Panics,
    /// Every decoder pass waits until the mood changes.
    Waits,
    /// Every output is zero.
    Blind,
}

/// A hold on the mapper's network.
#[derive(Clone)]
pub struct Valve(pub Arc<(Mutex<Mood>, Condvar, AtomicUsize)>);

impl Valve {
    pub fn new(mood: Mood) -> Self {
        Self(Arc::new((
            Mutex::new(mood),
            Condvar::new(),
            AtomicUsize::new(0),
        )))
    }

    pub fn set(&self, mood: Mood) {
        *self.0.0.lock().expect("valve") = mood;
        self.0.1.notify_all();
    }

    /// Decoder passes that were begun.
    pub fn passes(&self) -> usize {
        self.0.2.load(Ordering::Acquire)
    }

    pub fn pass(&self) -> Result<Mood, InferenceError> {
        self.0.2.fetch_add(1, Ordering::AcqRel);
        let mood = {
            let guard = self.0.0.lock().expect("valve");
            // A test that should not wait, but does, ends with an error instead of hanging.
            let limit = Duration::from_secs(100);
            let waiting = |mood: &mut Mood| *mood == Mood::Waits;
            *self
                .0
                .1
                .wait_timeout_while(guard, limit, waiting)
                .expect("valve")
                .0
        };
        match mood {
            Mood::Works | Mood::Blind => Ok(mood),
            Mood::Panics => panic!("the network fell over"),
            Mood::Fails | Mood::Waits => Err(InferenceError::Runtime {
                runtime: "room",
                doing: "decoding",
                message: format!("{mood:?}"),
            }),
        }
    }
}

/// The room; the handle that the mapper gets obeys a valve.
pub struct Valved {
    pub room: Box<dyn Backend>,
    pub valve: Valve,
    pub mappers: bool,
    pub poison: bool,
}

/// Invalid values that a network may produce, on a few percent of the pixels.
fn poison(view: &mut ViewOutput, phase: usize) {
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e30];
    for n in (phase..view.confidence.len()).step_by(17) {
        let value = bad[n % bad.len()];
        match n % 4 {
            0 => view.points[3 * n..][..3].fill(value),
            1 => view.points[3 * n + 2] = value,
            2 => view.descriptors[24 * n + 5] = value,
            _ => {
                view.confidence[n] = value;
                view.descriptor_confidence[n] = value;
            }
        }
    }
}

impl Backend for Valved {
    fn shape(&self) -> &NetworkShape {
        self.room.shape()
    }

    fn name(&self) -> String {
        self.room.name()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            room: self.room.share(),
            valve: self.valve.clone(),
            mappers: true,
            poison: self.poison,
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.room.encode(image, features)
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        if self.mappers && self.valve.pass()? == Mood::Blind {
            *out = PairOutput::zeros(self.shape());
            return Ok(());
        }
        self.room.decode(a, b, out)?;
        if self.poison {
            poison(&mut out.view1, 0);
            poison(&mut out.view2, 1);
        }
        Ok(())
    }
}

/// The room; after each decoder pass `meddle` may change its output or fail. It is also given byte 3 of
/// the image that was encoded last, which tests may write to.
pub struct Meddled<F> {
    pub room: RoomBackend,
    pub mark: u8,
    pub meddle: F,
}

impl<F> Backend for Meddled<F>
where
    F: FnMut(u8, &mut PairOutput) -> Result<(), InferenceError> + Send,
{
    fn shape(&self) -> &NetworkShape {
        self.room.shape()
    }

    fn name(&self) -> String {
        self.room.name()
    }

    /// The mapper's network is left as it is.
    fn share(&self) -> Box<dyn Backend> {
        self.room.share()
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.mark = image.data[3];
        self.room.encode(image, features)
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        self.room.decode(a, b, out)?;
        (self.meddle)(self.mark, out)
    }
}

/// A system in the room without a retrieval model: a lost frame is looked for among the newest
/// keyframes.
pub struct Rig {
    pub system: Slam,
    pub images: Vec<RgbImage>,
    pub black: RgbImage,
    pub next: usize,
    pub valve: Valve,
}

impl Rig {
    pub fn new(poses: Vec<Sim3>, threads: Threads, pace: Pace, mood: Mood) -> Self {
        Self::with(poses, config(threads), pace, mood)
    }

    pub fn with(poses: Vec<Sim3>, config: Config, pace: Pace, mood: Mood) -> Self {
        Self::poisoned(poses, config, pace, mood, false)
    }

    pub fn poisoned(
        poses: Vec<Sim3>,
        config: Config,
        pace: Pace,
        mood: Mood,
        poison: bool,
    ) -> Self {
        let room = RoomBackend::new(SIZE, poses, Spoil::default());
        let valve = Valve::new(mood);
        let backend = |room| Valved {
            room: Box::new(room),
            valve: valve.clone(),
            mappers: false,
            poison,
        };
        let mut rig = Self::on(room, backend, config, pace);
        rig.valve = valve;
        rig
    }

    /// With the tracker's network meddled with.
    pub fn meddled<F>(poses: Vec<Sim3>, spoil: Spoil, config: Config, meddle: F) -> Self
    where
        F: FnMut(u8, &mut PairOutput) -> Result<(), InferenceError> + Send + 'static,
    {
        let room = RoomBackend::new(SIZE, poses, spoil);
        let backend = |room| Meddled {
            room,
            mark: 0,
            meddle,
        };
        Self::on(room, backend, config, Pace::EveryFrame)
    }

    /// A rig on the backend that `wrap` makes of the room; its valve controls nothing.
    fn on<B: Backend + 'static>(
        room: RoomBackend,
        wrap: impl FnOnce(RoomBackend) -> B,
        config: Config,
        pace: Pace,
    ) -> Self {
        let images = (0..room.frames()).map(|k| room.image(k)).collect();
        let backend = Box::new(wrap(room));
        let system = cpu_slam(config, pace, backend, None, None);
        Self::of(system, images)
    }

    /// A rig around the caller's system, for images of the room; its valve controls nothing.
    pub fn of(system: Slam, images: Vec<RgbImage>) -> Self {
        Self {
            system,
            images,
            black: RgbImage::new(SIZE.0, SIZE.1),
            next: 0,
            valve: Valve::new(Mood::Works),
        }
    }

    /// Shows frame `k` of the walk, or nothing.
    pub fn show(&mut self, k: Option<usize>) -> Result<TrackedFrame, SlamError> {
        let index = self.next;
        self.next += 1;
        self.system.process(&Frame {
            index,
            stamp: Stamp {
                nanos: 33_000_000 * index as i64,
            },
            image: k.map_or(&self.black, |k| &self.images[k]).into(),
        })
    }

    pub fn keyframes(&self) -> usize {
        self.system.snapshot().keyframes.len()
    }
}

pub fn config(threads: Threads) -> Config {
    let mut config = Config {
        threads,
        loops: Loops::Off,
        ..Config::default()
    };
    config.reloc.strict = false;
    config
}

pub fn keyframes_of<'a>(frames: impl IntoIterator<Item = &'a FrameRecord>) -> usize {
    let keyframes = frames.into_iter().filter(|f| f.keyframe.is_some());
    keyframes.count()
}

pub fn bits(pose: &Sim3) -> [u64; 8] {
    pose.to_array().map(f64::to_bits)
}
