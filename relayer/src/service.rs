//! The relay of one turn. It checks the readable parts, adds memory if the client allows this relayer to, and
//! forwards the request to the named node. It passes the node's frames back unchanged.

mod admission;

use std::{sync::Arc, time::Duration};

use baton_keys::{SecretSigningKey, exchange::EphemeralSecret};
use baton_mesh::{Caller, Incoming, MeshHandle, TurnReceiver, TurnSender, TurnStream};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    ids::{ExchangeKey, NodeId},
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    memory::{MemEnvelope, MemoryItem, RecallHint, RecallScope},
    text::is_same_name,
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame, RelayRecall, TurnRequest},
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use baton_memory::{
    Memory,
    api::{Filters, Place, RecallRequest},
    ids::OwnerId,
    model::{MemoryScope, Text},
};

pub use admission::SealedLimits;
use admission::{Admission, AdmittedTurn};

use crate::{
    delegation::{Scope, registry::Registry},
    injection::{items_of, profile_hits},
    owners::Owners,
};

/// How long a used hint is remembered: longer than its authorisation is valid, with clock differences
/// included.
const HINT_KEPT_MS: u64 = 5 * 60 * 1000;
/// Most items of memory for one turn.
const RECALL_ITEMS: usize = 12;

/// Time limit for opening the substream to the node.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest silence between two frames of a node: as long as its turn may take, for a slow model on a long prompt.
const FRAME_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long a client may accept no frame before its turn is dropped, so that a stalled client frees its slot.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// A relayer: its key, its memory, and its network.
pub struct Relayer {
    key: SecretSigningKey,
    memory: Memory,
    registry: Registry,
    owners: Arc<Owners>,
    mesh: MeshHandle,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    admission: Admission,
}

/// A turn to forward.
#[derive(Debug, PartialEq, Eq)]
struct RelayRequest {
    request: TurnRequest,
    /// It is not forwarded.
    recall: Option<RelayRecall>,
}

/// Why a relay ended early.
enum RelayError {
    /// The client gets this code, and a waiting time in milliseconds (0 for none).
    Refuse(ErrorCode, u32),
    /// The client is gone, or one side's stream failed; no one can be told.
    Gone,
}

impl Relayer {
    /// A relayer that forwards turns, and adds the memory of these owners to those with a hint; `now_ms` is the wall
    /// clock in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(
        key: SecretSigningKey,
        mesh: MeshHandle,
        memory: Memory,
        owners: Arc<Owners>,
        limits: SealedLimits,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Self {
        let registry = Registry::new(memory.clone(), key.public_key());
        let admission = Admission::new(limits, now_ms.clone());
        Self { key, memory, registry, owners, mesh, now_ms, admission }
    }

    /// Serves until shutdown, then lets running turns finish within `grace`.
    pub async fn run(self, mut incoming: Incoming, shutdown: CancellationToken, grace: Duration) {
        let (relayer, turns) = (Arc::new(self), TaskTracker::new());
        let accepting = async {
            while let Some((_, stream)) = incoming.next().await {
                let relayer = relayer.clone();
                // The mesh bounds the streams of all peers and of a subnet.
                turns.spawn(async move { relayer.serve(stream).await });
            }
        };
        shutdown.run_until_cancelled(accepting).await;
        turns.close();
        if tokio::time::timeout(grace, turns.wait()).await.is_err() {
            tracing::warn!("turns still running at the end of the grace period are cut off");
        }
    }

    async fn serve(&self, mut stream: TurnStream) {
        let who = self.admission.defence.caller(&stream);
        let admitted = self.admission.admit(&mut stream, &who, &self.mesh).await;
        let (mut sender, receiver) = stream.split();
        let result = match admitted {
            Ok(turn) => self.relay(turn, &mut sender, receiver).await,
            Err(error) => Err(error),
        };
        self.finish(&who, result, &mut sender).await;
    }

    /// Records the end of a relay, and reports a refusal to the client.
    async fn finish(&self, who: &Caller, result: Result<u64, RelayError>, sender: &mut TurnSender) {
        let client = short(&who.peer);
        match result {
            Ok(frames) => {
                self.admission.defence.served(who);
                tracing::info!(%client, frames, "turn relayed");
            }
            Err(RelayError::Refuse(code, retry_after_ms)) => {
                // A peer that takes the relayer for a node has the wrong address.
                if code != ErrorCode::WrongAudience {
                    self.admission.defence.refused(who, code);
                }
                // At debug: a flood of refused requests must not fill the log.
                tracing::debug!(%client, code = code.name(), "turn refused");
                let refused = NodeFrame::Refused { code, retry_after_ms };
                // The client may be gone already; then the refusal reaches no one.
                let _ = to_client(sender, &codec::encode(&refused)).await;
            }
            Err(RelayError::Gone) => tracing::debug!(%client, "turn dropped"),
        }
        let _ = sender.close().await;
    }

    /// Relays one turn; returns the number of frames passed back.
    async fn relay(
        &self,
        AdmittedTurn { request, auth, share, slot: _slot }: AdmittedTurn,
        client: &mut TurnSender,
        watch: TurnReceiver,
    ) -> Result<u64, RelayError> {
        let RelayRequest { mut request, recall } = request;
        if request.memory.is_some() {
            return Err(refuse(ErrorCode::MemUnauthorized));
        }
        let items = match recall {
            Some(RelayRecall { hint, node_key }) => {
                // Before the recall, which costs the most.
                check_node_key(&node_key, &auth).map_err(refuse)?;
                let items = self.recall(hint, &auth).await.map_err(refuse)?;
                self.add_memory(&mut request, &auth, items, &node_key).map_err(refuse)?
            }
            // Without a hint, no owner is named.
            None => Vec::new(),
        };
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let mut node = self.mesh.open(auth.audience, &[], deadline).await.map_err(|error| {
            tracing::warn!(node = %short(&auth.audience), %error, "cannot reach the node of a turn");
            refuse(ErrorCode::Busy)
        })?;
        send(&mut node, &ClientFrame::Turn(request), deadline).await?;
        drop(share);
        to_client(client, &codec::encode(&NodeFrame::Memory(items))).await?;
        pass_back(&mut node, client, watch).await
    }

    /// Adds an envelope if the client allows memory from this relayer; otherwise the turn passes unchanged.
    fn add_memory(
        &self,
        request: &mut TurnRequest,
        auth: &SignedObject<TurnAuth>,
        items: Vec<MemoryItem>,
        node_key: &ExchangeKey,
    ) -> Result<Vec<MemoryItem>, ErrorCode> {
        if auth.memory_from != Some(self.key.public_key()) {
            return Ok(Vec::new());
        }
        if items.is_empty() {
            return Ok(items);
        }
        let ephemeral = EphemeralSecret::generate();
        let envelope = MemEnvelope::seal(&items, auth, &self.key, node_key, ephemeral, (self.now_ms)())?;
        request.memory = Some(envelope.bytes().clone());
        Ok(items)
    }
}

impl Relayer {
    /// Recalls memory for a hint. Checks the owner and the signer; a failure of memory costs the turn
    /// nothing.
    async fn recall(
        &self,
        hint: SignedBytes,
        auth: &SignedObject<TurnAuth>,
    ) -> Result<Vec<MemoryItem>, ErrorCode> {
        let hint = SignedObject::<RecallHint>::verify(hint)?;
        hint.check_for(auth, &self.key.public_key())?;
        let (memory, owner) = (&self.memory, OwnerId(hint.owner.0));
        let admitted = self.owners.check_policy(owner, &self.registry, (self.now_ms)()).await;
        admitted.map_err(|_| ErrorCode::MemUnauthorized)?;
        let (project, sees_intimate) = self.may_read(owner, &hint).await?;
        self.take_hint(&hint, auth).await?;
        let (session, persona) = (hint.session.clone(), hint.persona.clone());
        // A known session keeps its own project. This turn records nothing, so an unknown session stays
        // unknown and has the hint's place.
        let known = memory.sessions(owner).await;
        let is_known =
            |name: &String| known.as_ref().map_or(true, |all| all.iter().any(|one| one.name == *name));
        let session = session.filter(is_known);
        let place = Place { session: session.clone(), project, persona };
        let scope = scope_of(hint.scope);
        let hits = if hint.hint.trim().is_empty() {
            let views = memory.profile(owner, place).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "no memory for a turn");
                Vec::new()
            });
            let granted = views.into_iter().filter(|view| sees_intimate || !view.intimate).collect();
            profile_hits(granted, scope, auth.memory_tokens)
        } else {
            let request = RecallRequest {
                place,
                scope,
                query: Text(hint.hint.clone()),
                limit: RECALL_ITEMS,
                budget_tokens: Some(auth.memory_tokens),
                filters: Filters {
                    not_session: session,
                    without_intimate: !sees_intimate,
                    ..Filters::default()
                },
                ..RecallRequest::default()
            };
            let recall = memory.recall(owner, request).await;
            if recall.degraded.is_some() {
                tracing::info!(mode = ?recall.mode, "memory did less than a full search");
            }
            recall.hits
        };
        Ok(items_of(hits).1)
    }

    /// Refuses a replayed hint: an attacker with a captured request learns nothing by sending it again. Each
    /// attempt of a client has its own authorisation, and so its own hint.
    async fn take_hint(&self, hint: &RecallHint, auth: &SignedObject<TurnAuth>) -> Result<(), ErrorCode> {
        let name = Sha256::new().chain_update(b"baton recall hint").chain_update(hint.owner.0);
        let name = name.chain_update(auth.auth_hash().0).finalize().into();
        let now_ms = (self.now_ms)();
        match self.memory.take_nonce_to_read(name, now_ms, now_ms.saturating_add(HINT_KEPT_MS)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ErrorCode::MemUnauthorized),
            Err(error) => {
                tracing::warn!(%error, "a hint's first use could not be noted");
                Err(ErrorCode::Busy)
            }
        }
    }

    /// The hint's project, and whether its signer may see intimate items of the owner there.
    async fn may_read(&self, owner: OwnerId, hint: &RecallHint) -> Result<(Option<String>, bool), ErrorCode> {
        if OwnerId::of(&hint.key) == owner {
            return Ok((hint.project.clone(), true));
        }
        let found = self.registry.find(owner, &hint.key, None, (self.now_ms)()).await;
        let access = found.ok().flatten().filter(|access| access.permissions.allow(Scope::Read));
        let access = access.ok_or(ErrorCode::MemUnauthorized)?;
        let sees_intimate = access.permissions.allow(Scope::Intimate);
        match (access.project, &hint.project) {
            (None, named) => Ok((named.clone(), sees_intimate)),
            (Some(bound), Some(named)) if !is_same_name(&bound, named) => Err(ErrorCode::MemUnauthorized),
            (Some(bound), _) => Ok((Some(bound), sees_intimate)),
        }
    }
}

fn scope_of(scope: RecallScope) -> MemoryScope {
    match scope {
        RecallScope::Full => MemoryScope::Full,
        RecallScope::NeutralAndRelationship => MemoryScope::NeutralAndRelationship,
        RecallScope::RelationshipOnly => MemoryScope::RelationshipOnly,
        RecallScope::NeutralOnly => MemoryScope::NeutralOnly,
        RecallScope::InsightsOnly => MemoryScope::InsightsOnly,
        RecallScope::None => MemoryScope::None,
    }
}

fn refuse(code: ErrorCode) -> RelayError {
    RelayError::Refuse(code, 0)
}

/// Sends a frame to the client, within the time limit.
async fn to_client(client: &mut TurnSender, frame: &[u8]) -> Result<(), RelayError> {
    send_within(client, frame, SEND_TIMEOUT).await
}

async fn send_within(client: &mut TurnSender, frame: &[u8], limit: Duration) -> Result<(), RelayError> {
    client.send_by(frame, Instant::now() + limit).await.map_err(|_| RelayError::Gone)
}

/// Whether a node's frame has, or begins with, the type of a relayer's frame.
fn is_memory(frame: &[u8]) -> bool {
    let kind = codec::encode(&NodeFrame::Memory(Vec::new()));
    !frame.is_empty() && frame.first() == kind.first()
}

/// Decodes a request to relay. An invalid request is not forwarded.
fn relay_request(frame: &[u8]) -> Result<RelayRequest, ErrorCode> {
    match codec::decode(frame, MAX_FRAME_BYTES)? {
        ClientFrame::Relay { request, recall } => request.check().map(|()| RelayRequest { request, recall }),
        // A relayer serves no turns itself; such a client has the wrong address.
        _ => Err(ErrorCode::WrongAudience),
    }
}

/// Refuses an exchange key that is unusable, or another one than the order names.
fn check_node_key(key: &ExchangeKey, auth: &TurnAuth) -> Result<(), ErrorCode> {
    let named = key.id() == auth.audience_key && key.check().is_ok();
    if named { Ok(()) } else { Err(ErrorCode::KxExpired) }
}

async fn send(node: &mut TurnStream, frame: &ClientFrame, deadline: Instant) -> Result<(), RelayError> {
    let encoded = codec::encode(frame);
    if encoded.len() > MAX_FRAME_BYTES {
        return Err(refuse(ErrorCode::FrameTooLarge));
    }
    node.send_by(&encoded, deadline).await.map_err(|_| refuse(ErrorCode::Busy))
}

/// Copies the node's frames to the client until the node ends. A client that disconnects also ends the node's
/// stream, so that generation stops.
async fn pass_back(
    node: &mut TurnStream,
    client: &mut TurnSender,
    mut watch: TurnReceiver,
) -> Result<u64, RelayError> {
    let mut frames = 0;
    let mut half_closed = false;
    loop {
        let frame = tokio::select! {
            biased;
            // A client sends only one request. A clean end says just that; a failure means that the client is
            // gone.
            ended = watch.recv(0), if !half_closed => match ended {
                Ok(None) => { half_closed = true; continue }
                Ok(Some(_)) | Err(_) => return Err(RelayError::Gone),
            },
            frame = node.recv_by(MAX_NODE_FRAME_BYTES, Instant::now() + FRAME_TIMEOUT) => frame,
        };
        match frame {
            // Only the relayer reports the added memory, once, before all frames of the node.
            Ok(Some(frame)) if is_memory(&frame) => {
                tracing::warn!(node = %short(&node.remote()), "a node speaks for the relayer: its turn is ended");
                return Err(RelayError::Gone);
            }
            Ok(Some(frame)) => to_client(client, &frame).await?,
            Ok(None) => return Ok(frames),
            Err(_) => return Err(RelayError::Gone),
        }
        frames += 1;
    }
}

/// Eight hex characters of a transport identity, for the operator's log.
fn short(node: &NodeId) -> String {
    node.to_string().chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use baton_proto::{
        limits::MAX_BLOB_BYTES, signed::SignatureBytes, turn::SealedPayload, wire::InlineBlob,
    };

    use super::*;

    #[test]
    fn knows_the_frame_that_only_a_relayer_sends() {
        let item = MemoryItem { text: "t".into(), source: "s".into(), time_ms: 1 };
        assert!(is_memory(&codec::encode(&NodeFrame::Memory(vec![item]))));
        assert!(is_memory(&codec::encode(&NodeFrame::Memory(Vec::new()))));
        let others = [NodeFrame::Accepted { nonce: [1; 32] }, NodeFrame::Chunk(vec![2]), NodeFrame::Done];
        assert!(others.iter().all(|frame| !is_memory(&codec::encode(frame))));
        assert!(!is_memory(&[]));
    }

    #[tokio::test]
    async fn gives_up_a_client_that_takes_no_frame() {
        let (near, _far) = tokio::io::duplex(16);
        let io = tokio_util::compat::TokioAsyncReadCompatExt::compat(near);
        let (mut client, _watch) = TurnStream::from_io(NodeId([1; 32]), "/baton/turn/2", io).split();
        let limit = Duration::from_millis(50);
        assert!(matches!(send_within(&mut client, &[0; 1000], limit).await, Err(RelayError::Gone)));
    }

    #[test]
    fn takes_only_requests_to_relay_within_their_limits() {
        let request = |inline: Vec<InlineBlob>| TurnRequest {
            auth: SignedBytes { body: vec![1], signature: SignatureBytes([2; 64]) },
            payload: SealedPayload(vec![3]),
            inline,
            memory: None,
        };
        let read = |frame: &ClientFrame| relay_request(&codec::encode(frame));
        let good = request(vec![InlineBlob(vec![4]), InlineBlob(vec![5])]);
        let node_key = ExchangeKey::from([6; ExchangeKey::LEN]);
        let hint = SignedBytes { body: vec![9], signature: SignatureBytes([8; 64]) };
        for recall in [None, Some(RelayRecall { hint, node_key })] {
            let relayed = Ok(RelayRequest { request: good.clone(), recall: recall.clone() });
            assert_eq!(read(&ClientFrame::Relay { request: good.clone(), recall }), relayed);
        }
        assert_eq!(read(&ClientFrame::Turn(good)), Err(ErrorCode::WrongAudience));
        assert_eq!(read(&ClientFrame::NodeRecord), Err(ErrorCode::WrongAudience));
        assert_eq!(relay_request(&[0xff; 9]), Err(ErrorCode::NonCanonical));
        let relay = |request| ClientFrame::Relay { request, recall: None };
        let crowded = request(vec![InlineBlob(Vec::new()); 3]);
        assert_eq!(read(&relay(crowded)), Err(ErrorCode::FrameTooLarge));
        let large = request(vec![InlineBlob(vec![0; MAX_BLOB_BYTES + 1])]);
        assert_eq!(read(&relay(large)), Err(ErrorCode::BlobTooLarge));
    }
}
