//! The service without faults.

use baton_keys::{SecretSigningKey, exchange::EphemeralSecret};
use baton_node::service::{BlobSource, ServiceLimits};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::SessionReader,
    ids::{FetchProof, NodeId},
    memory::{MemEnvelope, MemoryItem},
    node_record::NodeRecord,
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    receipt::{running_hash_start, running_hash_step},
    record::{FinishReason, RecordKind},
    store::{BlobStore as _, HeadIndex as _},
    turn::ResumePrefix,
    wire::{ClientFrame, InlineBlob, NodeFrame, ReplyEvent, StoreState, TurnStatus},
};

use crate::service::{
    fairness::{granted, run_under, trusting},
    network::{
        World,
        client::{Changes, Session, next_frame},
        node::Setup,
        now_ms, start, world,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn serves_a_session_over_alternating_nodes_across_segments() {
    let World { node: first, client, mut session, store } = world(Setup::default()).await;
    let second = start(&store, Setup { seed: 2, ..Setup::default() }).await;
    for seq in 0..36u64 {
        let node = if seq % 2 == 0 { &first } else { &second };
        let (reply, accepted) = client.turn(node, &mut session, &format!("turn {seq} says hello")).await;
        assert_eq!(reply.text(), format!("echo: turn {seq} says hello"));
        assert!(reply.complete);
        assert!(matches!(reply.store(), Some(StoreState::Stored { .. })), "{:?}", reply.store());
        assert_eq!(accepted.link.segment, seq / 16);
        assert_eq!(accepted.receipt.window_from, 0, "everything fits");
        // Two words of system text; four of a message and five of its answer in each earlier turn.
        assert_eq!(u64::from(accepted.receipt.tokens.input), 2 + 4 + seq * 9);
        assert_eq!(accepted.receipt.tokens.output, 5);
    }
    assert_eq!(store.puts.load(std::sync::atomic::Ordering::SeqCst), 36, "one PUT a turn");
    assert!(first.counts().wrong.is_empty() && second.counts().wrong.is_empty());

    let mut reader = SessionReader::new(&session.root, &session.head_outer()).unwrap();
    while let Some(need) = reader.need() {
        reader.provide(&store.get(need.blob_id, need.length as usize).await.unwrap()).unwrap();
    }
    let turns: usize = reader.finish().unwrap().iter().map(|segment| segment.turns.len()).sum();
    assert_eq!(turns, 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_a_session_without_a_locator_by_the_head_index() {
    let World { node, client, mut session, store } = world(Setup::default()).await;
    for text in ["one", "two"] {
        client.turn(&node, &mut session, text).await;
    }
    store.publish(session.head()).await.unwrap();
    let prepared = session.prepare(&node, "three", Changes { no_locator: true, ..Changes::default() });
    assert_eq!(prepared.auth.prev_blob, None);
    let reply = client.run(&node, &prepared).await;
    let accepted = session.accept(&prepared, reply.committed().unwrap(), &reply.text(), &[]).unwrap();
    assert_eq!(accepted.receipt.window_from, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_twice_gives_the_same_receipt_and_one_generation() {
    let World { node, client, session, .. } = world(Setup::default()).await;
    let prepared = session.prepare(&node, "once only", Changes::default());
    let first = client.run(&node, &prepared).await;
    let again = client.run(&node, &prepared).await;
    assert_eq!(again.committed(), first.committed());
    assert_ne!(again.nonce, first.nonce, "a nonce is never used for two streams");
    assert_eq!(again.ids(), Vec::<u32>::new());
    assert!(again.complete && matches!(again.store(), Some(StoreState::Stored { .. })));
    assert_eq!((node.jobs(), node.counts().finished), (1, 1));

    let status = client.status(&node, &session, &prepared).await.unwrap();
    let TurnStatus::Sealed { committed, .. } = status else { panic!("{status:?}") };
    assert_eq!(Some(&*committed), first.committed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_attaches_to_the_running_turn_and_sees_all_of_it() {
    let World { node, client, session, .. } = world(Setup::slow(20)).await;
    let prepared = session.prepare(&node, "a b c d e f g h", Changes::default());
    let mut first = client.open(&node, &ClientFrame::Turn(prepared.request.clone())).await;
    // The connection breaks after Accepted and the first tokens.
    let accepted = next_frame(&mut first).await.unwrap();
    next_frame(&mut first).await.unwrap();
    drop(first);
    let second = client.run(&node, &prepared).await;
    assert_eq!(accepted, NodeFrame::Accepted { nonce: second.nonce.unwrap() }, "the same stream");
    assert_eq!(second.text(), "echo: a b c d e f g h");
    assert!(second.committed().is_some() && second.complete);
    assert_eq!((node.jobs(), node.counts().attached), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_progress_every_32_tokens() {
    let World { node, client, mut session, .. } = world(Setup::default()).await;
    let (reply, accepted) = client.turn(&node, &mut session, &"word ".repeat(70)).await;
    assert_eq!(accepted.receipt.tokens.output, 71);
    let counts: Vec<u32> = reply.notes().iter().map(|note| note.token_count).collect();
    assert_eq!(counts, [32, 64]);
    let key = session.root.record_key(&accepted.link.record_identity());
    let start = running_hash_start(&key, &accepted.link.auth_hash);
    let hash = reply.ids()[..64].iter().fold(start, |hash, token| running_hash_step(&hash, *token));
    assert_eq!(reply.notes()[1].running_hash, hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_used_for_one_turn_and_committed_to() {
    let World { node, client, mut session, .. } = world(Setup::default()).await;
    let relayer = SecretSigningKey::generate();
    let changes = Changes::auth(|auth| {
        (auth.memory_from, auth.memory_tokens) = (Some(relayer.public_key()), 100);
    });
    let mut prepared = session.prepare(&node, "what do I like", changes);
    let items = [MemoryItem { text: "likes figs".into(), source: "a chat".into(), time_ms: 1 }];
    let ephemeral = EphemeralSecret::generate();
    let envelope =
        MemEnvelope::seal(&items, &prepared.auth, &relayer, &node.exchange, ephemeral, now_ms()).unwrap();
    prepared.request.memory = Some(envelope.bytes().clone());
    let reply = client.run(&node, &prepared).await;
    let accepted = session.accept(&prepared, reply.committed().unwrap(), &reply.text(), &items).unwrap();
    assert_eq!(accepted.receipt.memory_items, 1);
    assert!(accepted.receipt.tokens.memory > 0);
    assert!(node.engine.last_prompt.lock().unwrap().contains("likes figs"));

    let (_, next) = client.turn(&node, &mut session, "and now").await;
    assert_eq!((next.receipt.memory_items, next.receipt.tokens.memory), (0, 0), "for one turn only");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_continues_an_answer_without_a_seam() {
    let World { node: first, client, mut session, store } = world(Setup::default()).await;
    let second = start(&store, Setup { seed: 2, ..Setup::default() }).await;
    let text = "one two three four five";
    let begun = client.run(&first, &session.prepare(&first, text, Changes::default())).await;
    let tokens = begun.ids()[..3].to_vec();
    // The test client fills in the hash.
    let prefix = ResumePrefix { author: first.node, attempt: 0, token_count: 3, tokens_hash: [0; 32] };
    let changes = Changes {
        attempt: 1,
        ..Changes::payload(|payload| payload.resume_tokens = tokens)
            .and_auth(|auth| auth.resume = Some(prefix))
    };
    let prepared = session.prepare(&second, text, changes);
    let reply = client.run(&second, &prepared).await;
    assert_eq!(reply.text(), " three four five", "no token twice");
    let whole = format!("echo: one two{}", reply.text());
    let accepted = session.accept(&prepared, reply.committed().unwrap(), &whole, &[]).unwrap();
    assert_eq!((accepted.receipt.tokens.resumed, accepted.receipt.tokens.output), (3, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_takes_its_turns_out_of_the_window() {
    let limits = ServiceLimits { quotas: trusting(), ..Setup::default().limits };
    let World { node, client, mut session, .. } = world(Setup { limits, ..Setup::default() }).await;
    for text in ["keep this", "forget this"] {
        client.turn(&node, &mut session, text).await;
    }
    let prepared = session.prepare(&node, "", Changes::tombstone(1));
    let reply = run_under(&client, &node, &prepared, granted(10, Vec::new()).used(&prepared.auth)).await;
    let committed = reply.committed().unwrap();
    assert_eq!(committed.finish, FinishReason::None);
    session.accept(&prepared, committed, "", &[]).unwrap();
    client.turn(&node, &mut session, "and now").await;
    let prompt = node.engine.last_prompt.lock().unwrap().clone();
    assert!(prompt.contains("keep this") && !prompt.contains("forget this"), "{prompt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_answered_without_what_it_replaces() {
    let World { node, client, mut session, .. } = world(Setup::default()).await;
    for text in ["first words", "wrong words", "more words"] {
        client.turn(&node, &mut session, text).await;
    }
    let changes = Changes::payload(|payload| {
        (payload.kind, payload.supersedes_from) = (RecordKind::Edit, Some(1));
    });
    let prepared = session.prepare(&node, "right words", changes);
    let reply = client.run(&node, &prepared).await;
    session.accept(&prepared, reply.committed().unwrap(), &reply.text(), &[]).unwrap();
    let asked = "be brief\nfirst words\necho: first words\nright words";
    assert_eq!(*node.engine.last_prompt.lock().unwrap(), asked);
    client.turn(&node, &mut session, "next").await;
    let asked = format!("{asked}\necho: right words\nnext");
    assert_eq!(*node.engine.last_prompt.lock().unwrap(), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_are_taken_once_and_again_and_only_true_ones() {
    let World { node, client, mut session, .. } = world(Setup::default()).await;
    let (_, accepted) = client.turn(&node, &mut session, "hello").await;
    let ack = session.ack(&accepted);
    for _ in 0..2 {
        let frame = ClientFrame::Note(session.sign(ack.clone()));
        assert_eq!(client.ask(&node, &frame).await, NodeFrame::Done);
    }
    let changed = |change: fn(&mut Acknowledgement)| {
        let mut note = ack.clone();
        let TurnNoteKind::Ack(accepted) = &mut note.kind else { panic!("{note:?}") };
        change(accepted);
        note
    };
    let cases = [
        (changed(|ack| ack.receipt_hash.0[0] ^= 1), ErrorCode::IdempotencyConflict),
        (changed(|ack| ack.blob_digest.0[0] ^= 1), ErrorCode::StatusUnknown),
        (TurnNote { node: NodeId([1; 32]), ..ack.clone() }, ErrorCode::WrongAudience),
    ];
    for (note, code) in cases {
        let frame = ClientFrame::Note(session.sign(note));
        assert_eq!(client.ask(&node, &frame).await, NodeFrame::Refused { code, retry_after_ms: 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gives_its_node_record_and_the_blobs_it_sealed() {
    let World { node, client, mut session, .. } = world(Setup::default()).await;
    let NodeFrame::NodeRecord(record) = client.ask(&node, &ClientFrame::NodeRecord).await else {
        panic!("no record")
    };
    assert_eq!(SignedObject::<NodeRecord>::verify(record).unwrap().node, node.node);
    let (_, accepted) = client.turn(&node, &mut session, "hello").await;
    let identity = session.identities.last().unwrap();
    let key = session.root.blob_key(0, &session.root.record_key(identity).blob_salt());
    let digest = accepted.blob_digest;
    let proof = FetchProof(key.fetch_proof(&digest.0));
    let frame = ClientFrame::FetchBlob { digest, proof };
    assert_eq!(client.ask(&node, &frame).await, NodeFrame::Blob(accepted.blob));
    let code = ErrorCode::BlobUnavailable;
    for proof in [[0; 32], digest.0, key.fetch_proof(&[1; 32])] {
        let frame = ClientFrame::FetchBlob { digest, proof: FetchProof(proof) };
        let refused = NodeFrame::Refused { code, retry_after_ms: 0 };
        assert_eq!(client.ask(&node, &frame).await, refused, "the digest alone says nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_turn_hears_its_position_and_then_runs() {
    let mut setup = Setup::slow(30);
    (setup.limits.slots, setup.limits.queue) = (1, 1);
    let World { node, client, .. } = world(setup).await;
    let sessions = [Session::new(), Session::new(), Session::new()];
    let requests: Vec<_> =
        sessions.iter().map(|session| session.prepare(&node, "a b c d e f", Changes::default())).collect();
    let mut first = client.open(&node, &ClientFrame::Turn(requests[0].request.clone())).await;
    let accepted = next_frame(&mut first).await.unwrap();
    assert!(matches!(accepted, NodeFrame::Accepted { .. }));
    let mut second = client.open(&node, &ClientFrame::Turn(requests[1].request.clone())).await;
    let NodeFrame::Accepted { nonce } = next_frame(&mut second).await.unwrap() else { panic!("refused") };
    let third = client.run(&node, &requests[2]).await;
    assert_eq!(third.code(), Some(ErrorCode::Busy), "no slot and no place in the queue");
    assert!(third.refused.unwrap().1 > 0, "says when to come back");

    let mut opener = requests[1].secret.reply_opener(&nonce, &requests[1].auth.auth_hash().0);
    let NodeFrame::Chunk(chunk) = next_frame(&mut second).await.unwrap() else { panic!("no chunk") };
    let waiting = ReplyEvent::from_chunk(&opener.open(&chunk).unwrap().0).unwrap();
    assert_eq!(waiting, ReplyEvent::Waiting(1));
    drop(first);
    drop(second);
    let reply = client.run(&node, &requests[1]).await;
    assert!(reply.committed().is_some(), "{reply:?}");
    let waits: Vec<_> =
        reply.events.iter().filter(|event| matches!(event, ReplyEvent::Waiting(_))).cloned().collect();
    assert_eq!(waits, [ReplyEvent::Waiting(1), ReplyEvent::Waiting(0)], "and when its time has come");
}

#[tokio::test(flavor = "multi_thread")]
async fn takes_inlined_blobs_before_any_other_source() {
    let World { node: first, client, mut session, store } = world(Setup::default()).await;
    let second = start(&store, Setup { seed: 2, ..Setup::default() }).await;
    client.turn(&first, &mut session, "hello").await;
    let mut prepared = session.prepare(&second, "again", Changes::default());
    prepared.request.inline = vec![InlineBlob(session.blobs[0].2.clone())];
    assert!(client.run(&second, &prepared).await.committed().is_some());
    assert_eq!(second.counts().used, [BlobSource::Inline]);
}
