//! Formats the plan as a table.

use super::{Group, MemoryPlan, Place, Request};
use std::fmt;

/// Formats bytes for display: `4.92 MB`, in powers of 1000.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        // A value that would be printed as 1000.00 uses the next unit.
        if value < 999.995 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    format!("{value:.2} {unit}")
}

/// One line per buffer, by group, with totals of each group and each kind of memory.
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
            if sum(Place::Pinned) > 0 {
                write!(f, ", pinned {}", human(sum(Place::Pinned)))?;
            }
            if sum(Place::Elsewhere) > 0 {
                write!(f, ", elsewhere {}", human(sum(Place::Elsewhere)))?;
            }
            writeln!(f)?;
            for row in rows {
                let place = match row.place {
                    Place::Device => "",
                    Place::Pinned => "  pinned",
                    Place::Elsewhere => "  elsewhere",
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
        write!(f, "device memory: {}", human(self.device_bytes()))?;
        match self.elsewhere_bytes() {
            0 => writeln!(f)?,
            bytes => writeln!(f, ", and {} elsewhere", human(bytes))?,
        }
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
        let (tracking, device) = (Group::Tracking, Place::Device);
        plan.note::<f32>(tracking, "matching.rays".into(), device, &[384, 512, 12]);
        plan.note::<u8>(tracking, "matching.counts".into(), Place::Pinned, &[32]);
        let (keyframes, network) = (Group::Keyframes, Group::Network);
        plan.note::<u8>(keyframes, "slots.bulk".into(), device, &[2, 4_915_200]);
        plan.note::<u8>(network, "weights".into(), Place::Elsewhere, &[5000]);
        let text = plan.to_string();
        for line in [
            "tracking: 9.44 MB, pinned 32 B",
            "  matching.rays    384 × 512 × 12  f32     9.44 MB",
            "  matching.counts              32  u8         32 B  pinned",
            "keyframes: 9.83 MB",
            "  slots.bulk          2 × 4915200  u8      9.83 MB",
            "network: 0 B, elsewhere 5.00 kB",
            "  weights                    5000  u8      5.00 kB  elsewhere",
            "device memory: 19.27 MB, and 5.00 kB elsewhere",
            "pinned host memory: 32 B",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line:?} is not in\n{text}"
            );
        }
    }
}
