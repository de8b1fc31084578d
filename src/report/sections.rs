//! Sections of the report.

use super::chart::{self, Curve, Plan};
use super::graph::{loop_edges, path_pieces};
use super::{ReportInput, escape, grid, splats, viewer};
use crate::eval::{Alignment, Evaluation};
use crate::files::export::ExportError;
use crate::geometry::Sim3;
use crate::image::RgbImage;
use crate::map::keyframes::{encode, file_names};
use crate::map::{FrameRecord, TrackingState, cloud};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nalgebra::Vector3;
use std::fmt::Write;
use std::path::Path;

/// Maximum number of keyframe thumbnails.
const THUMBNAILS: usize = 8;
/// Approximate width of a thumbnail in pixels.
const THUMBNAIL_WIDTH: usize = 256;
const STYLE: &str = include_str!("style.css");

/// The whole page; `path` is used in messages.
pub(super) fn page(path: &Path, input: &ReportInput, submap: u32) -> Result<String, ExportError> {
    let title = escape(input.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>{title} · MASt3R-SLAM</title><style>\n{STYLE}</style></head><body><main>\
         <header><h1>{title}</h1><p>{}</p></header>",
        subtitle(input)
    );
    tiles(&mut out, input, submap)?;
    notes(&mut out, input, submap);
    out.push_str("<div class=\"pair\">");
    plan(&mut out, input, submap);
    viewer::write(&mut out, input, submap);
    out.push_str("</div>");
    splats::write(&mut out, input.splats);
    if let Some(cells) = input.grid {
        grid::section(&mut out, path, cells)?;
    }
    if let Some(evaluation) = input.evaluation {
        error_over_time(&mut out, evaluation);
    }
    tracking_over_time(&mut out, input);
    scale_over_time(&mut out, input, submap);
    timings(&mut out, &input.snapshot.frames);
    thumbnails(&mut out, path, input)?;
    table(&mut out, "Mapping", &input.run.mapping);
    table(&mut out, "Settings", input.settings);
    out.push_str("</main>");
    out.push_str(&viewer::scripts());
    out.push_str(&splats::scripts(input.splats));
    out.push_str("</body></html>\n");
    Ok(out)
}

fn subtitle(input: &ReportInput) -> String {
    let calibrated = match input.snapshot.intrinsics {
        Some(_) => "calibrated",
        None => "not calibrated",
    };
    let mut parts = vec!["MASt3R-SLAM".to_owned(), calibrated.to_owned()];
    let mut images = input.snapshot.keyframes.iter().map(|k| k.view().image);
    if let Some(image) = images.find(|image| !image.data.is_empty()) {
        parts.push(format!("{} × {} pixels", image.width, image.height));
    }
    if !input.run.backend.is_empty() {
        parts.push(escape(&input.run.backend));
    }
    parts.join(" · ")
}

fn tiles(out: &mut String, input: &ReportInput, submap: u32) -> Result<(), ExportError> {
    let frames = &input.snapshot.frames;
    let lost = frames
        .iter()
        .filter(|f| f.state == TrackingState::Lost)
        .count();
    let points = if input.cloud.voxel_size > 0.0 {
        cloud::collect(input.snapshot, submap, &input.cloud)?.len()
    } else {
        cloud::points(input.snapshot, submap, input.cloud.min_confidence).count()
    };
    out.push_str("<section class=\"tiles\">");
    let mut tile = |name: &str, value: String, unit: &str, bad: bool| {
        let class = if bad { " class=\"bad\"" } else { "" };
        let _ = write!(
            out,
            "<div class=\"tile\"><b{class}>{value} <small>{unit}</small></b><span>{name}</span></div>"
        );
    };
    if let Some(e) = input.evaluation {
        let how = match e.options.alignment {
            Alignment::None => "ATE rmse, not aligned",
            Alignment::Se3 => "ATE rmse, SE(3)",
            Alignment::Sim3 => "ATE rmse, Sim(3)",
        };
        tile(how, format!("{:.3}", e.ate.rmse), "m", false);
        if let Some(percent) = e.ate_percent {
            let name = format!("ATE of a {:.1} m path", e.path_length);
            tile(&name, format!("{percent:.2}"), "%", false);
        }
        if e.options.alignment == Alignment::Sim3 {
            tile(
                "scale correction",
                format!("{:.3}", e.alignment.scale),
                "",
                false,
            );
        }
    }
    tile("frames", grouped(frames.len()), "", false);
    tile(
        "keyframes",
        grouped(input.snapshot.keyframes.len()),
        "",
        false,
    );
    tile("loop edges", grouped(loop_edges(input).len()), "", false);
    tile("lost frames", grouped(lost), "", lost > 0);
    tile("points in the cloud", grouped(points), "", false);
    if let Some(fps) = input.run.fps {
        tile("speed", format!("{fps:.2}"), "frames/s", false);
    }
    if let Some(bytes) = input.run.peak_memory {
        let (value, unit) = match bytes as f64 {
            b if b >= 1e9 => (format!("{:.2}", b / 1e9), "GB"),
            b => (format!("{:.0}", b / 1e6), "MB"),
        };
        tile("peak memory", value, unit, false);
    }
    out.push_str("</section>");
    Ok(())
}

/// Formats `1234567` as `1 234 567` with thin spaces.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(c);
    }
    out
}

fn notes(out: &mut String, input: &ReportInput, submap: u32) {
    let mut note = |text: String| {
        let _ = write!(out, "<p class=\"note\">{text}</p>");
    };
    let submaps = input.snapshot.submaps();
    if submaps.len() > 1 {
        note(format!(
            "Tracking was lost permanently {} times, so the map consists of {} unconnected parts. \
             This page shows part {submap}, the largest; each part has its own files.",
            submaps.len() - 1,
            submaps.len()
        ));
    }
    if let Some(e) = input.evaluation {
        if e.skipped_truth_rows > 0 {
            let n = e.skipped_truth_rows;
            note(format!(
                "Skipped {n} ground-truth rows that are not finite."
            ));
        }
        if e.unordered {
            note(
                "Stamps are out of order or repeated; poses were compared in the given order."
                    .to_owned(),
            );
        }
    }
}

fn plan(out: &mut String, input: &ReportInput, submap: u32) {
    out.push_str("<section class=\"card\"><h2>Trajectory from above</h2>");
    let pieces = path_pieces(&input.snapshot.frames, submap);
    if pieces.is_empty() {
        out.push_str("<p class=\"empty\">No frame has a pose.</p></section>");
        return;
    }
    let alignment = input.evaluation.map_or(Sim3::identity(), |e| e.alignment);
    let pieces: Vec<Vec<_>> = pieces
        .iter()
        .map(|piece| piece.iter().map(|p| alignment.transform(p)).collect())
        .collect();
    let truth: Vec<Vector3<f64>> = match (input.evaluation, input.ground_truth) {
        (Some(_), Some(truth)) => truth_during(truth, input),
        _ => Vec::new(),
    };
    // The axis of least motion is assumed to be vertical.
    let mut spread = [(f64::INFINITY, f64::NEG_INFINITY); 3];
    for p in pieces.iter().flatten() {
        for (s, v) in spread.iter_mut().zip(p.iter()) {
            *s = (s.0.min(*v), s.1.max(*v));
        }
    }
    let extent = spread.map(|(lo, hi)| hi - lo);
    // Viewed from above without mirroring: x forward points up on the page if y points down.
    let (axes, names) = match (0..3).min_by(|&a, &b| extent[a].total_cmp(&extent[b])) {
        Some(0) => ([1, 2], ["y", "z"]),
        Some(1) => ([0, 2], ["x", "z"]),
        _ => ([0, 1], ["x", "y"]),
    };
    let flat = |p: &Vector3<f64>| [p[axes[0]], p[axes[1]]];
    let keyframes = &input.snapshot.keyframes;
    let place = |i: usize| flat(&alignment.transform(&keyframes[i].world_from_camera.translation));
    let usable =
        |i: usize| keyframes[i].submap == submap && keyframes[i].world_from_camera.is_finite();
    let plan = Plan {
        estimate: pieces
            .iter()
            .map(|p| p.iter().map(flat).collect())
            .collect(),
        truth: truth.iter().map(flat).collect(),
        keyframes: (0..keyframes.len())
            .filter(|&i| usable(i))
            .map(|i| {
                let k = &keyframes[i];
                let title = format!("keyframe {}, frame {}, {} s", k.id, k.frame_index, k.stamp);
                (place(i), title)
            })
            .collect(),
        loops: loop_edges(input)
            .into_iter()
            .filter(|&(a, b)| usable(a) && usable(b))
            .map(|(a, b)| [place(a), place(b)])
            .collect(),
        axes: names,
    };
    out.push_str(&chart::plan(&plan));
    out.push_str(
        "<div class=\"legend\"><span><i style=\"border-color:var(--estimate)\"></i>estimate</span>",
    );
    if !plan.truth.is_empty() {
        out.push_str(
            "<span><i class=\"dash\" style=\"border-color:var(--truth)\"></i>ground truth</span>",
        );
    }
    if !plan.loops.is_empty() {
        out.push_str("<span><i style=\"border-color:var(--loop)\"></i>loop edge</span>");
    }
    out.push_str(
        "<span><i class=\"dot\" style=\"background:var(--good)\"></i>start</span>\
         <span><i class=\"dot\" style=\"background:var(--bad)\"></i>end</span>\
         <span><i class=\"dot\" style=\"border:2px solid var(--key)\"></i>keyframe</span></div></section>",
    );
}

/// The part of the ground truth between the first and last processed frame.
fn truth_during(
    truth: &[crate::trajectory::StampedPose],
    input: &ReportInput,
) -> Vec<Vector3<f64>> {
    let stamps = || input.snapshot.frames.iter().map(|f| f.stamp);
    let (Some(first), Some(last)) = (stamps().min(), stamps().max()) else {
        return Vec::new();
    };
    let during = truth.iter().filter(|p| (first..=last).contains(&p.stamp));
    let finite = during.filter(|p| p.world_from_camera.is_finite());
    finite.map(|p| p.world_from_camera.translation).collect()
}

fn error_over_time(out: &mut String, e: &Evaluation) {
    let Some(start) = e.errors.iter().map(|p| p.stamp.nanos).min() else {
        return;
    };
    let since = |nanos: i64| nanos.saturating_sub(start) as f64 * 1e-9;
    let points = e.errors.iter().map(|p| [since(p.stamp.nanos), p.error]);
    let curve = Curve {
        pieces: split_at_gaps(&points.collect::<Vec<_>>()),
        level: Some((e.ate.rmse, format!("rmse {:.3} m", e.ate.rmse))),
        unit: "metres",
        // Below a millimetre the plot would only show rounding.
        top: 1e-3,
        label: "Absolute trajectory error over time",
        ..Curve::default()
    };
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Absolute trajectory error over time</h2><div class=\"wide\">{}</div>\
         <p class=\"plain\">{} associated poses · mean {:.4} m · median {:.4} m · largest {:.4} m{}</p></section>",
        chart::curve(&curve),
        e.errors.len(),
        e.ate.mean,
        e.ate.median,
        e.ate.max,
        match (&e.rpe_translation, &e.rpe_rotation) {
            (Some(t), Some(r)) => format!(" · relative error rmse {:.4} m, {:.3}°", t.rmse, r.rmse),
            _ => String::new(),
        }
    );
}

/// Plots the scales of the submap's keyframes: how many metres of the map the network's metre is.
fn scale_over_time(out: &mut String, input: &ReportInput, submap: u32) {
    let own = input.snapshot.keyframes.iter();
    let own = own.filter(|k| k.submap == submap && k.world_from_camera.scale.is_finite());
    let mut scales: Vec<(i64, f64)> = own
        .map(|k| (k.stamp.nanos, k.world_from_camera.scale))
        .collect();
    scales.sort_unstable_by_key(|(stamp, _)| *stamp);
    let (Some((start, _)), true) = (scales.first().copied(), scales.len() > 1) else {
        return;
    };
    let points = scales.iter().map(|(stamp, scale)| {
        let seconds = stamp.saturating_sub(start) as f64 * 1e-9;
        [seconds, *scale]
    });
    let curve = Curve {
        pieces: vec![points.collect()],
        level: Some((1.0, "the network's metre".to_owned())),
        unit: "metres of the map",
        top: 1.1,
        label: "Scale of keyframes over time",
        ..Curve::default()
    };
    let range = scales.iter().map(|(_, scale)| *scale);
    let low = range.clone().fold(f64::INFINITY, f64::min);
    let high = range.fold(0.0, f64::max);
    let measured = match input.run.scale.as_deref() {
        Some(measured) => escape(measured),
        None => "no sensor measures the scale of this map".to_owned(),
    };
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Scale over time</h2><div class=\"wide\">{}</div>\
         <p class=\"plain\">{} keyframes · from {low:.3} to {high:.3} · {measured}</p></section>",
        chart::curve(&curve),
        scales.len(),
    );
}

/// Splits at gaps longer than four times the usual spacing.
fn split_at_gaps(points: &[[f64; 2]]) -> Vec<Vec<[f64; 2]>> {
    let mut steps: Vec<f64> = points
        .windows(2)
        .map(|w| (w[1][0] - w[0][0]).abs())
        .collect();
    steps.sort_by(f64::total_cmp);
    let usual = steps.get(steps.len() / 2).copied().unwrap_or(0.0);
    let together = |a: &[f64; 2], b: &[f64; 2]| (b[0] - a[0]).abs() <= 4.0 * usual;
    points.chunk_by(together).map(<[_]>::to_vec).collect()
}

/// Plots the match fraction, with lost intervals shaded.
fn tracking_over_time(out: &mut String, input: &ReportInput) {
    let frames = &input.snapshot.frames;
    let Some(start) = frames.iter().map(|f| f.stamp.nanos).min() else {
        return;
    };
    if frames.len() < 2 {
        return;
    }
    let since = |f: &FrameRecord| f.stamp.nanos.saturating_sub(start) as f64 * 1e-9;
    let mut curve = Curve {
        pieces: vec![Vec::new()],
        unit: "matched pixels, %",
        top: 100.0 / 1.06,
        label: "Matched pixels over time",
        ..Curve::default()
    };
    let mut lost_since = None;
    for f in frames {
        let t = since(f);
        match (f.state, lost_since) {
            (TrackingState::Lost, None) => {
                lost_since = Some(t);
                curve.pieces.push(Vec::new());
            }
            (TrackingState::Lost, Some(_)) => {}
            (_, Some(from)) => {
                curve.shaded.push([from, t]);
                lost_since = None;
            }
            _ => {}
        }
        // The first frame of a map is not matched against anything.
        let tracked = !matches!(f.state, TrackingState::Lost | TrackingState::Initialising);
        if let (true, Some(piece)) = (
            tracked && f.match_fraction.is_finite(),
            curve.pieces.last_mut(),
        ) {
            piece.push([t, 100.0 * f64::from(f.match_fraction)]);
        }
    }
    if let (Some(from), Some(last)) = (lost_since, frames.last()) {
        curve.shaded.push([from, since(last)]);
    }
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Tracking</h2><div class=\"wide\">{}</div><div class=\"legend\">\
         <span><i style=\"border-color:var(--estimate)\"></i>matched pixels</span>",
        chart::curve(&curve)
    );
    if !curve.shaded.is_empty() {
        out.push_str(
            "<span><i class=\"block\" style=\"background:var(--bad);opacity:.3\"></i>lost</span>",
        );
    }
    out.push_str("</div></section>");
}

fn timings(out: &mut String, frames: &[FrameRecord]) {
    if frames.is_empty() {
        return;
    }
    let n = frames.len() as f64;
    let mut names: Vec<&str> = frames[0].times.stages().map(|(name, _)| name).to_vec();
    let mut series: Vec<Vec<f64>> = (0..names.len())
        .map(|s| frames.iter().map(|f| f.times.stages()[s].1).collect())
        .collect();
    let rest = |f: &FrameRecord| {
        let stages: f64 = f.times.stages().iter().map(|(_, ms)| ms).sum();
        (f.times.total - stages).max(0.0)
    };
    names.push("other");
    series.push(frames.iter().map(rest).collect());
    let means: Vec<f64> = series.iter().map(|s| s.iter().sum::<f64>() / n).collect();
    let sum: f64 = means.iter().sum();
    out.push_str("<section class=\"card\"><h2>Time per frame</h2>");
    if !(sum > 0.0 && sum.is_finite()) {
        out.push_str("<p class=\"empty\">No times were measured.</p></section>");
        return;
    }
    out.push_str("<div class=\"bar\">");
    for (s, (name, mean)) in names.iter().zip(&means).enumerate() {
        let percent = 100.0 * mean / sum;
        if percent >= 0.05 {
            let _ = write!(
                out,
                "<div style=\"width:{percent:.2}%;background:var(--s{s})\" title=\"{name}: {mean:.1} ms\"></div>"
            );
        }
    }
    out.push_str(
        "</div><table><tr><th>stage</th><th class=\"num\">mean [ms]</th><th class=\"num\">median</th>\
         <th class=\"num\">95 %</th><th class=\"num\">share</th></tr>",
    );
    let mut row = |name: &str, swatch: &str, values: &[f64], share: f64| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Nearest-rank percentile.
        let at = |q: f64| sorted[((q * n).ceil() as usize).clamp(1, sorted.len()) - 1];
        let _ = write!(
            out,
            "<tr><td>{swatch}{name}</td><td class=\"num\">{:.1}</td><td class=\"num\">{:.1}</td>\
             <td class=\"num\">{:.1}</td><td class=\"num\">{share:.1} %</td></tr>",
            values.iter().sum::<f64>() / n,
            at(0.5),
            at(0.95)
        );
    };
    for (s, (name, values)) in names.iter().zip(&series).enumerate() {
        let swatch = format!("<span class=\"swatch\" style=\"background:var(--s{s})\"></span>");
        row(name, &swatch, values, 100.0 * means[s] / sum);
    }
    let totals: Vec<f64> = frames.iter().map(|f| f.times.total).collect();
    let share = 100.0 * totals.iter().sum::<f64>() / n / sum;
    row("<strong>whole frame</strong>", "", &totals, share);
    out.push_str("</table></section>");
}

fn thumbnails(out: &mut String, path: &Path, input: &ReportInput) -> Result<(), ExportError> {
    let keyframes = &input.snapshot.keyframes;
    if keyframes.is_empty() {
        return Ok(());
    }
    let names = file_names(input.snapshot);
    let shown = keyframes.len().min(THUMBNAILS);
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Keyframes</h2><div class=\"thumbs\">"
    );
    for j in 0..shown {
        // First, last, and evenly between.
        let i = j * (keyframes.len() - 1) / (shown - 1).max(1);
        let k = &keyframes[i];
        let small = shrink(&k.view().image, THUMBNAIL_WIDTH);
        if small.data.is_empty() {
            continue;
        }
        let jpeg = encode(&small, image::ImageFormat::Jpeg, path)?;
        let _ = write!(
            out,
            "<figure><img width=\"{}\" height=\"{}\" alt=\"{}\" src=\"data:image/jpeg;base64,{}\"/>\
             <figcaption>keyframe {} · frame {} · {:.3} s</figcaption></figure>",
            small.width,
            small.height,
            names[i],
            BASE64.encode(jpeg),
            k.id,
            k.frame_index,
            k.stamp.seconds()
        );
    }
    let _ = write!(
        out,
        "</div><p class=\"plain\">{shown} of {}</p></section>",
        keyframes.len()
    );
    Ok(())
}

/// Means of square blocks, so that about `width` columns are left.
fn shrink(image: &RgbImage, width: usize) -> RgbImage {
    let block = (image.width / width).max(1);
    let mut out = RgbImage::new(image.width / block, image.height / block);
    let area = (block * block) as u32;
    for y in 0..out.height {
        for x in 0..out.width {
            for c in 0..3 {
                let mut sum = 0u32;
                for row in y * block..(y + 1) * block {
                    for column in x * block..(x + 1) * block {
                        sum += u32::from(image.data[(row * image.width + column) * 3 + c]);
                    }
                }
                out.data[(y * out.width + x) * 3 + c] = (sum / area) as u8;
            }
        }
    }
    out
}

fn table(out: &mut String, title: &str, rows: &[(String, String)]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "<section class=\"card\"><h2>{title}</h2><table>");
    for (name, value) in rows {
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape(name),
            escape(value)
        );
    }
    out.push_str("</table></section>");
}
