//! Conversations while nodes are killed and restarted, with byzantine nodes. No accepted turn is lost or wrong,
//! and every misbehaviour is detected by name. The test is a short run; `BATON_FULL=1`
//! makes it the whole one, `BATON_SEED` repeats one.

use baton_testnet::{
    byzantine::LIES,
    churn::{ChurnOptions, ChurnReport, churn},
};

fn is_full() -> bool {
    std::env::var_os("BATON_FULL").is_some_and(|full| full == "1")
}

async fn run(mut options: ChurnOptions) -> ChurnReport {
    options.trial.seed = std::env::var("BATON_SEED").ok().and_then(|seed| seed.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let report = Box::pin(churn(&options, folder.path())).await.unwrap();
    eprintln!("churn: BATON_SEED={}\n{}", report.seed, serde_json::to_string(&report).unwrap());
    report
}

/// Checks that hold for every run.
fn check(report: &ChurnReport) {
    assert_eq!(report.violations, Vec::<String>::new());
    assert!(report.turns >= report.clients as u64 * 2, "{} turns", report.turns);
    assert_eq!((report.turns_verified, report.turns_recovered), (report.turns, report.turns));
    assert_eq!(report.receipts_verified, report.turns);
    assert!(report.kills > 0 && report.starts > 0, "{} killed, {} started", report.kills, report.starts);
}

/// Checks that at least this many misbehaviours happened and were detected.
fn check_misbehaviours(report: &ChurnReport, least: usize) {
    let found = report.lies.iter().filter(|row| !row.detected_as.is_empty()).count();
    assert!(found >= least, "only {found} misbehaviours were tried and found out");
}

fn short() -> ChurnOptions {
    let (nodes, hostile, clients) = (11, 6, 4);
    let default = ChurnOptions::default();
    ChurnOptions { nodes, hostile, clients, seconds: 15, every_ms: 1500, words: (30, 60), ..default }
}

#[tokio::test(flavor = "multi_thread")]
async fn churn_with_byzantine_nodes_loses_no_turn_and_no_token() {
    let _guard = crate::whole_machine().await;
    if is_full() {
        let report = run(ChurnOptions { hostile: 0, seconds: 90, ..ChurnOptions::default() }).await;
        check(&report);
        assert!(report.continued > 0, "no answer was taken over with its tokens");
        assert_eq!((report.continued, report.restarts), (report.takeovers, 0), "nothing shown is ever void");
        let report = run(ChurnOptions { seconds: 90, ..ChurnOptions::default() }).await;
        check(&report);
        // One lie is no failure of the turn, and any other can be abandoned for another reason first.
        check_misbehaviours(&report, LIES.len() / 2);
    } else {
        // In a quarter of a minute, the kills may miss every running answer.
        let mut continued = 0;
        for _ in 0..3 {
            let report = run(short()).await;
            check(&report);
            check_misbehaviours(&report, 1);
            continued += report.continued;
            if continued > 0 {
                break;
            }
        }
        assert!(continued > 0, "no answer was taken over with its tokens");
    }
}
