//! What a running node does beside turns: keeping its keys and record fresh, and looking whether the store answers.

use std::{sync::Arc, time::Duration};

use baton_mesh::Multiaddr;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::view::{Running, STORE_FRESH};
use crate::{identity::Identity, metrics::WatchedStore};

/// How often addresses, keys and record are looked at: an address change is known to others within this.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// How often a store that nobody uses is asked. Several may fail before the store counts as silent.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Starts both; they end with `stop`.
pub(super) fn spawn(
    running: &Arc<Running>,
    external: Vec<Multiaddr>,
    stop: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (node, end) = (running.clone(), stop.clone());
    tasks.spawn(async move {
        end.run_until_cancelled(keep_record(&node, external)).await;
    });
    let (store, end) = (running.store.clone(), stop.clone());
    tasks.spawn(async move {
        end.run_until_cancelled(watch_store(&store)).await;
    });
    tasks
}

async fn keep_record(running: &Running, external: Vec<Multiaddr>) {
    let mut ticks = interval(REFRESH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut addresses = external.clone();
        addresses.extend(running.mesh.listen_addrs());
        refresh(running.identity.clone(), addresses).await;
    }
}

/// Refreshes the record with these addresses, off the reactor since it may write a file.
pub(super) async fn refresh(identity: Arc<Identity>, addresses: Vec<Multiaddr>) {
    match spawn_blocking(move || identity.refresh(&addresses)).await {
        Ok(Ok(true)) => tracing::debug!("signed a new node record"),
        Ok(Ok(false)) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "the exchange keys are kept in memory only until they can be written")
        }
    }
}

async fn watch_store(store: &WatchedStore) {
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Assumed at the start, so that only a silent store is told of.
    let mut answered = true;
    loop {
        ticks.tick().await;
        if store.answered_ago().is_none_or(|ago| ago >= PROBE_INTERVAL) {
            store.probe().await;
        }
        let answers = store.answered_ago().is_some_and(|ago| ago < STORE_FRESH);
        if answered && !answers {
            tracing::warn!(
                "the store does not answer: turns are served and kept in the journal until it does"
            );
        } else if !answered && answers {
            tracing::info!("the store answers again");
        }
        answered = answers;
    }
}
