//! Damaged journals: named, backed up, replaced and deleted; and sessions found without reading all journals.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use baton_client::{Client, ClientError, NewSession};
use baton_proto::ids::SessionId;

use baton_client::testkit::{GRACE, World, say, session};

fn files(home: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.join("sessions")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Changes a byte of the only journal, well behind its root.
fn damage(home: &Path) {
    let journals = files(home, "journal");
    let [path] = journals.as_slice() else { panic!("{journals:?}") };
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A world with a session of two turns whose journal is then damaged, and an export with its root.
async fn damaged() -> (World, SessionId, String) {
    let (world, client, session) = World::with_session(1).await;
    say(&client, session, "one").await;
    say(&client, session, "two").await;
    let export = client.session(session).export(true).await.unwrap().to_string();
    client.shutdown(GRACE).await;
    damage(world.home.path());
    (world, session, export)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_is_listed_and_gives_its_root_and_nothing_else() {
    let (world, session, _) = damaged().await;
    let client = world.client().await;
    let listing = client.listing().await.unwrap();
    assert!(listing.sessions.is_empty());
    assert_eq!(listing.unreadable.len(), 1);
    assert_eq!(listing.unreadable[0].id, Some(session));
    let error = &listing.unreadable[0].error;
    assert!(matches!(error, ClientError::JournalDamaged { entry: 1.., .. }), "{error}");
    assert!(error.hint().unwrap().contains("baton session restore SESSION"));
    assert_eq!(client.session_ids().await.unwrap(), [session]);
    assert_eq!(client.session(session).backup().await.unwrap().session_id(), session);
    assert!(matches!(client.session(session).history().await, Err(ClientError::JournalDamaged { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_comes_back_from_the_store_and_its_file_is_kept() {
    let (world, session, _) = damaged().await;
    let before = fs::read(&files(world.home.path(), "journal")[0]).unwrap();
    let client = world.client().await;
    let root = client.session(session).backup().await.unwrap();
    world.store.set_down(true);
    assert!(matches!(client.recover(&root).await, Err(ClientError::Store(_))));
    assert_eq!(
        fs::read(&files(world.home.path(), "journal")[0]).unwrap(),
        before,
        "nothing moved for nothing"
    );
    world.store.set_down(false);
    // A new session of the same root would fork it.
    let new = NewSession { root: Some(root.clone()), ..NewSession::default() };
    assert!(matches!(client.new_session(new).await, Err(ClientError::SessionExists(id)) if id == session));
    assert_eq!(client.recover(&root).await.unwrap(), session);
    assert_eq!(say(&client, session, "three").await.text, "three (2)");
    let quarantined = files(world.home.path(), "damaged");
    assert_eq!(quarantined.len(), 1);
    assert_eq!(fs::read(&quarantined[0]).unwrap(), before);
    let listing = client.listing().await.unwrap();
    assert_eq!((listing.sessions.len(), listing.unreadable.len()), (1, 0));
    assert!(client.session(session).delete().await.unwrap().unpublished.is_none());
    let left = fs::read_dir(world.home.path().join("sessions")).unwrap().count();
    assert_eq!(left, 0, "a deletion takes what was kept with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_replaces_a_damaged_session_but_not_a_good_one() {
    let (world, session, export) = damaged().await;
    let client = world.client().await;
    assert_eq!(client.import(&export).await.unwrap(), session);
    assert_eq!(client.session(session).history().await.unwrap().len(), 2);
    assert_eq!(files(world.home.path(), "damaged").len(), 1);
    assert!(matches!(client.import(&export).await, Err(ClientError::SessionExists(_))));
    client.shutdown(GRACE).await;
    let client = world.client().await;
    assert!(matches!(client.import(&export).await, Err(ClientError::SessionExists(_))), "not open either");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_is_deleted_and_its_tombstone_published() {
    let (world, session, _) = damaged().await;
    let client = world.client().await;
    let root = client.session(session).backup().await.unwrap();
    assert!(client.session(session).delete().await.unwrap().unpublished.is_none());
    assert_eq!(fs::read_dir(world.home.path().join("sessions")).unwrap().count(), 0);
    assert!(matches!(client.recover(&root).await, Err(ClientError::Deleted)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_the_index_did_not_hear_of_says_so() {
    let (world, client, session) = World::with_session(1).await;
    say(&client, session, "one").await;
    client.shutdown(GRACE).await;
    let client = world.client().await;
    let root = client.session(session).backup().await.unwrap();
    world.store.set_down(true);
    let deletion = client.session(session).delete().await.unwrap();
    assert!(matches!(deletion.unpublished, Some(ClientError::Store(_))));
    assert!(matches!(client.session(session).info().await, Err(ClientError::UnknownSession(_))));
    world.store.set_down(false);
    assert_eq!(client.recover(&root).await.unwrap(), session, "as the deletion's answer said");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_session_is_the_one_with_the_last_turn_whatever_was_opened_since() {
    let world = World::new(1).await;
    let clock = Arc::new(AtomicU64::new(0));
    let mut config = world.config(world.home.path());
    let start = (config.clock)();
    clock.store(start, Ordering::SeqCst);
    let now = clock.clone();
    config.clock = Arc::new(move || now.load(Ordering::SeqCst));
    let client = Client::open(config.clone()).await.unwrap();
    assert_eq!(client.last_session().await.unwrap(), None);
    let mut sessions = Vec::new();
    for turn in 0..3 {
        clock.store(start + 1000 * turn, Ordering::SeqCst);
        sessions.push(session(&client).await);
        say(&client, sessions[usize::try_from(turn).unwrap()], "hello").await;
    }
    let expected = client.sessions().await.unwrap()[0].id;
    assert_eq!((client.last_session().await.unwrap(), expected), (Some(sessions[2]), sessions[2]));
    client.shutdown(GRACE).await;
    // Closed journals, the oldest changed last.
    for path in files(world.home.path(), "journal") {
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let client = Client::open(config).await.unwrap();
    assert_eq!(client.last_session().await.unwrap(), Some(sessions[2]));
    clock.store(start + 9000, Ordering::SeqCst);
    let fresh = session(&client).await;
    assert_eq!(client.last_session().await.unwrap(), Some(fresh));
    let last = client.session(sessions[1]).last_turn().await.unwrap().unwrap();
    assert_eq!(last.turn.record.unwrap().messages[0].text, "hello");
    assert!(client.session(fresh).last_turn().await.unwrap().is_none());
}
