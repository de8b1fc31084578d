//! Keeps the network's times for the choice of `--backend auto`.

use super::network::{NetworkRow, STAGES};
use crate::config::BackendChoice;
use crate::gpu::DeviceInfo;
use crate::inference::native::KernelSet;
use crate::slam::Note;
use crate::slam_builder::Wanted;
use crate::slam_builder::times::{Key, Times, TimesError, TimesFile};

/// Keeps the medians of encoder and pair, if both were timed with the usual kernels; says where.
pub fn keep(
    gpu: &DeviceInfo,
    wanted: &Wanted<'_>,
    choice: BackendChoice,
    rows: &[NetworkRow],
) -> Option<Note> {
    let median = |stage: &str| Some(rows.iter().find(|row| row.stage == stage)?.median);
    let (encoder, pair) = (median(STAGES[0])?, median(STAGES[1])?);
    if !matches!(KernelSet::from_environment(), Ok(KernelSet::Fastest)) {
        return None;
    }
    let path = TimesFile::path();
    let written = || -> Result<(), Box<dyn std::error::Error>> {
        let precision = wanted.config.network.precision;
        let key = Key::new(gpu, wanted.weights, wanted.size, precision)?;
        // One that is of no use is written anew.
        let mut file = match TimesFile::read(&path) {
            Err(TimesError::Content { .. }) => TimesFile::default(),
            file => file?,
        };
        file.put(key, choice, Times { encoder, pair });
        Ok(file.write(&path)?)
    };
    Some(match written() {
        Ok(()) => Note::choice(format!(
            "the times of encoder and pair are kept in {}, by which --backend auto chooses",
            path.display()
        )),
        Err(error) => Note::choice(format!("the times are not kept: {error}")),
    })
}
