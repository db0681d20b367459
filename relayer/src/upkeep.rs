//! Keeps the counts of the budgets up to date: owners with memory, and stored bytes. Saves those of the hour.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use baton_memory::vault::Vault;
use tokio_util::sync::CancellationToken;

use crate::{
    budget_file::BudgetFile, budgets::Budgets, config::Settings, owners::Owners, setup::MemorySetup,
};

/// How often the stored bytes are measured. A burst between two measurements is bounded by the rates of owners.
const MEASURE_PAUSE: Duration = Duration::from_secs(30);
/// Measurements between two counts of the owners: an hour.
const MEASUREMENTS_PER_COUNT: u32 = 120;
/// Owners per read from the storage.
const OWNERS_PAGE: usize = 1_000;

/// See the module.
pub(crate) struct Upkeep {
    vault: Vault,
    owners: Arc<Owners>,
    budgets: Arc<Budgets>,
    keys_dir: PathBuf,
    file: BudgetFile,
}

impl Upkeep {
    pub(crate) fn new(settings: &Settings, opened: &MemorySetup, owners: Arc<Owners>) -> Self {
        let (keys_dir, budgets) = (settings.keys_dir.clone(), opened.budgets.clone());
        let file = BudgetFile::open(&settings.data_dir, &budgets);
        Self { vault: opened.vault.clone(), owners, budgets, keys_dir, file }
    }

    /// Counts the owners with memory. It stops when there are too many already.
    pub(crate) async fn count_owners(&self) -> anyhow::Result<()> {
        let (mut known, mut after) = (HashSet::new(), None);
        loop {
            let page = self.vault.owners(after, OWNERS_PAGE).await;
            let (owners, last) = page.context("the owners of this memory cannot be counted")?;
            known.extend(owners);
            if last.is_none() {
                break;
            }
            after = last;
        }
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

    /// Measures and counts until shutdown, and saves the hour's budgets.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut measurements = 0_u32;
        loop {
            self.measure().await;
            measurements += 1;
            if measurements.is_multiple_of(MEASUREMENTS_PER_COUNT)
                && let Err(error) = self.count_owners().await
            {
                tracing::warn!(%error, "the last count of owners stays");
            }
            self.file.write(&self.budgets).await;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(MEASURE_PAUSE) => {}
            }
        }
        self.file.write(&self.budgets).await;
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
