//! The fault matrix: every read and write against every fault, at the preferred source, at the last source,
//! or at all.
//!
//! Each cell gives right bytes or a named error, never wrong bytes. It never hangs past the deadline or buys
//! a blob twice. If a source without faults remains, the call succeeds, unless a lost PUT cannot be searched
//! for. By default a seeded sample of the cells runs; `BATON_FULL=1` runs all, and `BATON_SEED` chooses
//! another sample.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use baton_proto::{
    ids::BlobId,
    link::blob_digest,
    store::{BlobStore as _, PutOptions, StoreError},
};
use baton_testnet::faults::{Fault, FaultPlan, FaultRoute, FaultRule, Faults};
use baton_walrus_client::{
    HttpStore, Quilt, QuiltPatch, ShardCount, blob_id,
    http_store::{RetryPolicy, Verification},
    quilt,
};
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use tempfile::TempDir;

use crate::common::{Running, config, validate};

const SHARDS: ShardCount = ShardCount::TESTBED;
/// Stores that each act as publisher and aggregator.
const SOURCES: usize = 3;
/// Concurrent cells, each with its own stores: they mostly wait.
const LANES: usize = 4;
/// The longest time of one call.
const DEADLINE: Duration = Duration::from_secs(6);
/// Extra time for a loaded machine.
const SLACK: Duration = Duration::from_secs(5);
/// One cell of this number runs by default.
const SAMPLE: u64 = 5;
/// Far beyond the deadline.
const FOREVER: Duration = Duration::from_secs(600);
/// A part of the window in which a stored blob's 404 is expected.
const MOMENT: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    GetById,
    GetByDigest,
    Head,
    PutDeletable,
    PutPermanent,
    QuiltPut,
    Patch,
}

const CALLS: [Call; 7] = [
    Call::GetById,
    Call::GetByDigest,
    Call::Head,
    Call::PutDeletable,
    Call::PutPermanent,
    Call::QuiltPut,
    Call::Patch,
];

const FAULTS: [Fault; 15] = [
    Fault::NotFoundAfterPut(MOMENT),
    Fault::NotFoundAfterPut(FOREVER),
    Fault::Internal,
    Fault::Unavailable,
    Fault::TooMany,
    Fault::GatewayTimeout,
    Fault::Slow(MOMENT),
    Fault::Slow(FOREVER),
    Fault::Drip(FOREVER),
    Fault::Truncated,
    Fault::Oversized,
    Fault::Endless,
    Fault::WrongBytes,
    Fault::WrongId,
    Fault::AnswerLost,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Last,
    All,
}

/// Whether the fault affects only requests of the call's own kind, or all to that source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Call,
    Any,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    call: Call,
    fault: Fault,
    place: Place,
    reach: Reach,
    number: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} x {:?} x {:?} ({:?})", self.number, self.call, self.fault, self.place, self.reach)
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for call in CALLS {
        for fault in FAULTS {
            for place in [Place::First, Place::Last, Place::All] {
                for reach in [Reach::Call, Reach::Any] {
                    cells.push(Cell { call, fault, place, reach, number: cells.len() as u64 });
                }
            }
        }
    }
    cells
}

/// All cells, or every fifth by the seed.
fn chosen() -> Vec<Cell> {
    let cells = cells();
    if std::env::var("BATON_FULL").is_ok_and(|full| full == "1") {
        return cells;
    }
    let seed = std::env::var("BATON_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()).unwrap_or(7);
    let drawn = |cell: &Cell| {
        let mut input = seed.to_le_bytes().to_vec();
        input.extend(cell.number.to_le_bytes());
        u64::from(blob_digest(&input).0[0]) % SAMPLE == 0
    };
    cells.into_iter().filter(drawn).collect()
}

impl Cell {
    fn route(self) -> FaultRoute {
        match (self.reach, self.call) {
            (Reach::Any, _) => FaultRoute::Any,
            (_, Call::GetById | Call::GetByDigest | Call::Patch) => FaultRoute::Get,
            (_, Call::Head) => FaultRoute::Head,
            (_, Call::PutDeletable | Call::PutPermanent) => FaultRoute::Put,
            (_, Call::QuiltPut) => FaultRoute::Quilt,
        }
    }

    fn is_faulty(self, source: usize) -> bool {
        match self.place {
            Place::First => source == 0,
            Place::Last => source == SOURCES - 1,
            Place::All => true,
        }
    }

    fn stores(self) -> bool {
        matches!(self.call, Call::PutDeletable | Call::PutPermanent | Call::QuiltPut)
    }

    /// Bytes unique to this cell.
    fn bytes(self) -> Vec<u8> {
        let part = |place: u64| blob_digest(&[self.number.to_le_bytes(), place.to_le_bytes()].concat()).0;
        (0..).flat_map(part).take(3000).collect()
    }
}

struct Sources {
    running: Vec<Running>,
    faults: Vec<Faults>,
    _folder: TempDir,
}

impl Sources {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let faults: Vec<Faults> = (0..SOURCES).map(|_| Faults::default()).collect();
        let mut running = Vec::new();
        for (source, faults) in faults.iter().enumerate() {
            let path = folder.path().join(source.to_string());
            let store = EmbeddedStore::open(EmbeddedConfig { path, ..config(&folder) }, validate).unwrap();
            let routes = faults.around(store.router());
            running.push(Running::start_as(store, routes).await);
        }
        Self { running, faults, _folder: folder }
    }

    /// A client without memory of earlier cells.
    fn client(&self) -> HttpStore {
        let urls: Vec<&str> = self.running.iter().map(|running| running.url.as_str()).collect();
        let policy = RetryPolicy {
            base_timeout: Duration::from_millis(1500),
            retries: 1,
            hedge: Duration::from_millis(600),
            recently_stored_window: MOMENT * 4,
            probe_window: MOMENT * 2,
        };
        HttpStore::endpoints(&urls, &urls, SHARDS).policy(policy).build().unwrap()
    }

    fn set_faults(&self, cell: Cell) {
        for (source, faults) in self.faults.iter().enumerate() {
            let rule = FaultRule { route: cell.route(), fault: cell.fault, share: 1.0 };
            let rules = if cell.is_faulty(source) { vec![rule] } else { Vec::new() };
            faults.set(FaultPlan { seed: cell.number, rules });
        }
    }

    async fn seed(&self, bytes: &[u8]) {
        for (running, faults) in self.running.iter().zip(&self.faults) {
            let stored = running.store.put(bytes.to_vec(), PutOptions::default()).await.unwrap();
            faults.stored(stored.blob_id);
        }
    }

    fn bought(&self, id: BlobId) -> u64 {
        self.running.iter().map(|running| running.store.admin().put_counts(id).bought).sum()
    }

    async fn stop(self) {
        for running in self.running {
            running.stop().await;
        }
    }
}

fn patches(bytes: &[u8]) -> [(String, Vec<u8>); 2] {
    [("a".to_owned(), bytes[..1000].to_vec()), ("b".to_owned(), bytes[1000..].to_vec())]
}

fn encoded(bytes: &[u8]) -> Quilt {
    fn borrowed((identifier, data): &(String, Vec<u8>)) -> QuiltPatch<'_> {
        QuiltPatch { identifier, tags: BTreeMap::new(), data }
    }
    let patches = patches(bytes);
    quilt::encode(&patches.iter().map(borrowed).collect::<Vec<_>>(), SHARDS).unwrap()
}

/// Makes the call: `Ok` means a right result. A wrong result panics.
async fn call(cell: Cell, store: &HttpStore, bytes: &[u8]) -> Result<(), StoreError> {
    let id = blob_id(bytes, SHARDS).unwrap();
    let digest = |bytes: &[u8]| Verification::Digest(blob_digest(bytes));
    let (limit, write) = (1 << 20, PutOptions::default());
    if !cell.stores() {
        store.note_stored(goods(cell, bytes));
    }
    match cell.call {
        Call::GetById => assert_eq!(store.read(id, limit, Verification::BlobId).await?, bytes, "{cell}"),
        Call::GetByDigest => {
            assert_eq!(store.read(id, limit, digest(bytes)).await?, bytes, "{cell}");
        }
        Call::Head => {
            if !store.exists(id).await? {
                return Err(StoreError::NotFound);
            }
        }
        Call::PutDeletable => assert_eq!(store.store(bytes.to_vec(), &write).await?.blob_id, id, "{cell}"),
        Call::PutPermanent => {
            let permanent = PutOptions { permanent: true, ..write };
            assert_eq!(store.store(bytes.to_vec(), &permanent).await?.blob_id, id, "{cell}");
        }
        Call::QuiltPut => {
            let stored = store.store_quilt(&patches(bytes), &write).await?;
            assert_eq!(stored.stored.blob_id, goods(cell, bytes), "{cell}");
        }
        Call::Patch => {
            let quilt = encoded(bytes);
            let patch = quilt.index.find("b").unwrap().id(goods(cell, bytes));
            assert_eq!(store.read_patch(patch, limit).await?, bytes[1000..], "{cell}");
        }
    }
    Ok(())
}

/// The blob of a call, which must be bought only once.
fn goods(cell: Cell, bytes: &[u8]) -> BlobId {
    if matches!(cell.call, Call::QuiltPut | Call::Patch) {
        return blob_id(&encoded(bytes).bytes, SHARDS).unwrap();
    }
    blob_id(bytes, SHARDS).unwrap()
}

async fn check(cell: Cell, sources: &Sources) -> &'static str {
    let bytes = cell.bytes();
    sources.set_faults(cell);
    match cell.call {
        Call::Patch => sources.seed(&encoded(&bytes).bytes).await,
        _ if cell.stores() => {}
        _ => sources.seed(&bytes).await,
    }
    let store = sources.client();
    let began = Instant::now();
    let result = tokio::time::timeout(FOREVER / 2, call(cell, &store, &bytes)).await.expect("an end");
    assert!(began.elapsed() < DEADLINE + SLACK, "{cell}: took {:?}", began.elapsed());
    if cell.stores() {
        let bought = sources.bought(goods(cell, &bytes));
        assert!(bought <= 1, "{cell}: bought {bought} times, and ended as {result:?}");
        assert!(result.is_err() || bought == 1, "{cell}: {result:?}, but nothing is stored");
        // A reported failure to store must be true.
        let certain = matches!(
            result,
            Err(StoreError::Unavailable { .. } | StoreError::Refused { .. } | StoreError::TooLarge { .. })
        );
        assert!(!certain || bought == 0, "{cell}: {result:?}, but it is stored");
    }
    // A PUT in doubt may stay in doubt when an aggregator cannot be asked.
    let decidable = !cell.stores() || cell.reach == Reach::Call;
    if cell.place != Place::All && decidable {
        assert_eq!(result, Ok(()), "{cell}: there is a source without faults");
    }
    match result {
        Ok(()) => "ok",
        Err(StoreError::NotFound) => "not found",
        Err(StoreError::Unavailable { .. }) => "unavailable",
        Err(StoreError::OutcomeUnknown { .. }) => "outcome unknown",
        Err(StoreError::TooLarge { .. }) => "too large",
        Err(StoreError::WrongContent) => "wrong content",
        Err(StoreError::Refused { .. }) => "refused",
        Err(StoreError::HeadSuperseded) => panic!("{cell}: no head was asked for"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_ends_in_right_bytes_or_a_named_error() {
    let chosen = chosen();
    assert!(chosen.len() > 50, "a sample of {} cells shows nothing", chosen.len());
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        let cells: Vec<Cell> = chosen.iter().copied().skip(lane).step_by(LANES).collect();
        lanes.spawn(async move {
            let sources = Sources::start().await;
            let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
            for cell in cells {
                *ends.entry(Box::pin(check(cell, &sources)).await).or_default() += 1;
            }
            sources.stop().await;
            ends
        });
    }
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    while let Some(lane) = lanes.join_next().await {
        for (end, count) in lane.unwrap() {
            *ends.entry(end).or_default() += count;
        }
    }
    println!("{} cells: {ends:?}", chosen.len());
    assert!(ends["ok"] > 0 && ends.len() > 1, "faults were shown, and survived: {ends:?}");
}
