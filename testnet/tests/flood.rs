//! A short flood, with real processes: honest clients are served while the node's defence is on, and are not while it is
//! off. `baton-testnet flood` is the measurement.
#![expect(clippy::unwrap_used, reason = "helpers of a test, where a failure should panic where it happens")]

use baton_testnet::flood::{FloodOptions, FloodReport, run};

/// A slow machine that runs other tests beside may take so many times as long; without the defence turns fail.
const GENEROUS: f64 = 8.0;

async fn flood(defence: bool) -> FloodReport {
    let folder = tempfile::tempdir().unwrap();
    let options = FloodOptions { seconds: 8, rate: 1500, defence, control: false, seed: 7 };
    Box::pin(run(folder.path(), &options)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_clients_are_served_during_a_flood_and_only_with_the_defence() {
    let defended = flood(true).await;
    assert!(defended.holds(GENEROUS), "{defended:#?}");
    let part = &defended.parts["signed"];
    let [before, after, _] = part.rss_mib;
    assert!(after - before < 64.0, "memory grew from {before} to {after} MiB");
    let bare = flood(false).await;
    assert!(!bare.holds(GENEROUS), "the flood does nothing to a node without defence: {bare:#?}");
}
