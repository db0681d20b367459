//! Conversations over several stores, of which one is always down and another fails at random. Every turn is
//! served, stored once, and verified from the store.

use std::time::Duration;

use baton_client::{Client, ClientConfig, NewSession, TurnEvent, TurnInput};
use baton_testnet::network::{Network, NodeOptions};
use baton_walrus_client::{HttpStore, ShardCount};

const TURNS: usize = 8;
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// An address without a listener. The returned listener reserves the port meanwhile.
fn nowhere() -> (std::net::TcpListener, String) {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", held.local_addr().unwrap());
    (held, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_survive_a_dead_store_and_a_failing_one() {
    let folder = tempfile::tempdir().unwrap();
    let options = NodeOptions { store_faults: Some("hostile".to_owned()), ..NodeOptions::echo() };
    let mut network = Network::start(folder.path(), 0, options).await.unwrap();
    let store = network.store_url().to_owned();
    // Two names of one store count as two sources, like two gateways of one network.
    let other = store.replace("127.0.0.1", "localhost");
    let (held, dead) = nowhere();
    drop(held);
    network.reach_store_by(&[dead.as_str(), &store, &other].join(","));
    for _ in 0..2 {
        network.add_node(&["--heads", &store]).await.unwrap();
    }

    let urls = [dead.as_str(), &store, &other];
    let http = HttpStore::endpoints(&urls, &urls, ShardCount::TESTBED).heads(&store).build().unwrap();
    let mut config = ClientConfig::with_store(Some(&folder.path().join("client")), http);
    config.bootstrap = network.addresses();
    config.timeouts.author_stores = Duration::from_secs(20);
    let client = Client::open(config).await.unwrap();
    let session = client.new_session(NewSession::default()).await.unwrap();
    let nodes: Vec<_> = network.running().map(|node| node.node).collect();
    for turn in 0..TURNS {
        let input = TurnInput::user(format!("turn {turn}")).with_route(|route| {
            route.node = Some(nodes[turn % nodes.len()]);
            route.inline = baton_client::InlinePolicy::Never;
            route.allow_echo = true;
        });
        let outcome = client.session(session).turn(input, |_: TurnEvent| {}).await.unwrap();
        assert!(outcome.text.contains(&format!("turn {turn}")), "{}", outcome.text);
        assert!(
            client.session(session).wait_settled(SETTLE_TIMEOUT).await.unwrap(),
            "turn {turn} is not stored"
        );
    }
    let report = client.session(session).verify(true).await.unwrap();
    assert!(report.is_good(), "{report:?}");
    assert_eq!((report.turns, report.from_own), (TURNS as u64, 0), "{report:?}");
    client.shutdown(Duration::from_secs(5)).await;
    network.stop().await.unwrap();
}
