//! Rows E, and rows A, D and F about extraction.

use std::{collections::HashSet, sync::atomic::Ordering};

use baton_memory::{
    api::ItemView,
    ids::OwnerId,
    model::{Author, Consent, Kind},
};

use crate::{
    rows::world::{
        ANA, DAY_MS, START_MS, World, fact, on_every_store, pool, project, request, session, session_in,
        with_persona,
    },
    scripted::ScriptedModel,
};

async fn facts(world: &World, owner: OwnerId) -> Vec<ItemView> {
    world.everything(owner).await.into_iter().filter(|item| item.kind == Kind::Fact).collect()
}

fn words(items: &[ItemView]) -> Vec<String> {
    items.iter().map(|item| item.text.to_string()).collect()
}

#[test]
fn what_is_said_off_the_record_is_kept_and_not_recalled() {
    on_every_store(async |world| {
        let told = "Off the record: my sister Philippa is leaving the orchestra.";
        world.say(ANA, &session("s"), 0, told, "Understood.").await;
        world.settle().await;
        assert!(facts(&world, ANA).await.is_empty());
        assert!(world.recalls(ANA, &pool(), "Who is leaving the orchestra? Philippa?").await.is_empty());
        assert!(world.everything(ANA).await.iter().any(|item| &*item.text == told && item.archived));
    });
}

#[test]
fn e1_e3_each_write_grafts_a_state_and_typed_edges_onto_fixed_anchors() {
    on_every_store(async |mut world| {
        let place = session_in("s", "boat");
        world.say(ANA, &place, 0, "My colleague Marisol Quintero maintains the engine.", "Good.").await;
        world.say(ANA, &place, 1, "I live in Lisbon.", "Good.").await;
        world.say(ANA, &place, 2, "My colleague Marisol Quintero sings in a choir.", "Good.").await;
        world.settle().await;
        for _ in 0..2 {
            let graph = world.memory.graph(ANA, place.clone()).await.unwrap();
            let named = |text: &str| graph.nodes.iter().filter(|node| &*node.text == text).count();
            assert_eq!(named("the user"), 1, "one anchor");
            assert_eq!(
                graph.nodes.iter().filter(|n| n.kind == Kind::Entity && n.text.contains("Marisol")).count(),
                1
            );
            let atoms: HashSet<_> =
                graph.nodes.iter().filter(|node| node.kind == Kind::Fact).map(|node| node.id).collect();
            assert!(atoms.len() >= 3);
            for atom in &atoms {
                assert!(
                    graph.edges.iter().any(|edge| edge.from == *atom || edge.to == *atom),
                    "a lonely atom"
                );
            }
            let between =
                graph.edges.iter().filter(|edge| atoms.contains(&edge.from) && atoms.contains(&edge.to));
            assert!(between.clone().any(|edge| edge.label == "temporal_follows"), "memory to memory");
            assert!(graph.edges.iter().all(|edge| !edge.label.is_empty() && !edge.description.is_empty()));
            assert!(graph.edges.iter().all(|edge| (0.0..=1.0).contains(&edge.confidence)));
            world.reopen().await;
        }
    });
}

#[test]
fn e2_graph_index_and_snapshot_are_rebuilt_from_the_log() {
    on_every_store(async |mut world| {
        for turn in 0..20 {
            let told = format!("My friend Walburga Nummer{turn} lives in Coimbra and keeps {turn} goats.");
            world.say(ANA, &session_in("s", "farm"), turn, &told, "Good.").await;
        }
        world.settle().await;
        let place = session_in("s", "farm");
        let shape = async |world: &World| {
            let graph = world.memory.graph(ANA, place.clone()).await.unwrap();
            let mut nodes: Vec<String> =
                graph.nodes.iter().map(|node| format!("{} {}", node.id, &*node.text)).collect();
            let mut edges: Vec<String> =
                graph.edges.iter().map(|edge| format!("{} {} {}", edge.from, edge.label, edge.to)).collect();
            nodes.sort();
            edges.sort();
            let found = world.recalls(ANA, &place, "How many goats does Nummer7 keep?").await;
            (nodes, edges, found)
        };
        let before = shape(&world).await;
        assert!(before.2[0].contains("Nummer7"));
        // From the log alone.
        world.reopen().await;
        assert_eq!(shape(&world).await, before);
        // From a snapshot and the log behind it.
        world.memory.write_snapshot(ANA).await.unwrap();
        world.say(ANA, &session_in("s", "farm"), 99, "Hello!", "Hello!").await;
        world.settle().await;
        world.reopen().await;
        assert_eq!(shape(&world).await, before);
    });
}

#[test]
fn e6_what_asks_for_consent_is_not_recalled_before_the_user_agrees() {
    on_every_store(async |mut world| {
        let told = "I was diagnosed with epilepsy last year.";
        world.say(ANA, &session("s"), 0, told, "Thank you for telling me.").await;
        world.say(ANA, &session("s"), 1, "I take antidepressants every morning.", "I see.").await;
        world.settle().await;
        let waiting = world.waiting(ANA).await;
        assert!(!waiting.is_empty(), "{:?}", words(&facts(&world, ANA).await));
        let asked = baton_memory::api::RecallRequest {
            scope: baton_memory::model::MemoryScope::Full,
            filters: baton_memory::api::Filters { kinds: vec![Kind::Fact], ..Default::default() },
            threshold: Some(0.1),
            ..request(&pool(), "Which diagnosis of epilepsy, which antidepressants?")
        };
        assert!(world.memory.recall(ANA, asked.clone()).await.hits.is_empty());
        world.reopen().await;
        let (yes, no) = (waiting[0].id, waiting.get(1).map(|item| item.id));
        assert_eq!(world.decide(ANA, vec![yes], Consent::Granted).await, 1);
        if let Some(no) = no {
            assert_eq!(world.decide(ANA, vec![no], Consent::Denied).await, 1);
            assert!(world.memory.get(ANA, no).await.is_err());
        }
        world.settle().await;
        let found = world.memory.recall(ANA, asked).await;
        assert!(found.hits.iter().any(|hit| hit.view.id == yes), "{found:?}");
        assert!(world.waiting(ANA).await.is_empty());
    });
}

#[test]
fn e8_the_backstop_finds_what_the_gate_missed_turn_by_turn() {
    // The judge passes the turns, and the extractor finds nothing in a single one; together they contain a
    // fact.
    on_every_store(async |mut world| {
        let told = "Leopold from the ferry has become captain in the meantime";
        world.writer = Some(ScriptedModel::new(move |prompt| {
            if prompt.contains("extractMemory") {
                return r#"{"mode":"in_world_answer","risk":"low","flags":[],"note":"","extractMemory":true}"#.into();
            }
            let together = prompt.contains("number 0") && prompt.contains(told);
            if together {
                format!(r#"[{{"quote":"{told}","layer":"profile","salience":0.9}}]"#)
            } else {
                "[]".into()
            }
        }).writer());
        world.reopen().await;
        for turn in 0..9 {
            let said = if turn == 5 { format!("{told}.") } else { format!("And the ferry, number {turn}?") };
            world.say(ANA, &session("s"), turn, &said, "Yes.").await;
        }
        world.settle().await;
        assert!(words(&facts(&world, ANA).await).iter().any(|fact| fact.contains("Leopold")));
        let stats = world.memory.stats(ANA).await.unwrap();
        assert_eq!((stats.queued_jobs, stats.abandoned_jobs), (0, 0));
        assert_eq!(world.memory.run_due().await, 0, "nothing is looked at for ever");
    });
}

#[test]
fn e4_e5_a_judges_no_closes_the_gate_for_good_also_for_the_backstop() {
    let verdicts = [
        r#"{"mode":"safe_redirect","risk":"low","flags":[],"note":"","extractMemory":false}"#,
        r#"{"mode":"safe_redirect","risk":"low","flags":[],"note":"","extractMemory":true}"#,
        r#"{"mode":"in_world_answer","risk":"low","flags":[],"note":"","extractMemory":false}"#,
    ];
    for verdict in verdicts {
        on_every_store(async |mut world| {
            // An extractor that would quote any shown text.
            let names = ["Biscuit", "Crumpet", "Waffle", "Pretzel", "Muffin", "Scone", "Bagel", "Brioche"];
            let facts_said = names.map(|name| format!("My dog is called {name}."));
            let quoted = facts_said.clone();
            let judge = ScriptedModel::new(move |prompt| {
                if prompt.contains("extractMemory") {
                    return verdict.into();
                }
                let quotes = quoted.iter().filter(|quote| prompt.contains(quote.as_str()));
                let quotes: Vec<String> = quotes
                    .map(|quote| format!(r#"{{"quote":"{quote}","layer":"profile","salience":0.9}}"#))
                    .collect();
                format!("[{}]", quotes.join(","))
            });
            world.writer = Some(judge.writer());
            world.reopen().await;
            for (turn, said) in (0..).zip(&facts_said) {
                world.say(ANA, &session("s"), turn, said, "Good dog.").await;
            }
            world.settle().await;
            assert_eq!(words(&facts(&world, ANA).await), Vec::<String>::new(), "{verdict}");
            // Other turns that only the rules skip are read again, without the refused turns.
            for turn in 8..18 {
                world.say(ANA, &session("s"), turn, &format!("How far is moon number {turn}?"), "Far.").await;
            }
            world.settle().await;
            world.reopen().await;
            world.settle().await;
            assert_eq!(words(&facts(&world, ANA).await), Vec::<String>::new(), "{verdict}");
            assert_eq!(world.memory.stats(ANA).await.unwrap().queued_jobs, 0);
        });
    }
}

#[test]
fn f3_a_contradicted_fact_ends_and_stays_in_history() {
    on_every_store(async |mut world| {
        world.say(ANA, &session("old"), 0, "I live in Lisbon.", "Nice.").await;
        world.settle().await;
        world.pass(90 * DAY_MS);
        world.say(ANA, &session("new"), 0, "I live in Bergen now.", "Brr.").await;
        world.settle().await;
        for _ in 0..2 {
            let facts = facts(&world, ANA).await;
            let lisbon = facts.iter().find(|fact| fact.text.contains("Lisbon")).unwrap();
            let bergen = facts.iter().find(|fact| fact.text.contains("Bergen")).unwrap();
            assert_eq!(
                (lisbon.superseded_by, lisbon.valid_to_ms),
                (Some(bergen.id), Some(bergen.valid_from_ms))
            );
            assert_eq!(bergen.valid_to_ms, None);
            let profile = words(&world.memory.profile(ANA, pool()).await.unwrap()).join(" ");
            assert!(profile.contains("Bergen") && !profile.contains("Lisbon"), "{profile}");
            world.reopen().await;
        }
        // By hand too; and an ended fact is not ended again.
        let known = world.remember(ANA, &pool(), "The harbour master is Ulrike.").await;
        let next =
            world.memory.supersede(ANA, known.id, "The harbour master is Fridolin.".into()).await.unwrap();
        let old = world.memory.get(ANA, known.id).await.unwrap();
        assert_eq!(old.superseded_by, Some(next.id));
        assert!(world.memory.supersede(ANA, known.id, "x".into()).await.is_err());
    });
}

#[test]
fn f4_every_item_names_its_source_and_an_assistant_ends_nothing_of_the_users() {
    on_every_store(async |world| {
        let aria = with_persona("a", "Aria");
        world
            .say(ANA, &aria, 4, "I live in Lisbon.", "You live in Bergen, I think. I live in the cloud.")
            .await;
        world.settle().await;
        let all = world.everything(ANA).await;
        for item in all.iter().filter(|item| item.kind != Kind::Entity) {
            assert_eq!(item.session.as_deref(), Some("a"));
            assert_eq!((item.turn, item.time_ms), (Some(4), START_MS));
            let trusted = !item.source().contains("not confirmed");
            assert_eq!(trusted, item.author == Author::User, "{item:?}");
        }
        let lives = all.iter().find(|item| item.kind == Kind::Fact && item.text.contains("Lisbon")).unwrap();
        assert_eq!(lives.valid_to_ms, None);
        assert_eq!(lives.sources.len(), 1);
    });
}

#[test]
fn f8_nonsense_of_a_model_loses_nothing_and_is_tried_again_and_counted() {
    on_every_store(async |mut world| {
        let nonsense = ScriptedModel::saying("Sure! Here is a poem about {JSON: [");
        world.writer = Some(nonsense.writer());
        world.reopen().await;
        let told = "My daughter Philippa started at the maritime school, and I teach there on Mondays.";
        world.say(ANA, &session("s"), 0, told, "Congratulations!").await;
        world.memory.run_due().await;
        let stats = world.memory.stats(ANA).await.unwrap();
        assert!(world.everything(ANA).await.iter().any(|item| &*item.text == told), "the turn is kept");
        if nonsense.asked() == 0 {
            // The rules were sure by themselves, so the model could spoil nothing.
            assert_eq!(stats.queued_jobs, 0);
            return;
        }
        assert_eq!((stats.queued_jobs, stats.retried_jobs, stats.abandoned_jobs), (1, 1, 0));
        for _ in 0..12 {
            world.pass(700_000);
            world.memory.run_due().await;
        }
        let stats = world.memory.stats(ANA).await.unwrap();
        assert_eq!((stats.queued_jobs, stats.retried_jobs, stats.abandoned_jobs), (0, 0, 1));
        assert!(!facts(&world, ANA).await.is_empty(), "the rules did what the model could not");
        // Also after a restart, and from a snapshot.
        world.memory.write_snapshot(ANA).await.unwrap();
        world.reopen().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().abandoned_jobs, 1);
    });
}

#[test]
fn a9_what_is_queued_survives_a_crash() {
    on_every_store(async |mut world| {
        world.contents.as_ref().unwrap().down.store(true, Ordering::Relaxed);
        world.say(ANA, &session("s"), 0, "I'm allergic to peanuts.", "Noted.").await;
        // Nothing ran yet.
        world.reopen().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().queued_jobs, 1);
        world.memory.run_due().await;
        let stats = world.memory.stats(ANA).await.unwrap();
        assert_eq!((stats.queued_jobs, stats.facts, stats.unstored), (0, 1, 1));
        // Walrus was down: turns went on, and memory catches up.
        world.reopen().await;
        world.contents.as_ref().unwrap().down.store(false, Ordering::Relaxed);
        world.pass(700_000);
        world.settle().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unstored, 0);
        let facts = facts(&world, ANA).await;
        assert_eq!(facts.len(), 1, "nothing is doubled");
        assert!(facts[0].blob_id.is_some());
    });
}

#[test]
fn what_is_remembered_twice_is_there_once() {
    on_every_store(async |world| {
        let first = world.remember(ANA, &pool(), "The anchor weighs forty kilograms.").await;
        let again = world.remember(ANA, &pool(), "  the anchor weighs FORTY kilograms ").await;
        assert_eq!((again.id, again.existed), (first.id, true));
        let both = vec![fact(&pool(), "The mast is tall."), fact(&pool(), "The mast is tall.")];
        let both = world.memory.remember(ANA, both).await.unwrap();
        assert_eq!((both[0].id, both[1].existed), (both[1].id, true));
        let other = world.remember(ANA, &project("boat"), "The anchor weighs forty kilograms.").await;
        assert!(!other.existed, "another place has its own");
        // The same letters with another mark in a word are other words: another memory, or a later value.
        for (told, other) in [
            ("Captain Ana is 5'6 tall.", "Captain Ana is 56 tall."),
            ("The tank holds 3/4 of a barrel.", "The tank holds 3.4 of a barrel."),
            ("The pump needs .5 litres.", "The pump needs 5 litres."),
            ("The sail measures 10² metres.", "The sail measures 102 metres."),
            ("The mooring is called pier_5.", "The mooring is called pier-5."),
            ("The harbour answers at john.smith@x.org.", "The harbour answers at john-smith@x.org."),
            ("The chart table is fun :)", "The chart table is fun :("),
        ] {
            let first = world.remember(ANA, &pool(), told).await;
            let second = world.remember(ANA, &pool(), other).await;
            assert!(!first.existed && !second.existed, "{other}");
            assert!(world.remember(ANA, &pool(), &other.to_uppercase()).await.existed, "{other}");
            let found = world.recalls(ANA, &pool(), other).await;
            assert!(found.contains(&other.to_owned()), "{found:?}");
            assert!(second.superseded.is_some() || found.contains(&told.to_owned()), "{found:?}");
        }
    });
}
