//! The modules of a crate and what each of them uses, read from its source.

use crate::tokens::{Token, after_group, production};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One module's use of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Path of the module that uses: `["slam", "mapper"]`.
    pub from: Vec<String>,
    /// Path of the module that declares what is used, re-exports followed.
    pub to: Vec<String>,
    /// The imported path, made absolute: `config::Config`.
    pub item: String,
    /// `src/slam/mapper.rs:12`, for messages.
    pub place: String,
}

/// One module's use of another crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct External {
    /// Path of the module that uses it.
    pub from: Vec<String>,
    /// The imported path: `std::fs::File`.
    pub item: String,
    /// For messages.
    pub place: String,
}

/// The contents of a module.
#[derive(Debug, Default)]
struct Module {
    /// Relative to the crate's folder.
    file: PathBuf,
    /// The bindings of `use`: a name and its path.
    bindings: BTreeMap<String, Vec<String>>,
    /// Modules of which everything is imported.
    globs: Vec<(Vec<String>, usize)>,
    /// Names that the module declares itself.
    items: BTreeSet<String>,
    /// Paths within the crate that it uses, with their lines.
    paths: Vec<(Vec<String>, usize)>,
    /// Paths in other crates, with the lines.
    externals: Vec<(Vec<String>, usize)>,
}

/// All modules by their paths; the root has an empty one.
#[derive(Debug, Default)]
pub struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

/// Re-exports of re-exports that are followed.
const MAX_HOPS: usize = 16;

impl Crate {
    /// Reads `src/lib.rs` in `folder` and every module that it declares, directly or not.
    pub fn read(folder: &Path) -> Self {
        let mut all = Self::default();
        let root = folder.join("src");
        all.read_file(folder, &root.join("lib.rs"), &root, Vec::new());
        all.resolve_relative_uses();
        all
    }

    /// Paths of all modules.
    pub fn paths(&self) -> impl Iterator<Item = &Vec<String>> {
        self.modules.keys()
    }

    fn read_file(&mut self, base: &Path, file: &Path, children: &Path, path: Vec<String>) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let shown = file.strip_prefix(base).unwrap_or(file).to_owned();
        let mut found = Vec::new();
        Reader {
            tokens: &production(&text),
            file: &shown,
            all: self,
            declared: &mut found,
        }
        .module(0, path.clone());
        for (inline, name) in found {
            let folder = inline[path.len()..]
                .iter()
                .fold(children.to_owned(), |f, n| f.join(n));
            let child: Vec<String> = inline.iter().cloned().chain([name.clone()]).collect();
            let flat = folder.join(format!("{name}.rs"));
            let nested = folder.join(&name).join("mod.rs");
            let file = if flat.exists() { flat } else { nested };
            self.read_file(base, &file, &folder.join(&name), child);
        }
    }

    /// `use child::Item` stands for `crate::…::child::Item`; other first segments are other crates.
    fn resolve_relative_uses(&mut self) {
        let known: BTreeSet<Vec<String>> = self.modules.keys().cloned().collect();
        for (path, module) in &mut self.modules {
            let child = |name: &String| {
                let child: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
                known.contains(&child).then_some(child)
            };
            let bound = module.bindings.clone();
            let absolute = |target: &[String]| -> Option<Vec<String>> {
                let (first, rest) = target.split_first()?;
                if first == "crate" {
                    return Some(target.to_vec());
                }
                let base = match child(first) {
                    Some(child) => std::iter::once("crate".to_owned()).chain(child).collect(),
                    None => bound
                        .get(first)
                        .filter(|b| b.first().is_some_and(|f| f == "crate"))?
                        .clone(),
                };
                Some(base.into_iter().chain(rest.iter().cloned()).collect())
            };
            let mut externals = Vec::new();
            module.paths = std::mem::take(&mut module.paths)
                .into_iter()
                .filter_map(|(target, line)| match absolute(&target) {
                    Some(absolute) => Some((absolute, line)),
                    None => {
                        externals.push((target, line));
                        None
                    }
                })
                .collect();
            let foreign = |(target, _): &(Vec<String>, usize)| {
                target
                    .first()
                    .is_some_and(|name| child(name).is_none() && !bound.contains_key(name))
            };
            let inline = std::mem::take(&mut module.externals)
                .into_iter()
                .filter(foreign);
            module.externals = externals.into_iter().chain(inline).collect();
            for target in module.bindings.values_mut() {
                if let Some(found) = absolute(target) {
                    *target = found;
                }
            }
            for (target, _) in &mut module.globs {
                if let Some(found) = absolute(target) {
                    *target = found;
                }
            }
        }
    }

    /// Path of the module that declares what `target` (`crate::…`) names; re-exports are followed.
    fn declaring(&self, target: &[String], hops: usize) -> Vec<String> {
        let mut at: Vec<String> = Vec::new();
        for (k, name) in target.iter().enumerate().skip(1) {
            at.push(name.clone());
            if self.modules.contains_key(&at) {
                continue;
            }
            at.pop();
            let Some(module) = self.modules.get(&at) else {
                break;
            };
            if hops == 0 || module.items.contains(name) && !module.bindings.contains_key(name) {
                break;
            }
            let rest = &target[k + 1..];
            let bound = module
                .bindings
                .get(name)
                .filter(|b| b[0] == "crate" && b[..] != target[..=k]);
            if let Some(bound) = bound {
                let next: Vec<String> = bound.iter().chain(rest).cloned().collect();
                return self.declaring(&next, hops - 1);
            }
            for (glob, _) in module.globs.iter().filter(|(g, _)| g[0] == "crate") {
                let source = self.declaring(glob, hops - 1);
                let declares = self
                    .modules
                    .get(&source)
                    .is_some_and(|m| m.items.contains(name));
                if declares {
                    return source;
                }
            }
            break;
        }
        at
    }

    /// Every use of one module by another, sorted, each place once.
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut out = BTreeSet::new();
        for (from, module) in &self.modules {
            for (target, line) in &module.paths {
                let to = self.declaring(target, MAX_HOPS);
                if to != *from {
                    out.insert(Arrow {
                        from: from.clone(),
                        to,
                        item: target[1..].join("::"),
                        place: place(&module.file, *line),
                    });
                }
            }
        }
        out.into_iter().collect()
    }

    /// Every use of another crate.
    pub fn externals(&self) -> Vec<External> {
        let all = self.modules.iter().flat_map(|(path, module)| {
            let used = module.externals.iter();
            used.map(|(item, line)| External {
                from: path.clone(),
                item: item.join("::"),
                place: place(&module.file, *line),
            })
        });
        let sorted: BTreeSet<External> = all.collect();
        sorted.into_iter().collect()
    }

    /// Glob imports from another module, which hide what is used. `pub use` of a child does not count.
    pub fn globs(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (path, module) in &self.modules {
            for (target, line) in module.globs.iter().filter(|(t, _)| t[0] == "crate") {
                if !target[1..].starts_with(path) || target.len() == path.len() + 1 {
                    out.push(place(&module.file, *line));
                }
            }
        }
        out
    }
}

fn place(file: &Path, line: usize) -> String {
    format!("{}:{line}", file.display()).replace('\\', "/")
}

/// Reads one file's tokens into the modules of a crate.
struct Reader<'a> {
    tokens: &'a [Token],
    file: &'a Path,
    all: &'a mut Crate,
    /// `mod name;`: the module that says so, and the name.
    declared: &'a mut Vec<(Vec<String>, String)>,
}

impl Reader<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |t| t.text.as_str())
    }

    /// Reads from `at` to the end of the file or the brace that closes the module; returns the index after.
    fn module(&mut self, at: usize, path: Vec<String>) -> usize {
        let mut module = Module {
            file: self.file.to_owned(),
            ..Module::default()
        };
        let (mut k, mut depth) = (at, 0usize);
        while k < self.tokens.len() {
            let line = self.tokens[k].line;
            match self.text(k) {
                "{" => depth += 1,
                "}" if depth == 0 => {
                    k += 1;
                    break;
                }
                "}" => depth -= 1,
                // `impl Trait + use<'_>` imports nothing.
                "use" if self.text(k + 1) != "<" => {
                    let end = self.statement_end(k);
                    self.use_tree(k + 1, end, &path, Vec::new(), &mut module);
                    k = end;
                }
                "mod" if self.text(k + 2) == ";" => {
                    self.declared
                        .push((path.clone(), self.text(k + 1).to_owned()));
                    k += 2;
                }
                "mod" if self.text(k + 2) == "{" => {
                    let child: Vec<String> = path
                        .iter()
                        .cloned()
                        .chain([self.text(k + 1).to_owned()])
                        .collect();
                    k = self.module(k + 3, child);
                    continue;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" => {
                    module.items.insert(self.text(k + 1).to_owned());
                }
                "crate" | "super" | "self" if self.text(k + 1) == "::" && !self.follows_path(k) => {
                    let (target, end) = self.inline_path(k, &path);
                    module.paths.push((target, line));
                    k = end;
                    continue;
                }
                name if self.text(k + 1) == "::" && !self.follows_path(k) && is_name(name) => {
                    let (target, end) = self.inline_path(k, &path);
                    module.externals.push((target, line));
                    k = end;
                    continue;
                }
                _ => {}
            }
            k += 1;
        }
        self.all.modules.insert(path, module);
        k
    }

    fn follows_path(&self, at: usize) -> bool {
        at > 0 && self.text(at - 1) == "::"
    }

    fn statement_end(&self, from: usize) -> usize {
        let mut k = from;
        while k < self.tokens.len() && self.text(k) != ";" {
            k += 1;
        }
        k
    }

    /// `a::b::{c, d as e, f::*}` in `start..end` after the segments `prefix`.
    fn use_tree(
        &self,
        start: usize,
        end: usize,
        path: &[String],
        prefix: Vec<String>,
        module: &mut Module,
    ) {
        let mut segments = prefix;
        let mut k = start;
        let line = self.tokens.get(start).map_or(0, |t| t.line);
        while k < end {
            match self.text(k) {
                "::" => {}
                "{" => {
                    let close = after_group(self.tokens, k) - 1;
                    let mut from = k + 1;
                    while from < close {
                        let to = self.next_comma(from, close);
                        self.use_tree(from, to, path, segments.clone(), module);
                        from = to + 1;
                    }
                    return;
                }
                "*" => {
                    let target = absolute(segments, path);
                    module.paths.push((target.clone(), line));
                    module.globs.push((target, line));
                    return;
                }
                "as" => {
                    let target = absolute(segments, path);
                    module
                        .bindings
                        .insert(self.text(k + 1).to_owned(), target.clone());
                    module.paths.push((target, line));
                    return;
                }
                "self" if !segments.is_empty() => {}
                name => segments.push(name.to_owned()),
            }
            k += 1;
        }
        let target = absolute(segments, path);
        if let Some(name) = target.last().cloned() {
            // `use rayon;` binds nothing new: the crate keeps its own name.
            if target.len() > 1 {
                module.bindings.insert(name, target.clone());
            }
            module.paths.push((target, line));
        }
    }

    fn next_comma(&self, from: usize, end: usize) -> usize {
        let mut k = from;
        while k < end && self.text(k) != "," {
            k = if self.text(k) == "{" {
                after_group(self.tokens, k)
            } else {
                k + 1
            };
        }
        k.min(end)
    }

    /// The absolute path that begins at `at`, and the index after it.
    fn inline_path(&self, at: usize, path: &[String]) -> (Vec<String>, usize) {
        let mut segments = vec![self.text(at).to_owned()];
        let mut k = at + 1;
        while self.text(k) == "::"
            && self
                .text(k + 1)
                .starts_with(|c: char| c.is_alphabetic() || c == '_')
        {
            segments.push(self.text(k + 1).to_owned());
            k += 2;
        }
        (absolute(segments, path), k)
    }
}

/// Whether `name` may be a crate's: types and generics begin with a capital letter.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Segments with `self` and `super` replaced, seen from the module `path`; others as they are.
fn absolute(segments: Vec<String>, path: &[String]) -> Vec<String> {
    let mut base = path.to_vec();
    let mut rest = &segments[..];
    match rest.first().map(String::as_str) {
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while rest.first().is_some_and(|s| s == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        _ => return segments,
    }
    std::iter::once("crate".to_owned())
        .chain(base)
        .chain(rest.iter().cloned())
        .collect()
}
