//! Opening an owner. It reads the snapshot, the log behind it and the features, and decodes them in parallel.

use baton_proto::codec;
use tokio::task::JoinError;

use super::{
    CommitOutcome, MAX_EVENT_BYTES, Owner, damaged, encode, features::features_of, index::StoredFeatures,
};
use crate::{
    api::{MemoryError, Result},
    events::Event,
    search::TermHasher,
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

/// Runs a computation of milliseconds off the reactor.
pub(super) async fn off_reactor<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

/// The result of a task; passes on its panic.
pub(crate) fn joined<T>(ended: std::result::Result<T, JoinError>) -> Result<T> {
    ended.map_err(|stopped| {
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
        // Two threads: neither needs a result of the other.
        let (folded, found) = tokio::try_join!(read_state(&self.vault), self.index.read(&self.vault, 0))?;
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
        self.unembedded = self.state.entries.keys().copied().collect();
        self.take_features(found);
        // An item whose features were lost gets them from its text.
        for (number, entry) in &self.state.entries {
            if !self.index.contains(*number) {
                self.index.insert(*number, features_of(&entry.item, &self.hasher));
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
        let found = self.index.read(&self.vault, from).await?;
        self.take_features(found);
        Ok(())
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

    /// Takes over read features, of items that exist.
    fn take_features(&mut self, found: StoredFeatures) {
        let there = |number: &u64| self.state.entries.contains_key(number);
        self.loose.extend(found.loose);
        for number in found.current.iter().filter(|number| there(number)) {
            self.unembedded.remove(number);
        }
        self.unembedded.extend(found.stale.iter().copied().filter(there));
        for number in found.current.iter().chain(&found.stale).filter(|number| !there(number)) {
            self.index.remove(*number);
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
        // If another writer was faster, its next snapshot will do.
        if self.make_durable(changes, false).await? == CommitOutcome::Done {
            self.snapshot_at = self.state.next;
        }
        Ok(())
    }
}
