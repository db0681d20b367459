//! The cost of memory: recall at 1,000 to 100,000 items of one owner and over 10,000 owners, writing, and
//! memory use. Uses the embedded storage with the hashing embedder. Prints one JSON line; takes about two
//! minutes.
//!
//! `cargo run --release -p baton-memory --example bench_memory [-- SMALLEST_FIRST_SIZES… [--owners N]]`

#![expect(clippy::cast_precision_loss, reason = "rates for a person")]
#![expect(clippy::print_stderr, reason = "says how far it is")]

use std::{
    io::IsTerminal as _,
    path::Path,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use baton_keys::master::MasterKey;
use baton_memory::{
    Memory, Parts,
    api::{Filters, Place, RecallRequest, RememberRequest, TurnRecord},
    ids::OwnerId,
    limits::MAX_BULK,
    model::{Author, Layer, MemoryScope},
    storage::embedded::{EmbeddedConfig, EmbeddedStorage},
    vault::Vault,
};
use baton_models::embed::EmbedderConfig;
use serde_json::{Value, json};

/// Recalls measured at each size.
const RECALLS: usize = 200;
/// Turns recorded for the throughput of writing.
const TURNS: u64 = 200;
/// Openings measured at each size.
const OPENINGS: usize = 9;
/// Items of each of many owners.
const ITEMS_EACH: usize = 10;
/// Owners that are open together for the memory measurement.
const OPEN_AT_ONCE: u32 = 500;
/// The database's cache, of the relayer's size.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
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

async fn open(folder: &Path, cache_bytes: u64) -> anyhow::Result<Memory> {
    let config = EmbeddedConfig { cache_bytes, ..EmbeddedConfig::new(folder.join("memory")) };
    let storage = Arc::new(EmbeddedStorage::open(&config)?);
    let master = MasterKey::load_or_create(&folder.join("master.key"), None)?;
    let vault = Vault::new(storage, &folder.join("keys"), master).await?;
    let embedder = baton_models::embed::open(&EmbedderConfig::Hashing {}, folder).await?;
    Ok(Memory::open(Parts::new(vault, embedder, Arc::new(now_ms))).await?)
}

fn fact(text: String) -> RememberRequest {
    RememberRequest {
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

/// Reports progress on a terminal.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{text}");
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

async fn settle(memory: &Memory) {
    while memory.run_due().await > 0 {}
}

fn owner_of(number: u32) -> OwnerId {
    OwnerId(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// One owner with this many items: writing, recall, and the steps before dispatch.
async fn at_size(folder: &Path, size: usize) -> anyhow::Result<Value> {
    let memory = open(folder, CACHE_BYTES).await?;
    let owner = owner_of(0);
    let mut words = Words(0x9e37_79b9_7f4a_7c15 ^ size as u64);
    let begun = Instant::now();
    for start in (0..size).step_by(MAX_BULK) {
        let facts = (start..size.min(start + MAX_BULK)).map(|number| fact(words.sentence(number))).collect();
        memory.remember(owner, facts).await?;
        if start % 10_000 == 0 {
            progress(&format!("{size} items: {start} written"));
        }
    }
    let remember_seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    settle(&memory).await;
    let embed_seconds = begun.elapsed().as_secs_f64();
    let mut us = Vec::new();
    let mut modes = std::collections::BTreeMap::new();
    for _ in 0..RECALLS {
        let query = format!("What about the {} and my {} {}?", words.word(), words.word(), words.word());
        let recall = memory.recall(owner, request(query)).await;
        *modes.entry(format!("{:?}", recall.mode)).or_insert(0) += 1;
        us.push(recall.took_us);
    }
    let dispatch = turn_time(&memory, owner, &mut words).await?;
    let mut open_us = Vec::new();
    for _ in 0..OPENINGS {
        memory.close(owner);
        let begun = Instant::now();
        memory.stats(owner).await?;
        open_us.push(micros(begun));
    }
    open_us.sort_unstable();
    memory.close_all().await;
    drop(memory);
    Ok(json!({
        "items": size, "recall": quantiles(us), "modes": modes, "turn_added": dispatch,
        "remembered_per_s": (size as f64 / remember_seconds).round(),
        "embedded_per_s": (size as f64 / embed_seconds).round(),
        "open_us": { "fastest": open_us.first(), "median": open_us.get(OPENINGS / 2) },
        "bytes_open": measured(folder, 1)?,
    }))
}

/// The time of the steps before a turn's dispatch: creating its place and recalling memory, as the handlers
/// do.
async fn turn_time(memory: &Memory, owner: OwnerId, words: &mut Words) -> anyhow::Result<Value> {
    let mut us = Vec::new();
    for _ in 0..RECALLS {
        let place = Place { session: Some("bench".into()), ..Place::default() };
        let query = format!("Did I say something of the {} or my {}?", words.word(), words.word());
        let begun = Instant::now();
        memory.create_session(owner, place.clone()).await?;
        let filters = Filters { not_session: Some("bench".into()), ..Filters::default() };
        let recall = memory.recall(owner, RecallRequest { place, filters, ..request(query) }).await;
        std::hint::black_box(recall.memory_items());
        us.push(micros(begun));
    }
    Ok(quantiles(us))
}

async fn turns(folder: &Path) -> anyhow::Result<Value> {
    let memory = open(folder, CACHE_BYTES).await?;
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
        memory.record_turn(owner_of(0), record).await?;
        us.push(micros(begun));
    }
    let total: u64 = us.iter().sum();
    Ok(json!({ "recorded_per_s": (TURNS as f64 / (total as f64 / 1e6)).round(), "record": quantiles(us) }))
}

async fn many_owners(folder: &Path, owners: u32) -> anyhow::Result<Value> {
    let memory = open(folder, CACHE_BYTES).await?;
    let mut words = Words(7);
    let begun = Instant::now();
    for number in 0..owners {
        let facts = (0..ITEMS_EACH).map(|line| fact(words.sentence(line))).collect();
        memory.remember(owner_of(number), facts).await?;
        if number % 1_000 == 0 {
            progress(&format!("{owners} owners: {number} written"));
        }
    }
    let fill_seconds = begun.elapsed().as_secs_f64();
    settle(&memory).await;
    let mut us = Vec::new();
    for _ in 0..1_000 {
        let number = u32::try_from(words.next() % u64::from(owners)).unwrap_or(0);
        let query = format!("What about the {} and my {}?", words.word(), words.word());
        us.push(memory.recall(owner_of(number), request(query)).await.took_us);
    }
    let open_owners = memory.open_owners();
    memory.close_all().await;
    drop(memory);
    Ok(json!({
        "owners": owners, "items_each": ITEMS_EACH, "recall": quantiles(us), "open_owners": open_owners,
        "fill_seconds": fill_seconds.round(),
        "bytes_each_open": measured(folder, owners.min(OPEN_AT_ONCE))?,
    }))
}

/// Resident memory of each open owner, in bytes, measured in a process that does nothing else.
fn measured(folder: &Path, owners: u32) -> anyhow::Result<u64> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["--resident", &owners.to_string()])
        .arg(folder)
        .output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

async fn resident(folder: &Path, owners: u32) -> anyhow::Result<u64> {
    // As small a database cache as possible.
    let memory = open(folder, 1024 * 1024).await?;
    memory.stats(OwnerId([0xff; 32])).await?;
    let before = resident_kib();
    for number in 0..owners {
        memory.stats(owner_of(number)).await?;
    }
    Ok((resident_kib().saturating_sub(before)) * 1024 / u64::from(owners.max(1)))
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
            "--resident" => {
                let owners = arguments.next().unwrap_or_default().parse()?;
                let folder = arguments.next().unwrap_or_default();
                println!("{}", resident(Path::new(&folder), owners).await?);
                return Ok(());
            }
            size => sizes.push(size.parse()?),
        }
    }
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    let mut at = Vec::new();
    for size in sizes {
        at.push(at_size(tempfile::tempdir()?.path(), size).await?);
    }
    let turns = turns(tempfile::tempdir()?.path()).await?;
    let many =
        if owners == 0 { Value::Null } else { many_owners(tempfile::tempdir()?.path(), owners).await? };
    println!("{}", json!({ "embedder": "hashing-384-v1", "sizes": at, "turns": turns, "many_owners": many }));
    Ok(())
}
