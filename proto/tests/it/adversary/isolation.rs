//! Key isolation: the keys of one turn's node open exactly the granted records and blobs. The test tries them
//! on every blob and sealed record of the whole session, also later ones.

use std::collections::BTreeSet;

use baton_keys::session::{BlobKey, RecordKey};
use baton_proto::{
    segment::blob_salt,
    turn::{Payload, SealedPayload},
};

use crate::support::harness::{CompletedTurn, Script, Session, read_window};

const TURNS: usize = 36;
const WINDOW: usize = 4;

/// A long session; nodes may read the last four turns, from the last two blobs.
fn session() -> Session {
    let mut session = Session::new(3);
    session.window_records = WINDOW;
    session.window_blobs = 2;
    for turn in 0..TURNS {
        session.turn(&Script::turn(format!("question {turn}"), format!("answer {turn}")));
    }
    session
}

/// The records and blobs that a key opens, tried as the key of each.
fn opened_by(key: &[u8; 32], session: &Session, opened: &mut ReadableTurns) {
    let (record_key, blob_key) = (RecordKey::from_bytes(*key), BlobKey::from_bytes(*key));
    for (turn, CompletedTurn { accepted, .. }) in session.done.iter().enumerate() {
        let entry = accepted.segment.entries.last().expect("the turn's own entry");
        if record_key.open(&accepted.link.record_identity(), &entry.record.0).is_ok() {
            opened.records.insert(turn);
        }
        let salt = blob_salt(&accepted.blob).expect("stored blobs have a salt");
        let id = session.root.session_id();
        if blob_key.open(&salt, &id, accepted.link.segment, &accepted.blob[16..]).is_ok() {
            opened.blobs.insert(turn);
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ReadableTurns {
    records: BTreeSet<usize>,
    blobs: BTreeSet<usize>,
}

/// Every key that the node of a turn holds, from payload and exchange.
fn held(session: &Session, turn: usize) -> Vec<[u8; 32]> {
    let done = &session.done[turn];
    let node = &session.nodes[done.node];
    let (payload, secret): (Payload, _) =
        SealedPayload::open(&done.requested.sealed, &node.exchange, &done.requested.auth).unwrap();
    let grant = &payload.grant;
    let mut keys = vec![
        *grant.record_key.record_key().expose(),
        *grant.blob_key.blob_key().expose(),
        *secret.expose(),
        *node.exchange.expose(),
        *node.signing.expose_seed(),
    ];
    keys.extend(grant.blobs.iter().map(|read| *read.key.blob_key().expose()));
    keys.extend(grant.records.iter().map(|read| *read.key.record_key().expose()));
    keys
}

/// The records and blobs of a turn's grant, and the turn itself.
fn granted(turn: usize) -> ReadableTurns {
    let mut opened = ReadableTurns::default();
    opened.records.extend(turn.saturating_sub(WINDOW)..=turn);
    opened.blobs.insert(turn);
    if let Some(head) = turn.checked_sub(1) {
        opened.blobs.insert(head);
        // The last blob of the closed segment before the head's, if any.
        if let Some(closed) = (head / 16).checked_sub(1) {
            opened.blobs.insert(closed * 16 + 15);
        }
    }
    opened
}

#[test]
fn a_node_opens_its_window_and_its_turn_and_nothing_else() {
    let session = session();
    for turn in 0..TURNS {
        let mut opened = ReadableTurns::default();
        for key in held(&session, turn) {
            opened_by(&key, &session, &mut opened);
        }
        assert_eq!(opened, granted(turn), "turn {turn}");
    }
}

/// Two colluding nodes pool their keys: these open the union of their windows, and no more.
#[test]
fn colluding_nodes_open_the_union_of_their_windows() {
    let session = session();
    for (early, late) in [(3, 20), (8, 30), (17, 18)] {
        let mut opened = ReadableTurns::default();
        for key in held(&session, early).into_iter().chain(held(&session, late)) {
            opened_by(&key, &session, &mut opened);
        }
        let (mut union, other) = (granted(early), granted(late));
        union.records.extend(other.records);
        union.blobs.extend(other.blobs);
        assert_eq!(opened, union, "{early} and {late}");
    }
}

/// A node's window has text only for granted record keys, but has every link.
#[test]
fn a_window_shows_text_where_it_was_granted_only() {
    let session = session();
    let done = &session.done[35];
    let requested = &done.requested;
    let window = read_window(&requested.auth, &requested.payload.grant, &session.store).unwrap();
    let shown: Vec<u64> =
        window.turns.iter().filter(|turn| turn.record.is_some()).map(|turn| turn.link.seq).collect();
    assert_eq!(shown, [31, 32, 33, 34]);
    let links: Vec<u64> = window.turns.iter().map(|turn| turn.link.seq).collect();
    assert_eq!(links, (16..35).collect::<Vec<u64>>());
    assert_eq!(baton_proto::chain::effective(&window.turns).len(), 4);
}
