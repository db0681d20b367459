//! Background work: extraction, embedding, Walrus, the backstop, summaries, and upkeep. The owner's log says
//! which work is left; the storage knows only when to check. Every step is durable and may be repeated.

mod consolidate;
mod contents;
mod summary;
mod turns;

use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    api::Result,
    dates::millis,
    ids::OwnerId,
    owner::{Owner, Plan},
    retry::{Retries, Work},
    service::Memory,
    state::Entry,
    storage::JobChange,
};

/// Owners that are processed at once.
const OWNERS_AT_ONCE: usize = 4;
/// Owners that are taken from the storage at once.
const TAKE: usize = 32;
/// Time for which taken work belongs to this relayer; after it, another relayer may take it.
const LEASE: Duration = Duration::from_secs(120);
/// Interval between two queries for due work.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The owner of records that belong to no owner. No account key has this address.
const SYSTEM: OwnerId = OwnerId([0; 32]);
/// Name of the record of the last embedder.
const EMBEDDER_RECORD: &str = "embedder";

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There was no work.
    Idle,
    Done,
    Failed,
}

impl Memory {
    /// Processes due work until shutdown, and closes idle owners. Waits for running steps.
    pub async fn run_jobs(&self, shutdown: CancellationToken) {
        let mut running: JoinSet<()> = JoinSet::new();
        let memory = self.clone();
        running.spawn(async move {
            if let Err(error) = memory.reembed_if_changed().await {
                tracing::warn!(%error, "not all items could be given to the present embedder; the next start tries again");
            }
        });
        loop {
            self.close_idle();
            self.write_closed().await;
            let free = OWNERS_AT_ONCE.saturating_sub(running.len());
            let due = if free == 0 { Vec::new() } else { self.take_due(free).await };
            let more = due.len() == free && free > 0;
            for owner in due {
                let memory = self.clone();
                running.spawn(async move { memory.work_on(owner).await });
            }
            if more {
                continue;
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = running.join_next(), if !running.is_empty() => crate::service::propagate_panic(ended),
                () = self.inner.work.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        while let Some(ended) = running.join_next().await {
            crate::service::propagate_panic(ended);
        }
        self.write_closed().await;
    }

    /// Processes all work that is due now, one owner after the other; returns the number of owners.
    pub async fn run_due(&self) -> usize {
        let due = self.take_due(TAKE).await;
        for owner in &due {
            self.work_on(*owner).await;
        }
        due.len()
    }

    async fn take_due(&self, limit: usize) -> Vec<OwnerId> {
        let now_ms = self.now_ms();
        let vault = &self.inner.parts.vault;
        let due = match vault.storage().take_due(now_ms, now_ms + millis(LEASE), limit).await {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for due work");
                return Vec::new();
            }
        };
        let mut owners = Vec::new();
        for pseudonym in due {
            match vault.resolve(pseudonym).await {
                Ok(Some(owner)) => owners.push(owner),
                // Erased in the meantime.
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot open an owner's keys for due work"),
            }
        }
        owners
    }

    async fn work_on(&self, owner: OwnerId) {
        // The task that works on this owner sees the new work too: its last step checks for more.
        if !self.inner.working.lock().insert(owner) {
            return;
        }
        if let Err(error) = self.steps(owner).await {
            // The lease runs out, and a later round takes the work again.
            tracing::warn!(%error, "work on an owner's memory did not end");
        }
        self.inner.working.lock().remove(&owner);
    }

    /// Runs rounds of steps until only failed work is left, which waits for its next try.
    async fn steps(&self, owner: OwnerId) -> Result<()> {
        loop {
            let mut more = false;
            for work in Work::ALL {
                if self.retries().rests(owner, work, self.now_ms()) {
                    continue;
                }
                let step = self.step(owner, work).await?;
                self.retries().note(owner, work, step == Step::Failed, self.now_ms());
                more |= step == Step::Done;
            }
            // Upkeep reads a whole memory, so it waits until no step adds to it.
            if !more {
                let upkeep = [self.consolidate_if_due(owner).await?, self.pack(owner).await?];
                more = upkeep.contains(&Step::Done);
            }
            if !more {
                return self.end_steps(owner).await;
            }
        }
    }

    /// One step of a kind of work.
    async fn step(&self, owner: OwnerId, work: Work) -> Result<Step> {
        match work {
            Work::Extraction => self.extract_turns(owner).await,
            Work::Embedding => self.embed_items(owner).await,
            Work::Storing => self.store_contents(owner).await,
            Work::Review => {
                let steps = [self.backstop(owner).await?, self.summarise(owner).await?];
                Ok(if steps.contains(&Step::Done) { Step::Done } else { Step::Idle })
            }
        }
    }

    /// Packs the features of full segments, so that the owner opens faster.
    async fn pack(&self, owner: OwnerId) -> Result<Step> {
        let packed = self.hold(owner, async |owner| owner.pack_features().await).await?;
        Ok(if packed { Step::Done } else { Step::Idle })
    }

    /// Stores the time of the owner's next work, and a snapshot if the log has grown enough.
    async fn end_steps(&self, owner: OwnerId) -> Result<()> {
        self.hold(owner, async |owner| {
            owner.note_review();
            Ok(())
        })
        .await?;
        let now_ms = self.now_ms();
        let stores = self.inner.parts.contents.is_some();
        self.write(owner, |open| {
            let retries = self.retries();
            let waiting = Work::ALL.into_iter().filter(|work| open.has_work(*work, stores));
            let due_ms = waiting.map(|work| retries.due_ms(owner, work).unwrap_or(now_ms)).min();
            let job = Some(due_ms.map_or(JobChange::Done, JobChange::Due));
            Ok((Plan { job, ..Plan::default() }, ()))
        })
        .await?;
        self.hold(owner, async |owner| owner.take_snapshot().await).await
    }

    /// Failures of work, of all owners.
    fn retries(&self) -> MutexGuard<'_, Retries> {
        self.inner.retries.lock()
    }
}

impl Owner {
    /// Whether there is work of a kind.
    fn has_work(&self, work: Work, stores: bool) -> bool {
        match work {
            Work::Extraction => !self.state.waiting.is_empty(),
            Work::Embedding => !self.unembedded.is_empty(),
            Work::Storing => stores && self.state.entries.values().any(Entry::waits_for_store),
            Work::Review => {
                self.skipped_turns().is_some()
                    || self.unsummarised().is_some()
                    || self.is_consolidation_due()
                    || self.has_loose_features()
            }
        }
    }
}

#[cfg(test)]
mod tests;
