//! The splats of the report: the viewer of the live page, with its source and the splats in the file.

use crate::page;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::fmt::Write;

/// Bytes of a splat.
const ROW: usize = 32;

/// Writes the section, if there are splats.
pub(super) fn write(out: &mut String, rows: &[u8]) {
    let count = rows.len() / ROW;
    if count == 0 {
        return;
    }
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Splats</h2><canvas id=\"splats\" class=\"map\"></canvas>\
         <noscript><p class=\"empty\">The splats are drawn by a script, and scripts are turned off.</p></noscript>\
         <div class=\"legend\"><span>{count} splats, at most 200,000 of the map's; drag turns, the right button moves, \
         wheel or pinch zoom</span></div>\
         <script type=\"text/plain\" id=\"splat-data\">{}</script></section>",
        BASE64.encode(rows)
    );
}

/// The viewer and the scripts that draw them; empty without splats.
pub(super) fn scripts(rows: &[u8]) -> String {
    if rows.len() < ROW {
        return String::new();
    }
    format!(
        "<script type=\"text/plain\" id=\"splat-viewer\">\n{}</script><script>\n{}</script>",
        page::splat_viewer(),
        page::report_splat_scripts()
    )
}
