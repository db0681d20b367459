//! Extraction by a model on third-party nodes: for owners who allow it, in sessions that leave no data.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use baton_memory::{
    Memory,
    api::{ListRequest, OwnerSettings, Place, TurnRecord},
    extraction::{Complete as _, ModelError, ModelWriter, PromptMessage, PromptRole},
    ids::OwnerId,
    model::Kind,
};
use baton_proto::receipt::EngineKind;
use baton_relayer::NodeModel;
use baton_walrus_client::ShardCount;

use baton_testkit::{
    fake::{Act, FakeNode, MODEL},
    store::MemoryStore,
};

use super::world::{PlainRelayer, World, contains, files, parts_at};

const TOLD: &str = "My daughter Philippa started at the maritime school, and I teach there on Mondays.";
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
    async fn new(engine: EngineKind) -> Self {
        let mut world = World::new().await;
        let store = MemoryStore::default();
        world.nodes = vec![FakeNode::start(&store, engine).await];
        world.store = store;
        let relayer = world.plain().await;
        let folder = tempfile::tempdir().unwrap();
        let memory = Self::memory(&world, &relayer, &folder).await;
        Self { world, memory, folder, relayer }
    }

    async fn memory(world: &World, relayer: &PlainRelayer, folder: &tempfile::TempDir) -> Memory {
        let mut parts = parts_at(folder.path(), world.clock()).await;
        parts.node_writer = Some(Arc::new(ModelWriter::new(Arc::new(model(relayer).await))));
        Memory::open(parts).await.unwrap()
    }

    fn node(&self) -> &FakeNode {
        &self.world.nodes[0]
    }

    fn asked(&self) -> usize {
        self.node().seen(|seen| seen.turns.len())
    }

    async fn allow(&self, owner: OwnerId, allowed: bool) {
        let settings = OwnerSettings { extract_through_nodes: allowed };
        self.memory.change_settings(owner, settings).await.unwrap();
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
    let test = ExtractionTest::new(EngineKind::Native).await;
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
async fn f8_nonsense_from_a_node_is_counted_and_tried_again_until_the_rules_decide() {
    // An echo engine: it answers with the question.
    let test = ExtractionTest::new(EngineKind::Echo).await;
    let owner = test.world.owner();
    test.allow(owner, true).await;
    test.say(owner, 0, TOLD).await;
    test.work().await;
    let stats = test.memory.stats(owner).await.unwrap();
    assert_eq!((stats.queued_jobs, stats.retried_jobs), (1, 1));
    assert_eq!(test.memory.counters().extraction_failures.load(Ordering::Relaxed), 1);
    assert!(test.texts(owner, Kind::Episode).await.iter().any(|text| text == TOLD), "the turn is kept");
    assert!(test.asked() > 0);
    for _ in 0..12 {
        test.world.later_ms.fetch_add(700_000, Ordering::SeqCst);
        test.work().await;
    }
    let stats = test.memory.stats(owner).await.unwrap();
    assert_eq!((stats.queued_jobs, stats.retried_jobs), (0, 0));
    assert_eq!(test.asked(), 5, "five tries of one judgement");
    assert!(!test.texts(owner, Kind::Fact).await.is_empty(), "the rules did what the model could not");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_or_is_not_there_costs_a_deadline_and_no_more() {
    let test = ExtractionTest::new(EngineKind::Native).await;
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
