//! Which module may use which, and which may use what crate.

use crate::modules::{Arrow, External};

/// A module of the top level.
pub struct Layer {
    pub module: &'static str,
    /// Modules of the top level that it may use.
    pub uses: &'static [&'static str],
}

/// A part of the crate that may not know another, although their layers would allow it.
pub struct Secret {
    /// Path of a module; its descendants are meant too.
    pub from: &'static str,
    /// Path of a module or an item; its descendants are meant too.
    pub hidden: &'static str,
    /// The recommended alternative.
    pub instead: &'static str,
}

/// A crate that only some modules may use.
pub struct Owned {
    /// The crate, or a path in it.
    pub item: &'static str,
    /// Paths of the modules that may use it.
    pub owners: &'static [&'static str],
}

/// A known fault: a module's use of something that its layer forbids. The list may only shrink.
pub type Exception = (&'static str, &'static str);

/// Violations of the layer order, one sentence each with its location. Unused exceptions count too.
pub fn wrong_arrows(
    arrows: &[Arrow],
    layers: &[Layer],
    secrets: &[Secret],
    exceptions: &[Exception],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for arrow in arrows {
        let from = arrow.from.join("::");
        let Some(fault) = fault(arrow, &from, layers, secrets) else {
            continue;
        };
        match exceptions
            .iter()
            .position(|(a, b)| is_in(&from, a) && is_in(&arrow.item, b))
        {
            Some(k) => used[k] = true,
            None => wrong.push(fault),
        }
    }
    for ((from, item), _) in exceptions.iter().zip(used).filter(|(_, used)| !used) {
        wrong.push(format!(
            "{from} no longer uses {item} where that is forbidden: delete this exception from the list in tests/architecture"
        ));
    }
    wrong
}

fn fault(arrow: &Arrow, from: &str, layers: &[Layer], secrets: &[Secret]) -> Option<String> {
    let Arrow { item, place, .. } = arrow;
    let to = arrow.to.join("::");
    let hidden =
        |s: &&Secret| is_in(from, s.from) && (is_in(item, s.hidden) || is_in(&to, s.hidden));
    if let Some(secret) = secrets.iter().find(hidden) {
        let Secret {
            from,
            hidden,
            instead,
        } = secret;
        return Some(format!(
            "{place}: {from} must not know {hidden} (it uses {item}); {instead}"
        ));
    }
    let (Some(a), Some(b)) = (arrow.from.first(), arrow.to.first()) else {
        return None;
    };
    if a == b {
        return None;
    }
    let at = |name: &str| layers.iter().position(|l| l.module == name);
    let (Some(upper), Some(lower)) = (at(a), at(b)) else {
        let unknown = if at(a).is_none() { a } else { b };
        return Some(format!(
            "{place}: the module {unknown} is not in the table of layers; add it to tests/architecture/main.rs and to ARCHITECTURE.md"
        ));
    };
    if layers[upper].uses.contains(&b.as_str()) {
        return None;
    }
    Some(if upper > lower {
        format!(
            "{place}: {a} uses {item}, but {b} stands above {a}; move what {a} needs down to a module that both may use, or pass it in"
        )
    } else {
        format!(
            "{place}: {a} uses {item}, but the table of layers does not let {a} use {b}; it may use {}",
            layers[upper].uses.join(", ")
        )
    })
}

/// Errors in the table itself: a row that refers to a higher layer, or to an unknown one.
pub fn wrong_table(layers: &[Layer]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (k, layer) in layers.iter().enumerate() {
        for used in layer.uses {
            if !layers[k + 1..].iter().any(|l| l.module == *used) {
                wrong.push(format!(
                    "the row of {} names {used}, which is not below it",
                    layer.module
                ));
            }
        }
    }
    wrong
}

/// Uses of crates by modules that do not own them, a sentence each.
pub fn wrong_crates(
    externals: &[External],
    owned: &[Owned],
    exceptions: &[Exception],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut used = vec![false; exceptions.len()];
    for External { from, item, place } in externals {
        let from = from.join("::");
        let Some(rule) = owned.iter().find(|o| is_in(item, o.item)) else {
            continue;
        };
        if rule.owners.iter().any(|owner| is_in(&from, owner)) {
            continue;
        }
        match exceptions
            .iter()
            .position(|(a, b)| is_in(&from, a) && is_in(item, b))
        {
            Some(k) => used[k] = true,
            None => wrong.push(format!(
                "{place}: {from} uses {item}; only {} may use {}",
                rule.owners.join(", "),
                rule.item
            )),
        }
    }
    for ((from, item), _) in exceptions.iter().zip(used).filter(|(_, used)| !used) {
        wrong.push(format!(
            "{from} no longer uses {item}: delete this exception from the list in tests/architecture"
        ));
    }
    wrong
}

/// Whether `path` is `prefix` or something in it.
fn is_in(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
