//! Several head indexes: some down, some behind, some withholding, and the report on each.

use std::sync::Arc;

use baton_client::{Client, ClientError, HeadStatus, IndexAnswer, IndexStatus};
use baton_proto::{ErrorCode, ids::SessionId, store::StoreError};
use tempfile::TempDir;

use baton_testkit::{
    GRACE, World, free,
    gate::{Gate, with_indexes},
    say, session,
    store::MemoryStore,
};

/// Three indexes, and a client that publishes to all.
struct Indexes {
    world: World,
    stores: [MemoryStore; 3],
    gates: [Arc<Gate>; 3],
}

impl Indexes {
    async fn new() -> Self {
        let world = World::new(1).await;
        let stores: [MemoryStore; 3] = Default::default();
        let gates = stores.each_ref().map(Gate::new);
        Self { world, stores, gates }
    }

    async fn client(&self, home: &TempDir) -> Client {
        let client = Client::open(with_indexes(self.world.config(home.path()), &self.gates)).await.unwrap();
        free(&client).await;
        client
    }
}

fn shows(indexes: &[IndexStatus]) -> Vec<&'static str> {
    let name = |one: &IndexStatus| match one.shows {
        IndexAnswer::Newest { .. } => "newest",
        IndexAnswer::Behind { .. } => "behind",
        IndexAnswer::Nothing => "nothing",
        IndexAnswer::Wrong { .. } => "wrong",
        IndexAnswer::Unavailable { .. } => "away",
    };
    indexes.iter().map(name).collect()
}

async fn standings(client: &Client, id: SessionId) -> Vec<&'static str> {
    shows(&client.session(id).info().await.unwrap().indexes)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_that_withhold_the_newest_head_are_named_and_mislead_nobody() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let client = all.client(&home).await;
    let id = session(&client).await;
    say(&client, id, "one").await;
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    all.gates[0].stick();
    all.gates[2].stick();
    say(&client, id, "two").await;
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    assert_eq!(standings(&client, id).await, ["behind", "newest", "behind"]);
    assert_eq!(client.session(id).info().await.unwrap().trouble, None);
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;

    // The root alone finds the newest record; the disk of the first device is lost.
    drop(home);
    let home = tempfile::tempdir().unwrap();
    let second = all.client(&home).await;
    assert_eq!(second.recover(&root).await.unwrap(), id);
    assert_eq!(second.session(id).history().await.unwrap().len(), 2);
    assert!(second.session(id).verify(true).await.unwrap().is_good());
    assert_eq!(say(&second, id, "three").await.text, "three (2)");
    assert!(second.session(id).wait_settled(GRACE).await.unwrap());

    // Once the only honest index also shows less, no index shows the record that all took.
    all.gates[1].stick();
    all.stores[1].set_heads(all.stores[0].heads());
    all.gates[1].stick();
    let error = second.session(id).check_head().await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::RollbackDetected), 5));
    assert_eq!(second.session(id).info().await.unwrap().trouble, Some(ErrorCode::RollbackDetected));
    assert_eq!(second.session(id).history().await.unwrap().len(), 3, "what is here stays");
    second.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_index_that_takes_the_head_is_enough_and_the_others_get_it_later() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let client = all.client(&home).await;
    let id = session(&client).await;
    say(&client, id, "one").await;
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    all.gates[1].away();
    all.gates[2].away();
    say(&client, id, "two").await;
    assert!(client.session(id).wait_settled(GRACE).await.unwrap(), "one took it");
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    assert_eq!(standings(&client, id).await, ["newest", "away", "away"]);
    client.shutdown(GRACE).await;

    // The index that took it is down; indexes that never did are not to blame for showing less.
    all.gates[0].away();
    all.gates[1].read_only();
    let client = all.client(&home).await;
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Unpublished);
    assert_eq!(standings(&client, id).await, ["away", "newest", "away"], "of those that answer");
    assert_eq!(client.session(id).info().await.unwrap().trouble, None);
    // After the restart it is still offered to them until they have it.
    all.gates[1].open();
    all.gates[2].open();
    let newest = all.stores[0].heads();
    for gate in &all.gates[1..] {
        tokio::time::timeout(GRACE, gate.has(&newest)).await.unwrap();
    }
    // An index that lost everything gets it again at the next look.
    all.stores[2].set_heads(Default::default());
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    assert_eq!(standings(&client, id).await, ["away", "newest", "nothing"]);
    tokio::time::timeout(GRACE, all.gates[2].has(&newest)).await.unwrap();
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_works_with_one_dead_index_and_unavailable_is_not_reported_as_none() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let client = all.client(&home).await;
    let id = session(&client).await;
    // The third never gets the record.
    all.gates[2].away();
    say(&client, id, "one").await;
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;

    all.gates[0].away();
    all.gates[1].away();
    all.gates[2].open();
    let home = tempfile::tempdir().unwrap();
    let second = all.client(&home).await;
    let error = second.recover(&root).await.unwrap_err();
    assert!(matches!(&error, ClientError::Store(StoreError::Unavailable { .. })), "{error}");
    all.gates[2].away();
    assert!(matches!(second.recover(&root).await, Err(ClientError::Store(_))), "none answers");
    all.gates[2].open();
    all.gates[1].open();
    assert_eq!(second.recover(&root).await.unwrap(), id);
    assert_eq!(say(&second, id, "two").await.text, "two (1)");
    second.shutdown(GRACE).await;
}
