//! The leak matrix: owners x projects x sessions x branches x personas, seen through every way of reading.
//! Each item contains a word of its own place; a reader from another place that finds it has found a leak.

use std::collections::BTreeSet;

use baton_memory::{
    api::{ListRequest, Place, RecallRequest},
    ids::OwnerId,
    model::{Kind, Layer, MemoryScope},
};

use crate::rows::world::{ANA, BEN, World, fact, on_every_store, request};

/// A place with a word that only its items contain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    owner: u8,
    project: Option<&'static str>,
    session: &'static str,
    persona: Option<&'static str>,
    /// The session it was forked from.
    parent: Option<&'static str>,
}

impl Spot {
    fn owner(&self) -> OwnerId {
        if self.owner == 0 { ANA } else { BEN }
    }

    fn place(&self) -> Place {
        Place {
            session: Some(self.session.into()),
            project: self.project.map(Into::into),
            persona: self.persona.map(Into::into),
        }
    }

    fn word(&self, what: &str) -> String {
        let name = format!("{}{}{}", self.owner, self.project.unwrap_or("pool"), self.session);
        let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        format!("{what}{name}")
    }
}

fn spots() -> Vec<Spot> {
    let mut spots = Vec::new();
    for owner in [0, 1] {
        for (project, sessions) in [
            (None, [("pa", None, None), ("pb", Some("Aria"), None), ("pf", None, Some("pa"))]),
            (Some("boat"), [("ba", None, None), ("bb", Some("Aria"), None), ("bf", None, Some("ba"))]),
            (Some("house"), [("ha", None, None), ("hb", Some("Aria"), None), ("hf", None, Some("ha"))]),
        ] {
            for (session, persona, parent) in sessions {
                spots.push(Spot { owner, project, session, persona, parent });
            }
        }
    }
    spots
}

/// Whether a message (or a fact, in a layer) of one spot may be known at another spot. Written from the
/// requirements, independently of the code.
fn may_know(reader: &Spot, writer: &Spot, layer: Layer) -> bool {
    if reader.owner != writer.owner || reader.project != writer.project {
        return false;
    }
    // Only the fork itself knows its contents.
    if writer.parent.is_some() && writer.session != reader.session {
        return false;
    }
    // The fork does not see the parent's later messages: here, all messages come before the fork.
    layer == Layer::Profile || reader.persona == writer.persona
}

const LAYERS: [(Layer, &str); 3] =
    [(Layer::Episode, "episodeword"), (Layer::Profile, "profileword"), (Layer::Relationship, "momentword")];

async fn fill(world: &World) {
    for spot in spots() {
        if let Some(parent) = spot.parent {
            world.memory.fork_session(spot.owner(), parent.into(), spot.session.into(), None).await.unwrap();
        }
        // Said by the assistant, about no one: no rule makes a profile fact of it, which other personas would
        // know.
        let said = format!("The regatta has to do with {}.", spot.word("episodeword"));
        world.say(spot.owner(), &spot.place(), 0, "Hello!", &said).await;
        for (layer, word) in &LAYERS[1..] {
            let text = format!("About the regatta the keyword is {}.", spot.word(word));
            let facts =
                vec![baton_memory::api::RememberRequest { layer: *layer, ..fact(&spot.place(), &text) }];
            world.memory.remember(spot.owner(), facts).await.unwrap();
        }
    }
    world.settle().await;
}

/// Every text that a reader gets, with the way of reading.
async fn reads(world: &World, reader: &Spot) -> Vec<(&'static str, String)> {
    let (owner, place) = (reader.owner(), reader.place());
    let mut seen = Vec::new();
    for scope in MemoryScope::ALL {
        for spot in spots() {
            for (_, word) in LAYERS {
                let query = format!("regatta {}", spot.word(word));
                let asked = RecallRequest {
                    scope: *scope,
                    limit: 200,
                    threshold: Some(0.0),
                    ..request(&place, &query)
                };
                // Other places' words are queried in the widest scope only: narrower scopes show no more.
                if *scope != MemoryScope::Full && spot.session != reader.session {
                    continue;
                }
                let recall = world.memory.recall(owner, asked).await;
                seen.extend(recall.hits.iter().map(|hit| ("recall", hit.view.text.to_string())));
                seen.extend(recall.memory_items().iter().map(|item| ("items", item.text.clone())));
                for dropped in &recall.dropped {
                    seen.push((
                        "dropped",
                        world.memory.get(owner, dropped.id).await.unwrap().text.to_string(),
                    ));
                }
            }
        }
    }
    let list =
        ListRequest { place: place.clone(), limit: 200, include_archived: true, ..ListRequest::default() };
    seen.extend(
        world
            .memory
            .list(owner, list)
            .await
            .unwrap()
            .items
            .iter()
            .map(|item| ("list", item.text.to_string())),
    );
    seen.extend(
        world
            .memory
            .profile(owner, place.clone())
            .await
            .unwrap()
            .iter()
            .map(|item| ("profile", item.text.to_string())),
    );
    let graph = world.memory.graph(owner, place.clone()).await.unwrap();
    seen.extend(graph.nodes.iter().map(|node| ("graph", node.text.to_string())));
    seen.extend(
        graph.edges.iter().map(|edge| ("edge", format!("{} {}", &*edge.description, &*edge.evidence))),
    );
    // A missing place is refused.
    let export = world.memory.export(owner, Some(place), true).await;
    let lines = export.unwrap_or_default();
    seen.extend(
        lines.iter().filter(|line| line.contains("\"item\"")).map(|line| ("export", line.to_string())),
    );
    seen
}

/// Reads as one reader in every way; returns the number of texts.
async fn check_reader(world: &World, reader: &Spot, spots: &[Spot]) -> usize {
    let seen = reads(world, reader).await;
    let mut found = BTreeSet::new();
    for (way, text) in &seen {
        for writer in spots {
            for (layer, word) in LAYERS {
                // With the full stop, no word is a prefix of another.
                if text.contains(&format!("{}.", writer.word(word))) {
                    let known = may_know(reader, writer, layer);
                    assert!(known, "LEAK by {way}: {reader:?} sees {layer:?} of {writer:?}");
                    found.insert((writer.clone(), word));
                }
            }
        }
    }
    // A matrix without any visible text would have no leaks, either.
    for writer in spots {
        for (layer, word) in LAYERS {
            let expected = may_know(reader, writer, layer);
            assert_eq!(
                found.contains(&(writer.clone(), word)),
                expected,
                "{reader:?} and {layer:?} of {writer:?}"
            );
        }
    }
    seen.len()
}

#[test]
fn the_leak_matrix_has_no_leaks() {
    on_every_store(async |mut world| {
        fill(&world).await;
        let spots = spots();
        // Without BATON_FULL a third of the readers, and no reopening.
        let full = std::env::var("BATON_FULL").is_ok();
        let readers: Vec<Spot> = spots
            .iter()
            .enumerate()
            .filter(|(at, _)| full || at % 3 == 0 || at % 5 == 2)
            .map(|(_, s)| s.clone())
            .collect();
        let looked_at = matrix(&world, &readers, &spots).await;
        assert!(looked_at > 1_000, "{looked_at}");
        world.reopen().await;
        matrix(&world, &readers[..2], &spots).await;

        // A restore of a project affects that project alone, and restores no deleted item.
        for name in [None, Some("boat".to_owned()), Some("house".to_owned())] {
            let restored = world.memory.restore(ANA, name, 100).await.unwrap();
            assert_eq!((restored.total, restored.failed), (6, 0));
        }
        let known = world.everything(ANA).await;
        let gone: Vec<_> = known
            .iter()
            .filter(|item| item.project.as_deref() == Some("boat") && item.kind == Kind::Fact)
            .collect();
        world.delete(ANA, gone.iter().map(|item| item.id).collect()).await;
        assert_eq!(world.memory.restore(ANA, Some("boat".into()), 100).await.unwrap().total, 0);
        world.settle().await;
        let left = world.everything(ANA).await;
        assert!(gone.iter().all(|item| left.iter().all(|other| other.text != item.text)));
    });
}

async fn matrix(world: &World, readers: &[Spot], spots: &[Spot]) -> usize {
    let mut looked_at = 0;
    for reader in readers {
        looked_at += check_reader(world, reader, spots).await;
    }
    looked_at
}
