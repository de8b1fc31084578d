//! What only one operating system has stays in the files that say so: `src` is otherwise the same program on Linux,
//! Windows and ARM.

use std::fs;
use std::path::Path;

/// Something that is not portable.
pub struct Rule {
    /// Completes "FILE:LINE has …".
    pub what: &'static str,
    /// Whether a line of production code, without comments, has it.
    pub found: fn(&str) -> bool,
    /// Files that may have it, as they do something else or nothing on other systems.
    pub allowed: &'static [&'static str],
}

pub const RULES: &[Rule] = &[
    Rule {
        what: "a path of Linux",
        found: |line| {
            let folders = ["proc", "sys", "dev", "tmp", "usr", "etc", "var", "run"];
            folders.iter().any(|folder| {
                line.contains(&format!("\"/{folder}/")) || line.contains(&format!("\"/{folder}\""))
            })
        },
        allowed: &["src/ros/buffers.rs", "src/files/memory.rs"],
    },
    Rule {
        what: "an interface of one operating system",
        found: |line| {
            let interfaces = [
                "std::os::",
                "rustix::",
                "windows_sys::",
                "libc::",
                "fork(",
                "symlink(",
                "set_permissions(",
            ];
            interfaces.iter().any(|name| line.contains(name))
        },
        allowed: &[
            "src/compute/store/file.rs",
            "src/files/at.rs",
            "src/files/memory.rs",
            "src/files/mod.rs",
            "src/files/space.rs",
            "src/map/saved/read.rs",
            "src/map/store/file.rs",
            "src/map/store/lock.rs",
            "src/ros/node/service/notify.rs",
            "src/ros/priority.rs",
            "src/slam_builder/splat/priority.rs",
        ],
    },
    Rule {
        what: "an integer of C whose size differs between systems",
        found: |line| {
            ["c_long", "c_ulong", "size_t", "wchar_t"]
                .iter()
                .any(|name| has_word(line, name))
        },
        allowed: &[],
    },
    Rule {
        what: "bytes in the order of this machine",
        found: |line| line.contains("_ne_bytes"),
        // Decoded images in memory.
        allowed: &["src/image/depth/decode.rs"],
    },
    Rule {
        what: "a number in a file whose size differs between machines",
        found: |line| {
            let of = [
                "usize::from_",
                "isize::from_",
                "size_of::<usize>",
                "len().to_le_bytes",
                "len().to_be_bytes",
            ];
            of.iter().any(|text| {
                line.contains(text) && !line.contains("from_str") && !line.contains("::from_fn")
            })
        },
        allowed: &[],
    },
    Rule {
        what: "a home folder other than that of `files::home`",
        found: |line| line.contains("\"HOME\"") || line.contains("\"USERPROFILE\""),
        allowed: &["src/files/mod.rs"],
    },
    Rule {
        what: "a file name with `:`, which Windows refuses",
        found: |line| {
            let makers = [".join(", ".with_file_name(", ".with_extension("];
            makers.iter().any(|maker| {
                let after = line.split(maker).skip(1);
                after
                    .filter_map(literal)
                    .any(|name| plain(&name).contains(':'))
            })
        },
        allowed: &[],
    },
];

/// The places in `src` of `folder` that break `rules`, a sentence each, and files that are allowed something which they
/// do not have.
pub fn wrong_places(folder: &Path, rules: &[Rule]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut used: Vec<(usize, String)> = Vec::new();
    let mut waiting = vec![folder.join("src")];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder of sources");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let shown = path.strip_prefix(folder).unwrap_or(&path);
        let shown = shown.to_string_lossy().replace('\\', "/");
        if !shown.ends_with(".rs") || shown.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        for (number, line) in production(&text) {
            for (at, rule) in rules
                .iter()
                .enumerate()
                .filter(|(_, rule)| (rule.found)(line))
            {
                match rule.allowed.contains(&shown.as_str()) {
                    true => used.push((at, shown.clone())),
                    false => wrong.push(format!(
                        "{shown}:{number} has {}: {}",
                        rule.what,
                        line.trim()
                    )),
                }
            }
        }
    }
    for (at, rule) in rules.iter().enumerate() {
        let unused = rule
            .allowed
            .iter()
            .filter(|file| !used.contains(&(at, (**file).to_owned())));
        wrong.extend(unused.map(|file| format!("{file} may have {}, but does not", rule.what)));
    }
    wrong.sort();
    wrong
}

/// Lines with their numbers, without comments and without the modules of tests.
fn production(text: &str) -> Vec<(usize, &str)> {
    let (mut kept, mut of_tests, mut announced) = (Vec::new(), false, false);
    for (at, line) in text.lines().enumerate() {
        if of_tests {
            of_tests = line != "}";
        } else if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            announced = true;
        } else if announced && line.starts_with("mod ") && line.ends_with('{') {
            (of_tests, announced) = (true, false);
        } else {
            announced = announced && line.starts_with("#[");
            kept.push((at + 1, without_comment(line)));
        }
    }
    kept
}

fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    // After a character that is not part of `https://`.
    line.split(" // ").next().unwrap_or_default()
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|part| part == word)
}

/// The string literal that `code` begins with, if it does, also as the first argument of `format!`.
fn literal(code: &str) -> Option<String> {
    let code = code.trim_start_matches('&').trim_start_matches("format!(");
    let inside = code.strip_prefix('"')?;
    inside.split('"').next().map(str::to_owned)
}

/// A format string without its `{}`.
fn plain(format: &str) -> String {
    let mut depth = 0;
    let outside = format.chars().filter(|c| match c {
        '{' => {
            depth += 1;
            false
        }
        '}' => {
            depth -= 1;
            false
        }
        _ => depth == 0,
    });
    outside.collect()
}

#[test]
fn portable_code_is_free_of_what_one_system_has() {
    let wrong = wrong_places(Path::new(env!("CARGO_MANIFEST_DIR")), RULES);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_rule_finds_what_it_is_for_and_nothing_in_comments_and_tests() {
    let none = |rule: &Rule| Rule {
        allowed: &[],
        ..*rule
    };
    let rules: Vec<Rule> = RULES.iter().map(none).collect();
    for (at, offence) in [
        "let status = read(\"/proc/self/status\");",
        "std::os::unix::fs::symlink(a, b);",
        "fn f(x: std::ffi::c_long) {}",
        "let x = u16::from_ne_bytes(b);",
        "out.write_all(&points.len().to_le_bytes())?;",
        "let home = var_os(\"HOME\");",
        "folder.join(format!(\"frame-{hour:02}:{minute}.png\"))",
    ]
    .into_iter()
    .enumerate()
    {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("src")).expect("a folder");
        let file = folder.path().join("src/lib.rs");
        let commented = format!("// {offence}\nfn g() {{}} // {offence}\n");
        let tested = format!("#[cfg(test)]\nmod tests {{\n    {offence}\n}}\n");
        fs::write(&file, commented + &tested).expect("a file");
        let wrong = wrong_places(folder.path(), &rules);
        assert!(wrong.is_empty(), "{wrong:?}");
        fs::write(&file, format!("fn f() {{\n    {offence}\n}}\n")).expect("a file");
        let wrong = wrong_places(folder.path(), &rules);
        let expected = format!("src/lib.rs:2 has {}: {offence}", RULES[at].what);
        assert_eq!(wrong, [expected]);
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("src")).expect("a folder");
    fs::write(
        folder.path().join("src/lib.rs"),
        "dir.join(format!(\"{k:02}.png\"))",
    )
    .expect("a file");
    assert!(wrong_places(folder.path(), &rules).is_empty());
    assert!(
        !wrong_places(folder.path(), RULES).is_empty(),
        "allowances without use"
    );
}
