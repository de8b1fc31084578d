//! Surfaces that a small network can match: noise of many wavelengths, and patches with hard edges.

/// Sides of the cells of the two layers of patches, in metres.
const CELLS: [f32; 2] = [0.55, 0.19];
/// The longest wavelength of the noise, in metres, and how many octaves follow.
const LONGEST: f32 = 0.48;
const OCTAVES: u32 = 6;

/// A hash of two integers and a seed, every bit of which depends on all of them.
fn hash(seed: u32, x: i32, y: i32) -> u32 {
    let mut h = seed ^ (x as u32).wrapping_mul(0x9e37_79b1) ^ (y as u32).wrapping_mul(0x85eb_ca77);
    h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
    h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    h ^ (h >> 15)
}

/// One of eight bytes of a hash, as a number of 0 to 1.
fn part(h: u32, k: u32) -> f32 {
    (h.rotate_right(4 * k) & 0xff) as f32 / 255.0
}

fn colour(h: u32, darkest: f32, span: f32) -> [f32; 3] {
    let grey = part(h, 0);
    [1, 3, 5].map(|k| darkest + span * (0.6 * grey + 0.4 * part(h, k)))
}

/// Smooth noise of wavelength 1 around 0, between -1 and 1.
fn noise(seed: u32, u: f32, v: f32) -> f32 {
    let (cu, cv) = (u.floor(), v.floor());
    let (i, j) = (cu as i32, cv as i32);
    let smooth = |t: f32| t * t * (3.0 - 2.0 * t);
    let (s, t) = (smooth(u - cu), smooth(v - cv));
    let at =
        |di: i32, dj: i32| (hash(seed, i + di, j + dj) >> 8) as f32 * (2.0 / 16_777_216.0) - 1.0;
    let low = at(0, 0) + s * (at(1, 0) - at(0, 0));
    let high = at(0, 1) + s * (at(1, 1) - at(0, 1));
    low + t * (high - low)
}

/// A patch of a layer covers part of its cell: a poster, plain, striped or chequered.
fn patch(seed: u32, side: f32, u: f32, v: f32) -> Option<[f32; 3]> {
    let (cu, cv) = ((u / side).floor(), (v / side).floor());
    let h = hash(seed, cu as i32, cv as i32);
    if h & 3 == 0 {
        return None;
    }
    let (s, t) = (u / side - cu, v / side - cv);
    let (left, right) = (0.05 + 0.35 * part(h, 1), 0.95 - 0.35 * part(h, 2));
    let (low, high) = (0.05 + 0.35 * part(h, 3), 0.95 - 0.35 * part(h, 4));
    if !(left..right).contains(&s) || !(low..high).contains(&t) {
        return None;
    }
    let more = h.wrapping_mul(0x9e37_79b1);
    let stripe = |x: f32| (x * (4.0 + 4.0 * part(more, 0))) as i32;
    let other = match more >> 30 {
        0 => false,
        1 => stripe(s) & 1 == 1,
        2 => stripe(t) & 1 == 1,
        _ => (stripe(s) ^ stripe(t)) & 1 == 1,
    };
    Some(colour(if other { more } else { h }, 0.1, 0.9))
}

/// The colour of a surface at (u, v) metres, each channel from 0 to 1. `footprint` is the length of a pixel's side on
/// the surface in metres: detail smaller than two of them is left out, because it would flicker.
pub fn surface(seed: u32, u: f32, v: f32, footprint: f32) -> [f32; 3] {
    let mut rgb = colour(hash(seed, 0, 0), 0.35, 0.5);
    for (k, side) in CELLS.into_iter().enumerate() {
        let weight = (side / (12.0 * footprint)).min(1.0) * [0.75, 0.55][k];
        if let Some(patch) = patch(seed.wrapping_add(k as u32 + 1), side, u, v) {
            rgb = std::array::from_fn(|c| rgb[c] + weight * (patch[c] - rgb[c]));
        }
    }
    let (mut wavelength, mut amplitude, mut sum) = (LONGEST, 0.2, 0.0);
    for octave in 0..OCTAVES {
        let share = (wavelength / footprint - 2.0).clamp(0.0, 1.0);
        if share == 0.0 {
            break;
        }
        let seed = seed.wrapping_add(101 + octave);
        sum += share * amplitude * noise(seed, u / wavelength, v / wavelength);
        wavelength *= 0.5;
        amplitude *= 0.8;
    }
    rgb.map(|c| c * (1.0 + 1.6 * sum))
}
