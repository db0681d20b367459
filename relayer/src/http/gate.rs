//! The gate: authenticates callers, limits rates, sizes and concurrent requests, and refuses replays.
//!
//! An agent's token is accepted at `/mcp` in place of a signature.
//!
//! The order of the checks is the order of their cost. Nothing is held before the signature is verified:
//! 1. the subnet's rate, the relayer that is named, the form of the headers, and the time;
//! 2. the signature, if the head has the hash of the body;
//! 3. the body; its sender must keep a minimum rate, and a large one needs a slot;
//! 4. the signature otherwise;
//! 5. a slot for the request.

use std::{future::Future, time::Duration};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use baton_keys::{account::body_sha256, token::AgentToken};
use baton_kit::listen::Activity;
use baton_limits::{Full, Key, Slots, Subnet, Ticket};
use baton_memory::ids::OwnerId;
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    AppState,
    api_error::{ApiError, BUSY, CLEAR_TOKEN, DEADLINE, INTERNAL, RATE, TOKEN, TOO_LARGE, UNAUTHENTICATED},
    body::{self, BodyLimits, BodyReader},
    chat,
    limits::{ANSWER_TIMEOUT, BODY_BYTES, OPEN_BODY_BYTES},
    owner,
};
use crate::{
    auth::{Caller, SignedHead},
    owners::OwnerRefusal,
    slots::take_slot,
    stacks::SecretUse,
};

/// The route for agents, which may send a token.
pub(super) const AGENTS: &str = "/mcp";

/// Requests that a refused new owner costs its subnet besides its own.
const REFUSED_OWNER_COST: u64 = 15;

/// The properties of a route that decide on admission.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateRoute {
    /// Whether its requests change nothing.
    pub(super) reads: bool,
    /// Most bytes of a body.
    pub(super) body_bytes: usize,
}

/// Reads the body of an open route, which no gate reads.
pub(super) async fn open(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let (parts, sent) = request.into_parts();
    match body::read(sent, limits_of(&app, OPEN_BODY_BYTES)).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(error) if error.code() == "too_large" => {
            ApiError::bad(format!("a body of this route has at most {OPEN_BODY_BYTES} bytes")).into_response()
        }
        Err(error) => error.into_response(),
    }
}

fn limits_of(app: &AppState, most: usize) -> BodyLimits {
    BodyLimits { most, patience: app.inner.config.limits.body_patience }
}

/// Admits a request with its [`Caller`] and runs it, or refuses it.
pub(super) async fn gate<F>(
    app: &AppState,
    route: GateRoute,
    request: Request,
    run: impl FnOnce(Request) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let has_secret = request.uri().path() == chat::PATH;
    let is_agent = request.uri().path() == AGENTS;
    let _secret = has_secret.then(SecretUse::begin);
    let mut response = match admit(app, route, request).await {
        Err(error) => error.into_response(),
        Ok((request, permits)) => run_admitted(app, request, permits, run).await,
    };
    if is_agent && response.status() == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"baton memory\""));
    }
    if has_secret {
        // A kept-alive connection keeps the bytes of its last request, which contain a session's key.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn run_admitted<F>(
    app: &AppState,
    request: Request,
    permits: Permits,
    run: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let running = run(request);
    // A separate task: a client that disconnects must not interrupt a write.
    let task = app.inner.tasks.spawn(async move {
        let _permits = permits;
        tokio::time::timeout(ANSWER_TIMEOUT, running).await
    });
    match task.await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => ApiError::new(DEADLINE).into_response(),
        // A panic has ended the process already; only the runtime's shutdown reaches this.
        Err(_) => ApiError::new(INTERNAL).into_response(),
    }
}

/// The slots of a running request: one for the request, and one for a large body.
struct Permits {
    _request: Ticket,
    _large: Option<Ticket>,
}

/// Waits for a slot, for a bounded time and in a bounded queue.
async fn slot(app: &AppState, slots: &Slots, subnet: Option<Subnet>) -> Result<Ticket, ApiError> {
    let deadline = Instant::now() + app.inner.config.limits.slot_wait;
    let taken = take_slot(slots, Key::of(subnet), deadline).await;
    taken.map_err(|Full| ApiError::new(BUSY).after_ms(1_000))
}

/// Admits a request: returns it with caller, body and slots.
async fn admit(app: &AppState, route: GateRoute, request: Request) -> Result<(Request, Permits), ApiError> {
    let (mut parts, sent) = request.into_parts();
    let now_ms = app.now_ms();
    let subnet = subnet_of(app, &parts);
    if let Some(subnet) = subnet {
        let taken = app.inner.subnet_rates.lock().take(subnet, now_ms);
        taken.map_err(|wait| limited(wait.max(reset_next(app, &parts, wait))))?;
    }
    let token = parts.headers.get(AUTHORIZATION).filter(|_| parts.uri.path() == AGENTS);
    let (caller, bytes, large) = match token {
        Some(token) => {
            let caller = identify_token(app, &parts, token, subnet).await?;
            (caller, body::read(sent, limits_of(app, BODY_BYTES)).await?, None)
        }
        None => admit_signed(app, route, &mut parts, sent, subnet).await?,
    };
    let request = slot(app, &app.inner.requests, subnet).await?;
    parts.extensions.insert(caller);
    let permits = Permits { _request: request, _large: large };
    Ok((Request::from_parts(parts, Body::from(bytes)), permits))
}

/// Checks the signature of a request, and reads its body: before the signature only as much as needs no slot.
async fn admit_signed(
    app: &AppState,
    route: GateRoute,
    parts: &mut Parts,
    sent: Body,
    subnet: Option<Subnet>,
) -> Result<(Caller, Bytes, Option<Ticket>), ApiError> {
    let most = route.body_bytes;
    let signed_path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    parts.uri = app.inner.config.audience.check(&parts.uri)?;
    let head = SignedHead::read(&parts.headers, app.now_ms())?;
    let Some(stated) = head.stated_body_sha256().map(str::to_owned) else {
        let bytes = body::read(sent, limits_of(app, most.min(BODY_BYTES))).await;
        let bytes = bytes.map_err(|error| unstated(error, most))?;
        let hash = body_sha256(&bytes);
        let caller = identify(app, parts, head, &signed_path, &hash, route.reads, subnet).await?;
        return Ok((caller, bytes, None));
    };
    let caller = identify(app, parts, head, &signed_path, &stated, route.reads, subnet).await?;
    let (mut reader, mut large) = (BodyReader::new(sent, limits_of(app, most)), None);
    if !reader.read_within(BODY_BYTES).await? {
        let begun = Instant::now();
        large = Some(slot(app, &app.inner.large_bodies, subnet).await?);
        reader.excuse(begun.elapsed());
        reader.read_within(most).await?;
    }
    let bytes = reader.into_bytes();
    if body_sha256(&bytes) != stated {
        return Err(ApiError::new(UNAUTHENTICATED));
    }
    Ok((caller, bytes, large))
}

/// Finds the delegation of an agent's token; returns the caller.
async fn identify_token(
    app: &AppState,
    parts: &Parts,
    header: &HeaderValue,
    subnet: Option<Subnet>,
) -> Result<Caller, ApiError> {
    let unknown = || ApiError::new(TOKEN);
    let sent = header.to_str().ok().and_then(|text| text.split_once(' '));
    let sent = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
    let token = sent.and_then(|(_, token)| AgentToken::parse(token)).ok_or_else(unknown)?;
    let owner: OwnerId = token.account().parse().map_err(|_| unknown())?;
    let peer = connection(parts).map(|activity| activity.peer().ip());
    if peer.is_some_and(|peer| !app.inner.config.addresses.is_unread(peer)) {
        return Err(ApiError::new(CLEAR_TOKEN));
    }
    let (key, now_ms) = (token.key().public_key(), app.now_ms());
    app.inner.config.owners.check_policy(owner, app.registry(), now_ms).await?;
    let delegation = app.registry().find(owner, &key, None, now_ms).await?.ok_or_else(unknown)?;
    app.inner.owner_rates.lock().take(owner, now_ms).map_err(limited)?;
    count_owner(app, owner, subnet, now_ms)?;
    Ok(Caller { owner, key, delegation: Some(delegation) })
}

/// Counts an owner to those of its subnet, if it is new. A subnet with too many new ones pays for each further one: its
/// signature was checked for nothing, and fresh keys cost their maker less than the check.
fn count_owner(app: &AppState, owner: OwnerId, subnet: Option<Subnet>, now_ms: u64) -> Result<(), ApiError> {
    let counted = app.inner.config.owners.count(owner, subnet, now_ms);
    if let (Err(OwnerRefusal::TooManyNew(_)), Some(subnet)) = (&counted, subnet) {
        let mut rates = app.inner.subnet_rates.lock();
        let cost = rates.left(&subnet, now_ms).min(REFUSED_OWNER_COST);
        // As many are left.
        let _ = rates.take_many(subnet, cost, now_ms);
    }
    Ok(counted?)
}

/// The connection of a request.
fn connection(parts: &Parts) -> Option<&Activity> {
    parts.extensions.get::<ConnectInfo<Activity>>().map(|ConnectInfo(activity)| activity)
}

/// The subnet that counts a request, by its connection or by a trusted proxy.
fn subnet_of(app: &AppState, parts: &Parts) -> Option<Subnet> {
    let (config, peer) = (&app.inner.config, connection(parts)?.peer().ip());
    config.addresses.subnet(peer, &parts.headers, &config.limits.own_networks)
}

/// Resets further connections of a client that connects directly, while its subnet has no request left. Returns for how
/// many milliseconds; 0 for a client behind a proxy.
fn reset_next(app: &AppState, parts: &Parts, wait_ms: u32) -> u32 {
    let config = &app.inner.config;
    let direct = connection(parts).filter(|activity| config.addresses.is_client(activity.peer().ip()));
    let wait = Duration::from_millis(wait_ms.into());
    let span = direct.map(|activity| activity.reset_next(wait, &config.limits.own_networks));
    span.map_or(0, |span| u32::try_from(span.as_millis()).unwrap_or(u32::MAX))
}

/// The answer for a body that is too long to read before its signature is verified.
fn unstated(error: ApiError, most: usize) -> ApiError {
    if error.code() != "too_large" || most <= BODY_BYTES {
        return error;
    }
    ApiError::new(TOO_LARGE)
        .saying(format!("a body of more than {BODY_BYTES} bytes needs the header x-body-sha256"))
        .hinting("send the SHA-256 of the body, in hex, in x-body-sha256: the signature is then checked before the body")
}

fn limited(wait: u32) -> ApiError {
    ApiError::new(RATE).after_ms(wait.into())
}

/// Authenticates a head; returns the caller, with the nonce taken.
async fn identify(
    app: &AppState,
    parts: &Parts,
    head: SignedHead<'_>,
    signed_path: &str,
    body_sha256: &str,
    reads: bool,
    subnet: Option<Subnet>,
) -> Result<Caller, ApiError> {
    let now_ms = app.now_ms();
    let verified = head.verify(&parts.method, signed_path, body_sha256)?;
    verified.refuse_replay(app.memory(), now_ms).await?;
    // An owner presents an invitation before it is admitted; the route counts it.
    let invited = parts.uri.path() == owner::INVITATION;
    if !invited {
        app.inner.config.owners.check_policy(verified.account(), app.registry(), now_ms).await?;
    }
    let caller = verified.identify(app.registry(), now_ms).await?;
    app.inner.owner_rates.lock().take(caller.owner, now_ms).map_err(limited)?;
    if !invited {
        count_owner(app, caller.owner, subnet, now_ms)?;
    }
    verified.take_nonce(app.memory(), now_ms, reads).await?;
    Ok(caller)
}
