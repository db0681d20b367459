//! The maintenance task of a directory: checks the nodes' presence while the client is in use, and writes the
//! reputation to the disk. No turn waits for it.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use baton_mesh::PeerEvent;
use baton_proto::ids::NodeId;
use tokio::{
    sync::broadcast::error::RecvError,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Directory, NodeEntry, records::PARALLEL_ASKS};
use crate::error::log_failure;

/// Nodes are checked for this long after the last turn or listing; then not until the next.
const IN_USE_MS: u64 = 2 * 60 * 1000;
/// Interval between two rounds.
const TICK: Duration = Duration::from_secs(1);
/// The same while the client is idle: any event then wakes the task.
const IDLE_TICK: Duration = Duration::from_secs(60 * 60);
/// How long to wait for a background check. Together with the time until the check, it stays below the half
/// minute after which a silent node counts as gone.
const CHECK_WAIT: Duration = Duration::from_secs(5);
/// The reputation is written at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Maintains a directory until it is cancelled or dropped.
pub(crate) async fn run(directory: Weak<Directory>, cancel: CancellationToken) {
    let Some(first) = directory.upgrade() else { return };
    let (mut events, wake) = (first.mesh.peer_events(), first.wake.clone());
    drop(first);
    let mut asks = JoinSet::new();
    let mut written = Instant::now();
    while let Some(upgraded) = directory.upgrade() {
        upgraded.start_checks(&mut asks);
        if upgraded.unsaved.load(Ordering::Acquire) && written.elapsed() >= WRITE_EVERY {
            upgraded.save().await;
            written = Instant::now();
        }
        let busy = upgraded.is_in_use() || upgraded.unsaved.load(Ordering::Acquire);
        let tick = if busy { TICK } else { IDLE_TICK };
        // The task alone must not keep the directory alive.
        drop(upgraded);
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            event = events.recv() => match event {
                Ok(event) => if let Some(upgraded) = directory.upgrade() { upgraded.on_event(event) },
                // Missed events show in the table of peers.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
            Some(_) = asks.join_next(), if !asks.is_empty() => {}
            () = wake.notified() => {}
            () = sleep(tick) => {}
        }
    }
    asks.shutdown().await;
    if let Some(upgraded) = directory.upgrade() {
        upgraded.save().await;
    }
}

impl Directory {
    fn is_in_use(&self) -> bool {
        self.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)) < IN_USE_MS
    }

    fn on_event(&self, event: PeerEvent) {
        let now = self.now_ms();
        let (node, connected) = match event {
            PeerEvent::Connected(node) => (node, true),
            PeerEvent::Disconnected(node) | PeerEvent::Expired(node) => (node, false),
            PeerEvent::Discovered(_) | PeerEvent::Identified(_) | PeerEvent::Recorded(_) => return,
        };
        if let Some(known) = self.lock().get_mut(&node) {
            known.presence.set_connected(connected, now);
        }
    }

    /// Checks the nodes with an event, quiet nodes, and those that are gone.
    fn start_checks(self: &Arc<Self>, asks: &mut JoinSet<bool>) {
        while asks.try_join_next().is_some() {}
        if !self.is_in_use() {
            return;
        }
        self.sync_peers();
        let now = self.now_ms();
        let mut known = self.lock();
        // A node that never gave a record is asked when a turn needs a node.
        let of_record = known.iter().filter(|(_, known)| known.record.is_some());
        let rank = |(node, known): (&NodeId, &NodeEntry)| {
            Some((known.presence.check_rank(now)?, known.presence.heard_ms(), *node))
        };
        let mut due: Vec<_> = of_record.filter_map(rank).collect();
        due.sort_unstable();
        due.truncate(PARALLEL_ASKS.saturating_sub(asks.len()));
        for (.., node) in due {
            if let Some(known) = known.get_mut(&node) {
                known.presence.ask();
            }
            let directory = self.clone();
            asks.spawn(async move { directory.answers(node, CHECK_WAIT).await });
        }
    }

    /// Writes the reputation, merged with another process's writes to this home.
    async fn save(self: &Arc<Self>) {
        if !self.unsaved.swap(false, Ordering::AcqRel) {
            return;
        }
        let Some(file) = self.reputation_file.clone() else { return };
        let (directory, now) = (self.clone(), self.now_ms());
        let saved = tokio::task::spawn_blocking(move || {
            let others = file.reread(now);
            let table = {
                let mut reputation = directory.reputation();
                if let Some(others) = others {
                    reputation.merge(others, now);
                }
                reputation.clone()
            };
            file.write(&table, now)
        });
        match saved.await {
            // A turn or two less is remembered; nothing depends on it.
            Ok(written) => log_failure(written, "what was seen of nodes was not written"),
            Err(error) => tracing::warn!(%error, "what was seen of nodes was not written"),
        }
    }
}
