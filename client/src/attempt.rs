//! One attempt at a turn: sends it, opens the reply and rebuilds the turn. Ends with an accepted turn or a failure
//! that says what is known; it decides nothing about what follows.

use baton_mesh::TurnStream;
use baton_proto::{
    ErrorCode, Signed,
    commit::{AcceptedTurn, Expected, Place, accept_turn},
    ids::RunningHash,
    limits::{MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS, MAX_MESSAGE_BYTES},
    memory::MemoryItem,
    receipt::{ProgressNote, running_hash_start, running_hash_step},
    turn::TurnAuth,
    wire::{ClientFrame, Committed, NodeFrame, ReplyEvent, StoreState},
};
use std::{sync::Arc, time::Duration};

use zeroize::Zeroizing;

use crate::{
    config::Timeouts,
    event::{Relayer, TurnEvent},
    exchange::{self, ExchangeError},
    nodes::Directory,
    request::Prepared,
    retry::{AttemptFailure, Shown},
    session::Session,
    state::{Entry, PendingTurn, State},
};

/// Receives the events of a turn.
pub(crate) type Events<'a> = dyn FnMut(TurnEvent) + Send + 'a;

/// A reply while it arrives.
struct Reply {
    text: String,
    /// Text since the last note in the journal.
    unnoted: String,
    /// Tokens whose ids were reported.
    tokens: u32,
    /// Running hash after each token; the first is the start.
    hashes: Vec<RunningHash>,
    memory: Vec<MemoryItem>,
}

/// A turn that was rebuilt, and the substream on which the node will say whether it is stored.
pub(crate) struct Finished {
    pub(crate) accepted: AcceptedTurn,
    pub(crate) memory: Vec<MemoryItem>,
    pub(crate) rest: Rest,
}

/// The rest of a reply, after the turn is final.
pub(crate) struct Rest {
    stream: TurnStream,
    opener: baton_keys::seal::StreamOpener,
    seen: Option<StoreState>,
}

/// What an attempt needs beside itself.
pub(crate) struct Context<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) directory: &'a Arc<Directory>,
    pub(crate) timeouts: Timeouts,
    pub(crate) relayer: Option<&'a Relayer>,
}

/// Sends a prepared and journaled attempt, follows the reply and rebuilds the turn.
pub(crate) async fn run(
    context: &Context<'_>,
    turn: &PendingTurn,
    prepared: Prepared,
    events: &mut Events<'_>,
) -> Result<Finished, AttemptFailure> {
    let Prepared { auth, request, secret, record_key } = prepared;
    let start = running_hash_start(&record_key, &auth.auth_hash());
    let mut reply = Reply {
        text: String::new(),
        unnoted: String::new(),
        tokens: 0,
        hashes: vec![start],
        memory: Vec::new(),
    };
    let (target, frame) = match context.relayer {
        Some(relayer) => (relayer.node, ClientFrame::Relay(request)),
        None => (auth.audience, ClientFrame::Turn(request)),
    };
    let addrs = match context.relayer {
        Some(relayer) => relayer.addrs.clone(),
        None => context.directory.addrs(target),
    };
    let mesh = context.directory.mesh();
    let mut stream = exchange::send(mesh, target, &addrs, &frame, context.timeouts.open).await?;
    drop(frame);
    let nonce = admitted(context, &auth, &mut stream, &mut reply, events).await?;
    let opener = secret.reply_opener(&nonce, &auth.auth_hash().0);
    let mut rest = Rest { stream, opener, seen: None };
    let committed = match follow(context, &auth, &mut rest, &mut reply, events).await {
        Ok(committed) => committed,
        Err(failure) => return Err(AttemptFailure { shown: reply.shown(), ..failure }),
    };
    let accepted =
        context.session.read(|state| accept(state, turn, &auth, &committed, &reply.text, &reply.memory));
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(code) => return Err(AttemptFailure { shown: reply.shown(), ..AttemptFailure::check(code) }),
    };
    let used = usize::from(accepted.receipt.memory_items);
    reply.memory.truncate(used);
    Ok(Finished { accepted, memory: reply.memory, rest })
}

/// Rebuilds a turn from what the session holds and the node's commitment.
pub(crate) fn accept(
    state: &State,
    turn: &PendingTurn,
    auth: &Signed<TurnAuth>,
    committed: &Committed,
    answer: &str,
    memory: &[MemoryItem],
) -> Result<AcceptedTurn, ErrorCode> {
    let base = state.base();
    let prev_blob = state.next_seq().checked_sub(1).and_then(|last| state.blob_ref(last));
    let expected = Expected {
        auth,
        place: Place { base: &base, prev_blob },
        kind: turn.kind,
        supersedes_from: turn.supersedes_from,
        system: &state.system,
        messages: &turn.messages,
        sampling: &turn.sampling,
        memory,
    };
    accept_turn(&state.root, &expected, committed, answer)
}

/// Waits until the node admits or refuses the turn; the nonce of its reply.
async fn admitted(
    context: &Context<'_>,
    auth: &TurnAuth,
    stream: &mut TurnStream,
    reply: &mut Reply,
    events: &mut Events<'_>,
) -> Result<[u8; 32], AttemptFailure> {
    loop {
        match exchange::receive(stream, context.timeouts.admit).await? {
            Some(NodeFrame::Accepted { nonce }) => {
                events(TurnEvent::Admitted);
                return Ok(nonce);
            }
            Some(NodeFrame::Memory(items)) if context.relayer.is_some() && reply.memory.is_empty() => {
                check_memory(&items)?;
                let entry = Entry::Memory { attempt: auth.attempt, items: items.clone() };
                context.session.note(entry).await.map_err(journal_failed)?;
                events(TurnEvent::Memory(items.clone()));
                reply.memory = items;
            }
            Some(NodeFrame::Refused { code, retry_after_ms }) => {
                return Err(AttemptFailure::node(code, retry_after_ms));
            }
            Some(_) => return Err(AttemptFailure::check(ErrorCode::NonCanonical)),
            None => return Err(ExchangeError::Ended.into()),
        }
    }
}

fn check_memory(items: &[MemoryItem]) -> Result<(), AttemptFailure> {
    let fits = items.len() <= MAX_MEMORY_ITEMS
        && items.iter().all(|item| {
            item.text.len() <= MAX_MEMORY_ITEM_BYTES && item.source.len() <= MAX_MEMORY_ITEM_BYTES
        });
    if fits { Ok(()) } else { Err(AttemptFailure::check(ErrorCode::MemTooLarge)) }
}

fn journal_failed(error: crate::error::ClientError) -> AttemptFailure {
    AttemptFailure { reason: error.to_string(), ..AttemptFailure::check(ErrorCode::Internal) }
}

/// Follows the reply until the turn is committed.
async fn follow(
    context: &Context<'_>,
    auth: &Signed<TurnAuth>,
    rest: &mut Rest,
    reply: &mut Reply,
    events: &mut Events<'_>,
) -> Result<Committed, AttemptFailure> {
    loop {
        let Some((event, last)) = rest.next(context.timeouts.idle).await? else {
            return Err(AttemptFailure::lost(ErrorCode::StreamTruncated.to_string()));
        };
        match event {
            ReplyEvent::Waiting(ahead) => events(TurnEvent::Waiting(ahead)),
            ReplyEvent::Tokens { index, ids, text, .. } => {
                reply.push(index, &ids, &text).map_err(AttemptFailure::check)?;
                if !text.is_empty() {
                    events(TurnEvent::Text(text));
                }
            }
            ReplyEvent::Progress(note) => {
                reply.check_note(note, auth).map_err(AttemptFailure::check)?;
                let text = std::mem::take(&mut reply.unnoted);
                let entry = Entry::Received { attempt: auth.attempt, text };
                context.session.note(entry).await.map_err(journal_failed)?;
            }
            ReplyEvent::Committed(committed) => return Ok(*committed),
            ReplyEvent::Failed { code } => return Err(AttemptFailure::node(code, 0)),
            // The store cannot have what is not sealed yet.
            ReplyEvent::Store(_) => return Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
        if last {
            return Err(AttemptFailure::check(ErrorCode::StreamTruncated));
        }
    }
}

impl Reply {
    fn shown(self) -> Shown {
        Shown(Zeroizing::new(self.text))
    }

    /// Takes tokens: none missing, none twice.
    fn push(&mut self, index: u32, ids: &[u32], text: &str) -> Result<(), ErrorCode> {
        if !ids.is_empty() && index != self.tokens {
            return Err(ErrorCode::StreamTruncated);
        }
        if self.text.len() + text.len() > MAX_MESSAGE_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        for id in ids {
            let last = self.hashes.last().copied().unwrap_or(RunningHash([0; 32]));
            self.hashes.push(running_hash_step(&last, *id));
            self.tokens = self.tokens.checked_add(1).ok_or(ErrorCode::FrameTooLarge)?;
        }
        self.text.push_str(text);
        self.unnoted.push_str(text);
        Ok(())
    }

    /// A progress note must be this node's, of this turn, and of the tokens that arrived. An engine that reports
    /// no token ids has nothing to compare with.
    fn check_note(&self, bytes: baton_proto::SignedBytes, auth: &Signed<TurnAuth>) -> Result<(), ErrorCode> {
        let note = Signed::<ProgressNote>::verify(bytes)?;
        if note.node != auth.audience || note.auth_hash != auth.auth_hash() {
            return Err(ErrorCode::ReceiptMismatch);
        }
        if self.tokens == 0 {
            return Ok(());
        }
        match self.hashes.get(note.token_count as usize) {
            Some(hash) if *hash == note.running_hash => Ok(()),
            _ => Err(ErrorCode::ReceiptMismatch),
        }
    }
}

impl Rest {
    /// The next event and whether it is the last; none when the reply ended before its last chunk.
    async fn next(&mut self, wait: Duration) -> Result<Option<(ReplyEvent, bool)>, AttemptFailure> {
        match exchange::receive(&mut self.stream, wait).await? {
            None => Ok(None),
            Some(NodeFrame::Chunk(sealed)) => {
                // A chunk that does not open was changed, dropped before, or moved.
                let (opened, last) = self
                    .opener
                    .open(&sealed)
                    .map_err(|_| AttemptFailure::check(ErrorCode::StreamTruncated))?;
                let event = ReplyEvent::from_chunk(&opened).map_err(AttemptFailure::check)?;
                Ok(Some((event, last)))
            }
            Some(NodeFrame::Refused { code, retry_after_ms }) => {
                Err(AttemptFailure::node(code, retry_after_ms))
            }
            Some(_) => Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }

    /// The node's last word on whether the blob is stored, waited for no longer than this in all. A substream
    /// that ends says nothing.
    pub(crate) async fn store_state(mut self, wait: Duration) -> StoreState {
        let watch = async {
            while let Ok(Some((event, last))) = self.next(wait).await {
                if let ReplyEvent::Store(state) = event {
                    self.seen = Some(state);
                    if matches!(state, StoreState::Stored { .. } | StoreState::GivenUp) {
                        return;
                    }
                }
                if last {
                    return;
                }
            }
        };
        // At the timeout, what was seen so far stands.
        let _ = tokio::time::timeout(wait, watch).await;
        self.seen.unwrap_or(StoreState::Pending)
    }
}

/// Attempts of the pending turn that may have been sealed, as far as their nodes said; oldest first.
pub(crate) fn open_attempts(state: &State) -> Vec<Signed<TurnAuth>> {
    let pending = state.pending.iter().flat_map(|pending| &pending.attempts);
    pending.filter(|attempt| !attempt.refused).map(|attempt| attempt.auth.clone()).collect()
}

/// Those of them whose author is asked what became of them.
pub(crate) fn attempts_to_ask(state: &State) -> Vec<Signed<TurnAuth>> {
    let pending = state.pending.iter().flat_map(|pending| &pending.attempts);
    pending
        .filter(|attempt| !attempt.refused && !attempt.rejected)
        .map(|attempt| attempt.auth.clone())
        .collect()
}
