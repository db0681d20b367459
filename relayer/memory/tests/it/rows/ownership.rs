//! Rows F of the owner's control, and rows A of durability on Walrus.

use std::sync::atomic::Ordering;

use baton_memory::{api::ListRequest, model::Kind};

use crate::rows::world::{ANA, BEN, World, on_every_store, pool, session};

const CANARY: &str = "zanzibarquokka";

fn bytes_contain(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

#[test]
fn a2_a4_facts_are_durable_on_walrus_encrypted_and_never_alike() {
    on_every_store(async |world| {
        let told = format!("I'm allergic to {CANARY}.");
        for owner in [ANA, BEN] {
            world.say(owner, &session("s"), 0, &told, "Noted.").await;
        }
        world.settle().await;
        let blobs = world.contents.as_ref().unwrap().blobs.lock().unwrap().clone();
        assert_eq!(blobs.len(), 2);
        let bytes: Vec<&Vec<u8>> = blobs.values().collect();
        assert_ne!(bytes[0], bytes[1]);
        assert!(bytes.iter().all(|bytes| !bytes_contain(bytes, CANARY) && bytes.len() >= 256));
        for owner in [ANA, BEN] {
            let facts = world.everything(owner).await;
            let fact = facts.iter().find(|item| item.kind == Kind::Fact).unwrap();
            assert!(fact.blob_id.is_some());
            let restored = world.memory.restore(owner, None, 10).await.unwrap();
            assert_eq!((restored.total, restored.skipped, restored.failed), (1, 1, 0));
        }
    });
}

#[test]
fn a2_a_store_that_fails_holds_up_storing_alone() {
    on_every_store(async |world| {
        let contents = world.contents.clone().unwrap();
        contents.down.store(true, Ordering::Relaxed);
        for turn in 0..100 {
            let told = format!("My colleague number {turn} is called Walburga Nummer{turn}.");
            world.say(ANA, &session("s"), turn, &told, "Good.").await;
        }
        // Once: no other work waits for a failing store, however many steps it takes.
        world.memory.run_due().await;
        let stats = world.memory.stats(ANA).await.unwrap();
        assert_eq!((stats.queued_jobs, stats.unembedded), (0, 0), "{stats:?}");
        assert!(stats.facts == 100 && stats.unstored == stats.facts + stats.summaries, "{stats:?}");
        let tried = contents.tries.load(Ordering::Relaxed);
        assert_eq!(tried, 1, "the store rests between tries");
        contents.down.store(false, Ordering::Relaxed);
        assert_eq!(world.memory.run_due().await, 0, "storing is not due yet");
        world.pass(3_000);
        world.settle().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unstored, 0);
    });
}

#[test]
fn a_restore_stores_anew_what_walrus_lost_or_changed() {
    on_every_store(async |world| {
        let known = world.remember(ANA, &pool(), "The anchor weighs forty kilograms.").await;
        world.remember(ANA, &pool(), "The mast measures eleven metres.").await;
        world.settle().await;
        let contents = world.contents.clone().unwrap();
        // Both are in one quilt. Bytes that do not open are read again, from an aggregator that has the right ones.
        for (lies, reads) in [(false, 1), (true, 3)] {
            contents.lies.store(lies, Ordering::Relaxed);
            let restored = world.memory.restore(ANA, None, 10).await.unwrap();
            assert_eq!((restored.restored, restored.skipped), (0, 2));
            assert_eq!(contents.reads.load(Ordering::Relaxed), reads);
        }
        contents.blobs.lock().unwrap().values_mut().for_each(|bytes| bytes[40] ^= 1);
        let restored = world.memory.restore(ANA, None, 10).await.unwrap();
        assert_eq!((restored.restored, restored.skipped, restored.failed), (2, 0, 0));
        contents.blobs.lock().unwrap().clear();
        contents.down.store(true, Ordering::Relaxed);
        let restored = world.memory.restore(ANA, None, 10).await.unwrap();
        assert_eq!((restored.restored, restored.failed), (0, 2));
        contents.down.store(false, Ordering::Relaxed);
        world.pass(700_000);
        world.settle().await;
        let restored = world.memory.restore(ANA, None, 10).await.unwrap();
        assert_eq!((restored.restored, restored.skipped), (0, 2));
        // A deleted item does not come back.
        world.delete(ANA, vec![known.id]).await;
        assert_eq!(world.memory.restore(ANA, None, 10).await.unwrap().total, 1);
        assert!(world.memory.get(ANA, known.id).await.is_err());
    });
}

#[test]
fn f1_the_owner_lists_searches_edits_and_deletes() {
    on_every_store(async |mut world| {
        for name in ["Albatross", "Cormorant", "Pelican"] {
            world.remember(ANA, &pool(), &format!("The ship {name} sails in spring.")).await;
        }
        world.settle().await;
        let list = async |world: &World, words: &str, after| {
            let request =
                ListRequest { words: Some(words.into()), limit: 2, after, ..ListRequest::default() };
            let filters = baton_memory::api::Filters { kinds: vec![Kind::Fact], ..Default::default() };
            world.memory.list(ANA, ListRequest { filters, ..request }).await.unwrap()
        };
        let first = list(&world, "ship spring", None).await;
        let second = list(&world, "ship spring", first.next).await;
        let names: Vec<&str> = first.items.iter().chain(&second.items).map(|item| &*item.text).collect();
        assert_eq!(names.len(), 3);
        assert!(names[0].contains("Pelican") && second.next.is_none(), "newest first: {names:?}");
        let id = list(&world, "albatross", None).await.items[0].id;
        let edited = world.edit(ANA, id, "The ship Petrel sails in autumn.").await;
        assert_eq!(edited.id, id);
        for _ in 0..2 {
            world.settle().await;
            assert!(list(&world, "albatross", None).await.items.is_empty());
            assert!(!world.finds(ANA, &pool(), "Where does the ship Albatross sail?", "Albatross").await);
            let petrel = world.recalls(ANA, &pool(), "When does the Petrel sail in autumn?").await;
            assert_eq!(petrel[0], "The ship Petrel sails in autumn.");
            world.reopen().await;
        }
        assert_eq!(world.delete(ANA, vec![id, id]).await, 2);
        for _ in 0..2 {
            assert!(world.memory.get(ANA, id).await.is_err());
            assert!(!world.finds(ANA, &pool(), "When does the Petrel sail in autumn?", "Petrel").await);
            world.reopen().await;
        }
    });
}

#[test]
fn an_erased_owner_begins_anew_with_nothing() {
    on_every_store(async |mut world| {
        world.remember(ANA, &pool(), &format!("The word is {CANARY}.")).await;
        world.remember(BEN, &pool(), "Ben's word is another.").await;
        world.settle().await;
        world.memory.erase_owner(ANA).await.unwrap();
        for _ in 0..2 {
            assert!(world.everything(ANA).await.is_empty());
            assert_eq!(world.everything(BEN).await.iter().filter(|item| item.kind == Kind::Fact).count(), 1);
            world.reopen().await;
        }
        world.remember(ANA, &pool(), "A new beginning in autumn.").await;
        assert_eq!(
            world.recalls(ANA, &pool(), "new beginning in autumn").await,
            ["A new beginning in autumn."]
        );
    });
}

/// All bytes below a folder.
fn bytes_at_rest(folder: &std::path::Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(bytes_at_rest(&path));
        } else {
            all.extend(std::fs::read(path).unwrap());
        }
    }
    all
}

#[test]
fn a3_nothing_that_was_said_is_at_rest_in_the_clear() {
    on_every_store(async |mut world| {
        let place = baton_memory::api::Place {
            session: Some(format!("{CANARY} session")),
            project: Some(format!("{CANARY} project")),
            persona: Some(format!("{CANARY} persona")),
        };
        world.say(ANA, &place, 0, &format!("I'm allergic to {CANARY}."), &format!("{CANARY}, noted.")).await;
        world.memory.put_record(ANA, &format!("{CANARY} record"), Some(CANARY.into())).await.unwrap();
        world.settle().await;
        world.memory.write_snapshot(ANA).await.unwrap();
        world.reopen().await;
        let bytes = bytes_at_rest(world.folder.path());
        // The storage tests inspect a database's pages.
        assert!(bytes.len() > 1_000 || !world.is_embedded());
        assert!(!bytes_contain(&bytes, CANARY));
        // The owner's address is absent too; the key file's name is a keyed hash.
        assert!(!bytes.windows(32).any(|window| window == ANA.0));
        assert_eq!(
            world.memory.get_record(ANA, &format!("{CANARY} record")).await.unwrap().unwrap(),
            CANARY.as_bytes()
        );
    });
}
