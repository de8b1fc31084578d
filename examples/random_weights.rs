//! Weights of the official model's shapes, random: for timing and memory without the official ones.
//!
//! `cargo run --release --example random_weights -- random.safetensors`

use mast3r_slam::network::Architecture;
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
        .ok_or("usage: random_weights FILE.safetensors")?;
    let shapes = Architecture::official().expected_shapes();
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in &shapes {
        let end = offset + 4 * shape.iter().product::<usize>();
        let tensor = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [offset, end],
        });
        header.insert(name.clone(), tensor);
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
