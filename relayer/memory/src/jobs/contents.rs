//! Embedding, and contents on Walrus.

use baton_keys::secret::random_bytes;
use baton_models::embed::EmbedRole;

use super::{EMBEDDER_RECORD, SYSTEM, Step, TAKE};
use crate::{
    api::Result,
    content::{self, Content},
    events::{Event, Pointer, StoredKey},
    ids::{ItemId, OwnerId},
    owner::{Owner, Plan, embedded_text},
    search::QuantisedVector,
    service::Memory,
    storage::JobChange,
};

/// Texts embedded at once.
const EMBED_BATCH: usize = 64;

impl Memory {
    /// Queues all items with another embedder's vectors, if the embedder changed since the last start. Until
    /// they are embedded again, they are found by words.
    ///
    /// # Errors
    /// Failures to read or write an owner; the next start tries again.
    pub async fn reembed_if_changed(&self) -> Result<()> {
        let embedder = self.inner.parts.embedder.id().as_bytes().to_vec();
        let last = self.get_record(SYSTEM, EMBEDDER_RECORD).await?;
        if last.as_ref() == Some(&embedder) {
            return Ok(());
        }
        let mut after = None;
        loop {
            let (owners, last) = self.inner.parts.vault.owners(after, TAKE).await?;
            for owner in owners.into_iter().filter(|owner| *owner != SYSTEM) {
                let now_ms = self.now_ms();
                self.write(owner, |owner| {
                    let job = (!owner.unembedded.is_empty()).then_some(JobChange::Due(now_ms));
                    Ok((Plan { job, ..Plan::default() }, ()))
                })
                .await?;
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
        self.put_record(SYSTEM, EMBEDDER_RECORD, Some(embedder)).await
    }

    pub(super) async fn embed_items(&self, owner: OwnerId) -> Result<Step> {
        let texts = self
            .read(owner, |owner| {
                let waiting = owner.unembedded.iter().take(EMBED_BATCH);
                Ok(waiting
                    .filter_map(|number| {
                        Some((*number, embedded_text(&owner.state.entries.get(number)?.item)))
                    })
                    .collect::<Vec<_>>())
            })
            .await?;
        if texts.is_empty() {
            return Ok(Step::Idle);
        }
        let slices: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
        let vectors = match self.inner.parts.embedder.embed(EmbedRole::Document, &slices).await {
            Ok(vectors) if vectors.len() == texts.len() => vectors,
            Ok(_) | Err(_) => {
                tracing::info!(items = texts.len(), "the embedder failed; it will be asked again");
                return Ok(Step::Failed);
            }
        };
        let vectors: Vec<(u64, &str, QuantisedVector)> = texts
            .iter()
            .zip(&vectors)
            .map(|((number, text), vector)| (*number, text.as_str(), QuantisedVector::from_unit(vector)))
            .collect();
        self.write(owner, |owner| {
            // An item that was edited or deleted meanwhile has another text.
            let same = |number: u64, text: &str| {
                owner.state.entries.get(&number).is_some_and(|entry| embedded_text(&entry.item) == text)
            };
            let vectors = vectors.iter().filter(|(number, text, _)| same(*number, text));
            let vectors = vectors.map(|(number, _, vector)| (*number, vector.clone())).collect();
            Ok((Plan { vectors, ..Plan::default() }, ()))
        })
        .await?;
        Ok(Step::Done)
    }

    pub(super) async fn store_contents(&self, owner: OwnerId) -> Result<Step> {
        let Some(contents) = &self.inner.parts.contents else { return Ok(Step::Idle) };
        let limit = contents.batch_limit().max(1);
        let sealed = self.read(owner, |owner| Ok(owner.unstored_contents(limit))).await?;
        if sealed.is_empty() {
            return Ok(Step::Idle);
        }
        let named: Vec<(String, Vec<u8>)> =
            sealed.iter().map(|(_, _, bytes)| (hex::encode(random_bytes::<16>()), bytes.clone())).collect();
        let ids = match contents.put(&named).await {
            Ok(ids) => ids,
            Err(error) => {
                tracing::info!(%error, items = named.len(), "contents could not be stored on Walrus; they will be again");
                return Ok(Step::Failed);
            }
        };
        let stored: Vec<(ItemId, StoredKey, Pointer)> =
            sealed.iter().zip(ids).map(|((id, key, _), patch)| (*id, key.clone(), patch.into())).collect();
        self.write(owner, |owner| {
            // An item that was edited or deleted meanwhile has another key or none: the blob stays noise.
            let same =
                |id: ItemId, key: &StoredKey| owner.state.entry(id).is_some_and(|entry| entry.key == *key);
            let items = stored.iter().filter(|(id, key, _)| same(*id, key));
            let items: Vec<_> = items.map(|(id, _, pointer)| (*id, pointer.clone())).collect();
            let events = if items.is_empty() { Vec::new() } else { vec![Event::Stored { items }] };
            Ok((Plan::of(events).quiet(), ()))
        })
        .await?;
        Ok(Step::Done)
    }

    /// Stores all contents that wait for Walrus.
    pub(crate) async fn store_now(&self, owner: OwnerId) -> Result<()> {
        while self.store_contents(owner).await? == Step::Done {}
        Ok(())
    }
}

impl Owner {
    /// Sealed contents that wait for storing, at most `limit`.
    fn unstored_contents(&self, limit: usize) -> Vec<(ItemId, StoredKey, Vec<u8>)> {
        let waiting = self.state.entries.values().filter(|entry| entry.waits_for_store());
        waiting
            .take(limit)
            .map(|entry| {
                let item = &entry.item;
                let content = Content {
                    kind: item.kind,
                    layer: item.layer,
                    author: item.provenance.author,
                    time_ms: item.provenance.time_ms,
                    text: item.text.clone(),
                };
                (item.id, entry.key.clone(), content::seal(self.id, item.id, &entry.key, &content))
            })
            .collect()
    }
}
