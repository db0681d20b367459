//! The choice after experience with real nodes: liars, hiccups, dead and silent nodes; and the command's
//! report on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_client::{
    Client, ClientConfig, ClientError, CountersignatureStatus, NodeExplanation, RouteOptions, TurnInput,
    choose::{Behind, NoChoice, OfferRank, Verdict},
};
use baton_proto::{ErrorCode, ids::NodeId};

use baton_client::testkit::{
    GRACE, World,
    fake::{Act, FakeNode, now_ms},
    say, session,
};

/// A clock that a test can move ahead.
fn ahead(config: &mut ClientConfig) -> Arc<AtomicU64> {
    let offset = Arc::new(AtomicU64::new(0));
    let of_clock = offset.clone();
    config.clock = Arc::new(move || now_ms() + of_clock.load(Ordering::SeqCst));
    offset
}

fn explained(rows: &[NodeExplanation], node: NodeId) -> (&NodeExplanation, OfferRank) {
    let row = rows.iter().find(|row| row.node == node).unwrap();
    match &row.verdict {
        Verdict::Ranked(ranked) => (row, ranked.clone()),
        Verdict::Excluded(exclusion) => panic!("{exclusion:?}"),
    }
}

async fn explain(client: &Client) -> Vec<NodeExplanation> {
    client.explain(None, &RouteOptions::default()).await.unwrap()
}

/// Looks repeatedly until the list has `count` nodes.
async fn until_listed(client: &Client, count: usize) {
    let look = async {
        while client.nodes().await.len() != count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(GRACE, look).await.unwrap_or_else(|_| panic!("never {count} nodes"));
}

/// An attempt at one node that fails.
async fn fail_at(client: &Client, node: &FakeNode, act: Act) {
    let session = session(client).await;
    node.script([act]);
    let input =
        TurnInput::user("hello").with_route(|route| (route.node, route.max_attempts) = (Some(node.id()), 1));
    client.session(session).turn(input, |_| {}).await.unwrap_err();
    client.session(session).abandon().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_unusable_exchange_key_is_not_asked() {
    let world = World::new(2).await;
    world.nodes[0].seen(|seen| seen.unusable_key = true);
    let client = world.client().await;
    client.nodes().await;
    let session = session(&client).await;
    for text in ["hello", "again", "and again"] {
        say(&client, session, text).await;
    }
    assert!(world.nodes[0].seen(|seen| seen.turns.is_empty()));
    assert_eq!(world.nodes[1].seen(|seen| seen.turns.len()), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_liar_is_left_for_honest_nodes_also_after_a_restart() {
    for act in [Act::WrongReceipt, Act::WrongText, Act::WrongDigest, Act::WrongNote, Act::RepeatToken] {
        let (world, client) = World::with_client(2).await;
        client.nodes().await;
        fail_at(&client, &world.nodes[0], act).await;
        let all = explain(&client).await;
        let (row, ranked) = explained(&all, world.nodes[0].id());
        assert_eq!(row.last_fault, Some("lied"), "{act:?}");
        assert!(matches!(ranked.behind, Some(Behind::Lied { until_ms }) if until_ms > now_ms() + 80_000_000));
        client.shutdown(GRACE).await;

        let client = world.client().await;
        client.nodes().await;
        assert_eq!(client.nodes().await.len(), 2);
        let session = session(&client).await;
        for _ in 0..6 {
            assert_eq!(say(&client, session, "hello").await.node, world.nodes[1].id(), "{act:?}");
        }
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_receipts_contradict_its_record_is_a_liar() {
    let (world, client) = World::with_client(2).await;
    client.nodes().await;
    world.nodes[0].script([Act::OtherEngine]);
    let session = session(&client).await;
    let input = TurnInput::user("hello").with_route(|route| route.node = Some(world.nodes[0].id()));
    client.session(session).turn(input, |_| {}).await.unwrap();
    let all = explain(&client).await;
    assert!(matches!(explained(&all, world.nodes[0].id()).1.behind, Some(Behind::Lied { .. })));
    assert_eq!(say(&client, session, "hello").await.node, world.nodes[1].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hiccup_bans_nobody() {
    for (act, fault, pause_ms) in [
        (Act::Truncate, "cut-off", 6000),
        (Act::Refuse(ErrorCode::Busy), "busy", 2000),
        (Act::Fail(ErrorCode::Internal), "refused", 6000),
    ] {
        let world = World::new(2).await;
        let mut config = world.config(world.home.path());
        let offset = ahead(&mut config);
        let client = Client::open(config).await.unwrap();
        client.nodes().await;
        fail_at(&client, &world.nodes[0], act).await;
        let all = explain(&client).await;
        let (row, ranked) = explained(&all, world.nodes[0].id());
        assert_eq!(row.last_fault, Some(fault));
        assert!(matches!(ranked.behind, Some(Behind::Paused { .. })), "{act:?}: {ranked:?}");
        offset.store(pause_ms, Ordering::SeqCst);
        let all = explain(&client).await;
        let (_, ranked) = explained(&all, world.nodes[0].id());
        assert!(ranked.share > 0.25, "{act:?}: {ranked:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_served_last_is_preferred_for_a_while() {
    let world = World::new(3).await;
    let mut config = world.config(world.home.path());
    let offset = ahead(&mut config);
    let client = Client::open(config).await.unwrap();
    client.nodes().await;
    let session = session(&client).await;
    let last = say(&client, session, "hello").await.node;
    let warm = client.explain(Some(session), &RouteOptions::default()).await.unwrap();
    let (_, ranked) = explained(&warm, last);
    assert!(ranked.factors.warm > 1.0, "{ranked:?}");
    let cold = explain(&client).await;
    assert!(explained(&cold, last).1.factors.warm <= 1.0, "only for its session");
    offset.store(11 * 60_000, Ordering::SeqCst);
    let later = client.explain(Some(session), &RouteOptions::default()).await.unwrap();
    assert!(explained(&later, last).1.factors.warm <= 1.0, "not for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_leaves_the_list_and_is_back_when_it_answers() {
    let (mut world, client) = World::with_client(2).await;
    until_listed(&client, 2).await;
    let died = std::time::Instant::now();
    world.nodes[0].stop().await;
    until_listed(&client, 1).await;
    assert!(died.elapsed() < Duration::from_secs(6), "{:?}", died.elapsed());
    let all = explain(&client).await;
    assert_eq!(explained(&all, world.nodes[0].id()).1.behind, Some(Behind::Gone));
    let session = session(&client).await;
    let outcome = say(&client, session, "hello").await;
    assert_eq!((outcome.node, outcome.attempt), (world.nodes[1].id(), 0), "no attempt is lost on it");
    world.nodes[0].revive().await;
    until_listed(&client, 2).await;
    let all = explain(&client).await;
    assert!(explained(&all, world.nodes[0].id()).1.share > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_node_that_is_silent_for_half_a_minute_leaves_the_list() {
    let world = World::new(2).await;
    let mut config = world.config(world.home.path());
    let offset = ahead(&mut config);
    let client = Client::open(config).await.unwrap();
    until_listed(&client, 2).await;
    world.nodes[0].seen(|seen| seen.deaf = true);
    offset.store(21_000, Ordering::SeqCst);
    until_listed(&client, 1).await;
    world.nodes[0].seen(|seen| seen.deaf = false);
    // The next check comes after a pause that doubles.
    offset.fetch_add(60_000, Ordering::SeqCst);
    until_listed(&client, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_are_listed_and_checked_again_beside_a_running_client() {
    let (world, client, session) = World::with_session(1).await;
    let outcome = say(&client, session, "hello").await;
    client.shutdown(GRACE).await;
    let client = world.client().await;
    client.session(session).info().await.unwrap();
    // Another process of the same home, whose write the open session's lock would refuse.
    let beside = world.client().await;
    let receipts = beside.session(session).receipts(true).await.unwrap();
    assert_eq!((receipts.len(), receipts[0].seq, receipts[0].node), (1, 0, world.nodes[0].id()));
    assert_eq!((receipts[0].countersigned, receipts[0].problem), (CountersignatureStatus::Delivered, None));
    let receipt = receipts[0].receipt.as_ref().unwrap();
    assert_eq!(receipt.receipt_hash(), outcome.receipt.receipt_hash());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_keeps_its_model_until_another_is_named() {
    let world = World::new(2).await;
    world.nodes[1].offer_model("other", 9);
    let client = world.client().await;
    client.nodes().await;
    let begun = session(&client).await;
    let input = |text: &str, model: Option<&str>| {
        TurnInput::user(text).with_route(|route| route.model = model.map(str::to_owned))
    };
    client.session(begun).turn(input("one", Some("parrot")), |_| {}).await.unwrap();
    for _ in 0..6 {
        assert_eq!(say(&client, begun, "again").await.node, world.nodes[0].id(), "without a name, too");
    }
    client.shutdown(GRACE).await;
    world.nodes[0].stop().await;
    let client = world.client().await;
    let error = client.session(begun).turn(input("two", None), |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("this conversation's model parrot; served are: other"), "{error}");
    assert!(error.hint().unwrap().contains("--model"), "{error}");
    assert_eq!(world.nodes[1].seen(|seen| seen.turns.len()), 0, "it was not asked");
    let options = RouteOptions { model: Some("other".to_owned()), ..RouteOptions::default() };
    let outcome = client.session(begun).resume(options, |_| {}).await.unwrap().unwrap();
    assert_eq!(outcome.node, world.nodes[1].id());
    assert_eq!(say(&client, begun, "three").await.node, world.nodes[1].id(), "the named one stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn named_nodes_are_the_set_unless_others_are_wanted_too() {
    for discover in [false, true] {
        let world = World::new(2).await;
        let client = world
            .client_with(|config| {
                config.bootstrap = world.nodes[0].addrs();
                config.discover = discover;
            })
            .await;
        // The other node is known too, as if the named one had introduced it.
        let other = &world.nodes[1];
        let until = tokio::time::Instant::now() + GRACE;
        drop(client.mesh().open(other.id(), &other.addrs(), until).await.unwrap());
        let both =
            |peers: &[baton_mesh::PeerInfo]| peers.iter().filter(|peer| peer.serves_turns).count() == 2;
        client.mesh().wait_for_peers(until, both).await.unwrap();
        until_listed(&client, if discover { 2 } else { 1 }).await;
        let session = session(&client).await;
        let named = TurnInput::user("hello").with_route(|route| route.node = Some(other.id()));
        assert_eq!(client.session(session).turn(named, |_| {}).await.is_ok(), discover);
        client.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_at_an_address_that_this_client_does_not_dial_is_named_and_never_chosen() {
    let world = World::new(0).await;
    let client = world
        .client_with(|config| {
            config.listen = vec!["/ip4/0.0.0.0/tcp/0".parse().unwrap()];
            config.timeouts.discovery = Duration::from_millis(200);
        })
        .await;
    // A node of this machine found the client, and announces loopback addresses alone.
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let seed = zeroize::Zeroizing::new(*baton_keys::SecretSigningKey::generate().expose_seed());
    let (node, _incoming) =
        baton_mesh::Mesh::spawn(seed, baton_mesh::MeshConfig::server("node", listen)).await.unwrap();
    let until = tokio::time::Instant::now() + GRACE;
    // Over another way, an announced loopback address counts for nothing.
    let mut here = client.mesh().listen_addrs();
    here.retain(|address| address.to_string().starts_with("/ip4/127."));
    assert!(node.open(client.mesh().node_id(), &here, until).await.is_err(), "clients serve nobody");
    let found =
        |peers: &[baton_mesh::PeerInfo]| peers.iter().any(|peer| peer.serves_turns && !peer.addrs.is_empty());
    client.mesh().wait_for_peers(until, found).await.unwrap();
    assert_eq!(client.why_no_node().await, NoChoice::NotDialable { nodes: 1 });
    let session = session(&client).await;
    let refused = client.session(session).turn(TurnInput::user("hello"), |_| {}).await.unwrap_err();
    assert!(matches!(refused, ClientError::NoNode(NoChoice::NotDialable { nodes: 1 })), "{refused}");
    assert_eq!(
        refused.to_string(),
        "1 node of this machine's test network was found, but this client does not dial it"
    );
}
