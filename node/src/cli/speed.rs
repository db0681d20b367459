//! Measured speeds of models on this machine: `bench` notes them, `models list` shows them.
//!
//! They lie in one file of the model folder. A lost or damaged file costs a measurement, so no error of it ends
//! a command.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

/// The file in the model folder.
const SPEED_FILE: &str = "speeds.json";
/// Largest such file: a line for each of some thousand models.
const MAX_SPEED_BYTES: u64 = 1 << 20;

/// The speed of a model for one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ModelSpeed {
    /// Compute threads of the measurement.
    pub(super) threads: usize,
    /// Prompt tokens a second.
    pub(super) reading: f64,
    /// Answer tokens a second.
    pub(super) generating: f64,
}

impl ModelSpeed {
    /// For a list.
    pub(super) fn describe(&self) -> String {
        format!("{:.0} tokens/s", self.generating)
    }
}

/// All measured speeds, by the model's name.
pub(super) fn read(folder: &Path) -> BTreeMap<String, ModelSpeed> {
    let path = folder.join(SPEED_FILE);
    let is_small = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_SPEED_BYTES);
    let text = is_small.then(|| fs::read_to_string(&path).ok()).flatten();
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Notes the speed of a model.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn note(folder: &Path, name: &str, speed: ModelSpeed) -> io::Result<()> {
    let mut all = read(folder);
    all.insert(name.to_owned(), speed);
    let text = serde_json::to_string_pretty(&all).expect("speeds have nothing that JSON cannot hold");
    fs::write(folder.join(SPEED_FILE), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_noted_by_model_and_a_damaged_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_empty());
        let speed = ModelSpeed { threads: 2, reading: 900.4, generating: 122.6 };
        note(folder.path(), "one", speed).unwrap();
        note(folder.path(), "two", ModelSpeed { threads: 1, ..speed }).unwrap();
        note(folder.path(), "one", ModelSpeed { threads: 4, ..speed }).unwrap();
        let all = read(folder.path());
        assert_eq!((all["one"].threads, all["two"].threads), (4, 1));
        assert_eq!(all["one"].describe(), "123 tokens/s");
        fs::write(folder.path().join(SPEED_FILE), "{").unwrap();
        assert!(read(folder.path()).is_empty());
        assert!(note(&folder.path().join("missing"), "one", speed).is_err());
    }
}
