//! Tracks a sequence, closes its loops, and prints where the camera was.
//!
//! `cargo run --release --example trajectory -- assets/room_loop cpu` (or `cuda`, or `auto`)

use mast3r_slam::{Slam, source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: trajectory FOLDER [DEVICE]")?;
    let device = arguments.next().unwrap_or("auto".into()).parse()?;
    let mut frames = source::open(folder.as_ref(), Default::default())?;
    let builder = Slam::builder().source(frames.as_mut()).device(device);
    let mut slam = builder.build()?;
    for frame in frames {
        let tracked = slam.process(&(&frame?).into())?;
        let t = tracked.world_from_camera.translation;
        println!(
            "{} {} {:.3} {:.3} {:.3}",
            tracked.stamp, tracked.state, t.x, t.y, t.z
        );
    }
    slam.finish()?.write("logs/trajectory")?;
    Ok(())
}
