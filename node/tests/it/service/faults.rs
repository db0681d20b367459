//! The service when stores, peers, readers and processes fail.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use baton_mesh::TurnStream;
use baton_node::service::{BlobSource, PausePoints, Step};
use baton_proto::{
    ErrorCode, codec,
    ids::NodeId,
    wire::{ClientFrame, StoreState, TurnStatus},
};
use tempfile::tempdir;
use tokio::time::Instant;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::service::network::{
    World,
    client::{Changes, Client, Session, next_frame, read_reply, soon},
    node::{Setup, TestNode},
    start,
    store::MemoryStore,
    world,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_down_delays_nothing_and_gets_the_blob_later() {
    let mut setup = Setup::default();
    setup.limits.store_wait = Duration::from_millis(50);
    let World { node, client, mut session, store } = world(setup).await;
    store.down.store(true, SeqCst);
    let (reply, _) = client.turn(&node, &mut session, "hello").await;
    assert_eq!(reply.store(), Some(StoreState::Pending));
    // The next turn does not wait for the store: this node still has the blob.
    let prepared = session.prepare(&node, "again", Changes::default());
    let reply = client.run(&node, &prepared).await;
    assert!(reply.committed().is_some());
    store.down.store(false, SeqCst);
    node.until(|counts| counts.stored.len() == 2).await;
    assert_eq!(store.blobs.lock().unwrap().len(), 2);
    let status = client.status(&node, &session, &prepared).await.unwrap();
    assert!(matches!(status, TurnStatus::Sealed { store: StoreState::Stored { .. }, .. }), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gives_up_on_a_store_after_its_time_and_says_so() {
    let mut setup = Setup::default();
    setup.limits.store_give_up = Duration::from_millis(100);
    let World { node, client, mut session, store } = world(setup).await;
    store.down.store(true, SeqCst);
    let (reply, _) = client.turn(&node, &mut session, "hello").await;
    assert_eq!(reply.store(), Some(StoreState::GivenUp));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_put_is_probed_and_not_sent_again() {
    let World { node, client, mut session, store } = world(Setup::default()).await;
    store.lose_answers.store(true, SeqCst);
    let (reply, _) = client.turn(&node, &mut session, "hello").await;
    assert!(matches!(reply.store(), Some(StoreState::Stored { .. })), "{:?}", reply.store());
    assert_eq!(store.puts.load(SeqCst), 1);
}

/// Two connected nodes; the first, in the world, has served one turn.
async fn pair() -> (World, TestNode) {
    let mut world = world(Setup::default()).await;
    let bootstrap = world.node.mesh.bootstrap_addrs();
    let second = start(&world.store, Setup { seed: 2, bootstrap, ..Setup::default() }).await;
    let ready = |peers: &[baton_mesh::PeerInfo]| peers.iter().any(|peer| peer.connected && peer.serves_turns);
    let found = second.mesh.wait_for_peers(soon(), ready).await;
    let (peers, network, stats) = (second.mesh.peers(), second.mesh.network(), world.node.mesh.stats());
    assert!(found.is_some(), "the nodes do not find each other: {peers:?}, {network:?}, {stats:?}");
    world.client.turn(&world.node, &mut world.session, "hello").await;
    (world, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_the_store_does_not_give_comes_from_its_author() {
    type Harm = fn(&MemoryStore);
    let cases: [(&str, Harm, &[BlobSource]); 3] = [
        ("wrong", MemoryStore::corrupt, &[BlobSource::Store]),
        ("missing", |store| store.blobs.lock().unwrap().clear(), &[]),
        ("silent", |store| store.silent.store(true, SeqCst), &[]),
    ];
    for (name, harm, wrong) in cases {
        let (mut world, second) = pair().await;
        harm(&world.store);
        let begun = Instant::now();
        world.client.turn(&second, &mut world.session, "again").await;
        // Twenty seconds are the limit of the whole search.
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
        let counts = second.counts();
        assert_eq!((&counts.wrong[..], &counts.used[..]), (wrong, &[BlobSource::Peer][..]), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_no_source_has_right_is_named_so() {
    let (World { node, client, session, store }, second) = pair().await;
    node.stop().await;
    store.corrupt();
    let prepared = session.prepare(&second, "again", Changes::default());
    assert_eq!(client.run(&second, &prepared).await.code(), Some(ErrorCode::BlobHashMismatch));
    store.blobs.lock().unwrap().clear();
    assert_eq!(client.run(&second, &prepared).await.code(), Some(ErrorCode::BlobUnavailable));
    assert_eq!(second.jobs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_blob_that_the_store_has_only_soon() {
    let (World { node, client, mut session, store }, second) = pair().await;
    node.stop().await;
    store.late.store(2, SeqCst);
    client.turn(&second, &mut session, "again").await;
    assert_eq!(second.counts().used, [BlobSource::Store]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_the_engine() {
    let World { node, session, .. } = world(Setup::default()).await;
    let prepared = session.prepare(&node, &"word ".repeat(400), Changes::default());
    // A pipe of 512 bytes each way: there is no other buffer between the turn and its reader.
    let (near, far) = tokio::io::duplex(512);
    let reader = NodeId([8; 32]);
    node.service.serve(TurnStream::from_io(reader, "/baton/turn/2", near.compat()));
    let mut stream = TurnStream::from_io(node.node, "/baton/turn/2", far.compat());
    stream.send(&codec::encode(&ClientFrame::Turn(prepared.request.clone()))).await.unwrap();
    node.until(|counts| counts.started == 1).await;
    // Without pacing, 400 tokens at no cost would be done long before this.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.counts().finished, 0, "the engine waits for its reader");
    let reply = read_reply(stream, &prepared).await;
    assert_eq!(reply.ids().len(), 401);
    assert!(reply.complete && reply.committed().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_ends_its_turn_after_the_grace() {
    let World { node, client, session, .. } = world(Setup::slow(20)).await;
    let prepared = session.prepare(&node, &"word ".repeat(400), Changes::default());
    let mut stream = client.open(&node, &ClientFrame::Turn(prepared.request.clone())).await;
    next_frame(&mut stream).await.unwrap();
    drop(stream);
    node.until(|counts| counts.abandoned == 1 && counts.failed == [ErrorCode::Busy]).await;
    assert_eq!(node.counts().finished, 0);
    let status = client.status(&node, &session, &prepared).await;
    assert_eq!(status, Err(ErrorCode::StatusUnknown), "nobody works on it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_refuses_new_turns_and_finishes_running_ones() {
    let World { node, client, session, .. } = world(Setup::slow(30)).await;
    let running = session.prepare(&node, &"word ".repeat(20), Changes::default());
    let stream = client.open(&node, &ClientFrame::Turn(running.request.clone())).await;
    node.until(|counts| counts.started == 1).await;
    node.drain();
    let other = Session::new();
    let mut refused = client.run(&node, &other.prepare(&node, "hi", Changes::default())).await;
    while refused.refused.is_none() {
        refused = client.run(&node, &other.prepare(&node, "hi", Changes::default())).await;
    }
    assert_eq!(refused.code(), Some(ErrorCode::Busy));
    let reply = read_reply(stream, &running).await;
    assert!(reply.committed().is_some() && reply.complete);
}

/// Ends a turn at a step, restarts the node on the same folder, and sends the same request again.
async fn restart_at(
    step: Step,
) -> (TestNode, crate::service::network::client::Reply, Arc<MemoryStore>, usize) {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempdir().unwrap());
    let (reached, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut setup = Setup::default();
    setup.limits.drain_grace = Duration::from_millis(10);
    setup.pause = PausePoints::at(step, move |step| reached.send(step).unwrap());
    let node = TestNode::start(folder.path(), &store, setup).await;
    let (client, mut session) = (Client::start().await, Session::new());
    let prepared = session.prepare(&node, "hello there", Changes::default());
    let stream = client.open(&node, &ClientFrame::Turn(prepared.request.clone())).await;
    assert_eq!(told.recv().await, Some(step));
    node.stop().await;
    drop(stream);
    let node = TestNode::start(folder.path(), &store, Setup::default()).await;
    let client = Client::start().await;
    let reply = client.run(&node, &prepared).await;
    let committed = reply.committed().expect("committed in the end");
    session.accept(&prepared, committed, "echo: hello there", &[]).unwrap();
    let jobs = node.jobs();
    (node, reply, store, jobs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_ended_before_it_was_sealed_runs_again() {
    for step in [Step::Accepted, Step::Fetched, Step::MidToken] {
        let (_, reply, _, jobs) = restart_at(step).await;
        assert_eq!((jobs, reply.text().as_str()), (1, "echo: hello there"), "{step:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_journaled_is_stored_and_answered_but_never_run_again() {
    for step in [Step::PutSent, Step::PutDone] {
        let (node, reply, store, jobs) = restart_at(step).await;
        assert_eq!((jobs, reply.text().as_str()), (0, ""), "{step:?}");
        node.until(|counts| counts.stored.len() == 1).await;
        assert!(matches!(node.counts().stored[0], StoreState::Stored { .. }));
        assert_eq!(store.puts.load(SeqCst), 1, "the PUT that arrived is not repeated");
    }
}
