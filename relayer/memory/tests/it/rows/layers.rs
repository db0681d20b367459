//! Rows D: profile, relationship, and the scope of a request.

use baton_memory::{
    api::{ItemView, MemoryError, TurnRecord},
    model::{Kind, Layer},
};

use crate::rows::world::{ANA, fact, on_every_store, pool, project, session, with_persona};

#[test]
fn d1_the_persona_of_a_session_is_the_sessions() {
    on_every_store(async |world| {
        let (kenji, aria) = (with_persona("k", "Kenji"), with_persona("a", "Aria"));
        world.say(ANA, &aria, 0, "Hello Aria!", "I'm reading Elizabeth Bishop tonight, by the way.").await;
        world.say(ANA, &kenji, 0, "Hello Kenji!", "Hello!").await;
        world.settle().await;
        // Kenji's session, and a request that claims Aria for it.
        for persona in ["Aria", "Nobody"] {
            let claimed = with_persona("k", persona);
            let recall = world.recall(ANA, &claimed, "What are you reading? Elizabeth Bishop?").await;
            assert!(recall.hits.is_empty() && recall.degraded.unwrap().contains("persona"));
            let turn = TurnRecord {
                place: claimed.clone(),
                turn: 1,
                user: "Do you remember?".into(),
                assistant: "I do.".into(),
                time_ms: world.now_ms(),
            };
            let recorded = world.memory.record_turn(ANA, turn).await;
            assert!(matches!(recorded, Err(MemoryError::Conflict(_))), "{recorded:?}");
            let remembered = world.memory.remember(ANA, vec![fact(&claimed, "A fact.")]).await;
            assert!(matches!(remembered, Err(MemoryError::Conflict(_))), "{remembered:?}");
            assert!(world.memory.create_session(ANA, claimed).await.is_err());
        }
        // The refused requests created nothing.
        let personas = world.memory.personas(ANA).await.unwrap();
        assert_eq!(personas.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), ["Aria", "Kenji"]);
        // A request without a persona has the session's.
        world
            .say(ANA, &session("a"), 1, "Which poet was it?", "Elizabeth Bishop, whom I love to read.")
            .await;
        let items = world.everything(ANA).await;
        let said: Vec<_> = items.iter().filter(|item| item.turn == Some(1)).collect();
        assert!(
            !said.is_empty() && said.iter().all(|item| item.persona.as_deref() == Some("Aria")),
            "{said:?}"
        );
        let found = world.recalls(ANA, &session("a"), "What are you reading? Elizabeth Bishop?").await;
        assert!(found.iter().any(|text| text.contains("Bishop")), "{found:?}");
        // A session that began without a persona stays without one.
        world.say(ANA, &session("n"), 0, "Hello!", "Hello!").await;
        let recall = world.recall(ANA, &with_persona("n", "Aria"), "Elizabeth Bishop?").await;
        assert!(recall.hits.is_empty() && recall.degraded.unwrap().contains("persona"));
    });
}

#[test]
fn d2_deleting_a_session_deletes_its_relationship_and_keeps_the_profile() {
    on_every_store(async |mut world| {
        let place = baton_memory::api::Place { project: Some("boat".into()), ..with_persona("a", "Aria") };
        world.say(ANA, &place, 0, "I am allergic to peanuts.", "I'm reading Elizabeth Bishop tonight.").await;
        world.settle().await;
        world.memory.delete_session(ANA, "a".into()).await.unwrap();
        for _ in 0..2 {
            let kept = world.everything(ANA).await;
            let anchor = |item: &ItemView| item.kind == Kind::Entity && &*item.text == "Aria";
            assert!(kept.iter().all(|item| item.layer == Layer::Profile || anchor(item)), "{kept:?}");
            assert!(kept.iter().all(|item| !item.text.contains("Bishop")), "{kept:?}");
            // It stays in the session's project, and does not leak into the pool.
            let inside = world.recalls(ANA, &project("boat"), "Am I allergic to peanuts?").await;
            assert_eq!(inside, ["I am allergic to peanuts."]);
            assert!(world.recalls(ANA, &pool(), "Am I allergic to peanuts?").await.is_empty());
            world.reopen().await;
        }
    });
}

#[test]
fn d7_d9_the_transcript_is_kept_whole_and_the_profile_can_be_read() {
    on_every_store(async |world| {
        world.say(ANA, &session("s"), 0, "Good morning!", "Good morning! What can I do?").await;
        world.say(ANA, &session("s"), 1, "I work as a beekeeper near Lisbon.", "How nice.").await;
        world.settle().await;
        let profile = world.memory.profile(ANA, pool()).await.unwrap();
        let facts: Vec<String> = profile.iter().map(|item| item.text.to_string()).collect();
        assert!(
            !facts.is_empty()
                && facts.iter().all(|text| text.contains("beekeeper") || text.contains("Lisbon"))
        );
        let kept = world.everything(ANA).await;
        assert_eq!(kept.iter().filter(|item| item.kind.name() == "episode").count(), 4);
    });
}
