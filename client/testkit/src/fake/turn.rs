//! One turn of the fake node: its window, its answer, and the misbehaviour that the script names.

use baton_keys::session::RecordKey;
use baton_mesh::TurnStream;
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    chain::{Window, WindowReader, effective},
    codec,
    commit::{ChainPosition, SealedTurn, seal_turn},
    head::HeadRecord,
    ids::{ModelId, RunningHash},
    limits::{MAX_BLOB_BYTES, MAX_NODE_FRAME_BYTES, RECEIPT_VERSION, VERSION},
    link::blob_digest,
    memory::{MemEnvelope, MemoryItem},
    node_record::storage_units,
    receipt::{
        Commitments, EngineKind, ProgressNote, Receipt, Timings, TokenCounts, commit_input, commit_memory,
        commit_output, running_hash_start, running_hash_step,
    },
    record::{FinishReason, Record},
    store::PutOptions,
    turn::{Payload, TurnAuth},
    wire::{NodeFrame, ReplyEvent, StoreState, TokenBytes, TokenLogprob, TurnRequest},
};

use super::{Act, FakeNodeInner, QUEUE, now_ms, send};

/// The turns that the client shows, from inlined blobs and the store.
async fn window(
    shared: &FakeNodeInner,
    auth: &TurnAuth,
    request: &TurnRequest,
    payload: &Payload,
) -> Result<Window, ErrorCode> {
    let located = match &payload.grant.head {
        Some(head) => {
            let found = shared.stores.heads.resolve(head.index_key).await;
            let found = found.map_err(|_| ErrorCode::BlobUnavailable)?.ok_or(ErrorCode::BlobUnavailable)?;
            let record = SignedObject::<HeadRecord>::verify_encoded(&found)?;
            Some(record.open_outer(&head.key.head_key())?)
        }
        None => None,
    };
    let mut reader = WindowReader::new(auth, payload.grant.clone(), located.as_ref())?;
    for need in reader.needs() {
        let inlined = request.inline.iter().find(|blob| blob_digest(&blob.0) == need.blob.digest);
        let bytes = match inlined {
            Some(blob) => blob.0.clone(),
            None => {
                let found = shared.stores.blobs.get(need.blob.blob_id, MAX_BLOB_BYTES).await;
                found.map_err(|_| ErrorCode::BlobUnavailable)?
            }
        };
        reader.provide(&need, &bytes)?;
    }
    reader.finish()
}

/// The report on a token: itself, and invented alternatives, each half as likely as the previous.
fn reported(id: u32, text: &str, alternatives: u8) -> Vec<TokenLogprob> {
    if alternatives == 0 {
        return Vec::new();
    }
    let others = (1..=u32::from(alternatives)).map(|n| (id + 100 * n, format!("other {n}"), n));
    let logprob = |(token, text, n): (u32, String, u32)| TokenLogprob {
        token,
        millinats: -125 - 693 * i32::try_from(n).unwrap(),
        bytes: TokenBytes(text.into_bytes()),
    };
    std::iter::once((id, text.to_owned(), 0)).chain(others).map(logprob).collect()
}

/// Events that only burden the client.
fn needless(act: Act, max_output_tokens: u32) -> Vec<ReplyEvent> {
    match act {
        Act::TooManyTokens => {
            let ids = vec![1; max_output_tokens as usize - 1];
            vec![ReplyEvent::Tokens { index: 2, ids, text: String::new(), logprobs: Vec::new() }]
        }
        Act::EmptyTokens => {
            vec![ReplyEvent::Tokens { index: 2, ids: Vec::new(), text: String::new(), logprobs: Vec::new() }]
        }
        Act::WaitOn => vec![ReplyEvent::Waiting(1); 1025],
        _ => Vec::new(),
    }
}

/// Says that the turn runs until it was asked about this many more times.
async fn run_until_asked(
    shared: &FakeNodeInner,
    auth: &TurnAuth,
    times: usize,
    running: impl Future<Output = ()>,
) {
    let mut asked = shared.asked.subscribe();
    let enough = *asked.borrow() + times;
    shared.state.lock().unwrap().running = Some((auth.turn_id, auth.attempt));
    running.await;
    asked.wait_for(|count| *count >= enough).await.unwrap();
    shared.state.lock().unwrap().running = None;
}

fn failed(code: ErrorCode, retry_after_ms: u32, reason: &str) -> ReplyEvent {
    ReplyEvent::Failed { code, retry_after_ms, reason: reason.to_owned() }
}

/// Serves a turn as the script says.
pub(super) async fn serve(shared: &FakeNodeInner, mut stream: TurnStream, request: TurnRequest) {
    let auth = SignedObject::<TurnAuth>::verify(request.auth.clone()).unwrap();
    let act = {
        let mut state = shared.state.lock().unwrap();
        state.seen.turns.push((*auth).clone());
        state.seen.inlined.push(request.inline.len());
        state.script.pop_front().unwrap_or(Act::Serve)
    };
    if let Act::Refuse(code) = act {
        return send(&mut stream, &NodeFrame::Refused { code, retry_after_ms: 10 }).await;
    }
    assert_eq!(auth.check_time(shared.now_ms()), Ok(()));
    let (payload, secret) = request.payload.open(&shared.exchange, &auth).unwrap();
    {
        let mut state = shared.state.lock().unwrap();
        state.seen.asked.push((payload.json_schema.clone(), payload.storage));
        state.seen.payloads.push((auth.session_id, codec::encode(&payload)));
    }
    let memory = request.memory.clone().map_or_else(Vec::new, |bytes| {
        let envelope = SignedObject::<MemEnvelope>::verify(bytes).unwrap();
        envelope.open(&auth, &shared.exchange, shared.now_ms()).unwrap()
    });
    let window = match window(shared, &auth, &request, &payload).await {
        Ok(window) => window,
        Err(code) => return send(&mut stream, &NodeFrame::Refused { code, retry_after_ms: 0 }).await,
    };
    let nonce = baton_keys::secret::random_bytes();
    let mut sealer = secret.reply_sealer(&nonce, &auth.auth_hash().0);
    let mut chunk = |event: &ReplyEvent, last| NodeFrame::Chunk(sealer.seal(&event.to_chunk(), last));
    if act == Act::OfferMemory {
        send(&mut stream, &NodeFrame::Memory(Vec::new())).await;
    }
    if let Act::AdmitOnceAsked(times) = act {
        run_until_asked(shared, &auth, times, async {}).await;
    }
    send(&mut stream, &NodeFrame::Accepted { nonce }).await;
    match act {
        Act::Explain(code, retry_after_ms, reason) => {
            return send(&mut stream, &chunk(&failed(code, retry_after_ms, reason), true)).await;
        }
        Act::ServeOnceAsked(times) => run_until_asked(shared, &auth, times, async {}).await,
        Act::SealOnceAsked(times) => {
            run_until_asked(shared, &auth, times, async { drop(stream.close().await) }).await;
        }
        _ => {}
    }
    if matches!(act, Act::QueueAndServe | Act::QueueAndHang) {
        send(&mut stream, &chunk(&ReplyEvent::Waiting(1), false)).await;
        tokio::time::sleep(QUEUE).await;
        send(&mut stream, &chunk(&ReplyEvent::Waiting(0), false)).await;
    }
    if matches!(act, Act::AdmitAndHang | Act::QueueAndHang) {
        shared.hanging.send_modify(|count| *count += 1);
        let _ = stream.recv(16).await;
        shared.left.send_modify(|count| *count += 1);
        return;
    }

    let read = effective(&window.turns).len();
    let system = payload.system.first().map_or("", |system| system.text.as_str());
    let said = payload.messages.last().map_or("", |last| last.text.as_str());
    let answer = match act {
        Act::Say(text) => text.to_owned(),
        Act::IgnoreSchema => format!("{system}{said} ({read})"),
        _ if payload.json_schema.is_some() => format!(r#"{{"said": "{said}", "read": {read}}}"#),
        _ => format!("{system}{said} ({read})"),
    };
    let (head, tail) = answer.split_at(answer.len() / 2);
    let record_key = payload.grant.record_key.record_key();
    let mut hash = running_hash_start(&record_key, &auth.auth_hash());
    let resumed = payload.resume_tokens.len();
    for token in &payload.resume_tokens {
        hash = running_hash_step(&hash, *token);
    }
    for (index, text) in [(0u32, head), (1, tail)].into_iter().skip(resumed) {
        let index = if act == Act::RepeatToken { 0 } else { index };
        let alternatives = if act == Act::KeepLogprobs { 0 } else { payload.sampling.logprobs };
        let logprobs = reported(40 + index, text, alternatives);
        let event = ReplyEvent::Tokens { index, ids: vec![40 + index], text: text.to_owned(), logprobs };
        send(&mut stream, &chunk(&event, false)).await;
        hash = running_hash_step(&hash, 40 + index);
        if act == Act::NoteAndTruncate {
            let note = note(shared, &auth, index + 1, hash);
            return send(&mut stream, &chunk(&ReplyEvent::Progress(note), false)).await;
        }
        match act {
            Act::Truncate => return,
            Act::OvercountHalfAndVanish => break,
            Act::HugeFrame => return drop(stream.send(&vec![0; MAX_NODE_FRAME_BYTES + 1]).await),
            Act::Fail(code) => return send(&mut stream, &chunk(&failed(code, 0, ""), true)).await,
            Act::Hang => {
                shared.hanging.send_modify(|count| *count += 1);
                let _ = stream.recv(16).await;
                shared.left.send_modify(|count| *count += 1);
                return;
            }
            _ => {}
        }
    }
    for event in needless(act, auth.max_output_tokens) {
        send(&mut stream, &chunk(&event, false)).await;
    }
    if act == Act::WrongNote {
        hash = running_hash_step(&hash, 1);
    }
    let note = note(shared, &auth, 2, hash);
    let notes = match act {
        Act::RepeatNote => 2,
        Act::OvercountHalfAndVanish => 0,
        _ => 1,
    };
    for _ in 0..notes {
        send(&mut stream, &chunk(&ReplyEvent::Progress(note.clone()), false)).await;
    }

    let sealed = seal(shared, &auth, &payload, &window, (&answer, &memory), act);
    {
        let mut state = shared.state.lock().unwrap();
        state.blobs.insert(sealed.blob_digest, sealed.blob.clone());
        state.sealed.insert((auth.turn_id, auth.attempt), sealed.clone());
    }
    match act {
        Act::SealAndVanish
        | Act::SealOtherAndVanish
        | Act::SealOnceAsked(_)
        | Act::OvercountAndVanish
        | Act::OvercountHalfAndVanish
        | Act::OtherHashAndVanish => return,
        Act::SealAndRefuse => {
            let refused = NodeFrame::Refused { code: ErrorCode::PayloadRejected, retry_after_ms: 0 };
            return send(&mut stream, &refused).await;
        }
        _ => {}
    }
    let mut committed = sealed.committed();
    if act == Act::WrongDigest {
        committed.blob_digest.0[0] ^= 1;
    }
    send(&mut stream, &chunk(&ReplyEvent::Committed(Box::new(committed)), false)).await;
    if act == Act::CommitTwice {
        // It must be another link, even within one millisecond.
        let other = seal(shared, &auth, &payload, &window, (&answer, &memory), Act::WrongReceipt);
        send(&mut stream, &chunk(&ReplyEvent::Committed(Box::new(other.committed())), false)).await;
    }
    let said = match act {
        Act::GiveUpStoring => StoreState::GivenUp,
        Act::NeverStore => StoreState::Pending,
        _ => match shared.stores.blobs.put(sealed.blob, PutOptions::default()).await {
            Ok(outcome) => StoreState::Stored { blob_id: outcome.blob_id, end_epoch: outcome.end_epoch },
            Err(_) => StoreState::GivenUp,
        },
    };
    send(&mut stream, &chunk(&ReplyEvent::Store(said), true)).await;
    let _ = stream.close().await;
}

fn note(
    shared: &FakeNodeInner,
    auth: &SignedObject<TurnAuth>,
    token_count: u32,
    hash: RunningHash,
) -> SignedBytes {
    let note = ProgressNote {
        version: VERSION,
        node: shared.signing.node_id(),
        auth_hash: auth.auth_hash(),
        token_count,
        running_hash: hash,
        time_ms: now_ms(),
    };
    SignedObject::sign(note, &shared.signing).bytes().clone()
}

/// The running hash of an answer: its two tokens, or a resume prefix with the rest of them.
fn hash_of(key: &RecordKey, auth: &SignedObject<TurnAuth>, resumed: &[u32]) -> RunningHash {
    let rest = [40, 41].into_iter().skip(resumed.len());
    let start = running_hash_start(key, &auth.auth_hash());
    resumed.iter().copied().chain(rest).fold(start, |hash, token| running_hash_step(&hash, token))
}

fn seal(
    shared: &FakeNodeInner,
    auth: &SignedObject<TurnAuth>,
    payload: &Payload,
    window: &Window,
    (answer, memory): (&str, &[MemoryItem]),
    act: Act,
) -> SealedTurn {
    let key = payload.grant.record_key.record_key();
    // Ten tokens in and two out, rounded up, and an open blob.
    let storage = shared.state.lock().unwrap().storage.price * storage_units(0, payload.storage.open_epochs);
    let price = match act {
        Act::Charge => 1 + storage,
        Act::Overcharge => 2 + storage,
        _ => 0,
    };
    let first = window.turns.iter().find(|turn| turn.record.is_some());
    let window_from = first.map_or(auth.seq, |turn| turn.link.seq);
    let receipt = Receipt {
        version: RECEIPT_VERSION,
        session_id: auth.session_id,
        seq: auth.seq,
        turn_id: auth.turn_id,
        attempt: auth.attempt,
        auth_hash: auth.auth_hash(),
        node: auth.audience,
        model: if act == Act::WrongReceipt { ModelId([8; 32]) } else { auth.model },
        engine: if act == Act::OtherEngine { EngineKind::Proxied } else { shared.engine },
        sampling: auth.sampling,
        seed: payload.sampling.seed,
        window_from,
        tokens: TokenCounts {
            input: 10,
            output: match act {
                Act::OvercountAndVanish | Act::OvercountHalfAndVanish => auth.max_output_tokens,
                _ => 2,
            },
            memory: u32::from(!memory.is_empty()),
            resumed: auth.resume.map_or(0, |prefix| prefix.token_count),
        },
        memory_items: u16::try_from(memory.len()).unwrap(),
        commitments: Commitments {
            input: commit_input(&key, &payload.system, window_from, &payload.messages),
            output: commit_output(
                &key,
                if act == Act::SealOtherAndVanish { "another text" } else { answer },
                FinishReason::Stop,
            ),
            memory: commit_memory(&key, memory),
        },
        running_hash: match act {
            Act::OtherHashAndVanish => RunningHash([9; 32]),
            _ => hash_of(&key, auth, &payload.resume_tokens),
        },
        timings: Timings::default(),
        price,
        time_ms: shared.now_ms(),
    };
    let text = if matches!(act, Act::WrongText | Act::SealOtherAndVanish) { "another text" } else { answer };
    let record =
        Record::of_turn(payload.kind, payload.supersedes_from, &payload.messages, text, FinishReason::Stop);
    let position = ChainPosition { base: &window.base, prev_blob: window.prev_blob };
    let keys = (&key, &payload.grant.blob_key.blob_key());
    seal_turn(auth, position, keys, &record, receipt, &shared.signing).unwrap()
}
