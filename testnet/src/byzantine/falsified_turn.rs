//! A falsified turn: the honest half's reply is opened, changed at one point, and sealed again.

use std::sync::atomic::Ordering;

use baton_keys::{
    exchange::TurnSecret,
    seal::{StreamOpener, StreamSealer},
    secret::random_bytes,
};
use baton_mesh::{FrameError, TurnStream};
use baton_node::engine::echo::word_id;
use baton_proto::{
    ErrorCode, SignedObject, codec,
    commit::SealedTurn,
    limits::{MAX_NODE_FRAME_BYTES, REPLY_BLOCK},
    link::Link,
    turn::{Payload, TurnAuth},
    wire::{Committed, NodeFrame, ReplyEvent, TurnRequest},
};
use tokio::time::timeout;

use super::{AttemptKey, ByzantineProxy, HOLD, Misbehaviour, OtherTurn, forging};

/// A replacement for one event.
enum Replacement {
    /// An event to seal and send, with or without the final flag.
    Event(ReplyEvent, bool),
    /// An event that is sealed, so that it counts, but not sent.
    Omitted(ReplyEvent),
    /// Bytes to seal and send.
    Sealed(Vec<u8>),
    /// A frame to send as it is.
    Frame(NodeFrame),
    /// Raw bytes to send as a frame.
    Raw(Vec<u8>),
    /// Stops sending and holds the substream open.
    Hold,
    /// Stops sending.
    End,
}

/// A turn that is falsified on its way.
struct FalsifiedTurn<'a> {
    proxy: &'a ByzantineProxy,
    misbehaviour: Misbehaviour,
    auth: SignedObject<TurnAuth>,
    payload: Payload,
    /// Tokens processed, including those of a resume prefix.
    seen: u32,
    /// Tokens after which the misbehaviour begins.
    honest_tokens: u32,
    recorded: bool,
}

/// The ends of both substreams.
struct ProxiedReply {
    client: TurnStream,
    sealer: StreamSealer,
    honest: TurnStream,
    opener: StreamOpener,
}

impl ByzantineProxy {
    /// Serves a turn with the next misbehaviour, or honestly if the request cannot be opened.
    pub(super) async fn turn(
        &self,
        mut client: TurnStream,
        bytes: &[u8],
        request: &TurnRequest,
    ) -> Result<(), FrameError> {
        let Some((auth, payload, secret)) = self.open(request) else { return self.pass(client, bytes).await };
        let Some(misbehaviour) = self.script.lock().next() else { return self.pass(client, bytes).await };
        let key = (auth.turn_id, auth.attempt);
        if misbehaviour == Misbehaviour::ClaimsBroken {
            self.log.record(AttemptKey::of(&auth), misbehaviour, None);
            let refused = NodeFrame::Refused { code: ErrorCode::HeadMismatch, retry_after_ms: 0 };
            return super::send_only(client, &refused).await;
        }
        self.claims_stored.store(misbehaviour == Misbehaviour::ClaimsStored, Ordering::Relaxed);
        let mut honest = self.ask_honest(client.remote());
        honest.send(bytes).await?;
        let Some(first) = honest.recv(MAX_NODE_FRAME_BYTES).await? else { return client.close().await };
        let Ok(NodeFrame::Accepted { nonce }) = codec::decode::<NodeFrame>(&first, MAX_NODE_FRAME_BYTES)
        else {
            client.send(&first).await?;
            return super::relay(honest, client).await;
        };
        let hash = auth.auth_hash().0;
        let own = random_bytes();
        let (opener, sealer) = (secret.reply_opener(&nonce, &hash), secret.reply_sealer(&own, &hash));
        client.send(&codec::encode(&NodeFrame::Accepted { nonce: own })).await?;
        let mut reply = ProxiedReply { client, sealer, honest, opener };
        let begun = u32::try_from(payload.resume_tokens.len()).unwrap_or(u32::MAX);
        let total = u32::try_from(honest_answer(&payload).split(' ').count()).unwrap_or(u32::MAX);
        let honest_tokens = begun + total.saturating_sub(begun) / 2;
        let mut turn = FalsifiedTurn {
            proxy: self,
            misbehaviour,
            auth,
            payload,
            seen: begun,
            honest_tokens,
            recorded: false,
        };
        // Whatever the outcome, later status requests get a false reply.
        if !matches!(misbehaviour, Misbehaviour::TwoLinks | Misbehaviour::ClaimsStored) {
            self.status_replies.lock().insert(key, None);
        }
        turn.run(&mut reply).await
    }

    fn open(&self, request: &TurnRequest) -> Option<(SignedObject<TurnAuth>, Payload, TurnSecret)> {
        let auth = SignedObject::<TurnAuth>::verify(request.auth.clone()).ok()?;
        let (payload, secret) = request.payload.open(&self.keys.exchange, &auth).ok()?;
        Some((auth, payload, secret))
    }
}

/// The echo engine's answer to a request.
fn honest_answer(payload: &Payload) -> String {
    let asked = payload.messages.last().map(|message| message.text.as_str()).unwrap_or_default();
    std::iter::once("echo:").chain(asked.split_whitespace()).collect::<Vec<_>>().join(" ")
}

fn garbage() -> Vec<u8> {
    // No frame and no event begins with this number.
    [&[0xff; 8][..], &random_bytes::<32>()].concat()
}

impl FalsifiedTurn<'_> {
    async fn run(&mut self, reply: &mut ProxiedReply) -> Result<(), FrameError> {
        while let Some(bytes) = reply.honest.recv(MAX_NODE_FRAME_BYTES).await? {
            let Ok(NodeFrame::Chunk(sealed)) = codec::decode::<NodeFrame>(&bytes, MAX_NODE_FRAME_BYTES)
            else {
                return Ok(());
            };
            let Ok((chunk, last)) = reply.opener.open(&sealed) else { return Ok(()) };
            let Ok(event) = ReplyEvent::from_chunk(&chunk) else { return Ok(()) };
            let outs = match event {
                ReplyEvent::Tokens { .. } => self.tokens(event),
                ReplyEvent::Committed(committed) => self.committed(*committed, reply.client.remote()).await?,
                other => vec![Replacement::Event(other, last)],
            };
            for out in outs {
                if !self.put(reply, out).await? {
                    return Ok(());
                }
            }
        }
        reply.client.close().await
    }

    /// Sends one replacement; returns whether the reply goes on.
    async fn put(&self, reply: &mut ProxiedReply, out: Replacement) -> Result<bool, FrameError> {
        let frame = match out {
            Replacement::Event(event, last) => NodeFrame::Chunk(reply.sealer.seal(&event.to_chunk(), last)),
            Replacement::Sealed(chunk) => NodeFrame::Chunk(reply.sealer.seal(&chunk, false)),
            Replacement::Frame(frame) => frame,
            Replacement::Omitted(event) => {
                drop(reply.sealer.seal(&event.to_chunk(), false));
                return Ok(true);
            }
            Replacement::Raw(bytes) => {
                reply.client.send(&bytes).await?;
                return Ok(true);
            }
            Replacement::Hold => {
                let _ = timeout(HOLD, reply.client.recv(1)).await;
                return Ok(false);
            }
            Replacement::End => return Ok(false),
        };
        reply.client.send(&codec::encode(&frame)).await?;
        Ok(true)
    }

    fn record(&mut self) {
        self.recorded = true;
        self.proxy.log.record(AttemptKey::of(&self.auth), self.misbehaviour, None);
    }

    /// The replacements for a tokens event.
    fn tokens(&mut self, event: ReplyEvent) -> Vec<Replacement> {
        let ReplyEvent::Tokens { index, ids, .. } = &event else { return Vec::new() };
        let (index, before) = (*index, self.seen);
        self.seen += u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let honest = |event| vec![Replacement::Event(event, false)];
        if self.misbehaviour == Misbehaviour::ShortenAnswer && before >= self.honest_tokens {
            if !self.recorded {
                self.record();
            }
            return Vec::new();
        }
        if self.recorded || before < self.honest_tokens {
            return honest(event);
        }
        let tokens =
            |ids, text: &str| ReplyEvent::Tokens { index, ids, text: text.to_owned(), logprobs: Vec::new() };
        let signer = &self.proxy.keys.signing;
        let replacements = match self.misbehaviour {
            Misbehaviour::StopMidAnswer => vec![Replacement::Hold],
            Misbehaviour::EndMidAnswer => vec![Replacement::End],
            Misbehaviour::FinalWithoutLink => vec![Replacement::Event(event, true), Replacement::End],
            Misbehaviour::SkipChunk => vec![Replacement::Omitted(event)],
            Misbehaviour::SkipToken => Vec::new(),
            Misbehaviour::PoisonAndEnd => {
                vec![Replacement::Event(tokens(vec![word_id("lies")], " lies"), false), Replacement::End]
            }
            Misbehaviour::RepeatToken => {
                vec![Replacement::Event(event.clone(), false), Replacement::Event(event, false)]
            }
            Misbehaviour::ForgedNote | Misbehaviour::WrongNote => {
                let note = forging::note(self.misbehaviour, &self.auth, self.seen, signer);
                vec![Replacement::Event(event, false), Replacement::Event(ReplyEvent::Progress(note), false)]
            }
            Misbehaviour::RandomFrame => vec![Replacement::Raw(garbage())],
            Misbehaviour::OversizedFrame => vec![Replacement::Raw(vec![0; MAX_NODE_FRAME_BYTES + 1])],
            Misbehaviour::StrayFrame => vec![Replacement::Frame(NodeFrame::Done)],
            Misbehaviour::RandomChunk => vec![Replacement::Frame(NodeFrame::Chunk(garbage()))],
            Misbehaviour::GarbageInChunk => vec![Replacement::Sealed(vec![0xff; REPLY_BLOCK])],
            Misbehaviour::TooManyTokens => {
                let ids = vec![1; self.auth.max_output_tokens as usize + 1];
                vec![Replacement::Event(tokens(ids, " and on"), false)]
            }
            Misbehaviour::EmptyTokens => vec![Replacement::Event(tokens(Vec::new(), ""), false)],
            // It concerns the link or the receipt, or has happened already.
            _ => return honest(event),
        };
        self.record();
        replacements
    }

    /// The replacements for the link and the receipt.
    async fn committed(
        &mut self,
        committed: Committed,
        client: baton_proto::ids::NodeId,
    ) -> Result<Vec<Replacement>, FrameError> {
        let honest = Replacement::Event(ReplyEvent::Committed(Box::new(committed.clone())), false);
        let signer = &self.proxy.keys.signing;
        let forged = forging::forge(self.misbehaviour, &committed, &self.auth, signer).ok().flatten();
        let forged = forged.map(|forged| Replacement::Event(ReplyEvent::Committed(Box::new(forged)), false));
        let outs = match (self.misbehaviour, forged) {
            (Misbehaviour::StopBeforeLink, _) => vec![Replacement::Hold],
            (Misbehaviour::TwoLinks, Some(second)) => {
                let first = SignedObject::<Link>::verify(committed.link).ok().map(|link| link.link_hash());
                self.recorded = true;
                self.proxy.log.record(AttemptKey::of(&self.auth), self.misbehaviour, first);
                return Ok(vec![honest, second]);
            }
            (_, Some(forged)) => vec![forged],
            (Misbehaviour::ClaimsStored, None) => {
                let link = SignedObject::<Link>::verify(committed.link).ok().map(|link| link.link_hash());
                self.recorded = true;
                self.proxy.log.record(AttemptKey::of(&self.auth), self.misbehaviour, link);
                return Ok(vec![honest]);
            }
            (
                Misbehaviour::SignOtherText
                | Misbehaviour::OtherOnStatus
                | Misbehaviour::LosesReply
                | Misbehaviour::AlteredQuestion
                | Misbehaviour::AlteredHistory,
                None,
            ) => {
                let Some(sealed) = self.reseal(&committed, client).await? else { return Ok(vec![honest]) };
                if matches!(self.misbehaviour, Misbehaviour::OtherOnStatus | Misbehaviour::LosesReply) {
                    let key = (self.auth.turn_id, self.auth.attempt);
                    let (attempt, misbehaviour) = (AttemptKey::of(&self.auth), self.misbehaviour);
                    let other = OtherTurn { attempt, misbehaviour, sealed };
                    self.proxy.status_replies.lock().insert(key, Some(other));
                    // The misbehaviour counts once the other turn's blob is served.
                    self.recorded = true;
                    return Ok(vec![Replacement::End]);
                } else {
                    vec![Replacement::Event(ReplyEvent::Committed(Box::new(sealed.committed())), false)]
                }
            }
            _ => return Ok(vec![honest]),
        };
        self.record();
        Ok(outs)
    }

    /// Seals the turn correctly over other content; `None` if the honest half does not return its blob.
    async fn reseal(
        &self,
        committed: &Committed,
        client: baton_proto::ids::NodeId,
    ) -> Result<Option<SealedTurn>, FrameError> {
        let mut honest = self.proxy.ask_honest(client);
        honest.send(&codec::encode(&forging::fetch(committed, &self.payload))).await?;
        let Some(bytes) = honest.recv(MAX_NODE_FRAME_BYTES).await? else { return Ok(None) };
        let Ok(NodeFrame::Blob(blob)) = codec::decode::<NodeFrame>(&bytes, MAX_NODE_FRAME_BYTES) else {
            return Ok(None);
        };
        let answer = honest_answer(&self.payload);
        let turn = (&self.auth, &self.payload, answer.as_str());
        Ok(forging::reseal(self.misbehaviour, turn, committed, &blob, &self.proxy.keys.signing).ok())
    }
}
