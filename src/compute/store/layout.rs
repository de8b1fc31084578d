//! Memory layout of a keyframe slot.

/// Sections are aligned to this many bytes, enough for any vector access.
const ALIGNMENT: usize = 256;

/// Storage format of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatFormat {
    /// binary16
    F16,
    /// binary32
    F32,
}

impl FloatFormat {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// A section of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// The sections of a keyframe slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLayout {
    /// RGB, u8, `pixels × 3`.
    pub image: Section,
    /// Points in the keyframe's camera frame, f32, `pixels × 3`.
    pub points: Section,
    /// Average confidences, `pixels` of [`SlotLayout::confidence_format`].
    pub confidence: Section,
    /// Encoder tokens, `tokens × channels` of [`SlotLayout::feature_format`].
    pub features: Section,
    pub confidence_format: FloatFormat,
    pub feature_format: FloatFormat,
    /// Size of a slot in bytes.
    pub bytes: usize,
}

impl SlotLayout {
    /// The layout for images of `pixels` pixels and `tokens × channels` encoder tokens.
    pub fn new(
        pixels: usize,
        tokens: usize,
        channels: usize,
        confidence_format: FloatFormat,
        feature_format: FloatFormat,
    ) -> Self {
        let mut end = 0;
        let mut next = |bytes: usize| {
            let section = Section { offset: end, bytes };
            end = (end + bytes).next_multiple_of(ALIGNMENT);
            section
        };
        let image = next(pixels * 3);
        let points = next(pixels * 3 * size_of::<f32>());
        let confidence = next(pixels * confidence_format.bytes());
        let features = next(tokens * channels * feature_format.bytes());
        Self {
            image,
            points,
            confidence,
            features,
            confidence_format,
            feature_format,
            bytes: end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyframe_at_512_by_384_takes_at_most_5_2_megabytes() {
        let layout = SlotLayout::new(512 * 384, 768, 1024, FloatFormat::F16, FloatFormat::F16);
        // 0.59 + 2.36 + 0.39 + 1.57 MB.
        assert_eq!(
            layout.bytes,
            589_824 + 2_359_296 + 393_216 + 1_572_864,
            "{layout:?}"
        );
        assert!(layout.bytes <= 5_200_000);
    }

    #[test]
    fn sections_follow_each_other_aligned_and_apart() {
        for (pixels, tokens, channels) in [(1, 1, 1), (35, 3, 5), (0, 0, 0), (1000, 7, 192)] {
            for c in [FloatFormat::F16, FloatFormat::F32] {
                for f in [FloatFormat::F16, FloatFormat::F32] {
                    let l = SlotLayout::new(pixels, tokens, channels, c, f);
                    assert_eq!(l.confidence.bytes, pixels * c.bytes());
                    assert_eq!(l.features.bytes, tokens * channels * f.bytes());
                    let mut end = 0;
                    for s in [l.image, l.points, l.confidence, l.features] {
                        assert!(s.offset >= end && s.offset % ALIGNMENT == 0, "{l:?}");
                        end = s.offset + s.bytes;
                    }
                    assert!(l.bytes >= end && l.bytes.is_multiple_of(ALIGNMENT), "{l:?}");
                }
            }
        }
    }
}
