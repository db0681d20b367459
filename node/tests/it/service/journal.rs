//! The journal: the seen-set across restarts, and the retention of entries.

use std::{path::Path, time::Duration};

use baton_node::journal::{EntryState, Journal, JournalLimits, PutPlan, SealedEntry, TurnKey};
use baton_node::ledger::ReceiptKind;
use baton_proto::{
    ErrorCode, SignedBytes,
    ids::{AuthHash, BlobDigest, BlobId, FetchProof, LinkHash, ReceiptHash, SessionId, TurnId},
    link::blob_digest,
    record::FinishReason,
    signed::SignatureBytes,
    wire::{Committed, StoreState},
};
use tempfile::tempdir;

pub(super) const STORED: StoreState = StoreState::Stored { blob_id: BlobId([1; 32]), end_epoch: None };

pub(super) fn key(attempt: u32) -> TurnKey {
    TurnKey { session_id: SessionId([1; 32]), turn_id: TurnId([2; 16]), attempt }
}

pub(super) fn hash(fill: u8) -> AuthHash {
    AuthHash([fill; 32])
}

fn sealed(blob: &[u8], store: StoreState) -> SealedEntry {
    let signed = SignedBytes { body: vec![1; 300], signature: SignatureBytes([2; 64]) };
    SealedEntry {
        committed: Committed {
            link: signed.clone(),
            receipt: signed,
            blob_digest: blob_digest(blob),
            blob_length: u32::try_from(blob.len()).unwrap(),
            finish: FinishReason::Stop,
        },
        fetch_proof: FetchProof([5; 32]),
        link_hash: LinkHash([3; 32]),
        receipt_hash: ReceiptHash([4; 32]),
        store,
        plan: PutPlan { epochs: 1, send_object_to: None, n_shards: 10 },
        receipt_kind: ReceiptKind::Paying,
        ack: None,
    }
}

fn open(folder: &Path, limits: JournalLimits) -> Journal {
    Journal::open(folder, limits, 1000).unwrap()
}

pub(super) async fn seal(
    journal: &Journal,
    attempt: u32,
    blob: Vec<u8>,
    store: StoreState,
    now_ms: u64,
) -> BlobDigest {
    let digest = blob_digest(&blob);
    journal.accept(key(attempt), hash(1), now_ms + 100, now_ms).await.unwrap().unwrap();
    journal.seal(key(attempt), hash(1), sealed(&blob, store), blob).await.unwrap().unwrap();
    digest
}

#[tokio::test]
async fn remembers_across_a_restart_and_keeps_its_beginning() {
    let folder = tempdir().unwrap();
    let journal = open(folder.path(), JournalLimits::default());
    assert_eq!(journal.accept(key(0), hash(1), 9000, 2000).await.unwrap(), Ok(None));
    let digest = seal(&journal, 1, vec![7; 100], StoreState::Pending, 2000).await;
    journal.flush().await.unwrap();
    drop(journal);

    let journal = Journal::open(folder.path(), JournalLimits::default(), 5000).unwrap();
    assert_eq!(journal.begins_ms(), 1000, "the beginning is that of the first opening");
    assert_eq!(journal.accept(key(0), hash(1), 9000, 5000).await.unwrap(), Ok(None), "it may run again");
    let again = journal.accept(key(1), hash(1), 9000, 5000).await.unwrap().unwrap();
    assert_eq!(again.map(|entry| entry.committed.blob_digest), Some(digest), "it may not");
    assert_eq!(journal.blob(digest).await.unwrap(), Some(vec![7; 100]));
    let unstored: Vec<_> = journal.unstored().await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(unstored, [key(1)]);
    journal.set_store(key(1), STORED).await.unwrap();
    assert!(journal.unstored().await.unwrap().is_empty());
}

#[tokio::test]
async fn seals_an_attempt_once_and_only_for_its_own_authorisation() {
    let folder = tempdir().unwrap();
    let journal = open(folder.path(), JournalLimits::default());
    journal.accept(key(0), hash(1), 9000, 2000).await.unwrap().unwrap();
    let other = journal.accept(key(0), hash(2), 9000, 2000).await.unwrap();
    assert_eq!(other, Err(ErrorCode::IdempotencyConflict));
    let entry = || sealed(b"blob", StoreState::Pending);
    for (auth, expected) in [
        (hash(2), Err(ErrorCode::IdempotencyConflict)),
        (hash(1), Ok(())),
        (hash(1), Err(ErrorCode::IdempotencyConflict)),
    ] {
        assert_eq!(journal.seal(key(0), auth, entry(), b"blob".to_vec()).await.unwrap(), expected);
    }
    let never = journal.seal(key(5), hash(1), entry(), b"blob".to_vec()).await.unwrap();
    assert_eq!(never, Err(ErrorCode::Internal), "an attempt that was not accepted is not sealed");
}

#[tokio::test]
async fn an_abort_forbids_sealing_and_takes_the_blob_but_not_after_an_acknowledgement() {
    let folder = tempdir().unwrap();
    let journal = open(folder.path(), JournalLimits::default());
    journal.accept(key(0), hash(1), 9000, 2000).await.unwrap().unwrap();
    journal.abort(key(0), 2000).await.unwrap().unwrap();
    let late = journal.seal(key(0), hash(1), sealed(b"x", STORED), b"x".to_vec()).await.unwrap();
    assert_eq!(late, Err(ErrorCode::Aborted));
    assert_eq!(journal.accept(key(0), hash(1), 9000, 2000).await.unwrap(), Err(ErrorCode::Aborted));

    let acknowledge = async |session, digest| {
        let ack = SignedBytes { body: vec![5], signature: SignatureBytes([6; 64]) };
        let named = (LinkHash([3; 32]), ReceiptHash([4; 32]));
        journal.acknowledge(SessionId([session; 32]), digest, named, ack).await.unwrap()
    };
    let digest = seal(&journal, 1, vec![7; 100], StoreState::GivenUp, 2000).await;
    assert_eq!(journal.unstored().await.unwrap().len(), 1, "the next start tries again what was given up");
    journal.abort(key(1), 2000).await.unwrap().unwrap();
    assert_eq!(journal.blob(digest).await.unwrap(), None);
    assert!(journal.unstored().await.unwrap().is_empty());
    assert_eq!(acknowledge(1, digest).await, Err(ErrorCode::StatusUnknown), "its blob is not known any more");

    let digest = seal(&journal, 2, vec![8; 100], STORED, 2000).await;
    assert_eq!(acknowledge(9, digest).await, Err(ErrorCode::StatusUnknown));
    acknowledge(1, digest).await.unwrap();
    assert_eq!(journal.abort(key(2), 2000).await.unwrap(), Err(ErrorCode::IdempotencyConflict));
}

#[tokio::test]
async fn an_abort_that_comes_before_its_request_refuses_it_for_as_long_as_it_is_valid() {
    let folder = tempdir().unwrap();
    let limits = JournalLimits { retention: Duration::from_secs(1), ..JournalLimits::default() };
    let journal = open(folder.path(), limits);
    journal.abort(key(0), 2000).await.unwrap().unwrap();
    let accept =
        async |attempt, now_ms| journal.accept(key(attempt), hash(1), now_ms + 100, now_ms).await.unwrap();
    assert_eq!(accept(0, 2000).await, Err(ErrorCode::Aborted));
    let entry = journal.look_up(key(0)).await.unwrap().unwrap();
    assert!(entry.is_of(&hash(1)) && entry.state == EntryState::Aborted);
    accept(1, 152_000).await.unwrap();
    assert!(journal.look_up(key(0)).await.unwrap().is_some(), "an authorisation of then may still be valid");
    accept(2, 183_000).await.unwrap();
    assert_eq!(journal.look_up(key(0)).await.unwrap(), None);
}

#[tokio::test]
async fn beyond_its_number_the_oldest_entries_go_unless_they_could_be_replayed() {
    let folder = tempdir().unwrap();
    let limits = JournalLimits { max_entries: 3, ..JournalLimits::default() };
    let journal = open(folder.path(), limits);
    let first = seal(&journal, 0, vec![1; 10], STORED, 2000).await;
    seal(&journal, 1, vec![2; 10], StoreState::Pending, 2001).await;
    journal.accept(key(2), hash(1), 200_000, 2002).await.unwrap().unwrap();
    let later = 100_000;
    drop(journal);
    let journal = open(folder.path(), limits);
    journal.accept(key(3), hash(1), later + 100, later).await.unwrap().unwrap();
    journal.accept(key(4), hash(1), later + 100, later).await.unwrap().unwrap();
    assert_eq!(journal.look_up(key(0)).await.unwrap(), None);
    assert_eq!(journal.blob(first).await.unwrap(), None);
    for kept in [1, 2, 3, 4] {
        assert!(journal.look_up(key(kept)).await.unwrap().is_some(), "{kept}");
    }
}

#[tokio::test]
async fn prunes_the_oldest_stored_blobs_then_those_given_up_and_never_pending_ones() {
    let folder = tempdir().unwrap();
    let limits = JournalLimits { max_blob_bytes: 250, ..JournalLimits::default() };
    let journal = open(folder.path(), limits);
    let pending = seal(&journal, 0, vec![1; 100], StoreState::Pending, 2000).await;
    let oldest = seal(&journal, 1, vec![2; 100], STORED, 2001).await;
    let newer = seal(&journal, 2, vec![3; 100], STORED, 2002).await;
    seal(&journal, 3, vec![4; 100], STORED, 2003).await;
    assert_eq!(journal.blob(oldest).await.unwrap(), None);
    assert!(journal.blob(pending).await.unwrap().is_some() && journal.blob(newer).await.unwrap().is_some());
    let entry = journal.look_up(key(1)).await.unwrap().unwrap();
    assert!(matches!(entry.state, EntryState::Sealed(_)), "its status can still be asked for");
    let given_up = seal(&journal, 4, vec![5; 100], StoreState::GivenUp, 2004).await;
    journal.accept(key(5), hash(1), 9000, 2005).await.unwrap().unwrap();
    assert!(journal.blob(newer).await.unwrap().is_none() && journal.blob(given_up).await.unwrap().is_some());
    seal(&journal, 6, vec![6; 150], StoreState::Pending, 2006).await;
    journal.accept(key(7), hash(1), 9000, 2007).await.unwrap().unwrap();
    assert!(
        journal.blob(given_up).await.unwrap().is_none() && journal.blob(pending).await.unwrap().is_some()
    );
}

#[tokio::test]
async fn forgets_entries_after_their_time_unless_they_could_be_replayed() {
    let folder = tempdir().unwrap();
    let limits = JournalLimits { retention: Duration::from_secs(1), ..JournalLimits::default() };
    let journal = open(folder.path(), limits);
    seal(&journal, 0, vec![1; 10], STORED, 2000).await;
    // Expires far later than the retention.
    journal.accept(key(1), hash(1), 200_000, 2000).await.unwrap().unwrap();
    journal.accept(key(2), hash(1), 100_000, 90_000).await.unwrap().unwrap();
    assert_eq!(journal.look_up(key(0)).await.unwrap(), None);
    assert!(journal.look_up(key(1)).await.unwrap().is_some());
}

#[test]
fn refuses_a_folder_of_another_version() {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("journal");
    drop(open(&folder, JournalLimits::default()));
    let db = sled::open(&folder).unwrap();
    db.insert("version", &[9]).unwrap();
    drop(db);
    let refused = Journal::open(&folder, JournalLimits::default(), 1000);
    assert!(matches!(refused, Err(baton_node::journal::JournalError::Version)));
}
