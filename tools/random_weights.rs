//! Weights of the official models' shapes, random: for timing and memory without the official ones.
//!
//! `cargo run --release -p tools --bin random_weights -- random.safetensors [vitl|dune-base|dune-small]`

use mast3r_slam::network::{Architecture, dune};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Repeatable values, uniform in [-1, 1).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: random_weights FILE.safetensors [vitl|dune-base|dune-small]")?;
    let model = std::env::args().nth(2);
    let architecture = match model.as_deref() {
        None | Some("vitl") => Architecture::official(),
        Some("dune-base") => Architecture::dune(768),
        Some("dune-small") => Architecture::dune(384),
        Some(other) => return Err(format!("vitl, dune-base or dune-small, not {other}").into()),
    };
    let stored = |name: &String| match architecture.dune {
        Some(_) => dune::stored_name(name),
        None => name.clone(),
    };
    let shapes = architecture.expected_shapes();
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in &shapes {
        let end = offset + 4 * shape.iter().product::<usize>();
        let tensor = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [offset, end],
        });
        header.insert(stored(name), tensor);
        offset = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;

    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    for (name, shape) in &shapes {
        // Such that activations stay near 1 from the first layer to the last.
        let (mean, spread) = match shape.len() {
            1 if name.contains("norm") && name.ends_with("weight") => (1.0, 0.1),
            1 => (0.0, 0.02),
            _ => {
                let inputs: usize = shape[1..].iter().product();
                (0.0, (1.5 / inputs as f32).sqrt())
            }
        };
        for _ in 0..shape.iter().product() {
            let value: f32 = mean + spread * noise.next();
            file.write_all(&value.to_le_bytes())?;
        }
    }
    file.flush()?;
    println!("{path}: {} values", offset / 4);
    Ok(())
}
