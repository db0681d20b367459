//! Writing, redacting and erasing, by the rules of the parent module.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{
    ATTEMPTS, Changes, OwnerVault, Result, Ring, Secret, VaultError, blocking, finish_erasure,
    seal::{key_of, row_of, seal_all},
};
use crate::{
    keyring::{Keyring, Mark, Redaction, Segment, SegmentKey},
    storage::{Batch, MAX_BATCH_BYTES, MAX_RECORD_BYTES, Space, StorageError},
};

/// Length of a sealed record beyond its text.
const OVERHEAD: usize = crate::keyring::KEY_ID_LEN + baton_keys::master::DATA_OVERHEAD;

impl OwnerVault {
    /// Makes all changes; they are durable on return. Returns the new version.
    ///
    /// # Errors
    /// A [conflict](VaultError::is_conflict) if another writer wrote since [`Self::version`]; nothing is
    /// changed then. After any other error, the changes may have been made or not: [`Self::refresh`] shows
    /// which.
    pub async fn commit(&self, changes: Changes) -> Result<u64> {
        let expected = self.version();
        check_sizes(&changes.put)?;
        let _alone = self.writing.lock().await;
        let segments: BTreeSet<_> =
            changes.put.iter().map(|(space, number, _)| Segment::of(*space, *number)).collect();
        self.make_keys(segments).await?;
        let (events, is_derived) = (events_of(&changes), is_derived(&changes));
        let batch = self.seal(changes, BTreeMap::new(), Vec::new()).await?;
        let version = self.storage.commit(self.pseudonym, expected, batch).await?;
        // A database without it has lost nothing: a backup from before it is no loss.
        if !is_derived {
            self.saw(Mark { version, events });
        }
        self.set_version(version);
        Ok(version)
    }

    /// As [`Self::commit`]. On return, the former bytes of each replaced or removed record are unreadable for
    /// good, in every copy. Other records under their key were sealed anew, and the old key is destroyed.
    ///
    /// The snapshot may hold deleted data, so it is removed unless the changes include one; all former
    /// snapshots become unreadable.
    ///
    /// # Errors
    /// As [`Self::commit`]. After any other error than a conflict, refresh and repeat: the call is
    /// idempotent.
    pub async fn redact(&self, mut changes: Changes) -> Result<u64> {
        let expected = self.version();
        check_sizes(&changes.put)?;
        let _alone = self.writing.lock().await;
        let expected = self.settle_before(expected).await?;
        if !changes.put.iter().any(|(space, ..)| *space == Space::Snapshot) {
            changes.remove.push((Space::Snapshot, 0));
        }
        let replaced: HashSet<(Space, u64)> = changes
            .put
            .iter()
            .map(|(space, number, _)| (*space, *number))
            .chain(changes.remove.iter().copied())
            .collect();
        let touched: BTreeSet<_> =
            replaced.iter().map(|(space, number)| Segment::of(*space, *number)).collect();
        let filled: BTreeSet<_> =
            changes.put.iter().map(|(space, number, _)| Segment::of(*space, *number)).collect();
        let rest = self.rest_of(&touched, &replaced).await?;
        let mut empty = touched.clone();
        empty.retain(|segment| {
            !filled.contains(segment)
                && !rest.iter().any(|(space, number, _)| Segment::of(*space, *number) == *segment)
        });
        self.make_keys(filled).await?;
        let events = events_of(&changes);
        let redactions = self.change_ring(move |ring| Ok(ring.begin(&touched, &empty))).await?;
        let fresh: BTreeMap<_, _> = redactions.iter().filter_map(|open| open.new.clone()).collect();
        let batch = self.seal(changes, fresh, rest).await?;
        let committed = self.storage.commit(self.pseudonym, expected, batch).await;
        match committed {
            Ok(version) => {
                self.saw(Mark { version, events });
                self.end(redactions.into_iter().map(|open| (open, true)).collect()).await?;
            }
            Err(StorageError::Conflict | StorageError::TooLarge { .. }) => {
                self.end(redactions.into_iter().map(|open| (open, false)).collect()).await?;
            }
            // The commit may have taken place: the next refresh finds out.
            Err(_) => {}
        }
        let version = committed?;
        self.set_version(version);
        Ok(version)
    }

    /// Destroys the owner's keys, then removes all records of the owner. Works without a key file too. If it
    /// fails after the keys are gone, the next start finishes it.
    ///
    /// # Errors
    /// The key folder's and the storage's.
    pub async fn erase(&self) -> Result<()> {
        let _alone = self.writing.lock().await;
        let (folder, pseudonym) = (self.folder.clone(), self.pseudonym);
        blocking(move || Ok(folder.destroy(&folder.lock(pseudonym)?, pseudonym)?)).await?;
        self.set_ring(Ring::new(Keyring::generate(self.owner), false));
        finish_erasure(&self.storage, &self.folder, self.pseudonym).await?;
        self.set_version(0);
        Ok(())
    }

    /// The remaining records of segments, without the replaced ones.
    async fn rest_of(
        &self,
        touched: &BTreeSet<Segment>,
        replaced: &HashSet<(Space, u64)>,
    ) -> Result<Vec<(Space, u64, Secret)>> {
        let mut rest = Vec::new();
        for segment in touched {
            let (mut from, last) = segment.range();
            loop {
                let page = self.read(segment.space, from).await?;
                let Some((end, _)) = page.last() else { break };
                let end = *end;
                let inside = page.into_iter().filter(|(number, _)| *number <= last);
                rest.extend(
                    inside
                        .filter(|(number, _)| !replaced.contains(&(segment.space, *number)))
                        .map(|(number, text)| (segment.space, number, text)),
                );
                if end >= last {
                    break;
                }
                from = end + 1;
            }
        }
        Ok(rest)
    }

    /// Ensures that segments have keys on disk.
    pub(super) async fn make_keys(&self, segments: BTreeSet<Segment>) -> Result<()> {
        let ring = self.ring();
        if ring.saved && segments.iter().all(|segment| ring.keys.current(*segment).is_some()) {
            return Ok(());
        }
        self.change_ring(move |ring| Ok(ring.extend(&segments)?)).await.map(drop)
    }

    /// Changes the owner's key file, starting from its present contents; on disk on return.
    ///
    /// # Errors
    /// A conflict, if another relayer created or destroyed the file since it was read here.
    pub(super) async fn change_ring<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Keyring) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (folder, pseudonym, known) = (self.folder.clone(), self.pseudonym, self.ring());
        let (ring, changed) = blocking(move || {
            let locked = folder.lock(pseudonym)?;
            let file = folder.load_locked(&locked, pseudonym)?;
            let mut ring = match file {
                Some(ring) if known.saved && known.keys.same_secret(&ring) => ring,
                None if !known.saved && !folder.is_erased(pseudonym) => (*known.keys).clone(),
                _ => return Err(StorageError::Conflict.into()),
            };
            ring.mark.raise(known.seen);
            let changed = change(&mut ring)?;
            folder.save(&locked, &ring)?;
            Ok((ring, changed))
        })
        .await?;
        self.adopt(ring);
        Ok(changed)
    }

    /// Seals changes, and the other records to be sealed anew.
    async fn seal(
        &self,
        changes: Changes,
        fresh: BTreeMap<Segment, SegmentKey>,
        rest: Vec<(Space, u64, Secret)>,
    ) -> Result<Batch> {
        let (ring, has_rows) = (self.ring().keys, self.storage.rows().is_some());
        blocking(move || {
            let mut put = seal_all(&ring, &fresh, &changes.put);
            put.extend(seal_all(&ring, &fresh, &rest));
            let featured = changes.put.iter().chain(&rest).filter(|_| has_rows);
            let row =
                |(space, number, text): &(Space, u64, Secret)| row_of(&ring, &fresh, *space, *number, text);
            let rows = featured.filter_map(row).collect();
            let length: usize = put.iter().map(|record| record.bytes.len()).sum();
            if length > MAX_BATCH_BYTES {
                return Err(too_large(length, MAX_BATCH_BYTES));
            }
            let Changes { remove, job, .. } = changes;
            Ok(Batch { put, remove, rows, job })
        })
        .await
    }

    /// Ends redactions, whether they took place or not.
    async fn end(&self, judged: Vec<(Redaction, bool)>) -> Result<()> {
        if judged.is_empty() {
            return Ok(());
        }
        let ended = self
            .change_ring(move |ring| {
                for (redaction, took_place) in &judged {
                    if *took_place { ring.complete(redaction) } else { ring.cancel(redaction) }
                }
                Ok(())
            })
            .await;
        match ended {
            // The owner was erased meanwhile: no key is left.
            Err(error) if error.is_conflict() => Ok(()),
            ended => ended,
        }
    }

    /// Settles unfinished redactions before a new one. Returns the version to build on: one more, if the
    /// caller's was the newest.
    async fn settle_before(&self, expected: u64) -> Result<u64> {
        if self.ring().keys.redactions.is_empty() {
            return Ok(expected);
        }
        if self.storage.version(self.pseudonym).await? != expected {
            return Err(StorageError::Conflict.into());
        }
        let settled = self.settle().await?;
        // Other relayers may have written before the version was raised; their changes would be overlooked.
        if settled == expected + 1 { Ok(settled) } else { Err(StorageError::Conflict.into()) }
    }

    /// Finds out which open redactions took place, and ends them. Returns the version, raised by one.
    pub(super) async fn settle(&self) -> Result<u64> {
        for _ in 0..ATTEMPTS {
            let before = self.storage.version(self.pseudonym).await?;
            let version = match self.storage.commit(self.pseudonym, before, Batch::default()).await {
                Ok(version) => version,
                Err(StorageError::Conflict) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut judged = Vec::new();
            for redaction in &self.ring().keys.redactions {
                let (first, last) = redaction.segment.range();
                let page = self.storage.read(self.pseudonym, redaction.segment.space, first, 1).await?;
                let found = page.first().filter(|(number, _)| *number <= last);
                let names_old = found.is_some_and(|(_, bytes)| key_of(bytes) == Some(redaction.old));
                judged.push((redaction.clone(), !names_old));
            }
            self.end(judged).await?;
            return Ok(version);
        }
        Err(StorageError::Conflict.into())
    }
}

/// The least number of events in the log after these changes.
fn events_of(changes: &Changes) -> u64 {
    let log = changes.put.iter().filter(|(space, ..)| *space == Space::Log);
    log.map(|(_, number, _)| number.saturating_add(1)).max().unwrap_or(0)
}

/// Whether changes hold only jobs and records that are built again from the log.
fn is_derived(changes: &Changes) -> bool {
    let put = changes.put.iter().map(|(space, ..)| space);
    let mut spaces = put.chain(changes.remove.iter().map(|(space, _)| space));
    spaces.all(|space| matches!(space, Space::Features | Space::Snapshot | Space::Packs))
}

fn check_sizes(put: &[(Space, u64, Secret)]) -> Result<()> {
    match put.iter().map(|(.., text)| text.len() + OVERHEAD).find(|length| *length > MAX_RECORD_BYTES) {
        Some(length) => Err(too_large(length, MAX_RECORD_BYTES)),
        None => Ok(()),
    }
}

fn too_large(length: usize, limit: usize) -> VaultError {
    StorageError::TooLarge { length: length as u64, limit: limit as u64 }.into()
}
