//! The wire protocol by hand, as an attacker or a replaying network would use it. A request is built once,
//! and its bytes can be sent repeatedly to any node.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use baton_keys::{
    SecretSigningKey,
    exchange::{EphemeralSecret, SUITE, TurnSecret},
    secret::random_bytes,
    session::{RecordIdentity, SessionRoot, session_id},
};
use baton_mesh::{MeshHandle, Multiaddr, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    export::Export,
    ids::{AuthHash, DeviceId, LinkHash, NodeId, PayloadHash, TurnId},
    limits::{MAX_NODE_FRAME_BYTES, PAYLOAD_VERSION, TURN_AUTH_VERSION},
    link::{BlobRef, Link, blob_digest},
    node_record::NodeRecord,
    record::{Message, RecordKind, Role},
    segment::{Segment, blob_salt},
    turn::{
        Grant, GrantedKey, Payload, ReadBlob, ReadRecord, Sampling, SealedPayload, StoragePolicy, TurnAuth,
    },
    wire::{ClientFrame, Committed, NodeFrame, ReplyEvent, TurnRequest},
};
use tokio::time::Instant;

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

/// A turn of a session, for one node.
pub(crate) struct RawOrder<'a> {
    pub(crate) node: &'a NodeRecord,
    /// The session's key.
    pub(crate) signing: SecretSigningKey,
    pub(crate) n_shards: u16,
    pub(crate) seq: u64,
    pub(crate) prev_link: LinkHash,
    pub(crate) prev_blob: Option<BlobRef>,
    pub(crate) turn_id: TurnId,
    pub(crate) grant: Grant,
    pub(crate) text: &'a str,
    /// From when to when the order is valid.
    pub(crate) valid_ms: (u64, u64),
}

/// Builds the turn after an exported session's head. It grants the last segment with all its records, and no older one.
pub(crate) fn build(
    export: &Export,
    root: &SessionRoot,
    node: &NodeRecord,
    text: &str,
    valid_ms: (u64, u64),
) -> anyhow::Result<RawTurn> {
    let last = export.segments.last().context("the session has a segment")?;
    let session_id = root.session_id();
    let key = root.blob_key(last.segment, &blob_salt(&last.blob)?);
    let head = Segment::open(&last.blob, &key, &session_id, last.segment)?;
    let mut links = Vec::with_capacity(head.entries.len());
    for entry in &head.entries {
        links.push(SignedObject::<Link>::verify(entry.link.clone())?);
    }
    let end = links.last().context("a segment has links")?;
    let (seq, prev_link, turn_id) = (end.seq + 1, end.link_hash(), TurnId(random_bytes()));
    let prev_blob = BlobRef {
        blob_id: last.blob_id,
        digest: blob_digest(&last.blob),
        length: u32::try_from(last.blob.len())?,
    };
    let read = |link: &SignedObject<Link>| ReadRecord {
        seq: link.seq,
        key: GrantedKey::of_record(&root.record_key(&link.record_identity())),
    };
    let base = baton_proto::chain::base_after(head);
    let (segment, author) = (base.segment, node.node);
    let record_key =
        root.record_key(&RecordIdentity { session_id, segment, seq, turn_id, attempt: 0, author });
    let grant = Grant {
        segment,
        index: u8::try_from(base.entries.len())?,
        record_key: GrantedKey::of_record(&record_key),
        blob_key: GrantedKey::of_blob(&root.blob_key(segment, &record_key.blob_salt())),
        blobs: vec![ReadBlob {
            segment: last.segment,
            blob: Some(prev_blob),
            author: Some(end.author),
            key: GrantedKey::of_blob(&key),
        }],
        records: links.iter().map(read).collect(),
        head: None,
    };
    let (signing, n_shards, prev_blob) = (root.signing_key(), export.n_shards, Some(prev_blob));
    RawOrder { node, signing, n_shards, seq, prev_link, prev_blob, turn_id, grant, text, valid_ms }.seal()
}

impl RawOrder<'_> {
    /// Seals the order to its node, and signs it.
    pub(crate) fn seal(self) -> anyhow::Result<RawTurn> {
        let (issued_ms, expires_ms) = self.valid_ms;
        let node_key = self.node.current_key(issued_ms)?;
        let sampling = Sampling::default();
        let mut auth = TurnAuth {
            version: TURN_AUTH_VERSION,
            suite: SUITE,
            session_id: session_id(&self.signing.public_key()),
            session_key: self.signing.public_key(),
            device_id: DeviceId(random_bytes()),
            seq: self.seq,
            turn_id: self.turn_id,
            attempt: 0,
            prev_link: self.prev_link,
            prev_blob: self.prev_blob,
            n_shards: self.n_shards,
            branch: None,
            audience: self.node.node,
            audience_key: node_key.id(),
            payload_hash: PayloadHash([0; 32]),
            model: self.node.models.first().context("the node serves a model")?.model,
            sampling: sampling.digest(&self.grant.record_key.record_key()),
            max_output_tokens: 16,
            max_price: 0,
            memory_from: None,
            memory_tokens: 0,
            grant_hash: self.grant.hash(),
            resume: None,
            checks: Vec::new(),
            issued_ms,
            expires_ms,
        };
        let payload = Payload {
            version: PAYLOAD_VERSION,
            grant: self.grant,
            kind: RecordKind::Turn,
            supersedes_from: None,
            system: Vec::new(),
            messages: vec![Message::new(Role::User, self.text)],
            sampling,
            json_schema: None,
            storage: StoragePolicy::default(),
            resume_tokens: Vec::new(),
            checks: Vec::new(),
        };
        let (payload, secret) =
            SealedPayload::seal(&payload, EphemeralSecret::generate(), node_key, &auth.binding())?;
        auth.payload_hash = payload.hash();
        let auth = SignedObject::sign(auth, &self.signing);
        let request = TurnRequest { auth: auth.bytes().clone(), payload, inline: Vec::new(), memory: None };
        Ok(RawTurn { request, secret, auth_hash: auth.auth_hash() })
    }
}

impl RawTurn {
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
