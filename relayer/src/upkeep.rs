//! Keeps the counts of the budgets up to date: owners with memory, and stored bytes. Saves those of the hour.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use baton_keys::files::replace_private;
use baton_memory::vault::Vault;
use tokio_util::sync::CancellationToken;

use crate::{
    budgets::Budgets,
    config::Settings,
    owners::Owners,
    setup::{self, MemorySetup},
};

/// The file in the data folder with the use of the hour's budgets.
const BUDGET_FILE: &str = "budgets.json";
/// How often the stored bytes are measured. A burst between two measurements is bounded by the rates of owners.
const MEASURE_PAUSE: Duration = Duration::from_secs(30);
/// Measurements between two counts of the owners: an hour.
const MEASUREMENTS_PER_COUNT: u32 = 120;

/// See the module.
pub(crate) struct Upkeep {
    vault: Vault,
    owners: Arc<Owners>,
    budgets: Arc<Budgets>,
    keys_dir: PathBuf,
    budget_file: PathBuf,
}

impl Upkeep {
    pub(crate) fn new(settings: &Settings, opened: &MemorySetup, owners: Arc<Owners>) -> Self {
        let (keys_dir, budgets) = (settings.keys_dir.clone(), opened.budgets.clone());
        let budget_file = settings.data_dir.join(BUDGET_FILE);
        // It is no accounting: without it, the hour begins anew.
        let saved = std::fs::read(&budget_file).ok().and_then(|saved| serde_json::from_slice(&saved).ok());
        saved.into_iter().for_each(|used| budgets.restore(used));
        Self { vault: opened.vault.clone(), owners, budgets, keys_dir, budget_file }
    }

    /// Counts the owners with memory. It stops when there are too many already.
    pub(crate) async fn count_owners(&self) -> anyhow::Result<()> {
        let all = setup::all_owners(&self.vault).await;
        let known: HashSet<_> =
            all.context("the owners of this memory cannot be counted")?.into_iter().collect();
        if known.len() > self.owners.max_owners() {
            tracing::warn!(
                owners = known.len(),
                most = self.owners.max_owners(),
                "more owners than max_owners: no new ones are taken"
            );
        }
        let refused = self.vault.refused().await.context("the owners' keys cannot be checked")?;
        self.owners.recount(known, !refused.behind.is_empty() || !refused.unreadable.is_empty());
        Ok(())
    }

    /// Measures the key files, and the embedded database's pages in use. A Postgres database has limits of its own.
    async fn measure(&self) {
        let folder = self.keys_dir.clone();
        let keys = tokio::task::spawn_blocking(move || bytes_in(&folder)).await;
        let records = self.vault.storage().stored_bytes().await;
        match (keys, records) {
            (Ok(keys), Ok(records)) => self.budgets.note_stored(keys.saturating_add(records.unwrap_or(0))),
            (_, Err(error)) => tracing::debug!(%error, "the last measurement of stored bytes stays"),
            // The task fails only at shutdown.
            (Err(_), _) => {}
        }
    }

    /// Saves the use of the hour's budgets. An unused hour needs no file: the use in an older one ends by itself.
    async fn save_budgets(&self) {
        let (path, used) = (self.budget_file.clone(), self.budgets.hourly_use());
        if used.blobs == 0 && used.model_calls == 0 {
            return;
        }
        let text = serde_json::json!(used).to_string();
        let saved = tokio::task::spawn_blocking(move || replace_private(&path, text.as_bytes())).await;
        if !matches!(saved, Ok(Ok(()))) {
            tracing::warn!(file = BUDGET_FILE, "the hour's budgets were not saved");
        }
    }

    /// Measures and counts until shutdown, and saves the hour's budgets.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut measurements = 0_u32;
        loop {
            self.measure().await;
            measurements += 1;
            if measurements.is_multiple_of(MEASUREMENTS_PER_COUNT)
                && let Err(error) = self.count_owners().await
            {
                tracing::warn!(%error, "the last count of owners stays");
            }
            self.save_budgets().await;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(MEASURE_PAUSE) => {}
            }
        }
        self.save_budgets().await;
    }
}

/// Bytes of the files below a folder; what cannot be read counts as nothing.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    each.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_all_files_below() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(folder.path().join("a/b"), [0; 100]).unwrap();
        std::fs::write(folder.path().join("c"), [0; 23]).unwrap();
        assert_eq!(bytes_in(folder.path()), 123);
        assert_eq!(bytes_in(&folder.path().join("missing")), 0);
    }
}
