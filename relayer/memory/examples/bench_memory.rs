//! The cost of memory: recall at 1,000 to 100,000 items of one owner and over many owners, writing, and
//! memory use, with the hashing embedder. Uses the embedded storage, or an empty Postgres database. Prints one
//! JSON line; takes about two minutes.
//!
//! `cargo run --release -p baton-memory --example bench_memory -- [SMALLEST_FIRST_SIZES…] [--owners N]
//! [--items-each N]`, with `BATON_BENCH_POSTGRES=URL` for a Postgres.

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
    storage::{
        Storage,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::PostgresStorage,
    },
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
/// Owners that are filled at once.
const FILLED_AT_ONCE: usize = 8;
/// The environment variable with the database's URL.
const POSTGRES: &str = "BATON_BENCH_POSTGRES";
const WORDS: &str = "harbour engine violin orchard ferry lantern granite meadow compass velvet thunder saffron glacier \
    pelican cathedral marble whistle juniper anchor copper lagoon quartz sparrow timber cinnamon bridge \
    pottery cellar blanket notebook festival railway doctor sister garden kitchen mountain ticket window \
    letter";

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
        let at = usize::try_from(self.next() % 40).unwrap_or(0);
        WORDS.split(' ').nth(at).unwrap_or("word")
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
    let storage: Arc<dyn Storage> = match std::env::var(POSTGRES) {
        Ok(url) => Arc::new(PostgresStorage::open(&url).await?),
        Err(_) => Arc::new(EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("memory")))?),
    };
    let master = MasterKey::load_or_create(&folder.join("master.key"), None)?;
    let vault = Vault::new(storage, &folder.join("keys"), master).await?;
    let embedder = baton_models::embed::open(&EmbedderConfig::Hashing {}, folder).await?;
    Ok(Memory::open(Parts::new(vault, embedder, Arc::new(now_ms))).await?)
}

fn fact(text: String) -> RememberRequest {
    let (intimate, salience) = (Some(false), Some(0.5));
    RememberRequest { intimate, salience, ..RememberRequest::new(Place::default(), text) }
}

fn request(query: String) -> RecallRequest {
    RecallRequest { query: query.into(), limit: 6, budget_tokens: Some(512), ..RecallRequest::default() }
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

fn owner_of(part: &str, number: usize) -> OwnerId {
    OwnerId(*blake3::hash(format!("{part} {number}").as_bytes()).as_bytes())
}

/// One owner with this many items: writing, recall, and the steps before dispatch.
async fn at_size(folder: &Path, size: usize) -> anyhow::Result<Value> {
    let memory = open(folder).await?;
    let owner = owner_of("size", size);
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
    for _ in 0..RECALLS {
        let query = format!("What about the {} and my {} {}?", words.word(), words.word(), words.word());
        let recall = memory.recall(owner, request(query)).await;
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
        "items": size, "recall": quantiles(us), "turn_added": dispatch,
        "remembered_per_s": (size as f64 / remember_seconds).round(),
        "embedded_per_s": (size as f64 / embed_seconds).round(),
        "open_us": { "fastest": open_us.first(), "median": open_us.get(OPENINGS / 2) },
        "read_alone": measured(folder, &["size", &size.to_string()])?,
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
    let memory = open(folder).await?;
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
        memory.record_turn(owner_of("turns", 0), record).await?;
        us.push(micros(begun));
    }
    let total: u64 = us.iter().sum();
    Ok(json!({ "recorded_per_s": (TURNS as f64 / (total as f64 / 1e6)).round(), "record": quantiles(us) }))
}

async fn many_owners(folder: &Path, owners: usize, items: usize) -> anyhow::Result<Value> {
    let memory = open(folder).await?;
    let begun = Instant::now();
    let mut filling = tokio::task::JoinSet::new();
    for number in 0..owners {
        if filling.len() >= FILLED_AT_ONCE {
            filling.join_next().await.transpose()?;
        }
        let memory = memory.clone();
        filling.spawn(async move {
            let mut words = Words(7 + number as u64);
            for start in (0..items).step_by(MAX_BULK) {
                let lines = start..items.min(start + MAX_BULK);
                let facts = lines.map(|line| fact(words.sentence(line))).collect();
                memory.remember(owner_of("many", number), facts).await.expect("the storage takes it");
            }
        });
        if number % 1_000 == 0 {
            progress(&format!("{owners} owners: {number} written"));
        }
    }
    filling.join_all().await;
    let fill_seconds = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    settle(&memory).await;
    let settle_seconds = begun.elapsed().as_secs_f64();
    memory.close_all().await;
    drop(memory);
    Ok(json!({
        "owners": owners, "items_each": items, "fill_seconds": fill_seconds.round(),
        "settle_seconds": settle_seconds.round(),
        "read_alone": measured(folder, &["many", &owners.to_string()])?,
    }))
}

/// Recalls in a process that does nothing else.
fn measured(folder: &Path, part: &[&str; 2]) -> anyhow::Result<Value> {
    let output =
        std::process::Command::new(std::env::current_exe()?).arg("--read").arg(folder).args(part).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Recalls of each of many owners, or of one owner of a size, with the resident memory before and after.
async fn read(folder: &Path, part: &str, count: usize) -> anyhow::Result<Value> {
    let memory = open(folder).await?;
    let owners: Vec<OwnerId> = match part {
        "many" => (0..count).map(|number| owner_of(part, number)).collect(),
        _ => vec![owner_of(part, count); RECALLS],
    };
    let mut words = Words(99);
    let before = resident_kib();
    let mut us = Vec::new();
    for owner in &owners {
        let query = format!("What about the {} and my {} {}?", words.word(), words.word(), words.word());
        let recall = memory.recall(*owner, request(query)).await;
        us.push(recall.took_us);
    }
    Ok(json!({
        "recall": quantiles(us), "open_owners": memory.open_owners(),
        "resident_kib": { "before": before, "after": resident_kib() },
    }))
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut sizes = Vec::new();
    let (mut owners, mut items) = (10_000, 10);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut next = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--owners" => owners = next().parse()?,
            "--items-each" => items = next().parse()?,
            "--read" => {
                let (folder, part, count) = (next(), next(), next().parse()?);
                println!("{}", read(Path::new(&folder), &part, count).await?);
                return Ok(());
            }
            size => sizes.push(size.parse()?),
        }
    }
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    let mut at = Vec::new();
    for size in sizes.into_iter().filter(|size| *size > 0) {
        at.push(at_size(tempfile::tempdir()?.path(), size).await?);
    }
    let turns = turns(tempfile::tempdir()?.path()).await?;
    let many = if owners == 0 {
        Value::Null
    } else {
        many_owners(tempfile::tempdir()?.path(), owners, items).await?
    };
    println!("{}", json!({ "embedder": "hashing-384-v1", "sizes": at, "turns": turns, "many_owners": many }));
    Ok(())
}
