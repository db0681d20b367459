//! One node under more requests than it can serve: forged ones, and signed ones of new sessions and
//! identities.
//!
//! Honest clients are served, refusals have names, and memory stays bounded. On a node without its defence,
//! the same checks fail. The test uses counts only, since latency depends on the machine. `scripts/test.sh
//! --full` runs the whole flood with latencies, in a release build.

use baton_testnet::flood::{FloodOptions, FloodReport, run};

fn options() -> FloodOptions {
    let parts = ["forged", "signed", "forged-many", "signed-many"].map(str::to_owned).to_vec();
    FloodOptions { seconds: 5, rate: 300, clients: 3, subnets: 20, parts, ..FloodOptions::default() }
}

async fn flood(options: &FloodOptions) -> FloodReport {
    let folder = tempfile::tempdir().unwrap();
    let report = Box::pin(run(folder.path(), options)).await.unwrap();
    eprintln!("{}", serde_json::to_string(&report).unwrap());
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_refused_by_name_and_honest_turns_are_served() {
    let _guard = crate::whole_machine().await;
    // Attackers with many identities need three seconds for their first turns, at which the node's memory takes one
    // step. In parts of five seconds that step lay after the first third, where growth counts as a leak.
    let options = FloodOptions { seconds: 10, ..options() };
    let report = flood(&options).await;
    assert_eq!(report.breaches, Vec::<String>::new());
    for (name, part) in &report.parts {
        assert!(part.honest.turns >= options.clients * 2, "{name}: {} honest turns", part.honest.turns);
    }
    // Each kind was refused under its own name, by the node's own count.
    let part = |name: &str| &report.parts[name];
    for name in ["forged", "forged-many"] {
        assert!(part(name).node.refused_as("BadSignature") > 0, "{name}: {:?}", part(name).node);
        assert!(part(name).node.refused_as("RateLimited") > 0, "{name}: {:?}", part(name).node);
    }
    let signed = part("signed");
    assert!(signed.node.connections_refused > signed.attacker.of("identities"), "{:?}", signed.node);
    assert!(part("signed-many").attacker.of("sent") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_defence_the_same_checks_fail() {
    let _guard = crate::whole_machine().await;
    let options = FloodOptions { defence: false, subnets: 0, ..options() };
    // The attacker gets the processor time that other programs leave; with little of it, an overload takes
    // longer.
    let mut missing = Vec::new();
    for seconds in [4, 12, 36] {
        let report = flood(&FloodOptions { seconds, ..options.clone() }).await;
        missing = ["signatures were verified", "identities of one subnet were let in"]
            .into_iter()
            .filter(|breach| !report.breaches.iter().any(|found| found.contains(breach)))
            .collect();
        if missing.is_empty() {
            break;
        }
        eprintln!("not in {seconds} s: {missing:?} {:?}", report.breaches);
    }
    assert!(missing.is_empty(), "{missing:?}");
}
