//! Resolves an attempt whose reply was lost: asks its author, and accepts a turn that the author sealed.
//!
//! The text then comes from the blob, which the client opens with its own root and rebuilds like any other
//! turn.

use std::{sync::Arc, time::Duration};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_mesh::{MeshHandle, OpenError};
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{BlobDigest, FetchProof, NodeId, SessionId},
    limits::MAX_BLOB_BYTES,
    link::{BlobRef, Link, blob_digest},
    note::{TurnNote, TurnNoteKind},
    receipt::{running_hash_start, running_hashes},
    segment::{Segment, blob_salt},
    turn::TurnAuth,
    wire::{ClientFrame, Committed, NodeFrame, StoreState, TurnStatus},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    AttemptSuccess,
    accept::{ArrivedAnswer, AuthorTurn},
};
use crate::{
    core::Core,
    identities::SessionMesh,
    network::{
        exchange::{self, ExchangeError},
        reputation::NodeFailure,
        retry::PartialAnswer,
    },
    session::{open_session::Session, state::State},
};

/// How long a node is asked about a turn. A live node answers from its journal; a node that was killed
/// mid-answer must not delay the next attempt.
pub(crate) const STATUS_WAIT: Duration = Duration::from_secs(3);
/// The same if another node can continue the answer meanwhile.
pub(crate) const SHORT_STATUS_WAIT: Duration = Duration::from_millis(500);

/// Time between two questions about a turn whose author still works on it.
const RUNNING_PAUSE: Duration = Duration::from_secs(1);

/// Why asking had no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    /// Nothing is known; the reason holds no content.
    #[error("{0}")]
    Unknown(String),
    /// The author still works on the turn.
    #[error("the node still works on the turn")]
    Running,
    /// The author's answer failed the client's checks.
    #[error("{0}")]
    Wrong(ErrorCode),
}

/// Asks the author of an attempt. Returns the turn if the author sealed it, if it rebuilds, and if it goes on from
/// the part that arrived; after a restart, the journal has that part. After any error a new attempt may be made.
pub(crate) async fn resolve_attempt(
    core: &Arc<Core>,
    session: &Arc<Session>,
    auth: &SignedObject<TurnAuth>,
    arrived: Option<&PartialAnswer>,
    wait: Duration,
) -> Result<Option<AttemptSuccess>, ResolveError> {
    let node = auth.audience;
    let mesh = mesh_of(core, session.id).await.map_err(|error| ResolveError::Unknown(error.to_string()))?;
    let asked = status(core, &mesh, session, auth, wait).await;
    let (committed, store) = match asked.map_err(ResolveError::Unknown)? {
        TurnStatus::Sealed { committed, store } => (*committed, store),
        TurnStatus::Accepted => return Err(ResolveError::Running),
        TurnStatus::Aborted => return Ok(None),
    };
    let fetch = session.read(|state| fetch_frame(state, &committed)).map_err(ResolveError::Wrong)?;
    let bytes = match ask(core, session.id, node, &fetch).await {
        Ok(NodeFrame::Blob(bytes)) if blob_digest(&bytes) == committed.blob_digest => bytes,
        _ => {
            let stored = fetch_stored(core, &committed, store).await;
            stored.ok_or_else(|| ResolveError::Unknown("the sealed blob was not found".to_owned()))?
        }
    };
    let now_ms = core.now_ms();
    let resolved = session.read(|state| open_and_accept(state, auth, arrived, &committed, &bytes, now_ms));
    resolved.map(Some).map_err(|code| {
        // The signed turn differs from the order. If a memory provider added to it, the provider may be
        // at fault.
        if code != ErrorCode::StatusUnknown && auth.memory_from.is_none() {
            core.directory.failed(node, NodeFailure::Lied, 0);
        }
        ResolveError::Wrong(code)
    })
}

/// As [`resolve_attempt`], for an author that may still work on the turn: waits until it has ended, as long as the
/// author says so.
pub(crate) async fn resolve_running(
    core: &Arc<Core>,
    session: &Arc<Session>,
    auth: &SignedObject<TurnAuth>,
    arrived: Option<&PartialAnswer>,
) -> Result<Option<AttemptSuccess>, ResolveError> {
    let deadline = Instant::now() + core.config.timeouts.reply_to(auth.max_output_tokens);
    loop {
        match Box::pin(resolve_attempt(core, session, auth, arrived, STATUS_WAIT)).await {
            Err(ResolveError::Running) if Instant::now() < deadline => sleep(RUNNING_PAUSE).await,
            ended => return ended,
        }
    }
}

/// The state of an attempt, as its author reports it.
pub(super) async fn status(
    core: &Core,
    mesh: &MeshHandle,
    session: &Session,
    auth: &SignedObject<TurnAuth>,
    wait: Duration,
) -> Result<TurnStatus, String> {
    let note = TurnNote::of(auth, TurnNoteKind::Status, core.now_ms());
    let note = session.read(|state| SignedObject::sign(note, &state.root.signing_key()));
    let frame = ClientFrame::Note(note.bytes().clone());
    let asking = async {
        let addrs = core.directory.addrs_to_dial(auth.audience).await;
        exchange::ask(mesh, auth.audience, &addrs, &frame, wait).await
    };
    match timeout(wait, asking).await {
        Ok(Ok(NodeFrame::Status(status))) => Ok(status),
        Ok(Ok(_)) => Err("the node answered something else".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the node did not answer in time".to_owned()),
    }
}

/// Sends one request about a session to a node, under the session's identity.
pub(crate) async fn ask(
    core: &Arc<Core>,
    session: SessionId,
    node: NodeId,
    frame: &ClientFrame,
) -> Result<NodeFrame, ExchangeError> {
    let mesh = mesh_of(core, session).await?;
    let addrs = core.directory.addrs_to_dial(node).await;
    exchange::ask(&mesh, node, &addrs, frame, core.config.timeouts.open).await
}

async fn mesh_of(core: &Core, session: SessionId) -> Result<SessionMesh, ExchangeError> {
    core.identities.of_turns(session).await.map_err(|error| {
        tracing::warn!(%error, "a session's network did not start");
        ExchangeError::Open(OpenError::Busy)
    })
}

async fn fetch_stored(core: &Arc<Core>, committed: &Committed, store: StoreState) -> Option<Vec<u8>> {
    let StoreState::Stored { blob_id, .. } = store else { return None };
    core.config.store.get_checked(blob_id, MAX_BLOB_BYTES, committed.blob_digest).await.ok()
}

/// The request for the blob of a turn that its author says it sealed.
fn fetch_frame(state: &State, committed: &Committed) -> Result<ClientFrame, ErrorCode> {
    let link = SignedObject::<Link>::verify(committed.link.clone())?;
    Ok(fetch_blob(&state.root, &link.record_identity(), committed.blob_digest))
}

/// The request for a blob by the turn that completed it.
pub(crate) fn fetch_blob(root: &SessionRoot, identity: &RecordIdentity, digest: BlobDigest) -> ClientFrame {
    let key = root.blob_key(identity.segment, &root.record_key(identity).blob_salt());
    ClientFrame::FetchBlob { digest, proof: FetchProof(key.fetch_proof(&digest.0)) }
}

fn open_and_accept(
    state: &State,
    auth: &SignedObject<TurnAuth>,
    arrived: Option<&PartialAnswer>,
    committed: &Committed,
    bytes: &[u8],
    now_ms: u64,
) -> Result<AttemptSuccess, ErrorCode> {
    let pending = state.pending.as_ref().ok_or(ErrorCode::StatusUnknown)?;
    let link = SignedObject::<Link>::verify(committed.link.clone())?;
    let reference = BlobRef {
        blob_id: baton_proto::ids::BlobId([0; 32]),
        digest: committed.blob_digest,
        length: committed.blob_length,
    };
    reference.check(bytes)?;
    let key = state.root.blob_key(link.segment, &blob_salt(bytes)?);
    let segment = Segment::open(bytes, &key, &state.session_id, link.segment)?;
    let last = segment.entries.last().ok_or(ErrorCode::BadSequence)?;
    let identity = link.record_identity();
    let record_key = state.root.record_key(&identity);
    let record = last.record.open(&record_key, &identity)?;
    let answer = record.answer().ok_or(ErrorCode::BlobMismatch)?;
    let known = pending.attempts.iter().find(|attempt| attempt.auth.attempt == auth.attempt);
    let known = known.ok_or(ErrorCode::StatusUnknown)?;
    let start = running_hash_start(&record_key, &auth.auth_hash());
    let hashes = arrived.map(|arrived| running_hashes(start, &arrived.ids));
    let noted = known.note.as_ref().map_or(0, |note| note.token_count);
    let arrived = ArrivedAnswer {
        text: arrived.map_or(known.received.as_str(), |arrived| arrived.text.as_str()),
        tokens: arrived.map_or(noted, |arrived| u32::try_from(arrived.ids.len()).unwrap_or(u32::MAX)),
        hashes: hashes.as_deref(),
        lost: true,
    };
    let (turn, memory, terms) = (&pending.turn, &known.memory, known.terms);
    let sealed = AuthorTurn { turn, auth, committed, answer, memory, terms, arrived };
    let accepted = sealed.accept(state, now_ms)?;
    Ok(AttemptSuccess { accepted, memory: memory.clone(), tokens: Vec::new(), tail: None })
}
