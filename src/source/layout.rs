//! The kinds of sources.

/// The kinds of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A folder with `rgb.txt`.
    Tum,
    /// A folder with `rgb.txt` and `calibration.txt`.
    Eth3d,
    /// A folder with `mav0/cam0/data.csv`.
    Euroc,
    /// A folder with `*.color.png`, or with sequences `seq-01`, … of them.
    SevenScenes,
    /// A folder with images.
    Images,
    /// A video file.
    Video,
    /// A ROS 2 bag: a folder of `.mcap` or `.db3` files, or one such file.
    #[cfg(feature = "bags")]
    Bag,
}

impl Layout {
    /// Name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tum => "TUM RGB-D",
            Self::Eth3d => "ETH3D-SLAM",
            Self::Euroc => "EuRoC",
            Self::SevenScenes => "7-Scenes",
            Self::Images => "images",
            Self::Video => "video",
            #[cfg(feature = "bags")]
            Self::Bag => "ROS 2 bag",
        }
    }

    /// The files that identify a folder of this kind.
    pub(super) fn marker(self) -> &'static str {
        match self {
            Self::Tum | Self::Eth3d => "rgb.txt",
            Self::Euroc => "mav0/cam0/data.csv",
            Self::SevenScenes => "*.color.png",
            Self::Images | Self::Video => "images",
            #[cfg(feature = "bags")]
            Self::Bag => "metadata.yaml",
        }
    }
}
