//! Modules with the same parent that need each other, directly or by others.

use crate::modules::Arrow;
use std::collections::{BTreeMap, BTreeSet};

/// A use between two children of one module (their descendants count as they themselves).
type Level<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Arrow>>;

/// Children of one module that form cycles.
#[derive(Debug, PartialEq, Eq)]
pub struct Cycle {
    /// Path of the parent, `slam` or `compute::cuda`; empty for the top level.
    pub parent: String,
    /// Names of the children in the cycle.
    pub children: BTreeSet<String>,
    /// Every use among them: from, to, where.
    pub uses: Vec<(String, String, String)>,
}

impl std::fmt::Display for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parent = if self.parent.is_empty() {
            "the crate"
        } else {
            &self.parent
        };
        let names: Vec<&str> = self.children.iter().map(String::as_str).collect();
        writeln!(
            f,
            "modules of {parent} that need each other: {}",
            names.join(", ")
        )?;
        for (from, to, place) in &self.uses {
            writeln!(f, "    {place}: {from} uses {to}")?;
        }
        write!(
            f,
            "  Move what both need (an error type, a constant, a small struct) into a file of its own that uses neither."
        )
    }
}

/// All cycles, from the top level down. An arrow counts at the level where its ends part, so a parent and
/// its children may use each other.
pub fn cycles(arrows: &[Arrow]) -> Vec<Cycle> {
    let mut levels: BTreeMap<String, Level> = BTreeMap::new();
    for arrow in arrows {
        let same = arrow
            .from
            .iter()
            .zip(&arrow.to)
            .take_while(|(a, b)| a == b)
            .count();
        if let (Some(from), Some(to)) = (arrow.from.get(same), arrow.to.get(same)) {
            let level = levels.entry(arrow.from[..same].join("::")).or_default();
            level.entry((from, to)).or_default().push(arrow);
        }
    }
    levels
        .iter()
        .flat_map(|(parent, level)| in_level(parent, level))
        .collect()
}

fn in_level(parent: &str, level: &Level) -> Vec<Cycle> {
    let reach = |start: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            for (_, to) in level.keys().filter(|(from, _)| *from == at) {
                if seen.insert(*to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let names: BTreeSet<&str> = level.keys().flat_map(|(a, b)| [*a, *b]).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = names.iter().map(|n| (*n, reach(n))).collect();
    let mut found = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for name in &names {
        if done.contains(name) || !reached[name].contains(name) {
            continue;
        }
        let both_ways =
            |other: &&&str| reached[name].contains(**other) && reached[**other].contains(name);
        let members: BTreeSet<&str> = names.iter().filter(both_ways).copied().collect();
        let inside = level
            .iter()
            .filter(|((a, b), _)| members.contains(a) && members.contains(b));
        let uses = inside.flat_map(|((a, b), arrows)| {
            arrows
                .iter()
                .map(|arrow| (a.to_string(), b.to_string(), arrow.place.clone()))
        });
        found.push(Cycle {
            parent: parent.to_owned(),
            children: members.iter().map(|m| m.to_string()).collect(),
            uses: uses.collect(),
        });
        done.extend(members);
    }
    found
}
