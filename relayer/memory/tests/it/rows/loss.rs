//! A database with lost data is never taken for a smaller one: the owner is refused until the database is
//! restored, or the loss accepted.

use baton_memory::{
    api::{ListRequest, MemoryError},
    storage::{Batch, Space},
};

use crate::rows::world::{ANA, BEN, World, fact, on_every_store, pool, session};

const CANARY: &str = "zanzibarquokka";
const SHIPS: [&str; 6] = ["Albatross", "Cormorant", "Pelican", "Petrel", "Gannet", "Skua"];

fn told(ship: &str) -> String {
    format!("The ship {ship} sails in spring.")
}

/// A memory that was closed in order.
async fn told_of_ships(world: &World) {
    for ship in SHIPS {
        world.remember(ANA, &pool(), &told(ship)).await;
    }
    world.settle().await;
    world.memory.close_all().await;
}

/// Reads and writes fail, and the error gives the reason and the next step.
async fn assert_refused(world: &World) {
    let read =
        world.memory.list(ANA, ListRequest { everything: true, limit: 10, ..ListRequest::default() }).await;
    let written = world.memory.remember(ANA, vec![fact(&pool(), "Anything.")]).await.map(drop);
    for refused in [read.map(drop), written] {
        let Err(MemoryError::Lost(text)) = refused else { panic!("not refused: {refused:?}") };
        assert!(text.contains("backup") && text.contains("accept-loss"), "{text}");
    }
    let recall = world.recall(ANA, &pool(), "Which ship sails in spring?").await;
    assert!(recall.hits.is_empty() && recall.degraded.unwrap().contains("lost"));
}

async fn ships(world: &World) -> Vec<&'static str> {
    let kept = world.everything(ANA).await;
    SHIPS.into_iter().filter(|ship| kept.iter().any(|item| *item.text == told(ship))).collect()
}

/// It works normally with the remaining data.
async fn assert_works(world: &mut World, left: &[&str]) {
    for round in 0..2 {
        assert_eq!(ships(world).await, left);
        for ship in left {
            let found = world.recalls(ANA, &pool(), &format!("When does the ship {ship} sail?")).await;
            assert!(found.contains(&told(ship)), "{ship}: {found:?}");
        }
        let new = format!("The lighthouse number {round} blinks twice.");
        world.remember(ANA, &pool(), &new).await;
        world.settle().await;
        assert!(world.recalls(ANA, &pool(), "Which lighthouse blinks twice?").await.contains(&new));
        world.reopen().await;
    }
}

#[test]
fn a_log_that_lost_its_end_or_a_part_is_refused_until_the_loss_is_accepted() {
    for is_hole in [false, true] {
        on_every_store(async |mut world| {
            told_of_ships(&world).await;
            let lost = world
                .while_closed(async |storage, owner| {
                    let log = storage.read(owner, Space::Log, 0, usize::MAX).await.unwrap();
                    let numbers: Vec<u64> = log.into_iter().map(|(number, _)| number).collect();
                    let gone = if is_hole { &numbers[2..4] } else { &numbers[numbers.len() - 3..] };
                    let remove = gone.iter().map(|number| (Space::Log, *number)).collect();
                    let version = storage.version(owner).await.unwrap();
                    storage.commit(owner, version, Batch { remove, ..Batch::default() }).await.unwrap();
                    gone.len() as u64
                })
                .await;
            assert_refused(&world).await;
            let loss = world.memory.accept_loss(ANA).await.unwrap();
            assert_eq!((loss.lost_events, loss.removed), (lost, 0));
            world.settle().await;
            let left = ships(&world).await;
            assert!((4..=5).contains(&left.len()), "{left:?}");
            assert_works(&mut world, &left).await;
        });
    }
}

#[test]
fn an_emptied_database_is_refused_until_the_loss_is_accepted() {
    on_every_store(async |mut world| {
        told_of_ships(&world).await;
        world.remember(BEN, &pool(), "Ben is here as well.").await;
        world.put_back(None).await;
        assert_refused(&world).await;
        let mut lost = world.memory.owners_with_loss().await.unwrap();
        lost.sort();
        assert_eq!(lost, [ANA, BEN]);
        let loss = world.memory.accept_loss(ANA).await.unwrap();
        assert!(loss.events == 0 && loss.lost_events > 6, "{loss:?}");
        assert_eq!(world.memory.owners_with_loss().await.unwrap(), [BEN]);
        assert_works(&mut world, &[]).await;
    });
}

#[test]
fn an_older_copy_put_back_is_refused_and_what_was_deleted_since_stays_deleted() {
    on_every_store(async |mut world| {
        let secret = world.remember(ANA, &pool(), &format!("The word is {CANARY}.")).await;
        told_of_ships(&world).await;
        let backup = world.back_up().await;
        world.delete(ANA, vec![secret.id]).await;
        world.remember(ANA, &pool(), "The ship Fulmar sails in autumn.").await;
        world.settle().await;
        world.put_back(Some(&backup)).await;
        assert_refused(&world).await;
        let loss = world.memory.accept_loss(ANA).await.unwrap();
        // The segment of a deleted item lost its key: 256 events, here all of them.
        assert_eq!(loss.events, 0, "{loss:?}");
        world.settle().await;
        assert!(world.everything(ANA).await.iter().all(|item| !item.text.contains(CANARY)));
        assert_works(&mut world, &[]).await;
    });
}

#[test]
fn the_newest_copy_put_back_is_not_refused() {
    on_every_store(async |mut world| {
        told_of_ships(&world).await;
        let backup = world.back_up().await;
        world.put_back(Some(&backup)).await;
        assert_works(&mut world, &SHIPS).await;
    });
}

#[test]
fn a_database_cut_off_anywhere_is_never_taken_for_a_smaller_one() {
    on_every_store(async |mut world| {
        if !world.is_embedded() {
            return;
        }
        told_of_ships(&world).await;
        for turn in 0..20 {
            // Words that do not compress, so that the file is large enough to cut.
            let words = hex::encode(baton_keys::secret::random_bytes::<30_000>());
            world.say(ANA, &session("s"), turn, &format!("{turn} {words}"), "Good.").await;
        }
        world.settle().await;
        world.memory.close_all().await;
        let all = world.everything(ANA).await.len();
        let backup = world.back_up().await;
        let log = world.folder.path().join("memory/memory.sqlite");
        let whole = std::fs::metadata(&log).unwrap().len();
        let mut refused = 0;
        for part in 0..24 {
            world.put_back(Some(&backup)).await;
            let opened = world
                .damaged(|data| {
                    let file =
                        std::fs::OpenOptions::new().write(true).open(data.join("memory.sqlite")).unwrap();
                    file.set_len(whole * part / 24).unwrap();
                })
                .await;
            let request = ListRequest {
                everything: true,
                include_archived: true,
                limit: 200,
                ..ListRequest::default()
            };
            match opened {
                Err(error) => {
                    assert!(error.to_string().contains("backup"), "{error}");
                    refused += 1;
                }
                Ok(()) => match world.memory.list(ANA, request).await {
                    Ok(page) => assert_eq!(page.items.len(), all, "cut at {part} of 24 parts"),
                    Err(error) => {
                        assert!(matches!(error, MemoryError::Lost(_) | MemoryError::Damaged(_)), "{error}");
                        refused += 1;
                    }
                },
            }
        }
        assert!(refused >= 6, "the cuts hit nothing: {refused}");
    });
}
