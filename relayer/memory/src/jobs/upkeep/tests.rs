//! Tests that index rows reveal nothing of deleted items, and tests of packs.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_keys::{master::MasterKey, secret::random_bytes};
use baton_models::embed::EmbedderConfig;
use sqlx::Row as _;

use super::*;
use crate::{
    Parts,
    api::{Filters, Place, RecallRequest, RememberRequest},
    ids::ItemId,
    keyring::{IndexKeys, NUMBERS_PER_SEGMENT},
    model::{Author, Layer, MemoryScope},
    search::{TermHasher, features},
    storage::{
        Space, Storage,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::{PostgresConfig, PostgresStorage},
    },
    vault::Vault,
};

const START_MS: u64 = 1_772_323_200_000;
const CANARY: &str = "zanzibarquokka";

async fn open(storage: Arc<dyn Storage>, folder: &Path, clock: &Arc<AtomicU64>) -> Memory {
    let vault = Vault::new(storage, &folder.join("keys"), MasterKey::from_bytes([5; 32])).await.unwrap();
    let embedder = baton_models::embed::open(&EmbedderConfig::Hashing {}, folder).await.unwrap();
    let clock = clock.clone();
    let mut parts = Parts::new(vault, embedder, Arc::new(move || clock.load(Ordering::Relaxed)));
    // A busy machine may not cut a search short.
    parts.recall_deadline = Duration::from_secs(10);
    Memory::open(parts).await.unwrap()
}

fn fact(text: &str) -> RememberRequest {
    RememberRequest {
        place: Place::default(),
        text: text.into(),
        layer: Layer::Profile,
        author: Author::Owner,
        time_ms: None,
        intimate: Some(false),
        salience: None,
    }
}

async fn recalls(memory: &Memory, owner: OwnerId, query: &str) -> Vec<String> {
    let request = RecallRequest {
        place: Place::default(),
        scope: MemoryScope::default(),
        query: query.into(),
        limit: 5,
        threshold: None,
        budget_tokens: None,
        filters: Filters::default(),
        weights: None,
    };
    memory.recall(owner, request).await.hits.iter().map(|hit| hit.view.text.to_string()).collect()
}

async fn embed_all(memory: &Memory, owner: OwnerId) {
    while memory.embed_items(owner).await.unwrap() != Step::Idle {}
}

/// An index row, as an attacker reads it from the database's pages.
#[derive(Debug)]
struct LeakedRow {
    class: Vec<u8>,
    terms: Vec<i64>,
    vector: Option<Vec<f32>>,
}

async fn rows(storage: &PostgresStorage, owner: crate::storage::Pseudonym) -> Vec<LeakedRow> {
    let mut transaction = storage.pool().begin().await.unwrap();
    sqlx::query("select set_config('app.owner', $1, true)")
        .bind(hex::encode(owner.0))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let rows = sqlx::query(
        "select class, terms, embedding::real[] from baton.item where owner = $1 order by number",
    )
    .persistent(false)
    .bind(&owner.0[..])
    .fetch_all(&mut *transaction)
    .await
    .unwrap();
    rows.iter().map(|row| LeakedRow { class: row.get(0), terms: row.get(1), vector: row.get(2) }).collect()
}

/// Rows in which an attacker can detect a guessed word, with any of the keys.
fn rows_matching_word(rows: &[LeakedRow], hasher: &TermHasher, keys: &[IndexKeys], word: &str) -> usize {
    let hash = features(word, hasher).terms[0].0;
    let named: BTreeSet<i64> =
        keys.iter().map(|keys| keys.term(hash)).chain([hash]).map(u64::cast_signed).collect();
    rows.iter().filter(|row| row.terms.iter().any(|term| named.contains(term))).count()
}

/// Rows whose vector matches a guessed text, rotated by any of the keys.
fn rows_matching_vector(rows: &[LeakedRow], keys: &[IndexKeys], unit: &[f32]) -> usize {
    let rotated: Vec<Vec<f32>> =
        keys.iter().map(|keys| crate::rotation::rotate(keys.rotation_seed(), unit)).collect();
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() > 0.9;
    let seen = rows.iter().filter_map(|row| row.vector.as_deref());
    seen.filter(|vector| rotated.iter().any(|guess| guess.len() == vector.len() && near(guess, vector)))
        .count()
}

async fn secrets(memory: &Memory, owner: OwnerId) -> (TermHasher, Arc<[IndexKeys]>, Option<u64>) {
    let vault = memory.inner.parts.vault.open(owner).await.unwrap();
    (TermHasher::new(*vault.keys().term_key()), vault.index_keys(), vault.reindex_from_ms())
}

#[tokio::test]
async fn f1_rows_of_deleted_items_cannot_be_tested_after_the_index_key_is_replaced() {
    let Ok(url) = std::env::var("BATON_TEST_POSTGRES") else { return };
    let storage = PostgresStorage::open(&PostgresConfig::new(url)).await.unwrap();
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(START_MS)));
    let owner = OwnerId(random_bytes());
    let memory = open(Arc::new(storage.clone()), folder.path(), &clock).await;
    let texts = [
        "The harbour opens at dawn.",
        &format!("The password hint is {CANARY}."),
        "The ferry leaves at noon.",
    ];
    let ids: Vec<ItemId> = {
        let facts = texts.iter().map(|text| fact(text)).collect();
        memory.remember(owner, facts).await.unwrap().iter().map(|fact| fact.id).collect()
    };
    embed_all(&memory, owner).await;
    let pseudonym = memory.inner.parts.vault.pseudonym(owner);
    let old = rows(&storage, pseudonym).await;
    let unit = {
        let guess = memory
            .read(owner, |owner| Ok(crate::owner::embedded_text(&owner.state.entry(ids[1]).unwrap().item)))
            .await
            .unwrap();
        memory
            .inner
            .parts
            .embedder
            .embed(baton_models::embed::EmbedRole::Document, &[&guess])
            .await
            .unwrap()
            .remove(0)
    };
    let (hasher, keys, stale) = secrets(&memory, owner).await;
    assert_eq!((keys.len(), stale), (1, None));
    // The attack works as long as the key exists.
    assert_eq!(
        (rows_matching_word(&old, &hasher, &keys, CANARY), rows_matching_vector(&old, &keys, &unit)),
        (1, 1)
    );
    let former = keys[0].generation();
    memory.delete(owner, vec![ids[1]]).await.unwrap();
    clock.fetch_add(1_000, Ordering::Relaxed);
    memory.delete(owner, vec![ItemId([0; 16])]).await.unwrap();
    assert!(memory.reindex(owner).await.unwrap() == Step::Idle, "deletions of a while share one rewriting");
    clock.fetch_add(millis(INDEX_KEY_LINGERS), Ordering::Relaxed);
    assert!(memory.reindex(owner).await.unwrap() == Step::Done);
    let (hasher, keys, stale) = secrets(&memory, owner).await;
    assert!(keys.len() == 1 && keys[0].generation() > former && stale.is_none());
    assert_eq!(
        (rows_matching_word(&old, &hasher, &keys, CANARY), rows_matching_vector(&old, &keys, &unit)),
        (0, 0)
    );
    assert_eq!(rows_matching_word(&old, &hasher, &keys, "harbour"), 0);
    let new = rows(&storage, pseudonym).await;
    assert_eq!(
        (
            rows_matching_word(&new, &hasher, &keys, "harbour"),
            rows_matching_word(&new, &hasher, &keys, CANARY)
        ),
        (1, 0)
    );
    assert!(new.iter().all(|row| old.iter().all(|old| old.class != row.class)));
    assert!(memory.reindex(owner).await.unwrap() == Step::Idle);
    for memory in [memory.clone(), open(Arc::new(storage.clone()), folder.path(), &clock).await] {
        assert_eq!(recalls(&memory, owner, "When does the ferry leave?").await[0], texts[2]);
        assert!(recalls(&memory, owner, CANARY).await.is_empty());
    }
}

#[tokio::test]
async fn a_search_finds_the_same_during_a_reindex_and_a_crash_leaves_it_to_be_ended() {
    let Ok(url) = std::env::var("BATON_TEST_POSTGRES") else { return };
    let storage = PostgresStorage::open(&PostgresConfig::new(url)).await.unwrap();
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(START_MS)));
    let owner = OwnerId(random_bytes());
    let open = async || open(Arc::new(storage.clone()), folder.path(), &clock).await;
    let (memory, other) = (open().await, open().await);
    let towns = ["Coimbra", "Leiria", "Tomar", "Viseu"];
    let text = |town: &str| format!("The train to {town} leaves every morning.");
    memory.remember(owner, towns.iter().map(|town| fact(&text(town))).collect()).await.unwrap();
    embed_all(&memory, owner).await;
    let assert_finds = async |memory: &Memory| {
        for town in towns {
            let found = recalls(memory, owner, &format!("When does the train to {town} leave?")).await;
            assert_eq!(found[0], text(town));
        }
    };
    assert_finds(&other).await;
    memory.hold(owner, async |owner| Ok(owner.vault().begin_reindex().await?)).await.unwrap();
    assert_finds(&memory).await;
    // Half of the rows are under each key; the other relayer knew one key only.
    let middle = memory
        .read(owner, |owner| Ok(*owner.state.entries.keys().nth(owner.state.entries.len() / 2).unwrap()))
        .await
        .unwrap();
    memory.hold(owner, async |owner| owner.reindex_page(middle).await).await.unwrap();
    assert_finds(&memory).await;
    assert_finds(&other).await;
    // The other relayer's new rows are under the new key.
    other.remember(owner, vec![fact("The tram to Belem leaves at noon.")]).await.unwrap();
    drop(memory);
    let memory = open().await;
    assert_finds(&memory).await;
    assert_eq!(secrets(&memory, owner).await.1.len(), 2);
    assert!(memory.reindex(owner).await.unwrap() == Step::Done, "without waiting: it had begun");
    assert_eq!(secrets(&memory, owner).await.1.len(), 1);
    for memory in [&memory, &other] {
        assert_finds(memory).await;
        assert_eq!(
            recalls(memory, owner, "When does the tram to Belem leave?").await[0],
            "The tram to Belem leaves at noon."
        );
    }
}

#[tokio::test]
async fn features_of_full_segments_are_packed_and_what_is_deleted_leaves_its_pack() {
    let mut stores: Vec<Arc<dyn Storage>> = Vec::new();
    let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(START_MS)));
    stores.push(Arc::new(EmbeddedStorage::open(&EmbeddedConfig::new(folder.path().join("memory"))).unwrap()));
    if let Ok(url) = std::env::var("BATON_TEST_POSTGRES") {
        stores.push(Arc::new(PostgresStorage::open(&PostgresConfig::new(url)).await.unwrap()));
    }
    for storage in stores {
        let owner = OwnerId(random_bytes());
        let memory = open(storage.clone(), folder.path(), &clock).await;
        let text =
            |number: u64| format!("Barrel number {number} holds vinegar of the year {}.", 1_500 + number);
        let mut ids = Vec::new();
        for hundred in 0..4 {
            let facts = (0..100).map(|one| fact(&text(hundred * 100 + one))).collect();
            ids.extend(memory.remember(owner, facts).await.unwrap().into_iter().map(|fact| fact.id));
        }
        assert!(memory.pack(owner).await.unwrap() == Step::Idle, "what waits for its vector is not packed");
        embed_all(&memory, owner).await;
        assert!(memory.pack(owner).await.unwrap() == Step::Done);
        assert!(memory.pack(owner).await.unwrap() == Step::Idle);
        let vault = memory.inner.parts.vault.open(owner).await.unwrap();
        let singles = async || vault.read(Space::Features, 0).await.unwrap();
        let packs = async || vault.read(Space::Packs, 0).await.unwrap();
        let (full, end) = (packs().await.len() as u64, singles().await[0].0);
        assert!(full >= 2 && end >= full * NUMBERS_PER_SEGMENT, "{full} packs, singles from {end}");
        let before = memory.read(owner, |owner| Ok(owner.unembedded.len())).await.unwrap();
        memory.close(owner);
        assert_eq!(
            memory.read(owner, |owner| Ok(owner.unembedded.len())).await.unwrap(),
            before,
            "packs keep the vectors"
        );
        let finds = async |memory: &Memory, number: u64| {
            recalls(memory, owner, &format!("What does barrel number {number} hold?"))
                .await
                .contains(&text(number))
        };
        assert!(finds(&memory, 7).await && finds(&memory, 390).await);
        let number = memory.read(owner, |owner| Ok(owner.state.number(ids[7]).unwrap())).await.unwrap();
        let pack = number / NUMBERS_PER_SEGMENT;
        let sealed = storage.read(vault.pseudonym(), Space::Packs, pack, 1).await.unwrap().remove(0).1;
        memory.delete(owner, vec![ids[7]]).await.unwrap();
        vault.refresh().await.unwrap();
        let now = storage.read(vault.pseudonym(), Space::Packs, pack, 1).await.unwrap().remove(0).1;
        // The first bytes name the key.
        assert_ne!(sealed[..8], now[..8], "its pack has a new key");
        let held = |bytes: &[u8]| bytes.windows(8).any(|window| window == number.to_le_bytes());
        let kept = memory.hold(owner, async |owner| {
            owner.kept_features(&BTreeSet::from([number, number + 1, number + 2])).await
        });
        let kept = kept.await.unwrap();
        assert!(!kept.contains_key(&number) && !held(&vault.get(Space::Packs, pack).await.unwrap().unwrap()));
        memory.edit(owner, ids[8], "The barrel was moved to the attic.".into()).await.unwrap();
        embed_all(&memory, owner).await;
        for _ in 0..2 {
            assert!(!finds(&memory, 7).await && !finds(&memory, 8).await && finds(&memory, 9).await);
            assert_eq!(
                recalls(&memory, owner, "What was moved to the attic?").await[0],
                "The barrel was moved to the attic."
            );
            memory.close(owner);
        }
    }
}
