//! Old copies of homes, journals with lost ends, and indexes and stores with lost data. Acknowledged turns
//! stay in the chain, once and in order.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_client::{Client, ClientError, DeviceEvent, HeadStatus, RouteOptions, SessionRoot};
use baton_proto::{ids::SessionId, receipt::EngineKind, store::StoreError};
use tempfile::TempDir;

use baton_client::testkit::{
    GRACE, World, close,
    device::{device_events, input, open, options},
    events_of,
    fake::FakeNode,
    gate::{Gate, with_indexes},
    say, say_settled, session,
    store::MemoryStore,
};

/// Tried cuts of a journal, and old copies: first in every run, then in a full run.
const CUTS: [usize; 2] = [40, 1000];
const COPIES: [usize; 2] = [10, 200];
/// Trials before a new session is created: the cost of a trial grows with them.
const TRIALS_OF_A_SESSION: usize = 20;
/// A journal's first bytes, without which it names no session.
const JOURNAL_START: usize = 16 + 72;

fn trials([sample, all]: [usize; 2]) -> usize {
    if std::env::var_os("BATON_FULL").is_some() { all } else { sample }
}

/// A generator that is the same everywhere: Knuth's MMIX constants, its high bits.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

fn journal(home: &Path) -> PathBuf {
    let files = fs::read_dir(home.join("sessions")).unwrap().map(|entry| entry.unwrap().path());
    let mut journals = files.filter(|path| path.extension().is_some_and(|extension| extension == "journal"));
    journals.next().unwrap()
}

/// A home's session data, as a backup keeps it.
fn backup(home: &Path) -> (PathBuf, Vec<u8>) {
    let path = journal(home);
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

/// Sends a message as programs do that first merge missing turns; it must succeed.
async fn say_next(client: &Client, id: SessionId, text: &str) -> Vec<DeviceEvent> {
    let (result, events) = events_of(client, id, input(text)).await;
    result.unwrap();
    device_events(&events)
}

async fn said(client: &Client, id: SessionId) -> Vec<String> {
    let history = client.session(id).history().await.unwrap();
    history.iter().map(|view| view.turn.record.as_ref().unwrap().messages[0].text.clone()).collect()
}

/// A closed session with `turns` turns in a home.
async fn written(world: &World, home: &Path, gate: &Arc<Gate>, turns: usize) -> (SessionId, SessionRoot) {
    let client = open(world, home, gate).await;
    let id = session(&client).await;
    for turn in 0..turns {
        say(&client, id, &format!("turn {turn}")).await;
    }
    let root = client.session(id).backup().await.unwrap();
    close(&client, id).await;
    (id, root)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_home_merges_its_own_later_turns_before_the_next_turn() {
    let world = World::new(1).await;
    let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
    let (id, _) = written(&world, home.path(), &gate, 4).await;
    let (path, older) = backup(home.path());
    let client = open(&world, home.path(), &gate).await;
    for turn in 4..10 {
        say(&client, id, &format!("turn {turn}")).await;
    }
    close(&client, id).await;
    fs::write(&path, older).unwrap();

    let client = open(&world, home.path(), &gate).await;
    let error = client.session(id).check_head().await.unwrap_err();
    assert!(matches!(error, ClientError::Behind { ours: 3, theirs: 9, own: true }), "{error}");
    assert!(error.to_string().contains("this device wrote"), "{error}");
    assert!(!error.to_string().contains("another device"), "{error}");
    client.shutdown(GRACE).await;

    let client = open(&world, home.path(), &gate).await;
    let told = say_next(&client, id, "after the backup").await;
    assert_eq!(told, [DeviceEvent::CaughtUp { turns: 6, own: 6 }]);
    assert!(told[0].to_string().starts_with("This home is an older copy"), "{}", told[0]);
    let mut expected: Vec<String> = (0..10).map(|turn| format!("turn {turn}")).collect();
    expected.push("after the backup".to_owned());
    assert_eq!(said(&client, id).await, expected);
    assert!(client.session(id).branches().await.unwrap().is_empty());
    close(&client, id).await;
}

/// A session of a few turns in a home, and all its acknowledged messages.
struct Trial {
    home: TempDir,
    gate: Arc<Gate>,
    id: SessionId,
    root: SessionRoot,
    acknowledged: Vec<String>,
}

impl Trial {
    async fn new(world: &World, turns: usize) -> Self {
        let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
        let (id, root) = written(world, home.path(), &gate, turns).await;
        let acknowledged = (0..turns).map(|turn| format!("turn {turn}")).collect();
        Self { home, gate, id, root, acknowledged }
    }

    /// Adds a turn from the current home; afterwards every message is there, once, in order.
    async fn goes_on(&mut self, world: &World, text: String, what: &str) {
        let client = open(world, self.home.path(), &self.gate).await;
        match client.session(self.id).info().await {
            // Not even its first entry is left: the root recovers it, as its error says.
            Err(ClientError::JournalDamaged { .. }) => {
                assert_eq!(client.recover(&self.root).await.unwrap(), self.id, "{what}");
            }
            found => drop(found.unwrap()),
        }
        // An unfinished message is finished first, as the programs do.
        client.session(self.id).resume(options(), |_| {}).await.unwrap();
        say_next(&client, self.id, &text).await;
        self.acknowledged.push(text);
        assert_eq!(said(&client, self.id).await, self.acknowledged, "{what}");
        assert!(client.session(self.id).branches().await.unwrap().is_empty(), "{what}");
        close(&client, self.id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_cut_of_a_journal_nor_an_older_copy_displaces_an_acknowledged_turn() {
    let world = World::new(1).await;
    for (cuts, number) in [(true, trials(CUTS)), (false, trials(COPIES))] {
        let mut draw = SeededRng(21);
        let mut trial = Trial::new(&world, 4).await;
        let mut copies = Vec::new();
        for number in 0..number {
            if number % TRIALS_OF_A_SESSION == TRIALS_OF_A_SESSION - 1 {
                trial = Trial::new(&world, 4).await;
                copies.clear();
            }
            copies.push(backup(trial.home.path()));
            let (path, bytes) = &copies[if cuts { copies.len() - 1 } else { draw.below(copies.len()) }];
            let cut = JOURNAL_START + draw.below(bytes.len() - JOURNAL_START);
            let end = if cuts { cut } else { bytes.len() };
            fs::write(path, &bytes[..end]).unwrap();
            let what = format!("cuts: {cuts}, number {number}, {end} bytes");
            trial.goes_on(&world, what.clone(), &what).await;
        }
    }
}

/// Sessions with repeated cuts, of which some turns are sent without an index, and the rounds of each.
const DARK_SESSIONS: [usize; 2] = [6, 200];
const DARK_ROUNDS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn repeated_cuts_without_an_index_double_no_turn() {
    let first: u64 = std::env::var("BATON_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + trials(DARK_SESSIONS) as u64 {
        let world = World::new(1).await;
        let mut draw = SeededRng(seed * 7919 + 3);
        let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
        let (id, root) = written(&world, home.path(), &gate, 3).await;
        for round in 0..DARK_ROUNDS {
            let what = format!("seed {seed}, round {round}");
            let is_dark = round + 1 < DARK_ROUNDS && draw.below(3) == 0;
            let (path, bytes) = backup(home.path());
            let start = JOURNAL_START + draw.below(bytes.len() - JOURNAL_START);
            fs::write(&path, &bytes[..start]).unwrap();
            if is_dark {
                gate.away();
            } else {
                gate.open();
            }
            let client = open(&world, home.path(), &gate).await;
            if matches!(client.session(id).info().await, Err(ClientError::JournalDamaged { .. })) {
                gate.open();
                assert_eq!(client.recover(&root).await.unwrap(), id, "{what}");
            }
            client.session(id).resume(options(), |_| {}).await.unwrap();
            say_next(&client, id, &format!("message {round}")).await;
            if !is_dark {
                client.session(id).reconcile(|_| {}).await.unwrap();
                let mut texts = said(&client, id).await;
                texts.sort();
                let all = texts.len();
                texts.dedup();
                assert_eq!(texts.len(), all, "{what}: {:?}", said(&client, id).await);
                assert!(client.session(id).wait_settled(GRACE).await.unwrap(), "{what}");
            }
            client.shutdown(GRACE).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_lost_its_end_says_so_until_it_was_compared() {
    let world = World::new(1).await;
    let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
    let (id, _) = written(&world, home.path(), &gate, 2).await;
    let (path, bytes) = backup(home.path());
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    gate.away();
    // Before opening, on opening, and afterwards: by then the journal's end is whole.
    for _ in 0..2 {
        let client = open(&world, home.path(), &gate).await;
        assert!(client.session(id).info().await.unwrap().torn_end_bytes > 0);
        client.shutdown(GRACE).await;
        let client =
            Client::open(with_indexes(world.config(home.path()), std::slice::from_ref(&gate))).await.unwrap();
        assert!(client.sessions().await.unwrap()[0].torn_end_bytes > 0);
        client.shutdown(GRACE).await;
    }
    gate.open();
    let client = open(&world, home.path(), &gate).await;
    client.session(id).reconcile(|_| {}).await.unwrap();
    client.session(id).check_head().await.unwrap();
    assert_eq!(client.session(id).info().await.unwrap().torn_end_bytes, 0);
    assert_eq!(said(&client, id).await, ["turn 0", "turn 1"]);
    close(&client, id).await;
    let client = open(&world, home.path(), &gate).await;
    assert_eq!(client.session(id).info().await.unwrap().torn_end_bytes, 0);
}

/// The operation that finds this device's head missing in the index, and so publishes it.
#[derive(Debug, Clone, Copy)]
enum Seeing {
    Check,
    Sync,
    Renew,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_a_shorter_one_displaced_is_published_again_by_whatever_sees_it() {
    for seeing in [Seeing::Check, Seeing::Sync, Seeing::Renew] {
        let world = World::new(1).await;
        let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
        let client = open(&world, home.path(), &gate).await;
        let id = session(&client).await;
        say_settled(&client, id, "one").await;
        let early = world.store.heads();
        say(&client, id, "two").await;
        say(&client, id, "three").await;
        let root = client.session(id).backup().await.unwrap();
        close(&client, id).await;
        // The index goes back in time. A device that recovers then has less, and announces there that it may
        // write.
        world.store.set_heads(early);
        let second_home = tempfile::tempdir().unwrap();
        let second = open(&world, second_home.path(), &gate).await;
        second.recover(&root).await.unwrap();
        assert_eq!(said(&second, id).await, ["one"]);
        assert!(second.session(id).wait_delivered(GRACE).await.unwrap());
        second.shutdown(GRACE).await;

        let client = open(&world, home.path(), &gate).await;
        match seeing {
            Seeing::Check => {
                assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Unpublished);
                assert!(client.session(id).wait_published(GRACE).await.unwrap());
            }
            Seeing::Sync => {
                let done = client.session(id).reconcile(|_| {}).await.unwrap();
                assert_eq!(done.status, HeadStatus::Current);
            }
            // The work of earlier runs, which goes on meanwhile, may publish it first.
            Seeing::Renew => {
                client.session(id).renew(None).await.unwrap();
                assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
            }
        }
        let third_home = tempfile::tempdir().unwrap();
        let third = open(&world, third_home.path(), &gate).await;
        third.recover(&root).await.unwrap();
        assert_eq!(said(&third, id).await, ["one", "two", "three"], "{seeing:?}");
        third.shutdown(GRACE).await;
        client.shutdown(GRACE).await;
    }
}

/// A world whose node stores blobs where no other party finds them, and reports them stored.
async fn claims_stored() -> World {
    let mut world = World::new(0).await;
    let elsewhere = MemoryStore::default();
    world.nodes.push(FakeNode::start(&elsewhere, EngineKind::Native).await);
    world
}

async fn is_stored(world: &World, client: &Client, id: SessionId) -> bool {
    let last = client.session(id).lifetimes().await.unwrap().pop().unwrap();
    assert!(last.stored);
    world.store.blobs().iter().any(|(stored, _)| Some(*stored) == last.blob_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_calls_a_blob_stored_without_storing_it_is_found_out() {
    let world = claims_stored().await;
    let client = world.client().await;
    let id = session(&client).await;
    say_settled(&client, id, "one").await;
    assert!(is_stored(&world, &client, id).await, "the client stored it");
    let explained = client.explain(None, &RouteOptions::default()).await.unwrap();
    assert_eq!(explained[0].last_fault, Some("lied"));
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;
    world.nodes[0].stop().await;

    // The device is lost, and so is the node: the words are enough.
    let home = tempfile::tempdir().unwrap();
    let other = world.client_at(home.path()).await;
    assert_eq!(other.recover(&root).await.unwrap(), id);
    assert_eq!(said(&other, id).await, ["one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_the_store_does_not_confirm_yet_is_no_lie() {
    let (world, client) = World::with_client(1).await;
    let id = session(&client).await;
    // The store is away when the client looks.
    world.store.fail_exists([baton_client::testkit::store::down()]);
    say_settled(&client, id, "one").await;
    assert!(is_stored(&world, &client, id).await);
    assert_eq!(world.store.puts(), 1, "the node's own PUT");
    assert_eq!(client.explain(None, &RouteOptions::default()).await.unwrap()[0].last_fault, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_and_first_use_after_an_epoch_restore_a_blob_that_went_missing() {
    for rests in [false, true] {
        let (world, client) = World::with_client(1).await;
        let id = session(&client).await;
        for text in ["one", "two", "three"] {
            say(&client, id, text).await;
        }
        close(&client, id).await;
        world.store.forget_blobs();
        let puts = world.store.puts();
        let at = async |days: u64| {
            let mut config = world.config(world.home.path());
            let system = config.clock.clone();
            config.clock = Arc::new(move || system() + days * 24 * 3_600_000);
            Client::open(config).await.unwrap()
        };
        // The store showed the blob a moment ago.
        let client = at(1).await;
        assert_eq!(client.session(id).renew(None).await.unwrap().put_back, Vec::<u64>::new());
        client.shutdown(GRACE).await;
        let client = at(15).await;
        if rests {
            client.session(id).info().await.unwrap();
            tokio::time::timeout(GRACE, world.store.put_count(puts + 1)).await.unwrap();
        } else {
            assert_eq!(client.session(id).renew(None).await.unwrap().put_back, [2]);
            assert_eq!(client.session(id).renew(None).await.unwrap().put_back, Vec::<u64>::new());
        }
        client.shutdown(GRACE).await;
        world.nodes[0].stop().await;
        let client = at(15).await;
        assert!(is_stored(&world, &client, id).await);
        assert!(client.session(id).verify(true).await.unwrap().not_stored.is_empty());
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_verification_finds_in_the_store_is_stored_from_then_on() {
    let world = World::new(1).await;
    world.nodes[0].script([baton_client::testkit::fake::Act::NeverStore]);
    let client = world.client_with(|config| config.timeouts.author_stores = Duration::from_secs(3600)).await;
    let id = session(&client).await;
    say(&client, id, "one").await;
    assert_eq!(client.session(id).info().await.unwrap().unstored, 1);
    // Another party stores it: the node late, or as here another device.
    let export = client.session(id).export(true).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = world.client_at(elsewhere.path()).await;
    other.import(&export).await.unwrap();
    other.session(id).put_back_blobs(&[0]).await.unwrap();
    other.shutdown(GRACE).await;

    assert!(client.session(id).verify(true).await.unwrap().not_stored.is_empty());
    assert_eq!(client.session(id).info().await.unwrap().unstored, 0);
    assert!(client.session(id).lifetimes().await.unwrap()[0].stored);
    client.shutdown(Duration::from_millis(100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_without_the_newest_blob_restores_earlier_turns_and_names_the_lost() {
    let (world, client) = World::with_client(1).await;
    let id = session(&client).await;
    for turn in 0..16 {
        say(&client, id, &format!("turn {turn}")).await;
    }
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    let closed = world.store.blobs();
    say(&client, id, "turn 16").await;
    say(&client, id, "turn 17").await;
    let root = client.session(id).backup().await.unwrap();
    close(&client, id).await;
    // The store loses the blobs after the full segment, and the node is gone.
    world.store.forget_blobs();
    world.store.put_again(closed);
    world.nodes[0].stop().await;

    let home = tempfile::tempdir().unwrap();
    let client = world.client_at(home.path()).await;
    let strict = client.recover(&root).await.unwrap_err();
    assert!(matches!(strict, ClientError::Store(StoreError::NotFound)), "{strict}");
    let recovered = client.recover_available(&root).await.unwrap();
    assert_eq!((recovered.session, recovered.lost), (id, vec![16..=17]));
    let expected: Vec<String> = (0..16).map(|turn| format!("turn {turn}")).collect();
    assert_eq!(said(&client, id).await, expected);
    // Turns that another device may still have are not overwritten without a request.
    assert!(matches!(
        client.session(id).check_head().await,
        Err(ClientError::Behind { ours: 15, theirs: 17, .. })
    ));
    client.shutdown(GRACE).await;

    // That device is there: it restores them, and the next recovery is complete.
    let first = world.client().await;
    let missing = first.session(id).verify(false).await.unwrap().not_stored;
    first.session(id).put_back_blobs(&missing).await.unwrap();
    first.shutdown(GRACE).await;
    let client = world.client_at(home.path()).await;
    assert_eq!(client.recover_available(&root).await.unwrap().lost, []);
    assert_eq!(said(&client, id).await.len(), 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_with_a_hole_in_the_middle_names_the_lost_turns_and_the_session_goes_on() {
    let world = World::new(1).await;
    let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
    let (id, root) = written(&world, home.path(), &gate, 34).await;
    let client = open(&world, home.path(), &gate).await;
    let history = client.session(id).history().await.unwrap();
    // The link of the first turn of a segment names the last blob of the segment before it.
    let lost = history[32].turn.link.prev_blob.unwrap().blob_id;
    client.shutdown(GRACE).await;
    let left: Vec<_> = world.store.blobs().into_iter().filter(|(blob, _)| *blob != lost).collect();
    world.store.forget_blobs();
    world.store.put_again(left);
    world.nodes[0].forget_blobs();

    let home = tempfile::tempdir().unwrap();
    let client = open(&world, home.path(), &gate).await;
    let strict = client.recover(&root).await.unwrap_err();
    assert!(matches!(strict, ClientError::Store(StoreError::NotFound)), "{strict}");
    let recovered = client.recover_available(&root).await.unwrap();
    assert_eq!((recovered.session, recovered.lost), (id, vec![16..=31]));
    assert_eq!(said(&client, id).await, ["turn 32", "turn 33"]);
    let branches = client.session(id).branches().await.unwrap();
    let before = branches.iter().filter(|branch| branch.is_before_gap).flat_map(|branch| &branch.turns);
    let texts: Vec<String> = before.map(|turn| turn.messages[0].text.clone()).collect();
    assert_eq!(texts, (0..16).map(|turn| format!("turn {turn}")).collect::<Vec<_>>());
    // The newest part is verified, current, and can be continued, here and elsewhere.
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    assert!(client.session(id).verify(true).await.unwrap().is_good());
    assert_eq!(say(&client, id, "after the hole").await.seq, 34);
    close(&client, id).await;

    let other = tempfile::tempdir().unwrap();
    let client = open(&world, other.path(), &gate).await;
    assert_eq!(client.recover_available(&root).await.unwrap().lost, [16..=31]);
    assert_eq!(said(&client, id).await, ["turn 32", "turn 33", "after the hole"]);
    say_next(&client, id, "elsewhere").await;
    close(&client, id).await;
    let client = open(&world, home.path(), &gate).await;
    client.session(id).reconcile(|_| {}).await.unwrap();
    assert_eq!(said(&client, id).await.last().unwrap(), "elsewhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_without_the_newest_blob_reads_the_one_before_it_from_an_earlier_head() {
    let world = World::new(1).await;
    let (home, gates) = (tempfile::tempdir().unwrap(), [Gate::new(&world.store), Gate::new(&world.store)]);
    let client = Client::open(with_indexes(world.config(home.path()), &gates)).await.unwrap();
    let id = session(&client).await;
    for text in ["one", "two"] {
        say(&client, id, text).await;
    }
    assert!(client.session(id).wait_settled(GRACE).await.unwrap());
    let kept = world.store.blobs();
    // One index shows no later head from now on.
    gates[1].stick();
    say_settled(&client, id, "three").await;
    let root = client.session(id).backup().await.unwrap();
    client.shutdown(GRACE).await;
    world.store.forget_blobs();
    world.store.put_again(kept);
    world.nodes[0].stop().await;

    let home = tempfile::tempdir().unwrap();
    let client = Client::open(with_indexes(world.config(home.path()), &gates)).await.unwrap();
    let recovered = client.recover_available(&root).await.unwrap();
    assert_eq!((recovered.session, recovered.lost), (id, vec![2..=2]));
    assert_eq!(said(&client, id).await, ["one", "two"]);
}
