//! Two sessions of one client at the same nodes: no node sees an identifier that both share.
//!
//! The nodes' probes record each peer, each request and each opened payload. Network addresses are not
//! compared: both sessions come from the same machine, and every node sees that.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use baton_client::{Client, TurnInput};
use baton_proto::{
    SignedObject,
    ids::{NodeId, SessionId},
    note::TurnNote,
    turn::TurnAuth,
    wire::ClientFrame,
};

use baton_client::testkit::{
    GRACE, World,
    fake::{Act, FakeNode, SeenFrame},
    resume, say_settled, session,
};

/// Length of the compared pieces: the shortest identifier of the protocol.
const PIECE: usize = 16;
/// Random pieces of 16 bytes have fewer distinct bytes once in some hundred million. Numbers, lengths, flags
/// and times repeat bytes, mostly zero.
const DISTINCT: usize = 11;

/// The session of a request; none for a request for the node's record.
fn session_of(frame: &SeenFrame) -> Option<SessionId> {
    match &frame.frame {
        ClientFrame::Turn(request) | ClientFrame::Relay { request, .. } => {
            Some(SignedObject::<TurnAuth>::verify(request.auth.clone()).unwrap().session_id)
        }
        ClientFrame::Note(bytes) => Some(SignedObject::<TurnNote>::verify(bytes.clone()).unwrap().session_id),
        ClientFrame::NodeRecord => None,
        other => panic!("not expected here: {other:?}"),
    }
}

/// All pieces of some bytes that can be identifiers, except those of the nodes themselves.
fn identifiers(mut bytes: Vec<u8>, nodes: &[FakeNode]) -> HashSet<[u8; PIECE]> {
    let own = nodes.iter().flat_map(|node| [node.id().0, node.exchange_key().id().0]);
    for known in own.collect::<Vec<_>>() {
        let found = bytes.windows(32).enumerate().filter(|(_, piece)| *piece == known);
        let places: Vec<usize> = found.map(|(at, _)| at).collect();
        for at in places {
            bytes[at..at + 32].fill(0);
        }
    }
    let pieces = bytes.windows(PIECE).map(|piece| <[u8; PIECE]>::try_from(piece).unwrap());
    pieces.filter(|piece| piece.iter().collect::<BTreeSet<_>>().len() >= DISTINCT).collect()
}

fn at(node: &FakeNode, text: &str) -> TurnInput {
    TurnInput::user(text).with_route(|route| route.node = Some(node.id()))
}

/// One turn of a session at every node.
async fn everywhere(client: &Client, session: SessionId, world: &World, text: &str) {
    for node in &world.nodes {
        client.session(session).turn(at(node, text), |_| {}).await.unwrap();
    }
    assert!(client.session(session).wait_settled(GRACE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_see_nothing_that_two_sessions_of_a_client_share() {
    let world = World::new(3).await;
    let client = world.client_with(|config| config.heads_in_dht = true).await;
    let (one, two) = (session(&client).await, session(&client).await);
    // Both sessions at the same time, so that their connections are open together.
    tokio::join!(
        everywhere(&client, one, &world, "Quite another question, about birds."),
        everywhere(&client, two, &world, "Some words that only this session has!"),
    );

    let (mut peers, mut seen) = (BTreeMap::<_, BTreeSet<NodeId>>::new(), BTreeMap::<_, HashSet<_>>::new());
    let mut of_records = BTreeSet::new();
    for node in &world.nodes {
        for frame in node.seen(|seen| seen.frames.clone()) {
            let Some(session) = session_of(&frame) else {
                of_records.insert(frame.peer);
                continue;
            };
            peers.entry(session).or_default().insert(frame.peer);
            seen.entry(session).or_default().extend(identifiers(frame.bytes, &world.nodes));
        }
        for (session, payload) in node.seen(|seen| seen.payloads.clone()) {
            seen.entry(session).or_default().extend(identifiers(payload, &world.nodes));
        }
    }
    // One identity a session at all nodes, and a third one that only asks for records.
    assert_eq!(peers.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from([one, two]));
    assert_eq!((peers[&one].len(), peers[&two].len()), (1, 1), "{peers:?}");
    assert!(peers[&one].is_disjoint(&peers[&two]));
    assert_eq!(of_records, BTreeSet::from([client.mesh().node_id()]));
    assert!(of_records.is_disjoint(&peers[&one]) && of_records.is_disjoint(&peers[&two]));
    // No key, id, hash, blob or locator in common.
    assert!(seen[&one].len() > 1000 && seen[&two].len() > 1000, "the probes saw the sessions");
    let shared: Vec<_> = seen[&one].intersection(&seen[&two]).map(hex::encode).collect();
    assert!(shared.is_empty(), "{shared:?}");
    // The probe does find what a session shares with itself.
    let ids = identifiers(one.0.to_vec(), &world.nodes);
    assert!(ids.is_subset(&seen[&one]) && !ids.is_empty());
    // Beside these identities, each session has another one, in the DHT.
    let named: BTreeSet<NodeId> = world.nodes.iter().map(FakeNode::id).collect();
    let others: BTreeSet<NodeId> = world.nodes.iter().flat_map(FakeNode::connected).collect();
    let of_turns: BTreeSet<NodeId> = peers.values().flatten().chain(&of_records).copied().collect();
    assert_eq!(others.difference(&named).filter(|peer| !of_turns.contains(peer)).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_goes_on_under_another_identity_after_a_restart() {
    let world = World::new(1).await;
    let of_session = |id: SessionId| {
        let sent = |seen: &SeenFrame| (session_of(seen) == Some(id)).then_some(seen.peer);
        world.nodes[0].seen(|seen| seen.frames.iter().filter_map(sent).collect::<BTreeSet<NodeId>>())
    };
    let (id, first) = {
        let client = world.client().await;
        let id = session(&client).await;
        say_settled(&client, id, "one").await;
        world.nodes[0].script([Act::Hang]);
        let handle = client.session(id);
        let turn = tokio::spawn(async move { handle.turn(TurnInput::user("two"), |_| {}).await });
        world.nodes[0].hangs().await;
        turn.abort();
        let _ = turn.await;
        client.shutdown(GRACE).await;
        (id, of_session(id))
    };
    let client = world.client().await;
    let outcome = resume(&client, id).await;
    assert_eq!(outcome.text, "two (1)");
    assert!(world.nodes[0].seen(|seen| seen.statuses) > 0, "the new identity asks for the old one's turn");
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    assert_eq!(first.len(), 1);
    let peers = of_session(id);
    assert!(peers.is_superset(&first));
    assert_eq!(peers.len(), 2, "a restart makes a new identity");
}
