//! A database with lost data: its known progress, and the acceptance of its loss.

use std::{collections::BTreeSet, sync::Arc};

use super::{OwnerVault, PAGE_BYTES, Result, Vault, blocking, finish_erasure, seal};
use crate::{
    ids::OwnerId,
    keyring::{KeyringError, Mark, Segment},
    storage::{Batch, JobChange, Space, StorageError},
};

/// Lost events that one commit replaces with a filler.
const FILL_AT_ONCE: usize = 10_000;
/// Most lost events between others. A log with more missing events is foreign or forged.
const MAX_LOST: usize = 10_000_000;

/// An owner's progress in this process, for the key file when the owner is closed.
pub struct Marker(Arc<OwnerVault>);

impl Marker {
    /// Writes the marker. An owner that was erased meanwhile has none.
    ///
    /// # Errors
    /// The key folder's.
    pub async fn write(self) -> Result<()> {
        let _alone = self.0.writing.lock().await;
        if !self.0.ring().saved {
            return Ok(());
        }
        match self.0.change_ring(|_| Ok(())).await {
            Err(error) if error.is_conflict() => Ok(()),
            written => written,
        }
    }
}

/// The data that an accepted loss gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Events of the log that are still readable.
    pub events: u64,
    /// Lost events: between the readable ones, and known ones after them.
    pub lost_events: u64,
    /// Other records that were removed because their keys are gone; those derived from the log are built
    /// again.
    pub removed: u64,
}

/// Owners that are refused.
#[derive(Debug, Default)]
pub struct RefusedOwners {
    /// Owners whose database is behind their key file.
    pub behind: Vec<OwnerId>,
    /// Why the key files of other owners do not open.
    pub unreadable: Vec<KeyringError>,
}

impl Vault {
    /// Owners that are refused while all others are served.
    ///
    /// # Errors
    /// [`KeyringError`] when the folder cannot be read; the storage's.
    pub async fn refused(&self) -> Result<RefusedOwners> {
        let folder = self.folder.clone();
        let owners = blocking(move || Ok(folder.owners()?)).await?;
        let mut refused = RefusedOwners::default();
        for pseudonym in owners {
            let folder = self.folder.clone();
            match blocking(move || Ok(folder.load(pseudonym))).await? {
                Ok(Some(ring)) if self.storage.version(pseudonym).await? < ring.mark.version => {
                    refused.behind.push(ring.owner);
                }
                Ok(_) => {}
                Err(error) => refused.unreadable.push(error),
            }
        }
        Ok(refused)
    }

    /// Gives up an owner's lost data, so that the rest can be used. `filler` replaces lost events. The job
    /// becomes due at `now_ms`. No other relayer may work on the owner meanwhile.
    ///
    /// # Errors
    /// [`KeyringError::Missing`] without a key file: nothing can be read then. The storage's.
    pub async fn accept_loss(&self, owner: OwnerId, filler: &[u8], now_ms: u64) -> Result<Loss> {
        self.handle(owner).accept_loss(filler, now_ms).await
    }
}

impl OwnerVault {
    /// The marker to write when the owner is closed, if the owner is ahead of its key file.
    #[must_use]
    pub fn marker(self: &Arc<Self>) -> Option<Marker> {
        let ring = self.ring();
        let (seen, known) = (ring.seen, ring.keys.mark);
        let further = seen.version > known.version || seen.events > known.events;
        (ring.saved && further).then(|| Marker(self.clone()))
    }

    async fn accept_loss(&self, filler: &[u8], now_ms: u64) -> Result<Loss> {
        let _alone = self.writing.lock().await;
        if self.folder.is_erased(self.pseudonym) {
            finish_erasure(&self.storage, &self.folder, self.pseudonym).await?;
        }
        let Some(keys) = self.load().await? else {
            return Err(KeyringError::Missing { path: self.folder.file(self.pseudonym) }.into());
        };
        let reached = keys.mark;
        self.adopt(keys);
        if !self.ring().keys.redactions.is_empty() {
            self.settle().await?;
        }
        let mut loss = Loss::default();
        let (readable, unreadable) = self.sift(Space::Log).await?;
        let end = readable.iter().chain(&unreadable).max().map_or(0, |last| last.saturating_add(1));
        loss.events = readable.len() as u64;
        loss.lost_events = end.max(reached.events) - loss.events;
        if end - loss.events > MAX_LOST as u64 {
            return Err(StorageError::Damaged("the log has numbers that no log has".into()).into());
        }
        let fill: Vec<u64> = (0..end).filter(|number| !readable.contains(number)).collect();
        let mut remove = vec![(Space::Snapshot, 0)];
        for space in [Space::Features, Space::Sessions, Space::Packs] {
            let (_, unreadable) = self.sift(space).await?;
            loss.removed += unreadable.len() as u64;
            remove.extend(unreadable.into_iter().map(|number| (space, number)));
        }
        self.make_keys(fill.iter().map(|number| Segment::of(Space::Log, *number)).collect()).await?;
        let mut version = self.storage.version(self.pseudonym).await?;
        let mut chunks = fill.chunks(FILL_AT_ONCE);
        loop {
            let numbers = chunks.next().unwrap_or_default();
            let ring = self.ring().keys;
            let put = numbers.iter().filter_map(|number| {
                let key = ring.current(Segment::of(Space::Log, *number))?;
                Some(seal::seal(self.owner, key, Space::Log, *number, filler))
            });
            let batch = Batch {
                put: put.collect(),
                remove: std::mem::take(&mut remove),
                job: Some(JobChange::Due(now_ms)),
                ..Batch::default()
            };
            version = self.storage.commit(self.pseudonym, version, batch).await?;
            if numbers.len() < FILL_AT_ONCE {
                break;
            }
        }
        let found = Mark { version, events: end };
        self.change_ring(move |ring| {
            ring.mark = found;
            Ok(())
        })
        .await?;
        Ok(loss)
    }

    /// The numbers of a space's readable records, and of the unreadable ones.
    async fn sift(&self, space: Space) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        let (mut readable, mut unreadable) = (BTreeSet::new(), BTreeSet::new());
        let mut from = Some(0);
        while let Some(start) = from {
            let rows = self.storage.read(self.pseudonym, space, start, PAGE_BYTES).await?;
            from = rows.last().and_then(|(last, _)| last.checked_add(1));
            let ring = self.ring().keys;
            let judged = blocking(move || {
                let opens = |number: u64, bytes: &[u8]| seal::open(&ring, space, number, bytes).is_ok();
                let judged = rows.iter().map(|(number, bytes)| (*number, opens(*number, bytes)));
                Ok(judged.collect::<Vec<_>>())
            })
            .await?;
            for (number, opens) in judged {
                let numbers = if opens { &mut readable } else { &mut unreadable };
                numbers.insert(number);
            }
        }
        Ok((readable, unreadable))
    }
}
