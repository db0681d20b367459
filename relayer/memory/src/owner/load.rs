//! Opening an owner. It reads the snapshot, the log behind it and the features, and decodes them in parallel.

use std::collections::{BTreeSet, HashSet};

use baton_proto::codec;

use super::{
    MAX_EVENT_BYTES, Owner, VectorKind, damaged, encode,
    features::{FeatureRecord, Pack, decode_single, features_of, pack_of},
};
use crate::{
    api::{MemoryError, Result},
    events::Event,
    search::{Features, Index, TermHasher},
    state::State,
    storage::Space,
    vault::{Changes, OwnerVault, Secret, VaultError},
};

/// Snapshot format. A snapshot of another format is ignored, and the whole log is folded instead.
const SNAPSHOT_VERSION: u32 = 4;
/// Upper bound of the events between two snapshots.
const SNAPSHOT_EVERY: u64 = 4_096;
/// Lower bound of the events between two snapshots.
const SNAPSHOT_EVERY_SMALL: u64 = 512;
/// Part of the log that may follow the snapshot (one eighth), so that a small owner opens fast too.
const SNAPSHOT_SHARE: u64 = 8;
/// Largest snapshot.
const MAX_SNAPSHOT_BYTES: usize = 1 << 30;

/// The state from a log up to its end.
struct FoldedLog {
    state: State,
    /// The number at the snapshot's end.
    snapshot_at: u64,
}

/// The stored features, also of deleted items.
struct StoredFeatures {
    index: Index,
    /// Items with a vector from the current embedder.
    current: HashSet<u64>,
    /// All items with features.
    all: Vec<u64>,
    /// Items with a record of their own.
    loose: BTreeSet<u64>,
    in_database: bool,
    kind: VectorKind,
}

impl StoredFeatures {
    fn take(&mut self, number: u64, mut features: Features, current: bool) {
        if current {
            self.current.insert(number);
        } else {
            self.current.remove(&number);
            features.vector = None;
        }
        if !self.in_database {
            self.index.insert(number, features);
            self.all.push(number);
        }
    }

    fn take_single(&mut self, number: u64, mut record: FeatureRecord) {
        let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
        self.loose.insert(number);
        self.take(number, std::mem::take(&mut record.features), current);
    }

    /// The seal proves that a pack is intact, so the checksums of its vectors are not recomputed.
    fn take_pack(&mut self, pack: &Pack) {
        let current = pack.embedder == self.kind.embedder && pack.dimensions as usize == self.kind.dimensions;
        for packed in &pack.items {
            self.take(packed.number, packed.features(), current);
        }
    }
}

/// Runs a computation of milliseconds off the reactor.
async fn off_reactor<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|stopped| {
        if stopped.is_panic() {
            std::panic::resume_unwind(stopped.into_panic());
        }
        VaultError::Stopped.into()
    })
}

async fn read_snapshot(vault: &OwnerVault) -> Result<Option<State>> {
    let records = vault.read(Space::Snapshot, 0).await?;
    let Some((_, bytes)) = records.into_iter().next() else { return Ok(None) };
    let decoded = off_reactor(move || {
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        let known = u32::from_le_bytes(*version) == SNAPSHOT_VERSION;
        let mut state: State = known.then(|| codec::decode(rest, MAX_SNAPSHOT_BYTES).ok()).flatten()?;
        state.index();
        Some(state)
    });
    let state = decoded.await?;
    if state.is_none() {
        tracing::info!("a snapshot is of another version: the log is folded instead");
    }
    Ok(state)
}

/// Folds the snapshot and the log behind it.
async fn read_state(vault: &OwnerVault) -> Result<FoldedLog> {
    let mut state = read_snapshot(vault).await?.unwrap_or_default();
    let snapshot_at = state.next;
    loop {
        let records = vault.read(Space::Log, state.next).await?;
        if records.is_empty() {
            return Ok(FoldedLog { state, snapshot_at });
        }
        state = off_reactor(move || {
            for (number, bytes) in records {
                in_order(number, &state)?;
                apply(&mut state, number, &decode_event(&bytes)?)?;
            }
            Ok::<_, MemoryError>(state)
        })
        .await??;
    }
}

/// Reads all features; puts them into an index unless the database does the search.
async fn read_all_features(
    vault: &OwnerVault,
    kind: VectorKind,
    in_database: bool,
) -> Result<StoredFeatures> {
    let mut found = StoredFeatures {
        index: Index::new(kind.dimensions),
        current: HashSet::new(),
        all: Vec::new(),
        loose: BTreeSet::new(),
        in_database,
        kind,
    };
    for space in [Space::Packs, Space::Features] {
        let mut from = 0;
        loop {
            let records = vault.read(space, from).await?;
            let Some((last, _)) = records.last() else { break };
            from = last + 1;
            found = off_reactor(move || {
                for (number, bytes) in records {
                    if space == Space::Packs {
                        Pack::decode(&bytes).iter().for_each(|pack| found.take_pack(pack));
                    } else if let Some(record) = decode_single(&bytes) {
                        found.take_single(number, record);
                    }
                }
                found
            })
            .await?;
        }
    }
    Ok(found)
}

/// Checks that numbers have no gaps: a deletion leaves an empty event. This detects a database that lost
/// pages without reporting it.
fn in_order(number: u64, state: &State) -> Result<()> {
    if number == state.next {
        return Ok(());
    }
    let lost = number - state.next;
    tracing::error!(lost, "events are missing from an owner's log");
    Err(MemoryError::Lost(format!(
        "{lost} events are missing from its log before number {number}. Put the latest backup of the database back; or, if \
         there is none, stop the relayer and give them up with `baton-relayer owners accept-loss ACCOUNT --yes`"
    )))
}

fn apply(state: &mut State, number: u64, event: &Event) -> Result<()> {
    state.apply(number, event).map_err(|_| damaged("an item does not unpack"))
}

fn decode_event(bytes: &[u8]) -> Result<Event> {
    codec::decode(bytes, MAX_EVENT_BYTES).map_err(|_| damaged("an event cannot be read"))
}

impl Owner {
    pub(super) async fn load(&mut self) -> Result<()> {
        let features = read_all_features(&self.vault, self.kind.clone(), self.in_database);
        // Two threads: neither needs a result of the other.
        let (folded, found) = tokio::try_join!(read_state(&self.vault), features)?;
        let reached = self.vault.reached().events;
        if folded.state.next < reached {
            let lost = VaultError::Behind {
                owner: self.id,
                found: format!("{} events", folded.state.next),
                reached: format!("{reached} events"),
            };
            return Err(lost.into());
        }
        (self.state, self.snapshot_at) = (folded.state, folded.snapshot_at);
        self.index = found.index;
        self.loose = found.loose;
        for number in found.all {
            if !self.state.entries.contains_key(&number) {
                self.index.remove(number);
            }
        }
        for (number, entry) in &self.state.entries {
            // An item without features (from another writer, or after a crash of an older version) gets them
            // from its text.
            if !self.in_database && !self.index.contains(*number) {
                self.index.insert(*number, features_of(&entry.item, &self.hasher));
            }
            if !found.current.contains(number) {
                self.unembedded.insert(*number);
            }
        }
        Ok(())
    }

    /// Applies the commits of other relayers to the same database.
    pub(crate) async fn catch_up(&mut self) -> Result<()> {
        let from = self.state.next;
        let version = self.vault.version();
        if self.vault.refresh().await? == version {
            return Ok(());
        }
        // A new owner may have got its keys from another relayer.
        self.keys = self.vault.keys();
        self.hasher = TermHasher::new(*self.keys.term_key());
        self.read_more_log().await?;
        // Another relayer may have added the missing vectors.
        let from = self.unembedded.first().copied().unwrap_or(from).min(from);
        self.read_more_features(from).await
    }

    /// Folds events that another writer appended.
    async fn read_more_log(&mut self) -> Result<()> {
        loop {
            let records = self.vault.read(Space::Log, self.state.next).await?;
            if records.is_empty() {
                return Ok(());
            }
            for (number, bytes) in records {
                in_order(number, &self.state)?;
                let event = decode_event(&bytes)?;
                self.fold(number, &event)?;
                if let Event::Rewritten { numbers } = event {
                    self.read_again(&numbers).await?;
                }
            }
        }
    }

    /// Reads events again that another writer replaced after they were folded here.
    async fn read_again(&mut self, numbers: &[u64]) -> Result<()> {
        for number in numbers.iter().copied() {
            if !self.state.entries.contains_key(&number) {
                continue;
            }
            let Some(bytes) = self.vault.get(Space::Log, number).await? else { continue };
            if let Event::Added(stored) = decode_event(&bytes)? {
                self.rewrite(number, &stored)?;
            }
        }
        Ok(())
    }

    async fn read_more_features(&mut self, from: u64) -> Result<()> {
        for space in [Space::Packs, Space::Features] {
            let mut next = if space == Space::Packs { pack_of(from) } else { from };
            loop {
                let records = self.vault.read(space, next).await?;
                let Some((last, _)) = records.last() else { break };
                next = last + 1;
                for (number, bytes) in records {
                    if space == Space::Features {
                        let Some(record) = decode_single(&bytes) else { continue };
                        self.loose.insert(number);
                        let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
                        self.take_features(number, &record.features, current);
                        continue;
                    }
                    let Some(pack) = Pack::decode(&bytes) else { continue };
                    let current = pack.embedder == self.kind.embedder
                        && pack.dimensions as usize == self.kind.dimensions;
                    for packed in pack.items.iter().filter(|packed| packed.number >= from) {
                        self.loose.remove(&packed.number);
                        self.take_features(packed.number, &packed.features(), current);
                    }
                }
            }
        }
        Ok(())
    }

    fn take_features(&mut self, number: u64, features: &Features, current: bool) {
        if !self.state.entries.contains_key(&number) {
            return;
        }
        let mut features = features.clone();
        if current {
            self.unembedded.remove(&number);
        } else {
            features.vector = None;
            self.unembedded.insert(number);
        }
        if !self.in_database {
            self.index.insert(number, features);
        }
    }

    /// Writes a snapshot if the log has grown enough since the last one.
    pub(crate) async fn take_snapshot(&mut self) -> Result<()> {
        let worth = (self.state.next / SNAPSHOT_SHARE).clamp(SNAPSHOT_EVERY_SMALL, SNAPSHOT_EVERY);
        if self.state.next < self.snapshot_at + worth {
            return Ok(());
        }
        self.write_snapshot().await
    }

    /// Writes a snapshot.
    pub(crate) async fn write_snapshot(&mut self) -> Result<()> {
        let state = encode(&self.state);
        let mut bytes = Secret::new(Vec::with_capacity(state.len() + 4));
        bytes.extend_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&state);
        let mut changes = Changes::default();
        changes.put.push((Space::Snapshot, 0, bytes));
        match self.vault.commit(changes).await {
            Ok(_) => self.snapshot_at = self.state.next,
            // Another writer was faster; its next snapshot will do.
            Err(error) if error.is_conflict() => self.catch_up().await?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
