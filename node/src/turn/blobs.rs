//! Fetches one blob from the first source with the right bytes.
//!
//! The sources in order: the request itself, this node's journal and cache, the store, and other nodes. On
//! wrong bytes the search continues with the next source. It fails only after the last. A silent store does not
//! hold up the other nodes.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use baton_mesh::{MeshHandle, PeerInfo};
use baton_proto::{
    ErrorCode,
    chain::Need,
    codec,
    ids::NodeId,
    limits::MAX_NODE_FRAME_BYTES,
    store::StoreError,
    wire::{ClientFrame, InlineBlob, NodeFrame},
};
use futures::{
    StreamExt as _,
    future::{Either, select},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    core::{
        Core,
        limits::{FETCH_TIMEOUT, MAX_PEERS_ASKED, PEER_FETCH_TIMEOUT, STORE_RETRIES, STORE_SILENCE},
    },
    observer::{BlobContent, BlobSource},
};

/// The search for one blob.
pub(crate) struct Search<'a> {
    core: &'a Core,
    need: Need,
    /// Whether a source had wrong bytes.
    wrong: AtomicBool,
}

impl<'a> Search<'a> {
    pub(crate) fn new(core: &'a Core, need: Need) -> Self {
        Self { core, need, wrong: AtomicBool::new(false) }
    }

    /// The right bytes, from the first source that has them.
    ///
    /// # Errors
    /// [`ErrorCode::BlobHashMismatch`] when sources had only wrong bytes, [`ErrorCode::BlobUnavailable`] when
    /// no source had any.
    pub(crate) async fn run(self, inline: &[InlineBlob]) -> Result<Arc<[u8]>, ErrorCode> {
        if let Some(bytes) = self.near(inline).await {
            return Ok(bytes);
        }
        let far = timeout(FETCH_TIMEOUT, self.far()).await;
        if let Ok(Some(bytes)) = far {
            self.core.cache.put(self.need.proof, bytes.clone());
            return Ok(bytes);
        }
        Err(if self.wrong.load(Ordering::Relaxed) {
            ErrorCode::BlobHashMismatch
        } else {
            ErrorCode::BlobUnavailable
        })
    }

    fn check(&self, source: BlobSource, bytes: &[u8]) -> bool {
        let right = self.need.blob.check(bytes).is_ok();
        self.wrong.fetch_or(!right, Ordering::Relaxed);
        self.core.observer.blob(source, if right { BlobContent::Right } else { BlobContent::Wrong });
        right
    }

    async fn near(&self, inline: &[InlineBlob]) -> Option<Arc<[u8]>> {
        // An inline blob is found by its digest. A blob that matches no need is useless, but not a wrong
        // source.
        if let Some(found) = inline.iter().find(|inline| self.need.blob.check(&inline.0).is_ok()) {
            self.core.observer.blob(BlobSource::Inline, BlobContent::Right);
            let bytes: Arc<[u8]> = found.0.as_slice().into();
            // Many turns to come need the last blob of a segment.
            self.core.cache.put(self.need.proof, bytes.clone());
            return Some(bytes);
        }
        let observer = &self.core.observer;
        observer.blob(BlobSource::Inline, BlobContent::Missing);
        match self.core.journal.blob(self.need.blob.digest).await {
            Ok(Some(bytes)) if self.check(BlobSource::Journal, &bytes) => return Some(bytes.into()),
            Ok(Some(_)) => {}
            Ok(None) => observer.blob(BlobSource::Journal, BlobContent::Missing),
            Err(error) => {
                tracing::error!(%error, "the journal failed");
                observer.blob(BlobSource::Journal, BlobContent::Failed);
            }
        }
        let Some(cached) = self.core.cache.get(&self.need.proof) else {
            observer.blob(BlobSource::Cache, BlobContent::Missing);
            return None;
        };
        self.check(BlobSource::Cache, &cached).then_some(cached)
    }

    /// Store, then peers, then the store again for a while: a fresh blob may be missing for seconds.
    async fn far(&self) -> Option<Arc<[u8]>> {
        let mut again = match self.ask_store_and_peers().await {
            Ok(bytes) => return Some(bytes),
            Err(again) => again,
        };
        for wait in STORE_RETRIES {
            if !again {
                break;
            }
            sleep(wait).await;
            let (found, once_more) = self.ask_store().await;
            if found.is_some() {
                return found;
            }
            again = once_more;
        }
        None
    }

    /// The first right bytes. The error says whether the store may have them later. Peers are asked once the store has
    /// failed, or been silent for a while.
    async fn ask_store_and_peers(&self) -> Result<Arc<[u8]>, bool> {
        let (store, silence) = (pin!(self.ask_store()), pin!(sleep(STORE_SILENCE)));
        let store = match select(store, silence).await {
            Either::Left(((Some(bytes), _), _)) => return Ok(bytes),
            Either::Left(((None, again), _)) => return self.ask_peers().await.ok_or(again),
            Either::Right(((), store)) => store,
        };
        let peers = pin!(self.ask_peers());
        match select(store, peers).await {
            Either::Left(((Some(bytes), _), _)) | Either::Right((Some(bytes), _)) => Ok(bytes),
            Either::Left(((None, again), peers)) => peers.await.ok_or(again),
            Either::Right((None, store)) => {
                let (found, again) = store.await;
                found.ok_or(again)
            }
        }
    }

    /// The store's bytes if they are right, and whether a retry may help.
    async fn ask_store(&self) -> (Option<Arc<[u8]>>, bool) {
        let blob = self.need.blob;
        let got = self.core.store.get_checked(blob.blob_id, blob.length as usize, blob.digest).await;
        let (content, again) = match got {
            Ok(bytes) if self.check(BlobSource::Store, &bytes) => return (Some(bytes.into()), false),
            Ok(_) => return (None, false),
            Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => {
                self.wrong.store(true, Ordering::Relaxed);
                (BlobContent::Wrong, false)
            }
            Err(StoreError::NotFound) => (BlobContent::Missing, true),
            Err(StoreError::Unavailable { .. }) => (BlobContent::Failed, true),
            Err(error) => {
                tracing::warn!(%error, "the store does not give a blob");
                (BlobContent::Failed, false)
            }
        };
        self.core.observer.blob(BlobSource::Store, content);
        (None, again)
    }

    /// Asks the author, if the client named it, and some connected nodes at once. Takes the first right
    /// answer.
    async fn ask_peers(&self) -> Option<Arc<[u8]>> {
        let mesh = self.core.peers.as_ref()?;
        let ours = self.core.node;
        let serves = |peer: &PeerInfo| {
            peer.connected && peer.serves_turns && peer.node != ours && Some(peer.node) != self.need.author
        };
        let others = mesh.peers().into_iter().filter(serves).map(|peer| peer.node);
        let author = self.need.author.filter(|author| *author != ours);
        let peers: Vec<NodeId> = author.into_iter().chain(others).take(MAX_PEERS_ASKED).collect();
        let need = self.need;
        let ask = async |peer| (peer, ask_peer(mesh, peer, need).await);
        let mut answers: FuturesUnordered<_> = peers.into_iter().map(ask).collect();
        while let Some((peer, answer)) = answers.next().await {
            let source = if Some(peer) == author { BlobSource::Author } else { BlobSource::Peer };
            match answer {
                Some(Some(bytes)) if self.check(source, &bytes) => return Some(bytes.into()),
                Some(Some(_)) => {}
                Some(None) => self.core.observer.blob(source, BlobContent::Missing),
                None => self.core.observer.blob(source, BlobContent::Failed),
            }
        }
        None
    }
}

/// Another node's answer: `None` without one, `Some(None)` if the node does not have the blob.
async fn ask_peer(mesh: &MeshHandle, peer: NodeId, need: Need) -> Option<Option<Vec<u8>>> {
    let deadline = Instant::now() + PEER_FETCH_TIMEOUT;
    let mut stream = mesh.open(peer, &[], deadline).await.ok()?;
    let frame = ClientFrame::FetchBlob { digest: need.blob.digest, proof: need.proof };
    stream.send_by(&codec::encode(&frame), deadline).await.ok()?;
    let frame = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await.ok()??;
    match codec::decode(&frame, MAX_NODE_FRAME_BYTES).ok()? {
        NodeFrame::Blob(bytes) => Some(Some(bytes)),
        NodeFrame::Refused { code: ErrorCode::BlobUnavailable, .. } => Some(None),
        _ => None,
    }
}
