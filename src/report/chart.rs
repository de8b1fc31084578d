//! Plots as inline SVG. Colours come from the page's style sheet, so that they follow its theme.

use std::fmt::Write;

/// Maximum number of plotted points per path; longer paths are subsampled.
const MAX_POINTS: usize = 3000;

/// Content of the top view, in metres, projected onto the two plotted axes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The estimate, in segments that end where tracking was lost.
    pub estimate: Vec<Vec<[f64; 2]>>,
    pub truth: Vec<[f64; 2]>,
    /// Keyframe positions with tooltip texts.
    pub keyframes: Vec<([f64; 2], String)>,
    /// Endpoints of the edges between non-consecutive keyframes.
    pub loops: Vec<[[f64; 2]; 2]>,
    /// Names of the horizontal and vertical axes.
    pub axes: [&'static str; 2],
}

#[derive(Debug, Default)]
pub(super) struct Curve {
    /// `(seconds, value)`, in segments.
    pub pieces: Vec<Vec<[f64; 2]>>,
    /// A dashed horizontal line and its label.
    pub level: Option<(f64, String)>,
    /// Shaded time spans.
    pub shaded: Vec<[f64; 2]>,
    /// Unit of the y axis.
    pub unit: &'static str,
    /// Lower bound for the upper end of the y axis.
    pub top: f64,
    /// Description of the plot for screen readers.
    pub label: &'static str,
}

/// Round numbers between `lo` and `hi`, about `target` of them.
fn ticks(lo: f64, hi: f64, target: f64) -> Vec<f64> {
    let raw = (hi - lo) / target;
    if !(raw.is_finite() && raw > 0.0) {
        return Vec::new();
    }
    let power = 10f64.powf(raw.log10().floor());
    let step = power
        * match raw / power {
            r if r < 1.5 => 1.0,
            r if r < 3.5 => 2.0,
            r if r < 7.5 => 5.0,
            _ => 10.0,
        };
    let first = (lo / step).ceil();
    let count = ((hi / step).floor() - first).clamp(0.0, 100.0) as usize;
    (0..=count).map(|k| (first + k as f64) * step).collect()
}

/// The shortest representation, such as `0.5` or `12`.
fn number(v: f64) -> String {
    let text = format!("{v:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let stride = points.len().div_ceil(MAX_POINTS).max(1);
    let mut out: Vec<_> = points.iter().copied().step_by(stride).collect();
    if stride > 1 {
        out.extend(points.last());
    }
    out
}

fn path(out: &mut String, class: &str, points: &[[f64; 2]], place: impl Fn([f64; 2]) -> [f64; 2]) {
    let _ = write!(out, "<path class=\"{class}\" d=\"");
    for (i, p) in thinned(points).into_iter().enumerate() {
        let [x, y] = place(p);
        let _ = write!(out, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    out.push_str("\"/>");
}

/// The top view, with equal scale on both axes.
pub(super) fn plan(plan: &Plan) -> String {
    let (mut lo, mut hi) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
    let edges = plan.loops.iter().flatten();
    let keys = plan.keyframes.iter().map(|(p, _)| p);
    for p in plan
        .estimate
        .iter()
        .flatten()
        .chain(&plan.truth)
        .chain(edges)
        .chain(keys)
    {
        for a in 0..2 {
            lo[a] = lo[a].min(p[a]);
            hi[a] = hi[a].max(p[a]);
        }
    }
    // Margin around the content, and around a camera that does not move.
    let reach = (hi[0] - lo[0]).max(hi[1] - lo[1]).max(0.2);
    for a in 0..2 {
        let short = (0.3 * reach - (hi[a] - lo[a])).max(0.0) / 2.0 + 0.06 * reach;
        lo[a] -= short;
        hi[a] += short;
    }
    let (left, bottom, width) = (46.0, 40.0, 540.0);
    let extent = [hi[0] - lo[0], hi[1] - lo[1]];
    let per_metre = ((width - left - 8.0) / extent[0]).min(440.0 / extent[1]);
    let (w, h) = (extent[0] * per_metre, extent[1] * per_metre);
    let left = left + (width - left - 8.0 - w) / 2.0;
    let height = h + bottom + 10.0;
    let place = |p: [f64; 2]| {
        [
            left + (p[0] - lo[0]) * per_metre,
            10.0 + h - (p[1] - lo[1]) * per_metre,
        ]
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height:.0}\" role=\"img\" aria-label=\"Trajectory from above\">"
    );
    let (right, base) = (left + w, 10.0 + h);
    let per_tick = 70.0;
    for v in ticks(lo[0], hi[0], w / per_tick) {
        let [x, _] = place([v, lo[1]]);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{x:.1} 10V{base:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            base + 16.0,
            number(v)
        );
    }
    for v in ticks(lo[1], hi[1], h / per_tick) {
        let [_, y] = place([lo[0], v]);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            y + 4.0,
            number(v)
        );
    }
    let middle = left + w / 2.0;
    let _ = write!(
        out,
        "<path class=\"grid\" d=\"M{left:.1} 10H{right:.1}V{base:.1}H{left:.1}Z\"/>\
         <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} [m]</text>\
         <text transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"middle\">{} [m]</text>",
        base + 34.0,
        plan.axes[0],
        (left - 36.0).max(10.0),
        10.0 + h / 2.0,
        plan.axes[1]
    );
    if plan.truth.len() > 1 {
        path(&mut out, "truth", &plan.truth, place);
    }
    for ends in &plan.loops {
        path(&mut out, "loop", ends, place);
    }
    for piece in &plan.estimate {
        path(&mut out, "estimate", piece, place);
    }
    for (p, title) in &plan.keyframes {
        let [x, y] = place(*p);
        let _ = write!(
            out,
            "<circle class=\"key\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\"><title>{title}</title></circle>"
        );
    }
    let mut ends = plan.estimate.iter().flatten();
    if let Some(first) = ends.next() {
        let [x, y] = place(*first);
        let _ = write!(
            out,
            "<circle class=\"start\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"/>"
        );
        if let Some(last) = ends.next_back() {
            let [x, y] = place(*last);
            let _ = write!(
                out,
                "<circle class=\"end\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"/>"
            );
        }
    }
    out.push_str("</svg>");
    out
}

/// Plots a value over time, with the y axis starting at zero.
pub(super) fn curve(curve: &Curve) -> String {
    let (width, height, left, top, bottom) = (1080.0, 230.0, 56.0, 10.0, 36.0);
    let all = || curve.pieces.iter().flatten();
    let seconds = || {
        all()
            .map(|p| p[0])
            .chain(curve.shaded.iter().flatten().copied())
    };
    let start = seconds().fold(f64::INFINITY, f64::min);
    let end = seconds()
        .fold(f64::NEG_INFINITY, f64::max)
        .max(start + 1e-3);
    let max = all().map(|p| p[1]).fold(curve.top, f64::max) * 1.06;
    let max = if max > 0.0 { max } else { 1.0 };
    let (w, h) = (width - left - 10.0, height - top - bottom);
    let base = top + h;
    let place = |p: [f64; 2]| {
        [
            left + (p[0] - start) / (end - start) * w,
            base - p[1] / max * h,
        ]
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
        curve.label
    );
    for v in ticks(0.0, max, 4.0) {
        let [_, y] = place([start, v]);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left} {y:.1}H{:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + w,
            left - 6.0,
            y + 4.0,
            number(v)
        );
    }
    for v in ticks(start, end, 10.0) {
        let [x, _] = place([v, 0.0]);
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            base + 17.0,
            number(v)
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">seconds</text>\
         <text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        left + w,
        base + 33.0,
        top + h / 2.0,
        curve.unit
    );
    for [from, to] in &curve.shaded {
        let (x, x1) = (place([*from, 0.0])[0], place([*to, 0.0])[0]);
        let _ = write!(
            out,
            "<rect class=\"lost\" x=\"{x:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{h}\"/>",
            (x1 - x).max(1.5)
        );
    }
    for piece in &curve.pieces {
        if let (Some(first), Some(last)) = (piece.first(), piece.last()) {
            let mut closed = vec![[first[0], 0.0]];
            closed.extend(thinned(piece));
            closed.push([last[0], 0.0]);
            path(&mut out, "area", &closed, place);
        }
        path(&mut out, "curve", piece, place);
    }
    if let Some((value, label)) = &curve.level {
        let [_, y] = place([start, *value]);
        let _ = write!(
            out,
            "<path class=\"level\" d=\"M{left} {y:.1}H{:.1}\"/><text class=\"over\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left + w,
            left + w - 4.0,
            y - 5.0
        );
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(-0.7, 1.2, 4.0), [-0.5, 0.0, 0.5, 1.0]);
        assert!(ticks(1.0, 1.0, 4.0).is_empty());
        assert!(ticks(0.0, f64::NAN, 4.0).is_empty());
        for v in [0.5, 12.0, -0.0, 1e-5] {
            assert_eq!(number(v).parse::<f64>().unwrap(), v);
        }
    }

    #[test]
    fn long_paths_keep_their_end() {
        let points: Vec<[f64; 2]> = (0..10_001).map(|k| [f64::from(k), 0.0]).collect();
        let thin = thinned(&points);
        assert!(thin.len() <= MAX_POINTS + 1);
        assert_eq!(thin.last(), points.last());
    }
}
