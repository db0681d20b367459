//! Figures, printed: `cargo test -p baton-memory --test it storage::figures -- --ignored --nocapture`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_keys::{master::MasterKey, secret::random_bytes};
use baton_memory::{
    ids::OwnerId,
    storage::{Batch, KeyedQuery, SearchRow, Signs, Space},
    vault::{Changes, OwnerVault, Vault},
};
use zeroize::Zeroizing;

use crate::storage::support::{self, TestStorage, somebody, storages};

const RECORD_BYTES: usize = 600;

async fn open(test: &TestStorage) -> Arc<OwnerVault> {
    let keys = test.folder.path().join("keys");
    let vault = Vault::new(test.storage.clone(), &keys, MasterKey::from_bytes([5; 32]));
    vault.await.unwrap().open(OwnerId(random_bytes())).await.unwrap()
}

fn puts(numbers: std::ops::Range<u64>) -> Changes {
    let put = numbers
        .map(|number| (Space::Log, number, Zeroizing::new(vec![number as u8; RECORD_BYTES])))
        .collect();
    Changes { put, ..Changes::default() }
}

async fn read_all(owner: &OwnerVault) -> usize {
    let (mut count, mut from) = (0, 0);
    loop {
        let page = owner.read(Space::Log, from).await.unwrap();
        let Some((last, _)) = page.last() else { return count };
        from = last + 1;
        count += page.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute, and shows nothing but figures"]
async fn figures() {
    for test in storages().await {
        let name = test.name;
        let owner = open(&test).await;
        let begin = Instant::now();
        for number in 0..300 {
            owner.commit(puts(number..number + 1)).await.unwrap();
        }
        println!("{name}: {:.0} commits/s of one record, one owner", 300.0 / begin.elapsed().as_secs_f64());
        for owners in [8, 32] {
            let mut writers = tokio::task::JoinSet::new();
            for _ in 0..owners {
                let owner = open(&test).await;
                owner.commit(puts(0..1)).await.unwrap();
                writers.spawn(async move {
                    let begin = Instant::now();
                    for number in 1..50 {
                        owner.commit(puts(number..number + 1)).await.unwrap();
                    }
                    begin.elapsed()
                });
            }
            let longest = writers.join_all().await.into_iter().max().unwrap_or_default();
            println!(
                "{name}: {:.0} commits/s, {owners} owners",
                f64::from(owners * 49) / longest.as_secs_f64()
            );
        }
        for count in [1_000u64, 10_000, 100_000] {
            let owner = open(&test).await;
            let begin = Instant::now();
            for first in (0..count).step_by(1000) {
                owner.commit(puts(first..first + 1000)).await.unwrap();
            }
            let written = begin.elapsed();
            let (mut opened, mut sealed) = (Duration::MAX, Duration::MAX);
            for _ in 0..5 {
                let begin = Instant::now();
                let raw = support::read_all(&*test.storage, owner.pseudonym(), Space::Log, 4 << 20).await;
                sealed = sealed.min(begin.elapsed());
                drop(raw);
                let begin = Instant::now();
                owner.refresh().await.unwrap();
                assert_eq!(read_all(&owner).await as u64, count);
                opened = opened.min(begin.elapsed());
            }
            let begin = Instant::now();
            owner.redact(puts(count / 2..count / 2 + 1)).await.unwrap();
            println!(
                "{name}: {count} records written in {written:?}, opened in {opened:?} (read sealed in {sealed:?}), one redacted in {:?}",
                begin.elapsed()
            );
        }
        scans(&test).await;
    }
}

async fn scans(test: &TestStorage) {
    let Some(search) = test.storage.rows() else { return };
    for count in [1_000u64, 5_000, 50_000] {
        let owner = somebody();
        let signs = |number: u64| {
            Some(Signs { embedder: 1, bits: blake3::hash(&number.to_le_bytes()).as_bytes().repeat(2) })
        };
        let (mut version, keys) = (0, count.div_ceil(64));
        let begin = Instant::now();
        for first in (0..count).step_by(500) {
            let rows = (first..(first + 500).min(count)).map(|number| SearchRow {
                number,
                key: number / 64,
                terms: (0..30)
                    .map(|term| ((number * 7 + term * 131) % 4000 + term * 4000 + 1) as u32)
                    .collect(),
                length: 30,
                signs: signs(number),
            });
            version = test
                .storage
                .commit(owner, version, Batch { rows: rows.collect(), ..Batch::default() })
                .await
                .unwrap();
        }
        let written = begin.elapsed();
        let keyed = (0..keys).map(|key| KeyedQuery {
            key,
            terms: (0..24).map(|term| 7 * term + term * 4000 + 1).collect(),
            signs: signs(77),
        });
        let query: Vec<KeyedQuery> = keyed.collect();
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let begin = Instant::now();
            assert_eq!(search.scan(owner, query.clone()).await.unwrap().rows.len() as u64, count);
            best = best.min(begin.elapsed());
        }
        println!("{}: {count} search rows written in {written:?}, compared in {best:?}", test.name);
    }
}
