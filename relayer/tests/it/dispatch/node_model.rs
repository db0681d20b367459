//! Extraction by a model on third-party nodes: for owners who allow it, in sessions that leave no data.

use std::{sync::Arc, time::Duration};

use baton_memory::{
    Memory,
    api::{ListRequest, Place, TurnRecord},
    extraction::{Complete as _, ModelError, ModelWriter, PromptMessage, PromptRole},
    ids::OwnerId,
    model::Kind,
};
use baton_relayer::NodeModel;
use baton_walrus_client::ShardCount;

use baton_client::testkit::fake::{Act, FakeNode, MODEL};

use super::world::{PlainRelayer, World, contains, files, parts_at};

const VERDICT: &str = r#"{"mode":"in_world_answer","risk":"low","flags":[],"note":"","extractMemory":true}"#;
/// The rules find nothing in it.
const VAGUE: &str = "Philippa's godfather keeps the lighthouse at Ponta.";
const FOUND: &str = r#"[{"quote":"godfather keeps the lighthouse at Ponta","layer":"profile","intimate":false,"salience":0.9}]"#;

/// A memory with a model on the world's nodes.
struct ExtractionTest {
    world: World,
    memory: Memory,
    folder: tempfile::TempDir,
    /// Holds the mesh that finds the nodes.
    relayer: PlainRelayer,
}

impl ExtractionTest {
    async fn new() -> Self {
        let world = World::new().await;
        let relayer = world.plain().await;
        let folder = tempfile::tempdir().unwrap();
        let memory = Self::memory(&world, &relayer, &folder).await;
        Self { world, memory, folder, relayer }
    }

    async fn memory(world: &World, relayer: &PlainRelayer, folder: &tempfile::TempDir) -> Memory {
        let mut parts = parts_at(folder.path(), world.clock()).await;
        parts.node_writer = Some(ModelWriter::new(Arc::new(model(relayer).await)));
        Memory::open(parts).await.unwrap()
    }

    fn node(&self) -> &FakeNode {
        &self.world.nodes[0]
    }

    fn asked(&self) -> usize {
        self.node().seen(|seen| seen.turns.len())
    }

    async fn allow(&self, owner: OwnerId, allowed: bool) {
        self.memory.allow_nodes(owner, allowed).await.unwrap();
    }

    async fn say(&self, owner: OwnerId, turn: u64, user: &str) {
        let place = Place { session: Some("s".to_owned()), ..Place::default() };
        let (user, assistant) = (user.into(), "Congratulations!".into());
        let turn = TurnRecord { place, turn, user, assistant, time_ms: self.world.clock()() };
        self.memory.record_turn(owner, turn).await.unwrap();
    }

    /// Works until no job is due.
    async fn work(&self) {
        while self.memory.run_due().await > 0 {}
    }

    async fn texts(&self, owner: OwnerId, kind: Kind) -> Vec<String> {
        let mut request = ListRequest { everything: true, limit: 100, ..ListRequest::default() };
        request.filters.kinds = vec![kind];
        let items = self.memory.list(owner, request).await.unwrap().items;
        items.iter().map(|item| item.text.to_string()).collect()
    }
}

async fn model(relayer: &PlainRelayer) -> NodeModel {
    let mesh = relayer.client.mesh().clone();
    NodeModel::open(mesh, ShardCount::TESTBED, MODEL.to_owned(), true).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_extract_for_owners_who_allow_it_in_sessions_that_leave_nothing() {
    let test = ExtractionTest::new().await;
    let (mine, other) = (test.world.owner(), OwnerId([7; 32]));
    test.say(mine, 0, VAGUE).await;
    test.work().await;
    assert_eq!(test.asked(), 0, "nobody allowed it");

    test.allow(mine, true).await;
    test.node().script([Act::Say(VERDICT), Act::Say(FOUND)]);
    test.say(mine, 1, &VAGUE.replace("Philippa", "Rosalind")).await;
    test.say(other, 0, &VAGUE.replace("Philippa", "Clementine")).await;
    test.work().await;
    let facts = test.texts(mine, Kind::Fact).await;
    assert!(facts.iter().any(|fact| fact.contains("the lighthouse at Ponta")), "{facts:?}");
    let turns = test.node().seen(|seen| seen.turns.clone());
    assert_eq!(turns.len(), 2, "a judgement and an extraction, of one owner");
    assert_ne!(turns[0].session_id, turns[1].session_id, "each is a session of its own");
    for turn in &turns {
        assert_eq!((turn.seq, turn.memory_from, turn.memory_tokens), (0, None, 0));
    }
    // Only the nodes' stores have data, under keys that are gone.
    assert!(test.world.store.heads().is_empty());
    assert_eq!(test.world.store.puts(), 2);
    for bytes in files(test.folder.path()) {
        assert!(!contains(&bytes, b"Rosalind") && !contains(&bytes, b"in_world_answer"));
    }
    assert!(test.relayer.client.sessions().await.unwrap().is_empty());

    // The owner's permission persists across restarts until it is revoked.
    let ExtractionTest { world, memory, folder, relayer } = test;
    drop(memory);
    let memory = ExtractionTest::memory(&world, &relayer, &folder).await;
    let test = ExtractionTest { world, memory, folder, relayer };
    test.node().script([Act::Say(VERDICT), Act::Say(FOUND)]);
    test.say(mine, 2, &VAGUE.replace("Philippa", "Henrietta")).await;
    test.work().await;
    assert_eq!(test.asked(), 4);
    test.say(mine, 3, &VAGUE.replace("Philippa", "Georgina")).await;
    test.allow(mine, false).await;
    test.work().await;
    assert_eq!(test.asked(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_or_is_not_there_costs_a_deadline_and_no_more() {
    let test = ExtractionTest::new().await;
    let prompt = [PromptMessage { role: PromptRole::User, text: "hello".into() }];
    let model = model(&test.relayer).await;
    test.node().script([Act::Hang]);
    let hasty = model.clone().within(Duration::from_millis(1500));
    assert_eq!(hasty.complete(&prompt, 8).await, Err(ModelError::TimedOut));
    test.node().left(1).await;
    assert_eq!(model.complete(&prompt, 8).await.unwrap().0, "hello (0)");
    let mesh = test.relayer.client.mesh().clone();
    let unknown = NodeModel::open(mesh, ShardCount::TESTBED, "no such model".to_owned(), true).await.unwrap();
    assert!(matches!(unknown.complete(&prompt, 8).await, Err(ModelError::Unavailable(_))));
}
