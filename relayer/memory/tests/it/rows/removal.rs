//! Rows of deletion, edit and denial: other holders of the words are deleted or stay, and the answer names
//! them (E6, F1).

use baton_memory::{
    api::{ItemView, MemoryError, Others, RecallRequest, Removal, RemovalOptions},
    ids::ItemId,
    model::{Author, Consent, Kind, MemoryScope},
};

use crate::rows::world::{ANA, World, on_every_store, project, request, session_in, texts};

const TOLD: &str = "My dog is called Flibbertigibbet.";
const REPLY: &str = "Flibbertigibbet is a lovely name.";

fn with(others: Others) -> RemovalOptions {
    RemovalOptions { others, ..RemovalOptions::default() }
}

async fn fact_of(world: &World, words: &str) -> ItemView {
    let all = world.everything(ANA).await;
    all.into_iter().find(|item| item.kind == Kind::Fact && item.text.contains(words)).unwrap()
}

async fn said(world: &World, text: &str) -> Option<ItemId> {
    let all = world.everything(ANA).await;
    all.into_iter().find(|item| item.kind == Kind::Episode && &*item.text == text).map(|item| item.id)
}

async fn holds(world: &World, words: &str) -> Vec<String> {
    let all = world.everything(ANA).await;
    let mut holding: Vec<String> = all.iter().map(|item| item.text.to_string()).collect();
    holding.retain(|text| text.contains(words));
    let export = world.memory.export(ANA, None, true).await.unwrap();
    assert_eq!(export.iter().any(|line| line.contains(words)), !holding.is_empty(), "{holding:?}");
    holding
}

async fn recalls_fully(world: &World, query: &str) -> Vec<String> {
    let place = project("zoo");
    let asked = RecallRequest { scope: MemoryScope::Full, threshold: Some(0.01), ..request(&place, query) };
    texts(&world.memory.recall(ANA, asked).await)
}

/// The answer's statement about an item.
fn deleted(removal: &Removal, id: ItemId) -> Option<bool> {
    removal.others.iter().find(|holder| holder.id == id).map(|holder| holder.deleted)
}

/// A fact, its message, a reply with the name, and the same fact again in another session.
async fn tell(world: &World) -> (ItemId, ItemId, ItemId, ItemId) {
    world.say(ANA, &session_in("s", "zoo"), 0, TOLD, REPLY).await;
    world.settle().await;
    world.say(ANA, &session_in("t", "zoo"), 0, "As I said, my dog is called Flibbertigibbet!", "Sure.").await;
    world.settle().await;
    let again = said(world, "As I said, my dog is called Flibbertigibbet!").await.unwrap();
    let fact = fact_of(world, "Flibbertigibbet").await.id;
    (fact, said(world, TOLD).await.unwrap(), said(world, REPLY).await.unwrap(), again)
}

#[test]
fn f1_a_delete_names_what_else_holds_the_words_and_takes_the_users_own_along() {
    on_every_store(async |mut world| {
        let (fact, message, reply, again) = tell(&world).await;
        let removal = world.memory.delete_with(ANA, vec![fact], RemovalOptions::default()).await.unwrap();
        assert_eq!((removal.count, removal.more), (1, 0));
        assert_eq!(deleted(&removal, message), Some(true));
        assert_eq!(deleted(&removal, again), Some(true));
        assert_eq!(deleted(&removal, reply), Some(false), "{removal:?}");
        assert_eq!(removal.others.first().map(|holder| holder.id), Some(reply), "first what is left");
        let left = &removal.others[0];
        assert_eq!((left.kind, left.author, left.turn), (Kind::Episode, Author::Assistant, Some(0)));
        assert_eq!((left.session.as_deref(), left.project.as_deref()), (Some("s"), Some("zoo")));
        let entity = removal.others.iter().find(|holder| holder.kind == Kind::Entity).unwrap();
        assert!(entity.deleted);
        for _ in 0..2 {
            assert_eq!(holds(&world, "Flibbertigibbet").await, [REPLY]);
            world.reopen().await;
            world.settle().await;
        }
        // The owner decides on the rest by the named id.
        world.delete(ANA, vec![reply]).await;
        assert!(holds(&world, "Flibbertigibbet").await.is_empty());
    });
}

#[test]
fn f1_a_delete_takes_everything_or_nothing_else_along_as_the_owner_chooses() {
    on_every_store(async |mut world| {
        let (fact, message, reply, again) = tell(&world).await;
        let other = world.remember(ANA, &project("farm"), "Flibbertigibbet barks at night.").await.id;
        // A caller that is bound to one project learns nothing of another.
        let bound = RemovalOptions { others: Others::None, same_project: true };
        let removal = world.memory.delete_with(ANA, vec![fact], bound).await.unwrap();
        for id in [message, reply, again] {
            assert_eq!(deleted(&removal, id), Some(false), "{removal:?}");
            assert!(world.memory.get(ANA, id).await.is_ok());
        }
        assert_eq!(deleted(&removal, other), None);
        assert!(removal.others.iter().all(|holder| holder.project.as_deref() == Some("zoo")));
        let entity = removal.others.iter().find(|holder| holder.kind == Kind::Entity).unwrap();
        assert!(entity.deleted, "a name goes with the last fact that names it");
        // All holders, in any project.
        let (fact, message, reply, again) = {
            world.delete(ANA, vec![message, again]).await;
            world.remember(ANA, &project("zoo"), TOLD).await;
            world.say(ANA, &session_in("u", "zoo"), 0, TOLD, "Yes.").await;
            world.settle().await;
            (fact_of(&world, TOLD).await.id, said(&world, TOLD).await.unwrap(), reply, other)
        };
        let removal = world.memory.delete_with(ANA, vec![fact], with(Others::All)).await.unwrap();
        for id in [message, reply, again] {
            assert_eq!(deleted(&removal, id), Some(true), "{removal:?}");
        }
        assert!(removal.others.iter().all(|holder| holder.deleted));
        for _ in 0..2 {
            assert!(holds(&world, "Flibbertigibbet").await.is_empty());
            assert!(holds(&world, "flibbertigibbet").await.is_empty(), "nor in any key");
            let found = recalls_fully(&world, "Who is Flibbertigibbet?").await;
            assert!(found.iter().all(|text| !text.contains("Flibbertigibbet")), "{found:?}");
            world.reopen().await;
            world.settle().await;
        }
    });
}

#[test]
fn f1_an_edit_removes_the_old_words_as_a_delete_does() {
    on_every_store(async |mut world| {
        let (told, reply) = ("My horse is called Wobbegongus.", "Wobbegongus? What a name.");
        world.say(ANA, &session_in("s", "zoo"), 0, told, reply).await;
        world.settle().await;
        let fact = fact_of(&world, "Wobbegongus").await;
        let (message, answer) = (said(&world, told).await.unwrap(), said(&world, reply).await.unwrap());
        // Another relayer has the owner open, and applies this relayer's writes.
        let other = world.another_relayer().await;
        if let Some(other) = &other {
            other.graph(ANA, project("zoo")).await.unwrap();
        }
        let (edited, removal) = world
            .memory
            .edit_with(ANA, fact.id, "My horse is called Plainfield.".into(), RemovalOptions::default())
            .await
            .unwrap();
        assert_eq!((edited.id, &*edited.text), (fact.id, "My horse is called Plainfield."));
        assert_eq!((deleted(&removal, message), deleted(&removal, answer)), (Some(true), Some(false)));
        assert!(removal.others.iter().any(|holder| holder.kind == Kind::Entity && holder.deleted));
        if let Some(other) = other {
            let graph = other.graph(ANA, project("zoo")).await.unwrap();
            assert!(graph.edges.iter().all(|edge| !edge.evidence.contains("Wobbegongus")));
            assert!(graph.nodes.iter().all(|node| !node.text.contains("Wobbegongus")));
        }
        world.settle().await;
        for _ in 0..2 {
            assert_eq!(holds(&world, "Wobbegongus").await, [reply]);
            assert!(holds(&world, "wobbegongus").await.is_empty(), "nor in any key");
            let graph = world.memory.graph(ANA, project("zoo")).await.unwrap();
            let quotes = |words: &str| {
                graph.edges.iter().any(|e| e.evidence.contains(words) || e.description.contains(words))
            };
            assert!(!quotes("Wobbegongus") && quotes("Plainfield"), "the new name is tied to it");
            let found = recalls_fully(&world, "What is my horse called, Wobbegongus?").await;
            assert!(found.iter().all(|text| !text.contains("Wobbegongus") || text == reply), "{found:?}");
            assert!(recalls_fully(&world, "Plainfield").await.iter().any(|text| text == "Plainfield"));
            world.reopen().await;
        }
        // Everything else as well, by the owner's option.
        let back = world.memory.edit_with(ANA, fact.id, told.into(), with(Others::None)).await.unwrap().1;
        assert_eq!(back.others.iter().filter(|holder| holder.kind == Kind::Episode).count(), 0, "{back:?}");
        let all = world.memory.edit_with(ANA, fact.id, "My horse is grey.".into(), with(Others::All)).await;
        assert_eq!(deleted(&all.unwrap().1, answer), Some(true));
        assert!(holds(&world, "Wobbegongus").await.is_empty());
        let entity = world.everything(ANA).await.into_iter().find(|item| item.text.contains("Plainfield"));
        assert_eq!(entity, None);
        assert!(matches!(
            world.memory.edit_with(ANA, ItemId([9; 16]), "x".into(), with(Others::All)).await,
            Err(MemoryError::NotFound(_))
        ));
    });
}

#[test]
fn f1_an_edited_fact_keeps_its_entity_and_an_edited_message_deletes_its_facts() {
    on_every_store(async |world| {
        world.say(ANA, &session_in("s", "zoo"), 0, "I like coffee with Marisol Quintero.", "Good.").await;
        world.settle().await;
        let fact = fact_of(&world, "coffee").await;
        let entity = async |world: &World| {
            let all = world.everything(ANA).await;
            all.into_iter().find(|item| item.kind == Kind::Entity && item.text.contains("Marisol"))
        };
        let before = entity(&world).await.map(|entity| entity.id);
        world.edit(ANA, fact.id, "I like tea with Marisol Quintero.").await;
        assert!(holds(&world, "coffee").await.is_empty(), "not even in the key of what it is about");
        assert_eq!(entity(&world).await.map(|entity| entity.id), before);
        // A message's old words are deleted with the facts made from it.
        let told = "My cat is called Grimalkin.";
        world.say(ANA, &session_in("s", "zoo"), 1, told, "Good.").await;
        world.settle().await;
        let (message, fact) = (said(&world, told).await.unwrap(), fact_of(&world, told).await.id);
        let (_, removal) = world
            .memory
            .edit_with(ANA, message, "I have no cat.".into(), RemovalOptions::default())
            .await
            .unwrap();
        assert_eq!(deleted(&removal, fact), Some(true));
        assert!(holds(&world, "Grimalkin").await.is_empty());
    });
}

#[test]
fn e6_a_denial_is_as_strong_as_a_delete() {
    on_every_store(async |mut world| {
        let told = "My HIV test came back positive last week.";
        world.say(ANA, &session_in("s", "zoo"), 0, told, "Thank you for telling me.").await;
        world.settle().await;
        let fact = fact_of(&world, "HIV").await;
        assert_eq!(fact.consent, Consent::Pending);
        let message = said(&world, told).await.unwrap();
        let removal = world
            .memory
            .decide_with(ANA, vec![fact.id], Consent::Denied, RemovalOptions::default())
            .await
            .unwrap();
        assert_eq!((removal.count, deleted(&removal, message)), (1, Some(true)));
        for _ in 0..2 {
            assert!(holds(&world, "HIV").await.is_empty());
            let found = recalls_fully(&world, "Was my HIV test positive?").await;
            assert!(found.iter().all(|text| !text.contains("HIV")), "{found:?}");
            world.reopen().await;
            world.settle().await;
        }
    });
}
