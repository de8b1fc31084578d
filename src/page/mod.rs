//! The page that shows a map: its HTML, its scripts and the binary form of clouds. The live page (`view`) and the report
//! embed the same viewer; both work without internet. `vendor/` holds twgl.js 7.0.0 and gsplat.js 1.2.9 (for splats) as
//! published on npm, with their licences (MIT).

mod cloud;
pub mod messages;

pub use cloud::{Cloud, MAX_POINTS};

/// The WebGL helper library.
const LIBRARY: &str = include_str!("vendor/twgl.js");
/// The viewer of splats, an ES module.
pub const SPLAT_VIEWER: &str = include_str!("vendor/gsplat.js");
/// Draws splats.
const SPLAT_SCENE: &str = include_str!("splat_scene.js");
/// Reads splats from the server and shows them.
const SPLATS: &str = include_str!("splats.js");
const SPLATS_PAGE: &str = include_str!("splats.html");
/// Draws a map: clouds, trajectory, keyframes, loops, a grid; orbit, pan and zoom.
const SCENE: &str = include_str!("scene.js");
/// Decodes messages of the server, and the report's data.
const MESSAGES: &str = include_str!("messages.js");
/// Connects to the server and shows what comes.
const LIVE: &str = include_str!("live.js");
/// Shows the map in a report.
const REPORT: &str = include_str!("report.js");
/// Shows the splats in a report.
const REPORT_SPLATS: &str = include_str!("report_splats.js");
const STYLE: &str = include_str!("page.css");
const PAGE: &str = include_str!("page.html");

/// The live page, complete in one file.
pub fn live() -> String {
    let page = PAGE.replace("/*STYLE*/", STYLE);
    page.replace("/*SCRIPTS*/", &joined(&[LIBRARY, MESSAGES, SCENE, LIVE]))
}

/// The page of splats, which loads `splats/viewer.js` ([`SPLAT_VIEWER`]) and `splats/data`.
pub fn splats() -> String {
    let page = SPLATS_PAGE.replace("/*STYLE*/", STYLE);
    page.replace("/*SCRIPT*/", &joined(&[SPLATS, SPLAT_SCENE]))
}

/// The scripts of a report, which draw on the element `map` what is in the element `map-data` in base64.
pub fn report_scripts() -> String {
    joined(&[LIBRARY, MESSAGES, SCENE, REPORT])
}

/// The scripts that draw on the element `splats` what is in the element `splat-data` in base64, by the viewer's source
/// in `splat-viewer`. They follow [`report_scripts`].
pub fn report_splat_scripts() -> String {
    joined(&[SPLAT_SCENE, REPORT_SPLATS])
}

/// [`SPLAT_VIEWER`] for an element of HTML.
pub fn splat_viewer() -> String {
    joined(&[SPLAT_VIEWER])
}

/// Scripts as one that HTML may hold: a comment of the library would end it.
fn joined(scripts: &[&str]) -> String {
    scripts.join("\n").replace("</script", "<\\/script")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_stands_alone() {
        let page = live();
        assert!(!page.contains("/*STYLE*/") && !page.contains("/*SCRIPTS*/"));
        // Closing the script early would show the rest as text.
        assert_eq!(page.matches("</script").count(), 1);
        for scripts in [report_scripts(), report_splat_scripts(), splat_viewer()] {
            assert!(!scripts.contains("</script"));
        }
        let splats = splats();
        assert!(!splats.contains("/*STYLE*/") && !splats.contains("/*SCRIPT*/"));
        assert_eq!(splats.matches("</script").count(), 1);
        // Every address is relative, so that a proxy may serve the page below any path.
        let own = [
            MESSAGES,
            SCENE,
            LIVE,
            REPORT,
            REPORT_SPLATS,
            SPLAT_SCENE,
            STYLE,
            PAGE,
            SPLATS,
            SPLATS_PAGE,
        ]
        .join("\n");
        for address in [
            "http:",
            "https:",
            "src=\"/",
            "href=\"/",
            "fetch(\"/",
            "//cdn",
        ] {
            assert!(!own.contains(address), "{address}");
        }
    }
}
