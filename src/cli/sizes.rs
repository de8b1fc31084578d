//! Sizes on the command line.

/// `512x384`, multiples of 16.
pub fn size(text: &str) -> Result<(usize, usize), String> {
    match pixels(text) {
        Ok((width, height)) if (width % 16, height % 16) == (0, 0) => Ok((width, height)),
        _ => Err("write two multiples of 16, such as 512x384".into()),
    }
}

/// `640x480`.
fn pixels(text: &str) -> Result<(usize, usize), String> {
    let parsed = text
        .split_once('x')
        .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    match parsed {
        // What no camera has: sizes of buffers would overflow.
        Some((1..=65_536, 1..=65_536)) => parsed.ok_or_else(String::new),
        _ => Err("write a width and a height, such as 640x480".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("512x384"), Ok((512, 384)));
        assert_eq!(pixels("641x481"), Ok((641, 481)));
        for wrong in ["512", "512x380", "0x16", "x", "512x384x3", "99999999x16"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
