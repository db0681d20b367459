//! A progress bar on a terminal, and nothing elsewhere.

use std::time::Duration;

use baton_walrus_client::http_store::{Phase, Progress, ProgressFn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::out::Out;

/// Time between two steps of a spinner.
const TICK: Duration = Duration::from_millis(120);
const TRANSFER: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}";
const WORK: &str = "{spinner} {msg} ({elapsed})";

/// A line on standard error that shows progress. It disappears when dropped.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A bar, drawn if standard error is a terminal and the output is not JSON.
    pub(super) fn new(out: &Out) -> Self {
        let target = if out.json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Self(ProgressBar::with_draw_target(None, target))
    }

    /// Shows work whose end is unknown.
    pub(super) fn working(&self, what: &str) {
        self.0.set_style(style(WORK));
        self.0.set_message(what.to_owned());
        self.0.enable_steady_tick(TICK);
    }

    /// The callback for the store's progress.
    pub(super) fn follow(&self) -> ProgressFn {
        let bar = self.0.clone();
        let last = std::sync::Mutex::new(None);
        ProgressFn::new(move |progress: Progress| {
            let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // The ID is computed beside the upload, and the user waits for the upload.
            if progress.phase == Phase::Hashing && last.is_some() {
                return;
            }
            if *last != Some(progress.phase) {
                begin(&bar, progress.phase);
                *last = Some(progress.phase);
            }
            if let Some(total) = progress.total {
                bar.set_length(total);
            }
            bar.set_position(progress.done);
        })
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn begin(bar: &ProgressBar, phase: Phase) {
    let (text, template) = match phase {
        Phase::Hashing => ("computing the blob ID", WORK),
        Phase::Uploading => ("uploading", TRANSFER),
        Phase::Waiting => ("waiting for the publisher", WORK),
        Phase::Downloading => ("downloading", TRANSFER),
    };
    bar.set_style(style(template));
    bar.set_message(text);
    bar.enable_steady_tick(TICK);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are valid")
}
