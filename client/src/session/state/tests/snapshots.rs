//! A session from its snapshot is as the session from its whole journal, as far as the next turns need it.

use baton_proto::limits::MAX_READ_BLOBS;

use super::*;
use crate::{
    error::ClientError,
    session::{info::state_info, snapshot},
};

/// Turns of more segments than a node may be shown.
const TURNS: u64 = (MAX_READ_BLOBS as u64 + 3) * SEGMENT_TURNS as u64 + 5;
const NOW_MS: u64 = 20 * DAY_MS;

/// The next turn and its follow-ups.
fn next_entries(state: &State, node: &SecretSigningKey) -> Vec<Entry> {
    let (seq, (link, sealed)) = (state.next_seq(), next_turn(state, node));
    let blob = StoredBlob {
        end_epoch: Some(9),
        paid: Some(Purchase { stored_ms: seq, epochs: 5 }),
        confirmed_ms: Some(seq),
    };
    let changes =
        [TurnChange::BlobId(BlobId([7; 32])), TurnChange::Acked { is_moot: false }, TurnChange::Stored(blob)];
    let turn = Entry::Turn(Box::new(turn_entry(&link, sealed)));
    let head = Entry::Head(PublishedHead { sequence: seq + 1, seq, link_hash: link.link_hash() });
    std::iter::once(turn).chain(changes.map(|change| Entry::OfTurn(seq, change))).chain([head]).collect()
}

/// All entries after the opening of a session with [`TURNS`] turns and a branch, and its state.
fn long_session(node: &SecretSigningKey) -> (Vec<Entry>, State) {
    let (mut state, mut all) = (empty(), Vec::new());
    while state.next_seq() < TURNS {
        let mut entries = next_entries(&state, node);
        if state.next_seq() == TURNS - 2 {
            let Some(Entry::Turn(turn)) = entries.first() else { unreachable!("a turn is first") };
            let beside = Entry::BranchTurn(Box::new(turn.entry.clone()));
            entries.splice(0..0, [Entry::Branch { head: None }, beside]);
        }
        entries.iter().for_each(|entry| state.apply(entry.clone()).unwrap());
        all.extend(entries);
    }
    (all, state)
}

fn encoded(state: &State) -> Vec<Zeroizing<Vec<u8>>> {
    snapshot::entries(state, TERMS, NOW_MS).unwrap().iter().map(Entry::encode).collect()
}

#[test]
fn a_session_from_its_snapshot_goes_on_as_the_whole_one() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let (_, mut whole) = long_session(&node);
    let mut short = State::replay(root(), &encoded(&whole)).unwrap();
    assert!(short.history.len() <= MAX_READ_BLOBS * SEGMENT_TURNS && short.first_seq() > 0);
    for _ in 0..=SEGMENT_TURNS {
        assert_eq!(state_info(&short, TERMS, None), state_info(&whole, TERMS, None));
        assert_eq!(short.head_outer(), whole.head_outer());
        assert_eq!(short.base().entries.len(), whole.base().entries.len());
        assert_eq!(short.branches.len(), 1);
        assert!(encoded(&short) == encoded(&whole), "a snapshot of either is the same");
        for entry in next_entries(&whole, &node) {
            whole.apply(entry.clone()).unwrap();
            short.apply(entry).unwrap();
        }
    }
    // Its background work comes in time.
    let needed_ms = short.omitted().unwrap().needed_ms;
    assert!(!short.needs_omitted(TERMS, needed_ms - 1) && lifetime::any_due(&short, TERMS, needed_ms));
    assert!(short.needs_omitted(StorageTerms { open_epochs: 4, ..TERMS }, 0));
    let looks = |now_ms| lifetime::looks_due(&whole, TERMS, now_ms, usize::MAX);
    assert!(looks(needed_ms - 1).is_empty() && !lifetime::any_due(&whole, TERMS, needed_ms - 1));
    assert!(!looks(needed_ms).is_empty() || lifetime::any_due(&whole, TERMS, needed_ms));
}

#[test]
fn entries_about_turns_that_a_snapshot_leaves_out_need_the_whole_journal() {
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let (_, mut whole) = long_session(&node);
    let mut short = State::replay(root(), &encoded(&whole)).unwrap();
    short.apply(Entry::OfTurn(3, stored(None))).unwrap();
    let (link, sealed) = next_turn_of(&whole, &node, RecordKind::Edit, Some(3));
    for entry in [
        Entry::OfTurn(3, TurnChange::Lost),
        Entry::Rebase { at: 3 },
        Entry::Rebase { at: short.first_seq() },
        Entry::Turn(Box::new(turn_entry(&link, sealed))),
    ] {
        whole.clone().apply(entry.clone()).unwrap();
        short.clone().apply(entry).unwrap_err();
    }
    // Nothing is left out that the store lacks, or that a pending turn or a torn end needs.
    whole.apply(Entry::TornEnd { bytes: 1 }).unwrap();
    assert!(snapshot::entries(&whole, TERMS, NOW_MS).is_none());
    whole.apply(Entry::TornEnd { bytes: 0 }).unwrap();
    assert!(snapshot::entries(&whole, TERMS, NOW_MS).is_some());
    whole.apply(Entry::OfTurn(SEGMENT_TURNS as u64 - 1, TurnChange::Lost)).unwrap();
    assert!(snapshot::entries(&whole, TERMS, NOW_MS).is_none());
}

#[tokio::test]
async fn a_session_is_opened_from_its_snapshot_and_loads_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let location = JournalLocation::Folder(folder.path().to_owned());
    let journals = Journals { location, secret: FileSecret::generate() };
    let node = SecretSigningKey::from_seed(&[2; 32]);
    let (entries, whole) = long_session(&node);
    let session = Session::create(&journals, root(), empty().header, entries).unwrap();
    session.close(TERMS, NOW_MS);
    let with = |extension: &str| {
        let mut files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        files.find(|path| path.extension().is_some_and(|found| found == extension)).unwrap()
    };
    let (journal, first) = (with("journal"), |session: &Session| session.read(State::first_seq));
    assert!(with("snapshot").metadata().unwrap().len() < journal.metadata().unwrap().len());

    let session = Arc::new(Session::open(&journal, &journals.secret, true).unwrap());
    assert!(first(&session) > 0);
    session.record(next_entries(&whole, &node)).await.unwrap();
    assert_eq!(last_used(&journal, &journals.secret).unwrap(), (TURNS, session.id));
    session.load_all().await.unwrap();
    assert_eq!((first(&session), session.read(State::next_seq)), (0, TURNS + 1));
    // A later entry needs an early turn: the session is opened whole.
    session.record(vec![Entry::OfTurn(3, TurnChange::Lost)]).await.unwrap();
    drop(session);
    let session = Session::open(&journal, &journals.secret, true).unwrap();
    assert_eq!((first(&session), session.read(State::next_seq)), (0, TURNS + 1));
    drop(session);

    // Damage of an early entry stops no turn, and is found by a reader of the early turns.
    let mut bytes = std::fs::read(&journal).unwrap();
    let before_the_last = bytes.len() - 200;
    bytes[300] ^= 1;
    bytes.truncate(before_the_last);
    std::fs::write(&journal, bytes).unwrap();
    let session = Arc::new(Session::open(&journal, &journals.secret, true).unwrap());
    assert!(first(&session) > 0);
    let loaded = session.load_all().await;
    session.close(TERMS, NOW_MS);
    for refused in
        [loaded, Session::open(&journal, &journals.secret, false).map(drop)].map(Result::unwrap_err)
    {
        assert!(
            matches!(&refused, ClientError::JournalDamaged { path, .. } if *path == journal),
            "{refused}"
        );
    }
}
