//! Decoys at scripted nodes: their budget, the agreement of honest nodes, and liars with their proofs.

use std::{collections::BTreeSet, path::Path, time::Duration};

use baton_client::{
    Client, DecoyPolicy, DecoyReport, DecoyTotals, NodeExplanation, ResumeOptions, TurnInput,
    choose::{Behind, Verdict},
    read_proof,
};
use baton_proto::{
    ErrorCode,
    ids::{NodeId, SessionId},
    turn::Sampling,
};

use baton_testkit::{
    GRACE, World, events_of,
    fake::{Act, FakeNode},
    session,
};

/// Turns of a liar in a test: more than any decoy has.
const MANY: usize = 400;

/// No decoy by itself: the test asks for each.
fn asked_for() -> DecoyPolicy {
    let hour = Duration::from_secs(3600);
    DecoyPolicy { min_delay: hour, max_delay: hour, max_pause: Duration::ZERO, ..DecoyPolicy::default() }
}

async fn client(world: &World, home: &Path, decoys: DecoyPolicy) -> Client {
    let mut config = world.config(home);
    config.decoys = decoys;
    let client = Client::open(config).await.unwrap();
    let all = async { while client.nodes().await.len() < world.nodes.len() {} };
    tokio::time::timeout(GRACE, all).await.unwrap();
    client
}

/// Two turns of the owner at one node, in one session.
async fn two_turns(client: &Client, node: &FakeNode) -> SessionId {
    let id = session(client).await;
    for text in ["my secret plan", "and more of it"] {
        let sampling = Sampling { temperature: 0.5, seed: 3, ..Sampling::default() };
        let input = TurnInput { node: Some(node.id()), sampling, ..TurnInput::user(text) };
        events_of(client, id, input).await.0.unwrap();
    }
    id
}

async fn check(client: &Client) -> DecoyReport {
    client.check_nodes().await.unwrap().unwrap()
}

async fn explained(client: &Client, node: NodeId) -> NodeExplanation {
    let rows = client.explain(None, &ResumeOptions::default()).await.unwrap();
    rows.into_iter().find(|row| row.node == node).unwrap()
}

fn is_avoided(row: &NodeExplanation) -> bool {
    matches!(&row.verdict, Verdict::Ranked(ranked) if matches!(ranked.behind, Some(Behind::Lied { .. })))
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_nodes_agree_and_see_only_ordinary_turns() {
    let world = World::new(3).await;
    let client = client(&world, world.home.path(), asked_for()).await;
    assert_eq!(
        client.check_nodes().await.unwrap(),
        None,
        "before the first turn there is nothing to imitate"
    );
    let own = two_turns(&client, &world.nodes[0]).await;
    let mut asked = BTreeSet::new();
    for _ in 0..6 {
        let report = check(&client).await;
        assert_eq!((report.nodes.len(), report.liars.len(), report.undecided), (2, 0, None), "{report:?}");
        assert!(report.turns >= 2 && report.proofs.is_empty(), "{report:?}");
        asked.extend(report.nodes);
    }
    assert!(asked.contains(&world.nodes[0].id()) && asked.len() == 3, "all nodes are checked in time");
    let totals = client.decoys();
    assert_eq!((totals.sessions, totals.contradictions, totals.undecided), (12, 0, 0));
    // Twelve tokens a turn, and no price.
    assert_eq!((totals.real_tokens, totals.decoy_tokens, totals.price), (24, 12 * totals.turns, 0));
    let sessions = client.session_ids().await.unwrap();
    assert_eq!(sessions, [own], "decoys leave no session behind");
    for node in &world.nodes {
        node.seen(|seen| {
            for auth in seen.turns.iter().filter(|auth| auth.session_id != own) {
                let real = (auth.attempt, auth.memory_from, auth.resume.is_none(), auth.branch.is_none());
                assert_eq!(real, (0, None, true, true));
                assert_eq!(auth.max_output_tokens, 256, "as in the owner's turns");
            }
            // The storage is the owner's, too.
            let storage: BTreeSet<_> = seen.asked.iter().map(|(_, storage)| format!("{storage:?}")).collect();
            assert!(storage.len() <= 1, "{storage:?}");
        });
    }
    client.shutdown(GRACE).await;
    let again = Client::open(world.config(world.home.path())).await.unwrap();
    assert_eq!(again.decoys(), totals, "the ledger is in the home");
    again.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_liar_is_found_avoided_and_proved_to_others() {
    let world = World::new(3).await;
    let client = client(&world, world.home.path(), asked_for()).await;
    two_turns(&client, &world.nodes[0]).await;
    let liar = &world.nodes[1];
    liar.script([Act::Say("another answer"); MANY]);
    let mut reports = Vec::new();
    let report = loop {
        let report = check(&client).await;
        if !report.liars.is_empty() {
            break report;
        }
        assert_eq!(report.undecided, None);
        reports.push(report);
        assert!(reports.len() < 40, "never found: {reports:?}");
    };
    assert_eq!((report.liars.as_slice(), report.nodes.len()), ([liar.id()].as_slice(), 3), "a third decided");
    let row = explained(&client, liar.id()).await;
    assert!(is_avoided(&row), "{row:?}");
    assert_eq!(row.last_fault, Some("contradicted"));
    assert_eq!(client.decoys().contradictions, 1);
    for node in [&world.nodes[0], &world.nodes[2]] {
        assert!(!is_avoided(&explained(&client, node.id()).await));
    }
    let proofs = client.proofs().await.unwrap();
    assert_eq!(proofs, report.proofs);
    let proved = read_proof(&proofs[0]).unwrap().check().unwrap();
    assert!(proved.is_decided());
    assert_eq!((proved.accused, proved.witnesses.len()), (liar.id(), 2));
    // A liar is checked no more, and takes no turn while others are there.
    for _ in 0..4 {
        assert!(!check(&client).await.nodes.contains(&liar.id()));
    }
    client.shutdown(GRACE).await;
    let again = client_again(&world).await;
    assert!(is_avoided(&explained(&again, liar.id()).await), "also after a restart");
    again.shutdown(GRACE).await;
}

async fn client_again(world: &World) -> Client {
    client(world, world.home.path(), asked_for()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_alone_leave_a_contradiction_open() {
    let world = World::new(2).await;
    let client = client(&world, world.home.path(), asked_for()).await;
    two_turns(&client, &world.nodes[0]).await;
    world.nodes[1].script([Act::Say("another answer"); MANY]);
    let report = check(&client).await;
    assert!(report.undecided.is_some() && report.liars.is_empty(), "{report:?}");
    for node in &world.nodes {
        assert!(!is_avoided(&explained(&client, node.id()).await), "either may be honest");
    }
    let proved = read_proof(&report.proofs[0]).unwrap().check().unwrap();
    assert_eq!((proved.is_decided(), proved.witnesses.len()), (false, 1));
    assert_eq!((client.decoys().contradictions, client.decoys().undecided), (0, 1));
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_fails_is_not_accused_and_another_takes_its_place() {
    let world = World::new(4).await;
    let client = client(&world, world.home.path(), asked_for()).await;
    two_turns(&client, &world.nodes[0]).await;
    world.nodes[1].script([Act::Refuse(ErrorCode::Internal); MANY]);
    world.nodes[2].script([Act::Truncate; MANY]);
    for _ in 0..6 {
        let report = check(&client).await;
        let expected = BTreeSet::from([world.nodes[0].id(), world.nodes[3].id()]);
        assert_eq!(report.nodes.iter().copied().collect::<BTreeSet<_>>(), expected, "{report:?}");
        assert!(report.liars.is_empty() && report.undecided.is_none(), "{report:?}");
    }
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decoys_follow_the_owners_turns_by_themselves_unless_they_are_off() {
    let world = World::new(2).await;
    let soon = DecoyPolicy { min_delay: Duration::ZERO, max_delay: Duration::ZERO, ..asked_for() };
    let on = client(&world, world.home.path(), soon).await;
    two_turns(&on, &world.nodes[0]).await;
    let sent = async {
        while on.decoys().sessions < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(GRACE, sent).await.unwrap();
    on.shutdown(GRACE).await;

    let other = tempfile::tempdir().unwrap();
    let off = client(&world, other.path(), DecoyPolicy { share: 0, ..soon }).await;
    two_turns(&off, &world.nodes[0]).await;
    assert_eq!(off.check_nodes().await.unwrap(), None);
    assert_eq!(off.decoys(), DecoyTotals::default());
    off.shutdown(GRACE).await;
}
