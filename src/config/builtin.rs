//! The files of `config/`, compiled in, so that the program works from any folder.

/// Name and text of every file of `config/`.
const FILES: [(&str, &str); 8] = [
    ("base.yaml", include_str!("../../config/base.yaml")),
    ("calib.yaml", include_str!("../../config/calib.yaml")),
    (
        "eval_calib.yaml",
        include_str!("../../config/eval_calib.yaml"),
    ),
    (
        "eval_no_calib.yaml",
        include_str!("../../config/eval_no_calib.yaml"),
    ),
    ("eth3d.yaml", include_str!("../../config/eth3d.yaml")),
    ("mini.yaml", include_str!("../../config/mini.yaml")),
    ("mini_512.yaml", include_str!("../../config/mini_512.yaml")),
    (
        "mini_512_calib.yaml",
        include_str!("../../config/mini_512_calib.yaml"),
    ),
];

/// The text of a built-in configuration, with or without `.yaml` in its name.
pub fn builtin(name: &str) -> Option<&'static str> {
    builtin_entry(name).map(|(_, text)| text)
}

/// Names of the built-in configurations.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Full name and text.
pub(super) fn builtin_entry(name: &str) -> Option<(&'static str, &'static str)> {
    FILES
        .iter()
        .find(|(full, _)| *full == name || full.strip_suffix(".yaml") == Some(name))
        .copied()
}
