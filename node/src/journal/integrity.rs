//! Checks whether the journal's files are as the last process left them, and copies damaged ones.
//!
//! sled cuts its log at the first unreadable place, and silently drops the rest. So an orderly shutdown
//! writes checksums of all files, and the next start compares them before sled opens the files. A killed
//! process leaves no checksums; then the mark reveals missing changes. In both cases the files are copied
//! before sled may overwrite them. If there is no damage, the copy is removed again.
//!
//! Only [`super::open`] and [`super::rebuild`] call this. Blocking throughout.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use baton_keys::files::{create_private_folder, replace_private};

/// File of the checksums, in the journal's folder.
const SUMS_FILE: &str = "sums";
/// File of the mark, in the journal's folder.
pub(super) const MARK_FILE: &str = "mark";
/// sled's settings. They are the same for every journal, so a new file is equally good.
const CONF_FILE: &str = "conf";
/// sled's log.
pub(super) const DB_FILE: &str = "db";
/// First line of the checksums.
const SUMS_HEADER: &str = "baton-journal-sums-1";
/// Maximum size of the checksum file: sled has a handful of files, and one for each value above its limit.
const MAX_SUMS_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum copies of damaged files with the same time in their name; then copying fails.
const MAX_SAME_NAMES: u32 = 100;
/// Maximum time of sled's last writes after closing.
const MAX_CLOSING: Duration = Duration::from_secs(10);

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
    /// Copy of the files as found; `None` if they could not be copied.
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
            Some(folder) => write!(f, "The files as they were found are in {}", folder.display()),
            None => write!(f, "The files as they were found could not be copied"),
        }
    }
}

/// Facts about the files before sled opens them.
pub(super) struct Inspection {
    folder: PathBuf,
    now_ms: u64,
    /// Files that do not match their checksums.
    pub(super) damaged: Vec<PathBuf>,
    /// Whether there are files without checksums: the last process did not end in order.
    suspect: bool,
    copy: Option<PathBuf>,
}

impl Inspection {
    /// Compares a journal's files with their checksums, which are valid once.
    pub(super) fn begin(folder: &Path, now_ms: u64) -> io::Result<Self> {
        let path = folder.join(SUMS_FILE);
        let mut found = Self {
            folder: folder.to_owned(),
            now_ms,
            damaged: Vec::new(),
            suspect: folder.join(DB_FILE).exists() || folder.join(MARK_FILE).exists(),
            copy: None,
        };
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => {
                // Invalid text counts as damaged text.
                if let Err(error) = file.take(MAX_SUMS_BYTES).read_to_string(&mut text)
                    && error.kind() != io::ErrorKind::InvalidData
                {
                    return Err(error);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        }
        match parse_sums(&text) {
            Some(sums) => {
                found.suspect = false;
                for (name, expected) in sums {
                    let file = folder.join(name);
                    if !matches!(sum(&file), Ok(sum) if sum == expected) {
                        found.damaged.push(file);
                    }
                }
            }
            None => found.damaged.push(path.clone()),
        }
        fs::remove_file(&path)?;
        File::open(folder)?.sync_all()?;
        Ok(found)
    }

    /// Copies doubtful files before they may be overwritten.
    pub(super) fn copy_if_doubtful(&mut self) {
        if self.suspect || !self.damaged.is_empty() {
            self.quarantine();
        }
    }

    /// Copies the files as they are, once. A failed copy does not prevent the start.
    pub(super) fn quarantine(&mut self) {
        if self.copy.is_some() || !self.folder.exists() {
            return;
        }
        match quarantine_copy(&self.folder, self.now_ms) {
            Ok(copy) => self.copy = Some(copy),
            Err(error) => tracing::warn!(
                %error, folder = %self.folder.display(),
                "the journal's files cannot be copied before they are opened: make room, or fix the disk"
            ),
        }
    }

    /// Removes sled's settings, so that sled writes them again; `false` if there are none.
    pub(super) fn renew_settings(&mut self) -> io::Result<bool> {
        let path = self.folder.join(CONF_FILE);
        if !path.exists() {
            return Ok(false);
        }
        self.quarantine();
        fs::remove_file(&path)?;
        self.note(path);
        Ok(true)
    }

    /// Whether sled's settings are damaged.
    pub(super) fn are_settings_damaged(&self) -> bool {
        self.damaged.contains(&self.folder.join(CONF_FILE))
    }

    /// Removes all files, because sled cannot read them.
    pub(super) fn start_anew(&mut self) -> io::Result<()> {
        self.quarantine();
        if self.copy.is_none() {
            let reason =
                "the journal cannot be read, and not be set aside: make space, or move its folder away";
            return Err(io::Error::other(reason));
        }
        self.note(self.folder.join(DB_FILE));
        fs::remove_dir_all(&self.folder)?;
        create_private_folder(&self.folder)
    }

    /// Records a damaged file.
    pub(super) fn note(&mut self, file: PathBuf) {
        if !self.damaged.contains(&file) {
            self.damaged.push(file);
        }
    }

    /// Stores bytes with a wrong checksum beside the copies.
    pub(super) fn keep_entry(&mut self, name: &str, bytes: &[u8]) {
        self.quarantine();
        self.note(self.folder.join(DB_FILE));
        if let Some(copy) = &self.copy
            && let Err(error) = replace_private(&copy.join(name), bytes)
        {
            tracing::warn!(%error, "a damaged entry of the journal was not kept");
        }
    }

    /// Path of the copy, if there was damage.
    pub(super) fn end(mut self) -> Option<PathBuf> {
        if self.damaged.is_empty() { None } else { self.copy.take() }
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        if self.damaged.is_empty()
            && let Some(copy) = self.copy.take()
            && let Err(error) = fs::remove_dir_all(&copy)
        {
            tracing::warn!(%error, folder = %copy.display(), "a copy of the journal that nobody needs was not removed");
        }
    }
}

/// Writes the checksums of a closed journal. Without them, the next start assumes that this process did not
/// end in order.
pub(super) fn close(folder: &Path) {
    let written = wait_until_closed(&folder.join(DB_FILE))
        .and_then(|()| sums_of(folder))
        .and_then(|sums| replace_private(&folder.join(SUMS_FILE), sums.as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, "the checksums of the journal were not written; the next start looks closer");
    }
}

/// Waits for sled's lock on its file, which sled holds until its last write.
pub(super) fn wait_until_closed(db: &Path) -> io::Result<()> {
    let until = Instant::now() + MAX_CLOSING;
    let file = File::open(db)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Err(fs::TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(io::Error::other("the journal is still open"));
            }
            Err(fs::TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Names of all files in a folder and its subfolders, except the mark and the checksums.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut below = vec![(folder.to_owned(), String::new())];
    while let Some((folder, prefix)) = below.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                below.push((entry.path(), format!("{name}/")));
            } else if kind.is_file() && ![SUMS_FILE, MARK_FILE].contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    names.sort();
    Ok(names)
}

fn sum(file: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(file)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn sums_of(folder: &Path) -> io::Result<String> {
    let mut text = format!("{SUMS_HEADER}\n");
    for name in names(folder)? {
        let _ = writeln!(text, "{}  {name}", sum(&folder.join(&name))?);
    }
    let end = blake3::hash(text.as_bytes());
    let _ = writeln!(text, "{}  end", end.to_hex());
    Ok(text)
}

/// Names with their checksums; `None` if the text is incomplete.
fn parse_sums(text: &str) -> Option<Vec<(&str, String)>> {
    let lines = text.strip_suffix("  end\n")?;
    let (listed, end) = lines.split_at_checked(lines.rfind('\n')? + 1)?;
    if blake3::hash(listed.as_bytes()).to_hex().as_str() != end {
        return None;
    }
    let mut lines = listed.lines();
    if lines.next() != Some(SUMS_HEADER) {
        return None;
    }
    lines.map(|line| line.split_once("  ").map(|(sum, name)| (name, sum.to_owned()))).collect()
}

/// A free name beside a folder, with the time in it; after many tries, a taken one.
pub(super) fn free_quarantine(folder: &Path, now_ms: u64) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut target = folder.with_file_name(format!("{name}.damaged-{now_ms}"));
    for again in 1..MAX_SAME_NAMES {
        if !target.exists() {
            break;
        }
        target = folder.with_file_name(format!("{name}.damaged-{now_ms}-{again}"));
    }
    target
}

/// Copies a folder beside itself.
fn quarantine_copy(folder: &Path, now_ms: u64) -> io::Result<PathBuf> {
    let target = free_quarantine(folder, now_ms);
    create_private_folder(&target)?;
    let copied = copy_files(folder, &target);
    if copied.is_err() {
        // Half a copy takes space that the node needs.
        let _ = fs::remove_dir_all(&target);
    }
    copied.map(|()| target)
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    let marked = [MARK_FILE.to_owned()].into_iter().filter(|name| from.join(name).exists());
    for name in names(from)?.into_iter().chain(marked) {
        let target = to.join(&name);
        if let Some(parent) = target.parent().filter(|parent| !parent.exists()) {
            create_private_folder(parent)?;
        }
        fs::copy(from.join(&name), target)?;
    }
    Ok(())
}
