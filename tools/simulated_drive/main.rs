//! Drives a simulated robot through the flat of `testkit::flat` and writes what its sensors delivered as a sequence in
//! the layout of TUM RGB-D, with `odometry.txt` and `gyro.txt`. For the options: `simulated_drive`.

mod options;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use nalgebra::Isometry3;
use options::Options;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use testkit::flat::{Command, DepthCamera, Follower, Limits, Simulation, WheelErrors, camera};

pub type Failure = Box<dyn Error>;

/// The time of the first image, in seconds.
const START: f64 = 1000.0;
/// Units of the depth images per metre.
const UNITS: f32 = 5000.0;
/// m/s.
const SPEED: f64 = 0.4;
/// rad/s.
const TURN_RATE: f64 = 0.6;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let options = Options::read()?;
    let mut simulation = Simulation::new(
        options.start,
        Limits::default(),
        WheelErrors::default(),
        options.seed,
    );
    simulation.slip = options.slip;
    let mut follower = Follower::new(&options.legs, SPEED, TURN_RATE);
    let mut sequence = Sequence::create(&options)?;
    sequence.start(&simulation)?;
    while (simulation.nanos() as f64) < options.seconds * 1e9 {
        let Some(command) = follower.command(&simulation.robot.place) else {
            break;
        };
        sequence.drive(&mut simulation, command, options.period)?;
    }
    sequence.finish()?;
    println!(
        "{:.1} s, {:.1} m, {} of {} parts of the route, nearest to something: {:.3} m",
        simulation.nanos() as f64 * 1e-9,
        simulation.driven(),
        follower.done(),
        options.legs.len(),
        simulation.nearest()
    );
    Ok(())
}

/// The files of a sequence.
struct Sequence<'a> {
    options: &'a Options,
    depth_camera: DepthCamera,
    images: BufWriter<File>,
    depths: BufWriter<File>,
    truth: BufWriter<File>,
    wheels: BufWriter<File>,
    gyro: BufWriter<File>,
}

fn seconds(nanos: i64) -> f64 {
    START + nanos as f64 * 1e-9
}

fn pose(pose: &Isometry3<f64>) -> String {
    let (t, q) = (&pose.translation, pose.rotation.coords);
    format!(
        "{:.6} {:.6} {:.6} {:.8} {:.8} {:.8} {:.8}",
        t.x, t.y, t.z, q.x, q.y, q.z, q.w
    )
}

fn png(
    path: &Path,
    data: &[u8],
    (width, height): (usize, usize),
    kind: ExtendedColorType,
) -> Result<(), Failure> {
    let file = BufWriter::new(File::create(path)?);
    let encoder = PngEncoder::new_with_quality(file, CompressionType::Fast, FilterType::Sub);
    encoder.write_image(data, width as u32, height as u32, kind)?;
    Ok(())
}

impl<'a> Sequence<'a> {
    fn create(options: &'a Options) -> Result<Self, Failure> {
        let out = &options.out;
        for folder in ["rgb", "depth"] {
            std::fs::create_dir_all(out.join(folder))
                .map_err(|e| format!("{}: {e}", out.display()))?;
        }
        let (width, height) = options.size;
        let camera = camera(width, height);
        let yaml = format!(
            "# pinhole, no distortion, integer pixel coordinate = pixel centre\nwidth: {width}\nheight: {height}\n\
             fx: {:.6}\nfy: {:.6}\ncx: {:.6}\ncy: {:.6}\ndepth_factor: {UNITS:.1}\nfps: {:.1}\n",
            camera.fx,
            camera.fy,
            camera.cx,
            camera.cy,
            1e9 / options.period as f64
        );
        std::fs::write(out.join("camera.yaml"), yaml)?;
        let file = |name: &str, heading: &str| -> Result<BufWriter<File>, Failure> {
            let mut file = BufWriter::new(File::create(out.join(name))?);
            writeln!(file, "# {heading}")?;
            Ok(file)
        };
        Ok(Self {
            options,
            depth_camera: DepthCamera::new(0.0, options.seed),
            images: file("rgb.txt", "timestamp filename")?,
            depths: file(
                "depth.txt",
                "timestamp filename (16 bit PNG, 5000 units per metre, z depth)",
            )?,
            truth: file(
                "groundtruth.txt",
                "timestamp tx ty tz qx qy qz qw  (camera to world, camera x right y down z forward, world z up)",
            )?,
            wheels: file(
                "odometry.txt",
                "timestamp tx ty tz qx qy qz qw  (base to odometry frame)",
            )?,
            gyro: file(
                "gyro.txt",
                "timestamp wx wy wz  (rad/s about the camera's axes)",
            )?,
        })
    }

    /// The first image, and where the wheels begin.
    fn start(&mut self, simulation: &Simulation) -> Result<(), Failure> {
        writeln!(
            self.wheels,
            "{:.6} {}",
            seconds(simulation.nanos()),
            pose(&Isometry3::identity())
        )?;
        self.image(simulation)
    }

    /// Follows a command until the next image.
    fn drive(
        &mut self,
        simulation: &mut Simulation,
        command: Command,
        period: i64,
    ) -> Result<(), Failure> {
        let readings = simulation.advance(command, period);
        for (nanos, place) in readings.wheels {
            writeln!(
                self.wheels,
                "{:.6} {}",
                seconds(nanos),
                pose(&place.isometry())
            )?;
        }
        for (nanos, rate) in readings.gyro {
            writeln!(
                self.gyro,
                "{:.6} {:.8} {:.8} {:.8}",
                seconds(nanos),
                rate.x,
                rate.y,
                rate.z
            )?;
        }
        self.image(simulation)
    }

    fn image(&mut self, simulation: &Simulation) -> Result<(), Failure> {
        let size = self.options.size;
        let time = format!("{:.6}", seconds(simulation.nanos()));
        let view = simulation.view(&camera(size.0, size.1), size);
        let depth = self.depth_camera.measure(&view.depth, UNITS);
        let depth: Vec<u8> = depth.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let (image_name, depth_name) = (format!("rgb/{time}.png"), format!("depth/{time}.png"));
        let out = &self.options.out;
        png(
            &out.join(&image_name),
            &view.image.data,
            size,
            ExtendedColorType::Rgb8,
        )?;
        png(&out.join(&depth_name), &depth, size, ExtendedColorType::L16)?;
        writeln!(self.images, "{time} {image_name}")?;
        writeln!(self.depths, "{time} {depth_name}")?;
        writeln!(
            self.truth,
            "{time} {}",
            pose(&simulation.robot.world_from_camera())
        )?;
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        for mut file in [self.images, self.depths, self.truth, self.wheels, self.gyro] {
            file.flush()?;
        }
        Ok(())
    }
}
