//! What memory costs: recall at 1,000 to 100,000 items of one owner and over 10,000 owners, writing, and bytes of an open
//! owner, on the embedded storage with the hashing embedder. Prints one JSON line.
//!
//! `cargo run --release -p baton-memory --example bench_memory [-- SMALLEST_FIRST_SIZES… [--owners N]]`

#![expect(clippy::cast_precision_loss, reason = "rates for a person")]

use std::{
    path::Path,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use baton_embed::EmbedderConfig;
use baton_keys::master::MasterKey;
use baton_memory::{
    Memory, Parts,
    api::{Filters, Place, RecallRequest, Remember, TurnRecord},
    ids::OwnerId,
    limits::MAX_BULK,
    model::{Author, Layer, MemoryScope},
    storage::embedded::{EmbeddedConfig, EmbeddedStorage},
    vault::Vault,
};
use serde_json::{Value, json};

/// Recalls measured at each size.
const RECALLS: usize = 200;
/// Turns recorded for the throughput of writing.
const TURNS: u64 = 200;
const WORDS: [&str; 40] = [
    "harbour",
    "engine",
    "violin",
    "orchard",
    "ferry",
    "lantern",
    "granite",
    "meadow",
    "compass",
    "velvet",
    "thunder",
    "saffron",
    "glacier",
    "pelican",
    "cathedral",
    "marble",
    "whistle",
    "juniper",
    "anchor",
    "copper",
    "lagoon",
    "quartz",
    "sparrow",
    "timber",
    "cinnamon",
    "bridge",
    "pottery",
    "cellar",
    "blanket",
    "notebook",
    "festival",
    "railway",
    "doctor",
    "sister",
    "garden",
    "kitchen",
    "mountain",
    "ticket",
    "window",
    "letter",
];

/// A small generator: the same texts in every run.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn word(&mut self) -> &'static str {
        let at = usize::try_from(self.next() % WORDS.len() as u64).unwrap_or(0);
        WORDS.get(at).copied().unwrap_or("word")
    }

    fn sentence(&mut self, number: usize) -> String {
        let words: Vec<&str> = (0..12).map(|_| self.word()).collect();
        format!("Note {number}: the {} and my {}.", words[..6].join(" "), words[6..].join(" "))
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

async fn open(folder: &Path) -> anyhow::Result<Memory> {
    let storage = Arc::new(EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("memory")))?);
    let master = MasterKey::load_or_create(&folder.join("master.key"), None)?;
    let vault = Vault::new(storage, &folder.join("keys"), master).await?;
    let embedder = baton_embed::open(&EmbedderConfig::Hashing {}, folder).await?;
    Ok(Memory::open(Parts::new(vault, embedder, Arc::new(now_ms))).await?)
}

fn fact(text: String) -> Remember {
    Remember {
        place: Place::default(),
        text: text.into(),
        layer: Layer::Profile,
        author: Author::Owner,
        time_ms: None,
        intimate: Some(false),
        salience: Some(0.5),
    }
}

fn request(query: String) -> RecallRequest {
    RecallRequest {
        place: Place::default(),
        scope: MemoryScope::default(),
        query: query.into(),
        limit: 6,
        threshold: None,
        budget_tokens: Some(512),
        filters: Filters::default(),
        weights: None,
    }
}

fn quantiles(mut us: Vec<u64>) -> Value {
    us.sort_unstable();
    let at =
        |share: usize| us.get((us.len() * share / 100).min(us.len().saturating_sub(1))).copied().unwrap_or(0);
    json!({ "p50_us": at(50), "p99_us": at(99) })
}

async fn settle(memory: &Memory) {
    while memory.run_due().await > 0 {}
}

async fn at_size(memory: &Memory, owner: OwnerId, size: usize) -> anyhow::Result<Value> {
    let mut words = Words(0x9e37_79b9_7f4a_7c15 ^ size as u64);
    let resident_before = resident_kib();
    let begun = Instant::now();
    for start in (0..size).step_by(MAX_BULK) {
        let facts = (start..size.min(start + MAX_BULK)).map(|number| fact(words.sentence(number))).collect();
        memory.remember(owner, facts).await?;
    }
    let remember_seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    settle(memory).await;
    let embed_seconds = begun.elapsed().as_secs_f64();
    let mut us = Vec::new();
    let mut modes = std::collections::BTreeMap::new();
    for _ in 0..RECALLS {
        let query = format!("What about the {} and my {} {}?", words.word(), words.word(), words.word());
        let recall = memory.recall(owner, request(query)).await;
        *modes.entry(format!("{:?}", recall.mode)).or_insert(0) += 1;
        us.push(recall.took_us);
    }
    let resident = resident_kib().saturating_sub(resident_before);
    memory.close(owner);
    let begun = Instant::now();
    memory.stats(owner).await?;
    let open_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(json!({
        "items": size, "recall": quantiles(us), "modes": modes,
        "remembered_per_s": (size as f64 / remember_seconds).round(),
        "embedded_per_s": (size as f64 / embed_seconds).round(),
        "open_ms": (open_ms * 10.0).round() / 10.0, "resident_kib": resident,
    }))
}

async fn turns(memory: &Memory, owner: OwnerId) -> anyhow::Result<Value> {
    let place = Place { session: Some("bench".into()), ..Place::default() };
    let mut words = Words(42);
    let mut us = Vec::new();
    for turn in 0..TURNS {
        let record = TurnRecord {
            place: place.clone(),
            turn,
            user: words.sentence(0).into(),
            assistant: words.sentence(1).into(),
            time_ms: now_ms(),
        };
        let begun = Instant::now();
        memory.record_turn(owner, record).await?;
        us.push(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    let total: u64 = us.iter().sum();
    Ok(json!({ "recorded_per_s": (TURNS as f64 / (total as f64 / 1e6)).round(), "record": quantiles(us) }))
}

async fn many_owners(folder: &Path, owners: u32) -> anyhow::Result<Value> {
    let memory = open(folder).await?;
    let owner = |number: u32| OwnerId(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let mut words = Words(7);
    let begun = Instant::now();
    for number in 0..owners {
        let facts = (0..10).map(|line| fact(words.sentence(line))).collect();
        memory.remember(owner(number), facts).await?;
    }
    let fill_seconds = begun.elapsed().as_secs_f64();
    settle(&memory).await;
    let mut us = Vec::new();
    for _ in 0..1_000 {
        let number = u32::try_from(words.next() % u64::from(owners)).unwrap_or(0);
        let query = format!("What about the {} and my {}?", words.word(), words.word());
        us.push(memory.recall(owner(number), request(query)).await.took_us);
    }
    Ok(json!({
        "owners": owners, "items_each": 10, "recall": quantiles(us), "open_owners": memory.open_owners(),
        "fill_seconds": fill_seconds.round(), "resident_kib": resident_kib(),
    }))
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut sizes = Vec::new();
    let mut owners = 10_000;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--owners" => owners = arguments.next().unwrap_or_default().parse()?,
            size => sizes.push(size.parse()?),
        }
    }
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    let folder = tempfile::tempdir()?;
    let memory = open(folder.path()).await?;
    let mut at = Vec::new();
    for (number, size) in (1..).zip(sizes) {
        at.push(at_size(&memory, OwnerId([number; 32]), size).await?);
    }
    let turns = turns(&memory, OwnerId([200; 32])).await?;
    drop(memory);
    let other = tempfile::tempdir()?;
    let many = if owners == 0 { Value::Null } else { many_owners(other.path(), owners).await? };
    println!("{}", json!({ "embedder": "hashing-384-v1", "sizes": at, "turns": turns, "many_owners": many }));
    Ok(())
}
