//! A turn reads the same number of the session's turns at any length. Counts show it: they are the same on
//! every machine.

mod snapshots;

use std::{ops::Range, time::Duration};

use baton_keys::{SecretSigningKey, files::FileSecret};
use baton_proto::{
    ids::{AuthHash, DeviceId, ExchangeKey, ModelId, ReceiptHash, RecordHash},
    limits::{SEGMENT_TURNS, VERSION},
    node_record::ModelOffer,
    receipt::{EngineKind, OfferTerms},
    record::{FinishReason, Role, SealedRecord},
    turn::StoragePolicy,
};

use super::*;
use crate::{
    attempt::request,
    event::{DEFAULT_OUTPUT_TOKENS, InlinePolicy},
    network::choose::Choice,
    session::{
        journal::{JournalLocation, Journals},
        open_session::{Session, last_used, peek},
        state::StorageTerms,
    },
};

const DAY_MS: u64 = 24 * 3600 * 1000;
const EPOCH_MS: u64 = 14 * DAY_MS;
const TERMS: StorageTerms =
    StorageTerms { epoch: Duration::from_millis(EPOCH_MS), open_epochs: 5, closed_epochs: 53 };
/// A window of few turns, so that the shorter session fills it too.
const CONTEXT_TOKENS: u32 = 200;

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
fn next_turn(state: &State, node: &SecretSigningKey) -> (SignedObject<Link>, SealedRecord, Record) {
    next_turn_of(state, node, RecordKind::Turn, None)
}

/// As [`next_turn`], of any kind.
fn next_turn_of(
    state: &State,
    node: &SecretSigningKey,
    kind: RecordKind,
    supersedes_from: Option<u64>,
) -> (SignedObject<Link>, SealedRecord, Record) {
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
    (SignedObject::sign(link, node), sealed, record)
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

/// A stored and published session with this number of turns. Skips the costliest part of replaying them:
/// verifying and opening each.
fn session(turns: u64, node: &SecretSigningKey) -> State {
    let mut state = empty();
    while state.next_seq() < turns {
        let (link, sealed, record) = next_turn(&state, node);
        let entry = turn_entry(&link, sealed);
        state.push_verified(link, record, entry);
        follow_up(&mut state);
    }
    state
}

fn stored(paid: Option<Purchase>) -> TurnChange {
    TurnChange::Stored(StoredBlob { paid, ..StoredBlob::default() })
}

/// The entries that follow the acceptance of a turn.
fn follow_up(state: &mut State) {
    let seq = state.next_seq() - 1;
    let note = |state: &mut State, change| state.apply(Entry::OfTurn(seq, change)).unwrap();
    note(state, TurnChange::BlobId(BlobId([7; 32])));
    note(state, TurnChange::Acked { is_moot: false });
    let outer = state.head_outer().unwrap();
    state.apply(Entry::Head { sequence: seq + 1, seq, link_hash: outer.link_hash }).unwrap();
    note(state, stored(Some(Purchase { stored_ms: seq, epochs: 5 })));
}

fn choice(node: &SecretSigningKey) -> Choice {
    let key = baton_keys::exchange::ExchangeSecret::from_bytes(&[8; 32]).public_key();
    let offer = ModelOffer {
        model: ModelId([2; 32]),
        name: "m".to_owned(),
        engine: EngineKind::Echo,
        context_tokens: CONTEXT_TOKENS,
        input_price: 0,
        output_price: 0,
    };
    let key: ExchangeKey = key;
    let terms = OfferTerms {
        engine: offer.engine,
        context_tokens: CONTEXT_TOKENS,
        input_price: 0,
        output_price: 0,
        storage_price: 0,
    };
    let storage = StoragePolicy::default();
    Choice { node: node.node_id(), offer, key, max_output_tokens: 0, terms, storage }
}

/// All uses of a session's state by one turn, from the message to the end of the background work.
fn say(state: &mut State, node: &SecretSigningKey) {
    let pending = PendingTurn {
        turn_id: TurnId([9; 16]),
        kind: RecordKind::Turn,
        supersedes_from: None,
        messages: vec![Message::new(Role::User, "next")],
        sampling: Sampling::default(),
        max_output_tokens: DEFAULT_OUTPUT_TOKENS,
        model: None,
        begun_ms: 0,
    };
    state.apply(Entry::Pending(pending.clone())).unwrap();
    let terms = request::AttemptOptions {
        memory_from: None,
        memory: None,
        memory_tokens: 0,
        with_locator: true,
        inline: InlinePolicy::Unstored,
        begun: None,
        audits: false,
    };
    request::prepare(state, &pending, 0, &choice(node), &terms, 1).unwrap();
    assert!(state.prompt_tokens() > 0);
    let base = state.base();
    assert_eq!(base.entries.len() as u64, state.next_seq() % SEGMENT_TURNS as u64);
    let (link, sealed, _) = next_turn(state, node);
    state.apply(Entry::Turn(Box::new(turn_entry(&link, sealed)))).unwrap();
    follow_up(state);
    assert!(state.is_published() && state.unstored.is_empty());
    assert!(!state.any_due(TERMS, 1));
}

/// Turns read in the turns of one segment, so that every position in it counts once.
fn reads_of_a_segment(state: &mut State, node: &SecretSigningKey) -> u64 {
    assert!(!state.any_due(TERMS, 1), "the first look is at all blobs");
    let before = state.turn_reads();
    for _ in 0..SEGMENT_TURNS {
        say(state, node);
    }
    state.turn_reads() - before
}

#[test]
fn a_turn_reads_as_many_turns_at_turn_100_000_as_at_turn_160() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let reads = |turns| reads_of_a_segment(&mut session(turns, &node), &node);
    // From nine segments on a node may be shown no more than these.
    let (short, medium, long) = (reads(160), reads(1_600), reads(100_000));
    assert_eq!((medium, long), (short, short));
    assert!(reads(96) <= short, "{short}");
}

#[test]
fn the_count_of_effective_turns_is_that_of_a_walk_over_all() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let mut state = empty();
    let mut counts = Vec::new();
    let check = |state: &State| {
        assert_eq!(state.effective_turns, effective(state.history.all()).len() as u64);
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
        let (link, sealed, record) = next_turn_of(&state, &node, kind, supersedes_from);
        let entry = turn_entry(&link, sealed);
        state.push_verified(link, record, entry);
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

/// Whether any blob is due, by a look at every blob.
fn looked_at_all(state: &State, now_ms: u64) -> bool {
    crate::session::lifetime::lifetimes(state, TERMS, now_ms).iter().any(|blob| blob.due)
}

#[test]
fn a_look_at_what_changed_finds_every_blob_that_is_due() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let mut state = session(3 * SEGMENT_TURNS as u64 + 4, &node);
    let check = |state: &mut State, days: Range<u64>| {
        let mut found = 0;
        for day in days {
            let now_ms = day * DAY_MS;
            assert_eq!(state.any_due(TERMS, now_ms), looked_at_all(state, now_ms), "day {day}");
            found += u32::from(state.any_due(TERMS, now_ms));
        }
        found
    };
    assert_eq!(check(&mut state, 0..42), 0, "bought for five epochs of which three are certain");
    assert!(check(&mut state, 42..50) > 0);
    // The oldest blob is bought again, then in doubt, then lost; the others follow.
    for (seq, days) in [(15, 50..80), (31, 50..90), (47, 50..95), (51, 50..100)] {
        let paid = Purchase { stored_ms: 50 * DAY_MS, epochs: 5 };
        for change in
            [TurnChange::RenewalDoubt(Some(49 * DAY_MS)), stored(Some(paid)), TurnChange::Lost, stored(None)]
        {
            state.apply(Entry::OfTurn(seq, change)).unwrap();
            check(&mut state, days.clone());
        }
    }
    assert_eq!(check(&mut state, 50..90), 0, "all of them were bought again");
    say_and_check_rebase(&mut state, &node);
}

/// A turn that leaves the chain takes its blob along.
fn say_and_check_rebase(state: &mut State, node: &SecretSigningKey) {
    let last = state.next_seq();
    say(state, node);
    state.apply(Entry::Rebase { at: last }).unwrap();
    for now_ms in [50, 91, 92, 93, 120].map(|day| day * DAY_MS) {
        assert_eq!(state.any_due(TERMS, now_ms), looked_at_all(state, now_ms));
    }
    assert_eq!(state.turn_reads_of_prompt(), state.prompt_tokens());
}

impl State {
    /// As [`State::push_turn`], for a turn that needs no check.
    fn push_verified(&mut self, link: SignedObject<Link>, record: Record, turn: TurnEntry) {
        self.push_opened(link, record, turn, (None, None, None));
    }

    /// Tokens of a prompt, counted over every turn.
    fn turn_reads_of_prompt(&self) -> u32 {
        let history: u64 = self.history.iter().map(|turn| u64::from(turn.link.record_length)).sum();
        let new = self.pending.iter().flat_map(|pending| &pending.turn.messages);
        let new: u64 = new.map(|message| message.text.len() as u64).sum();
        u32::try_from((history + new) / PROMPT_BYTES_PER_TOKEN).unwrap()
    }
}

/// A replay trusts the signatures of sealed entries.
#[tokio::test]
async fn a_turn_with_a_wrong_signature_is_never_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let location = JournalLocation::Folder(folder.path().to_owned());
    let journals = Journals { location, secret: FileSecret::generate() };
    let state = empty();
    let (link, sealed, _) = next_turn(&state, &SecretSigningKey::generate());
    let mut turn = turn_entry(&link, sealed);
    turn.entry.link.signature.0[0] ^= 1;
    let session = Session::create(&journals, root(), state.header, Vec::new()).unwrap();
    let session = Arc::new(session);
    session.record(vec![Entry::Turn(Box::new(turn))]).await.unwrap_err();
    drop(session);
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(peek(&file, &journals.secret).unwrap().next_seq(), 0);
}
