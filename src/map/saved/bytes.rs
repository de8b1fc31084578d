//! Encoding of numbers in the byte order of map files.

use crate::compute::global::Matrix7;
use crate::geometry::Sim3;
use half::f16;
use std::io::{self, ErrorKind, Read, Write};

/// Number of bytes converted at a time.
const BLOCK: usize = 1 << 14;

/// A number of fixed size.
pub trait Number: Copy + Default {
    /// Size in bytes.
    const BYTES: usize;
    /// Encodes the number into `dst` of that size.
    fn put(self, dst: &mut [u8]);
    /// Decodes the number from `src` of that size.
    fn get(src: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            const BYTES: usize = size_of::<$number>();
            fn put(self, dst: &mut [u8]) {
                dst.copy_from_slice(&self.to_le_bytes());
            }
            fn get(src: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(src);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}
numbers!(u8 u32 u64 i64 f32 f64 f16);

/// Writes numbers.
pub fn put<T: Number>(out: &mut dyn Write, values: &[T]) -> io::Result<()> {
    let mut block = [0; BLOCK];
    for values in values.chunks(BLOCK / T::BYTES) {
        let bytes = &mut block[..values.len() * T::BYTES];
        for (value, dst) in values.iter().zip(bytes.chunks_exact_mut(T::BYTES)) {
            value.put(dst);
        }
        out.write_all(bytes)?;
    }
    Ok(())
}

/// Reads `count` numbers into `dst`, reusing its allocation.
pub fn get<T: Number>(src: &mut dyn Read, count: usize, dst: &mut Vec<T>) -> io::Result<()> {
    let mut block = [0; BLOCK];
    dst.clear();
    while dst.len() < count {
        let some = (count - dst.len()).min(BLOCK / T::BYTES);
        let bytes = &mut block[..some * T::BYTES];
        src.read_exact(bytes)?;
        dst.extend(bytes.chunks_exact(T::BYTES).map(T::get));
    }
    Ok(())
}

pub fn put_one<T: Number>(out: &mut dyn Write, value: T) -> io::Result<()> {
    put(out, &[value])
}

pub fn one<T: Number>(src: &mut dyn Read) -> io::Result<T> {
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..T::BYTES];
    src.read_exact(bytes)?;
    Ok(T::get(bytes))
}

pub fn some<T: Number, const N: usize>(src: &mut dyn Read) -> io::Result<[T; N]> {
    let mut values = [T::default(); N];
    for value in &mut values {
        *value = one(src)?;
    }
    Ok(values)
}

/// Writes a string: its length, then UTF-8.
pub fn put_text(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let length = u32::try_from(text.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    put_one(out, length)?;
    out.write_all(text.as_bytes())
}

/// Maximum length of a string in a header.
const TEXT: u32 = 4096;

pub fn text(src: &mut dyn Read) -> io::Result<String> {
    let length: u32 = one(src)?;
    if length > TEXT {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    src.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

/// Writes a pose as by [`Sim3::to_array`].
pub fn put_pose(out: &mut dyn Write, pose: &Sim3) -> io::Result<()> {
    put(out, &pose.to_array())
}

/// Reads a pose, preserving every bit; `None` if it is invalid.
pub fn pose(src: &mut dyn Read) -> io::Result<Option<Sim3>> {
    let a: [f64; 8] = some(src)?;
    let q = nalgebra::Quaternion::new(a[6], a[3], a[4], a[5]);
    // Normalising would change the last bits.
    let unit = (q.norm() - 1.0).abs() < 1e-6;
    let pose = Sim3 {
        translation: nalgebra::Vector3::new(a[0], a[1], a[2]),
        rotation: nalgebra::UnitQuaternion::new_unchecked(q),
        scale: a[7],
    };
    Ok((unit && pose.is_finite()).then_some(pose))
}

/// Writes a symmetric matrix: the upper half, row by row.
pub fn put_symmetric(out: &mut dyn Write, matrix: &Matrix7) -> io::Result<()> {
    for row in 0..7 {
        for column in row..7 {
            put_one(out, matrix[(row, column)])?;
        }
    }
    Ok(())
}

/// Reads a symmetric matrix; `None` if a value is not finite.
pub fn symmetric(src: &mut dyn Read) -> io::Result<Option<Matrix7>> {
    let mut matrix = Matrix7::zeros();
    for row in 0..7 {
        for column in row..7 {
            let value: f64 = one(src)?;
            matrix[(row, column)] = value;
            matrix[(column, row)] = value;
        }
    }
    Ok(matrix.iter().all(|v| v.is_finite()).then_some(matrix))
}
