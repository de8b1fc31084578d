//! Depth messages to depth images.

use crate::image::depth::{DepthDecoder, DepthEncoding, DepthError, DepthImage, RawDepth};
use crate::wire::Payload;
use crate::wire::cdr::CdrError;
use crate::wire::messages::sensor::{CompressedImage, Image};
use crate::wire::messages::{Header, Message};

/// Why a message holds no depth image.
#[derive(Debug, thiserror::Error)]
pub enum DepthMessageError {
    /// The message itself is broken.
    #[error(transparent)]
    Cdr(#[from] CdrError),
    /// An encoding that is not supported.
    #[error("a depth image has the encoding {0:?}, expected 16UC1 (millimetres) or 32FC1 (metres)")]
    Encoding(String),
    /// Data that does not fit the message's description of it.
    #[error(transparent)]
    Data(#[from] DepthError),
}

/// How depth images are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthTransport {
    /// `sensor_msgs/Image`
    Raw,
    /// `sensor_msgs/CompressedImage` of `compressed_depth_image_transport`
    Compressed,
}

impl DepthTransport {
    /// The type of the messages.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Raw => Image::TYPE,
            Self::Compressed => CompressedImage::TYPE,
        }
    }

    /// Decodes a message to `image`; returns its header.
    ///
    /// # Errors
    /// A message that is broken, has another encoding, or is incomplete.
    pub fn decode(
        self,
        payload: &Payload,
        decoder: &mut DepthDecoder,
        image: &mut DepthImage,
    ) -> Result<Header, DepthMessageError> {
        match self {
            Self::Raw => {
                let message = Image::decode(payload)?;
                let unknown = || DepthMessageError::Encoding(message.encoding.clone());
                let big_endian = message.is_bigendian != 0;
                let encoding = DepthEncoding::from_name(&message.encoding, big_endian);
                let raw = RawDepth {
                    encoding: encoding.ok_or_else(unknown)?,
                    width: message.width as usize,
                    height: message.height as usize,
                    stride: message.step as usize,
                    data: message.data,
                };
                decoder.raw(&raw, image)?;
                Ok(message.header)
            }
            Self::Compressed => {
                let message = CompressedImage::decode(payload)?;
                decoder.compressed(&message.format, message.data, image)?;
                Ok(message.header)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Stamp;
    use serde_bytes::Bytes;

    fn message(encoding: &str, step: u32, data: &[u8]) -> Payload {
        let image = Image {
            header: Header::new(Stamp { nanos: 5 }, "depth"),
            height: 2,
            width: 2,
            encoding: encoding.to_owned(),
            is_bigendian: 0,
            step,
            data: Bytes::new(data),
        };
        image.encode().unwrap().into()
    }

    fn read(transport: DepthTransport, payload: &Payload) -> Result<(Header, DepthImage), String> {
        let mut image = DepthImage::default();
        let decoded = transport.decode(payload, &mut DepthDecoder::default(), &mut image);
        decoded
            .map(|header| (header, image))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn integers_are_millimetres_and_floats_metres() {
        let data = [0xDC, 5, 0, 0, 0xFF, 0xFF, 1, 0];
        let (header, image) = read(DepthTransport::Raw, &message("16UC1", 4, &data)).unwrap();
        assert_eq!(
            (header.frame_id.as_str(), header.stamp.nanosec),
            ("depth", 5)
        );
        assert_eq!(image.metres, [1.5, 0.0, 0.0, 0.001]);
        let data: Vec<u8> = [1.5f32, f32::NAN, 0.25, 0.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let (_, image) = read(DepthTransport::Raw, &message("32FC1", 8, &data)).unwrap();
        assert_eq!(image.metres, [1.5, 0.0, 0.25, 0.0]);
    }

    #[test]
    fn what_is_no_depth_is_refused_with_the_reason() {
        let refused = |payload: &Payload| read(DepthTransport::Raw, payload).unwrap_err();
        assert!(refused(&message("rgb8", 6, &[0; 12])).contains("\"rgb8\", expected 16UC1"));
        assert!(refused(&message("16UC1", 4, &[0; 7])).contains("at least 8, found 7"));
        let whole = message("16UC1", 4, &[0; 8]).data;
        for end in 0..whole.len() {
            let cut = Payload::from(whole.slice(..end));
            assert!(read(DepthTransport::Raw, &cut).is_err(), "{end} bytes");
            assert!(
                read(DepthTransport::Compressed, &cut).is_err(),
                "{end} bytes"
            );
        }
    }
}
