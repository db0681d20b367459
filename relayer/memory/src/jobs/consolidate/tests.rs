//! E8: the effects of consolidation on a graph, on every store.

use baton_keys::secret::random_bytes;

use super::*;
use crate::{
    ids::ItemId,
    model::{Item, Layer},
    state::tests::item,
    testing,
};

fn said(kind: Kind, text: &str) -> Item {
    let layer = if kind == Kind::Episode { Layer::Episode } else { Layer::Profile };
    Item { id: ItemId(random_bytes()), kind, layer, ..item(text) }
}

fn edge(from: &Item, to: &Item, label: &str, evidence: &str) -> Event {
    let (from, to, label, description) = (from.id, to.id, label.to_owned(), "what it means".into());
    Event::EdgeAdded(Edge { from, to, label, description, evidence: evidence.into(), confidence: 0.6 })
}

async fn write(memory: &Memory, owner: OwnerId, events: Vec<Event>) {
    memory.write(owner, |_| Ok((Plan::of(events.clone()), ()))).await.unwrap();
}

async fn confidences(memory: &Memory, owner: OwnerId, item: &Item, label: &str) -> Vec<f32> {
    let edges = memory.read(owner, |owner| {
        let edges = owner.state.edges_at(item.id).filter(|(_, edge)| edge.label == label);
        Ok(edges.map(|(_, edge)| edge.confidence).collect())
    });
    edges.await.unwrap()
}

#[tokio::test]
async fn e8_equal_edges_merge_as_the_log_grows_with_more_confidence_for_each_evidence_and_repetition() {
    for (storage, folder) in testing::storages().await {
        let (memory, owner) = (testing::memory(storage, folder.path()).await, OwnerId(random_bytes()));
        let (ana, oslo) = (said(Kind::Entity, "Ana"), said(Kind::Entity, "Oslo"));
        let message = said(Kind::Episode, "I hear that Ana moved to Oslo in May. I saw her flat in Oslo.");
        let [fact, other] = ["Ana repairs engines", "Ana sings"].map(|text| said(Kind::Fact, text));
        let lives = |evidence: &str| edge(&ana, &oslo, "lives_in", evidence);
        let added = [&ana, &oslo, &message, &fact, &other].map(|item| Event::added(item.clone()));
        let mut events = Vec::from(added);
        events.extend([lives("Ana moved to Oslo"), lives("her flat in Oslo"), lives("her flat in Oslo")]);
        events.extend([edge(&fact, &ana, "mentions", ""), edge(&other, &ana, "mentions", "")]);
        write(&memory, owner, events).await;
        assert!(memory.consolidate_if_due(owner).await.unwrap() == Step::Idle, "too little is new");
        write(
            &memory,
            owner,
            (0..CONSOLIDATE_EVERY).map(|at_ms| Event::Repeated { item: fact.id, at_ms }).collect(),
        )
        .await;
        while memory.consolidate_if_due(owner).await.unwrap() == Step::Done {}
        for _ in 0..2 {
            let lives = confidences(&memory, owner, &ana, "lives_in").await;
            assert!(lives.len() == 1 && (lives[0] - 0.84).abs() < 1e-4, "{lives:?}");
            assert_eq!(confidences(&memory, owner, &fact, "mentions").await, [MAX_CONFIDENCE]);
            assert_eq!(confidences(&memory, owner, &other, "mentions").await, [0.6]);
            memory.close(owner);
        }
        let events = async || memory.read(owner, |owner| Ok(owner.state.next)).await.unwrap();
        let after = events().await;
        assert!(memory.consolidate_if_due(owner).await.unwrap() == Step::Idle);
        assert_eq!(events().await, after, "a second run writes nothing");
        // Its words are deleted with the message that contains them, at once.
        memory.delete_with(owner, vec![message.id], crate::api::RemovalOptions::default()).await.unwrap();
        for _ in 0..2 {
            assert!(confidences(&memory, owner, &ana, "lives_in").await.is_empty());
            memory.close(owner);
        }
    }
}
