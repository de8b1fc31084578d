//! One line for each processed frame.

use super::{ExportError, MapSnapshot, StageTimes, atomic};
use std::io::Write;
use std::path::Path;

/// The header. `keyframe` is empty for frames that are none; the pose is camera to world, and the
/// columns that end in `_ms` are milliseconds.
pub const COLUMNS: &str = "index,stamp,state,submap,keyframe,match_fraction,unique_fraction,\
iterations,tx,ty,tz,qx,qy,qz,qw,scale,preprocess_ms,encode_ms,decode_ms,matching_ms,tracking_ms,\
fusion_ms,mapping_ms,total_ms";

impl StageTimes {
    /// The stages in order with their names; without the total.
    pub fn stages(&self) -> [(&'static str, f64); 7] {
        [
            ("preprocess", self.preprocess),
            ("encode", self.encode),
            ("decode", self.decode),
            ("matching", self.matching),
            ("tracking", self.tracking),
            ("fusion", self.fusion),
            ("mapping", self.mapping),
        ]
    }
}

/// Writes every frame in order, lost ones too.
pub fn write(path: &Path, snapshot: &MapSnapshot) -> Result<(), ExportError> {
    atomic::write(path, |out| {
        writeln!(out, "{COLUMNS}")?;
        for f in &snapshot.frames {
            let keyframe = f.keyframe.map_or_else(String::new, |k| k.to_string());
            write!(
                out,
                "{},{},{},{},{keyframe},{:.6},{:.6},{}",
                f.index,
                f.stamp,
                f.state.name(),
                f.submap,
                f.match_fraction,
                f.unique_fraction,
                f.iterations
            )?;
            for v in f.world_from_camera.to_array() {
                write!(out, ",{v:.9}")?;
            }
            for (_, ms) in f.times.stages() {
                write!(out, ",{ms:.3}")?;
            }
            writeln!(out, ",{:.3}", f.times.total)?;
        }
        Ok(())
    })
}
