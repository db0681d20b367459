//! One turn of the fake node: its window, its answer, and the misbehaviour that the script names.

use std::{ops::ControlFlow, time::Instant};

use baton_keys::{SecretSigningKey, seal::StreamSealer};
use baton_mesh::TurnStream;
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{Window, WindowReader, effective},
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    codec,
    commit::{ChainPosition, SealedTurn, seal_turn},
    head::HeadRecord,
    ids::{LinkHash, ModelId, RunningHash},
    limits::{MAX_BLOB_BYTES, MAX_NODE_FRAME_BYTES, MAX_TURN_MS, REPLY_BLOCK, VERSION},
    link::{Link, blob_digest},
    memory::{MemEnvelope, MemoryItem},
    node_record::storage_units,
    receipt::{
        EngineKind, ProgressNote, Receipt, ServedContents, TokenCounts, running_hash_start, running_hash_step,
    },
    record::{FinishReason, Message, Record, Role},
    store::PutOptions,
    turn::{CheckInput, Payload, TurnAuth},
    wire::{Committed, NodeFrame, ReplyEvent, StoreState, TokenBytes, TokenLogprob, TurnRequest},
};
use baton_walrus_client::{ShardCount, blob_id};

use super::{Act, AttemptKey, FakeNodeInner, Lie, QUEUE, now_ms, send};

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
            note_lie(shared, &auth, act, None);
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
        if self.shared.words.is_some() {
            return format!("echo: {}", self.payload.messages.last().map_or("", |last| last.text.as_str()));
        }
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

    /// The tokens of an answer: of a model with words one for each, else two.
    fn tokens_of(&self, answer: &str) -> Vec<(u32, String)> {
        let Some(words) = self.shared.words else {
            let (head, tail) = answer.split_at(answer.len() / 2);
            return vec![(40, head.to_owned()), (41, tail.to_owned())];
        };
        let spaced = |(place, word): (usize, &str)| {
            ((words.id_of)(word), if place == 0 { word.to_owned() } else { format!(" {word}") })
        };
        answer.split(' ').enumerate().map(spaced).collect()
    }

    /// The third point: the tokens. Returns their running hash, or `None` if the reply ends here.
    async fn tokens(&mut self, answer: &str) -> Option<RunningHash> {
        let act = self.act;
        let tokens = self.tokens_of(answer);
        let start = running_hash_start(&self.payload.grant.record_key.record_key(), &self.auth.auth_hash());
        let resumed = self.payload.resume_tokens.clone();
        if self.shared.words.is_some() && !tokens.iter().map(|(id, _)| id).take(resumed.len()).eq(&resumed) {
            // A prefix that another node forged.
            self.send(&failed(ErrorCode::PayloadRejected, 0, ""), true).await;
            return None;
        }
        let mut hash = resumed.iter().fold(start, |hash, token| running_hash_step(&hash, *token));
        // Acts happen in the middle of the rest.
        let middle = resumed.len() + tokens.len().saturating_sub(resumed.len() + 1) / 2;
        for (place, (id, text)) in tokens.into_iter().enumerate().skip(resumed.len()) {
            if let Some(words) = self.shared.words {
                tokio::time::sleep(words.delay).await;
            }
            let at = u32::try_from(place).unwrap();
            let index = if act == Act::RepeatToken { 0 } else { at };
            let alternatives = if act == Act::KeepLogprobs { 0 } else { self.payload.sampling.logprobs };
            let logprobs = reported(id, &text, alternatives);
            let event = ReplyEvent::Tokens { index, ids: vec![id], text, logprobs };
            hash = running_hash_step(&hash, id);
            if place == middle && act.is_of_tokens() {
                note_lie(self.shared, &self.auth, act, None);
            }
            if place < middle || place > middle && act != Act::ShortenAnswer {
                self.send(&event, false).await;
            } else if self.middle_token(&event, at, hash).await.is_break() {
                return None;
            }
            if act == Act::OvercountHalfAndVanish && place == middle {
                break;
            }
        }
        for event in needless(act, self.auth.max_output_tokens) {
            self.send(&event, false).await;
        }
        Some(if act == Act::WrongNote { running_hash_step(&hash, 1) } else { hash })
    }

    /// Sends the token in the middle of the answer, or misbehaves.
    async fn middle_token(&mut self, event: &ReplyEvent, index: u32, hash: RunningHash) -> Point {
        let frame = match self.act {
            Act::SkipToken | Act::ShortenAnswer => return Point::Continue(()),
            Act::SkipChunk => {
                // It is sealed, so that it counts, but not sent.
                drop(self.sealer.seal(&event.to_chunk(), false));
                return Point::Continue(());
            }
            Act::PoisonAndEnd => {
                let (ids, text) = (vec![99], " lies".to_owned());
                let poison = ReplyEvent::Tokens { index, ids, text, logprobs: Vec::new() };
                self.send(&poison, false).await;
                return Point::Break(());
            }
            Act::RandomFrame => garbage(),
            Act::StrayFrame => codec::encode(&NodeFrame::Done),
            Act::RandomChunk => codec::encode(&NodeFrame::Chunk(garbage())),
            Act::GarbageInChunk => {
                codec::encode(&NodeFrame::Chunk(self.sealer.seal(&[0xff; REPLY_BLOCK], false)))
            }
            _ => {
                self.send(event, self.act == Act::FinalWithoutLink).await;
                return self.after_middle(index, hash).await;
            }
        };
        let _ = self.stream.send(&frame).await;
        Point::Break(())
    }

    /// The end of the reply after the token in the middle of the answer, if the act ends it.
    async fn after_middle(&mut self, index: u32, hash: RunningHash) -> Point {
        match self.act {
            Act::NoteAndTruncate => {
                let note = self.signed_note(index + 1, hash);
                self.send(&note, false).await;
            }
            Act::ForgedNote => {
                let ReplyEvent::Progress(mut note) = self.signed_note(index + 1, hash) else {
                    unreachable!()
                };
                note.signature.0[7] ^= 0x20;
                self.send(&ReplyEvent::Progress(note), false).await;
            }
            Act::Truncate | Act::FinalWithoutLink => {}
            Act::HugeFrame => drop(self.stream.send(&vec![0; MAX_NODE_FRAME_BYTES + 1]).await),
            Act::Fail(code) => self.send(&failed(code, 0, ""), true).await,
            Act::Hang => self.hang().await,
            _ => return Point::Continue(()),
        }
        Point::Break(())
    }

    fn signed_note(&self, token_count: u32, running_hash: RunningHash) -> ReplyEvent {
        let (node, auth_hash) = (self.shared.signing.node_id(), self.auth.auth_hash());
        let (version, time_ms) = (VERSION, now_ms());
        let note = ProgressNote { version, node, auth_hash, token_count, running_hash, time_ms };
        ReplyEvent::Progress(SignedObject::sign(note, &self.shared.signing).bytes().clone())
    }

    /// The fourth point: the progress note.
    async fn note(&mut self, hash: RunningHash) {
        let count = u32::try_from(self.tokens_of(&self.answer()).len()).unwrap();
        let note = self.signed_note(count, hash);
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
            if !self.act.is_of_link() {
                state.sealed.insert((self.auth.turn_id, self.auth.attempt), sealed.clone());
            }
        }
        if self.act != Act::Serve && !self.act.is_of_tokens() {
            let is_accepted = matches!(self.act, Act::CommitTwice | Act::ClaimStored);
            let link = is_accepted.then(|| sealed.link.link_hash());
            note_lie(self.shared, &self.auth, self.act, link);
        }
        match self.act {
            Act::StopBeforeLink => return self.hang().await,
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
        self.forge(&mut committed);
        self.send(&ReplyEvent::Committed(Box::new(committed)), false).await;
        if self.act == Act::CommitTwice {
            // It must be another link, even within one millisecond.
            let other = self.seal(answer, Act::WrongReceipt);
            self.send(&ReplyEvent::Committed(Box::new(other.committed())), false).await;
        }
        let said = match self.act {
            Act::GiveUpStoring => StoreState::GivenUp,
            Act::NeverStore => StoreState::Pending,
            Act::ClaimStored => {
                let blob_id = blob_id(&sealed.blob, ShardCount::TESTBED).unwrap();
                StoreState::Stored { blob_id, end_epoch: Some(1000) }
            }
            _ => match self.shared.stores.blobs.put(sealed.blob, PutOptions::default()).await {
                Ok(outcome) => StoreState::Stored { blob_id: outcome.blob_id, end_epoch: outcome.end_epoch },
                Err(_) => StoreState::GivenUp,
            },
        };
        self.send(&ReplyEvent::Store(said), true).await;
        let _ = self.stream.close().await;
    }

    /// Falsifies a field of link or receipt, and signs both again.
    fn forge(&self, committed: &mut Committed) {
        let mut key = self.shared.signing.clone();
        let mut receipt = SignedObject::<Receipt>::verify(committed.receipt.clone()).unwrap().into_value();
        let mut link = SignedObject::<Link>::verify(committed.link.clone()).unwrap().into_value();
        match self.act {
            Act::BadLinkSignature => return committed.link.signature.0[7] ^= 0x20,
            Act::BadReceiptSignature => return committed.receipt.signature.0[7] ^= 0x20,
            Act::Overcount => receipt.tokens.output += 1,
            Act::OtherAuthor => {
                key = SecretSigningKey::generate();
                (receipt.node, link.author) = (key.node_id(), key.node_id());
            }
            Act::OtherTime => {
                receipt.time_ms += 2 * MAX_TURN_MS;
                link.time_ms += 2 * MAX_TURN_MS;
            }
            Act::OtherPrevLink => link.prev_link.0[0] ^= 1,
            Act::OtherPrevBlob => match &mut link.prev_blob {
                Some(blob) => blob.digest.0[0] ^= 1,
                // The first turn has no previous blob, so the record's length changes instead.
                None => link.record_length ^= 1,
            },
            Act::OtherSequence => link.seq += 1,
            _ => return,
        }
        let receipt = SignedObject::sign(receipt, &key);
        link.receipt_hash = receipt.receipt_hash();
        committed.receipt = receipt.bytes().clone();
        committed.link = SignedObject::sign(link, &key).bytes().clone();
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

    /// The running hash of an answer.
    fn hash_of(&self, answer: &str) -> RunningHash {
        let start = running_hash_start(&self.payload.grant.record_key.record_key(), &self.auth.auth_hash());
        let resumed = &self.payload.resume_tokens;
        let rest = self.tokens_of(answer).into_iter().map(|(id, _)| id).skip(resumed.len());
        resumed.iter().copied().chain(rest).fold(start, |hash, token| running_hash_step(&hash, token))
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
                    _ => u32::try_from(self.tokens_of(answer).len()).unwrap(),
                },
                memory: u32::from(!self.memory.is_empty()),
                ..honest.tokens
            },
            running_hash: match act {
                Act::OtherHashAndVanish => RunningHash([9; 32]),
                _ => self.hash_of(answer),
            },
            checks: ordered.map(|(order, input)| self.check(order, input)).collect(),
            price,
            time_ms: self.shared.now_ms(),
            ..honest
        };
        let text =
            if matches!(act, Act::WrongText | Act::SealOtherAndVanish) { "another text" } else { answer };
        let (mut base, mut messages) = (self.window.base.clone(), self.payload.messages.clone());
        let other = vec![Message::new(Role::User, "what nobody asked")];
        match act {
            Act::AlteredQuestion => messages = other,
            Act::AlteredHistory => match base.entries.first_mut().and_then(|entry| entry.record.0.last_mut())
            {
                Some(byte) => *byte ^= 1,
                // Without an earlier turn in this segment, the question changes instead.
                None => messages = other,
            },
            _ => {}
        }
        let payload = &self.payload;
        let record =
            Record::of_turn(payload.kind, payload.supersedes_from, &messages, text, FinishReason::Stop);
        let position = ChainPosition { base: &base, prev_blob: self.window.prev_blob };
        seal_turn(&self.auth, position, &self.payload.grant, &record, receipt, &self.shared.signing).unwrap()
    }
}

/// Notes that an act happened.
fn note_lie(shared: &FakeNodeInner, auth: &TurnAuth, act: Act, link: Option<LinkHash>) {
    let lie = Lie { act, at: Instant::now(), link };
    let key = AttemptKey { session: auth.session_id, seq: auth.seq, attempt: auth.attempt };
    shared.state.lock().seen.lies.insert(key, lie);
}

fn garbage() -> Vec<u8> {
    // No frame and no event begins with this number.
    [&[0xff; 8][..], &baton_keys::secret::random_bytes::<32>()].concat()
}
