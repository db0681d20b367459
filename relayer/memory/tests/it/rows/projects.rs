//! Rows B: projects.

use baton_memory::{
    api::{Filters, RecallRequest},
    model::Kind,
};

use crate::rows::world::{ANA, on_every_store, pool, project, request, session, session_in, texts};

const BOAT: &str = "The spare key of the boat hangs behind the engine panel.";
const HOUSE: &str = "The spare key of the house lies under the blue flowerpot.";
const QUESTION: &str = "Where is the spare key?";

#[test]
fn b2_without_a_project_all_sessions_without_one_share_a_pool() {
    on_every_store(async |world| {
        world.say(ANA, &session("one"), 0, HOUSE, "Noted.").await;
        world.say(ANA, &session("two"), 0, "Hello there!", "Hello!").await;
        assert!(world.recalls(ANA, &session("two"), QUESTION).await.contains(&HOUSE.to_owned()));
    });
}

#[test]
fn b3_b4_entities_are_context_in_their_project_and_nowhere_else() {
    on_every_store(async |world| {
        let told = "My colleague Marisol Quintero maintains the boat engine.";
        world.say(ANA, &session_in("b1", "boat"), 0, told, "Good to know.").await;
        world
            .say(ANA, &session("p1"), 0, "My colleague Henrike Vossberg paints the boat.", "Good to know.")
            .await;
        world.settle().await;
        world.memory.create_project(ANA, "other".into()).await.unwrap();
        let entities = async |place, name: &str| {
            let filters = Filters { kinds: vec![Kind::Entity], ..Filters::default() };
            let asked = RecallRequest { filters, ..request(&place, name) };
            texts(&world.memory.recall(ANA, asked).await)
        };
        let (marisol, henrike) = ("Who is Marisol Quintero?", "Who is Henrike Vossberg?");
        let inside = entities(project("boat"), marisol).await;
        assert!(inside.iter().any(|text| text.contains("Marisol")), "{inside:?}");
        assert_eq!(entities(project("boat"), henrike).await, Vec::<String>::new());
        for place in [pool(), project("other")] {
            for name in [marisol, henrike] {
                assert_eq!(entities(place.clone(), name).await, Vec::<String>::new());
            }
        }
    });
}

#[test]
fn b6_b7_adding_a_session_exposes_its_past_at_once_and_removing_it_hides_it() {
    on_every_store(async |mut world| {
        world.say(ANA, &session("loose"), 0, BOAT, "Noted.").await;
        world.memory.create_project(ANA, "boat".into()).await.unwrap();
        assert!(world.recalls(ANA, &project("boat"), QUESTION).await.is_empty());
        world.memory.move_session(ANA, "loose".into(), Some("boat".into())).await.unwrap();
        for _ in 0..2 {
            assert!(world.recalls(ANA, &project("boat"), QUESTION).await.contains(&BOAT.to_owned()));
            assert!(world.recalls(ANA, &pool(), QUESTION).await.is_empty());
            world.reopen().await;
        }
        world.memory.move_session(ANA, "loose".into(), None).await.unwrap();
        assert!(world.recalls(ANA, &project("boat"), QUESTION).await.is_empty());
        assert!(world.recalls(ANA, &pool(), QUESTION).await.contains(&BOAT.to_owned()));
    });
}

#[test]
fn b8_b11_a_scope_that_cannot_be_resolved_sees_nothing() {
    on_every_store(async |world| {
        world.say(ANA, &session_in("b1", "boat"), 0, BOAT, "Noted.").await;
        world.say(ANA, &session("p1"), 0, HOUSE, "Noted.").await;
        let places = [
            session("no such session"),
            project("no such project"),
            // A claim on a project other than the session's.
            session_in("b1", "house"),
            session_in("p1", "boat"),
            baton_memory::api::Place { persona: Some("nobody".into()), ..pool() },
        ];
        for place in places {
            let recall = world.recall(ANA, &place, QUESTION).await;
            assert!(recall.hits.is_empty() && recall.degraded.is_some(), "{place:?}");
        }
        // A project's number or another internal id is not a name.
        assert!(world.recall(ANA, &project("1"), QUESTION).await.hits.is_empty());
    });
}

#[test]
fn b9_entities_keep_their_tag_when_their_session_moves() {
    on_every_store(async |mut world| {
        let told = "My colleague Marisol Quintero maintains the boat engine.";
        world.say(ANA, &session_in("s", "boat"), 0, told, "Good to know.").await;
        world.settle().await;
        world.memory.move_session(ANA, "s".into(), Some("house".into())).await.unwrap();
        let later = "My neighbour Ottoline Prendergast waters the plants.";
        world.say(ANA, &session_in("s", "house"), 1, later, "Good to know.").await;
        world.settle().await;
        for _ in 0..2 {
            let names = async |name: &str| {
                let graph = world.memory.graph(ANA, project(name)).await.unwrap();
                let entities = graph.nodes.into_iter().filter(|node| node.kind == Kind::Entity);
                entities.map(|node| node.text.to_string()).collect::<Vec<_>>().join(" ")
            };
            let (boat, house) = (names("boat").await, names("house").await);
            assert!(boat.contains("Marisol") && !boat.contains("Ottoline"), "{boat}");
            assert!(house.contains("Ottoline") && !house.contains("Marisol"), "{house}");
            // The episodes moved with the session.
            let moved = world.recalls(ANA, &project("house"), "Who maintains the boat engine?").await;
            assert!(moved.contains(&told.to_owned()), "{moved:?}");
            world.reopen().await;
        }
    });
}

#[test]
fn a_projects_name_is_the_same_in_every_spelling() {
    on_every_store(async |world| {
        world.remember(ANA, &project("Zoë"), "The curtains are green.").await;
        for name in ["Zoe\u{308}", "ZOË"] {
            let found = world.recalls(ANA, &project(name), "green curtains").await;
            assert_eq!(found, ["The curtains are green."]);
        }
        assert_eq!(world.memory.projects(ANA).await.unwrap().len(), 1, "one project");
    });
}

#[test]
fn b10_a_session_made_in_a_project_belongs_to_it_before_its_first_recall() {
    on_every_store(async |world| {
        world.say(ANA, &session_in("old", "boat"), 0, BOAT, "Noted.").await;
        world.say(ANA, &session("loose"), 0, HOUSE, "Noted.").await;
        world.memory.create_session(ANA, session_in("fresh", "boat")).await.unwrap();
        let first = world.recalls(ANA, &session("fresh"), QUESTION).await;
        assert_eq!(first, [BOAT]);
    });
}
