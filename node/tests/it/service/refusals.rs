//! The service's refusals and their codes.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use baton_keys::{SecretSigningKey, exchange::EphemeralSecret};
use baton_mesh::TurnStream;
use baton_node::{engine::echo::EchoConfig, service::Price};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    ids::{ExchangeKeyId, FetchProof, LinkHash, ModelId, NodeId, PublicKey, SessionId, TurnId},
    limits::{MAX_BLOB_BYTES, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES},
    link::Genesis,
    memory::{MemEnvelope, MemoryItem},
    record::{Message, Role},
    signed::SignatureBytes,
    tools::TOOLS_NAME,
    turn::{Payload, TurnAuth, json_schema_hash},
    wire::{ClientFrame, InlineBlob, NodeFrame, StoreState, TurnStatus},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::fairness::counting;
use crate::service::network::{
    World,
    client::{Changes, PreparedTurn, Session, next_frame, read_reply},
    node::Setup,
    now_ms, world,
};

impl World {
    /// Sends the next turn with changes, and expects this code and no generation.
    async fn check(&self, changes: Changes<'_>, expected: ErrorCode) {
        let prepared = self.session.prepare(&self.node, "hello", changes);
        self.check_prepared(&prepared, expected).await;
    }

    async fn check_prepared(&self, prepared: &PreparedTurn, expected: ErrorCode) {
        let jobs = self.node.jobs();
        let reply = self.client.run(&self.node, prepared).await;
        assert_eq!(reply.code(), Some(expected), "{reply:?}");
        assert!(reply.committed().is_none());
        assert_eq!(self.node.jobs(), jobs, "nothing is generated for {expected:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_for_a_model_without_them_go_to_another_node_and_broken_ones_to_none() {
    let world = world(Setup::default()).await;
    let tools = |texts: &'static [&'static str]| {
        Changes::payload(move |payload| {
            for text in texts {
                let mut message = Message::new(Role::System, *text);
                message.name = Some(TOOLS_NAME.to_owned());
                payload.system.push(message);
            }
        })
    };
    const SOUND: &str = r#"[{"type": "function", "function": {"name": "f"}}]"#;
    world.check(tools(&[SOUND]), ErrorCode::ModelUnavailable).await;
    for broken in [&["[]"][..], &["be brief"], &[SOUND, SOUND]] {
        world.check(tools(broken), ErrorCode::PayloadRejected).await;
    }
}

/// A change, and the code of its refusal.
type Case<T> = (fn(&mut T), ErrorCode);

#[tokio::test(flavor = "multi_thread")]
async fn refuses_what_is_wrong_with_an_authorisation() {
    let world = world(Setup::default()).await;
    let auths: [Case<TurnAuth>; 17] = [
        (|auth| auth.version = 2, ErrorCode::UnsupportedVersion),
        (|auth| auth.version = 5, ErrorCode::UnsupportedVersion),
        (|auth| auth.suite = 1, ErrorCode::UnsupportedVersion),
        (|auth| auth.audience = NodeId([9; 32]), ErrorCode::WrongAudience),
        (|auth| auth.issued_ms += 60_000, ErrorCode::NotYetValid),
        (|auth| auth.expires_ms = auth.issued_ms - 1, ErrorCode::Expired),
        (|auth| auth.expires_ms = auth.issued_ms + 120_001, ErrorCode::Expired),
        (|auth| auth.issued_ms -= 30_000, ErrorCode::Replayed),
        (|auth| auth.session_id = SessionId([9; 32]), ErrorCode::SessionIdMismatch),
        (|auth| auth.prev_link = LinkHash([9; 32]), ErrorCode::PayloadRejected),
        (|auth| auth.audience_key = ExchangeKeyId([9; 32]), ErrorCode::KxExpired),
        (|auth| auth.model = ModelId([9; 32]), ErrorCode::ModelUnavailable),
        (|auth| auth.max_output_tokens = 5000, ErrorCode::QuotaExceeded),
        (|auth| auth.payload_hash.0[0] ^= 1, ErrorCode::PayloadRejected),
        (|auth| auth.grant_hash.0[0] ^= 1, ErrorCode::PayloadRejected),
        (|auth| auth.sampling.0[0] ^= 1, ErrorCode::PayloadRejected),
        (|auth| auth.attempt = 1, ErrorCode::PayloadRejected),
    ];
    for (change, expected) in auths {
        world.check(Changes::auth(change), expected).await;
    }
    let payloads: [Case<Payload>; 10] = [
        (|payload| payload.sampling.top_p = 0.0, ErrorCode::PayloadRejected),
        (|payload| payload.sampling.logprobs = 1, ErrorCode::PayloadRejected),
        (|payload| payload.sampling.json_schema = Some([1; 32]), ErrorCode::PayloadRejected),
        (|payload| payload.json_schema = Some("{}".to_owned()), ErrorCode::PayloadRejected),
        // The test engine has no grammar, for any schema.
        (
            |payload| {
                payload.json_schema = Some("{}".to_owned());
                payload.sampling.json_schema = Some(json_schema_hash("{}"));
            },
            ErrorCode::PayloadRejected,
        ),
        (|payload| payload.resume_tokens = vec![1], ErrorCode::PayloadRejected),
        (|payload| payload.supersedes_from = Some(0), ErrorCode::PayloadRejected),
        (|payload| payload.grant.index = 1, ErrorCode::PayloadRejected),
        (|payload| payload.storage.open_epochs = 54, ErrorCode::QuotaExceeded),
        (|payload| payload.storage.closed_epochs = u32::MAX, ErrorCode::QuotaExceeded),
    ];
    for (change, expected) in payloads {
        world.check(Changes::payload(change), expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_signatures_by_others_and_frames_that_are_none() {
    let world = world(Setup::default()).await;
    let mut forged = world.session.prepare(&world.node, "hello", Changes::default());
    let other = SecretSigningKey::generate();
    forged.request.auth = SignedObject::sign(TurnAuth::clone(&forged.auth), &other).bytes().clone();
    world.check_prepared(&forged, ErrorCode::BadSignature).await;

    let mut crowded = world.session.prepare(&world.node, "hello", Changes::default());
    crowded.request.inline = vec![InlineBlob(Vec::new()); 3];
    world.check_prepared(&crowded, ErrorCode::FrameTooLarge).await;
    crowded.request.inline = vec![InlineBlob(vec![0; MAX_BLOB_BYTES + 1])];
    world.check_prepared(&crowded, ErrorCode::BlobTooLarge).await;

    let relayed = world.session.prepare(&world.node, "hello", Changes::default());
    let mut trailing = codec::encode(&ClientFrame::Turn(relayed.request.clone()));
    trailing.push(0);
    let relay = codec::encode(&ClientFrame::Relay { request: relayed.request, recall: None });
    for (bytes, expected) in [
        (&trailing[..], ErrorCode::NonCanonical),
        (&[0xff; 9][..], ErrorCode::NonCanonical),
        (&relay[..], ErrorCode::UnsupportedVersion),
    ] {
        let mut stream = world.client.open_raw(&world.node, bytes).await;
        let answer = next_frame(&mut stream).await.unwrap();
        assert_eq!(answer, NodeFrame::Refused { code: expected, retry_after_ms: 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_the_same_attempt_with_other_content() {
    let world = world(Setup::default()).await;
    let turn_id = Some(TurnId([5; 16]));
    let prepare =
        |text: &str| world.session.prepare(&world.node, text, Changes { turn_id, ..Changes::default() });
    let first = prepare("hello");
    assert!(world.client.run(&world.node, &first).await.committed().is_some());
    world.check_prepared(&prepare("another"), ErrorCode::IdempotencyConflict).await;
    let mut swapped = first;
    swapped.request.payload.0[40] ^= 1;
    world.check_prepared(&swapped, ErrorCode::IdempotencyConflict).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_late_replay_and_still_answers_for_its_status() {
    let world = world(Setup::default()).await;
    let brief = Changes::auth(|auth| auth.expires_ms = auth.issued_ms + 400);
    let prepared = world.session.prepare(&world.node, "hello", brief);
    let reply = world.client.run(&world.node, &prepared).await;
    let committed = reply.committed().unwrap();
    while now_ms() <= prepared.auth.expires_ms {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.check_prepared(&prepared, ErrorCode::Expired).await;
    let status = world.client.status(&world.node, &world.session, &prepared).await.unwrap();
    let TurnStatus::Sealed { committed: kept, .. } = status else { panic!("{status:?}") };
    assert_eq!(*kept, *committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_new_journal_refuses_what_was_issued_before() {
    let world = world(Setup { journal_begins_later_ms: 20_000, ..Setup::default() }).await;
    world.check(Changes::default(), ErrorCode::Replayed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_attempt_stays_aborted() {
    let world = world(Setup::default()).await;
    let prepared = world.session.prepare(&world.node, "hello", Changes::default());
    assert!(world.client.run(&world.node, &prepared).await.committed().is_some());
    let abort = ClientFrame::Note(world.session.abort(&prepared));
    assert_eq!(world.client.ask(&world.node, &abort).await, NodeFrame::Done);
    world.check_prepared(&prepared, ErrorCode::Aborted).await;
    let status = world.client.status(&world.node, &world.session, &prepared).await.unwrap();
    assert_eq!(status, TurnStatus::Aborted);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborts_of_what_nobody_knows_count_as_turns_and_have_to_be_recent() {
    let mut setup = counting(Setup::default().limits);
    setup.limits.turns_per_minute = 3;
    let world = world(setup).await;
    let abort = |prepared: &PreparedTurn| ClientFrame::Note(world.session.abort(prepared));
    let known = world.session.prepare(&world.node, "hello", Changes::default());
    assert!(world.client.run(&world.node, &known).await.committed().is_some());
    let mut unknown = 0;
    for _ in 0..4 {
        let prepared = world.session.prepare(&world.node, "never sent", Changes::default());
        match world.client.ask(&world.node, &abort(&prepared)).await {
            NodeFrame::Done => unknown += 1,
            answer => assert!(
                matches!(answer, NodeFrame::Refused { code: ErrorCode::RateLimited, .. }),
                "{answer:?}"
            ),
        }
    }
    assert_eq!(unknown, 2, "what the turn left of the minute's share");
    // Aborting a known request is free.
    assert_eq!(world.client.ask(&world.node, &abort(&known)).await, NodeFrame::Done);
    for (age, code) in [(-400_000, ErrorCode::Expired), (400_000, ErrorCode::NotYetValid)] {
        let prepared = world.session.prepare(&world.node, "never sent", Changes::default());
        let frame = ClientFrame::Note(world.session.abort_at(&prepared, now_ms().saturating_add_signed(age)));
        let answer = world.client.ask(&world.node, &frame).await;
        assert_eq!(answer, NodeFrame::Refused { code, retry_after_ms: 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_the_running_turn() {
    let world = world(Setup::slow(50)).await;
    let prepared = world.session.prepare(&world.node, &"word ".repeat(200), Changes::default());
    let stream = world.client.open(&world.node, &ClientFrame::Turn(prepared.request.clone())).await;
    world.node.until(|counts| counts.started == 1).await;
    let abort = ClientFrame::Note(world.session.abort(&prepared));
    assert_eq!(world.client.ask(&world.node, &abort).await, NodeFrame::Done);
    let reply = read_reply(stream, &prepared).await;
    assert_eq!(reply.code(), Some(ErrorCode::Aborted));
    assert!(reply.complete, "the failure is the stream's last chunk");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_for_the_session_alone_and_for_this_node() {
    let world = world(Setup::default()).await;
    let prepared = world.session.prepare(&world.node, "hello", Changes::default());
    let unknown = world.client.status(&world.node, &world.session, &prepared).await;
    assert_eq!(unknown, Err(ErrorCode::StatusUnknown));
    assert!(world.client.run(&world.node, &prepared).await.committed().is_some());
    let other = Session::new();
    let unknown = world.client.status(&world.node, &other, &prepared).await;
    assert_eq!(unknown, Err(ErrorCode::StatusUnknown), "another session's key opens nothing");
    let mut late = world.session.status_request(&world.node, &prepared);
    late.body[100] ^= 1;
    let answer = world.client.ask(&world.node, &ClientFrame::Note(late)).await;
    assert_eq!(answer, NodeFrame::Refused { code: ErrorCode::BadSignature, retry_after_ms: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_signed_head_is_gone_on_from() {
    use baton_proto::store::HeadIndex as _;
    let mut world = world(Setup::default()).await;
    world.client.turn(&world.node, &mut world.session, "one").await;
    // A head record that is missing, and one that is stale.
    let no_locator = || Changes { no_locator: true, ..Changes::default() };
    world.check(no_locator(), ErrorCode::BlobUnavailable).await;
    world.store.publish(world.session.head()).await.unwrap();
    world.client.turn(&world.node, &mut world.session, "two").await;
    world.check(no_locator(), ErrorCode::HeadMismatch).await;
    world.check(Changes::auth(|auth| auth.prev_link = LinkHash([9; 32])), ErrorCode::HeadMismatch).await;
    // The payload was sealed for another seq, so it does not open.
    world.check(Changes::auth(|auth| auth.seq += 1), ErrorCode::PayloadRejected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_text_that_exceeds_the_context() {
    let echo = EchoConfig { context_tokens: 50, ..EchoConfig::default() };
    let world = world(Setup { echo, ..Setup::default() }).await;
    let long = world.session.prepare(&world.node, &"word ".repeat(60), Changes::default());
    world.check_prepared(&long, ErrorCode::ContextOverflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_turn_that_its_price_cap_does_not_cover() {
    let mut setup = Setup::default();
    setup.limits.price = Price { input: 1_000_000, output: 1_000_000 };
    let mut world = world(setup).await;
    world.check(Changes::auth(|auth| auth.max_price = 1000), ErrorCode::QuotaExceeded).await;
    // Two words of system text, five of the message, and two of the answer, which is cut there.
    let changes = Changes::auth(|auth| auth.max_price = 9000);
    let prepared = world.session.prepare(&world.node, "a b c d e", changes);
    let reply = world.client.run(&world.node, &prepared).await;
    let accepted = world.session.accept(&prepared, reply.committed().unwrap(), &reply.text(), &[]).unwrap();
    assert_eq!((reply.text().as_str(), accepted.receipt.price), ("echo: a", 9000));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_the_rate_of_a_subnet() {
    let mut setup = counting(Setup::default().limits);
    setup.limits.turns_per_minute = 2;
    let first = world(setup).await;
    for _ in 0..2 {
        first.check(Changes::auth(|auth| auth.model = ModelId([9; 32])), ErrorCode::ModelUnavailable).await;
    }
    let prepared = first.session.prepare(&first.node, "hello", Changes::default());
    let (code, retry_after_ms) = first.client.run(&first.node, &prepared).await.refused.unwrap();
    assert_eq!(code, ErrorCode::RateLimited);
    assert!((1..=30_000).contains(&retry_after_ms), "{retry_after_ms}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_one_turn_at_a_time() {
    let world = world(Setup::slow(50)).await;
    let long = world.session.prepare(&world.node, &"word ".repeat(100), Changes::default());
    let stream = world.client.begin(&world.node, &long).await;
    world.check(Changes::default(), ErrorCode::Busy).await;

    // Once its reader is gone, a new attempt need not wait for the grace period.
    drop(stream);
    let other = Changes { attempt: 1, turn_id: Some(long.auth.turn_id), ..Changes::default() };
    let mut retry = world.session.prepare(&world.node, "hi", other);
    let mut reply = world.client.run(&world.node, &retry).await;
    while reply.code() == Some(ErrorCode::Busy) {
        // The node has not noticed the closed stream yet.
        let again = Changes {
            attempt: retry.auth.attempt + 1,
            turn_id: Some(long.auth.turn_id),
            ..Changes::default()
        };
        retry = world.session.prepare(&world.node, "hi", again);
        reply = world.client.run(&world.node, &retry).await;
    }
    assert!(reply.committed().is_some(), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_after_committed_while_its_blob_waits_for_the_store() {
    let mut setup = Setup::default();
    (setup.limits.slots, setup.limits.queue) = (1, 0);
    setup.limits.store_wait = Duration::from_secs(60);
    let mut world = world(setup).await;
    world.store.down.store(true, SeqCst);
    let first = world.session.prepare(&world.node, "one", Changes::default());
    let stream = world.client.open(&world.node, &ClientFrame::Turn(first.request.clone())).await;
    world.node.until(|counts| counts.finished == 1).await;
    let committed = loop {
        // The journal has it before the node sends it, so a status can only be early.
        match world.client.status(&world.node, &world.session, &first).await.unwrap() {
            TurnStatus::Sealed { committed, store } => {
                assert_eq!(store, StoreState::Pending);
                break committed;
            }
            other => assert_eq!(other, TurnStatus::Accepted),
        }
    };
    world.session.accept(&first, &committed, "echo: one", &[]).unwrap();
    let second = world.session.prepare(&world.node, "two", Changes::default());
    let next = world.client.open(&world.node, &ClientFrame::Turn(second.request.clone())).await;
    world.node.until(|counts| counts.finished == 2).await;
    world.store.down.store(false, SeqCst);
    for (stream, prepared) in [(stream, &first), (next, &second)] {
        let reply = read_reply(stream, prepared).await;
        assert!(reply.complete && matches!(reply.store(), Some(StoreState::Stored { .. })), "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_does_not_hold_its_slot_for_ever() {
    let mut setup = Setup::slow(20);
    setup.limits.max_turn_time = Duration::from_millis(200);
    let world = world(setup).await;
    let long = world.session.prepare(&world.node, &"word ".repeat(400), Changes::default());
    let reply = world.client.run(&world.node, &long).await;
    assert_eq!(reply.code(), Some(ErrorCode::QuotaExceeded));
    assert!(reply.complete && reply.ids().len() > 1, "it began: {reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_oversized_and_endless_requests_are_dropped_and_the_node_serves_on() {
    let mut setup = Setup::default();
    setup.limits.request_timeout = Duration::from_millis(200);
    let mut world = world(setup).await;
    let prepared = world.session.prepare(&world.node, "hello", Changes::default());
    let request = codec::encode(&ClientFrame::Turn(prepared.request));
    let length = u32::try_from(request.len()).unwrap().to_le_bytes();
    let half = [&length[..], &request[..request.len() / 2]].concat();
    let pipe = || {
        let (near, far) = tokio::io::duplex(1 << 20);
        world.node.service.serve(TurnStream::from_io(NodeId([8; 32]), "/baton/turn/2", near.compat()));
        far
    };
    // Silence after half of it, and after nothing: the node closes the stream.
    for sent in [&half[..], &[]] {
        let mut far = pipe();
        far.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(Duration::from_secs(20), far.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.is_empty(), "{answer:?}");
    }
    let mut far = pipe();
    far.write_all(&half).await.unwrap();
    far.shutdown().await.unwrap();
    let mut answer = Vec::new();
    far.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty(), "cut off: {answer:?}");
    // A header alone says that the frame is too large.
    for announced in [u32::MAX, u32::try_from(MAX_FRAME_BYTES).unwrap() + 1] {
        let mut far = pipe();
        far.write_all(&announced.to_le_bytes()).await.unwrap();
        let mut stream = TurnStream::from_io(world.node.node, "/baton/turn/2", far.compat());
        let answer = next_frame(&mut stream).await.unwrap();
        assert_eq!(answer, NodeFrame::Refused { code: ErrorCode::FrameTooLarge, retry_after_ms: 0 });
    }
    world.client.turn(&world.node, &mut world.session, "hello").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_frames_share_a_bounded_memory_and_small_ones_do_not_wait_for_it() {
    let mut setup = Setup::default();
    setup.limits.request_timeout = Duration::from_millis(300);
    // One blob at a time.
    setup.limits.frame_bytes = 2 * MAX_BLOB_BYTES + 1024;
    let mut world = world(setup).await;
    let (_, accepted) = world.client.turn(&world.node, &mut world.session, "hello").await;
    let identity = *world.session.identities.last().unwrap();
    let key = world.session.root.blob_key(0, &world.session.root.record_key(&identity).blob_salt());
    let digest = accepted.blob_digest;
    let frame = ClientFrame::FetchBlob { digest, proof: FetchProof(key.fetch_proof(&digest.0)) };
    let pipe = |buffer| {
        let (near, far) = tokio::io::duplex(buffer);
        world.node.service.serve(TurnStream::from_io(NodeId([8; 32]), "/baton/turn/2", near.compat()));
        far
    };
    // A reader that takes only the first byte of a blob holds the blob's memory.
    let mut reader = pipe(64);
    let request = codec::encode(&frame);
    reader.write_all(&u32::try_from(request.len()).unwrap().to_le_bytes()).await.unwrap();
    reader.write_all(&request).await.unwrap();
    reader.read_u8().await.unwrap();
    let mut large = pipe(1 << 20);
    large.write_all(&u32::try_from(MAX_BLOB_BYTES).unwrap().to_le_bytes()).await.unwrap();
    let mut large = TurnStream::from_io(world.node.node, "/baton/turn/2", large.compat());
    let answer = next_frame(&mut large).await.unwrap();
    assert!(matches!(answer, NodeFrame::Refused { code: ErrorCode::Busy, .. }), "{answer:?}");
    // The rest of the memory is free.
    let mut fits = TurnStream::from_io(world.node.node, "/baton/turn/2", pipe(1 << 20).compat());
    fits.send(&vec![0xff; 1 << 20]).await.unwrap();
    let answer = next_frame(&mut fits).await.unwrap();
    assert_eq!(answer, NodeFrame::Refused { code: ErrorCode::NonCanonical, retry_after_ms: 0 });
    world.client.turn(&world.node, &mut world.session, "small").await;

    // The reader continues, and the memory is free again.
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() > accepted.blob.len());
    let mut large = TurnStream::from_io(world.node.node, "/baton/turn/2", pipe(1 << 20).compat());
    large.send(&vec![0xff; 1 << 20]).await.unwrap();
    let answer = next_frame(&mut large).await.unwrap();
    assert_eq!(answer, NodeFrame::Refused { code: ErrorCode::NonCanonical, retry_after_ms: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_keys_of_small_order() {
    let world = world(Setup::default()).await;
    let mut prepared = world.session.prepare(&world.node, "hello", Changes::default());
    // The sealed payload begins with the ephemeral key.
    prepared.request.payload.0[..32].fill(0);
    let mut auth = TurnAuth::clone(&prepared.auth);
    auth.payload_hash = prepared.request.payload.hash();
    prepared.request.auth = SignedObject::sign(auth, &world.session.root.signing_key()).bytes().clone();
    world.check_prepared(&prepared, ErrorCode::PayloadRejected).await;

    // The identity point; some verifiers accept any signature for it.
    let mut identity = [0; 32];
    identity[0] = 1;
    let mut prepared = world.session.prepare(&world.node, "hello", Changes::default());
    let mut auth = TurnAuth::clone(&prepared.auth);
    auth.session_key = PublicKey(identity);
    auth.session_id = baton_keys::session::session_id(&auth.session_key);
    let genesis = Genesis { session_key: auth.session_key, n_shards: auth.n_shards, branch: None };
    auth.prev_link = genesis.link_hash();
    let mut signature = [0; 64];
    signature[0] = 1;
    prepared.request.auth = SignedBytes { body: codec::encode(&auth), signature: SignatureBytes(signature) };
    world.check_prepared(&prepared, ErrorCode::BadSignature).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_may_be_empty_and_as_long_as_the_limit_and_no_longer() {
    let mut world = world(Setup::default()).await;
    let (reply, _) = world.client.turn(&world.node, &mut world.session, "").await;
    assert!(reply.complete, "{reply:?}");
    // The answer repeats the message, and both must fit into one record.
    let longest = "x".repeat(MAX_MESSAGE_BYTES);
    let (reply, _) = world.client.turn(&world.node, &mut world.session, &longest).await;
    assert!(reply.complete && reply.committed().is_some());
    let long = world.session.prepare(&world.node, &"x".repeat(1_000_000), Changes::default());
    world.check_prepared(&long, ErrorCode::FrameTooLarge).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_memory_that_was_not_allowed_or_not_for_this_turn() {
    let world = world(Setup::default()).await;
    let relayer = SecretSigningKey::generate();
    let unknown_key = SecretSigningKey::generate();
    let allow = || {
        Changes::auth(|auth| {
            auth.memory_from = Some(relayer.public_key());
            auth.memory_tokens = 50;
        })
    };
    let items = [MemoryItem { text: "likes figs".into(), source: "a chat".into(), time_ms: 1 }];
    let seal = |prepared: &PreparedTurn, key: &SecretSigningKey| {
        let ephemeral = EphemeralSecret::generate();
        MemEnvelope::seal(&items, &prepared.auth, key, &world.node.exchange, ephemeral, now_ms()).unwrap()
    };
    let first = world.session.prepare(&world.node, "hello", allow());
    let good = seal(&first, &relayer);
    let resign = |change: &dyn Fn(&mut MemEnvelope)| {
        let mut envelope = MemEnvelope::clone(&good);
        change(&mut envelope);
        SignedObject::sign(envelope, &relayer)
    };
    let mut unsigned = good.bytes().clone();
    unsigned.signature.0[0] ^= 1;
    let cases = [
        (seal(&first, &unknown_key).bytes().clone(), ErrorCode::MemUnauthorized),
        (unsigned, ErrorCode::MemUnauthorized),
        (resign(&|envelope| envelope.auth_hash.0[0] ^= 1).bytes().clone(), ErrorCode::MemUnauthorized),
        (resign(&|envelope| envelope.sealed[0] ^= 1).bytes().clone(), ErrorCode::MemUnauthorized),
        (resign(&|envelope| envelope.expires_ms = 1).bytes().clone(), ErrorCode::MemUnauthorized),
        (resign(&|envelope| envelope.budget_tokens = 51).bytes().clone(), ErrorCode::MemUnauthorized),
    ];
    for (envelope, expected) in cases {
        let mut prepared = world.session.prepare(&world.node, "hello", Changes::default());
        prepared.request.clone_from(&first.request);
        prepared.request.memory = Some(envelope);
        world.check_prepared(&prepared, expected).await;
    }
    // None of these requests used up the attempt.
    let mut prepared = first;
    prepared.request.memory = Some(good.bytes().clone());
    assert!(world.client.run(&world.node, &prepared).await.committed().is_some());
}
