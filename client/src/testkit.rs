//! Test doubles of a client's peers: scripted nodes, stores, relayers and head indexes.
//!
//! The doubles speak the real protocol over a real mesh, and misbehave on request. Only tests and the test network
//! use this module, by the feature `testkit`.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]
#![expect(missing_docs, reason = "the names of a test's helpers and their fields say it")]

pub mod device;
pub mod embedder;
pub mod fake;
pub mod gate;
pub mod relayer;
pub mod store;

use std::{path::Path, sync::Arc, time::Duration};

use baton_proto::{ids::SessionId, receipt::EngineKind};
use baton_walrus_client::ShardCount;
use tempfile::TempDir;

use crate::{
    Client, ClientConfig, ClientError, NewSession, RouteOptions, TurnEvent, TurnInput, TurnOutcome,
    testkit::{fake::FakeNode, store::MemoryStore},
};

/// Grace for background work at a shutdown: the work ends by itself, so this is only a bound.
pub const GRACE: Duration = Duration::from_secs(30);

/// Nodes, a store and a client's home.
pub struct World {
    pub store: MemoryStore,
    pub nodes: Vec<FakeNode>,
    pub home: TempDir,
}

impl World {
    /// Makes the next answer this text, at whichever node.
    pub fn will_say(&self, text: &'static str) {
        self.nodes.iter().for_each(|node| {
            node.clear_script();
            node.script([fake::Act::Say(text)]);
        });
    }

    /// From now on every node repeats its input.
    pub fn will_echo(&self) {
        self.nodes.iter().for_each(FakeNode::clear_script);
    }

    pub async fn new(nodes: usize) -> Self {
        let store = MemoryStore::default();
        let mut started = Vec::new();
        for _ in 0..nodes {
            started.push(FakeNode::start(&store, EngineKind::Native).await);
        }
        Self { store, nodes: started, home: tempfile::tempdir().unwrap() }
    }

    /// A world of some nodes, and its client.
    pub async fn with_client(nodes: usize) -> (Self, Client) {
        let world = Self::new(nodes).await;
        let client = world.client().await;
        (world, client)
    }

    /// A world of some nodes, its client, and a session.
    pub async fn with_session(nodes: usize) -> (Self, Client, SessionId) {
        let (world, client) = Self::with_client(nodes).await;
        let session = session(&client).await;
        (world, client, session)
    }

    pub fn config(&self, home: &Path) -> ClientConfig {
        let store = Arc::new(self.store.clone());
        let mut config = ClientConfig::new(Some(home), store.clone(), store, ShardCount::TESTBED);
        config.bootstrap = self.nodes.iter().flat_map(FakeNode::addrs).collect();
        config.timeouts.open = Duration::from_secs(5);
        config.timeouts.author_stores = Duration::from_millis(100);
        config.timeouts.second_look = Duration::from_millis(50);
        config.timeouts.store_retry = Duration::from_millis(100);
        config
    }

    pub async fn client(&self) -> Client {
        self.client_at(self.home.path()).await
    }

    /// The client with a changed configuration.
    pub async fn client_with(&self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        let mut config = self.config(self.home.path());
        change(&mut config);
        Client::open(config).await.unwrap()
    }

    pub async fn client_at(&self, home: &Path) -> Client {
        Client::open(self.config(home)).await.unwrap()
    }
}

/// Waits until the journals of a home can be opened again after its last use. A process that another test is
/// starting holds copies of all open files, and of their locks, until its own program runs.
pub async fn free(client: &Client) {
    let sessions = client.session_ids().await.unwrap();
    let freed = async {
        for id in sessions {
            while matches!(client.session(id).info().await, Err(ClientError::InUse(_))) {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::time::timeout(GRACE, freed).await.unwrap();
}

pub async fn session(client: &Client) -> SessionId {
    client.new_session(NewSession::default()).await.unwrap()
}

/// A turn that must succeed.
pub async fn say(client: &Client, session: SessionId, text: &str) -> TurnOutcome {
    client.session(session).turn(TurnInput::user(text), |_| {}).await.unwrap()
}

/// The same, and then waits until it is stored and published.
pub async fn say_settled(client: &Client, session: SessionId, text: &str) {
    say(client, session, text).await;
    assert!(client.session(session).wait_settled(GRACE).await.unwrap());
}

pub async fn close(client: &Client, session: SessionId) {
    assert!(client.session(session).wait_settled(GRACE).await.unwrap());
    client.shutdown(GRACE).await;
}

/// Finishes a pending turn, which must succeed.
pub async fn resume(client: &Client, session: SessionId) -> TurnOutcome {
    client.session(session).resume(RouteOptions::default(), |_| {}).await.unwrap().unwrap()
}

/// A turn with its events.
pub async fn events_of(
    client: &Client,
    session: SessionId,
    input: TurnInput,
) -> (Result<TurnOutcome, ClientError>, Vec<TurnEvent>) {
    let mut events = Vec::new();
    let result = client.session(session).turn(input, |event| events.push(event)).await;
    (result, events)
}
