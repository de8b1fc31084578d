//! The tests of the test: a small tree of modules with every fault in it, and one without.

use crate::cycles::cycles;
use crate::layers::{Layer, Owned, Secret, wrong_arrows, wrong_crates, wrong_table};
use crate::modules::Crate;
use std::fs;
use std::path::Path;

const LAYERS: &[Layer] = &[
    Layer {
        module: "top",
        uses: &["middle", "bottom"],
    },
    Layer {
        module: "middle",
        uses: &["bottom"],
    },
    Layer {
        module: "bottom",
        uses: &[],
    },
];

fn tree(folder: &Path, files: &[(&str, &str)]) -> Crate {
    for (name, text) in files {
        let path = folder.join("src").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Crate::read(folder)
}

const ROOT: (&str, &str) = ("lib.rs", "mod top; mod middle; mod bottom;");

#[test]
fn arrows_down_and_in_tests_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let read = tree(
        folder.path(),
        &[
            ROOT,
            (
                "top.rs",
                "use crate::middle::{A, b as c};\nfn f() -> crate::bottom::B { todo!() }",
            ),
            (
                "middle/mod.rs",
                "mod part; pub use part::A; pub fn b() {}\n#[cfg(test)] mod tests { use crate::top::X; }",
            ),
            (
                "middle/part.rs",
                "use super::b; pub struct A; // crate::top\n",
            ),
            ("bottom.rs", "pub struct B;"),
        ],
    );
    let arrows = read.arrows();
    assert_eq!(
        wrong_arrows(&arrows, LAYERS, &[], &[]),
        Vec::<String>::new()
    );
    assert!(cycles(&arrows).is_empty());
    // The re-export is followed to the file that declares the item.
    let to = |place: &str| {
        let found = arrows.iter().filter(|a| a.place == place);
        found.map(|a| a.to.join("::")).collect::<Vec<_>>()
    };
    assert_eq!(to("src/top.rs:1"), ["middle", "middle::part"]);
    assert_eq!(to("src/top.rs:2"), ["bottom"]);
}

#[test]
fn arrows_that_point_up_or_are_not_in_the_table_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let read = tree(
        folder.path(),
        &[
            ("lib.rs", "mod top; mod middle; mod bottom; mod beside;"),
            ("top.rs", "pub struct T;"),
            ("middle.rs", "use crate::{bottom::B,\n    top::T};"),
            ("bottom.rs", "pub struct B;\nfn f() { super::middle::g() }"),
            ("beside.rs", "use super::bottom::B;"),
        ],
    );
    let arrows = read.arrows();
    let secrets = [Secret {
        from: "middle",
        hidden: "bottom::B",
        instead: "ask for C",
    }];
    let wrong = wrong_arrows(&arrows, LAYERS, &secrets, &[]);
    for (place, words) in [
        ("src/middle.rs:2", "top stands above middle"),
        ("src/bottom.rs:2", "middle stands above bottom"),
        ("src/beside.rs:1", "beside is not in the table"),
        (
            "src/middle.rs:1",
            "middle must not know bottom::B (it uses bottom::B); ask for C",
        ),
    ] {
        let found = wrong
            .iter()
            .any(|w| w.starts_with(place) && w.contains(words));
        assert!(found, "{place} {words:?} in {wrong:#?}");
    }
    assert_eq!(wrong.len(), 4, "{wrong:#?}");
    let known = [
        ("bottom", "middle"),
        ("middle", "top"),
        ("beside", "bottom"),
        ("middle", "bottom::B"),
    ];
    assert!(wrong_arrows(&arrows, LAYERS, &secrets, &known).is_empty());
    let stale = wrong_arrows(&[], LAYERS, &[], &known[..1]);
    assert!(stale[0].contains("delete this exception"), "{stale:?}");
}

#[test]
fn cycles_of_siblings_are_found_also_through_re_exports() {
    let folder = tempfile::tempdir().unwrap();
    let read = tree(
        folder.path(),
        &[
            ("lib.rs", "mod a;"),
            (
                "a/mod.rs",
                "mod one; mod two; mod three; mod four; pub use one::One; pub use two::Two;",
            ),
            ("a/one.rs", "use super::Two; pub struct One;"),
            ("a/two/mod.rs", "mod inner; pub struct Two;"),
            ("a/two/inner.rs", "fn f() { let _ = crate::a::One; }"),
            ("a/three.rs", "use super::{four::F, One};"),
            ("a/four.rs", "pub struct F;"),
        ],
    );
    let found = cycles(&read.arrows());
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].parent, "a");
    let places: Vec<&str> = found[0].uses.iter().map(|u| u.2.as_str()).collect();
    assert_eq!(places, ["src/a/one.rs:1", "src/a/two/inner.rs:1"]);
    let text = found[0].to_string();
    assert!(
        text.contains("one, two") && text.contains("a file of its own"),
        "{text}"
    );
}

#[test]
fn crates_in_the_wrong_hands_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let read = tree(
        folder.path(),
        &[
            ROOT,
            ("top.rs", "use clap::Args;\nuse std::fs;"),
            (
                "middle.rs",
                "fn f() { std::fs::read(a); std::mem::drop(b) }",
            ),
            ("bottom.rs", "use crate::top as clap; fn f() { clap::g() }"),
        ],
    );
    let owned = [
        Owned {
            item: "clap",
            owners: &["top"],
        },
        Owned {
            item: "std::fs",
            owners: &["top"],
        },
    ];
    let wrong = wrong_crates(&read.externals(), &owned, &[]);
    assert_eq!(
        wrong,
        ["src/middle.rs:1: middle uses std::fs::read; only top may use std::fs"]
    );
    assert!(wrong_crates(&read.externals(), &owned, &[("middle", "std::fs")]).is_empty());
    assert_eq!(wrong_crates(&[], &owned, &[("middle", "std::fs")]).len(), 1);
}

#[test]
fn imports_of_everything_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let read = tree(
        folder.path(),
        &[
            ROOT,
            ("top.rs", "use crate::middle::*;"),
            ("middle/mod.rs", "mod part; pub use part::*;"),
            ("middle/part.rs", "pub struct P;"),
            ("bottom.rs", "enum E { A } use E::*;"),
        ],
    );
    assert_eq!(read.globs(), ["src/top.rs:1"]);
}

#[test]
fn a_table_out_of_order_is_found() {
    assert!(wrong_table(LAYERS).is_empty());
    let upside_down = [
        Layer {
            module: "a",
            uses: &[],
        },
        Layer {
            module: "b",
            uses: &["a"],
        },
    ];
    assert_eq!(wrong_table(&upside_down).len(), 1);
}
