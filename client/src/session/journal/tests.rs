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

/// A journal with three entries: its bytes and the offset of the last entry.
fn written(folder: &Path, secret: &FileSecret) -> (PathBuf, Vec<u8>, usize) {
    let root = SessionRoot::generate();
    let mut journal = Journal::create(&in_folder(folder, secret), &root, &[entry("opened")]).unwrap();
    journal.append(&[entry("second")], true).unwrap();
    let path = path_of(&journal);
    let before = fs::read(&path).unwrap().len();
    journal.append(&[entry("the last one")], true).unwrap();
    drop(journal);
    let bytes = fs::read(&path).unwrap();
    (path, bytes, before)
}

#[test]
fn a_cut_at_every_byte_of_the_last_entry_leaves_the_state_before_or_after() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, last) = written(folder.path(), &secret);
    for cut in last..=bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let (mut journal, contents) = Journal::open(&path, &secret, true).unwrap();
        let mut expected = vec!["opened", "second"];
        if cut == bytes.len() {
            expected.push("the last one");
        }
        assert_eq!(texts(&contents), expected, "cut at {cut}");
        journal.append(&[entry("after the crash")], true).unwrap();
        drop(journal);
        expected.push("after the crash");
        assert_eq!(texts(&read(&path, &secret, false).unwrap()), expected, "cut at {cut}");
    }
}

#[test]
fn a_last_entry_of_zeros_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, last) = written(folder.path(), &secret);
    for zeros_from in [last, last + 4, last + 20, last + HEAD_BYTES, bytes.len() - TORN_ZEROS] {
        let mut torn = bytes.clone();
        torn[zeros_from..].fill(0);
        fs::write(&path, &torn).unwrap();
        assert_eq!(texts(&read(&path, &secret, false).unwrap()), ["opened", "second"]);
    }
}

#[test]
fn a_cut_at_any_byte_leaves_the_whole_entries_before_it_and_keeps_the_rest_beside() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, _) = written(folder.path(), &secret);
    let start = MAGIC.len() + ROOT_BYTES;
    let all = ["opened", "second", "the last one"];
    let frame = |text: &str| HEAD_BYTES + 24 + text.len() + 16;
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        if cut < start {
            let refused = Journal::open(&path, &secret, true).map(|_| ()).unwrap_err();
            assert!(matches!(refused, ClientError::JournalDamaged { entry: 0, .. }), "cut at {cut}");
            continue;
        }
        let (mut whole, mut end) = (0, start);
        while end + frame(all[whole]) <= cut {
            end += frame(all[whole]);
            whole += 1;
        }
        let (journal, contents) = Journal::open(&path, &secret, true).unwrap();
        assert_eq!(texts(&contents), all[..whole], "cut at {cut}");
        assert_eq!(fs::read(&path).unwrap(), bytes[..end], "cut at {cut}");
        let kept = quarantine::torn_files(&path).unwrap();
        let kept: Vec<_> = kept.iter().map(|path| fs::read(path).unwrap()).collect();
        let expected = if cut == end { vec![] } else { vec![bytes[end..cut].to_vec()] };
        assert_eq!(kept, expected, "cut at {cut}");
        journal.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a removal leaves nothing");
    }
}

#[test]
fn a_change_of_any_byte_is_refused_and_named_and_the_file_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, last) = written(folder.path(), &secret);
    let start = MAGIC.len() + ROOT_BYTES;
    let second = start + HEAD_BYTES + 24 + "opened".len() + 16;
    for offset in 0..bytes.len() {
        for change in [0x10, 0x80, bytes[offset]] {
            let mut changed = bytes.clone();
            changed[offset] ^= change;
            if changed == bytes {
                continue;
            }
            fs::write(&path, &changed).unwrap();
            let expected = [start, second, last].iter().filter(|begin| offset >= **begin).count() as u64;
            let refused = Journal::open(&path, &secret, true).map(|_| ()).unwrap_err();
            assert!(
                matches!(refused, ClientError::JournalDamaged { entry, .. } if entry == expected),
                "{offset}: {refused}"
            );
            assert_eq!(fs::read(&path).unwrap(), changed, "{offset}");
        }
    }
}

#[test]
fn a_moved_or_missing_entry_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, last) = written(folder.path(), &secret);
    let start = MAGIC.len() + ROOT_BYTES;
    let second = start + HEAD_BYTES + 24 + "opened".len() + 16;
    let parts = [&bytes[..start], &bytes[start..second], &bytes[second..last], &bytes[last..]];
    for (order, entry) in [(vec![0, 1, 3], 2), (vec![0, 2, 1, 3], 1), (vec![0, 1, 2, 2, 3], 3)] {
        let changed: Vec<u8> = order.iter().flat_map(|part| parts[*part].to_vec()).collect();
        fs::write(&path, changed).unwrap();
        let refused = read(&path, &secret, false).map(|_| ()).unwrap_err();
        assert!(matches!(refused, ClientError::JournalDamaged { entry: at, .. } if at == entry), "{order:?}");
    }
}

#[test]
fn the_root_comes_out_of_a_journal_that_is_damaged_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, last) = written(folder.path(), &secret);
    let root = read_root(&path, &secret).unwrap();
    for offset in [0, MAGIC.len() + ROOT_BYTES, last] {
        let mut changed = bytes.clone();
        changed[offset] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert!(read(&path, &secret, false).is_err());
        assert_eq!(read_root(&path, &secret).unwrap(), root);
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
}

#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let root = SessionRoot::generate();
    let journal = Journal::create(&in_folder(folder.path(), &secret), &root, &[]).unwrap();
    let path = path_of(&journal);
    assert!(matches!(Journal::open(&path, &secret, true), Err(ClientError::InUse(_))));
    drop(journal);
    assert!(Journal::open(&path, &secret, true).is_ok());
}

#[test]
fn a_journal_of_the_format_before_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, mut bytes, _) = written(folder.path(), &secret);
    bytes[MAGIC.len() - 2] = *OLD_VERSIONS.end();
    fs::write(&path, &bytes).unwrap();
    for refused in [read(&path, &secret, false).map(|_| ()), Journal::open(&path, &secret, true).map(|_| ())]
    {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, ClientError::File { action: "read", .. }), "{refused}");
        assert!(refused.to_string().contains("older format"), "{refused}");
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
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

/// A journal with three entries, the snapshot `of the three`, and one entry after it. Its path, its bytes, and the
/// length at the snapshot.
fn with_snapshot(folder: &Path, secret: &FileSecret) -> (PathBuf, Vec<u8>, usize) {
    let (path, before, _) = written(folder, secret);
    let (journal, _) = Journal::open(&path, secret, true).unwrap();
    journal.close_with_snapshot(&[entry("of the"), entry("three")]).unwrap();
    let (mut journal, contents) = Journal::open(&path, secret, true).unwrap();
    assert_eq!((texts(&contents), contents.in_snapshot), (vec!["of the".to_owned(), "three".to_owned()], 3));
    journal.append(&[entry("after")], true).unwrap();
    drop(journal);
    (path.clone(), fs::read(path).unwrap(), before.len())
}

fn opened(path: &Path, secret: &FileSecret) -> Vec<String> {
    texts(&Journal::open(path, secret, true).unwrap().1)
}

#[test]
fn a_cut_at_any_byte_after_a_snapshot_leaves_the_whole_entries_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, before) = with_snapshot(folder.path(), &secret);
    for cut in before..=bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let (mut journal, contents) = Journal::open(&path, &secret, true).unwrap();
        assert_eq!(
            contents.torn,
            if cut == bytes.len() { &[][..] } else { &bytes[before..cut] },
            "cut at {cut}"
        );
        journal.append(&[entry("after the crash")], true).unwrap();
        let all = journal.read_all(contents.root.clone()).unwrap().unwrap();
        let after = if cut == bytes.len() { &["after", "after the crash"][..] } else { &["after the crash"] };
        assert_eq!(texts(&all), [&["opened", "second", "the last one"], after].concat(), "cut at {cut}");
        drop(journal);
        assert_eq!(opened(&path, &secret), [&["of the", "three"], after].concat(), "cut at {cut}");
    }
    let (journal, _) = Journal::open(&path, &secret, true).unwrap();
    journal.remove().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a removal leaves nothing");
}

#[test]
fn a_snapshot_that_is_changed_or_of_another_journal_counts_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let (path, bytes, before) = with_snapshot(folder.path(), &secret);
    let snapshot = path.with_extension("snapshot");
    let sealed = fs::read(&snapshot).unwrap();
    let all = ["opened", "second", "the last one", "after"];
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        for wrong in [&changed, &sealed[..at]] {
            fs::write(&snapshot, wrong).unwrap();
            assert_eq!(opened(&path, &secret), all, "at {at}");
        }
    }
    // The journal of an earlier copy of the home, written on elsewhere.
    fs::write(&snapshot, &sealed).unwrap();
    fs::write(&path, &bytes[..before - 1]).unwrap();
    assert_eq!(opened(&path, &secret), ["opened", "second"]);
    let (mut journal, _) = Journal::open(&path, &secret, true).unwrap();
    journal.append(&[entry("THE LAST ONE"), entry("AFTER")], true).unwrap();
    drop(journal);
    assert_eq!(fs::read(&path).unwrap().len(), bytes.len());
    assert_eq!(opened(&path, &secret), ["opened", "second", "THE LAST ONE", "AFTER"]);
    // Damage before a snapshot is found where all entries are read.
    let mut damaged = bytes;
    damaged[START + HEAD_BYTES + 1] ^= 1;
    fs::write(&path, damaged).unwrap();
    assert_eq!(opened(&path, &secret), ["of the", "three", "after"]);
    let refused = Journal::open(&path, &secret, false).map(|_| ()).unwrap_err();
    assert!(matches!(refused, ClientError::JournalDamaged { entry: 1, .. }), "{refused}");
}
