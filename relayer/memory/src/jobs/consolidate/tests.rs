//! E8: the effects of consolidation on a graph, on every store.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use baton_keys::{master::MasterKey, secret::random_bytes};
use baton_models::embed::EmbedderConfig;

use super::*;
use crate::{
    Parts,
    events::{StoredItem, StoredKey},
    ids::{ItemId, PersonaId, ProjectId},
    model::{Author, Edge, Item, Kind, Layer, Provenance, Role},
    state::tests::item,
    storage::{
        Storage,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::{PostgresConfig, PostgresStorage},
    },
    vault::Vault,
};

struct World {
    memory: Memory,
    owner: OwnerId,
    clock: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

async fn worlds() -> Vec<World> {
    let mut worlds = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    let mut stores: Vec<(Arc<dyn Storage>, _)> = Vec::new();
    let embedded = EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join("memory"))).unwrap();
    stores.push((Arc::new(embedded), folder));
    if let Ok(url) = std::env::var("BATON_TEST_POSTGRES") {
        let storage = PostgresStorage::open(&PostgresConfig::new(url)).await.unwrap();
        stores.push((Arc::new(storage), tempfile::tempdir().unwrap()));
    }
    for (storage, folder) in stores {
        let keys = folder.path().join("keys");
        let vault = Vault::new(storage, &keys, MasterKey::from_bytes([5; 32])).await.unwrap();
        let embedder = baton_models::embed::open(&EmbedderConfig::Hashing {}, folder.path()).await.unwrap();
        let clock = Arc::new(AtomicU64::new(1_772_323_200_000));
        let now = clock.clone();
        let parts = Parts::new(vault, embedder, Arc::new(move || now.load(Ordering::Relaxed)));
        let memory = Memory::open(parts).await.unwrap();
        worlds.push(World { memory, owner: OwnerId(random_bytes()), clock, _folder: folder });
    }
    worlds
}

fn fact(text: &str) -> Item {
    let plain = item(text);
    Item {
        id: ItemId(random_bytes()),
        kind: Kind::Fact,
        layer: Layer::Profile,
        provenance: Provenance { session: None, turn: None, ..plain.provenance.clone() },
        ..plain
    }
}

fn entity(key: &str, name: &str) -> Item {
    Item { kind: Kind::Entity, role: Role::System, stable_key: Some(key.into()), ..fact(name) }
}

fn edge(from: &Item, to: &Item, label: &str, evidence: &str, confidence: f32) -> Event {
    let (label, description) = (label.to_owned(), "what it means".into());
    Event::EdgeAdded(Edge {
        from: from.id,
        to: to.id,
        label,
        description,
        evidence: evidence.into(),
        confidence,
    })
}

impl World {
    async fn write(&self, items: &[&Item], edges: Vec<Event>) {
        let added = items
            .iter()
            .map(|item| Event::Added(Box::new(StoredItem::pack((*item).clone(), StoredKey::generate()))));
        let events: Vec<Event> = added.chain(edges).collect();
        self.memory.write(self.owner, |_| Ok((crate::owner::Plan::of(events.clone()), ()))).await.unwrap();
        while self.memory.embed_items(self.owner).await.unwrap() != Step::Idle {}
    }

    /// Consolidates; checks that a second run changes nothing, even after the owner is opened anew.
    async fn consolidate(&self) -> ConsolidationReport {
        let done = self.memory.consolidate(self.owner).await.unwrap();
        let events = async || self.memory.read(self.owner, |owner| Ok(owner.state.next)).await.unwrap();
        let after = events().await;
        assert_eq!(self.memory.consolidate(self.owner).await.unwrap(), ConsolidationReport::default());
        self.memory.close(self.owner);
        self.clock.fetch_add(86_400_000, Ordering::Relaxed);
        assert_eq!(self.memory.consolidate(self.owner).await.unwrap(), ConsolidationReport::default());
        assert_eq!(events().await, after, "a second run writes nothing");
        done
    }

    async fn live(&self, item: &Item) -> bool {
        self.memory
            .read(self.owner, |owner| {
                Ok(owner.state.entry(item.id).is_some_and(crate::state::Entry::is_live))
            })
            .await
            .unwrap()
    }

    async fn edges_of(&self, item: &Item) -> Vec<(ItemId, String, ItemId, f32)> {
        let edges = self.memory.read(self.owner, |owner| {
            let edges = owner.state.edges_at(item.id);
            Ok(edges.map(|(_, edge)| (edge.from, edge.label.clone(), edge.to, edge.confidence)).collect())
        });
        edges.await.unwrap()
    }
}

#[tokio::test]
async fn e8_entities_with_one_name_become_one_within_their_project_and_kind() {
    for world in worlds().await {
        let (jose, plain, titled) = (
            entity("person:josé quintero", "José Quintero"),
            entity("person:jose quintero", "Jose Quintero"),
            entity("person:dr jose quintero", "Dr. Jose Quintero"),
        );
        let thing = entity("thing:jose quintero", "Jose Quintero");
        let (town, person) = (entity("place:chelsea", "Chelsea"), entity("person:chelsea", "Chelsea"));
        let elsewhere =
            Item { project: Some(ProjectId(1)), ..entity("person:jose quintero", "Jose Quintero") };
        let facts: Vec<Item> =
            ["sails a blue boat", "collects old maps", "cooks on Fridays", "studies owls"].map(fact).into();
        let tied = |at: usize, to: &Item| edge(&facts[at], to, "mentions", "", 0.8);
        world
            .write(
                &[
                    &jose, &plain, &titled, &thing, &town, &person, &elsewhere, &facts[0], &facts[1],
                    &facts[2], &facts[3],
                ],
                vec![
                    tied(0, &jose),
                    tied(1, &plain),
                    tied(2, &titled),
                    tied(3, &thing),
                    tied(0, &town),
                    tied(1, &person),
                    tied(2, &elsewhere),
                ],
            )
            .await;
        let done = world.consolidate().await;
        assert_eq!((done.entities_merged, done.facts_merged), (3, 0));
        assert!(
            world.live(&jose).await
                && world.live(&town).await
                && world.live(&person).await
                && world.live(&elsewhere).await
        );
        assert!(!world.live(&plain).await && !world.live(&titled).await && !world.live(&thing).await);
        let edges = world.edges_of(&jose).await;
        for fact in &facts {
            assert!(
                edges
                    .iter()
                    .any(|(from, label, to, _)| *from == fact.id && label == "mentions" && *to == jose.id)
            );
        }
        // The other name leads to the remaining entity.
        let home = crate::scope::Home::Pinned(None);
        let found = world
            .memory
            .read(world.owner, |owner| Ok(owner.state.entity(home, "person:jose quintero").unwrap().item.id));
        assert_eq!(found.await.unwrap(), jose.id);
    }
}

#[tokio::test]
async fn e8_equal_facts_merge_and_similar_ones_are_linked_never_across_scope_or_author() {
    for world in worlds().await {
        let marisol = entity("person:marisol quintero", "Marisol Quintero");
        let said = "Marisol Quintero repairs the old diesel engine in the harbour every Saturday";
        let first = fact(said);
        let again = fact("Marisol Quintero repairs the old diesel engine in the HARBOUR every Saturday.");
        let reworded = fact("Marisol Quintero repairs the old diesel engine at a harbour every Saturday");
        let turned =
            fact("Marisol Quintero never repairs the old diesel engine in the harbour every Saturday");
        let alike =
            fact("Marisol Quintero repairs the old diesel engine in the harbour every Saturday morning");
        let others = [
            Item {
                provenance: Provenance { author: Author::Assistant, ..first.provenance.clone() },
                ..fact(said)
            },
            Item { project: Some(ProjectId(1)), ..fact(said) },
            Item { layer: Layer::Relationship, persona: PersonaId(3), ..fact(said) },
            Item { intimate: true, ..fact(said) },
        ];
        let mut items = vec![&marisol, &first, &again, &reworded, &turned, &alike];
        items.extend(&others);
        let edges = items[1..]
            .iter()
            .map(|fact| edge(fact, &marisol, "mentions", "repairs the engine", 0.6))
            .collect();
        world.write(&items, edges).await;
        let done = world.consolidate().await;
        assert_eq!((done.facts_merged, done.facts_linked), (1, 3), "{done:?}");
        assert!(world.live(&reworded).await, "other words stay");
        assert!(world.live(&first).await && !world.live(&again).await && world.live(&turned).await);
        for other in &others {
            assert!(world.live(other).await);
            assert_eq!(world.edges_of(other).await.len(), 1, "nothing was drawn across");
        }
        assert_eq!(world.edges_of(&turned).await.len(), 1, "what says the opposite is not alike");
        assert!(world.edges_of(&alike).await.iter().any(|(from, label, to, confidence)| {
            (*from, &**label, *to) == (alike.id, "says_alike", first.id) && (0.8..1.0).contains(confidence)
        }));
        // Repetition raises the confidence.
        let confidence = |edges: Vec<(ItemId, String, ItemId, f32)>| {
            edges
                .into_iter()
                .find(|(_, label, ..)| label == "mentions")
                .map(|(.., confidence)| confidence)
                .unwrap()
        };
        assert!(confidence(world.edges_of(&first).await) > 0.7);
        assert!((confidence(world.edges_of(&alike).await) - 0.6).abs() < 1e-6);
        // Deleting a fact deletes the facts merged into it.
        world.memory.delete(world.owner, vec![first.id]).await.unwrap();
        let left = world.memory.read(world.owner, |owner| Ok(owner.state.entry(again.id).is_some()));
        assert!(!left.await.unwrap());
    }
}

#[tokio::test]
async fn e8_equal_edges_merge_with_more_confidence_for_each_evidence_and_end_with_it() {
    for world in worlds().await {
        let (ana, oslo) = (entity("person:ana", "Ana"), entity("place:oslo", "Oslo"));
        let message = Item {
            kind: Kind::Episode,
            layer: Layer::Episode,
            ..fact("I hear that Ana moved to Oslo in May.")
        };
        let other = Item {
            kind: Kind::Episode,
            layer: Layer::Episode,
            ..fact("Ana sent a card from her flat in Oslo.")
        };
        let lives = |evidence: &str| edge(&ana, &oslo, "lives_in", evidence, 0.6);
        let gone = edge(&ana, &oslo, "visited", "what nobody says", 0.9);
        let edges =
            vec![lives("Ana moved to Oslo"), lives("her flat in Oslo"), lives("her flat in Oslo"), gone];
        world.write(&[&ana, &oslo, &message, &other], edges).await;
        let done = world.consolidate().await;
        assert_eq!((done.edges_merged, done.edges_raised, done.edges_ended), (2, 1, 1), "{done:?}");
        let edges = world.edges_of(&ana).await;
        assert_eq!(edges.len(), 1);
        assert!((edges[0].3 - 0.84).abs() < 1e-4, "{edges:?}");
        // Its words are deleted with the message that contains them, at once.
        let quoted = world.memory.read(world.owner, |owner| {
            Ok(owner.state.edges.values().map(|edge| edge.evidence.0.clone()).collect::<Vec<_>>())
        });
        let quoted = quoted.await.unwrap().remove(0);
        let says = if message.text.contains(&quoted) { &message } else { &other };
        world.memory.delete(world.owner, vec![says.id]).await.unwrap();
        for _ in 0..2 {
            assert!(world.edges_of(&ana).await.is_empty());
            world.memory.close(world.owner);
        }
    }
}

#[tokio::test]
async fn e6_an_entity_goes_with_the_last_fact_that_names_it_and_needs_no_consolidation() {
    for world in worlds().await {
        let (ana, anchor) = (entity("person:ana", "Ana"), entity("anchor:user", "the user"));
        let sails = fact("Ana sails to the islands");
        world.write(&[&ana, &anchor, &sails], vec![edge(&sails, &ana, "mentions", "", 0.9)]).await;
        assert_eq!(world.consolidate().await, ConsolidationReport::default());
        let there = async |item: &Item| {
            let there = world.memory.read(world.owner, |owner| Ok(owner.state.entry(item.id).is_some()));
            there.await.unwrap()
        };
        world.memory.delete(world.owner, vec![sails.id]).await.unwrap();
        for _ in 0..2 {
            assert!(!there(&ana).await && there(&anchor).await);
            world.memory.close(world.owner);
        }
        assert_eq!(world.consolidate().await, ConsolidationReport::default());
    }
}

#[tokio::test]
async fn e8_consolidation_is_due_as_the_log_grows_and_is_counted() {
    for world in worlds().await {
        let (a, b) = (entity("thing:blue lamp", "Blue Lamp"), entity("thing:blue lámp", "Blue Lámp"));
        let fact = fact("The lamp glows");
        world
            .write(
                &[&a, &b, &fact],
                vec![edge(&fact, &a, "mentions", "", 0.9), edge(&fact, &b, "mentions", "", 0.9)],
            )
            .await;
        assert!(
            world.memory.consolidate_if_due(world.owner).await.unwrap() == Step::Idle,
            "too little is new"
        );
        let more: Vec<Event> =
            (0..CONSOLIDATE_EVERY).map(|at_ms| Event::Repeated { item: ItemId([0; 16]), at_ms }).collect();
        world.write(&[], more).await;
        while world.memory.consolidate_if_due(world.owner).await.unwrap() == Step::Done {}
        assert!(world.live(&a).await && !world.live(&b).await);
        assert!(world.memory.counters().consolidated.load(Ordering::Relaxed) >= 1);
        assert!(world.memory.consolidate_if_due(world.owner).await.unwrap() == Step::Idle);
    }
}
