//! The damage found in a journal at its opening.

use std::path::PathBuf;

/// Damage found in a journal at opening, and its consequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDamage {
    /// Damaged or missing files.
    pub files: Vec<PathBuf>,
    /// Changes that were on the disk and are now missing; `None` if unknown.
    pub lost_changes: Option<u64>,
    /// Entries and blobs with a wrong checksum, which are taken out.
    pub damaged_entries: u64,
    /// Entries that an index names, and that are missing.
    pub missing_entries: u64,
    /// Entries and blobs that an index lacked.
    pub index_errors: u64,
    /// Number of intact entries.
    pub kept_entries: u64,
    /// Blobs without confirmation of the store at the journal's last write.
    pub untaken_blobs: u64,
    /// Whether the database is a new one, made from the intact entries and compared with them.
    pub is_rebuilt: bool,
    /// Folder of the damaged database; `None` if the database is intact.
    pub quarantine: Option<PathBuf>,
}

impl JournalDamage {
    /// Whether parts of the journal are missing, or may be.
    #[must_use]
    pub fn may_miss_entries(&self) -> bool {
        self.lost_changes != Some(0) || self.damaged_entries > 0 || self.missing_entries > 0
    }
}

impl std::fmt::Display for JournalDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<_> = self.files.iter().map(|file| file.display().to_string()).collect();
        let is = if files.len() == 1 { "is" } else { "are" };
        write!(f, "{} {is} damaged, or not as the node left the journal. ", files.join(", "))?;
        match (self.lost_changes, self.damaged_entries) {
            (Some(0), 0) if self.missing_entries > 0 => {}
            (Some(0), 0) => write!(f, "No entry is missing. ")?,
            (Some(0), damaged) => write!(f, "{damaged} entries or blobs do not open and are taken out. ")?,
            (Some(lost), 0) => write!(f, "{lost} changes that were on the disk are missing. ")?,
            (Some(lost), damaged) => {
                write!(f, "{lost} changes are missing, and {damaged} entries or blobs do not open. ")?;
            }
            (None, _) => write!(f, "Whether entries are missing cannot be told. ")?,
        }
        if self.missing_entries > 0 {
            write!(f, "An index names {} entries that are not there. ", self.missing_entries)?;
        }
        if self.index_errors > 0 {
            write!(f, "The indexes lacked {} entries or blobs. ", self.index_errors)?;
        }
        write!(f, "{} entries are kept. ", self.kept_entries)?;
        if self.is_rebuilt {
            write!(f, "The journal is rebuilt from them, and was compared with them. ")?;
        }
        if self.may_miss_entries() {
            write!(
                f,
                "Up to {} blobs that the store had not taken may be lost here: their clients store them from their own \
                 copies. The node refuses turns that were sent before this start, and clients send them again. ",
                self.untaken_blobs
            )?;
        }
        match &self.quarantine {
            Some(folder) => write!(f, "The damaged files are in {}", folder.display()),
            None => Ok(()),
        }
    }
}
