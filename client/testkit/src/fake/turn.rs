//! One turn of the fake node: its window, its answer, and the misbehaviour that the script names.

use std::ops::ControlFlow;

use baton_keys::seal::StreamSealer;
use baton_mesh::TurnStream;
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{Window, WindowReader, effective},
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    codec,
    commit::{ChainPosition, SealedTurn, seal_turn},
    head::HeadRecord,
    ids::{ModelId, RunningHash},
    limits::{MAX_BLOB_BYTES, MAX_NODE_FRAME_BYTES, VERSION},
    link::blob_digest,
    memory::{MemEnvelope, MemoryItem},
    node_record::storage_units,
    receipt::{
        EngineKind, ProgressNote, Receipt, ServedContents, TokenCounts, running_hash_start, running_hash_step,
    },
    record::{FinishReason, Record},
    store::PutOptions,
    turn::{CheckInput, Payload, TurnAuth},
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

fn failed(code: ErrorCode, retry_after_ms: u32, reason: &str) -> ReplyEvent {
    ReplyEvent::Failed { code, retry_after_ms, reason: reason.to_owned() }
}

/// A turn that is being served, as the script says at each of its points.
struct ServedTurn<'a> {
    shared: &'a FakeNodeInner,
    stream: TurnStream,
    act: Act,
    auth: SignedObject<TurnAuth>,
    payload: Payload,
    memory: Vec<MemoryItem>,
    window: Window,
    sealer: StreamSealer,
}

/// Whether a turn goes on after a point.
type Point = ControlFlow<()>;

/// Serves a turn.
pub(super) async fn serve(shared: &FakeNodeInner, stream: TurnStream, request: TurnRequest) {
    let nonce = baton_keys::secret::random_bytes();
    let Some(mut turn) = ServedTurn::read(shared, stream, request, &nonce).await else { return };
    if turn.admit(nonce).await.is_break() || turn.queue().await.is_break() {
        return;
    }
    if turn.payload.is_check_only(&turn.auth) {
        let sealed = turn.seal("", turn.act);
        let checked = ReplyEvent::Checked(sealed.receipt.bytes().clone());
        return turn.send(&checked, true).await;
    }
    let answer = turn.answer();
    let Some(hash) = turn.tokens(&answer).await else { return };
    turn.note(hash).await;
    turn.commit(&answer).await;
}

impl<'a> ServedTurn<'a> {
    /// Notes and opens a request, and reads its window; `None` if the request is refused.
    async fn read(
        shared: &'a FakeNodeInner,
        mut stream: TurnStream,
        request: TurnRequest,
        nonce: &[u8; 32],
    ) -> Option<Self> {
        let auth = SignedObject::<TurnAuth>::verify(request.auth.clone()).unwrap();
        let act = {
            let mut state = shared.state.lock();
            state.seen.turns.push((*auth).clone());
            state.seen.inlined.push(request.inline.len());
            state.script.pop_front().unwrap_or(Act::Serve)
        };
        if let Act::Refuse(code) = act {
            send(&mut stream, &NodeFrame::Refused { code, retry_after_ms: 10 }).await;
            return None;
        }
        assert_eq!(auth.check_time(shared.now_ms()), Ok(()));
        let (payload, secret) = request.payload.open(&shared.exchange, &auth).unwrap();
        {
            let mut state = shared.state.lock();
            state.seen.asked.push((payload.json_schema.clone(), payload.storage));
            state.seen.payloads.push((auth.session_id, codec::encode(&payload)));
        }
        let memory = request.memory.clone().map_or_else(Vec::new, |bytes| {
            let envelope = SignedObject::<MemEnvelope>::verify(bytes).unwrap();
            envelope.open(&auth, &shared.exchange, shared.now_ms()).unwrap()
        });
        let sealer = secret.reply_sealer(nonce, &auth.auth_hash().0);
        match window(shared, &auth, &request, &payload).await {
            Ok(window) => Some(Self { shared, stream, act, auth, payload, memory, window, sealer }),
            Err(code) => {
                send(&mut stream, &NodeFrame::Refused { code, retry_after_ms: 0 }).await;
                None
            }
        }
    }

    async fn send(&mut self, event: &ReplyEvent, last: bool) {
        let chunk = NodeFrame::Chunk(self.sealer.seal(&event.to_chunk(), last));
        send(&mut self.stream, &chunk).await;
    }

    /// Says that the turn runs until it was asked about this many more times.
    async fn run_until_asked(&mut self, times: usize) {
        let mut asked = self.shared.asked.subscribe();
        let enough = *asked.borrow() + times;
        self.shared.state.lock().running = Some((self.auth.turn_id, self.auth.attempt));
        if matches!(self.act, Act::SealOnceAsked(_)) {
            drop(self.stream.close().await);
        }
        asked.wait_for(|count| *count >= enough).await.unwrap();
        self.shared.state.lock().running = None;
    }

    /// Sends nothing more until the client goes away.
    async fn hang(&mut self) {
        self.shared.hanging.send_modify(|count| *count += 1);
        let _ = self.stream.recv(16).await;
        self.shared.left.send_modify(|count| *count += 1);
    }

    /// The first point: the turn is admitted.
    async fn admit(&mut self, nonce: [u8; 32]) -> Point {
        if self.act == Act::OfferMemory {
            send(&mut self.stream, &NodeFrame::Memory(Vec::new())).await;
        }
        if let Act::AdmitOnceAsked(times) = self.act {
            self.run_until_asked(times).await;
        }
        send(&mut self.stream, &NodeFrame::Accepted { nonce }).await;
        match self.act {
            Act::Explain(code, retry_after_ms, reason) => {
                self.send(&failed(code, retry_after_ms, reason), true).await;
                return Point::Break(());
            }
            Act::ServeOnceAsked(times) | Act::SealOnceAsked(times) => self.run_until_asked(times).await,
            _ => {}
        }
        Point::Continue(())
    }

    /// The second point: the turn waits for others.
    async fn queue(&mut self) -> Point {
        if matches!(self.act, Act::QueueAndServe | Act::QueueAndHang) {
            self.send(&ReplyEvent::Waiting(1), false).await;
            tokio::time::sleep(QUEUE).await;
            self.send(&ReplyEvent::Waiting(0), false).await;
        }
        if matches!(self.act, Act::AdmitAndHang | Act::QueueAndHang) {
            self.hang().await;
            return Point::Break(());
        }
        Point::Continue(())
    }

    fn answer(&self) -> String {
        let read = effective(&self.window.turns).len();
        let system = self.payload.system.first().map_or("", |system| system.text.as_str());
        let said = self.payload.messages.last().map_or("", |last| last.text.as_str());
        match self.act {
            Act::Say(text) => text.to_owned(),
            Act::IgnoreSchema => format!("{system}{said} ({read})"),
            _ if self.payload.json_schema.is_some() => format!(r#"{{"said": "{said}", "read": {read}}}"#),
            _ => format!("{system}{said} ({read})"),
        }
    }

    /// The third point: two tokens. Returns their running hash, or `None` if the reply ends here.
    async fn tokens(&mut self, answer: &str) -> Option<RunningHash> {
        let act = self.act;
        let (head, tail) = answer.split_at(answer.len() / 2);
        let start = running_hash_start(&self.payload.grant.record_key.record_key(), &self.auth.auth_hash());
        let resumed = &self.payload.resume_tokens;
        let mut hash = resumed.iter().fold(start, |hash, token| running_hash_step(&hash, *token));
        for (index, text) in [(0u32, head), (1, tail)].into_iter().skip(resumed.len()) {
            let index = if act == Act::RepeatToken { 0 } else { index };
            let alternatives = if act == Act::KeepLogprobs { 0 } else { self.payload.sampling.logprobs };
            let logprobs = reported(40 + index, text, alternatives);
            let ids = vec![40 + index];
            self.send(&ReplyEvent::Tokens { index, ids, text: text.to_owned(), logprobs }, false).await;
            hash = running_hash_step(&hash, 40 + index);
            match act {
                Act::NoteAndTruncate => {
                    let note = self.signed_note(index + 1, hash);
                    self.send(&note, false).await;
                    return None;
                }
                Act::Truncate => return None,
                Act::OvercountHalfAndVanish => break,
                Act::HugeFrame => {
                    drop(self.stream.send(&vec![0; MAX_NODE_FRAME_BYTES + 1]).await);
                    return None;
                }
                Act::Fail(code) => {
                    self.send(&failed(code, 0, ""), true).await;
                    return None;
                }
                Act::Hang => {
                    self.hang().await;
                    return None;
                }
                _ => {}
            }
        }
        for event in needless(act, self.auth.max_output_tokens) {
            self.send(&event, false).await;
        }
        Some(if act == Act::WrongNote { running_hash_step(&hash, 1) } else { hash })
    }

    fn signed_note(&self, token_count: u32, running_hash: RunningHash) -> ReplyEvent {
        let (node, auth_hash) = (self.shared.signing.node_id(), self.auth.auth_hash());
        let (version, time_ms) = (VERSION, now_ms());
        let note = ProgressNote { version, node, auth_hash, token_count, running_hash, time_ms };
        ReplyEvent::Progress(SignedObject::sign(note, &self.shared.signing).bytes().clone())
    }

    /// The fourth point: the progress note.
    async fn note(&mut self, hash: RunningHash) {
        let note = self.signed_note(2, hash);
        let notes = match self.act {
            Act::RepeatNote => 2,
            Act::OvercountHalfAndVanish => 0,
            _ => 1,
        };
        for _ in 0..notes {
            self.send(&note, false).await;
        }
    }

    /// The fifth point: link and receipt, and the blob in the store.
    async fn commit(&mut self, answer: &str) {
        let sealed = self.seal(answer, self.act);
        {
            let mut state = self.shared.state.lock();
            state.blobs.insert(sealed.blob_digest, sealed.blob.clone());
            state.sealed.insert((self.auth.turn_id, self.auth.attempt), sealed.clone());
        }
        match self.act {
            Act::SealAndVanish
            | Act::SealOtherAndVanish
            | Act::SealOnceAsked(_)
            | Act::OvercountAndVanish
            | Act::OvercountHalfAndVanish
            | Act::OtherHashAndVanish => return,
            Act::SealAndRefuse => {
                let refused = NodeFrame::Refused { code: ErrorCode::PayloadRejected, retry_after_ms: 0 };
                return send(&mut self.stream, &refused).await;
            }
            _ => {}
        }
        let mut committed = sealed.committed();
        if self.act == Act::WrongDigest {
            committed.blob_digest.0[0] ^= 1;
        }
        self.send(&ReplyEvent::Committed(Box::new(committed)), false).await;
        if self.act == Act::CommitTwice {
            // It must be another link, even within one millisecond.
            let other = self.seal(answer, Act::WrongReceipt);
            self.send(&ReplyEvent::Committed(Box::new(other.committed())), false).await;
        }
        let said = match self.act {
            Act::GiveUpStoring => StoreState::GivenUp,
            Act::NeverStore => StoreState::Pending,
            _ => match self.shared.stores.blobs.put(sealed.blob, PutOptions::default()).await {
                Ok(outcome) => StoreState::Stored { blob_id: outcome.blob_id, end_epoch: outcome.end_epoch },
                Err(_) => StoreState::GivenUp,
            },
        };
        self.send(&ReplyEvent::Store(said), true).await;
        let _ = self.stream.close().await;
    }

    /// The statement on an earlier answer, of which the node knows what its model gives.
    fn check(&self, order: &CheckOrder, input: &CheckInput) -> AnswerCheck {
        let (act, turns) = (self.act, &self.window.turns);
        let system = self.payload.system.first().map_or("", |system| system.text.as_str());
        let is_same = turns.iter().position(|turn| turn.link.receipt_hash == order.receipt).and_then(|at| {
            let messages = &turns.get(at)?.record.as_ref()?.messages;
            let [.., said, answer] = messages.as_slice() else { return None };
            let read = effective(turns.get(..at)?).len();
            Some(answer.text == format!("{system}{} ({read})", said.text))
        });
        let logits = [if act == Act::ForgeCheck { 99 } else { 1 }; 32];
        let verdict = match is_same {
            None => CheckVerdict::NotComparable(CheckGap::Window),
            Some(_) if input.json_schema.is_some() => CheckVerdict::NotComparable(CheckGap::Refused),
            Some(true) if act != Act::Accuse => CheckVerdict::Same { logits },
            Some(false) if act == Act::ForgeCheck => CheckVerdict::Same { logits },
            Some(_) => CheckVerdict::Different { token: 0, logits },
        };
        AnswerCheck { order: *order, verdict }
    }

    fn seal(&self, answer: &str, act: Act) -> SealedTurn {
        // Ten tokens in and two out, rounded up, and an open blob.
        let storage =
            self.shared.state.lock().storage.price * storage_units(0, self.payload.storage.open_epochs);
        let price = match act {
            Act::Charge => 1 + storage,
            Act::Overcharge => 2 + storage,
            _ => 0,
        };
        let first = self.window.turns.iter().find(|turn| turn.record.is_some());
        let contents = ServedContents {
            window_from: first.map_or(self.auth.seq, |turn| turn.link.seq),
            memory: &self.memory,
            answer: if act == Act::SealOtherAndVanish { "another text" } else { answer },
            finish: FinishReason::Stop,
        };
        let honest = Receipt::of_turn(&self.auth, &self.payload, &contents);
        let ordered = self.auth.checks.iter().zip(&self.payload.checks);
        let receipt = Receipt {
            model: if act == Act::WrongReceipt { ModelId([8; 32]) } else { self.auth.model },
            engine: if act == Act::OtherEngine { EngineKind::Proxied } else { self.shared.engine },
            tokens: TokenCounts {
                input: 10,
                output: match act {
                    Act::OvercountAndVanish | Act::OvercountHalfAndVanish => self.auth.max_output_tokens,
                    _ => 2,
                },
                memory: u32::from(!self.memory.is_empty()),
                ..honest.tokens
            },
            running_hash: match act {
                Act::OtherHashAndVanish => RunningHash([9; 32]),
                _ => hash_of(&self.auth, &self.payload),
            },
            checks: ordered.map(|(order, input)| self.check(order, input)).collect(),
            price,
            time_ms: self.shared.now_ms(),
            ..honest
        };
        let text =
            if matches!(act, Act::WrongText | Act::SealOtherAndVanish) { "another text" } else { answer };
        let record = Record::of_turn(
            self.payload.kind,
            self.payload.supersedes_from,
            &self.payload.messages,
            text,
            FinishReason::Stop,
        );
        let position = ChainPosition { base: &self.window.base, prev_blob: self.window.prev_blob };
        seal_turn(&self.auth, position, &self.payload.grant, &record, receipt, &self.shared.signing).unwrap()
    }
}

/// The running hash of an answer: its two tokens, or a resume prefix with the rest of them.
fn hash_of(auth: &SignedObject<TurnAuth>, payload: &Payload) -> RunningHash {
    let resumed = &payload.resume_tokens;
    let rest = [40, 41].into_iter().skip(resumed.len());
    let start = running_hash_start(&payload.grant.record_key.record_key(), &auth.auth_hash());
    resumed.iter().copied().chain(rest).fold(start, |hash, token| running_hash_step(&hash, token))
}
