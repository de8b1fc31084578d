//! Advice on what to lower if a plan does not fit.

use super::human;
use std::fmt;

/// A parameter that can be lowered, and the resulting saving.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Saving {
    /// Name of the parameter in the configuration.
    pub parameter: &'static str,
    /// Current value.
    pub from: String,
    /// Lower value.
    pub to: String,
    /// Device memory saved, in bytes.
    pub saves: u64,
}

/// The configuration requires more device memory than available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoesNotFit {
    pub needed: u64,
    pub available: u64,
    pub savings: Vec<Saving>,
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, available) = (human(self.needed), human(self.available));
        write!(
            f,
            "the memory plan needs {needed} of GPU memory, {available} are available; lower"
        )?;
        for (k, saving) in self.savings.iter().enumerate() {
            let Saving {
                parameter,
                from,
                to,
                saves,
            } = saving;
            let comma = if k == 0 { "" } else { "," };
            write!(
                f,
                "{comma} {parameter} from {from} to {to} (saves {})",
                human(*saves)
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for DoesNotFit {}

/// A parameter of `C` that can be lowered.
pub struct Knob<C> {
    /// Name in the configuration.
    pub parameter: &'static str,
    /// Formats its value.
    pub value: fn(&C) -> String,
    /// Lowers it; returns false at its minimum.
    pub lower: fn(&mut C) -> bool,
}

/// The amount by which lowering each of the `knobs` would reduce `bytes(config)`, largest first,
/// without those that save nothing.
pub fn savings<C: Clone>(config: &C, knobs: &[Knob<C>], bytes: impl Fn(&C) -> u64) -> Vec<Saving> {
    let now = bytes(config);
    let mut savings: Vec<Saving> = knobs
        .iter()
        .filter_map(|knob| {
            let mut lowered = config.clone();
            if !(knob.lower)(&mut lowered) {
                return None;
            }
            Some(Saving {
                parameter: knob.parameter,
                from: (knob.value)(config),
                to: (knob.value)(&lowered),
                saves: now.saturating_sub(bytes(&lowered)),
            })
        })
        .filter(|saving| saving.saves > 0)
        .collect();
    savings.sort_by_key(|saving| std::cmp::Reverse(saving.saves));
    savings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_says_what_to_lower_and_what_that_saves() {
        #[derive(Clone)]
        struct Config {
            slots: u64,
            side: u64,
            other: u64,
        }
        let knobs = [
            Knob::<Config> {
                parameter: "memory.slots",
                value: |c| c.slots.to_string(),
                lower: |c| {
                    c.slots /= 2;
                    true
                },
            },
            Knob {
                parameter: "network.side",
                value: |c| c.side.to_string(),
                lower: |c| {
                    c.side -= 10;
                    true
                },
            },
            Knob {
                parameter: "useless",
                value: |c| c.other.to_string(),
                lower: |c| {
                    c.other = 0;
                    true
                },
            },
            Knob {
                parameter: "lowest",
                value: |_| String::new(),
                lower: |_| false,
            },
        ];
        let config = Config {
            slots: 8,
            side: 100,
            other: 3,
        };
        let bytes = |c: &Config| c.slots * c.side * c.side * 1000;
        let error = DoesNotFit {
            needed: bytes(&config),
            available: 50_000_000,
            savings: savings(&config, &knobs, bytes),
        };
        assert_eq!(
            error.to_string(),
            "the memory plan needs 80.00 MB of GPU memory, 50.00 MB are available; lower \
             memory.slots from 8 to 4 (saves 40.00 MB), network.side from 100 to 90 (saves 15.20 MB)"
        );
    }
}
