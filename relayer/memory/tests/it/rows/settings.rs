//! An owner's decisions on how its memory is written, and repeated calls.

use std::sync::Arc;

use baton_memory::{
    Memory,
    api::{MemoryError, WrittenBy},
};

use crate::{
    rows::world::{ANA, BEN, fact, on_every_store, pool, project, session},
    scripted::ScriptedModel,
};

/// Answers that there is nothing to keep.
fn declining_model() -> Arc<ScriptedModel> {
    ScriptedModel::saying(
        r#"{"mode":"in_world_answer","risk":"low","flags":[],"note":"","extractMemory":false}"#,
    )
}

/// The rules are unsure about it, so a model is asked if there is one.
const UNSURE: &str = "My daughter Philippa started at the maritime school, and I teach there on Mondays.";

#[test]
fn third_party_nodes_read_exchanges_of_owners_who_allowed_it_and_of_nobody_else() {
    on_every_store(async |mut world| {
        let nodes = declining_model();
        world.node_writer = Some(nodes.writer());
        world.reopen().await;
        let settings = world.memory.settings(ANA).await.unwrap();
        assert_eq!(
            (settings.extract_through_nodes, settings.nodes_offered),
            (false, true),
            "no is the default"
        );
        assert_eq!(settings.written_by, WrittenBy::Rules);
        world.say(ANA, &session("s"), 0, UNSURE, "Congratulations!").await;
        world.settle().await;
        assert_eq!(nodes.asked(), 0);

        let settings = world.memory.allow_nodes(ANA, true).await.unwrap();
        assert_eq!((settings.extract_through_nodes, settings.written_by), (true, WrittenBy::Nodes));
        world.say(ANA, &session("s"), 1, &UNSURE.replace("Philippa", "Rosalind"), "Well done!").await;
        world.say(BEN, &session("s"), 0, &UNSURE.replace("Philippa", "Clementine"), "Well done!").await;
        world.settle().await;
        let asked = nodes.asked();
        assert!(asked > 0 && nodes.saw("Rosalind"));
        assert!(!nodes.saw("Philippa") && !nodes.saw("Clementine"), "neither before nor another's");

        // It persists, even across a snapshot, and is reported.
        world.memory.write_snapshot(ANA).await.unwrap();
        world.reopen().await;
        assert!(world.memory.settings(ANA).await.unwrap().extract_through_nodes);
        assert!(world.memory.stats(ANA).await.unwrap().extract_through_nodes);
        assert!(!world.memory.stats(BEN).await.unwrap().extract_through_nodes);

        // After the permission is withdrawn, rules read the waiting turns.
        world.say(ANA, &session("s"), 2, &UNSURE.replace("Philippa", "Henrietta"), "Well done!").await;
        world.memory.allow_nodes(ANA, false).await.unwrap();
        world.settle().await;
        assert_eq!(nodes.asked(), asked);
        assert!(!nodes.saw("Henrietta"));
        let facts = world.everything(ANA).await;
        assert!(facts.iter().any(|item| item.text.contains("Henrietta")), "the rules did it");
    });
}

#[test]
fn an_endpoint_of_the_operators_goes_before_third_party_nodes() {
    on_every_store(async |mut world| {
        let (endpoint, nodes) = (declining_model(), declining_model());
        world.writer = Some(endpoint.writer());
        world.node_writer = Some(nodes.writer());
        world.reopen().await;
        let settings = world.memory.allow_nodes(ANA, true).await.unwrap();
        assert_eq!(settings.written_by, WrittenBy::Endpoint);
        world.say(ANA, &session("s"), 0, UNSURE, "Congratulations!").await;
        world.settle().await;
        assert!(endpoint.asked() > 0);
        assert_eq!(nodes.asked(), 0);
    });
}

#[test]
fn third_party_nodes_see_no_password_and_nothing_off_the_record() {
    on_every_store(async |mut world| {
        let nodes = declining_model();
        world.node_writer = Some(nodes.writer());
        world.reopen().await;
        world.memory.allow_nodes(ANA, true).await.unwrap();
        let secret = format!("{UNSURE} My password is hunter2-Tz9!.");
        world.say(ANA, &session("s"), 0, &secret, "Better not tell me that.").await;
        let off = "Off the record: my sister Wilhelmina lost her licence at the harbour.";
        for turn in 1..10 {
            // Enough turns for the backstop, which reads turns together.
            world.say(ANA, &session("s"), turn, &format!("{off} {turn}"), "I see.").await;
        }
        world.settle().await;
        assert!(!nodes.saw("hunter2") && !nodes.saw("Wilhelmina"));
        // Nor in the summary of a long conversation.
        for turn in 10..60 {
            world
                .say(
                    ANA,
                    &session("s"),
                    turn,
                    &format!("The ferry number {turn} was late."),
                    &format!("Oh, the {turn}."),
                )
                .await;
        }
        world.settle().await;
        assert!(world.memory.stats(ANA).await.unwrap().summaries > 0, "it was summarised");
        assert!(!nodes.saw("hunter2") && !nodes.saw("Wilhelmina"));
        let everything = world.everything(ANA).await;
        let told = |item: &&baton_memory::api::ItemView| !item.archived && item.text.contains("Wilhelmina");
        assert!(everything.iter().find(told).is_none());
    });
}

#[test]
fn a_call_with_a_known_idempotency_key_is_answered_and_not_made_again() {
    on_every_store(async |mut world| {
        let call = |text: &str, key: &str| vec![(fact(&pool(), text), Some(key.to_owned()))];
        let once = world.memory.remember_once(ANA, call("I live in Lisbon.", "k1")).await.unwrap().remove(0);
        assert!(!once.existed);
        let moved = world.remember(ANA, &pool(), "I live in Porto.").await;
        assert_eq!(moved.superseded, Some(once.id));
        for snapshot in [false, true] {
            if snapshot {
                world.memory.write_snapshot(ANA).await.unwrap();
            }
            world.reopen().await;
            // A late retry does not undo newer statements.
            let again =
                world.memory.remember_once(ANA, call("I live in Lisbon.", "k1")).await.unwrap().remove(0);
            assert_eq!((again.id, again.existed, again.superseded), (once.id, true, None));
            assert_eq!(world.memory.get(ANA, moved.id).await.unwrap().valid_to_ms, None);
            assert_eq!(world.memory.stats(ANA).await.unwrap().facts, 2);
        }
        // The same key with another call is the caller's mistake; nothing of the call takes effect.
        let mut both = call("I keep newts.", "k2");
        both.extend(call("I live in Faro.", "k1"));
        let refused = world.memory.remember_once(ANA, both).await;
        assert!(matches!(refused, Err(MemoryError::Conflict(_))), "{refused:?}");
        let elsewhere = vec![(fact(&project("p"), "I live in Lisbon."), Some("k1".to_owned()))];
        let refused = world.memory.remember_once(ANA, elsewhere).await;
        assert!(matches!(refused, Err(MemoryError::Conflict(_))), "{refused:?}");
        assert_eq!(world.memory.stats(ANA).await.unwrap().facts, 2);

        // Twice in one call, and for another owner.
        let mut twice = call("I keep newts.", "k3");
        twice.extend(call("I keep newts.", "k3"));
        let answers = world.memory.remember_once(ANA, twice).await.unwrap();
        assert_eq!((answers[0].id, answers[1].existed), (answers[1].id, true));
        // A key may be made from the words, so it does not outlive them.
        let newt = answers[0].id;
        world.edit(ANA, newt, "I keep salamanders.").await;
        let anew = world.memory.remember_once(ANA, call("I keep newts.", "k3")).await.unwrap().remove(0);
        assert!(!anew.existed && anew.id != newt);
        world.delete(ANA, vec![anew.id]).await;
        world.reopen().await;
        let anew = world.memory.remember_once(ANA, call("I keep newts.", "k3")).await.unwrap().remove(0);
        assert!(!anew.existed);
        let others = world.memory.remember_once(BEN, call("I keep toads.", "k1")).await.unwrap().remove(0);
        assert!(!others.existed);
        let long = world.memory.remember_once(ANA, call("x y z", &"k".repeat(300))).await;
        assert!(matches!(long, Err(MemoryError::Invalid(_))));
    });
}

#[test]
fn only_the_latest_idempotency_keys_are_known() {
    on_every_store(async |world| {
        let call = |number: usize| (fact(&pool(), "I keep bees."), Some(format!("key {number}")));
        let first = world.memory.remember_once(ANA, vec![call(0)]).await.unwrap().remove(0);
        for hundred in 0..11 {
            let calls = (1..=100).map(|number| call(hundred * 100 + number)).collect();
            world.memory.remember_once(ANA, calls).await.unwrap();
        }
        world.memory.supersede(ANA, first.id, "I keep wasps.".into()).await.unwrap();
        let late = world.memory.remember_once(ANA, vec![call(1100)]).await.unwrap().remove(0);
        assert_eq!((late.id, late.existed), (first.id, true), "known");
        let early = world.memory.remember_once(ANA, vec![call(0)]).await.unwrap().remove(0);
        assert!(!early.existed && early.id != first.id, "forgotten");
    });
}

#[test]
fn records_are_changed_together_on_what_was_read() {
    on_every_store(async |world| {
        let names = ["one".to_owned(), "two".to_owned()];
        let memory = &world.memory;
        // Two relayers if the store allows it: one relayer's decision is valid when it is written.
        let other = world.another_relayer().await;
        let rise = |memory: Memory| async move {
            let names = ["one".to_owned(), "two".to_owned()];
            let change = |read: &[Option<Vec<u8>>]| {
                let count = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, |bytes| bytes[0]);
                let next = vec![count(&read[0]).max(count(&read[1])) + 1];
                Ok(vec![(names[0].clone(), Some(next.clone())), (names[1].clone(), Some(next))])
            };
            // A writer that lost too often must try again, and does.
            loop {
                match memory.change_records(ANA, &names, change).await {
                    Err(MemoryError::Unavailable(_)) => {}
                    changed => return changed.unwrap(),
                }
            }
        };
        let both = [Some(memory.clone()), other].into_iter().flatten().cycle().take(20);
        futures::future::join_all(both.map(rise)).await;
        for name in &names {
            assert_eq!(memory.get_record(ANA, name).await.unwrap(), Some(vec![20]), "none was lost");
        }
        let refused = memory.change_records(ANA, &names, |_| Err(MemoryError::Invalid("no".into()))).await;
        assert!(refused.is_err());
        let removal = |_: &[Option<Vec<u8>>]| Ok(vec![(names[0].clone(), None)]);
        memory.change_records(ANA, &names, removal).await.unwrap();
        assert_eq!(memory.get_record(ANA, "one").await.unwrap(), None);
        assert_eq!(memory.get_record(ANA, "two").await.unwrap(), Some(vec![20]));
    });
}
