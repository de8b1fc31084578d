//! Known overlaps of keyframes that no edge joins any more.

use rustc_hash::FxHashMap;

/// Smaller overlaps are not kept, which bounds their number: a keyframe shares this much only with keyframes beside it.
const MIN_FRACTION: f32 = 0.1;

/// Match fractions of pairs of keyframes, as far as they are known. Each pair is there at most once, with the smaller id
/// first.
#[derive(Debug, Default)]
pub struct Overlaps {
    of: FxHashMap<(u32, u32), f32>,
}

impl Overlaps {
    /// Notes that keyframes `a` and `b` share this fraction of their pixels.
    pub fn note(&mut self, a: u32, b: u32, fraction: f32) {
        if a != b && fraction >= MIN_FRACTION {
            let known = self.of.entry((a.min(b), a.max(b))).or_default();
            *known = known.max(fraction);
        }
    }

    /// Forgets keyframe `id`, whose edges share these fractions with others. Two keyframes that share the fractions `f`
    /// and `g` of its pixels with it share `f·g` of them with each other, if what each shares is spread evenly over its
    /// image.
    pub fn remove(&mut self, id: u32, edges: impl IntoIterator<Item = (u32, f32)>) {
        let mut shared = Vec::from_iter(edges);
        self.of.retain(|&(a, b), fraction| {
            let other = match id {
                i if i == a => b,
                i if i == b => a,
                _ => return true,
            };
            shared.push((other, *fraction));
            false
        });
        for (n, (a, f)) in shared.iter().enumerate() {
            for (b, g) in &shared[n + 1..] {
                self.note(*a, *b, f * g);
            }
        }
    }

    /// The pairs, with their fractions.
    pub fn pairs(&self) -> impl Iterator<Item = ((u32, u32), f32)> {
        self.of.iter().map(|(pair, fraction)| (*pair, *fraction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn sorted(overlaps: &Overlaps) -> Vec<((u32, u32), f32)> {
        let mut pairs: Vec<_> = overlaps.pairs().collect();
        pairs.sort_by_key(|(pair, _)| *pair);
        pairs
    }

    #[test]
    fn what_a_removed_keyframe_shared_with_two_others_they_share() {
        let mut overlaps = Overlaps::default();
        overlaps.note(7, 3, 0.75);
        overlaps.note(7, 7, 1.0);
        overlaps.note(1, 2, 0.05);
        // 9 shares too little.
        overlaps.remove(7, [(5, 0.5), (9, 0.125)]);
        assert_eq!(sorted(&overlaps), [((3, 5), 0.375)]);
        overlaps.note(5, 3, 0.25);
        assert_eq!(
            sorted(&overlaps),
            [((3, 5), 0.375)],
            "the larger one counts"
        );
        overlaps.remove(3, []);
        assert_eq!(sorted(&overlaps), []);
    }
}
