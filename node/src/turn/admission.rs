//! Whether a turn may run at all: the checks before anything costs more than a hash or a signature, cheapest
//! first, in the order of the protocol.

use std::sync::Arc;

use baton_keys::{contexts::AUTH_HASH, exchange::ExchangeSecret};
use baton_proto::{
    ErrorCode, Signed, SignedBytes,
    ids::AuthHash,
    quota::QuotaUse,
    turn::{SealedPayload, TurnAuth},
    wire::{InlineBlob, TurnRequest},
};
use tokio::time::{Instant, timeout};

use super::charge::{self, Charge};
use crate::{
    core::{
        Core,
        guard::Caller,
        limits::{DRAIN_RETRY_MS, TAKE_OVER_WAIT},
        refusal::Refusal,
        running::{Begin, Job, JobGuard},
        slots::Place,
    },
    engine::Engine,
    journal::{EntryState, SealedEntry, TurnKey},
    lock::lock,
};

/// What becomes of a request.
pub(crate) enum Admitted {
    /// It runs already.
    Attach(Arc<Job>),
    /// It was sealed before.
    Sealed(Box<Again>),
    /// It is to run, with its place in line.
    New(Box<Ticket>, Place),
}

/// A request whose turn was sealed before.
pub(crate) struct Again {
    pub(crate) auth: Signed<TurnAuth>,
    pub(crate) payload: SealedPayload,
    pub(crate) exchange: ExchangeSecret,
    pub(crate) sealed: Box<SealedEntry>,
}

/// A turn that may run. Dropping it gives up its session.
pub(crate) struct Ticket {
    /// The verified authorisation.
    pub(crate) auth: Signed<TurnAuth>,
    /// The payload, not opened yet.
    pub(crate) payload: SealedPayload,
    /// Blobs that came along.
    pub(crate) inline: Vec<InlineBlob>,
    /// The memory envelope, not checked yet.
    pub(crate) memory: Option<SignedBytes>,
    /// Opens the payload.
    pub(crate) exchange: ExchangeSecret,
    /// Answers.
    pub(crate) engine: Arc<dyn Engine>,
    /// When it was admitted.
    pub(crate) began: Instant,
    /// What it was charged.
    pub(crate) charge: Charge,
    /// Its place among the running turns.
    pub(crate) guard: JobGuard,
}

/// What the seen-set says.
enum Seen {
    New,
    Running(Arc<Job>),
    Sealed(Box<SealedEntry>),
}

/// Checks a request. The order is that of the costs: sizes, rates and what the claim itself says; then the seen-set;
/// then whether it could be served at all; then the signatures; and only then whatever the session has left.
pub(crate) async fn admit(
    core: &Arc<Core>,
    who: Caller,
    request: TurnRequest,
    quota: Option<QuotaUse>,
) -> Result<Admitted, Refusal> {
    let now_ms = core.now_ms();
    request.check()?;
    let granted = quota.as_ref().is_some_and(|used| lock(&core.quotas).knows(used));
    core.take_turn(&who, granted, now_ms)?;
    let claimed = Signed::<TurnAuth>::peek(&request.auth)?;
    if claimed.audience != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    claimed.check_time(now_ms)?;
    let hash = AuthHash(request.auth.hash(AUTH_HASH));
    let seen = look_up(core, &claimed, &hash, &request).await?;
    if let Seen::Running(job) = seen {
        return Ok(Admitted::Attach(job));
    }
    let exchange =
        core.identity.exchange_secret(&claimed.audience_key, now_ms).ok_or(ErrorCode::KxExpired)?;
    if let Seen::Sealed(sealed) = seen {
        let auth = Signed::<TurnAuth>::verify(request.auth)?;
        return Ok(Admitted::Sealed(Box::new(Again { auth, payload: request.payload, exchange, sealed })));
    }
    let engine = check_servable(core, &claimed)?;
    if core.is_held() {
        return Err(Refusal { code: ErrorCode::Busy, retry_after_ms: DRAIN_RETRY_MS });
    }
    // The signatures: one for the turn, one for the use of a grant, and those of a grant that is new here.
    let chain = charge::check_quota(core, quota.as_ref(), claimed.model, &hash)?;
    let guest = charge::guest(core, &who, chain.as_ref());
    if !core.slots.has_room(&guest) {
        return Err(ErrorCode::Busy.into());
    }
    let auth = Signed::<TurnAuth>::verify(request.auth)?;
    lock(&core.session_rates)
        .take(auth.session_id, now_ms)
        .map_err(|retry_after_ms| Refusal { code: ErrorCode::QuotaExceeded, retry_after_ms })?;
    let held = auth.max_output_tokens.min(core.limits.max_output_tokens);
    let charge = Charge::take(core, who, held, chain.as_ref())?;
    let guard = match begin(core, &auth).await? {
        Ok(guard) => guard,
        Err(job) => return Ok(Admitted::Attach(job)),
    };
    let place = core.slots.enter(guest).map_err(|_| ErrorCode::Busy)?;
    let ticket = Ticket {
        auth,
        payload: request.payload,
        inline: request.inline,
        memory: request.memory,
        exchange,
        engine,
        began: Instant::now(),
        charge,
        guard,
    };
    Ok(Admitted::New(Box::new(ticket), place))
}

fn key_of(auth: &TurnAuth) -> TurnKey {
    TurnKey { session_id: auth.session_id, turn_id: auth.turn_id, attempt: auth.attempt }
}

/// The seen-set: the turns that run, and the journal. The authorisation is not verified yet, so nothing is
/// written here; one that equals a known one was verified then, since the hash covers its signature.
async fn look_up(
    core: &Core,
    auth: &TurnAuth,
    hash: &AuthHash,
    request: &TurnRequest,
) -> Result<Seen, Refusal> {
    let key = key_of(auth);
    let intact = request.payload.hash() == auth.payload_hash;
    if let Some(job) = core.running.find(&key) {
        let same = job.auth_hash == *hash && intact;
        return if same { Ok(Seen::Running(job)) } else { Err(ErrorCode::IdempotencyConflict.into()) };
    }
    let entry = core.journal.look_up(key).await.map_err(Refusal::of_journal)?;
    let Some(entry) = entry else {
        if auth.issued_ms < core.journal.begins_ms() {
            return Err(ErrorCode::Replayed.into());
        }
        return if intact { Ok(Seen::New) } else { Err(ErrorCode::PayloadRejected.into()) };
    };
    if !entry.is_of(hash) || !intact {
        return Err(ErrorCode::IdempotencyConflict.into());
    }
    match entry.state {
        // It ended before it was sealed, with the process or by a failure: it may run again.
        EntryState::Accepted => Ok(Seen::New),
        EntryState::Sealed(sealed) => Ok(Seen::Sealed(sealed)),
        EntryState::Aborted => Err(ErrorCode::Aborted.into()),
    }
}

/// Whether such a turn is served here now, whoever signed it.
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

/// Takes the session. An attempt that its client left is ended for a new one.
async fn begin(core: &Arc<Core>, auth: &Signed<TurnAuth>) -> Result<Result<JobGuard, Arc<Job>>, Refusal> {
    let (key, hash) = (key_of(auth), auth.auth_hash());
    let busy = match core.running.begin(key, hash) {
        Begin::New(guard) => return Ok(Ok(guard)),
        Begin::Same(job) => return Ok(Err(job)),
        Begin::Conflict => return Err(ErrorCode::IdempotencyConflict.into()),
        Begin::SessionBusy(job) => job,
    };
    if !busy.reply.is_orphaned() {
        return Err(ErrorCode::Busy.into());
    }
    busy.stop.cancel();
    timeout(TAKE_OVER_WAIT, core.running.ended(&busy)).await.map_err(|_| ErrorCode::Busy)?;
    match core.running.begin(key, hash) {
        Begin::New(guard) => Ok(Ok(guard)),
        Begin::Same(job) => Ok(Err(job)),
        Begin::Conflict => Err(ErrorCode::IdempotencyConflict.into()),
        Begin::SessionBusy(_) => Err(ErrorCode::Busy.into()),
    }
}
