//! The behaviour of every storage.

use baton_memory::storage::{
    Batch, JobChange, MAX_RECORD_BYTES, Space, Storage as _, StorageError,
    embedded::{EmbeddedConfig, EmbeddedStorage},
};

use crate::storage::support::{embedded, puts, read_all, record, somebody, storages};

#[tokio::test]
async fn a_commit_is_whole_and_raises_the_version_by_one() {
    for test in storages().await {
        let (storage, owner) = (&test.storage, somebody());
        assert_eq!(storage.version(owner).await.unwrap(), 0, "{}", test.name);
        let batch = puts(vec![
            record(Space::Log, 1, b"one"),
            record(Space::Log, 2, b""),
            record(Space::Features, 1, b"f"),
        ]);
        let first = storage.commit(owner, 0, batch).await.unwrap();
        assert!(first > 0);
        let batch = Batch {
            put: vec![record(Space::Log, 1, b"other"), record(Space::Snapshot, 0, b"s")],
            remove: vec![(Space::Log, 2), (Space::Features, 1), (Space::Features, 77)],
            ..Batch::default()
        };
        assert_eq!(storage.commit(owner, first, batch).await.unwrap(), first + 1);
        assert_eq!(storage.version(owner).await.unwrap(), first + 1);
        assert_eq!(read_all(&**storage, owner, Space::Log, 1).await, [(1, b"other".to_vec())]);
        assert!(read_all(&**storage, owner, Space::Features, 1).await.is_empty());
        assert_eq!(read_all(&**storage, owner, Space::Snapshot, 1).await, [(0, b"s".to_vec())]);
        assert_eq!(storage.commit(owner, first + 1, Batch::default()).await.unwrap(), first + 2);
    }
}

#[tokio::test]
async fn a_commit_on_another_version_conflicts_and_changes_nothing() {
    for test in storages().await {
        let (storage, owner) = (&test.storage, somebody());
        let early = storage.commit(owner, 7, puts(vec![record(Space::Log, 1, b"x")])).await;
        assert!(matches!(early, Err(StorageError::Conflict)), "{}", test.name);
        assert_eq!(storage.version(owner).await.unwrap(), 0);
        let first = storage.commit(owner, 0, puts(vec![record(Space::Log, 1, b"one")])).await.unwrap();
        for stale in [0, first - 1, first + 1] {
            let batch = Batch {
                put: vec![record(Space::Log, 1, b"two")],
                remove: vec![(Space::Log, 1)],
                job: Some(JobChange::Due(5)),
                ..Batch::default()
            };
            assert!(matches!(storage.commit(owner, stale, batch).await, Err(StorageError::Conflict)));
        }
        assert_eq!(read_all(&**storage, owner, Space::Log, 100).await, [(1, b"one".to_vec())]);
        assert_eq!(storage.version(owner).await.unwrap(), first);
    }
}

#[tokio::test]
async fn pages_give_every_record_once_in_order_whatever_their_size() {
    for test in storages().await {
        let (storage, owner, other) = (&test.storage, somebody(), somebody());
        let mut wanted = Vec::new();
        let numbers = [0, 1, 2, 255, 256, 257, 65_535, u64::from(u32::MAX) + 9, u64::MAX - 1];
        for (index, number) in numbers.into_iter().enumerate() {
            let length = [0, 1, 600, 4095, 4096, 4097, 8192, 30_000, 700_000][index];
            wanted.push((number, vec![index as u8 + 1; length]));
        }
        let batch = puts(
            wanted.iter().rev().map(|(number, bytes)| record(Space::Sessions, *number, bytes)).collect(),
        );
        storage.commit(owner, 0, batch).await.unwrap();
        storage.commit(other, 0, puts(vec![record(Space::Sessions, 3, b"other")])).await.unwrap();
        for max_bytes in [0, 1, 5000, 100_000, usize::MAX >> 1] {
            assert_eq!(
                read_all(&**storage, owner, Space::Sessions, max_bytes).await,
                wanted,
                "{}",
                test.name
            );
        }
        let page = storage.read(owner, Space::Sessions, 0, 5000).await.unwrap();
        assert!(page.len() > 1 && page.len() < wanted.len());
        assert_eq!(storage.read(owner, Space::Sessions, 257, 0).await.unwrap()[0].0, 257);
        assert!(storage.read(owner, Space::Log, 0, 100).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    for test in storages().await {
        let bytes = vec![0; MAX_RECORD_BYTES + 1];
        let refused = test.storage.commit(somebody(), 0, puts(vec![record(Space::Log, 0, &bytes)])).await;
        assert!(matches!(refused, Err(StorageError::TooLarge { .. })), "{}", test.name);
    }
}

#[tokio::test]
async fn owners_are_listed_in_pages_and_see_nothing_of_each_other() {
    for test in storages().await {
        let storage = &test.storage;
        let mut owners: Vec<_> = (0..7).map(|_| somebody()).collect();
        for owner in &owners {
            let job = Some(JobChange::Due(u64::MAX >> 1));
            let batch = Batch { job, ..puts(vec![record(Space::Log, 1, &owner.0)]) };
            storage.commit(*owner, 0, batch).await.unwrap();
        }
        owners.sort();
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = storage.owners(after, 3).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(*last);
            listed.extend(page);
        }
        assert!(listed.is_sorted());
        listed.retain(|owner| owners.contains(owner));
        assert_eq!(listed, owners, "{}", test.name);
        for owner in &owners {
            assert_eq!(read_all(&**storage, *owner, Space::Log, 1).await, [(1, owner.0.to_vec())]);
        }
    }
}

#[tokio::test]
async fn erasing_an_owner_removes_everything_of_it_and_nothing_of_others() {
    for test in storages().await {
        let (storage, owner, other) = (&test.storage, somebody(), somebody());
        let batch = || Batch {
            put: vec![
                record(Space::Log, 1, b"x"),
                record(Space::Features, 1, b"y"),
                record(Space::Sessions, 9, b"z"),
            ],
            job: Some(JobChange::Due(10)),
            ..Batch::default()
        };
        let first = storage.commit(owner, 0, batch()).await.unwrap();
        storage.commit(other, 0, batch()).await.unwrap();
        storage.erase(owner).await.unwrap();
        storage.erase(owner).await.unwrap();
        assert_eq!(storage.version(owner).await.unwrap(), 0, "{}", test.name);
        for space in [Space::Log, Space::Features, Space::Snapshot, Space::Sessions] {
            assert!(read_all(&**storage, owner, space, 1).await.is_empty());
        }
        assert_eq!(read_all(&**storage, other, Space::Log, 1).await.len(), 1);
        let due = storage.take_due(100, u64::MAX >> 1, 10_000).await.unwrap();
        assert!(!due.contains(&owner) && due.contains(&other));
        assert!(matches!(storage.commit(owner, first, batch()).await, Err(StorageError::Conflict)));
        // A recreated owner is not mistaken for the erased one.
        assert_ne!(storage.commit(owner, 0, batch()).await.unwrap(), first);
    }
}

#[tokio::test]
async fn due_jobs_are_taken_once_earliest_first_and_come_again() {
    for test in storages().await {
        let (storage, owners) = (&test.storage, [somebody(), somebody(), somebody()]);
        let [a, b, c] = owners;
        let base = 1000;
        let change = async |owner, version, job| {
            storage.commit(owner, version, Batch { job: Some(job), ..Batch::default() }).await.unwrap()
        };
        let first = change(a, 0, JobChange::Due(base + 30)).await;
        let other = change(b, 0, JobChange::Due(base + 10)).await;
        change(c, 0, JobChange::Due(base + 20)).await;
        change(somebody(), 0, JobChange::Due(base + 1000)).await;
        let take = async |now_ms, again_ms| {
            let due = storage.take_due(now_ms, again_ms, 10_000).await.unwrap();
            due.into_iter().filter(|owner| owners.contains(owner)).collect::<Vec<_>>()
        };
        assert_eq!(take(base + 40, base + 500).await, [b, c, a], "{}", test.name);
        assert!(take(base + 40, base + 500).await.is_empty());
        // Finished and moved jobs do not return unchanged.
        change(a, first, JobChange::Due(base + 50)).await;
        change(b, other, JobChange::Done).await;
        assert_eq!(take(base + 60, base + 900).await, [a]);
        assert_eq!(take(base + 500, base + 900).await, [c]);
        assert_eq!(take(base + 900, base + 5000).await.len(), 2);
    }
}

#[tokio::test]
async fn a_nonce_is_taken_once_until_it_runs_out() {
    for test in storages().await {
        let storage = &test.storage;
        let nonce = |last: u8| {
            let mut nonce = [0; 32];
            nonce[..16].copy_from_slice(&somebody().0);
            nonce[31] = last;
            nonce
        };
        let wanted = nonce(99);
        let takers = (0..16).map(|_| storage.take_nonce(wanted, 1000, 1300));
        let taken = futures::future::join_all(takers).await;
        assert_eq!(taken.into_iter().filter(|taken| *taken.as_ref().unwrap()).count(), 1, "{}", test.name);
        let (one, two) = (nonce(1), nonce(2));
        assert!(storage.take_nonce(one, 1000, 1300).await.unwrap(), "{}", test.name);
        assert!(!storage.take_nonce(one, 1001, 1301).await.unwrap());
        assert!(storage.take_nonce(two, 1001, 1301).await.unwrap());
        assert!(!storage.take_nonce(one, 1300, 1600).await.unwrap());
        assert!(storage.take_nonce(one, 1301, 1601).await.unwrap());
        assert!(!storage.take_nonce(one, 1500, 1800).await.unwrap());
        let many: Vec<_> = (0..40).map(nonce).collect();
        for nonce in &many {
            assert!(storage.take_nonce(*nonce, 2000, 2300).await.unwrap());
        }
        for nonce in &many {
            assert!(storage.take_nonce(*nonce, 2301, 2600).await.unwrap());
        }
    }
}

#[tokio::test]
async fn a_folder_is_opened_by_one_at_a_time_and_refused_when_it_holds_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join(name)));
    let first = open("database").unwrap();
    let second = open("database").err().expect("it is open already");
    assert!(second.to_string().contains("another process"), "{second}");
    drop(first);
    open("database").unwrap();
    let file = |name: &str| EmbeddedConfig::new(folder.path().join(name)).file();
    // The database of a later version.
    rusqlite::Connection::open(file("database")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let later = open("database").err().expect("its layout is not known");
    assert!(matches!(later, StorageError::OtherVersion { found: 99, .. }), "{later}");
    // Another program's, and no database at all.
    for (name, content) in [("other", None), ("text", Some("a text of some length".repeat(100)))] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        match content {
            Some(content) => std::fs::write(file(name), content).unwrap(),
            None => {
                let other = rusqlite::Connection::open(file(name)).unwrap();
                other.execute_batch("CREATE TABLE something (else_ TEXT)").unwrap();
            }
        }
        let refused = open(name).err().expect("it is no database of memories");
        assert!(matches!(refused, StorageError::Damaged(_)), "{name}: {refused}");
    }
    std::fs::write(folder.path().join("file"), b"x").unwrap();
    assert!(matches!(open("file"), Err(StorageError::Unavailable(_))));
}

/// The operator's budget of bytes counts these: a deletion makes room, although the file keeps its length.
#[tokio::test]
async fn stored_bytes_grow_with_records_and_shrink_with_deletions() {
    let folder = tempfile::tempdir().unwrap();
    let storage = embedded(folder.path());
    let bytes = async || storage.stored_bytes().await.unwrap().unwrap();
    let empty = bytes().await;
    let owner = somebody();
    let records = (0..50).map(|number| record(Space::Log, number, &[7; 20_000])).collect();
    storage.commit(owner, 0, puts(records)).await.unwrap();
    let full = bytes().await;
    assert!((1_000_000..1_300_000).contains(&(full - empty)), "{empty}, then {full}");
    storage.erase(owner).await.unwrap();
    assert!(bytes().await < empty + 20_000, "{empty}, then {}", bytes().await);
}

/// An empty file beside a log would hide the log's acknowledged writes, and then mix with them.
#[tokio::test]
async fn a_log_without_its_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(folder.path().to_owned());
    std::fs::write(folder.path().join("memory.sqlite-wal"), b"a log").unwrap();
    let refused = EmbeddedStorage::open(&config).err().expect("its database is missing");
    assert!(refused.to_string().contains("missing") && refused.to_string().contains("restore"), "{refused}");
    assert!(!config.file().exists());
}

#[tokio::test]
async fn files_and_folder_are_the_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    let storage = embedded(&path);
    storage.commit(somebody(), 0, puts(vec![record(Space::Log, 1, b"x")])).await.unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for name in ["memory.sqlite", "memory.sqlite-wal", "memory.sqlite-shm"] {
        assert_eq!(mode(&path.join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_the_folder_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    let (owner, mut version) = (somebody(), 0);
    for round in 0..5u64 {
        let storage = embedded(&path);
        assert_eq!(storage.version(owner).await.unwrap(), version);
        let job = Some(JobChange::Due(100 + round));
        let batch = Batch { job, ..puts(vec![record(Space::Log, round, &vec![1; 9000])]) };
        version = storage.commit(owner, version, batch).await.unwrap();
        assert!(storage.take_nonce([round as u8; 32], 0, 1000).await.unwrap());
        assert!(!storage.take_nonce([0; 32], 0, 1000).await.unwrap());
    }
    let storage = embedded(&path);
    assert_eq!(read_all(&storage, owner, Space::Log, 1).await.len(), 5);
    assert!(storage.take_due(103, 1000, 10).await.unwrap().is_empty());
    assert_eq!(storage.take_due(104, 1000, 10).await.unwrap(), [owner]);
}

#[tokio::test]
async fn a_job_that_a_dead_process_took_is_due_again_when_the_folder_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    let (owner, other) = (somebody(), somebody());
    let job = |change| Batch { job: Some(change), ..Batch::default() };
    let version = {
        let storage = embedded(&path);
        // One job is due now, one waits for its next try.
        storage.commit(other, 0, job(JobChange::Due(5_000))).await.unwrap();
        let version = storage.commit(owner, 0, job(JobChange::Due(50))).await.unwrap();
        assert_eq!(storage.take_due(100, 120_100, 10).await.unwrap(), [owner]);
        assert!(storage.take_due(100, 120_100, 10).await.unwrap().is_empty(), "it is taken");
        version
    };
    for _ in 0..2 {
        let storage = embedded(&path);
        assert!(storage.take_due(49, 120_100, 10).await.unwrap().is_empty());
        assert_eq!(storage.take_due(50, 120_100, 10).await.unwrap(), [owner]);
    }
    // A job that was finished or postponed afterwards is not restored.
    for (version, change, due) in
        [(version, JobChange::Due(9_000), vec![other, owner]), (version + 1, JobChange::Done, vec![other])]
    {
        let storage = embedded(&path);
        assert_eq!(storage.take_due(100, 120_100, 10).await.unwrap().len(), usize::from(due.len() == 2));
        storage.commit(owner, version, job(change)).await.unwrap();
        drop(storage);
        assert_eq!(embedded(&path).take_due(9_000, 120_100, 10).await.unwrap(), due);
    }
}
