//! A small network in one process for the tests of the turn service. Nodes have real meshes on 127.0.0.1, the
//! store is in memory with faults, and the client uses `baton-proto` alone.

pub(crate) mod client;
pub(crate) mod node;
pub(crate) mod store;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tempfile::tempdir;

use self::{
    client::{Client, Session},
    node::{Setup, TestNode},
    store::MemoryStore,
};

/// A node with its store, and a client with a session.
pub(crate) struct World {
    pub node: TestNode,
    pub client: Client,
    pub session: Session,
    pub store: Arc<MemoryStore>,
}

pub(crate) async fn world(setup: Setup) -> World {
    let store = Arc::new(MemoryStore::default());
    let node = start(&store, setup).await;
    World { node, client: Client::start().await, session: Session::new(), store }
}

/// Starts a node in a folder of its own.
pub(crate) async fn start(store: &Arc<MemoryStore>, setup: Setup) -> TestNode {
    let folder = tempdir().unwrap();
    let mut node = TestNode::start(folder.path(), store, setup).await;
    node.folder = Some(folder);
    node
}

/// Unix time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}
