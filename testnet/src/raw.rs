//! The wire protocol by hand, as an attacker or a replaying network would use it. A request is built once,
//! and its bytes can be sent repeatedly to any node.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use baton_keys::{
    exchange::{EphemeralSecret, SUITE, TurnSecret},
    secret::random_bytes,
    session::{RecordIdentity, SessionRoot},
};
use baton_mesh::{MeshHandle, Multiaddr, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::{AuthHash, DeviceId, NodeId, PayloadHash, TurnId},
    limits::{MAX_NODE_FRAME_BYTES, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::Genesis,
    node_record::NodeRecord,
    record::{Message, RecordKind, Role},
    turn::{Grant, GrantedKey, Payload, Sampling, SealedPayload, StoragePolicy, TurnAuth},
    wire::{ClientFrame, Committed, NodeFrame, ReplyEvent, TurnRequest},
};
use tokio::time::Instant;

use crate::network::SHARDS;

/// Time limit of one exchange.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A request whose bytes can be sent again.
pub(crate) struct RawTurn {
    pub(crate) request: TurnRequest,
    secret: TurnSecret,
    auth_hash: AuthHash,
}

/// The node's reply.
#[derive(Debug, Default)]
pub(crate) struct RawReply {
    pub(crate) refused: Option<ErrorCode>,
    pub(crate) committed: Option<Committed>,
    /// Chunks with tokens: zero if the node generated nothing for this connection.
    pub(crate) token_chunks: usize,
}

/// Requests a node's record, and verifies it.
pub(crate) async fn node_record(
    mesh: &MeshHandle,
    node: NodeId,
    addresses: &[Multiaddr],
) -> anyhow::Result<SignedObject<NodeRecord>> {
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = mesh.open(node, addresses, deadline).await?;
    stream.send_by(&codec::encode(&ClientFrame::NodeRecord), deadline).await?;
    match next_frame(&mut stream, deadline).await? {
        Some(NodeFrame::NodeRecord(bytes)) => Ok(SignedObject::<NodeRecord>::verify(bytes)?),
        other => bail!("asked for a node record and got {other:?}"),
    }
}

impl RawTurn {
    /// The first turn of a session, sealed to a node and valid for a time.
    pub(crate) fn first(
        root: &SessionRoot,
        node: &NodeRecord,
        text: &str,
        (issued_ms, expires_ms): (u64, u64),
    ) -> anyhow::Result<Self> {
        let (signing, session_id, turn_id) = (root.signing_key(), root.session_id(), TurnId(random_bytes()));
        let session_key = signing.public_key();
        let genesis = Genesis { session_key, n_shards: SHARDS, branch: None };
        let author = node.node;
        let identity = RecordIdentity { session_id, segment: 0, seq: 0, turn_id, attempt: 0, author };
        let record_key = root.record_key(&identity);
        let grant = Grant {
            segment: 0,
            index: 0,
            record_key: GrantedKey::of_record(&record_key),
            blob_key: GrantedKey::of_blob(&root.blob_key(0, &record_key.blob_salt())),
            blobs: Vec::new(),
            records: Vec::new(),
            head: None,
        };
        let (node_key, sampling) = (node.current_key(issued_ms)?, Sampling::default());
        let mut auth = TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id,
            session_key,
            device_id: DeviceId(random_bytes()),
            seq: 0,
            turn_id,
            attempt: 0,
            prev_link: genesis.link_hash(),
            prev_blob: None,
            n_shards: SHARDS,
            branch: None,
            audience: node.node,
            audience_key: node_key.id(),
            payload_hash: PayloadHash([0; 32]),
            model: node.models.first().context("the node serves a model")?.model,
            sampling: sampling.digest(&record_key),
            max_output_tokens: 16,
            max_price: 0,
            memory_from: None,
            memory_tokens: 0,
            grant_hash: grant.hash(),
            resume: None,
            checks: Vec::new(),
            issued_ms,
            expires_ms,
        };
        let payload = Payload {
            version: PAYLOAD_VERSION,
            grant,
            kind: RecordKind::Turn,
            supersedes_from: None,
            system: Vec::new(),
            messages: vec![Message::new(Role::User, text)],
            sampling,
            json_schema: None,
            storage: StoragePolicy::default(),
            resume_tokens: Vec::new(),
            checks: Vec::new(),
        };
        let (payload, secret) =
            SealedPayload::seal(&payload, EphemeralSecret::generate(), node_key, &auth.binding())?;
        auth.payload_hash = payload.hash();
        let auth = SignedObject::sign(auth, &signing);
        let request = TurnRequest { auth: auth.bytes().clone(), payload, inline: Vec::new(), memory: None };
        Ok(Self { request, secret, auth_hash: auth.auth_hash() })
    }

    /// Sends the request's bytes to a node and reads the reply to its end.
    pub(crate) async fn send(
        &self,
        mesh: &MeshHandle,
        node: NodeId,
        addresses: &[Multiaddr],
    ) -> anyhow::Result<RawReply> {
        let deadline = Instant::now() + TIMEOUT;
        let mut stream = mesh.open(node, addresses, deadline).await?;
        stream.send_by(&codec::encode(&ClientFrame::Turn(self.request.clone())), deadline).await?;
        let mut reply = RawReply::default();
        let mut opener = None;
        while let Some(frame) = next_frame(&mut stream, deadline).await? {
            match frame {
                NodeFrame::Refused { code, .. } => reply.refused = Some(code),
                NodeFrame::Accepted { nonce } => {
                    opener = Some(self.secret.reply_opener(&nonce, &self.auth_hash.0));
                }
                NodeFrame::Chunk(chunk) => {
                    let opener = opener.as_mut().context("chunks follow the node's nonce")?;
                    let (event, _) = opener.open(&chunk).context("a chunk does not open")?;
                    match ReplyEvent::from_chunk(&event)? {
                        ReplyEvent::Tokens { .. } => reply.token_chunks += 1,
                        ReplyEvent::Committed(committed) => reply.committed = Some(*committed),
                        ReplyEvent::Failed { code, .. } => reply.refused = Some(code),
                        _ => {}
                    }
                }
                other => bail!("unexpected frame {other:?}"),
            }
        }
        ensure!(reply.refused.is_some() || reply.committed.is_some(), "the node ended without an answer");
        Ok(reply)
    }
}

async fn next_frame(stream: &mut TurnStream, deadline: Instant) -> anyhow::Result<Option<NodeFrame>> {
    match stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await? {
        Some(bytes) => Ok(Some(codec::decode(&bytes, MAX_NODE_FRAME_BYTES)?)),
        None => Ok(None),
    }
}
