//! The shape of the crate: which module may use which. What a workspace of many packages would enforce,
//! this test enforces by reading the `use` lines and the `crate::…` paths of `src` (not those of test code).
//!
//! Three rules: an arrow from a module to another only points down in [`LAYERS`]; modules with the same parent
//! do not need each other, directly or by others (a parent and its children may); a crate in [`OWNED`] is used by
//! the modules that own it and by no others.

mod cycles;
mod layers;
mod made_up;
mod modules;
mod platforms;
mod tokens;

use cycles::Cycle;
use layers::{Exception, Layer, Owned, Secret};
use modules::Crate;
use std::collections::BTreeSet;

/// Each module and those that it may use, which stand below it. ARCHITECTURE.md says what each of them owns.
const LAYERS: &[Layer] = &[
    Layer {
        module: "cli",
        uses: &[
            "ros",
            "view",
            "selftest",
            "slam_builder",
            "weights",
            "source",
            "report",
            "slam",
            "map",
            "eval",
            "bag",
            "compute",
            "inference",
            "gpu",
            "network",
            "wire",
            "trajectory",
            "image",
            "config",
            "geometry",
            "time",
            "files",
        ],
    },
    Layer {
        module: "ros",
        uses: &[
            "view",
            "selftest",
            "slam_builder",
            "source",
            "slam",
            "map",
            "bag",
            "compute",
            "wire",
            "trajectory",
            "image",
            "config",
            "geometry",
            "time",
            "files",
            "newest",
        ],
    },
    Layer {
        module: "view",
        uses: &[
            "slam", "page", "map", "compute", "image", "geometry", "time", "files",
        ],
    },
    Layer {
        module: "selftest",
        uses: &[
            "slam_builder",
            "source",
            "slam",
            "map",
            "inference",
            "network",
            "image",
            "files",
        ],
    },
    Layer {
        module: "slam_builder",
        uses: &[
            "weights",
            "source",
            "report",
            "slam",
            "map",
            "eval",
            "compute",
            "inference",
            "gpu",
            "network",
            "trajectory",
            "image",
            "config",
            "geometry",
            "time",
            "files",
        ],
    },
    Layer {
        module: "source",
        uses: &[
            "bag",
            "wire",
            "trajectory",
            "image",
            "geometry",
            "time",
            "files",
            "newest",
        ],
    },
    Layer {
        module: "report",
        uses: &[
            "page",
            "map",
            "eval",
            "trajectory",
            "image",
            "geometry",
            "time",
            "files",
        ],
    },
    Layer {
        module: "page",
        uses: &["map", "geometry"],
    },
    Layer {
        module: "slam",
        uses: &[
            "map", "compute", "network", "image", "config", "geometry", "time", "files", "newest",
        ],
    },
    Layer {
        module: "map",
        uses: &[
            "compute",
            "inference",
            "trajectory",
            "image",
            "config",
            "geometry",
            "time",
            "files",
        ],
    },
    Layer {
        module: "eval",
        uses: &["trajectory", "geometry", "time"],
    },
    Layer {
        module: "bag",
        uses: &["wire", "time", "files"],
    },
    Layer {
        module: "compute",
        uses: &[
            "inference",
            "gpu",
            "network",
            "image",
            "config",
            "geometry",
            "time",
            "files",
        ],
    },
    Layer {
        module: "inference",
        uses: &["gpu", "network", "image", "files"],
    },
    Layer {
        module: "gpu",
        uses: &[],
    },
    Layer {
        module: "network",
        uses: &["files"],
    },
    Layer {
        module: "weights",
        uses: &["files"],
    },
    Layer {
        module: "wire",
        uses: &["time"],
    },
    Layer {
        module: "trajectory",
        uses: &["geometry", "time", "files"],
    },
    Layer {
        module: "image",
        uses: &["geometry"],
    },
    Layer {
        module: "config",
        uses: &[],
    },
    Layer {
        module: "geometry",
        uses: &[],
    },
    Layer {
        module: "time",
        uses: &[],
    },
    Layer {
        module: "files",
        uses: &[],
    },
    Layer {
        module: "newest",
        uses: &[],
    },
];

/// Imports that the layer order allows but the design does not.
const SECRETS: &[Secret] = &[
    Secret {
        from: "slam",
        hidden: "network::onnx",
        instead: "slam knows of the network only which weights a map belongs to",
    },
    Secret {
        from: "slam",
        hidden: "compute::cuda",
        instead: "slam drives compute::device::Device, whichever it is",
    },
    Secret {
        from: "slam",
        hidden: "compute::cpu",
        instead: "slam drives compute::device::Device, whichever it is; slam_builder chooses one",
    },
    Secret {
        from: "ros",
        hidden: "compute::cuda",
        instead: "the node comes in by slam_builder",
    },
    Secret {
        from: "compute",
        hidden: "config::Config",
        instead: "each part of compute takes the parameters that it needs",
    },
];

/// Crates that only some modules may use.
const OWNED: &[Owned] = &[
    Owned {
        item: "clap",
        owners: &["cli", "config"],
    },
    Owned {
        item: "indicatif",
        owners: &["cli"],
    },
    Owned {
        item: "ctrlc",
        owners: &["cli"],
    },
    Owned {
        item: "ureq",
        owners: &["weights"],
    },
    Owned {
        item: "rustls",
        owners: &["weights"],
    },
    Owned {
        item: "rustdds",
        owners: &["ros::dds"],
    },
    Owned {
        item: "socket2",
        owners: &["ros::dds"],
    },
    Owned {
        item: "r2r",
        owners: &["ros::r2r"],
    },
    Owned {
        item: "tokio",
        owners: &["ros", "view"],
    },
    Owned {
        item: "axum",
        owners: &["view"],
    },
    Owned {
        item: "http_body",
        owners: &["view"],
    },
    Owned {
        item: "prometheus_client",
        owners: &["view"],
    },
    Owned {
        item: "mcap",
        owners: &["bag"],
    },
    Owned {
        item: "rusqlite",
        owners: &["bag", "map::store"],
    },
    Owned {
        item: "zstd",
        owners: &["bag", "map::splat", "map::store"],
    },
    Owned {
        item: "byteorder",
        owners: &["wire"],
    },
    Owned {
        item: "cdr_encoding",
        owners: &["wire"],
    },
    Owned {
        item: "cudarc",
        owners: &["gpu"],
    },
    Owned {
        item: "ort",
        owners: &["inference::onnxruntime"],
    },
    Owned {
        item: "trtx",
        owners: &["inference::tensorrt"],
    },
    Owned {
        item: "libloading",
        owners: &["inference"],
    },
    Owned {
        item: "rten",
        owners: &["inference"],
    },
    Owned {
        item: "rten_tensor",
        owners: &["inference"],
    },
    Owned {
        item: "prost",
        owners: &["network"],
    },
    Owned {
        item: "memmap2",
        owners: &["network"],
    },
    Owned {
        item: "zip",
        owners: &["network"],
    },
    Owned {
        item: "serde_saphyr",
        owners: &["config", "source", "bag", "ros", "inference::tensorrt"],
    },
    Owned {
        item: "std::fs",
        owners: &[
            "cli",
            "slam_builder",
            "ros",
            "source",
            "report",
            "map",
            "bag",
            "compute",
            "inference",
            "network",
            "trajectory",
            "image",
            "config",
            "files",
            "eval",
            "selftest",
            "weights",
        ],
    },
    Owned {
        item: "std::net",
        owners: &["cli", "ros", "view"],
    },
    Owned {
        item: "std::process",
        owners: &["", "cli", "source", "map::store", "ros::node::service"],
    },
];

/// Arrows that are still wrong. Nothing is added here.
const WRONG_ARROWS: &[Exception] = &[];

/// Crates that are still in the wrong hands. Nothing is added here.
const WRONG_CRATES: &[Exception] = &[];

/// Cycles that are still there: a parent and the children that need each other. Nothing is added here.
const KNOWN_CYCLES: &[(&str, &[&str])] = &[];

fn this_crate() -> Crate {
    Crate::read(env!("CARGO_MANIFEST_DIR").as_ref())
}

fn assert_none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n{}\n", wrong.join("\n"));
}

#[test]
fn arrows_point_down() {
    assert_none(
        "the table of layers is out of order",
        &layers::wrong_table(LAYERS),
    );
    let read = this_crate();
    assert!(read.paths().count() > 100, "the modules were not found");
    let wrong = layers::wrong_arrows(&read.arrows(), LAYERS, SECRETS, WRONG_ARROWS);
    assert_none("wrong arrows", &wrong);
    assert_none(
        "imports of everything, which hide what is used",
        &read.globs(),
    );
}

#[test]
fn the_table_names_every_module() {
    let read = this_crate();
    let found: BTreeSet<&str> = read
        .paths()
        .filter(|p| p.len() == 1)
        .map(|p| p[0].as_str())
        .collect();
    let table: BTreeSet<&str> = LAYERS.iter().map(|l| l.module).collect();
    assert_eq!(found, table);
}

#[test]
fn modules_do_not_need_each_other() {
    let mut wrong = Vec::new();
    let mut needed = vec![false; KNOWN_CYCLES.len()];
    for cycle in cycles::cycles(&this_crate().arrows()) {
        match KNOWN_CYCLES
            .iter()
            .position(|known| is_known(&cycle, known))
        {
            Some(k) => needed[k] = true,
            None => wrong.push(cycle.to_string()),
        }
    }
    for ((parent, children), _) in KNOWN_CYCLES
        .iter()
        .zip(needed)
        .filter(|(_, needed)| !needed)
    {
        let children = children.join(", ");
        wrong.push(format!(
            "{parent}::{{{children}}} is no cycle any more: delete it from KNOWN_CYCLES"
        ));
    }
    assert_none("cycles", &wrong);
}

fn is_known(cycle: &Cycle, (parent, children): &(&str, &[&str])) -> bool {
    cycle.parent == *parent
        && cycle
            .children
            .iter()
            .all(|c| children.contains(&c.as_str()))
}

#[test]
fn crates_stay_where_they_belong() {
    let wrong = layers::wrong_crates(&this_crate().externals(), OWNED, WRONG_CRATES);
    assert_none("crates in the wrong hands", &wrong);
}
