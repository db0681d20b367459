//! Admission of turns: checks that cost at most a hash or a signature, cheapest first, in the protocol's
//! order.

use std::sync::Arc;

use baton_keys::{contexts::AUTH_HASH, exchange::ExchangeSecret};
use baton_limits::{Key, Ticket};
use baton_mesh::Caller;
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    ids::AuthHash,
    right::QuotaUse,
    turn::{SealedPayload, TurnAuth},
    wire::{InlineBlob, TurnRequest},
};
use tokio::time::{Instant, timeout};

use super::charge::{self, Charge};
use crate::{
    core::{
        Core,
        limits::TAKE_OVER_WAIT,
        refusal::Refusal,
        running::{Begin, Job, JobGuard},
    },
    engine::Engine,
    journal::{EntryState, SealedEntry, TurnKey},
};

/// Outcome of an admission.
pub(crate) enum AdmissionOutcome {
    /// The turn runs already.
    Attach(Arc<Job>),
    /// The turn was sealed before.
    Sealed(Box<RepeatedTurn>),
    /// The turn may run; it has a place in the queue.
    New(Box<AdmittedTurn>, Ticket),
}

/// A request whose turn was sealed before.
pub(crate) struct RepeatedTurn {
    pub(crate) auth: SignedObject<TurnAuth>,
    pub(crate) payload: SealedPayload,
    pub(crate) exchange: ExchangeSecret,
    pub(crate) sealed: Box<SealedEntry>,
}

/// An admitted turn. Dropping it releases its session.
pub(crate) struct AdmittedTurn {
    /// The verified authorisation.
    pub(crate) auth: SignedObject<TurnAuth>,
    /// The sealed payload.
    pub(crate) payload: SealedPayload,
    /// Blobs in the request.
    pub(crate) inline: Vec<InlineBlob>,
    /// The memory envelope, unverified.
    pub(crate) memory: Option<SignedBytes>,
    /// The secret that opens the payload.
    pub(crate) exchange: ExchangeSecret,
    /// The engine that answers.
    pub(crate) engine: Arc<dyn Engine>,
    /// When it was admitted.
    pub(crate) began: Instant,
    /// The key that it counts to where it waits.
    pub(crate) payer: Key,
    /// Its charge.
    pub(crate) charge: Charge,
    /// Its registration among the running turns.
    pub(crate) guard: JobGuard,
}

impl AdmittedTurn {
    /// Drops everything but the registration, so that a turn that waits for the store holds no request.
    pub(crate) fn into_guard(self) -> JobGuard {
        self.guard
    }
}

/// Result of a look-up in the seen-set.
enum AttemptLookup {
    New,
    Running(Arc<Job>),
    Sealed(Box<SealedEntry>),
}

/// Checks a request, in order of cost:
/// 1. sizes, rates and the unverified claim itself,
/// 2. the seen-set,
/// 3. whether the turn could be served at all,
/// 4. signatures,
/// 5. the remaining quotas.
pub(crate) async fn admit(
    core: &Arc<Core>,
    who: Caller,
    request: TurnRequest,
    quota: Option<QuotaUse>,
) -> Result<AdmissionOutcome, Refusal> {
    let now_ms = core.now_ms();
    request.check()?;
    let granted = quota.as_ref().is_some_and(|used| core.quotas.lock().knows(used));
    core.defence.turn(&who, granted)?;
    let claimed = SignedObject::<TurnAuth>::peek(&request.auth)?;
    if claimed.audience != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    claimed.check_time(now_ms)?;
    let hash = AuthHash(request.auth.hash(AUTH_HASH));
    let seen = look_up(core, &claimed, &hash, &request).await?;
    if let AttemptLookup::Running(job) = seen {
        return Ok(AdmissionOutcome::Attach(job));
    }
    let exchange =
        core.identity.exchange_secret(&claimed.audience_key, now_ms).ok_or(ErrorCode::KxExpired)?;
    if let AttemptLookup::Sealed(sealed) = seen {
        let auth = SignedObject::<TurnAuth>::verify(request.auth)?;
        return Ok(AdmissionOutcome::Sealed(Box::new(RepeatedTurn {
            auth,
            payload: request.payload,
            exchange,
            sealed,
        })));
    }
    let engine = check_servable(core, &claimed)?;
    // The signatures: one for the turn, one for the use of a grant, and those of a grant that is new here.
    let chain = charge::check_quota(core, quota.as_ref(), claimed.model, &hash)?;
    let payer = charge::payer(&who, chain.as_ref());
    if !core.slots.has_room(&payer) || !may_store(core, &payer) {
        return Err(ErrorCode::Busy.into());
    }
    let auth = SignedObject::<TurnAuth>::verify(request.auth)?;
    let held = auth.max_output_tokens.min(core.limits.max_output_tokens);
    let charge = Charge::take(core, who, held, chain.as_ref())?;
    let guard = match begin(core, &auth).await? {
        Ok(guard) => guard,
        Err(job) => return Ok(AdmissionOutcome::Attach(job)),
    };
    let ticket = core.slots.enter(payer, 1).map_err(|_| ErrorCode::Busy)?;
    let admitted = AdmittedTurn {
        auth,
        payload: request.payload,
        inline: request.inline,
        memory: request.memory,
        exchange,
        engine,
        began: Instant::now(),
        payer,
        charge,
        guard,
    };
    Ok(AdmissionOutcome::New(Box::new(admitted), ticket))
}

/// Whether the blob of one more turn may wait for the store. Blobs of unknown subnets never take the last places from
/// holders of a grant.
fn may_store(core: &Core, payer: &Key) -> bool {
    if payer.is_unknown() { core.put_slots.has_free_place(payer) } else { core.put_slots.has_room(payer) }
}

fn key_of(auth: &TurnAuth) -> TurnKey {
    TurnKey { session_id: auth.session_id, turn_id: auth.turn_id, attempt: auth.attempt }
}

/// Looks up the seen-set: the running turns, and the journal. The authorisation is still unverified, so
/// nothing is written here. An authorisation equal to a known one was verified earlier, because the hash
/// covers its signature.
async fn look_up(
    core: &Core,
    auth: &TurnAuth,
    hash: &AuthHash,
    request: &TurnRequest,
) -> Result<AttemptLookup, Refusal> {
    let key = key_of(auth);
    let intact = request.payload.hash() == auth.payload_hash;
    if let Some(job) = core.running.find(&key) {
        let same = job.auth_hash == *hash && intact;
        return if same {
            Ok(AttemptLookup::Running(job))
        } else {
            Err(ErrorCode::IdempotencyConflict.into())
        };
    }
    let entry = core.journal.look_up(key).await.map_err(Refusal::of_journal)?;
    let Some(entry) = entry else {
        if auth.issued_ms < core.journal.begins_ms() {
            return Err(ErrorCode::Replayed.into());
        }
        return if intact { Ok(AttemptLookup::New) } else { Err(ErrorCode::PayloadRejected.into()) };
    };
    if !entry.is_of(hash) || !intact {
        return Err(ErrorCode::IdempotencyConflict.into());
    }
    match entry.state {
        // It ended before its seal, by a crash or a failure: it may run again.
        EntryState::Accepted => Ok(AttemptLookup::New),
        EntryState::Sealed(sealed) => Ok(AttemptLookup::Sealed(sealed)),
        EntryState::Aborted => Err(ErrorCode::Aborted.into()),
    }
}

/// Whether the node can serve such a turn now, regardless of its signer.
fn check_servable(core: &Core, claimed: &TurnAuth) -> Result<Arc<dyn Engine>, Refusal> {
    if claimed.max_output_tokens > core.limits.max_output_tokens {
        return Err(ErrorCode::QuotaExceeded.into());
    }
    let engine = core.engine(&claimed.model)?;
    if core.draining.is_cancelled() {
        return Err(ErrorCode::Busy.into());
    }
    Ok(engine)
}

/// Takes the session. A new attempt ends an attempt that its client has left.
async fn begin(
    core: &Arc<Core>,
    auth: &SignedObject<TurnAuth>,
) -> Result<Result<JobGuard, Arc<Job>>, Refusal> {
    let (key, hash) = (key_of(auth), auth.auth_hash());
    let mut has_waited = false;
    loop {
        let busy = match core.running.begin(key, hash) {
            Begin::New(guard) => return Ok(Ok(guard)),
            Begin::Same(job) => return Ok(Err(job)),
            Begin::Conflict => return Err(ErrorCode::IdempotencyConflict.into()),
            Begin::SessionBusy(job) => job,
        };
        if std::mem::replace(&mut has_waited, true) || !busy.reply.is_orphaned() {
            return Err(ErrorCode::Busy.into());
        }
        busy.stop.cancel();
        timeout(TAKE_OVER_WAIT, core.running.ended(&busy)).await.map_err(|_| ErrorCode::Busy)?;
    }
}
