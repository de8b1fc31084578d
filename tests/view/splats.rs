//! The page of splats.

use crate::client::get;
use mast3r_slam::view::{Door, Host, HostReport, SplatReader};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Fine;

impl Host for Fine {
    fn report(&self) -> HostReport {
        HostReport::default()
    }
}

#[test]
fn splats_have_a_page_and_data_once_there_are_some() {
    let door = Door::bind(Ipv4Addr::LOCALHOST.into(), 0, "--view PORT").expect("a port");
    let feed = Arc::clone(door.feed());
    let view = door.serve(Arc::new(Fine)).expect("a server");
    let at = view.address();
    let page = get(at, "/splats");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("./splats/viewer.js") && page.body.contains("</html>"));
    assert!(
        page.headers.contains("wasm-unsafe-eval"),
        "{}",
        page.headers
    );
    // Only this page may do that.
    assert!(!get(at, "/").headers.contains("wasm-unsafe-eval"));
    let viewer = get(at, "/splats/viewer.js");
    assert!(
        viewer.headers.contains("text/javascript"),
        "{}",
        viewer.headers
    );
    assert!(viewer.body.contains("WebGLRenderer"));
    let none = get(at, "/splats/data");
    assert_eq!(none.status, 404);
    assert!(none.body.contains("there are no splats"), "{}", none.body);

    let ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&ended);
    feed.show_splats(SplatReader::new(move || {
        (!ends.load(Ordering::Relaxed)).then(|| b"0123456789abcdef0123456789abcdef".to_vec())
    }));
    let data = get(at, "/splats/data");
    assert_eq!((data.status, data.body.len()), (200, 32));
    assert!(get(at, "/status").body.contains("\"splats\": true"));
    ended.store(true, Ordering::Relaxed);
    assert_eq!(get(at, "/splats/data").status, 404);
}
