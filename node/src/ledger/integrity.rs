//! The ledger's files. Every line has a checksum. A mark beside each file has the number of lines, so that a
//! truncated file is detected. Damaged files are renamed, and their valid lines kept.
//!
//! Blocking throughout.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::{MAX_LINE_BYTES, checked, missing_is_fine, months};
use crate::mark::{LastMark, Mark};

/// Extension of marks.
const MARK_EXTENSION: &str = "mark";
/// Maximum number of damaged files of one month; then opening the folder fails.
const MAX_QUARANTINED: u32 = 100;

/// Damage of a receipt file, and its consequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceiptsDamage {
    /// The file.
    pub(crate) file: PathBuf,
    /// Number of missing receipts; `None` if unknown.
    pub(crate) lost: Option<u64>,
    /// Number of intact receipts.
    pub(crate) kept: u64,
    /// New path of the damaged file; `None` if the file is gone.
    pub(crate) quarantine: Option<PathBuf>,
}

impl std::fmt::Display for ReceiptsDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is damaged, or not as the node left it: ", self.file.display())?;
        match self.lost {
            Some(lost) => write!(f, "{lost} receipts are missing")?,
            None => write!(f, "whether receipts are missing cannot be told")?,
        }
        write!(f, ", and {} are kept. Credit cannot be shown for a missing receipt. ", self.kept)?;
        match &self.quarantine {
            Some(target) => write!(f, "The file as it was found is {}", target.display()),
            None => write!(f, "There was no file to set aside"),
        }
    }
}

/// Path of a month's mark.
pub(super) fn mark_path(path: &Path) -> PathBuf {
    path.with_extension(MARK_EXTENSION)
}

/// The month files of a folder, including those with only a mark left; oldest first.
pub(super) fn marked_months(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = months(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == MARK_EXTENSION) {
            found.push(path.with_extension("txt"));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// A month's file and its mark.
#[derive(Debug)]
pub(super) struct Month {
    path: PathBuf,
    mark: Mark,
    lines: u64,
    bytes: u64,
    /// Whether a receipt was dropped because the file is full.
    dropped: bool,
}

/// Contents of a file.
#[derive(Default)]
struct Contents {
    lines: u64,
    bytes: u64,
    damaged: u64,
    /// Whether the last line is cut.
    torn: bool,
}

impl Month {
    /// Starts a month. The mark comes first, so that every file has one.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mark = Mark::create(&mark_path(path), [0, 0])?;
        Ok(Self { path: path.to_owned(), mark, lines: 0, bytes: 0, dropped: false })
    }

    /// Checks a month's file, and renames it if it is damaged.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Option<ReceiptsDamage>)> {
        let last = Mark::read(&mark_path(path))?;
        let contents = read(path, &mut io::sink())?;
        let lost = match last {
            LastMark::Counts([lines, _]) => Some(lines.saturating_sub(contents.lines)),
            LastMark::Missing | LastMark::Damaged => None,
        };
        let whole = contents.damaged == 0 && lost == Some(0);
        let quarantine = if whole && !contents.torn { None } else { rewrite(path, whole)? };
        let damage = (!whole).then(|| ReceiptsDamage {
            file: path.to_owned(),
            // A damaged line may be newer than the mark.
            lost: lost.map(|lost| lost.max(contents.damaged)),
            kept: contents.lines,
            quarantine,
        });
        let Contents { lines, bytes, .. } = contents;
        let mark = Mark::create(&mark_path(path), [lines, bytes])?;
        Ok((Self { path: path.to_owned(), mark, lines, bytes, dropped: false }, damage))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that a receipt was dropped. Returns whether it was the first.
    pub(super) fn is_first_drop(&mut self) -> bool {
        !std::mem::replace(&mut self.dropped, true)
    }

    /// Makes the file count as this long.
    #[cfg(test)]
    pub(super) fn fill(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Appends a line, flushed on return.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        if file.metadata()?.len() > self.bytes {
            // An earlier write tore a line, and could not cut it off. The new line must not continue it.
            file.set_len(self.bytes)?;
        }
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would spoil the next one. If this cut fails, the next start finds the half line.
            let _ = file.set_len(self.bytes);
        }
        written?;
        self.lines += 1;
        self.bytes += line.len() as u64;
        if let Err(error) = self.mark.set([self.lines, self.bytes]) {
            tracing::warn!(%error, "the mark of the receipts was not written");
        }
        Ok(())
    }
}

/// Reads a file, and copies its valid lines to `good`. A missing file is empty.
fn read(path: &Path, good: &mut impl io::Write) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return missing_is_fine(error).map(|()| contents),
    };
    let mut reader = BufReader::new(file);
    loop {
        let mut bytes = Vec::new();
        if (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(contents);
        }
        let line = bytes.strip_suffix(b"\n");
        let is_good = line.and_then(|line| std::str::from_utf8(line).ok()).and_then(checked).is_some();
        if is_good {
            good.write_all(&bytes)?;
            contents.lines += 1;
            contents.bytes += bytes.len() as u64;
        } else if line.is_none() && (bytes.len() as u64) < MAX_LINE_BYTES {
            // Only the last line can be cut: a crash during a write tore it, before it was reported to any
            // caller.
            contents.torn = true;
        } else {
            contents.damaged += 1;
        }
    }
}

/// Replaces a file by its valid lines. Renames the old file, unless it was only torn.
fn rewrite(path: &Path, torn: bool) -> io::Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    let new = path.with_extension("new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut writer = BufWriter::new(file);
    read(path, &mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    let target = if torn { None } else { Some(quarantine_path(path)?) };
    if let Some(target) = &target {
        fs::rename(path, target)?;
    }
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(target)
}

/// An unused name for the damaged file.
fn quarantine_path(path: &Path) -> io::Result<PathBuf> {
    let mut names = (1..=MAX_QUARANTINED).map(|number| path.with_extension(format!("damaged-{number}")));
    let free = names.find(|name| !name.exists());
    free.ok_or_else(|| {
        io::Error::other(format!("{MAX_QUARANTINED} damaged files are there already: move them away"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{LINE_PREFIX, Ledger, checksum};

    const LINES: u64 = 6;

    fn line(number: u64) -> String {
        let text = format!("{LINE_PREFIX}{number:064x} {number:032x}");
        format!("{text} {}\n", checksum(&text))
    }

    fn written(folder: &Path) -> PathBuf {
        let path = folder.join("2026-11.txt");
        let mut month = Month::create(&path).unwrap();
        (0..LINES).for_each(|number| month.append(&line(number)).unwrap());
        path
    }

    #[test]
    fn a_damaged_or_removed_file_is_named_and_quarantined_and_the_rest_is_kept() {
        let length = line(0).len();
        type Harm = Box<dyn Fn(&mut Vec<u8>)>;
        let cases: Vec<(&str, Harm, u64)> = vec![
            ("flipped in the first line", Box::new(|bytes: &mut Vec<u8>| bytes[9] ^= 4), LINES - 1),
            (
                "flipped in the last checksum",
                Box::new(|bytes| *bytes.iter_mut().rev().nth(3).unwrap() ^= 1),
                LINES - 1,
            ),
            ("a line end flipped", Box::new(move |bytes| bytes[length - 1] ^= 1), LINES - 2),
            ("the last line end flipped", Box::new(|bytes| *bytes.last_mut().unwrap() ^= 1), LINES - 1),
            ("cut between lines", Box::new(move |bytes| bytes.truncate(4 * length)), 4),
            ("cut within a line", Box::new(move |bytes| bytes.truncate(4 * length + 7)), 4),
            ("zeroed in the middle", Box::new(move |bytes| bytes[length..3 * length].fill(0)), LINES - 3),
            ("zeroed", Box::new(|bytes| bytes.fill(0)), 0),
            ("emptied", Box::new(Vec::clear), 0),
        ];
        for (name, harm, kept) in cases {
            let folder = tempfile::tempdir().unwrap();
            let path = written(folder.path());
            assert_eq!(Ledger::open(folder.path()).unwrap().damage(), [], "{name}: unharmed");
            let mut bytes = fs::read(&path).unwrap();
            harm(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            let ledger = Ledger::open(folder.path()).unwrap();
            let [damage] = ledger.damage() else { panic!("{name}: {:?}", ledger.damage()) };
            assert_eq!((&damage.file, damage.lost, damage.kept), (&path, Some(LINES - kept), kept), "{name}");
            assert!(damage.to_string().contains("2026-11.txt"), "{name}");
            assert_eq!(fs::read(damage.quarantine.as_ref().unwrap()).unwrap(), bytes, "{name}");
            let good = fs::read_to_string(&path).unwrap();
            assert_eq!(good.lines().count() as u64, kept, "{name}");
            assert!(good.lines().all(|line| checked(line).is_some()), "{name}");
            // The damage was reported once, and new lines follow valid ones.
            assert_eq!(Ledger::open(folder.path()).unwrap().damage(), [], "{name}: told twice");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        fs::remove_file(&path).unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        assert_eq!(ledger.damage().iter().map(|damage| damage.lost).collect::<Vec<_>>(), [Some(LINES)]);
    }

    #[test]
    fn a_line_torn_while_the_node_runs_does_not_swallow_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("2026-11.txt");
        let mut month = Month::create(&path).unwrap();
        month.append(&line(0)).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&line(1).as_bytes()[..30]).unwrap();
        month.append(&line(2)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), line(0) + &line(2));
        assert_eq!(Ledger::open(folder.path()).unwrap().damage(), []);
    }

    #[test]
    fn a_line_that_a_crash_tore_is_cut_off_and_no_damage_and_a_damaged_mark_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{}", &line(9)[..20])).unwrap();
        assert_eq!(Ledger::open(folder.path()).unwrap().damage(), []);
        assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        for harm in [|path: &Path| fs::write(path, "").unwrap(), |path: &Path| fs::remove_file(path).unwrap()]
        {
            harm(&mark_path(&path));
            let ledger = Ledger::open(folder.path()).unwrap();
            let [damage] = ledger.damage() else { panic!("{:?}", ledger.damage()) };
            assert_eq!((damage.lost, damage.kept), (None, LINES));
        }
        assert_eq!(Ledger::open(folder.path()).unwrap().damage(), []);
    }
}
