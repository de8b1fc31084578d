//! Build progress: a bar on a terminal, one line per engine in a pipe.

use crate::cli::{complain, interrupt};
use crate::gpu::plan::human;
use crate::inference::tensorrt::{EngineFile, Observer, Part};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shows the progress of a build.
pub struct BuildProgress {
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    part: &'static str,
    /// Phases in progress: name, steps, steps done. The innermost one is shown.
    phases: Vec<(String, u64, u64)>,
    layer: String,
}

impl BuildProgress {
    /// A bar if `wanted` and standard error is a terminal.
    pub fn new(wanted: bool) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1);
            match ProgressStyle::with_template("{bar:28} {pos:>4}/{len:<4} {elapsed:>4} {wide_msg}")
            {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            bar,
            state: Mutex::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if let Some(bar) = &self.bar {
            let (phase, steps, done) = match state.phases.last() {
                Some((phase, steps, done)) => (phase.as_str(), *steps, *done),
                None => ("", 1, 0),
            };
            bar.set_length(steps);
            bar.set_position(done);
            bar.set_message(format!("{}: {phase} {}", state.part, state.layer));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for BuildProgress {
    fn part(&self, part: Part) {
        self.change(|state| {
            *state = State {
                part: part.name(),
                ..Default::default()
            };
        });
    }

    fn phase(&self, name: &str, steps: usize) {
        self.change(|state| state.phases.push((name.to_owned(), steps as u64, 0)));
    }

    fn step(&self, phase: &str, step: usize) -> ControlFlow<()> {
        self.change(|state| {
            let mut phases = state.phases.iter_mut().rev();
            if let Some((_, _, done)) = phases.find(|(name, ..)| name == phase) {
                *done = step as u64 + 1;
            }
        });
        match interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn end(&self, phase: &str) {
        self.change(|state| {
            if let Some(at) = state.phases.iter().rposition(|(name, ..)| name == phase) {
                state.phases.truncate(at);
            }
        });
    }

    fn layer(&self, name: &str) {
        self.change(|state| name.clone_into(&mut state.layer));
    }

    fn done(&self, engine: &EngineFile) {
        let text = format!(
            "{}: {} in {:.0} s, {} layers; GPU memory: {} for weights and {} while it runs",
            engine.part.name(),
            human(engine.bytes),
            engine.build_seconds,
            engine.layers,
            human(engine.weight_bytes),
            human(engine.activation_bytes),
        );
        match &self.bar {
            Some(bar) => bar.suspend(|| complain(&text)),
            None => complain(&text),
        }
    }
}

impl Drop for BuildProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_phase_is_shown() {
        let progress = BuildProgress::new(false);
        progress.part(Part::Decoder);
        progress.phase("building", 3);
        assert!(progress.step("building", 0).is_continue());
        progress.phase("timing", 9);
        assert!(progress.step("timing", 4).is_continue());
        progress.layer("dec_blocks.0/MatMul");
        {
            let state = progress.state();
            assert_eq!(state.phases.last(), Some(&("timing".to_owned(), 9, 5)));
            assert_eq!(
                (state.part, state.layer.as_str()),
                ("decoder", "dec_blocks.0/MatMul")
            );
        }
        // An unknown phase changes nothing; an outer one ends the inner ones.
        progress.end("other");
        assert_eq!(progress.state().phases.len(), 2);
        progress.end("building");
        assert!(progress.state().phases.is_empty());
    }
}
