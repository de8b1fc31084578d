//! Parses sizes on the command line.

/// `512x384`, multiples of 16 or, for DUNE-MASt3R, of 14.
pub fn size(text: &str) -> Result<(usize, usize), String> {
    match pixels(text) {
        Ok((w, h)) if [16, 14].iter().any(|n| (w % n, h % n) == (0, 0)) => Ok((w, h)),
        _ => Err("expected two multiples of 16 (DUNE-MASt3R: 14), such as 512x384".into()),
    }
}

/// `640x480`.
pub fn pixels(text: &str) -> Result<(usize, usize), String> {
    let parsed = text
        .split_once('x')
        .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    match parsed {
        // No camera exceeds this; larger values would overflow buffer sizes.
        Some((1..=65_536, 1..=65_536)) => parsed.ok_or_else(String::new),
        _ => Err("expected a width and a height, such as 640x480".into()),
    }
}

/// `8GB`, `500MB`, `123456`: powers of 1000.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err("expected bytes, kB, MB or GB, such as 8GB".into()),
    };
    match digits.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok((number * unit) as u64),
        _ => Err("expected a number of bytes, such as 8GB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_bytes_are_read_as_people_write_them() {
        assert_eq!(size("512x384"), Ok((512, 384)));
        assert_eq!(size("518x392"), Ok((518, 392)));
        assert_eq!(pixels("641x481"), Ok((641, 481)));
        for wrong in [
            "512",
            "512x380",
            "512x378",
            "0x16",
            "x",
            "512x384x3",
            "99999999x16",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(bytes("8GB"), Ok(8_000_000_000));
        assert_eq!(bytes("1.5 MB"), Ok(1_500_000));
        assert_eq!(bytes("123"), Ok(123));
        for wrong in ["", "GB", "8 XB", "-1", "inf", "NaN"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
