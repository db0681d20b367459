//! Progress on standard error: a bar or a spinner at a terminal that can redraw, nothing elsewhere.
//!
//! ```
//! use baton_kit::progress::{self, BarStyle};
//!
//! let bar = progress::bar(BarStyle::Bytes);
//! bar.set_message("fetching a model");
//! bar.set_length(1000);
//! bar.set_position(10);
//! bar.finish_and_clear();
//! ```

use std::{io, time::Duration};

use indicatif::{ProgressDrawTarget, ProgressStyle};

pub use indicatif::ProgressBar;

use crate::terminal::can_redraw;

/// Time between two steps of a spinner.
const TICK: Duration = Duration::from_millis(120);

/// The figures of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarStyle {
    /// Bytes of all bytes, with the speed and the time left.
    Bytes,
    /// A percentage, with the time left.
    Percent,
    /// Work whose end is unknown, with the time spent.
    Spinner,
}

impl BarStyle {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            Self::Percent => "{msg} [{bar:30}] {percent} %, {eta} left",
            Self::Spinner => "{spinner} {msg} ({elapsed})",
        }
    }
}

/// A bar, drawn if standard error is a terminal that can redraw.
#[must_use]
pub fn bar(style: BarStyle) -> ProgressBar {
    let drawn = can_redraw(&io::stderr());
    let target = if drawn { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    restyle(&bar, style);
    bar
}

/// A spinner beside this text.
#[must_use]
pub fn spinner(text: impl Into<String>) -> ProgressBar {
    let bar = bar(BarStyle::Spinner);
    bar.set_message(text.into());
    bar
}

/// Changes the figures of a bar.
fn restyle(bar: &ProgressBar, style: BarStyle) {
    let figures = ProgressStyle::with_template(style.template()).expect("a test parses every template");
    bar.set_style(figures.progress_chars("=> "));
    if style == BarStyle::Spinner && !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
}

/// A number of bytes as a person reads it, such as `12.3 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_style_has_a_template() {
        let bar = ProgressBar::hidden();
        for style in [BarStyle::Bytes, BarStyle::Percent, BarStyle::Spinner] {
            restyle(&bar, style);
        }
        assert_eq!(size(12_900_000), "12.30 MiB");
    }
}
