//! Checks of answers at scripted nodes: each node checks the answers that it was handed, and liars of both kinds are
//! avoided.

use std::collections::BTreeSet;

use baton_client::testkit::{
    GRACE, World, events_of,
    fake::{Act, FakeNode},
    session,
};
use baton_client::{
    Client, ClientError, NodeExplanation, RouteOptions, TurnInput,
    choose::{Behind, Verdict},
};
use baton_proto::{
    check::{AnswerCheck, CheckVerdict},
    ids::{NodeId, SessionId},
    turn::Sampling,
};

async fn client(world: &World) -> Client {
    let client = Client::open(world.config(world.home.path())).await.unwrap();
    let all = async { while client.nodes().await.len() < world.nodes.len() {} };
    tokio::time::timeout(GRACE, all).await.unwrap();
    client
}

/// A turn at one node; returns its statements on earlier answers.
async fn turn(client: &Client, id: SessionId, node: &FakeNode) -> Vec<AnswerCheck> {
    let sampling = Sampling { temperature: 0.5, seed: 3, ..Sampling::default() };
    let input = TurnInput {
        sampling,
        route: RouteOptions { node: Some(node.id()), ..RouteOptions::default() },
        ..TurnInput::user("and more of it")
    };
    let outcome = events_of(client, id, input).await.0.unwrap();
    assert_eq!(outcome.node, node.id());
    outcome.receipt.checks.clone()
}

fn are_same(checks: &[AnswerCheck]) -> bool {
    checks.iter().all(|check| matches!(check.verdict, CheckVerdict::Same { .. }))
}

async fn avoided(client: &Client) -> BTreeSet<NodeId> {
    let rows = client.explain(None, &RouteOptions::default()).await.unwrap().into_iter();
    let is_avoided = |row: &NodeExplanation| matches!(&row.verdict, Verdict::Ranked(ranked) if matches!(ranked.behind, Some(Behind::Lied { .. })));
    rows.filter(is_avoided).map(|row| row.node).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_another_node_is_checked_and_honest_nodes_agree() {
    let world = World::new(3).await;
    let client = client(&world).await;
    let id = session(&client).await;
    let [a, b, c] = &world.nodes[..] else { panic!("three nodes") };
    assert_eq!(turn(&client, id, a).await, [], "a first turn has nothing to check");
    assert_eq!(turn(&client, id, a).await, [], "a node does not check its own answers");
    let checks = turn(&client, id, b).await;
    assert!(checks.len() == 2 && are_same(&checks), "{checks:?}");
    let mut asked = 0;
    for turns in 0..12 {
        let checks = turn(&client, id, [c, a, b][turns % 3]).await;
        assert!(!checks.is_empty() && are_same(&checks), "{checks:?}");
        asked += checks.len();
    }
    assert!((22..=26).contains(&asked), "each answer gets two verdicts: {asked}");
    assert_eq!(avoided(&client).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_that_two_nodes_contradict_is_avoided_also_after_a_restart() {
    let world = World::new(3).await;
    let opened = client(&world).await;
    let id = session(&opened).await;
    let [a, b, c] = &world.nodes[..] else { panic!("three nodes") };
    a.script([Act::Say("another answer")]);
    turn(&opened, id, a).await;
    assert!(!are_same(&turn(&opened, id, b).await));
    assert_eq!(avoided(&opened).await, BTreeSet::new(), "either may be honest");
    opened.shutdown(GRACE).await;
    // The contradiction is in the receipts, so another process goes on with it.
    let opened = client(&world).await;
    let checks = turn(&opened, id, c).await;
    assert!(!are_same(&checks) && checks.len() == 2, "the contradiction and the latest answer: {checks:?}");
    assert_eq!(avoided(&opened).await, BTreeSet::from([a.id()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lies_as_a_verifier_is_avoided() {
    for lie in [Act::Accuse, Act::ForgeCheck] {
        let world = World::new(4).await;
        let client = client(&world).await;
        let id = session(&client).await;
        let [liar, honest @ ..] = &world.nodes[..] else { panic!("four nodes") };
        let mut turns = 0;
        while avoided(&client).await.is_empty() {
            assert!(turns < 60, "never found: {lie:?}");
            for node in honest {
                turn(&client, id, node).await;
            }
            liar.script([lie]);
            turn(&client, id, liar).await;
            turns += 4;
        }
        assert_eq!(avoided(&client).await, BTreeSet::from([liar.id()]), "{lie:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_has_a_named_node_check_the_last_answer_and_adds_no_turn() {
    let world = World::new(2).await;
    let client = client(&world).await;
    let id = session(&client).await;
    let [a, b] = &world.nodes[..] else { panic!("two nodes") };
    assert!(matches!(client.session(id).audit(b.id()).await, Err(ClientError::NotAuditable)));
    a.script([Act::Say("another answer")]);
    turn(&client, id, a).await;
    for node in [a, b] {
        let audit = client.session(id).audit(node.id()).await.unwrap();
        assert_eq!((audit.turn, audit.author, audit.receipt.node), (0, a.id(), node.id()));
        assert!(matches!(audit.verdict, CheckVerdict::Different { token: 0, .. }), "{audit:?}");
    }
    assert_eq!(turn(&client, id, a).await, []);
    assert!(are_same(&turn(&client, id, b).await[1..]), "the session goes on, from the answer on");
}
