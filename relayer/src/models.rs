//! Commands for embedding models.

use crate::config::Settings;
use anyhow::Context as _;
use baton_keys::files::create_private_folder;
use baton_kit::{
    output::print_line,
    progress::{self, BarStyle},
};
use baton_models::embed::models::{PullProgress, model, pull as fetch};

/// Fetches a model, or verifies an existing one.
pub(crate) fn pull(settings: &Settings, name: &str) -> anyhow::Result<()> {
    let total = model(name)?.bytes();
    let folder = &settings.model_dir;
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let bar = progress::bar(BarStyle::Bytes);
    let files = fetch(name, folder, &mut |step| {
        let (phase, bytes, length) = match step {
            // The total is unknown; the files are barely compressed.
            PullProgress::Downloading { bytes, .. } => ("fetching", bytes, total),
            PullProgress::Unpacking { bytes, total } => ("unpacking", bytes, total),
            PullProgress::Verifying { bytes, total } => ("checking", bytes, total),
        };
        bar.set_message(format!("{phase} {name}"));
        bar.set_length(length.max(bytes));
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    for file in files? {
        print_line(file.display());
    }
    Ok(())
}
