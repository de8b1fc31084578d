//! The plan as a table.

use super::{Group, MemoryPlan, Place, Request};
use std::fmt;

/// Bytes for people: `4.92 MB`, powers of 1000.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        // What would be printed as 1000.00 belongs to the next unit.
        if value < 999.995 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    format!("{value:.2} {unit}")
}

/// One line a buffer, by group, with the sums of each group and of each kind of memory.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = |r: &Request| {
            let dimensions: Vec<String> = r.shape.iter().map(ToString::to_string).collect();
            dimensions.join(" × ")
        };
        let width = |of: &dyn Fn(&Request) -> usize| self.requests.iter().map(of).max();
        let names = width(&|r| r.name.chars().count()).unwrap_or(0);
        let shapes = width(&|r| shape(r).chars().count()).unwrap_or(0);
        let elements = width(&|r| r.element.chars().count()).unwrap_or(0);
        for group in Group::ALL {
            let rows: Vec<&Request> = self.requests.iter().filter(|r| r.group == group).collect();
            if rows.is_empty() {
                continue;
            }
            let sum = |place| {
                let of_place = rows.iter().filter(|r| r.place == place);
                of_place.fold(0, |sum: u64, r| sum.saturating_add(r.bytes))
            };
            write!(f, "{}: {}", group.name(), human(sum(Place::Device)))?;
            if sum(Place::Scratch) > 0 {
                let (shared, sum) = (self.scratch_bytes(group), sum(Place::Scratch));
                write!(f, ", scratch {} for {}", human(shared), human(sum))?;
            }
            if sum(Place::Pinned) > 0 {
                write!(f, ", pinned {}", human(sum(Place::Pinned)))?;
            }
            writeln!(f)?;
            for row in rows {
                let place = match row.place {
                    Place::Device => "",
                    Place::Scratch => "  scratch",
                    Place::Pinned => "  pinned",
                };
                writeln!(
                    f,
                    "  {:names$}  {:>shapes$}  {:elements$}  {:>10}{place}",
                    row.name,
                    shape(row),
                    row.element,
                    human(row.bytes),
                )?;
            }
        }
        writeln!(f, "device memory: {}", human(self.device_bytes()))?;
        write!(f, "pinned host memory: {}", human(self.pinned_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_to_the_right_unit() {
        let all = [
            0,
            999,
            1000,
            999_994,
            999_995,
            4_915_200,
            5_200_000_000,
            u64::MAX,
        ];
        assert_eq!(
            all.map(human),
            [
                "0 B",
                "999 B",
                "1.00 kB",
                "999.99 kB",
                "1.00 MB",
                "4.92 MB",
                "5.20 GB",
                "18446.74 PB"
            ]
        );
    }

    #[test]
    fn a_plan_prints_every_buffer_and_the_sums() {
        let mut plan = MemoryPlan::new();
        let mut part = plan.part(Group::Tracking, "matching");
        part.device::<f32>("rays", &[384, 512, 12]);
        part.pinned::<u8>("counts", &[32]);
        part.stage("refine").scratch::<f32>("padded", &[100]);
        plan.part(Group::Keyframes, "slots")
            .device::<u8>("bulk", &[2, 4_915_200]);
        let text = plan.to_string();
        for line in [
            "tracking: 9.44 MB, scratch 400 B for 400 B, pinned 32 B",
            "  matching.rays           384 × 512 × 12  f32     9.44 MB",
            "  matching.counts                     32  u8         32 B  pinned",
            "  matching.refine.padded             100  f32       400 B  scratch",
            "keyframes: 9.83 MB",
            "  slots.bulk                 2 × 4915200  u8      9.83 MB",
            "device memory: 19.27 MB",
            "pinned host memory: 32 B",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line:?} is not in\n{text}"
            );
        }
    }
}
