//! The library in forty lines: tracks a sequence with the bundled network and prints where the camera was.
//!
//! `cargo run --release --example trajectory -- assets/room_loop`

use mast3r_slam::config::{self, Base};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::slam::{FrameInput, Pace, System};
use mast3r_slam::source::{self, SourceOptions};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: trajectory FOLDER")?;
    let mut source = source::open(folder.as_ref(), SourceOptions::default())?;
    let calibration = source.calibration().copied();
    let mut config = config::load_with(Base::Builtin("mini.yaml"), &[])?;
    config.use_calib = calibration.is_some();

    let mut frame = source.next_frame()?.ok_or("no frames")?;
    let mut preprocessor = Preprocessor::new(
        frame.image.width,
        frame.image.height,
        config.network.size,
        calibration.as_ref(),
        PreprocessOptions::default(),
    )?;
    let (width, height) = preprocessor.output_size();
    let weights = Path::new("engines/mast3r-mini/model.safetensors");
    let backend = Box::new(CpuBackend::load(weights, width, height, 2)?);
    let intrinsics = preprocessor.intrinsics();
    let mut system = System::new(config, Pace::EveryFrame, backend, None, intrinsics)?;
    let mut image = RgbImage::default();
    loop {
        preprocessor.run(&frame.image, &mut image)?;
        let record = system.process(FrameInput {
            index: frame.index,
            stamp: frame.stamp,
            image: (&image).into(),
        })?;
        let t = record.world_from_camera.translation;
        let state = record.state.name();
        println!("{} {state} {:.3} {:.3} {:.3}", record.stamp, t.x, t.y, t.z);
        match source.next_frame()? {
            Some(next) => frame = next,
            None => break,
        }
    }
    system.finish()?;
    println!("{} keyframes", system.snapshot().keyframes.len());
    Ok(())
}
