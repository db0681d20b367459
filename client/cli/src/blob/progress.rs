//! A progress bar on a terminal, and nothing elsewhere.

use baton_command::progress::{self, BarStyle, ProgressBar};
use baton_walrus_client::http_store::{Phase, Progress, ProgressFn};

use super::super::out::Out;

/// A line on standard error that shows progress. It disappears when dropped.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// A bar, drawn if standard error is a terminal and the output is not JSON.
    pub(super) fn new(out: &Out) -> Self {
        Self(if out.json() { progress::hidden() } else { progress::bar(BarStyle::Bytes) })
    }

    /// Shows work whose end is unknown.
    pub(super) fn working(&self, what: &str) {
        progress::restyle(&self.0, BarStyle::Spinner);
        self.0.set_message(what.to_owned());
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
    let (text, style) = match phase {
        Phase::Hashing => ("computing the blob ID", BarStyle::Spinner),
        Phase::Uploading => ("uploading", BarStyle::Bytes),
        Phase::Waiting => ("waiting for the publisher", BarStyle::Spinner),
        Phase::Downloading => ("downloading", BarStyle::Bytes),
    };
    progress::restyle(bar, style);
    bar.set_message(text);
}
