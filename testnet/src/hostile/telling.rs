//! A turn with a lie: the honest half's reply is opened, changed at one point, and sealed again.

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

use super::{AttemptKey, HOLD, Liar, Lie, OtherTurn, forging, lock};

/// A replacement for one event.
enum Out {
    /// An event to seal and send, with or without the final flag.
    Event(ReplyEvent, bool),
    /// An event that is sealed, so that it counts, but not sent.
    Lost(ReplyEvent),
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

/// A turn to falsify.
struct Telling<'a> {
    liar: &'a Liar,
    lie: Lie,
    auth: SignedObject<TurnAuth>,
    payload: Payload,
    /// Tokens processed, including those of a resume prefix.
    seen: u32,
    /// Tokens after which the lie is told.
    told_after: u32,
    told: bool,
}

/// The ends of both substreams.
struct Reply {
    client: TurnStream,
    sealer: StreamSealer,
    honest: TurnStream,
    opener: StreamOpener,
}

impl Liar {
    /// Serves a turn with the next lie, or honestly if the request cannot be opened.
    pub(super) async fn turn(
        &self,
        mut client: TurnStream,
        bytes: &[u8],
        request: &TurnRequest,
    ) -> Result<(), FrameError> {
        let Some((auth, payload, secret)) = self.open(request) else { return self.pass(client, bytes).await };
        let Some(lie) = lock(&self.script).next() else { return self.pass(client, bytes).await };
        let key = (auth.turn_id, auth.attempt);
        if lie == Lie::ClaimsBroken {
            self.ledger.tell(AttemptKey::of(&auth), lie, None);
            let refused = NodeFrame::Refused { code: ErrorCode::ChainBroken, retry_after_ms: 0 };
            return super::send_only(client, &refused).await;
        }
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
        let mut reply = Reply { client, sealer, honest, opener };
        let begun = u32::try_from(payload.resume_tokens.len()).unwrap_or(u32::MAX);
        let total = u32::try_from(honest_answer(&payload).split(' ').count()).unwrap_or(u32::MAX);
        let told_after = begun + total.saturating_sub(begun) / 2;
        let mut telling = Telling { liar: self, lie, auth, payload, seen: begun, told_after, told: false };
        // Whatever the outcome, later status requests get a false reply.
        if lie != Lie::TwoLinks {
            lock(&self.asked_later).insert(key, None);
        }
        telling.run(&mut reply).await
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

impl Telling<'_> {
    async fn run(&mut self, reply: &mut Reply) -> Result<(), FrameError> {
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
                other => vec![Out::Event(other, last)],
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
    async fn put(&self, reply: &mut Reply, out: Out) -> Result<bool, FrameError> {
        let frame = match out {
            Out::Event(event, last) => NodeFrame::Chunk(reply.sealer.seal(&event.to_chunk(), last)),
            Out::Sealed(chunk) => NodeFrame::Chunk(reply.sealer.seal(&chunk, false)),
            Out::Frame(frame) => frame,
            Out::Lost(event) => {
                drop(reply.sealer.seal(&event.to_chunk(), false));
                return Ok(true);
            }
            Out::Raw(bytes) => {
                reply.client.send(&bytes).await?;
                return Ok(true);
            }
            Out::Hold => {
                let _ = timeout(HOLD, reply.client.recv(1)).await;
                return Ok(false);
            }
            Out::End => return Ok(false),
        };
        reply.client.send(&codec::encode(&frame)).await?;
        Ok(true)
    }

    fn tell(&mut self) {
        self.told = true;
        self.liar.ledger.tell(AttemptKey::of(&self.auth), self.lie, None);
    }

    /// The replacements for a tokens event.
    fn tokens(&mut self, event: ReplyEvent) -> Vec<Out> {
        let ReplyEvent::Tokens { index, ids, .. } = &event else { return Vec::new() };
        let (index, before) = (*index, self.seen);
        self.seen += u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let honest = |event| vec![Out::Event(event, false)];
        if self.lie == Lie::ShortenAnswer && before >= self.told_after {
            if !self.told {
                self.tell();
            }
            return Vec::new();
        }
        if self.told || before < self.told_after {
            return honest(event);
        }
        let tokens =
            |ids, text: &str| ReplyEvent::Tokens { index, ids, text: text.to_owned(), logprobs: Vec::new() };
        let signer = &self.liar.keys.signing;
        let lie = match self.lie {
            Lie::StopMidAnswer => vec![Out::Hold],
            Lie::EndMidAnswer => vec![Out::End],
            Lie::FinalWithoutLink => vec![Out::Event(event, true), Out::End],
            Lie::SkipChunk => vec![Out::Lost(event)],
            Lie::SkipToken => Vec::new(),
            Lie::PoisonAndEnd => vec![Out::Event(tokens(vec![word_id("lies")], " lies"), false), Out::End],
            Lie::RepeatToken => vec![Out::Event(event.clone(), false), Out::Event(event, false)],
            Lie::ForgedNote | Lie::WrongNote => {
                let note = forging::note(self.lie, &self.auth, self.seen, signer);
                vec![Out::Event(event, false), Out::Event(ReplyEvent::Progress(note), false)]
            }
            Lie::RandomFrame => vec![Out::Raw(garbage())],
            Lie::OversizedFrame => vec![Out::Raw(vec![0; MAX_NODE_FRAME_BYTES + 1])],
            Lie::StrayFrame => vec![Out::Frame(NodeFrame::Done)],
            Lie::RandomChunk => vec![Out::Frame(NodeFrame::Chunk(garbage()))],
            Lie::GarbageInChunk => vec![Out::Sealed(vec![0xff; REPLY_BLOCK])],
            Lie::TooManyTokens => {
                let ids = vec![1; self.auth.max_output_tokens as usize + 1];
                vec![Out::Event(tokens(ids, " and on"), false)]
            }
            Lie::EmptyTokens => vec![Out::Event(tokens(Vec::new(), ""), false)],
            // The lie concerns the link or the receipt, or was told already.
            _ => return honest(event),
        };
        self.tell();
        lie
    }

    /// The replacements for the link and the receipt.
    async fn committed(
        &mut self,
        committed: Committed,
        client: baton_proto::ids::NodeId,
    ) -> Result<Vec<Out>, FrameError> {
        let honest = Out::Event(ReplyEvent::Committed(Box::new(committed.clone())), false);
        let signer = &self.liar.keys.signing;
        let forged = forging::forge(self.lie, &committed, &self.auth, signer).ok().flatten();
        let forged = forged.map(|forged| Out::Event(ReplyEvent::Committed(Box::new(forged)), false));
        let outs = match (self.lie, forged) {
            (Lie::StopBeforeLink, _) => vec![Out::Hold],
            (Lie::TwoLinks, Some(second)) => {
                let first = SignedObject::<Link>::verify(committed.link).ok().map(|link| link.link_hash());
                self.told = true;
                self.liar.ledger.tell(AttemptKey::of(&self.auth), self.lie, first);
                return Ok(vec![honest, second]);
            }
            (_, Some(forged)) => vec![forged],
            (Lie::SignOtherText | Lie::OtherOnStatus | Lie::AlteredQuestion | Lie::AlteredHistory, None) => {
                let Some(sealed) = self.reseal(&committed, client).await? else { return Ok(vec![honest]) };
                if self.lie == Lie::OtherOnStatus {
                    let key = (self.auth.turn_id, self.auth.attempt);
                    let other = OtherTurn { attempt: AttemptKey::of(&self.auth), sealed };
                    lock(&self.liar.asked_later).insert(key, Some(other));
                    // The lie counts once the other turn's blob is served.
                    self.told = true;
                    return Ok(vec![Out::End]);
                } else {
                    vec![Out::Event(ReplyEvent::Committed(Box::new(sealed.committed())), false)]
                }
            }
            _ => return Ok(vec![honest]),
        };
        self.tell();
        Ok(outs)
    }

    /// Seals the turn correctly over other content; `None` if the honest half does not return its blob.
    async fn reseal(
        &self,
        committed: &Committed,
        client: baton_proto::ids::NodeId,
    ) -> Result<Option<SealedTurn>, FrameError> {
        let mut honest = self.liar.ask_honest(client);
        honest.send(&codec::encode(&forging::fetch(committed, &self.payload))).await?;
        let Some(bytes) = honest.recv(MAX_NODE_FRAME_BYTES).await? else { return Ok(None) };
        let Ok(NodeFrame::Blob(blob)) = codec::decode::<NodeFrame>(&bytes, MAX_NODE_FRAME_BYTES) else {
            return Ok(None);
        };
        let answer = honest_answer(&self.payload);
        let turn = (&self.auth, &self.payload, answer.as_str());
        Ok(forging::reseal(self.lie, turn, committed, &blob, &self.liar.keys.signing).ok())
    }
}
