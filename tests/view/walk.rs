//! The real SLAM on a walk through the analytic room, there and back for as long as it is wanted, and its live page.

use mast3r_slam::config::{Config, Threads};
use mast3r_slam::slam::{Frame, Pace};
use mast3r_slam::time::Stamp;
use mast3r_slam::view::{Door, Host, HostReport, View};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::patience::patience;
use testkit::room::walk::vocabulary;
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, square_walk};

/// Frames from one end of the walk to the other.
pub const FRAMES: usize = 80;

/// What the test says that the program is at.
#[derive(Default)]
pub struct Said(pub Mutex<HostReport>);

impl Host for Said {
    fn report(&self) -> HostReport {
        self.0
            .lock()
            .expect("no test panics while it holds this")
            .clone()
    }
}

/// A walk under way.
pub struct Walk {
    pub address: SocketAddr,
    pub said: Arc<Said>,
    pub frames: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    view: Option<View>,
}

impl Walk {
    /// Frames follow each other after `period`, or as fast as SLAM takes them.
    pub fn start(period: Duration) -> Self {
        Self::on(0, period)
    }

    /// On a port that is known to be free.
    pub fn on(port: u16, period: Duration) -> Self {
        let door = Door::bind(Ipv4Addr::LOCALHOST.into(), port, "the test").expect("a free port");
        let feed = Arc::clone(door.feed());
        let said = Arc::new(Said::default());
        let view = door
            .serve(Arc::clone(&said) as Arc<dyn Host>)
            .expect("a server");
        let (stop, frames) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (until, counted) = (Arc::clone(&stop), Arc::clone(&frames));
        let thread = std::thread::spawn(move || {
            let mut room = RoomBackend::new(SIZE, square_walk(FRAMES, 0.8), Spoil::default());
            // Without place recognition the map would grow on every way there and back.
            let places = vocabulary(&mut room);
            let mut images: Vec<_> = (0..FRAMES).map(|k| room.image(k)).collect();
            for image in &mut images {
                // The first bytes name the frame; the rest gives the cloud its colours.
                for (k, value) in image.data.iter_mut().enumerate().skip(4) {
                    *value = (60 + k * 7 % 190) as u8;
                }
            }
            let config = Config {
                threads: Threads::Pipelined,
                use_calib: false,
                ..Config::default()
            };
            let mut slam = cpu_slam(config, Pace::Live, Box::new(room), Some(places), None);
            feed.start(&slam);
            for index in 0.. {
                if until.load(Ordering::Acquire) {
                    return;
                }
                let begun = Instant::now();
                let there_and_back = index % (2 * FRAMES - 2);
                let image = &images[there_and_back.min(2 * FRAMES - 2 - there_and_back)];
                let frame = Frame {
                    index,
                    stamp: Stamp::from_seconds(1000.0 + index as f64 / 30.0),
                    image: image.into(),
                };
                let tracked = slam.process(&frame).expect("a frame");
                feed.frame(&tracked, &mut slam);
                let took = begun.elapsed();
                counted.fetch_add(1, Ordering::AcqRel);
                std::thread::sleep(period.saturating_sub(took));
            }
        });
        Self {
            address: view.address(),
            said,
            frames,
            stop,
            thread: Some(thread),
            view: Some(view),
        }
    }

    pub fn page(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Waits until `count` more frames were processed.
    pub fn pass(&self, count: usize) {
        let from = self.frames.load(Ordering::Acquire);
        wait("frames", || {
            self.frames.load(Ordering::Acquire) >= from + count
        });
    }

    /// Ends the walk and says so on the pages.
    pub fn end(mut self) {
        self.halt();
        if let Some(view) = self.view.take() {
            view.end(None, "The walk has ended.", Duration::from_secs(10));
        }
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the walk does not panic");
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until `done`; fails the test with `what` if it never comes.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
