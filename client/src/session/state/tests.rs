//! Counts of a session that follow its entries, and the signatures of entries.

mod snapshots;

use std::time::Duration;

use baton_keys::{SecretSigningKey, files::FileSecret};
use baton_proto::{
    ids::{AuthHash, DeviceId, ReceiptHash, RecordHash},
    limits::{SEGMENT_TURNS, VERSION},
    record::{FinishReason, Record, Role, SealedRecord},
};

use super::*;
use crate::session::{
    journal::{JournalLocation, Journals},
    lifetime,
    open_session::{Session, last_used, peek},
};

const DAY_MS: u64 = 24 * 3600 * 1000;
const EPOCH_MS: u64 = 14 * DAY_MS;
const TERMS: StorageTerms =
    StorageTerms { epoch: Duration::from_millis(EPOCH_MS), open_epochs: 5, closed_epochs: 53 };

fn root() -> SessionRoot {
    SessionRoot::from_bytes([3; 32])
}

fn empty() -> State {
    let header = SessionHeader {
        n_shards: 10,
        branch: None,
        device_id: DeviceId([1; 16]),
        created_ms: 0,
        system: Vec::new(),
        project: None,
    };
    State::new(root(), header)
}

/// The next turn, a millisecond after the last, as its node seals it: link, record and text.
fn next_turn(state: &State, node: &SecretSigningKey) -> (SignedObject<Link>, SealedRecord) {
    next_turn_of(state, node, RecordKind::Turn, None)
}

/// As [`next_turn`], of any kind.
fn next_turn_of(
    state: &State,
    node: &SecretSigningKey,
    kind: RecordKind,
    supersedes_from: Option<u64>,
) -> (SignedObject<Link>, SealedRecord) {
    let seq = state.next_seq();
    let messages = [Message::new(Role::User, "a question of a hundred bytes ".repeat(3))];
    let record = Record::of_turn(kind, supersedes_from, &messages, "an answer", FinishReason::Stop);
    let turns = SEGMENT_TURNS as u64;
    let mut link = Link {
        version: VERSION,
        session_id: state.session_id,
        seq,
        segment: seq / turns,
        index: u8::try_from(seq % turns).unwrap(),
        turn_id: TurnId([u8::try_from(seq % 251).unwrap(); 16]),
        attempt: 0,
        prev_link: state.prev_link(),
        prev_blob: seq.checked_sub(1).and_then(|last| state.blob_ref(last)),
        record_hash: RecordHash([0; 32]),
        record_length: 0,
        auth_hash: AuthHash([4; 32]),
        receipt_hash: ReceiptHash([5; 32]),
        author: node.node_id(),
        time_ms: seq,
    };
    let identity = link.record_identity();
    let sealed = record.seal(&state.root.record_key(&identity), &identity).unwrap();
    (link.record_hash, link.record_length) = (sealed.hash(), u32::try_from(sealed.0.len()).unwrap());
    (SignedObject::sign(link, node), sealed)
}

fn turn_entry(link: &SignedObject<Link>, record: SealedRecord) -> TurnEntry {
    TurnEntry {
        entry: segment::Entry { link: link.bytes().clone(), record },
        blob_digest: BlobDigest([6; 32]),
        blob_length: 1000,
        accepted_ms: link.time_ms,
        proof: None,
        ordered: None,
        memory: Vec::new(),
        tokens: Vec::new(),
    }
}

fn stored(paid: Option<Purchase>) -> TurnChange {
    TurnChange::Stored(StoredBlob { paid, ..StoredBlob::default() })
}

#[test]
fn the_count_of_effective_turns_is_that_of_a_walk_over_all() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let mut state = empty();
    let mut counts = Vec::new();
    let check = |state: &State| {
        assert_eq!(state.effective_turns, effective(&state.history).len() as u64);
        assert_eq!(state.prompt_tokens(), counted_prompt_tokens(state));
        state.effective_turns
    };
    for (kind, supersedes_from) in [
        (RecordKind::Turn, None),
        (RecordKind::Turn, None),
        (RecordKind::Edit, Some(1)),
        (RecordKind::Turn, None),
        // Replaces the edit, so the turn that the edit replaced counts again.
        (RecordKind::Edit, Some(2)),
        (RecordKind::Tombstone, Some(4)),
        (RecordKind::Turn, None),
    ] {
        let (link, sealed) = next_turn_of(&state, &node, kind, supersedes_from);
        state.apply(Entry::Turn(Box::new(turn_entry(&link, sealed)))).unwrap();
        let id = TurnChange::BlobId(BlobId([7; 32]));
        state.apply(Entry::OfTurn(state.next_seq() - 1, id)).unwrap();
        counts.push(check(&state));
    }
    assert_eq!(counts, [1, 2, 2, 3, 3, 3, 4]);
    for at in [6, 4, 2, 0] {
        state.apply(Entry::Rebase { at }).unwrap();
        check(&state);
    }
    assert_eq!(state.effective_turns, 0);
}

/// Tokens of a prompt, counted over every turn.
fn counted_prompt_tokens(state: &State) -> u32 {
    let history: u64 = state.history.iter().map(|turn| u64::from(turn.link.record_length)).sum();
    u32::try_from(history / PROMPT_BYTES_PER_TOKEN).unwrap()
}

/// A replay trusts the signatures of sealed entries.
#[tokio::test]
async fn a_turn_with_a_wrong_signature_is_never_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let location = JournalLocation::Folder(folder.path().to_owned());
    let journals = Journals { location, secret: FileSecret::generate() };
    let state = empty();
    let (link, sealed) = next_turn(&state, &SecretSigningKey::generate());
    let mut turn = turn_entry(&link, sealed);
    turn.entry.link.signature.0[0] ^= 1;
    let session = Session::create(&journals, root(), state.header, Vec::new()).unwrap();
    let session = Arc::new(session);
    session.record(vec![Entry::Turn(Box::new(turn))]).await.unwrap_err();
    drop(session);
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(peek(&file, &journals.secret).unwrap().next_seq(), 0);
}
