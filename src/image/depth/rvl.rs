//! RVL, the compression of depth images by A. D. Wilson, "Fast Lossless Depth Image Compression" (ISS 2017): runs of
//! zeros and of differences in numbers of variable length, 3 bits in each nibble.

/// Writes the decompressed values to `values`; `false` if `data` ends before or holds more than `values.len()` of them
/// in a run.
pub fn decompress(data: &[u8], values: &mut [u16]) -> bool {
    let mut nibbles = Nibbles { data, at: 0 };
    fill(&mut nibbles, values).is_some()
}

fn fill(nibbles: &mut Nibbles<'_>, mut left: &mut [u16]) -> Option<()> {
    let mut previous = 0i32;
    while !left.is_empty() {
        let zeros = usize::try_from(nibbles.number()?).ok()?;
        let (run, rest) = left.split_at_mut_checked(zeros)?;
        run.fill(0);
        let others = usize::try_from(nibbles.number()?).ok()?;
        let (run, rest) = rest.split_at_mut_checked(others)?;
        if zeros + others == 0 {
            return None;
        }
        for value in run {
            // Differences are zigzag coded: 0, -1, 1, -2, …
            let code = nibbles.number()?;
            let difference = (code >> 1) as i32 ^ -((code & 1) as i32);
            previous = previous.wrapping_add(difference);
            *value = previous as u16;
        }
        left = rest;
    }
    Some(())
}

/// Nibbles of little-endian 32-bit words, the highest of each word first.
struct Nibbles<'a> {
    data: &'a [u8],
    at: usize,
}

impl Nibbles<'_> {
    fn next(&mut self) -> Option<u32> {
        let (word, place) = (self.at / 8, self.at % 8);
        let byte = self.data.get(4 * word + 3 - place / 2)?;
        self.at += 1;
        Some(u32::from(if place.is_multiple_of(2) {
            byte >> 4
        } else {
            byte & 0xF
        }))
    }

    /// A number: its lowest 3 bits first; the highest bit of a nibble says that another follows.
    fn number(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..32).step_by(3) {
            let nibble = self.next()?;
            value |= (nibble & 7) << shift;
            if nibble & 8 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The paper's encoder.
    fn compress(values: &[u16]) -> Vec<u8> {
        let mut nibbles: Vec<u8> = Vec::new();
        let mut number = |mut value: u32| loop {
            let nibble = (value & 7) as u8;
            value >>= 3;
            nibbles.push(nibble | if value > 0 { 8 } else { 0 });
            if value == 0 {
                break;
            }
        };
        let (mut at, mut previous) = (0, 0i32);
        while at < values.len() {
            let zeros = values[at..].iter().take_while(|v| **v == 0).count();
            let run = &values[at + zeros..];
            let run = &run[..run.iter().take_while(|v| **v != 0).count()];
            number(zeros as u32);
            number(run.len() as u32);
            for &value in run {
                let difference = i32::from(value) - previous;
                number(((difference << 1) ^ (difference >> 31)) as u32);
                previous = i32::from(value);
            }
            at += zeros + run.len();
        }
        nibbles.resize(nibbles.len().next_multiple_of(8), 0);
        let words = nibbles.chunks(8);
        let word = |n: &[u8]| n.iter().fold(0u32, |w, n| w << 4 | u32::from(*n));
        words.flat_map(|n| word(n).to_le_bytes()).collect()
    }

    #[test]
    fn a_word_is_read_as_the_paper_says() {
        // 2 zeros, 2 others: 5 (zigzag 10: 010 with more to come, 001) and 7 (difference 2, zigzag 4).
        let data = 0x22A1_4000u32.to_le_bytes();
        let mut values = [9; 4];
        assert!(decompress(&data, &mut values));
        assert_eq!(values, [0, 0, 5, 7]);
    }

    #[test]
    fn data_that_ends_early_or_holds_too_much_is_refused() {
        let data = compress(&[0, 0, 5, 7]);
        assert!(!decompress(&data, &mut [0; 5]));
        assert!(!decompress(&data, &mut [0; 3]));
        assert!(!decompress(&data[..2], &mut [0; 4]));
        assert!(!decompress(&[0; 64], &mut [0; 4]), "runs of nothing");
        assert!(
            !decompress(&[0xFF; 64], &mut [0; 4]),
            "a number without end"
        );
    }

    proptest! {
        #[test]
        fn values_are_read_back(values in prop::collection::vec(
            prop_oneof![Just(0u16), any::<u16>(), 900u16..1100], 0..200
        )) {
            let mut back = vec![1; values.len()];
            prop_assert!(decompress(&compress(&values), &mut back));
            prop_assert_eq!(back, values);
        }

        #[test]
        fn any_bytes_end(data in prop::collection::vec(any::<u8>(), 0..300)) {
            decompress(&data, &mut [0; 1000]);
        }
    }
}
