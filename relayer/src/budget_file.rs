//! The file in the data folder with the use of the hourly budgets.

use std::path::{Path, PathBuf};

use baton_keys::files::replace_private;

use crate::budgets::{BudgetLevels, Budgets};

/// Its name.
const BUDGET_FILE: &str = "budgets.json";
/// Longest file: that of the most owners whose calls are counted.
const MAX_BYTES: u64 = 1024 * 1024;

/// The file of a relayer's budgets. It is no accounting: without it, the hour begins anew.
pub(crate) struct BudgetFile {
    path: PathBuf,
    written: Option<BudgetLevels>,
}

impl BudgetFile {
    /// The file in a data folder, from which the budgets continue.
    pub(crate) fn open(data_dir: &Path, budgets: &Budgets) -> Self {
        let path = data_dir.join(BUDGET_FILE);
        match read(&path) {
            Ok(Some(levels)) => budgets.restore(&levels),
            Ok(None) => {}
            Err(reason) => tracing::warn!(file = %path.display(), %reason, "the hour's budgets begin anew"),
        }
        Self { path, written: None }
    }

    /// Writes the budgets, unless nothing was taken since.
    pub(crate) async fn write(&mut self, budgets: &Budgets) {
        let levels = budgets.levels();
        let unchanged =
            |written: &BudgetLevels| BudgetLevels { at_ms: levels.at_ms, ..written.clone() } == levels;
        if self.written.as_ref().is_some_and(unchanged) {
            return;
        }
        let path = self.path.clone();
        let text = serde_json::to_string(&levels).unwrap_or_default();
        let written = tokio::task::spawn_blocking(move || replace_private(&path, text.as_bytes())).await;
        match written {
            Ok(Ok(())) => self.written = Some(levels),
            Ok(Err(error)) => tracing::warn!(%error, "the hour's budgets were not saved"),
            Err(error) => tracing::warn!(%error, "the hour's budgets were not saved"),
        }
    }
}

fn read(path: &Path) -> Result<Option<BudgetLevels>, String> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map(Some).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budgets::BudgetLimits;

    fn budgets() -> Budgets {
        let limits = BudgetLimits { model_calls_per_hour: 1, ..BudgetLimits::default() };
        Budgets::new(limits, Arc::new(|| 1_000))
    }

    #[tokio::test]
    async fn budgets_go_on_from_their_file_and_a_damaged_one_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let before = budgets();
        let mut file = BudgetFile::open(folder.path(), &before);
        before.take_model_call(None).unwrap();
        file.write(&before).await;
        let after = budgets();
        BudgetFile::open(folder.path(), &after);
        assert!(after.take_model_call(None).is_err());
        for damaged in ["{", "[]", "{\"at_ms\":1,\"blobs\":-1}"] {
            std::fs::write(folder.path().join(BUDGET_FILE), damaged).unwrap();
            let anew = budgets();
            BudgetFile::open(folder.path(), &anew);
            assert!(anew.take_model_call(None).is_ok(), "{damaged}");
        }
    }
}
