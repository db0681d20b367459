//! Cut, changed and foreign journals.

use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;

fn entry(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

fn texts(contents: &Contents) -> Vec<String> {
    contents.entries.iter().map(|entry| String::from_utf8(entry.to_vec()).unwrap()).collect()
}

fn in_folder(folder: &Path, secret: &FileSecret) -> Journals {
    Journals { location: JournalLocation::Folder(folder.to_owned()), secret: secret.clone() }
}

/// A journal with three entries in a folder of its own: its bytes and the offset of the last entry.
struct JournalFixture {
    folder: tempfile::TempDir,
    secret: FileSecret,
    path: PathBuf,
    bytes: Vec<u8>,
    last: usize,
}

impl JournalFixture {
    fn new() -> Self {
        let (folder, secret) = (tempfile::tempdir().unwrap(), FileSecret::generate());
        let journals = in_folder(folder.path(), &secret);
        let mut journal = Journal::create(&journals, &SessionRoot::generate(), &[entry("opened")]).unwrap();
        journal.append(&[entry("second")], true).unwrap();
        let path = path_of(&journal);
        let last = fs::read(&path).unwrap().len();
        journal.append(&[entry("the last one")], true).unwrap();
        drop(journal);
        let bytes = fs::read(&path).unwrap();
        Self { folder, secret, path, bytes, last }
    }

    fn open(&self) -> Result<(Journal, Contents), ClientError> {
        Journal::open(&self.path, &self.secret, true)
    }

    /// The texts of the journal when its file has these bytes.
    fn read(&self, bytes: &[u8]) -> Result<Vec<String>, ClientError> {
        fs::write(&self.path, bytes).unwrap();
        read(&self.path, &self.secret, false).map(|contents| texts(&contents))
    }
}

#[test]
fn a_last_entry_of_zeros_is_torn() {
    let written = JournalFixture::new();
    let last = written.last;
    for zeros_from in [last, last + 4, last + 20, last + HEAD_BYTES, written.bytes.len() - TORN_ZEROS] {
        let mut torn = written.bytes.clone();
        torn[zeros_from..].fill(0);
        assert_eq!(written.read(&torn).unwrap(), ["opened", "second"]);
    }
}

#[test]
fn a_cut_at_any_byte_leaves_the_whole_entries_before_it() {
    let written = JournalFixture::new();
    let JournalFixture { path, bytes, .. } = &written;
    let start = MAGIC.len() + ROOT_BYTES;
    let all = ["opened", "second", "the last one"];
    let frame = |text: &str| HEAD_BYTES + 24 + text.len() + 16;
    for cut in 0..bytes.len() {
        fs::write(path, &bytes[..cut]).unwrap();
        if cut < start {
            let refused = written.open().map(|_| ()).unwrap_err();
            assert!(matches!(refused, ClientError::JournalDamaged { entry: 0, .. }), "cut at {cut}");
            continue;
        }
        let (mut whole, mut end) = (0, start);
        while end + frame(all[whole]) <= cut {
            end += frame(all[whole]);
            whole += 1;
        }
        let (mut journal, contents) = written.open().unwrap();
        assert_eq!(texts(&contents), all[..whole], "cut at {cut}");
        assert_eq!(fs::read(path).unwrap(), bytes[..end], "cut at {cut}");
        assert_eq!(contents.torn, bytes[end..cut], "cut at {cut}");
        journal.append(&[entry("after the crash")], true).unwrap();
        let now = texts(&read(path, &written.secret, false).unwrap());
        assert_eq!(now, [&all[..whole], &["after the crash"]].concat(), "cut at {cut}");
        journal.remove().unwrap();
        assert_eq!(fs::read_dir(written.folder.path()).unwrap().count(), 0, "a removal leaves nothing");
    }
}

#[test]
fn a_change_of_any_byte_is_refused_and_named_and_the_file_left_as_it_is() {
    let written = JournalFixture::new();
    let (bytes, start) = (&written.bytes, MAGIC.len() + ROOT_BYTES);
    let second = start + HEAD_BYTES + 24 + "opened".len() + 16;
    for offset in 0..bytes.len() {
        for change in [0x10, 0x80, bytes[offset]] {
            let mut changed = bytes.clone();
            changed[offset] ^= change;
            if changed == *bytes {
                continue;
            }
            fs::write(&written.path, &changed).unwrap();
            let begins = [start, second, written.last];
            let expected = begins.iter().filter(|begin| offset >= **begin).count() as u64;
            let refused = written.open().map(|_| ()).unwrap_err();
            assert!(
                matches!(refused, ClientError::JournalDamaged { entry, .. } if entry == expected),
                "{offset}: {refused}"
            );
            assert_eq!(fs::read(&written.path).unwrap(), changed, "{offset}");
        }
    }
}

#[test]
fn a_moved_or_missing_entry_is_damage() {
    let written = JournalFixture::new();
    let (bytes, last, start) = (&written.bytes, written.last, MAGIC.len() + ROOT_BYTES);
    let second = start + HEAD_BYTES + 24 + "opened".len() + 16;
    let parts = [&bytes[..start], &bytes[start..second], &bytes[second..last], &bytes[last..]];
    for (order, entry) in [(vec![0, 1, 3], 2), (vec![0, 2, 1, 3], 1), (vec![0, 1, 2, 2, 3], 3)] {
        let changed: Vec<u8> = order.iter().flat_map(|part| parts[*part].to_vec()).collect();
        let refused = written.read(&changed).unwrap_err();
        assert!(matches!(refused, ClientError::JournalDamaged { entry: at, .. } if at == entry), "{order:?}");
    }
}

#[test]
fn the_root_comes_out_of_a_journal_that_is_damaged_elsewhere() {
    let written = JournalFixture::new();
    let root = || read_root(&written.path, &written.secret).unwrap();
    let before = root();
    for offset in [0, MAGIC.len() + ROOT_BYTES, written.last] {
        let mut changed = written.bytes.clone();
        changed[offset] ^= 1;
        assert!(written.read(&changed).is_err());
        assert_eq!(root(), before);
    }
}

#[test]
fn nothing_of_an_entry_or_the_root_is_on_the_disk_in_the_clear() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let root = SessionRoot::generate();
    let mut journal = Journal::create(&in_folder(folder.path(), &secret), &root, &[]).unwrap();
    journal.append(&[entry("a very private sentence")], true).unwrap();
    let path = path_of(&journal);
    let bytes = fs::read(&path).unwrap();
    let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    assert!(!holds(b"private") && !holds(root.expose()) && !holds(&root.session_id().0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(read_root(&path, &FileSecret::generate()), Err(ClientError::JournalDamaged { .. })));
    assert_eq!(read_root(&path, &secret).unwrap(), root);
    assert!(matches!(Journal::open(&path, &secret, true), Err(ClientError::InUse(_))), "a second writer");
    drop(journal);
    assert!(Journal::open(&path, &secret, true).is_ok());
}

#[test]
fn a_journal_of_the_format_before_is_not_called_damaged() {
    let written = JournalFixture::new();
    let mut bytes = written.bytes.clone();
    bytes[MAGIC.len() - 2] = *OLD_VERSIONS.end();
    for refused in [written.read(&bytes).map(|_| ()), written.open().map(|_| ())] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, ClientError::File { action: "read", .. }), "{refused}");
        assert!(refused.to_string().contains("older format"), "{refused}");
    }
    assert_eq!(fs::read(&written.path).unwrap(), bytes);
}

fn path_of(journal: &Journal) -> PathBuf {
    let JournalSink::File(open) = &journal.sink else { panic!("the journal is in no file") };
    open.path.clone()
}

#[derive(Default)]
struct Bytes {
    bytes: parking_lot::Mutex<Vec<u8>>,
    fail: std::sync::atomic::AtomicBool,
}

impl JournalLog for Bytes {
    fn read(&self) -> io::Result<Vec<u8>> {
        Ok(self.bytes.lock().clone())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut kept = self.bytes.lock();
        kept.truncate(usize::try_from(offset).unwrap());
        if self.fail.load(std::sync::atomic::Ordering::SeqCst) {
            // As a log that fails midway.
            kept.extend_from_slice(&bytes[..bytes.len() / 2]);
            return Err(io::Error::other("full"));
        }
        kept.extend_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn a_log_holds_what_was_flushed_and_is_cut_where_it_was_torn() {
    let kept = Arc::new(Bytes::default());
    let log: Arc<dyn JournalLog> = kept.clone();
    let root = SessionRoot::generate();
    let journals = Journals::without_files(JournalLocation::Log(log.clone()));
    assert!(Journal::open_log(&log, &root).unwrap().is_none());
    let mut journal = Journal::create(&journals, &root, &[entry("opened")]).unwrap();
    journal.append(&[entry("noted")], false).unwrap();
    let read = || {
        let (_, contents) = Journal::open_log(&log, &root).unwrap().unwrap();
        contents.entries.iter().map(|entry| String::from_utf8(entry.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(read(), ["opened"], "what may be lost waits");
    journal.append(&[entry("recorded")], true).unwrap();
    assert_eq!(read(), ["opened", "noted", "recorded"]);

    kept.fail.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(matches!(journal.append(&[entry("lost")], true), Err(ClientError::Log { .. })));
    kept.fail.store(false, std::sync::atomic::Ordering::SeqCst);
    journal.append(&[entry("again")], true).unwrap();
    assert_eq!(read(), ["opened", "noted", "recorded", "again"]);

    // Torn when its writer ended; then of another session, or changed.
    let whole = kept.bytes.lock().len();
    kept.bytes.lock().truncate(whole - 1);
    assert_eq!(read().len(), 3);
    assert!(kept.bytes.lock().len() < whole - 1, "the torn end is gone");
    assert!(matches!(
        Journal::open_log(&log, &SessionRoot::generate()),
        Err(ClientError::JournalDamaged { .. })
    ));
    *kept.bytes.lock().last_mut().unwrap() ^= 1;
    assert!(matches!(Journal::open_log(&log, &root), Err(ClientError::JournalDamaged { entry: 3, .. })));
}

#[test]
fn a_session_whose_file_cannot_be_written_is_read_and_refuses_changes_with_that_reason() {
    use crate::session::{
        open_session::{ReadOnly, Session},
        state::SessionHeader,
    };
    let denied = |kind: io::ErrorKind| file_error("open", Path::new("x"), kind.into());
    assert!(ReadOnly::of(&denied(io::ErrorKind::NotFound)).is_none());
    for kind in [io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied] {
        let folder = tempfile::tempdir().unwrap();
        let secret = FileSecret::generate();
        let root = SessionRoot::generate();
        let device_id = baton_proto::ids::DeviceId([1; 16]);
        let header = SessionHeader {
            n_shards: 10,
            branch: None,
            device_id,
            created_ms: 0,
            system: Vec::new(),
            project: None,
        };
        let journals = in_folder(folder.path(), &secret);
        drop(Session::create(&journals, root, header, Vec::new()).unwrap());
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let session = Session::open_to_read(&path, &secret, ReadOnly::of(&denied(kind)).unwrap()).unwrap();
        assert!(session.is_read_only());
        let refused = session.check_writable().unwrap_err();
        assert!(matches!(&refused, ClientError::File { source, .. } if source.kind() == kind), "{refused}");
    }
}

/// A journal with three entries, the snapshot `of the three`, and one entry after it; `last` is its length at the
/// snapshot.
fn with_snapshot() -> JournalFixture {
    let written = JournalFixture::new();
    written.open().unwrap().0.close_with_snapshot(&[entry("of the"), entry("three")]).unwrap();
    let (mut journal, contents) = written.open().unwrap();
    assert_eq!((texts(&contents), contents.in_snapshot), (vec!["of the".to_owned(), "three".to_owned()], 3));
    journal.append(&[entry("after")], true).unwrap();
    drop(journal);
    let (last, bytes) = (written.bytes.len(), fs::read(&written.path).unwrap());
    JournalFixture { bytes, last, ..written }
}

fn opened(written: &JournalFixture) -> Vec<String> {
    texts(&written.open().unwrap().1)
}

#[test]
fn a_cut_at_any_byte_after_a_snapshot_leaves_the_whole_entries_before_it() {
    let written = with_snapshot();
    let (bytes, before) = (&written.bytes, written.last);
    for cut in before..=bytes.len() {
        fs::write(&written.path, &bytes[..cut]).unwrap();
        let (mut journal, contents) = written.open().unwrap();
        let torn = if cut == bytes.len() { &[][..] } else { &bytes[before..cut] };
        assert_eq!(contents.torn, torn, "cut at {cut}");
        journal.append(&[entry("after the crash")], true).unwrap();
        let all = journal.read_all(contents.root.clone()).unwrap().unwrap();
        let after = if cut == bytes.len() { &["after", "after the crash"][..] } else { &["after the crash"] };
        assert_eq!(texts(&all), [&["opened", "second", "the last one"], after].concat(), "cut at {cut}");
        drop(journal);
        assert_eq!(opened(&written), [&["of the", "three"], after].concat(), "cut at {cut}");
    }
    written.open().unwrap().0.remove().unwrap();
    assert_eq!(fs::read_dir(written.folder.path()).unwrap().count(), 0, "a removal leaves nothing");
}

#[test]
fn a_snapshot_that_is_changed_or_of_another_journal_counts_as_none() {
    let written = with_snapshot();
    let JournalFixture { path, bytes, last: before, secret, .. } = &written;
    let snapshot = path.with_extension("snapshot");
    let sealed = fs::read(&snapshot).unwrap();
    let all = ["opened", "second", "the last one", "after"];
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        for wrong in [&changed, &sealed[..at]] {
            fs::write(&snapshot, wrong).unwrap();
            assert_eq!(opened(&written), all, "at {at}");
        }
    }
    // The journal of an earlier copy of the home, written on elsewhere.
    fs::write(&snapshot, &sealed).unwrap();
    fs::write(path, &bytes[..before - 1]).unwrap();
    assert_eq!(opened(&written), ["opened", "second"]);
    let (mut journal, _) = written.open().unwrap();
    journal.append(&[entry("THE LAST ONE"), entry("AFTER")], true).unwrap();
    drop(journal);
    assert_eq!(fs::read(path).unwrap().len(), bytes.len());
    assert_eq!(opened(&written), ["opened", "second", "THE LAST ONE", "AFTER"]);
    // Damage before a snapshot is found where all entries are read.
    let mut damaged = bytes.clone();
    damaged[START + HEAD_BYTES + 1] ^= 1;
    fs::write(path, damaged).unwrap();
    assert_eq!(opened(&written), ["of the", "three", "after"]);
    let refused = Journal::open(path, secret, false).map(|_| ()).unwrap_err();
    assert!(matches!(refused, ClientError::JournalDamaged { entry: 1, .. }), "{refused}");
}
