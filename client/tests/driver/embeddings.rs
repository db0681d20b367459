//! Embeddings against scripted nodes over a real mesh, by the library.

use std::time::Duration;

use baton_client::testkit::{
    GRACE, World,
    embedder::{EMBEDDER, EmbedderAct, Script, client, start, vector},
    fake::{FakeNode, MODEL},
    say, session,
};
use baton_client::{Client, ClientError, RouteOptions, choose::NoChoice};
use baton_proto::{ErrorCode, ids::NodeId};

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| "x".repeat(number + 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_embedded_in_batches_of_one_model_and_turns_go_elsewhere() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [start(&script).await, start(&script).await];
    let client = client(&world, &embedders).await;
    let texts = texts(150);
    let embedded = client.embed(&texts, Some(EMBEDDER)).await.unwrap();
    assert_eq!((embedded.model.as_str(), embedded.dimensions), (EMBEDDER, 2));
    for (text, embedded) in texts.iter().zip(&embedded.texts) {
        assert_eq!((&embedded.vector[..], embedded.tokens), (&vector(text)[..], 4));
    }
    let asked = script.asked.lock().clone();
    assert_eq!(asked.iter().map(|(_, _, texts)| *texts).collect::<Vec<_>>(), [64, 64, 22]);
    let mut keys: Vec<_> = asked.iter().map(|(_, auth, _)| auth.client_key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 3, "no two orders can be linked by their key");
    // A node that only embeds gets no turn, whatever model is wanted.
    let id = session(&client).await;
    assert_eq!(say(&client, id, "hello").await.receipt.node, world.nodes[0].id());
    assert!(embedders.iter().all(|embedder| embedder.seen(|seen| seen.turns.is_empty())));
    let rows = client.explain(None, &RouteOptions::default()).await.unwrap();
    let excluded = rows.iter().filter(|row| {
        matches!(
            row.verdict,
            baton_client::choose::Verdict::Excluded(baton_client::choose::Exclusion::Purpose)
        )
    });
    assert_eq!(excluded.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_node_does_wrong_another_one_is_asked() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [start(&script).await, start(&script).await];
    for act in [
        EmbedderAct::Refuse(ErrorCode::Busy),
        EmbedderAct::Refuse(ErrorCode::QuotaExceeded),
        EmbedderAct::Forge,
        EmbedderAct::OtherModel,
        EmbedderAct::OtherOrder,
        EmbedderAct::Fewer,
        EmbedderAct::NotFinite,
        EmbedderAct::FlippedBit,
        EmbedderAct::Garbage,
        EmbedderAct::Huge,
        EmbedderAct::HangUp,
        EmbedderAct::Silent,
    ] {
        // A fresh client, without experience.
        let home = tempfile::tempdir().unwrap();
        let mut config = world.config(home.path());
        config.bootstrap.extend(embedders.iter().flat_map(FakeNode::addrs));
        config.timeouts.embed = Duration::from_millis(500);
        let client = Client::open(config).await.unwrap();
        script.asked.lock().clear();
        script.acts.lock().push_back(act);
        let both = async { while client.nodes().await.len() < 3 {} };
        tokio::time::timeout(GRACE, both).await.unwrap();
        let embedded = client.embed(&texts(2), None).await.unwrap_or_else(|error| panic!("{act:?}: {error}"));
        assert_eq!(embedded.texts[1].vector, vector("xx"), "{act:?}");
        let asked: Vec<NodeId> = script.asked.lock().iter().map(|(node, ..)| *node).collect();
        assert_eq!(asked.len(), 2, "{act:?}");
        assert_ne!(asked[0], asked[1], "{act:?}: the other one");
        assert_eq!(embedded.texts[0].node, asked[1], "{act:?}");
        client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_stays_is_told_by_its_name() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [start(&script).await];
    let client = client(&world, &embedders).await;
    // A request that two nodes call wrong ends there. A lying node gets as many requests as any other, and is
    // named.
    for (act, expected, tries) in [
        (EmbedderAct::Refuse(ErrorCode::PayloadRejected), ErrorCode::PayloadRejected, 2),
        (EmbedderAct::Forge, ErrorCode::BadNodeSignature, 4),
    ] {
        script.asked.lock().clear();
        script.acts.lock().extend([act; 4]);
        let error = client.embed(&texts(1), None).await.unwrap_err();
        assert!(matches!(error, ClientError::EmbedFailed { attempts, .. } if attempts == tries), "{error}");
        assert_eq!(error.code(), Some(expected));
        assert_eq!(script.asked.lock().len(), tries as usize);
        script.acts.lock().clear();
    }
    let too_long = vec!["x".repeat(8193)];
    assert!(matches!(client.embed(&too_long, None).await, Err(ClientError::MessageTooLong { .. })));
    assert!(matches!(client.embed(&[], None).await, Err(ClientError::EmptyMessage)));
    // The turn model is not an embedding model.
    let none = client.embed(&texts(1), Some(MODEL)).await.unwrap_err();
    let ClientError::NoNode(NoChoice::ModelUnavailable { served, .. }) = none else { panic!("{none}") };
    assert_eq!(served, EMBEDDER);
}
