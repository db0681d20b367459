//! Several head indexes: some down, some behind, some withholding, and the report on each.

use std::{sync::Arc, time::Duration};

use baton_client::{Client, ClientError, HeadStatus, IndexAnswer, IndexStatus, TurnInput};
use baton_proto::{ErrorCode, ids::SessionId, store::StoreError};
use tempfile::TempDir;

use baton_client::testkit::{
    GRACE, World, close, free,
    gate::{Gate, with_indexes},
    say, say_settled, session,
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
    say_settled(&client, id, "one").await;
    assert!(client.session(id).wait_published(GRACE).await.unwrap(), "all have it");
    all.gates[0].stick();
    all.gates[2].stick();
    say_settled(&client, id, "two").await;
    assert!(client.session(id).wait_published(GRACE).await.unwrap(), "all have it");
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
    assert!(second.session(id).wait_published(GRACE).await.unwrap(), "all have it");

    // Once the only honest index also shows less, no index shows the record that all took.
    all.gates[1].stick();
    all.stores[1].set_heads(all.stores[0].heads());
    all.gates[1].stick();
    let error = second.session(id).check_head().await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::RollbackDetected), 5));
    assert_eq!(second.session(id).info().await.unwrap().trouble, Some(ErrorCode::RollbackDetected));
    assert_eq!(second.session(id).history().await.unwrap().len(), 3, "what is here stays");
}

async fn said(client: &Client, id: SessionId) -> Vec<String> {
    let history = client.session(id).history().await.unwrap();
    history.iter().map(|view| view.turn.record.as_ref().unwrap().messages[0].text.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_over_two_indexes_loses_and_doubles_no_turn() {
    // Which of the chains wins is random.
    for trial in 0..6 {
        let all = Indexes::new().await;
        all.gates[2].away();
        let home = tempfile::tempdir().unwrap();
        let client = all.client(&home).await;
        let id = session(&client).await;
        say_settled(&client, id, "one").await;
        let first = all.stores[0].heads();
        tokio::time::timeout(GRACE, all.gates[1].has(&first)).await.unwrap();
        client.shutdown(GRACE).await;
        let files = std::fs::read_dir(home.path().join("sessions")).unwrap();
        let mut journals = files.map(|file| file.unwrap().path());
        let journal = journals.find(|path| path.extension().is_some_and(|end| end == "journal")).unwrap();
        let older = std::fs::read(&journal).unwrap();
        // Each turn is in another index, and the journal lost the first.
        for (text, away) in [("two", 1), ("three", 0)] {
            std::fs::write(&journal, &older).unwrap();
            all.gates[1 - away].open();
            all.gates[away].away();
            let client = all.client(&home).await;
            let input = TurnInput::user(text).with_route(|route| route.reconcile = true);
            client.session(id).turn(input, |_| {}).await.unwrap();
            close(&client, id).await;
        }
        // One of the turns becomes a branch, and an index keeps its first record.
        all.gates[0].open();
        all.gates[1].read_only();
        let client = all.client(&home).await;
        client.session(id).reconcile(|_| {}).await.unwrap();
        assert_eq!(all_said(&client, id).await, ["one", "three", "two"], "trial {trial}");
        close(&client, id).await;
        // The journal loses all notes of that.
        std::fs::write(&journal, &older).unwrap();
        let client = all.client(&home).await;
        for _ in 0..2 {
            client.session(id).reconcile(|_| {}).await.unwrap();
            assert_eq!(all_said(&client, id).await, ["one", "three", "two"], "trial {trial}");
        }
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_index_that_takes_the_head_is_enough_and_the_others_get_it_later() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let client = all.client(&home).await;
    let id = session(&client).await;
    say_settled(&client, id, "one").await;
    assert!(client.session(id).wait_published(GRACE).await.unwrap(), "all have it");
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
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_works_with_one_dead_index_and_unavailable_is_not_reported_as_none() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let client = all.client(&home).await;
    let id = session(&client).await;
    // The third never gets the record.
    all.gates[2].away();
    say_settled(&client, id, "one").await;
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;

    all.gates[0].away();
    all.gates[1].away();
    all.gates[2].read_only();
    let first = all.client(&home).await;
    let synced = first.session(id).reconcile(|_| {}).await;
    assert!(matches!(synced, Err(ClientError::Store(StoreError::Unavailable { .. }))), "{synced:?}");
    first.shutdown(GRACE).await;
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
}

/// A device with its own access to the first two indexes.
struct Writer {
    client: Client,
    gates: [Arc<Gate>; 2],
    home: TempDir,
}

impl Writer {
    async fn new(all: &Indexes) -> Self {
        let gates = [0, 1].map(|index| Gate::new(&all.stores[index]));
        let home = tempfile::tempdir().unwrap();
        let client = Client::open(with_indexes(all.world.config(home.path()), &gates)).await.unwrap();
        Self { client, gates, home }
    }

    async fn restart(&mut self, all: &Indexes) {
        self.client.shutdown(GRACE).await;
        let config = with_indexes(all.world.config(self.home.path()), &self.gates);
        self.client = Client::open(config).await.unwrap();
        free(&self.client).await;
    }

    async fn say(&self, id: SessionId, text: &str) {
        say_settled(&self.client, id, text).await;
    }
}

/// The user messages of a session's chain and of its branches, in alphabetical order.
async fn all_said(client: &Client, id: SessionId) -> Vec<String> {
    let mut texts = said(client, id).await;
    let branches = client.session(id).branches().await.unwrap();
    texts.extend(branches.iter().flat_map(|branch| &branch.turns).map(|turn| turn.messages[0].text.clone()));
    texts.sort();
    texts
}

/// Two devices of a session with one turn: the first reaches the first index alone, the second the other.
async fn on_different_indexes() -> (Indexes, Writer, Writer, SessionId) {
    let all = Indexes::new().await;
    let first = Writer::new(&all).await;
    let id = session(&first.client).await;
    first.say(id, "common").await;
    assert!(first.client.session(id).wait_published(GRACE).await.unwrap(), "all have it");
    let second = Writer::new(&all).await;
    second.client.recover(&first.client.session(id).backup().await.unwrap()).await.unwrap();
    assert!(second.client.session(id).wait_delivered(GRACE).await.unwrap());
    first.gates[1].away();
    second.gates[0].away();
    (all, first, second, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_on_another_index_is_merged_before_anything_is_published_over_it() {
    for lost_device_writes_first in [true, false] {
        let (all, mut first, second, id) = on_different_indexes().await;
        if lost_device_writes_first {
            second.say(id, "theirs").await;
            first.say(id, "ours").await;
        } else {
            first.say(id, "ours").await;
            second.say(id, "theirs").await;
        }
        second.client.shutdown(GRACE).await;
        let theirs = all.stores[1].heads();

        // Background work offers the first device's head to the index that was away.
        first.gates[1].open();
        first.restart(&all).await;
        assert!(first.client.session(id).check_head().await.unwrap_err().is_divergence());
        let turn = TurnInput::user("more").with_route(|route| route.reconcile = false);
        first.client.session(id).turn(turn, |_| {}).await.unwrap();
        assert!(first.client.session(id).wait_compared(GRACE).await.unwrap());
        assert_eq!(all.stores[1].heads(), theirs, "an unmerged chain stays in its index");

        let report = first.client.session(id).reconcile(|_| {}).await.unwrap();
        assert!(report.fork.is_some(), "{report:?}");
        assert!(first.client.session(id).wait_settled(GRACE).await.unwrap());
        let expected = ["common", "more", "ours", "theirs"];
        assert_eq!(all_said(&first.client, id).await, expected);
        // The words alone find all of it, although the second device is gone.
        let third = Writer::new(&all).await;
        third.client.recover(&first.client.session(id).backup().await.unwrap()).await.unwrap();
        assert_eq!(all_said(&third.client, id).await, expected);
        third.client.shutdown(GRACE).await;
        assert_eq!(first.client.session(id).check_head().await.unwrap(), HeadStatus::Current);
        first.client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_on_one_index_outlasts_a_later_turn_on_another() {
    let (all, first, second, id) = on_different_indexes().await;
    let root = first.client.session(id).backup().await.unwrap();
    first.client.session(id).delete().await.unwrap();
    second.say(id, "after the deletion").await;

    second.gates[0].open();
    assert!(matches!(second.client.session(id).check_head().await, Err(ClientError::Deleted)));
    let turn = TurnInput::user("more").with_route(|route| route.reconcile = true);
    assert!(matches!(second.client.session(id).turn(turn, |_| {}).await, Err(ClientError::Deleted)));
    let third = Writer::new(&all).await;
    assert!(matches!(third.client.recover(&root).await, Err(ClientError::Deleted)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_index_delays_no_turn_and_no_caller_and_is_offered_the_head_later() {
    let all = Indexes::new().await;
    let home = tempfile::tempdir().unwrap();
    let mut config = with_indexes(all.world.config(home.path()), &all.gates);
    config.timeouts.heads = Duration::from_secs(3600);
    let client = Client::open(config).await.unwrap();
    let id = session(&client).await;
    all.gates[1].silence();
    for (number, text) in ["one", "two"].into_iter().enumerate() {
        assert_eq!(say(&client, id, text).await.text, format!("{text} ({number})"));
        assert!(client.session(id).wait_settled(GRACE).await.unwrap(), "{text}");
        let info = client.session(id).info().await.unwrap();
        assert!(info.is_published && info.lacking_indexes.contains(&"index 1".to_owned()), "{info:?}");
    }
    client.shutdown(Duration::ZERO).await;

    // The journal holds the rest.
    all.gates[1].open();
    let client = all.client(&home).await;
    client.session(id).info().await.unwrap();
    assert!(client.session(id).wait_published(GRACE).await.unwrap());
    assert_eq!(all.stores[1].heads(), all.stores[0].heads());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_index_delays_no_turn_of_a_session_that_another_device_writes() {
    let all = Indexes::new().await;
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut config = with_indexes(all.world.config(homes[0].path()), &all.gates);
    config.timeouts.heads = Duration::from_secs(3600);
    let client = Client::open(config).await.unwrap();
    let id = session(&client).await;
    say(&client, id, "one").await;
    assert!(client.session(id).wait_published(GRACE).await.unwrap());
    let other = all.client(&homes[1]).await;
    other.recover(&client.session(id).backup().await.unwrap()).await.unwrap();
    say(&other, id, "two").await;
    assert!(other.session(id).wait_published(GRACE).await.unwrap());
    other.shutdown(GRACE).await;
    client.session(id).reconcile(|_| {}).await.unwrap();

    all.gates[1].silence();
    for text in ["three", "four"] {
        let input = TurnInput::user(text).with_route(|route| route.reconcile = true);
        let session = client.session(id);
        let turn = tokio::time::timeout(GRACE, session.turn(input, |_| {})).await;
        turn.expect("the turn waits for the silent index").unwrap();
    }
    assert_eq!(said(&client, id).await, ["one", "two", "three", "four"]);
}
