//! Rows C: the graph of a conversation.

use std::sync::Arc;

use baton_memory::{
    api::{ListRequest, TurnRecord},
    model::{Kind, Role},
    storage::{Space, Storage},
};

use crate::rows::world::{ANA, BEN, DAY_MS, World, on_every_store, pool, project, session, session_in};

#[test]
fn c2_c10_both_sides_are_kept_and_come_back_exactly() {
    on_every_store(async |mut world| {
        let user = format!("Bonjour 🦊 \t naïve\r\n{}", "The lighthouse blinks thrice. ".repeat(200));
        let assistant = "A lighthouse\u{0}with a strange\u{202e} answer".to_owned();
        world.say(ANA, &session("s"), 0, &user, &assistant).await;
        for _ in 0..2 {
            let items = world.everything(ANA).await;
            let episodes: Vec<_> = items.iter().filter(|item| item.kind == Kind::Episode).collect();
            assert_eq!(episodes.len(), 2);
            let of = |role| episodes.iter().find(|item| item.role == role).unwrap().text.to_string();
            assert_eq!((of(Role::User), of(Role::Assistant)), (user.clone(), assistant.clone()));
            world.reopen().await;
        }
    });
}

#[test]
fn c3_the_same_payload_in_one_branch_is_one_node_and_in_another_its_own() {
    on_every_store(async |mut world| {
        let told = "The tide table is pinned to the harbour office door.";
        for turn in 0..3 {
            world.say(ANA, &session("one"), turn, told, &format!("Noted, turn {turn}.")).await;
        }
        world.say(ANA, &session("two"), 0, told, "Noted.").await;
        for _ in 0..2 {
            let items = world.everything(ANA).await;
            let same: Vec<_> =
                items.iter().filter(|item| item.kind == Kind::Episode && &*item.text == told).collect();
            assert_eq!(same.len(), 2);
            let of =
                |name: &str| same.iter().find(|item| item.session.as_deref() == Some(name)).unwrap().accesses;
            assert_eq!((of("one"), of("two")), (2, 0));
            world.reopen().await;
        }
    });
}

#[test]
fn c4_a_fork_sees_its_parents_past_and_its_writes_never_reach_the_parent() {
    on_every_store(async |mut world| {
        world.say(ANA, &session("main"), 0, "The anchor weighs forty kilograms.", "Noted.").await;
        world.say(ANA, &session("main"), 1, "The mast measures eleven metres.", "Noted.").await;
        world.memory.fork_session(ANA, "main".into(), "try".into(), Some(1)).await.unwrap();
        world.say(ANA, &session("try"), 0, "The keel was painted crimson yesterday.", "Noted.").await;
        world.say(ANA, &session("main"), 2, "The rudder squeaks in cold water.", "Noted.").await;
        world.settle().await;
        for _ in 0..2 {
            let sees = async |place: &str, question: &str, words: &str| {
                world.finds(ANA, &session(place), question, words).await
            };
            assert!(sees("try", "How much does the anchor weigh?", "forty kilograms").await);
            assert!(sees("try", "What was the keel painted?", "crimson").await);
            // After the fork, and before it but beyond its first turn.
            assert!(!sees("try", "Why does the rudder squeak?", "squeaks").await);
            assert!(!sees("try", "What does the mast measure?", "eleven").await);
            for place in ["main", "try"] {
                assert_eq!(sees(place, "What was the keel painted?", "crimson").await, place == "try");
            }
            assert!(!world.finds(ANA, &pool(), "What was the keel painted?", "crimson").await);
            world.reopen().await;
        }
    });
}

#[test]
fn c5_numbers_only_grow_also_after_everything_was_deleted() {
    on_every_store(async |mut world| {
        let last = async |world: &mut World| {
            let events = async |storage: Arc<dyn Storage>, owner| {
                storage.read(owner, Space::Log, 0, 1 << 30).await.unwrap().last().unwrap().0
            };
            world.while_closed(events).await
        };
        world.remember(ANA, &pool(), "The anchor weighs forty kilograms.").await;
        world.settle().await;
        let before = last(&mut world).await;
        world.memory.forget_project(ANA, None).await.unwrap();
        world.reopen().await;
        world.remember(ANA, &pool(), "The mast measures eleven metres.").await;
        let after = last(&mut world).await;
        assert!(after > before, "{after} after {before}");
    });
}

#[test]
fn c8_archived_nodes_are_not_recalled_until_they_are_brought_back() {
    on_every_store(async |mut world| {
        let known = world.remember(ANA, &pool(), "The anchor weighs forty kilograms.").await;
        world.settle().await;
        let asks =
            async |world: &World| world.recalls(ANA, &pool(), "How much does the anchor weigh?").await.len();
        assert_eq!(asks(&world).await, 1);
        assert!(world.memory.archive(ANA, known.id, true).await.unwrap().archived);
        assert_eq!(asks(&world).await, 0);
        world.reopen().await;
        assert_eq!(asks(&world).await, 0);
        world.memory.archive(ANA, known.id, false).await.unwrap();
        assert_eq!(asks(&world).await, 1);
    });
}

#[test]
fn c13_branches_are_exported_and_imported() {
    on_every_store(async |mut world| {
        world.say(ANA, &session_in("main", "boat"), 0, "The anchor weighs forty kilograms.", "Noted.").await;
        world.memory.fork_session(ANA, "main".into(), "try".into(), None).await.unwrap();
        world.say(ANA, &session("try"), 0, "The keel was painted crimson yesterday.", "Noted.").await;
        world.remember(ANA, &pool(), "I am allergic to shellfish.").await;
        world.settle().await;
        let before = world.everything(ANA).await;
        let export = world.memory.export(ANA, None, true).await.unwrap();

        // For another owner, it is imported memory, and not trusted like the user's own words.
        let imported = world.memory.import(BEN, export.clone()).await.unwrap();
        assert_eq!(imported.added, before.len() as u64);
        let copies = world.everything(BEN).await;
        assert!(copies.iter().all(|item| matches!(item.author.name(), "import" | "assistant")));
        world.settle().await;
        let keel = "What was the keel painted?";
        assert!(world.finds(BEN, &session("try"), keel, "crimson").await);
        assert!(!world.finds(BEN, &project("boat"), keel, "crimson").await);

        // The owner gets the lost item back unchanged.
        assert_eq!(world.memory.import(ANA, export.clone()).await.unwrap().added, 0);
        let lost = before.iter().find(|item| item.text.contains("shellfish")).unwrap();
        world.delete(ANA, vec![lost.id]).await;
        let back = world.memory.import(ANA, export.clone()).await.unwrap();
        assert!(back.added >= 1);
        world.reopen().await;
        assert_eq!(world.memory.get(ANA, lost.id).await.unwrap().author, lost.author);

        // An import with a changed line is refused as a whole.
        let mut changed = export.clone();
        let line = changed.iter_mut().find(|line| line.contains("shellfish")).unwrap();
        line.0 = line.0.replace("shellfish", "porridge");
        let refused = world.memory.import(BEN, changed).await.unwrap_err().to_string();
        assert!(refused.contains("signature") && !refused.contains("porridge"), "{refused}");
        let mut cut = export;
        cut.pop();
        assert!(world.memory.import(BEN, cut).await.is_err());
    });
}

#[test]
fn c7_c13_older_messages_of_a_long_session_are_summarised_in_a_role_of_their_own() {
    on_every_store(async |mut world| {
        for turn in 0..60 {
            let told = format!(
                "On day {turn} I planted {} seedlings of variety {turn} in the north field.",
                turn * 3
            );
            world.say(ANA, &session("garden"), turn, &told, &format!("Good work on day {turn}.")).await;
            world.pass(DAY_MS);
        }
        world.settle().await;
        let items = world.everything(ANA).await;
        let summaries: Vec<_> = items.iter().filter(|item| item.kind == Kind::Summary).collect();
        assert_eq!(summaries.len(), 1);
        assert_eq!(summaries[0].sources.len(), 32);
        let roles: std::collections::BTreeSet<&str> = items.iter().map(|item| item.role.name()).collect();
        assert_eq!(Vec::from_iter(roles), ["assistant", "summary", "system", "user"]);
        // Summarised messages still exist, and a summary is deleted with its sources.
        let source = summaries[0].sources[0];
        assert_eq!(world.memory.get(ANA, source).await.unwrap().kind, Kind::Episode);
        world.delete(ANA, vec![source]).await;
        world.reopen().await;
        assert!(world.memory.get(ANA, summaries[0].id).await.is_err());
    });
}

#[test]
fn a_turn_that_is_told_twice_is_recorded_once() {
    on_every_store(async |mut world| {
        for _ in 0..3 {
            world.say(ANA, &session("s"), 7, "The anchor weighs forty kilograms.", "Noted.").await;
            world.reopen().await;
        }
        let items = world.everything(ANA).await;
        assert_eq!(items.iter().filter(|item| item.kind == Kind::Episode).count(), 2);
        assert!(items.iter().all(|item| item.accesses == 0));
    });
}

#[test]
fn limits_of_texts_and_names_are_told_and_kept() {
    on_every_store(async |world| {
        let long = "x".repeat(512 * 1024 + 1);
        let turn = |user: &str, place| TurnRecord {
            place,
            turn: 0,
            user: user.into(),
            assistant: "a".into(),
            time_ms: 1,
        };
        let refused = world.memory.record_turn(ANA, turn(&long, session("s"))).await.unwrap_err();
        assert!(refused.to_string().contains("524288"), "{refused}");
        for name in ["", " ", "a\nb", &"n".repeat(257)] {
            assert!(world.memory.record_turn(ANA, turn("hello", session(name))).await.is_err(), "{name:?}");
        }
        assert!(world.memory.record_turn(ANA, turn("hello", pool())).await.is_err());
        let page =
            world.memory.list(ANA, ListRequest { everything: true, limit: 9, ..ListRequest::default() });
        assert!(page.await.unwrap().items.is_empty());
    });
}
