//! Storage: in the store, in the home folder, and in files.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use baton_client::{Client, ClientError, InlinePolicy, NewSession, TurnEvent, TurnInput};
use baton_keys::files::KeyFileError;
use baton_proto::{ErrorCode, store::StoreError};
use baton_walrus_client::ShardCount;
use zeroize::Zeroizing;

use baton_client::testkit::{GRACE, World, close, fake::Act, resume, say, session, store::MemoryStore};

#[tokio::test(flavor = "multi_thread")]
async fn the_client_stores_what_its_author_does_not() {
    for act in [Act::GiveUpStoring, Act::NeverStore] {
        let world = World::new(1).await;
        world.nodes[0].script([act]);
        let client = world.client().await;
        let session = session(&client).await;
        let outcome = say(&client, session, "hello").await;
        client.shutdown(GRACE).await;
        let stored = world.store.blobs();
        assert_eq!(stored.len(), 1, "{act:?}");
        assert_eq!(baton_proto::link::blob_digest(&stored[0].1), outcome.blob_digest, "{act:?}");
        let client = world.client().await;
        assert_eq!(client.session(session).info().await.unwrap().unstored, 0, "{act:?}");
        client.shutdown(GRACE).await;
        assert_eq!(world.store.puts(), 1, "{act:?}: a stored blob is not bought twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unstored_blob_travels_with_the_next_turn_and_is_stored_later() {
    let world = World::new(1).await;
    let client = world.client_with(|config| config.timeouts.author_stores = Duration::from_secs(3600)).await;
    let session = session(&client).await;
    world.store.set_down(true);
    world.nodes[0].script([Act::NeverStore, Act::NeverStore]);
    say(&client, session, "one").await;
    assert_eq!(say(&client, session, "two").await.text, "two (1)");
    assert_eq!(world.nodes[0].seen(|seen| seen.inlined.clone()), [0, 1]);
    assert_eq!(client.session(session).info().await.unwrap().unstored, 1, "the first is in the second");
    client.shutdown(Duration::ZERO).await;
    assert!(world.store.blobs().is_empty());

    world.store.set_down(false);
    let client = world.client().await;
    // Opening the session resumes its background work, once the author's time is over by this client's settings.
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.session(session).info().await.unwrap();
    client.shutdown(GRACE).await;
    assert_eq!(world.store.blobs().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_the_store_changed_is_put_back() {
    let (world, client, session) = World::with_session(1).await;
    say(&client, session, "one").await;
    client.shutdown(GRACE).await;
    let before = world.store.blobs();
    world.store.corrupt_blobs();
    let client = world.client().await;
    let mut input = TurnInput::user("two");
    input.route.inline = InlinePolicy::Never;
    let outcome = client.session(session).turn(input, |_| {}).await.unwrap();
    assert_eq!((outcome.attempt, outcome.text.as_str()), (1, "two (1)"));
    client.shutdown(GRACE).await;
    assert!(world.store.blobs().contains(&before[0]), "content-derived, so the same bytes again");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reports_what_the_store_changed_and_checks_own_copies() {
    let (world, client, session) = World::with_session(1).await;
    for turn in 0..17 {
        say(&client, session, &format!("turn {turn}")).await;
    }
    client.shutdown(GRACE).await;
    let client = world.client().await;
    let good = client.session(session).verify(false).await.unwrap();
    assert!(good.is_good());
    assert_eq!((good.from_store, good.from_own, good.ids_checked, good.blobs_checked), (2, 0, 1, 17));
    world.store.corrupt_blobs();
    let bad = client.session(session).verify(false).await.unwrap();
    let mut seqs: Vec<_> = bad.problems.iter().map(|problem| (problem.seq, problem.code)).collect();
    seqs.sort_by_key(|(seq, _)| *seq);
    assert_eq!(seqs, [(15, ErrorCode::BlobHashMismatch), (16, ErrorCode::BlobHashMismatch)]);
    world.store.forget_blobs();
    let own = client.session(session).verify(true).await.unwrap();
    assert!(own.is_good());
    assert_eq!((own.from_store, own.from_own, own.ids_checked), (0, 2, 17));
    assert_eq!(own.not_stored, [15, 16]);
    client.session(session).put_back_blobs(&own.not_stored).await.unwrap();
    let mended = client.session(session).verify(false).await.unwrap();
    assert!(mended.is_good() && mended.not_stored.is_empty() && mended.from_own == 0, "{mended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_with_its_root_moves_a_session_with_its_receipts() {
    let (world, client) = World::with_client(1).await;
    let session = client.new_session(NewSession::with_system("sys ")).await.unwrap();
    for turn in 0..17 {
        say(&client, session, &format!("turn {turn}")).await;
    }
    let without = client.session(session).export(false).await.unwrap();
    let with = client.session(session).export(true).await.unwrap();
    client.shutdown(GRACE).await;
    let report =
        baton_client::transfer::verify_export(&baton_client::transfer::parse(&without).unwrap(), true);
    let report = report.unwrap();
    assert_eq!(
        (report.turns, report.receipts_checked, report.acks_checked, report.inputs_checked),
        (17, 17, 17, 17)
    );

    let home = tempfile::tempdir().unwrap();
    let client = world.client_at(home.path()).await;
    assert!(matches!(client.import(&without).await, Err(ClientError::Export(_))));
    assert!(matches!(client.import("{}").await, Err(ClientError::Export(_))));
    let changed = with.replacen("\"n_shards\": 10", "\"n_shards\": 11", 1);
    assert!(matches!(client.import(&changed).await, Err(ClientError::Protocol(_))));
    assert_eq!(client.import(&with).await.unwrap(), session);
    assert!(matches!(client.import(&with).await, Err(ClientError::SessionExists(_))));
    assert!(client.session(session).history().await.unwrap().iter().all(|turn| turn.receipt.is_some()));
    assert_eq!(say(&client, session, "on").await.text, "sys on (17)");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_the_home_folder_is_private_and_sealed() {
    let world = World::new(1).await;
    let home = world.home.path().join("home");
    let mut config = world.config(&home);
    config.passphrase = Some(Zeroizing::new("correct horse".to_owned()));
    let client = Client::open(config).await.unwrap();
    let session = session(&client).await;
    say(&client, session, "a rather unusual sentence").await;
    client.shutdown(GRACE).await;
    let mut files = 0;
    walk(&home, &mut |path, mode| {
        let is_folder = path.is_dir();
        assert_eq!(mode, if is_folder { 0o700 } else { 0o600 }, "{}", path.display());
        if !is_folder {
            files += 1;
            let bytes = fs::read(path).unwrap();
            assert!(!bytes.windows(7).any(|window| window == b"unusual"), "{}", path.display());
        }
    });
    assert_eq!(files, 3, "the device key, one journal, and what is known of nodes");

    assert!(baton_client::home_needs_passphrase(&home).unwrap());
    let mut config = world.config(&home);
    let error = Client::open(config.clone()).await.unwrap_err();
    assert!(matches!(error, ClientError::KeyFile(KeyFileError::PassphraseNeeded { .. })));
    assert_eq!(error.exit_code(), 8);
    config.passphrase = Some(Zeroizing::new("wrong".to_owned()));
    let error = Client::open(config).await.unwrap_err();
    assert!(matches!(error, ClientError::KeyFile(KeyFileError::WrongPassphrase { .. })));
}

fn walk(folder: &Path, see: &mut dyn FnMut(&Path, u32)) {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    see(folder, mode(folder));
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path, see) } else { see(&path, mode(&path)) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_open_in_another_client_can_be_read_and_not_changed() {
    let world = World::new(1).await;
    let writer = world.client().await;
    let session = session(&writer).await;
    say(&writer, session, "one").await;
    let refused = world.client().await;
    assert_eq!(refused.sessions().await.unwrap().len(), 1, "a listing needs no lock");
    assert!(matches!(refused.session(session).info().await, Err(ClientError::InUse(id)) if id == session));
    refused.shutdown(GRACE).await;
    // A store of the reader's own, which lacks the session's blobs and its head.
    let elsewhere = MemoryStore::default();
    let mut config = world.config(world.home.path());
    (config.store, config.heads) = (Arc::new(elsewhere.clone()), Arc::new(elsewhere.clone()));
    config.read_in_use = true;
    let reader = Client::open(config).await.unwrap();
    let handle = reader.session(session);
    assert_eq!(handle.history().await.unwrap().len(), 1);
    assert!(handle.export(false).await.is_ok());
    let in_use = |error: ClientError| matches!(error, ClientError::InUse(id) if id == session);
    assert!(in_use(handle.rename(Some("mine")).await.unwrap_err()));
    assert!(in_use(handle.turn(TurnInput::user("two"), |_| ()).await.unwrap_err()));
    say(&writer, session, "two").await;
    handle.release();
    assert_eq!(handle.history().await.unwrap().len(), 2, "it is read anew");
    reader.shutdown(GRACE).await;
    writer.session(session).release();
    let next = world.client().await;
    assert!(next.session(session).info().await.is_ok());
    next.shutdown(GRACE).await;
    assert_eq!((elsewhere.puts(), elsewhere.heads().len()), (0, 0), "a reader sends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_a_file_from_its_first_message_on() {
    let (world, client) = World::with_client(1).await;
    let files = || {
        let listing = fs::read_dir(world.home.path().join("sessions")).unwrap();
        listing.filter(|entry| entry.as_ref().unwrap().path().extension().is_some()).count()
    };
    let session = session(&client).await;
    assert_eq!(files(), 0);
    let nobody = TurnInput::user("lost").with_route(|route| route.model = Some("no such model".to_owned()));
    let refused = client.session(session).turn(nobody, |_| ()).await;
    assert!(matches!(refused, Err(ClientError::NoNode(_))), "{refused:?}");
    assert_eq!(files(), 1, "no node was asked, and the message is kept");
    client.session(session).abandon().await.unwrap();
    client.session(session).rename(Some("a title")).await.unwrap();
    say(&client, session, "one").await;
    assert_eq!(files(), 1);
    client.shutdown(GRACE).await;
    let again = world.client().await;
    let info = again.session(session).info().await.unwrap();
    assert_eq!((info.turns, info.title.as_str()), (1, "a title"), "its earlier entries are in the file");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_found_by_title_text_and_project() {
    let (_world, client) = World::with_client(1).await;
    let of_anna = NewSession { project: Some("anna".to_owned()), ..NewSession::default() };
    let (first, second) = (client.new_session(of_anna).await.unwrap(), session(&client).await);
    say(&client, first, "where is the Harbour of my town").await;
    say(&client, second, "something else").await;
    client.session(second).rename(Some("Town planning")).await.unwrap();
    client.session(first).release();
    let found = async |words: &str, project: Option<&str>| {
        let found = client.search(words, project).await.unwrap().into_iter();
        found.map(|one| (one.session.id, one.snippet)).collect::<Vec<_>>()
    };
    assert_eq!(
        found("harbour MY", Some("anna")).await,
        [(first, "where is the Harbour of my town".to_owned())]
    );
    assert_eq!((found("town", None).await.len(), found("town", Some("ben")).await.len()), (2, 0));
    assert!(found("harbour planning", None).await.is_empty(), "no session has both");
    let conversation = client.session(first).conversation().await.unwrap();
    assert_eq!(conversation.project.as_deref(), Some("anna"), "read from its journal");
    assert_eq!(client.session(second).info().await.unwrap().project, None);
    assert!(client.session(second).rename(Some(&"x".repeat(300))).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_home_keeps_nothing_but_can_go_on_from_the_store() {
    let world = World::new(1).await;
    let mut config = world.config(world.home.path());
    config.home = None;
    let client = Client::open(config.clone()).await.unwrap();
    let session = session(&client).await;
    say(&client, session, "one").await;
    let root = client.session(session).backup().await.unwrap();
    client.shutdown(GRACE).await;
    assert_eq!(fs::read_dir(world.home.path()).unwrap().count(), 0);
    let client = Client::open(config).await.unwrap();
    assert_eq!(client.recover(&root).await.unwrap(), session);
    assert_eq!(say(&client, session, "two").await.text, "two (1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_other_shards_is_paid_for_nothing_and_the_session_says_why() {
    let (world, client, session) = World::with_session(1).await;
    world.nodes[0].script([Act::NeverStore]);
    world.store.set_down(true);
    say(&client, session, "one").await;
    client.shutdown(Duration::ZERO).await;
    let client = world.client().await;
    let handle = client.session(session);
    let away = handle.renew(None).await;
    assert!(matches!(away, Err(ClientError::Store(StoreError::Unavailable { .. }))), "{away:?}");
    let own = handle.verify(true).await.unwrap();
    assert!(own.is_good() && own.unavailable.is_some() && own.not_stored == [0], "{own:?}");
    client.shutdown(Duration::ZERO).await;
    world.store.set_down(false);
    world.store.set_shards(ShardCount::MAINNET);
    let client = world.client().await;
    let report = client.session(session).renew(None).await.unwrap();
    let (ours, theirs) = (ShardCount::TESTBED.get(), ShardCount::MAINNET.get());
    let [(0, error @ ClientError::OtherShards { ours: named, theirs: other })] = &report.failed[..] else {
        panic!("{report:?}")
    };
    assert_eq!(((*named, *other), error.exit_code()), ((ours, theirs), 6));
    assert!(error.hint().unwrap().contains("baton chat -s SESSION --branch"));
    client.shutdown(Duration::ZERO).await;
    assert_eq!(world.store.puts(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_turn_takes_the_shards_of_the_store_that_answers_later() {
    let (world, client, session) = World::with_session(1).await;
    world.store.set_down(true);
    // The node seals the turn, and the client ends before it has the answer.
    world.nodes[0].script([Act::SealAndVanish]);
    let (handle, text) = (client.session(session), tokio::sync::Notify::new());
    let turn = handle.turn(TurnInput::user("one"), |event| {
        if matches!(event, TurnEvent::Text(_)) {
            text.notify_one();
        }
    });
    tokio::select! {
        biased;
        () = text.notified() => {}
        ended = turn => panic!("{ended:?}"),
    }
    client.shutdown(GRACE).await;
    world.store.set_down(false);
    world.store.set_shards(ShardCount::MAINNET);
    let client = world.client().await;
    resume(&client, session).await;
    close(&client, session).await;
    let ordered: Vec<u16> = world.nodes[0].seen(|seen| seen.turns.iter().map(|auth| auth.n_shards).collect());
    assert_eq!(ordered, [ShardCount::TESTBED.get(), ShardCount::MAINNET.get()]);
    let client = world.client().await;
    let info = client.session(session).info().await.unwrap();
    assert_eq!((info.turns, info.unstored, info.shards), (1, 0, ShardCount::MAINNET.get()));
    assert!(client.session(session).verify(true).await.unwrap().not_stored.is_empty());
    assert_eq!(say(&client, session, "two").await.text, "two (1)");
}
