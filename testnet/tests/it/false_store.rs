//! A node that calls blobs stored and stores none. The client looks for itself, so the session's root alone
//! restores the conversation after the node is gone.

use std::time::Duration;

use baton_client::{Client, NewSession, RouteOptions, TurnInput};
use baton_testnet::{
    byzantine::{Act, start_liar},
    network::{Network, NodeOptions},
};

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_authors_stored_nothing_and_are_gone_is_restored_from_its_root() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), 0, NodeOptions::echo()).await.unwrap();
    let node = start_liar(&network, Duration::ZERO, [Act::ClaimStored].into_iter().cycle()).await.unwrap();
    let home = folder.path().join("client");
    let mut config = network.client_config(Some(&home)).unwrap();
    config.bootstrap = node.addrs();
    config.timeouts.second_look = Duration::from_millis(100);
    let client = Client::open(config).await.unwrap();
    let session = client.new_session(NewSession::default()).await.unwrap();
    let handle = client.session(session);
    let input = TurnInput::user("hello").with_route(|route| route.allow_echo = true);
    assert_eq!(handle.turn(input, |_| {}).await.unwrap().text, "echo: hello");
    assert!(handle.wait_settled(TIMEOUT).await.unwrap());
    let told: Vec<Act> = node.seen(|seen| seen.lies.values().map(|lie| lie.act).collect());
    assert_eq!(told, [Act::ClaimStored]);
    let lied = async {
        loop {
            let explained = client.explain(None, &RouteOptions::default()).await.unwrap();
            if explained.iter().any(|one| one.node == node.id() && one.last_fault == Some("lied")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, lied).await.expect("the client finds the lie");
    let root = handle.backup().await.unwrap();
    client.shutdown(TIMEOUT).await;
    node.stop().await;
    std::fs::remove_dir_all(&home).unwrap();

    let client = Client::open(network.client_config(None).unwrap()).await.unwrap();
    assert_eq!(client.recover(&root).await.unwrap(), session);
    let history = client.session(session).history().await.unwrap();
    let said: Vec<&str> = history.iter().filter_map(|view| view.turn.record.as_ref()?.answer()).collect();
    assert_eq!(said, ["echo: hello"]);
    client.shutdown(TIMEOUT).await;
    network.stop().await.unwrap();
}
