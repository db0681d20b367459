//! Rows of entities: an entity is visible, awaits consent and is deleted with the facts that name it (B9, C4,
//! D1, D2, D8, E6, F4).

use baton_memory::{
    api::{Filters, ItemView, Place, RecallRequest},
    model::{Author, Consent, Kind, Layer, MemoryScope},
};

use crate::rows::world::{ANA, World, on_every_store, project, request, session, session_in};

/// Entities in a recall that the query names.
async fn recalled(world: &World, place: &Place, scope: MemoryScope, query: &str) -> Vec<ItemView> {
    let filters = Filters { kinds: vec![Kind::Entity], ..Filters::default() };
    let asked = RecallRequest { scope, filters, threshold: Some(0.01), ..request(place, query) };
    let hits = world.memory.recall(ANA, asked).await.hits.into_iter().map(|hit| hit.view);
    hits.filter(|item| query.contains(&*item.text)).collect()
}

fn names(items: &[ItemView]) -> Vec<&str> {
    items.iter().map(|item| &*item.text).collect()
}

/// The entity with a name, in any place.
async fn kept(world: &World, name: &str) -> Option<ItemView> {
    let all = world.everything(ANA).await;
    all.into_iter().find(|item| item.kind == Kind::Entity && item.text.contains(name))
}

/// Whether an export or the graph of a place contains a name.
async fn shown(world: &World, place: &Place, name: &str) -> bool {
    let graph = world.memory.graph(ANA, place.clone()).await.unwrap();
    let in_graph = graph.nodes.iter().any(|node| node.kind == Kind::Entity && node.text.contains(name));
    let quoted = graph.edges.iter().any(|edge| edge.evidence.contains(name));
    let export = world.memory.export(ANA, Some(place.clone()), true).await.unwrap();
    let exported = export.iter().any(|line| line.contains("\"entity\"") && line.contains(name));
    let listed = baton_memory::api::ListRequest {
        place: place.clone(),
        filters: Filters { kinds: vec![Kind::Entity], ..Filters::default() },
        limit: 200,
        ..Default::default()
    };
    let listed = world.memory.list(ANA, listed).await.unwrap().items;
    let listed = listed.iter().any(|item| item.text.contains(name));
    assert_eq!((exported, listed), (in_graph, in_graph), "all ways to read agree on {name}");
    in_graph || quoted
}

fn persona_in(name: &str, persona: &str, in_project: &str) -> Place {
    Place { persona: Some(persona.into()), ..session_in(name, in_project) }
}

#[test]
fn d8_e6_an_entity_is_intimate_and_asks_for_consent_as_the_facts_do_that_name_it() {
    on_every_store(async |mut world| {
        let place = session_in("s", "life");
        world.say(ANA, &place, 0, "I am having an affair with Beatrice Moretti.", "I see.").await;
        world.settle().await;
        let everything = world.everything(ANA).await;
        let affair = everything.iter().find(|item| item.kind == Kind::Fact).unwrap();
        assert_eq!((affair.intimate, affair.consent), (true, Consent::Pending), "{affair:?}");
        let asked = "Who is Beatrice Moretti?";
        for _ in 0..2 {
            let entity = kept(&world, "Beatrice").await.unwrap();
            assert_eq!((entity.intimate, entity.consent), (true, Consent::Pending));
            for scope in MemoryScope::ALL {
                assert!(recalled(&world, &place, *scope, asked).await.is_empty(), "{scope:?}: nobody agreed");
            }
            world.reopen().await;
        }
        // Only facts wait for consent.
        let waiting = world.waiting(ANA).await;
        assert!(waiting.iter().all(|item| item.kind == Kind::Fact), "{:?}", names(&waiting));
        world.decide(ANA, vec![affair.id], Consent::Granted).await;
        for _ in 0..2 {
            for scope in MemoryScope::ALL {
                let found = !recalled(&world, &place, *scope, asked).await.is_empty();
                let may = matches!(scope, MemoryScope::Full | MemoryScope::InsightsOnly);
                assert_eq!(found, may, "{scope:?}");
            }
            world.reopen().await;
        }
        // A public fact names it too: then the name is public, as long as that fact exists.
        let choir = world.remember(ANA, &project("life"), "My colleague Beatrice Moretti sings.").await;
        world.settle().await;
        for scope in [MemoryScope::Full, MemoryScope::default(), MemoryScope::NeutralOnly] {
            let found = recalled(&world, &place, scope, asked).await;
            assert_eq!(names(&found), ["Beatrice Moretti"], "{scope:?}");
            assert_eq!((found[0].intimate, found[0].consent), (false, Consent::Granted));
        }
        world.delete(ANA, vec![choir.id]).await;
        for _ in 0..2 {
            assert!(recalled(&world, &place, MemoryScope::default(), asked).await.is_empty());
            assert!(!recalled(&world, &place, MemoryScope::Full, asked).await.is_empty());
            world.reopen().await;
        }
    });
}

#[test]
fn d1_d2_f4_what_a_persona_names_is_its_own_and_goes_with_the_session() {
    on_every_store(async |mut world| {
        let aria = persona_in("a", "Aria", "books");
        let kenji = persona_in("k", "Kenji", "books");
        let moment = "I am reading Elizabeth Bishop tonight, and I only tell you.";
        world.say(ANA, &aria, 0, "What are you reading?", moment).await;
        world.say(ANA, &kenji, 0, "Hello Kenji!", "Hello!").await;
        world.settle().await;
        let asked = "Elizabeth Bishop?";
        for _ in 0..2 {
            let hers = recalled(&world, &aria, MemoryScope::default(), asked).await;
            assert_eq!(names(&hers), ["Elizabeth Bishop"]);
            assert_eq!((hers[0].author, hers[0].layer), (Author::Assistant, Layer::Relationship));
            assert_eq!(hers[0].persona.as_deref(), Some("Aria"));
            for scope in MemoryScope::ALL {
                assert!(recalled(&world, &kenji, *scope, asked).await.is_empty(), "{scope:?}");
            }
            assert!(shown(&world, &aria, "Bishop").await && !shown(&world, &kenji, "Bishop").await);
            world.reopen().await;
        }
        // A name from the user as well is the user's, and visible to all; it outlives the session.
        let told = world.remember(ANA, &project("books"), "My friend Elizabeth Bishop writes poems.").await;
        let his = recalled(&world, &kenji, MemoryScope::default(), asked).await;
        assert_eq!((names(&his), his[0].author), (vec!["Elizabeth Bishop"], Author::Owner));
        world.delete(ANA, vec![told.id]).await;
        assert!(recalled(&world, &kenji, MemoryScope::Full, asked).await.is_empty());
        assert!(kept(&world, "Bishop").await.is_some());
        world.memory.delete_session(ANA, "a".into()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(kept(&world, "Bishop").await, None, "at once, and for good");
            world.reopen().await;
            world.settle().await;
        }
    });
}

#[test]
fn c4_what_a_fork_names_is_not_known_to_its_parent() {
    on_every_store(async |mut world| {
        let main = session_in("main", "zoo");
        world.say(ANA, &main, 0, "My colleague Marisol Quintero feeds the owls.", "Good.").await;
        world.settle().await;
        world.memory.fork_session(ANA, "main".into(), "try".into(), None).await.unwrap();
        world.say(ANA, &session("try"), 0, "My lizard is called Gustav.", "Nice.").await;
        // Named by the parent after the fork.
        world.say(ANA, &main, 1, "My parrot is called Ferdinand.", "Nice.").await;
        world.settle().await;
        let sees = async |world: &World, place: &Place, query: &str| {
            !recalled(world, place, MemoryScope::Full, query).await.is_empty()
        };
        for _ in 0..2 {
            for place in [&main, &project("zoo")] {
                assert!(!sees(&world, place, "Who is Gustav?").await, "{place:?}");
                assert!(!shown(&world, place, "Gustav").await, "{place:?}");
                assert!(sees(&world, place, "Who is Ferdinand?").await);
                assert!(sees(&world, place, "Who is Marisol Quintero?").await);
            }
            assert!(sees(&world, &session("try"), "Who is Gustav?").await);
            assert!(sees(&world, &session("try"), "Who is Marisol Quintero?").await);
            assert!(!sees(&world, &session("try"), "Who is Ferdinand?").await);
            world.reopen().await;
        }
        // A shared name shows the parent none of the fork's facts about it.
        world.say(ANA, &session("try"), 1, "My colleague Marisol Quintero lives in Bergen.", "Oh.").await;
        world.settle().await;
        assert!(!shown(&world, &main, "Bergen").await);
        world.memory.delete_session(ANA, "try".into()).await.unwrap();
        assert_eq!(kept(&world, "Gustav").await, None);
        assert!(sees(&world, &main, "Who is Marisol Quintero?").await);
    });
}

#[test]
fn e6_f1_an_entity_goes_with_the_last_fact_that_names_it_whatever_named_it_first() {
    on_every_store(async |mut world| {
        let zoo = project("zoo");
        let first = world.remember(ANA, &zoo, "My dog is called Flibbertigibbet.").await;
        let second = world.remember(ANA, &zoo, "My dog Flibbertigibbet barks at night.").await;
        // In another project it is another entity.
        world.remember(ANA, &project("farm"), "My dog is called Flibbertigibbet.").await;
        world.settle().await;
        let asked = "Who is Flibbertigibbet?";
        let before = recalled(&world, &zoo, MemoryScope::default(), asked).await;
        assert_eq!(names(&before), ["Flibbertigibbet"]);
        world.delete(ANA, vec![first.id]).await;
        let after = recalled(&world, &zoo, MemoryScope::default(), asked).await;
        assert_eq!(names(&after), ["Flibbertigibbet"], "the other fact still names it");
        world.delete(ANA, vec![second.id]).await;
        for _ in 0..2 {
            assert!(recalled(&world, &zoo, MemoryScope::Full, asked).await.is_empty());
            assert!(!shown(&world, &zoo, "Flibbertigibbet").await);
            assert!(shown(&world, &project("farm"), "Flibbertigibbet").await);
            world.reopen().await;
        }
        // Archived and restored with its fact.
        let known = world.remember(ANA, &zoo, "My cat is called Grimalkin.").await;
        world.settle().await;
        let cat = async |world: &World| {
            recalled(world, &zoo, MemoryScope::default(), "Who is Grimalkin?").await.len()
        };
        assert_eq!(cat(&world).await, 1);
        world.memory.archive(ANA, known.id, true).await.unwrap();
        assert_eq!(cat(&world).await, 0);
        world.memory.archive(ANA, known.id, false).await.unwrap();
        assert_eq!(cat(&world).await, 1);
    });
}
