//! Nodes that embed texts and serve no turns, honest or byzantine.

use std::time::Duration;

use baton_proto::{ids::ModelId, node_record::ModelOffer, receipt::EngineKind};

use super::{
    World,
    fake::FakeNode,
    store::{MemoryStore, Stores},
};
use crate::Client;

pub use super::fake::embed::{EmbedderAct, Script, vector};

pub const EMBEDDER: &str = "tiny-embedder";

/// Starts a node that embeds texts, and offers no model for turns.
pub async fn start(script: &Script) -> FakeNode {
    let model = ModelOffer {
        model: ModelId([0x1e; 32]),
        name: EMBEDDER.to_owned(),
        engine: EngineKind::Embedding,
        context_tokens: 256,
        input_price: 0,
        output_price: 0,
    };
    let stores = Stores::from(&MemoryStore::default());
    let node = FakeNode::start_with(stores, model, None, Vec::new()).await;
    node.embed(script);
    node
}

/// A client that knows one node for turns and some for embeddings.
pub async fn client(world: &World, embedders: &[FakeNode]) -> Client {
    let mut config = world.config(world.home.path());
    config.bootstrap.extend(embedders.iter().flat_map(FakeNode::addrs));
    config.timeouts.embed = Duration::from_millis(500);
    Client::open(config).await.unwrap()
}
