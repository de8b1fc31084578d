//! The map of the report: the viewer of the live page, with its data in the file.

use super::ReportInput;
use super::graph::{loop_edges, path_pieces};
use crate::page::messages::{self, BREAK, GraphKeyframe};
use crate::page::{self, Cloud, MAX_POINTS};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::fmt::Write;

/// Points of the whole map: less than two megabytes.
const POINTS: usize = 150_000;
/// Points of a keyframe, however many there are.
const MIN_POINTS: usize = 20;
/// Positions of the trajectory.
const POSITIONS: usize = 8_192;

/// Writes the section; without points it says so.
pub(super) fn write(out: &mut String, input: &ReportInput, submap: u32) {
    out.push_str("<section class=\"card\"><h2>Map</h2>");
    match data(input, submap) {
        Some(data) => {
            let _ = write!(
                out,
                "<canvas id=\"map\" class=\"map\"></canvas>\
                 <noscript><p class=\"empty\">The map is drawn by a script, and scripts are turned off.</p></noscript>\
                 <div class=\"legend\"><span><i style=\"border-color:#2e8cff\"></i>camera path</span>\
                 <span><i style=\"border-color:#9eb0cc\"></i>keyframe</span>\
                 <span><i style=\"border-color:#fa8c26\"></i>loop</span>\
                 <span>points with a confidence above {}; drag turns, two fingers or the right button move, \
                 wheel or pinch zoom, a double click shows all</span></div>\
                 <script type=\"text/plain\" id=\"map-data\">{}</script>",
                input.cloud.min_confidence,
                BASE64.encode(data)
            );
        }
        None => {
            let _ = write!(
                out,
                "<p class=\"empty\">No point has a confidence above {}.</p>",
                input.cloud.min_confidence
            );
        }
    }
    out.push_str("</section>");
}

/// The scripts that draw it.
pub(super) fn scripts() -> String {
    format!("<script>\n{}</script>", page::report_scripts())
}

/// Messages for the viewer; `None` without points.
fn data(input: &ReportInput, submap: u32) -> Option<Vec<u8>> {
    let snapshot = input.snapshot;
    let usable = |i: &usize| {
        let keyframe = snapshot.keyframes.get(*i);
        keyframe.is_some_and(|k| k.submap == submap && k.world_from_camera.is_finite())
    };
    let indices: Vec<usize> = (0..snapshot.keyframes.len()).filter(usable).collect();
    let keyframes = indices.iter().filter_map(|i| snapshot.keyframes.get(*i));
    let graph: Vec<_> = keyframes
        .clone()
        .map(|k| GraphKeyframe {
            id: k.id,
            submap,
            world_from_camera: k.world_from_camera,
        })
        .collect();
    let id = |i: usize| snapshot.keyframes.get(i).map(|k| k.id);
    let loops = loop_edges(input).into_iter();
    let loops = loops.filter(|(a, b)| usable(a) && usable(b));
    let loops: Vec<_> = loops.filter_map(|(a, b)| Some((id(a)?, id(b)?))).collect();
    let mut data = messages::graph(0, &graph, &loops);
    let max = (POINTS / indices.len().max(1)).clamp(MIN_POINTS, MAX_POINTS);
    let mut points = 0;
    for keyframe in keyframes {
        let intrinsics = snapshot.intrinsics.as_ref();
        let cloud = Cloud::of(
            &keyframe.view(),
            intrinsics,
            input.cloud.min_confidence,
            max,
        );
        points += cloud.len();
        if !cloud.is_empty() {
            data.extend(messages::cloud(keyframe.id, 1, &cloud));
        }
    }
    let pieces = path_pieces(&snapshot.frames, submap);
    let length: usize = pieces.iter().map(Vec::len).sum();
    let stride = length.div_ceil(POSITIONS).max(1);
    let mut path = Vec::new();
    for piece in pieces {
        let flags = |k| if k == 0 { BREAK } else { 0 };
        let every = piece.into_iter().step_by(stride).enumerate();
        path.extend(every.map(|(k, position)| (position, flags(k))));
    }
    data.extend(messages::trail(0, &path));
    (points > 0).then_some(data)
}
