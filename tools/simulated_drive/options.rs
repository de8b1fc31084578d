//! The command line.

use crate::Failure;
use std::path::PathBuf;
use testkit::flat::{Leg, Place, Slip, routes};

pub const USAGE: &str = "usage: simulated_drive OUT [--size 512x384] [--rate 10] [--route rounds|turns|FILE]
    [--seconds S] [--seed N] [--slip FROM,TO]

FILE has a row for each part of the route: `start X Y DEGREES` first, then `to X Y` (metres) or `turn DEGREES`. The rate
is one by which 100 can be divided. From FROM to TO seconds the robot moves half as far as its wheels turn.";

/// What to simulate.
pub struct Options {
    pub out: PathBuf,
    pub size: (usize, usize),
    /// Nanoseconds between images.
    pub period: i64,
    pub start: Place,
    pub legs: Vec<Leg>,
    pub seconds: f64,
    pub seed: u64,
    pub slip: Option<Slip>,
}

impl Options {
    pub fn read() -> Result<Self, Failure> {
        let mut arguments = std::env::args().skip(1);
        let out = arguments.next().filter(|a| !a.starts_with("--"));
        let mut options = Self {
            out: out.ok_or(USAGE)?.into(),
            size: (512, 384),
            period: 100_000_000,
            start: routes::rounds_start(),
            legs: routes::rounds(20),
            seconds: 60.0,
            seed: 1,
            slip: None,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            options.set(&name, &value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "--size" => {
                let (width, height) = value.split_once('x').ok_or(USAGE)?;
                self.size = (width.parse()?, height.parse()?);
                if self.size.0 < 16 || self.size.1 < 16 {
                    return Err(format!("a size of at least 16x16 is needed, found {value}").into());
                }
            }
            "--rate" => {
                let rate: i64 = value.parse()?;
                if !(1..=100).contains(&rate) || 100 % rate != 0 {
                    return Err(
                        format!("100 has to be divisible by the rate, found {value}").into(),
                    );
                }
                self.period = 1_000_000_000 / rate;
            }
            "--route" => (self.start, self.legs) = route(value)?,
            "--seconds" => self.seconds = value.parse()?,
            "--seed" => self.seed = value.parse()?,
            "--slip" => {
                let (from, to) = value.split_once(',').ok_or(USAGE)?;
                let nanos = |text: &str| text.parse().map(|s: f64| (s * 1e9) as i64);
                self.slip = Some(Slip {
                    from: nanos(from)?,
                    to: nanos(to)?,
                    grip: 0.5,
                });
            }
            _ => return Err(USAGE.into()),
        }
        Ok(())
    }
}

fn route(name: &str) -> Result<(Place, Vec<Leg>), Failure> {
    match name {
        "rounds" => Ok((routes::rounds_start(), routes::rounds(20))),
        "turns" => Ok((routes::turns_start(), routes::turns())),
        file => {
            let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
            parse(&text).map_err(|e| format!("{file}: {e}").into())
        }
    }
}

fn parse(text: &str) -> Result<(Place, Vec<Leg>), Failure> {
    let (mut start, mut legs) = (None, Vec::new());
    for line in text
        .lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
    {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let values: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        match (kind, values.as_slice()) {
            ("start", &[x, y, degrees]) => start = Some(Place::new(x, y, degrees.to_radians())),
            ("to", &[x, y]) => legs.push(Leg::To([x, y])),
            ("turn", &[degrees]) => legs.push(Leg::Turn(degrees.to_radians())),
            _ => {
                return Err(
                    format!("expected start, to or turn with numbers, found {line:?}").into(),
                );
            }
        }
    }
    Ok((start.ok_or("no start")?, legs))
}
