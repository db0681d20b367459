//! Builds the request of one attempt: window, grant, sealed payload and signed authorisation. Pure except for
//! fresh randomness. It grants the window's keys and nothing more.

use baton_keys::{
    exchange::{EphemeralSecret, SUITE, TurnSecret},
    session::RecordKey,
};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::effective_newest_first,
    check::CheckOrder,
    ids::{ExchangeKey, PayloadHash},
    limits::{MAX_AUTH_LIFETIME_MS, MAX_INLINE_BLOBS, MAX_READ_BLOBS, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::BlobRef,
    memory::{MemEnvelope, MemoryItem},
    record::RecordKind,
    turn::{
        CheckInput, Grant, GrantedKey, HeadGrant, Payload, ReadBlob, ReadRecord, SealedPayload, TurnAuth,
    },
    wire::{InlineBlob, TurnRequest},
};

use crate::{
    attempt::checks,
    event::{InlinePolicy, OwnMemory, RouteOptions},
    network::{
        choose::{Choice, output_cap},
        retry::AnswerPrefix,
    },
    session::state::{OrderTerms, PendingTurn, State},
};

/// Bytes of text granted per token of the model's context: English has about four.
const WINDOW_BYTES_PER_TOKEN: usize = 4;

/// An attempt, ready to be journaled and sent.
pub(crate) struct PreparedAttempt {
    pub(crate) turn: PendingTurn,
    pub(crate) auth: SignedObject<TurnAuth>,
    pub(crate) request: TurnRequest,
    /// The node's exchange key, for a relayer that adds memory.
    pub(crate) node_key: ExchangeKey,
    /// Opens the reply.
    pub(crate) secret: TurnSecret,
    /// The key of the turn's record, for the running hash of its tokens.
    pub(crate) record_key: RecordKey,
    /// The terms that the node's receipt is held to.
    pub(crate) terms: OrderTerms,
    /// The caller's own memory in the request.
    pub(crate) memory: Vec<MemoryItem>,
}

/// The parameters of an attempt.
pub(crate) struct AttemptOrder<'a> {
    pub(crate) state: &'a State,
    /// The turn; without messages, the request is for a check of the last answer alone.
    pub(crate) turn: &'a PendingTurn,
    pub(crate) attempt: u32,
    pub(crate) choice: &'a Choice,
    pub(crate) route: &'a RouteOptions,
    /// The beginning of the answer, for the node to continue.
    pub(crate) begun: Option<&'a AnswerPrefix>,
    pub(crate) now_ms: u64,
}

impl AttemptOrder<'_> {
    /// Builds the attempt.
    pub(crate) fn prepare(&self) -> Result<PreparedAttempt, ErrorCode> {
        let Self { state, turn, choice, route, .. } = self;
        let (grant, record_key) = self.grant()?;
        let inline = inline_blobs(state, &grant, route.inline)?;
        let (checks, inputs) = match turn.messages.is_empty() {
            true => checks::of_last(state, choice.offer.model),
            false => checks::plan(state, &grant, choice.node, choice.offer.model),
        };
        let payload = self.payload(grant, inputs)?;
        let mut auth = self.authorisation(&payload, &record_key, checks)?;
        payload.check(&auth)?;
        let (sealed, secret) =
            SealedPayload::seal(&payload, EphemeralSecret::generate(), &choice.key, &auth.binding())?;
        auth.payload_hash = sealed.hash();
        let auth = SignedObject::sign(auth, &state.root.signing_key());
        let (mut memory, mut envelope) = (Vec::new(), None);
        if let Some(OwnMemory { signer, items }) = self.own_memory() {
            let ephemeral = EphemeralSecret::generate();
            let sealed = MemEnvelope::seal(items, &auth, signer, &choice.key, ephemeral, self.now_ms)?;
            (memory, envelope) = (items.clone(), Some(sealed.bytes().clone()));
        }
        let request = TurnRequest { auth: auth.bytes().clone(), payload: sealed, inline, memory: envelope };
        let terms = OrderTerms { offer: choice.terms, storage: choice.storage };
        let (turn, node_key) = ((*turn).clone(), choice.key.clone());
        Ok(PreparedAttempt { turn, auth, request, node_key, secret, record_key, terms, memory })
    }

    /// A relayer's memory and the caller's own exclude each other: an authorisation names one source.
    fn own_memory(&self) -> Option<&OwnMemory> {
        let RouteOptions { relayer, memory, .. } = self.route;
        memory.as_ref().filter(|own| relayer.is_none() && !own.items.is_empty())
    }

    fn payload(&self, grant: Grant, checks: Vec<CheckInput>) -> Result<Payload, ErrorCode> {
        let (state, turn) = (self.state, self.turn);
        Ok(Payload {
            version: PAYLOAD_VERSION,
            grant,
            kind: turn.kind,
            supersedes_from: turn.supersedes_from,
            system: state.system.to_vec(),
            messages: turn.messages.clone(),
            sampling: turn.sampling.clone(),
            json_schema: match &turn.sampling.json_schema {
                None => None,
                Some(hash) => Some(state.schema(hash).ok_or(ErrorCode::PayloadRejected)?.to_owned()),
            },
            storage: self.choice.storage,
            resume_tokens: self.begun.map_or_else(Vec::new, |begun| begun.partial.ids.to_vec()),
            checks,
        })
    }

    /// The authorisation, still without the hash of the sealed payload: the payload's key is bound to all other fields.
    fn authorisation(
        &self,
        payload: &Payload,
        record_key: &RecordKey,
        checks: Vec<CheckOrder>,
    ) -> Result<TurnAuth, ErrorCode> {
        let Self { state, turn, choice, route, .. } = self;
        let relayer = route.relayer.as_ref().map(|relayer| relayer.node.public_key());
        let memory_from = relayer.or_else(|| self.own_memory().map(|own| own.signer.public_key()));
        let max_output_tokens = output_cap(turn.max_output_tokens, choice.max_output_tokens);
        Ok(TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id: state.session_id,
            session_key: state.root.signing_key().public_key(),
            device_id: state.header.device_id,
            seq: state.next_seq(),
            turn_id: turn.turn_id,
            attempt: self.attempt,
            prev_link: state.prev_link(),
            prev_blob: if route.with_locator { head_blob(state)? } else { None },
            n_shards: state.header.n_shards,
            branch: state.header.branch,
            audience: choice.node,
            audience_key: choice.key.id(),
            payload_hash: PayloadHash([0; 32]),
            model: choice.offer.model,
            sampling: turn.sampling.digest(record_key),
            max_output_tokens,
            max_price: choice.highest_price(max_output_tokens),
            memory_from,
            memory_tokens: memory_from.map_or(0, |_| route.memory_tokens),
            grant_hash: payload.grant.hash(),
            resume: self.begun.map(|begun| begun.prefix(record_key)),
            checks,
            issued_ms: self.now_ms,
            expires_ms: self.now_ms.saturating_add(MAX_AUTH_LIFETIME_MS),
        })
    }

    /// The keys of the window and of the new turn, and the key of the new record itself.
    fn grant(&self) -> Result<(Grant, RecordKey), ErrorCode> {
        let Self { state, turn, choice, .. } = self;
        let base = state.base();
        let head = (!self.route.with_locator).then(|| head_grant(state, self.now_ms));
        let identity = state.identity(&base, turn.turn_id, self.attempt, choice.node);
        let record_key = state.root.record_key(&identity);
        let blob_key = state.root.blob_key(base.segment, &record_key.blob_salt());
        let budget = (choice.offer.context_tokens as usize).saturating_mul(WINDOW_BYTES_PER_TOKEN);
        // A summary must read the turns that it replaces; an edit must not.
        let replaced_from = turn.supersedes_from.filter(|_| turn.kind != RecordKind::Summary);
        let window = window(state, replaced_from, budget);
        let mut blobs = Vec::new();
        for end in state.segment_ends(MAX_READ_BLOBS) {
            let (last, _) = state.turn(end).ok_or(ErrorCode::BadSequence)?;
            // The head's blob always; an older segment only if the window reaches into it.
            if !blobs.is_empty() && window.first().is_none_or(|oldest| end < *oldest) {
                break;
            }
            let salt = state.root.record_key(&last.link.record_identity()).blob_salt();
            let blob = state.blob_ref(end).ok_or(ErrorCode::BlobIdMismatch)?;
            blobs.push(ReadBlob {
                segment: last.link.segment,
                blob: head.is_none().then_some(blob),
                author: Some(last.link.author),
                key: GrantedKey::of_blob(&state.root.blob_key(last.link.segment, &salt)),
            });
        }
        let oldest_segment = blobs.last().map_or(0, |blob| blob.segment);
        let records = window
            .into_iter()
            .filter_map(|seq| state.turn(seq))
            .filter(|(turn, _)| turn.link.segment >= oldest_segment)
            .map(|(turn, _)| ReadRecord {
                seq: turn.link.seq,
                key: GrantedKey::of_record(&state.root.record_key(&turn.link.record_identity())),
            })
            .collect();
        let index = u8::try_from(base.entries.len()).map_err(|_| ErrorCode::BadSequence)?;
        let grant = Grant {
            segment: base.segment,
            index,
            record_key: GrantedKey::of_record(&record_key),
            blob_key: GrantedKey::of_blob(&blob_key),
            // A first turn has no blobs to find.
            head: head.filter(|_| !blobs.is_empty()),
            blobs,
            records,
        };
        Ok((grant, record_key))
    }
}

/// The blob of the last turn, which the next link names; its ID must be computed by now.
fn head_blob(state: &State) -> Result<Option<BlobRef>, ErrorCode> {
    match state.next_seq().checked_sub(1) {
        None => Ok(None),
        Some(last) => state.blob_ref(last).map(Some).ok_or(ErrorCode::BlobIdMismatch),
    }
}

/// The place and the key of the last turn's head record, for a node that is to find the blobs there. They are
/// of use until the end of the week.
fn head_grant(state: &State, now_ms: u64) -> HeadGrant {
    let secret = state.root.head_secret(state.head_period(now_ms));
    HeadGrant { index_key: secret.index_key(), key: GrantedKey::of_head(&secret.locate_key()) }
}

/// Turns that the node may read, oldest first: the latest effective turns, until their text fills the budget.
fn window(state: &State, replaced_from: Option<u64>, budget: usize) -> Vec<u64> {
    let mut window = Vec::new();
    let mut bytes = 0usize;
    // Back to before `from`: records at or after it are no longer effective, nor is anything they replaced.
    let length = state.history.len();
    let end = replaced_from.map_or(length, |from| {
        usize::try_from(from.saturating_sub(state.first_seq())).map_or(length, |end| end.min(length))
    });
    // Goes back from the newest turn until the budget is full, so a long session is not read whole.
    let newest_first = (0..end).rev().map_while(|position| Some((position, state.history.get(position)?)));
    // Turns before the grantable blobs are useless.
    let oldest = state.segment_ends(MAX_READ_BLOBS).last().and_then(|seq| state.turn(*seq));
    let oldest_segment = oldest.map_or(0, |(oldest, _)| oldest.link.segment);
    let granted = newest_first.take_while(|(_, turn)| turn.link.segment >= oldest_segment);
    for (_, turn) in effective_newest_first(granted) {
        if bytes >= budget {
            break;
        }
        let messages = turn.record.iter().flat_map(|record| &record.messages);
        bytes = bytes.saturating_add(messages.map(|message| message.text.len()).sum());
        window.push(turn.link.seq);
    }
    window.reverse();
    window
}

/// Bytes of up to two of the granted blobs, newest first.
fn inline_blobs(state: &State, grant: &Grant, policy: InlinePolicy) -> Result<Vec<InlineBlob>, ErrorCode> {
    if policy == InlinePolicy::Never {
        return Ok(Vec::new());
    }
    let mut inline = Vec::new();
    for end in state.segment_ends(grant.blobs.len()) {
        let stored = state.turn(end).is_some_and(|(_, meta)| meta.stored);
        if policy == InlinePolicy::Always || !stored {
            inline.push(InlineBlob(state.rebuild(end)?));
        }
        if inline.len() == MAX_INLINE_BLOBS {
            break;
        }
    }
    Ok(inline)
}
