//! Tests that search rows reveal nothing of deleted items, and tests of packs.

use std::sync::Arc;

use baton_keys::secret::random_bytes;
use sqlx::Row as _;

use super::*;
use crate::{
    api::{Place, RecallRequest, RememberRequest, RemovalOptions},
    ids::ItemId,
    keyring::NUMBERS_PER_SEGMENT,
    search::{FeatureRecord, Features, QuantisedVector, RowKey, TermHasher, features},
    storage::{Space, postgres::PostgresStorage},
    testing,
};

const CANARY: &str = "zanzibarquokka";

fn fact(text: &str) -> RememberRequest {
    RememberRequest { intimate: Some(false), ..RememberRequest::new(Place::default(), text) }
}

async fn recalls(memory: &Memory, owner: OwnerId, query: &str) -> Vec<String> {
    let request = RecallRequest { query: query.into(), limit: 5, ..RecallRequest::default() };
    memory.recall(owner, request).await.hits.iter().map(|hit| hit.view.text.to_string()).collect()
}

async fn embed_all(memory: &Memory, owner: OwnerId) {
    while memory.embed_items(owner).await.unwrap() != Step::Idle {}
}

/// A search row, as an attacker reads it from the database's pages.
#[derive(Debug, PartialEq)]
struct LeakedRow {
    key: i64,
    terms: Vec<u32>,
    /// Zeros and ones.
    signs: Option<String>,
}

async fn rows(storage: &PostgresStorage, owner: crate::storage::Pseudonym) -> Vec<LeakedRow> {
    let mut transaction = storage.pool().begin().await.unwrap();
    let owned = sqlx::query("select set_config('app.owner', $1, true)").bind(hex::encode(owner.0));
    owned.execute(&mut *transaction).await.unwrap();
    let rows = sqlx::query(
        "select key, terms::text, signs::text from baton.item where owner = $1 and length > 0 order by number",
    );
    let rows = rows.bind(&owner.0[..]).fetch_all(&mut *transaction).await.unwrap();
    let terms = |text: &str| -> Vec<u32> {
        let inside = text.trim_start_matches('{').split('}').next().unwrap();
        inside.split(',').map(|term| term.split(':').next().unwrap().parse().unwrap()).collect()
    };
    rows.iter()
        .map(|row| LeakedRow { key: row.get(0), terms: terms(row.get(1)), signs: row.get(2) })
        .collect()
}

/// The keys on the disk, and the guesses of an attacker who has them.
struct Attack {
    hasher: TermHasher,
    keys: Vec<RowKey>,
}

impl Attack {
    async fn of(memory: &Memory, owner: OwnerId) -> Self {
        let vault = memory.inner.parts.vault.open(owner).await.unwrap();
        Self { hasher: TermHasher::new(*vault.keys().term_key()), keys: vault.row_keys() }
    }

    /// Rows in which a guessed word is detected.
    fn with_word(&self, rows: &[LeakedRow], word: &str) -> usize {
        let guess = FeatureRecord::new(features(word, &self.hasher), "");
        let guesses: Vec<u32> = self.keys.iter().map(|key| key.row(0, &guess).terms[0]).collect();
        rows.iter().filter(|row| row.terms.iter().any(|term| guesses.contains(term))).count()
    }

    /// Rows whose signs match those of a guessed text.
    fn with_vector(&self, rows: &[LeakedRow], unit: &[f32]) -> usize {
        let mut guess = Features::default();
        guess.vector = Some(QuantisedVector::from_unit(unit));
        let guess = FeatureRecord::new(guess, "hashing-384-v1");
        let bits = |key: &RowKey| -> String {
            key.row(0, &guess).signs.unwrap().bits.iter().map(|byte| format!("{byte:08b}")).collect()
        };
        let guesses: Vec<String> = self.keys.iter().map(bits).collect();
        let near = |signs: &String, guess: &String| {
            let differ = signs.chars().zip(guess.chars()).filter(|(a, b)| a != b).count();
            signs.len() == guess.len() && differ < 64
        };
        let signs = rows.iter().filter_map(|row| row.signs.as_ref());
        signs.filter(|signs| guesses.iter().any(|guess| near(signs, guess))).count()
    }
}

#[tokio::test]
async fn f1_rows_of_deleted_items_cannot_be_tested_once_the_deletion_is_acknowledged() {
    let Some(storage) = testing::postgres().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = || testing::memory(Arc::new(storage.clone()), folder.path());
    let owner = OwnerId(random_bytes());
    let (memory, other) = (open().await, open().await);
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
    let guess = memory
        .read(owner, |owner| Ok(crate::owner::embedded_text(&owner.state.entry(ids[1]).unwrap().item)))
        .await
        .unwrap();
    let embedder = &memory.inner.parts.embedder;
    let unit = embedder.embed(baton_models::embed::EmbedRole::Document, &[&guess]).await.unwrap().remove(0);
    // The attack works as long as the key exists.
    let attack = Attack::of(&memory, owner).await;
    assert_eq!((attack.with_word(&old, CANARY), attack.with_vector(&old, &unit)), (1, 1));
    memory.delete_with(owner, vec![ids[1]], RemovalOptions::default()).await.unwrap();
    let attack = Attack::of(&memory, owner).await;
    assert_eq!((attack.with_word(&old, CANARY), attack.with_vector(&old, &unit)), (0, 0));
    assert_eq!(attack.with_word(&old, "harbour"), 0, "the old rows of the others tell nothing either");
    let new = rows(&storage, pseudonym).await;
    assert_eq!((attack.with_word(&new, "harbour"), attack.with_word(&new, CANARY)), (1, 0));
    assert!(new.iter().all(|row| old.iter().all(|old| old.key != row.key)));
    for memory in [&memory, &other, &open().await] {
        assert_eq!(recalls(memory, owner, "When does the ferry leave?").await[0], texts[2]);
        assert!(recalls(memory, owner, CANARY).await.is_empty());
    }
}

#[tokio::test]
async fn features_of_full_segments_are_packed_and_what_is_deleted_leaves_its_pack() {
    let (storage, folder) = testing::embedded();
    let owner = OwnerId(random_bytes());
    let memory = testing::memory(storage.clone(), folder.path()).await;
    let text = |number: u64| format!("Barrel number {number} holds vinegar of the year {}.", 1_500 + number);
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
    let unembedded = async || memory.read(owner, |owner| Ok(owner.unembedded.len())).await.unwrap();
    let before = unembedded().await;
    memory.close(owner);
    assert_eq!(unembedded().await, before, "packs keep the vectors");
    let finds = async |memory: &Memory, number: u64| {
        recalls(memory, owner, &format!("What does barrel number {number} hold?"))
            .await
            .contains(&text(number))
    };
    assert!(finds(&memory, 7).await && finds(&memory, 390).await);
    let number = memory.read(owner, |owner| Ok(owner.state.number(ids[7]).unwrap())).await.unwrap();
    let pack = number / NUMBERS_PER_SEGMENT;
    let sealed = storage.read(vault.pseudonym(), Space::Packs, pack, 1).await.unwrap().remove(0).1;
    memory.delete_with(owner, vec![ids[7]], RemovalOptions::default()).await.unwrap();
    vault.refresh().await.unwrap();
    let now = storage.read(vault.pseudonym(), Space::Packs, pack, 1).await.unwrap().remove(0).1;
    // The first bytes name the key.
    assert_ne!(sealed[..8], now[..8], "its pack has a new key");
    let held = |bytes: &[u8]| bytes.windows(8).any(|window| window == number.to_le_bytes());
    assert!(!held(&vault.get(Space::Packs, pack).await.unwrap().unwrap()));
    let moved = "The barrel was moved to the attic.";
    memory.edit_with(owner, ids[8], moved.into(), RemovalOptions::default()).await.unwrap();
    embed_all(&memory, owner).await;
    for _ in 0..2 {
        assert!(!finds(&memory, 7).await && !finds(&memory, 8).await && finds(&memory, 9).await);
        assert_eq!(recalls(&memory, owner, "What was moved to the attic?").await[0], moved);
        memory.close(owner);
    }
}
