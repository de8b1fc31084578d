//! CSV file with one line per processed frame.

use super::MapSnapshot;
use crate::files::export::{self, ExportError};
use std::io::Write;
use std::path::Path;

/// The header. `keyframe` is empty for frames that are not keyframes; the pose is camera to world;
/// columns ending in `_ms` are in milliseconds.
pub const COLUMNS: &str = "index,stamp,state,submap,keyframe,match_fraction,unique_fraction,\
iterations,tx,ty,tz,qx,qy,qz,qw,scale,preprocess_ms,encode_ms,decode_ms,matching_ms,tracking_ms,\
fusion_ms,mapping_ms,total_ms";

/// Writes all frames in order, including lost ones.
pub fn write(path: &Path, snapshot: &MapSnapshot) -> Result<(), ExportError> {
    export::write(path, |out| {
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
