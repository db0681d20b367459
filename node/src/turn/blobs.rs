//! Getting the bytes of one blob, from whatever source has the right ones.
//!
//! The sources in order: the request itself, this node's journal and cache, the store, and other nodes. Bytes that
//! are not those signed for mean the next source; nothing fails before all have.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use baton_mesh::{MeshHandle, PeerInfo};
use baton_proto::{
    ErrorCode, codec,
    ids::{BlobDigest, NodeId},
    limits::MAX_NODE_FRAME_BYTES,
    link::BlobRef,
    store::StoreError,
    wire::{ClientFrame, InlineBlob, NodeFrame},
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};

use crate::service::{
    BlobSource, Core,
    limits::{FETCH_TIMEOUT, MAX_PEERS_ASKED, PEER_FETCH_TIMEOUT, STORE_RETRIES},
    lock,
};

/// Blobs lately fetched, least recently used out first, bounded by bytes.
#[derive(Debug)]
pub(crate) struct BlobCache {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: usize,
    clock: u64,
    blobs: HashMap<BlobDigest, (u64, Arc<[u8]>)>,
    by_use: BTreeMap<u64, BlobDigest>,
}

impl BlobCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, kept: Mutex::default() }
    }

    pub(crate) fn get(&self, digest: &BlobDigest) -> Option<Arc<[u8]>> {
        let mut kept = lock(&self.kept);
        kept.clock += 1;
        let now = kept.clock;
        let (used, bytes) = kept.blobs.get_mut(digest)?;
        let (before, bytes) = (std::mem::replace(used, now), bytes.clone());
        kept.by_use.remove(&before);
        kept.by_use.insert(now, *digest);
        Some(bytes)
    }

    pub(crate) fn put(&self, digest: BlobDigest, bytes: Arc<[u8]>) {
        let mut kept = lock(&self.kept);
        if bytes.len() > self.limit || kept.blobs.contains_key(&digest) {
            return;
        }
        kept.clock += 1;
        let now = kept.clock;
        kept.bytes += bytes.len();
        kept.blobs.insert(digest, (now, bytes));
        kept.by_use.insert(now, digest);
        while kept.bytes > self.limit {
            let Some((_, oldest)) = kept.by_use.pop_first() else { break };
            if let Some((_, bytes)) = kept.blobs.remove(&oldest) {
                kept.bytes -= bytes.len();
            }
        }
    }
}

/// Looks for one blob.
pub(crate) struct Search<'a> {
    core: &'a Core,
    blob: BlobRef,
    wrong: bool,
}

impl<'a> Search<'a> {
    pub(crate) fn new(core: &'a Core, blob: BlobRef) -> Self {
        Self { core, blob, wrong: false }
    }

    /// The right bytes, from the first source that has them.
    ///
    /// # Errors
    /// [`ErrorCode::BlobHashMismatch`] when sources had other bytes and none the right ones,
    /// [`ErrorCode::BlobUnavailable`] when none had any.
    pub(crate) async fn run(mut self, inline: &[InlineBlob]) -> Result<Arc<[u8]>, ErrorCode> {
        if let Some(bytes) = self.near(inline).await {
            return Ok(bytes);
        }
        let far = timeout(FETCH_TIMEOUT, self.far()).await;
        if let Ok(Some(bytes)) = far {
            self.core.cache.put(self.blob.digest, bytes.clone());
            return Ok(bytes);
        }
        Err(if self.wrong { ErrorCode::BlobHashMismatch } else { ErrorCode::BlobUnavailable })
    }

    fn check(&mut self, source: BlobSource, bytes: &[u8]) -> bool {
        let right = self.blob.check(bytes).is_ok();
        if right {
            self.core.observer.blob_used(source);
        } else {
            self.wrong = true;
            self.core.observer.blob_wrong(source);
        }
        right
    }

    async fn near(&mut self, inline: &[InlineBlob]) -> Option<Arc<[u8]>> {
        // An inlined blob is found by its digest; one that matches no need is no wrong source, only useless.
        if let Some(found) = inline.iter().find(|inline| self.blob.check(&inline.0).is_ok()) {
            self.core.observer.blob_used(BlobSource::Inline);
            return Some(found.0.as_slice().into());
        }
        let journaled = self.core.journal.blob(self.blob.digest).await;
        let journaled = journaled.inspect_err(|error| tracing::error!(%error, "the journal failed"));
        if let Ok(Some(bytes)) = journaled
            && self.check(BlobSource::Journal, &bytes)
        {
            return Some(bytes.into());
        }
        let cached = self.core.cache.get(&self.blob.digest)?;
        self.check(BlobSource::Cache, &cached).then_some(cached)
    }

    /// Store, then peers, then the store again for a while: a blob just written may be missing for seconds.
    async fn far(&mut self) -> Option<Arc<[u8]>> {
        let (found, mut again) = self.ask_store().await;
        if found.is_some() {
            return found;
        }
        if let Some(bytes) = self.ask_peers().await {
            return Some(bytes);
        }
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

    /// The store's bytes if they are right, and whether asking again may help.
    async fn ask_store(&mut self) -> (Option<Arc<[u8]>>, bool) {
        match self.core.store.get(self.blob.blob_id, self.blob.length as usize).await {
            Ok(bytes) if self.check(BlobSource::Store, &bytes) => (Some(bytes.into()), false),
            Ok(_) => (None, false),
            Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => {
                self.wrong = true;
                self.core.observer.blob_wrong(BlobSource::Store);
                (None, false)
            }
            Err(StoreError::NotFound | StoreError::Unavailable { .. }) => (None, true),
            Err(error) => {
                tracing::warn!(%error, "the store does not give a blob");
                (None, false)
            }
        }
    }

    /// Asks some connected nodes at once, and takes the first right answer. Who wrote the blob cannot be known:
    /// its name is inside.
    async fn ask_peers(&mut self) -> Option<Arc<[u8]>> {
        let mesh = self.core.peers.as_ref()?;
        let ours = self.core.node;
        let serves = |peer: &PeerInfo| peer.connected && peer.serves_turns && peer.node != ours;
        let peers: Vec<NodeId> =
            mesh.peers().into_iter().filter(serves).take(MAX_PEERS_ASKED).map(|peer| peer.node).collect();
        let blob = self.blob;
        let mut answers: FuturesUnordered<_> =
            peers.into_iter().map(|peer| ask_peer(mesh, peer, blob)).collect();
        while let Some(answer) = answers.next().await {
            if let Some(bytes) = answer
                && self.check(BlobSource::Peer, &bytes)
            {
                return Some(bytes.into());
            }
        }
        None
    }
}

async fn ask_peer(mesh: &MeshHandle, peer: NodeId, blob: BlobRef) -> Option<Vec<u8>> {
    let deadline = Instant::now() + PEER_FETCH_TIMEOUT;
    let mut stream = mesh.open(peer, &[], deadline).await.ok()?;
    stream.send_by(&codec::encode(&ClientFrame::FetchBlob(blob.digest)), deadline).await.ok()?;
    let frame = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await.ok()??;
    match codec::decode(&frame, MAX_NODE_FRAME_BYTES).ok()? {
        NodeFrame::Blob(bytes) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_what_was_used_last() {
        let cache = BlobCache::new(30);
        let digest = |fill: u8| BlobDigest([fill; 32]);
        for fill in 1..=3u8 {
            cache.put(digest(fill), vec![fill; 10].into());
        }
        assert!(cache.get(&digest(1)).is_some());
        cache.put(digest(4), vec![4; 10].into());
        assert!(cache.get(&digest(2)).is_none(), "the one longest unused went");
        assert!([1, 3, 4].iter().all(|fill| cache.get(&digest(*fill)).is_some()));
        cache.put(digest(5), vec![5; 31].into());
        assert!(cache.get(&digest(5)).is_none(), "larger than the cache");
        assert_eq!(lock(&cache.kept).bytes, 30);
    }
}
