//! Background tasks of a running node: refresh keys and record, announce the node, and probe the store.

use std::{sync::Arc, time::Duration};

use baton_mesh::{MeshHandle, Multiaddr};
use futures::future;
use tokio::{
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::view::{STORE_FRESH, ServingNode};
use crate::{identity::Identity, metrics::WatchedStore};

/// Interval for refreshing addresses, keys and record: peers learn a new address within this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of announcements. A peer drops a node after 30 s of silence, so two may be lost.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Interval of probes of an unused store. Several may fail before the store counts as unreachable.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Runs the tasks until `stop`.
pub(super) async fn run(running: Arc<ServingNode>, external: Vec<Multiaddr>, stop: CancellationToken) {
    let both = future::join(keep_record(&running, external), watch_store(&running.store));
    stop.run_until_cancelled(both).await;
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Refreshes the record, at once after a change of reachability, and announces it.
async fn keep_record(running: &ServingNode, external: Vec<Multiaddr>) {
    let (mut refreshes, mut beats) = (ticks(REFRESH_INTERVAL), ticks(HEARTBEAT));
    let mut network = running.mesh.network_changes();
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            _ = refreshes.tick() => {
                refresh(running.identity.clone(), addresses(&external, &running.mesh)).await;
                continue;
            }
            Ok(()) = network.changed() => {
                refresh(running.identity.clone(), addresses(&external, &running.mesh)).await;
            }
        }
        running.mesh.announce(running.identity.renew_record()).await;
    }
}

/// The node's addresses, most certain first: configured ones, those confirmed from outside or through relays,
/// and listen addresses.
pub(super) fn addresses(configured: &[Multiaddr], mesh: &MeshHandle) -> Vec<Multiaddr> {
    let found = mesh.network().external.into_iter().chain(mesh.listen_addrs());
    let mut addresses = configured.to_vec();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Refreshes the record with these addresses. Runs off the reactor, because it may write a file.
pub(super) async fn refresh(identity: Arc<Identity>, addresses: Vec<Multiaddr>) {
    match spawn_blocking(move || identity.refresh(&addresses)).await {
        Ok(Ok(true)) => tracing::debug!("signed a new node record"),
        Ok(Ok(false)) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::error!(%error, "the exchange keys are kept in memory only until they can be written")
        }
    }
}

/// Probes the store. The node is ready at its first answer, so that is logged, and then every change.
async fn watch_store(store: &WatchedStore) {
    let mut ticks = ticks(PROBE_INTERVAL);
    let (mut answered, mut was_ready) = (None, false);
    loop {
        ticks.tick().await;
        if store.answered_ago().is_none_or(|ago| ago >= PROBE_INTERVAL) {
            store.probe().await;
        }
        let answers = store.answered_ago().is_some_and(|ago| ago < STORE_FRESH);
        match (answered, answers) {
            (_, true) if !was_ready => {
                tracing::info!("ready: the store answers; `baton-node share` prints the settings for clients")
            }
            (Some(false), true) => tracing::info!("the store answers again"),
            (None | Some(true), false) => tracing::warn!(
                "the store does not answer: turns are served and kept in the journal until it does"
            ),
            (Some(true), true) | (None, true) | (Some(false), false) => {}
        }
        was_ready |= answers;
        answered = Some(answers);
    }
}
