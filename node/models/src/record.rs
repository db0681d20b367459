//! Small JSON records beside model files. They are written atomically, and read up to a size limit.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

/// Bytes of a record: some hundred, or some thousand with a licence notice.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// Path of a model file's record of a kind: `FILE.KIND.json`.
pub(crate) fn path_of(model: &Path, kind: &str) -> PathBuf {
    let mut name = model.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{kind}.json"));
    model.with_file_name(name)
}

/// Reads a record; `None` if it is missing or unreadable.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_RECORD_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Writes a record, replacing any existing one.
pub(crate) fn write<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    let mut file = File::create(&fresh)?;
    serde_json::to_writer_pretty(&mut file, record)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}
