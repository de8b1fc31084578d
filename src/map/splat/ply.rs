//! PLY in the layout of 3D Gaussian Splatting: 17 to 62 floats for each row, higher coefficients by colour.

use super::header::Element;
use super::{Splat, SplatRows, coefficients, for_each};
use std::fmt::Write as _;
use std::io::{self, Read, Write};

/// Names of the properties in the order of the file.
fn names(degree: u8) -> Vec<String> {
    let mut names: Vec<String> = ["x", "y", "z", "nx", "ny", "nz"].map(str::to_owned).into();
    names.extend((0..3).map(|k| format!("f_dc_{k}")));
    names.extend((0..3 * coefficients(degree)).map(|k| format!("f_rest_{k}")));
    names.push("opacity".to_owned());
    names.extend((0..3).map(|k| format!("scale_{k}")));
    names.extend((0..4).map(|k| format!("rot_{k}")));
    names
}

/// The header of a file.
pub(super) fn header(count: u64, degree: u8) -> String {
    let mut text = format!("ply\nformat binary_little_endian 1.0\nelement vertex {count}\n");
    for name in names(degree) {
        let _ = writeln!(text, "property float {name}");
    }
    text.push_str("end_header\n");
    text
}

/// Writes all rows; returns the bytes written.
pub(super) fn write(out: &mut dyn Write, rows: &mut dyn SplatRows) -> io::Result<u64> {
    let degree = rows.degree();
    let header = header(rows.count(), degree);
    out.write_all(header.as_bytes())?;
    let per_colour = coefficients(degree);
    let stride = 4 * (17 + 3 * per_colour);
    let mut bytes = Vec::with_capacity(stride);
    for_each(rows, &mut |row| {
        bytes.clear();
        let mut put = |v: f32| bytes.extend(v.to_le_bytes());
        row.mean.into_iter().chain([0.0; 3]).for_each(&mut put);
        row.dc.into_iter().for_each(&mut put);
        for colour in 0..3 {
            (0..per_colour).for_each(|k| put(row.rest[3 * k + colour]));
        }
        put(row.opacity);
        row.scale.into_iter().for_each(&mut put);
        row.rotation.into_iter().for_each(&mut put);
        out.write_all(&bytes)
    })?;
    Ok(header.len() as u64 + rows.count() * stride as u64)
}

/// Where each value of a row lies in the file, in floats.
#[derive(Debug)]
pub(super) struct Columns {
    mean: [usize; 3],
    dc: [usize; 3],
    scale: [usize; 3],
    rotation: [usize; 4],
    opacity: usize,
    /// The columns of each coefficient's colours.
    rest: Vec<usize>,
    degree: u8,
    /// The bytes of a row.
    row: Vec<u8>,
}

/// The degree that has this number of higher values of all colours.
pub(super) fn degree_of(rest: usize) -> Option<u8> {
    (0..=3).find(|d| 3 * coefficients(*d) == rest)
}

impl Columns {
    /// Finds the columns of an element; the error says what is wrong.
    pub(super) fn find(vertex: &Element) -> Result<Self, String> {
        if !vertex.is_all("float") {
            return Err("a property of its vertices is not float".to_owned());
        }
        let column = |name: String| {
            let found = vertex.find(&name);
            found.ok_or_else(|| format!("its vertices have no {name}"))
        };
        let three = |prefix: &str| -> Result<[usize; 3], String> {
            let c = |k: usize| column(format!("{prefix}{k}"));
            Ok([c(0)?, c(1)?, c(2)?])
        };
        let is_rest = |(_, name): &&(String, String)| name.starts_with("f_rest_");
        let rest = vertex.properties.iter().filter(is_rest).count();
        let degree = degree_of(rest).ok_or_else(|| {
            format!("its vertices have {rest} higher coefficients, expected 0, 9, 24 or 45")
        })?;
        let per_colour = coefficients(degree);
        let rest = (0..rest).map(|i| column(format!("f_rest_{}", (i % 3) * per_colour + i / 3)));
        Ok(Self {
            mean: [
                column("x".to_owned())?,
                column("y".to_owned())?,
                column("z".to_owned())?,
            ],
            dc: three("f_dc_")?,
            scale: three("scale_")?,
            rotation: [
                column("rot_0".to_owned())?,
                column("rot_1".to_owned())?,
                column("rot_2".to_owned())?,
                column("rot_3".to_owned())?,
            ],
            opacity: column("opacity".to_owned())?,
            rest: rest.collect::<Result<_, _>>()?,
            degree,
            row: vec![0; 4 * vertex.properties.len()],
        })
    }

    pub(super) fn degree(&self) -> u8 {
        self.degree
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row.len() as u64
    }

    /// Reads a row.
    pub(super) fn read(&mut self, src: &mut dyn Read, dst: &mut Splat) -> io::Result<()> {
        src.read_exact(&mut self.row)?;
        let (floats, _) = self.row.as_chunks::<4>();
        let at = |column: usize| {
            floats
                .get(column)
                .map_or(f32::NAN, |b| f32::from_le_bytes(*b))
        };
        *dst = Splat {
            mean: self.mean.map(at),
            dc: self.dc.map(at),
            rest: [0.0; 45],
            scale: self.scale.map(at),
            rotation: self.rotation.map(at),
            opacity: at(self.opacity),
        };
        for (value, column) in dst.rest.iter_mut().zip(&self.rest) {
            *value = at(*column);
        }
        Ok(())
    }
}
