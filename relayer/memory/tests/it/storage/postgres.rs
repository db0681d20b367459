//! Features of a database alone: roles, row-level security, restarts, and its own search. Without a server
//! these tests print a note and pass; `scripts/postgres.sh run` starts one.

use std::{collections::BTreeMap, path::Path, process::Command};

use baton_keys::secret::random_bytes;
use baton_memory::{
    rotation::rotate,
    storage::{
        Batch, IndexRow, KeyedQuery, Pseudonym, Scan, ScanQuery, Space, Storage, StorageError,
        postgres::{PostgresConfig, PostgresStorage},
    },
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use crate::storage::support::{new_database, puts, read_all, record, server, somebody};

async fn open(url: &str) -> PostgresStorage {
    PostgresStorage::open(&PostgresConfig::new(url.to_owned())).await.unwrap()
}

async fn url() -> Option<String> {
    let url = new_database().await;
    if url.is_none() {
        println!("skipped: no BATON_TEST_POSTGRES");
    }
    url
}

fn row(number: u64) -> IndexRow {
    IndexRow { number, class: [1; 16], terms: vec![(5, 1)], length: 1, vector: Some(vec![1.0, 0.0]) }
}

/// The rows visible in a transaction of one owner, without any WHERE.
async fn seen(storage: &PostgresStorage, app_owner: Option<Pseudonym>) -> BTreeMap<&'static str, i64> {
    let mut transaction = storage.pool().begin().await.unwrap();
    if let Some(owner) = app_owner {
        let set = sqlx::query("select set_config('app.owner', $1, true)").bind(hex::encode(owner.0));
        set.execute(&mut *transaction).await.unwrap();
    }
    let mut seen = BTreeMap::new();
    for table in ["owner", "record", "item", "job"] {
        let count = sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from baton.{table}")));
        seen.insert(table, count.fetch_one(&mut *transaction).await.unwrap());
    }
    seen
}

#[tokio::test]
async fn row_level_security_hides_every_other_owner_from_a_query_that_forgot_to_say_whose() {
    let Some(url) = url().await else { return };
    let storage = open(&url).await;
    let (a, b) = (somebody(), somebody());
    for owner in [a, b] {
        let batch =
            Batch { index: vec![row(1)], jobs: vec![(1, 9)], ..puts(vec![record(Space::Log, 1, b"x")]) };
        storage.commit(owner, 0, batch).await.unwrap();
    }
    assert!(seen(&storage, Some(a)).await.values().all(|count| *count == 1));
    assert!(seen(&storage, Some(somebody())).await.values().all(|count| *count == 0));
    assert!(seen(&storage, None).await.values().all(|count| *count == 0));
    // Neither can another owner's row be written, moved or removed.
    let mut transaction = storage.pool().begin().await.unwrap();
    let set = sqlx::query("select set_config('app.owner', $1, true)").bind(hex::encode(a.0));
    set.execute(&mut *transaction).await.unwrap();
    let gone = sqlx::query("delete from baton.record where owner = $1").bind(&b.0[..]);
    assert_eq!(gone.execute(&mut *transaction).await.unwrap().rows_affected(), 0);
    let stolen =
        sqlx::query("update baton.record set owner = $1").bind(&b.0[..]).execute(&mut *transaction).await;
    assert!(stolen.unwrap_err().to_string().contains("row-level security"));
    // The job runner sees the owners of jobs, and no record.
    let mut transaction = storage.pool().begin().await.unwrap();
    sqlx::query("select set_config('app.runner', 'on', true)").execute(&mut *transaction).await.unwrap();
    for (table, count) in [("owner", 2), ("job", 2), ("record", 0), ("item", 0)] {
        let seen = sqlx::query_scalar::<_, i64>(AssertSqlSafe(format!("select count(*) from baton.{table}")));
        assert_eq!(seen.fetch_one(&mut *transaction).await.unwrap(), count, "{table}");
    }
}

#[tokio::test]
async fn a_superuser_is_replaced_by_a_role_that_bypasses_nothing() {
    let Some(url) = url().await else { return };
    let storage = open(&url).await;
    let role = sqlx::query(
        "select current_user::text, rolsuper, rolbypassrls from pg_roles where rolname = current_user",
    );
    let role = role.fetch_one(storage.pool()).await.unwrap();
    assert_eq!(role.get::<String, _>(0), "baton_relayer");
    assert!(!role.get::<bool, _>(1) && !role.get::<bool, _>(2));
    // If that role has a forbidden privilege, the start is refused with the next step.
    let mut admin = PgConnection::connect(&url).await.unwrap();
    admin.execute("alter table baton.record no force row level security").await.unwrap();
    let refused = PostgresStorage::open(&PostgresConfig::new(url.clone())).await.unwrap_err();
    assert!(refused.to_string().contains("force row level security"), "{refused}");
    admin.execute("alter table baton.record force row level security").await.unwrap();
    open(&url).await;
}

#[tokio::test]
async fn an_ordinary_role_that_owns_the_database_needs_no_other_and_is_bound_too() {
    let Some(url) = url().await else { return };
    let (server, database) = url.rsplit_once('/').unwrap();
    let (_, host) = server.split_once('@').unwrap();
    let role = format!("plain_{}", hex::encode(random_bytes::<4>()));
    let mut admin = PgConnection::connect(&url).await.unwrap();
    // Only an administrator may create pgvector's extension.
    let refused = format!("create role {role}_early login password 'x'");
    admin.execute(AssertSqlSafe(refused)).await.unwrap();
    let early =
        PostgresStorage::open(&PostgresConfig::new(format!("postgres://{role}_early:x@{host}/{database}")))
            .await;
    assert!(early.unwrap_err().to_string().contains("create extension vector"));
    let made = format!(
        "create extension vector; create role {role} login password 'x'; alter database {database} owner to {role}"
    );
    admin.execute(AssertSqlSafe(made)).await.unwrap();
    let storage = open(&format!("postgres://{role}:x@{host}/{database}")).await;
    storage.commit(somebody(), 0, puts(vec![record(Space::Log, 1, b"x")])).await.unwrap();
    assert!(seen(&storage, None).await.values().all(|count| *count == 0));
    // With BYPASSRLS and no right to create roles, it is refused.
    storage.close().await;
    admin.execute(AssertSqlSafe(format!("alter role {role} bypassrls"))).await.unwrap();
    let refused =
        PostgresStorage::open(&PostgresConfig::new(format!("postgres://{role}:x@{host}/{database}"))).await;
    assert!(refused.unwrap_err().to_string().contains("bypasses row-level security"));
}

#[tokio::test]
async fn relayers_that_start_together_make_the_tables_once() {
    let Some(url) = url().await else { return };
    let starts = (0..4).map(|_| open(&url));
    let storages = futures::future::join_all(starts).await;
    let owner = somebody();
    let version = storages[0].commit(owner, 0, puts(vec![record(Space::Log, 1, b"one")])).await.unwrap();
    // Each relayer sees the others' writes; of two writes on one version, one wins.
    let writes = storages
        .iter()
        .map(|storage| storage.commit(owner, version, puts(vec![record(Space::Log, 2, b"two")])));
    let done = futures::future::join_all(writes).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    assert!(done.iter().all(|done| matches!(done, Ok(_) | Err(StorageError::Conflict))));
    assert_eq!(read_all(&storages[3], owner, Space::Log, 1).await.len(), 2);
    // One of them takes a job.
    let batch = Batch { jobs: (0..20).map(|job| (job, 5)).collect(), ..Batch::default() };
    storages[1].commit(owner, version + 1, batch).await.unwrap();
    let taken = futures::future::join_all(storages.iter().map(|storage| storage.take_due(10, 1000, 8))).await;
    let mut jobs: Vec<_> = taken.into_iter().flat_map(Result::unwrap).map(|job| job.job).collect();
    jobs.sort_unstable();
    let count = jobs.len();
    jobs.dedup();
    assert_eq!(jobs.len(), count);
    assert!(count >= 8);
}

/// Its own server, which no other test uses: it is stopped like in a crash.
#[tokio::test]
async fn a_restart_of_the_database_loses_nothing_and_needs_no_restart_of_the_relayer() {
    if server().is_none() {
        println!("skipped: no BATON_TEST_POSTGRES");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
    let run = |arguments: &[&str]| {
        let output = Command::new(&script).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let started = run(&["start"]);
    let value = |name: &str| started.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let (url, folder) = (value("url="), value("folder="));
    let storage = open(&url).await;
    let owner = somebody();
    let writing = async {
        let (mut version, mut acknowledged, mut failures, mut number) = (0, Vec::new(), 0, 0);
        while acknowledged.len() < 400 {
            number += 1;
            match storage.commit(owner, version, puts(vec![record(Space::Log, number, b"x")])).await {
                Ok(now) => {
                    version = now;
                    acknowledged.push(number);
                }
                // The commit's result is unknown: check, and continue.
                Err(StorageError::Unavailable(_) | StorageError::Conflict) => {
                    failures += 1;
                    version = storage.version(owner).await.unwrap_or(version);
                }
                Err(error) => panic!("{error}"),
            }
        }
        (acknowledged, failures)
    };
    let restarting = async {
        for _ in 0..2 {
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            let (script, folder) = (script.clone(), folder.clone());
            let restart = move || Command::new(script).args(["restart", &folder]).status().unwrap();
            assert!(tokio::task::spawn_blocking(restart).await.unwrap().success());
        }
    };
    let ((acknowledged, failures), ()) = tokio::join!(writing, restarting);
    let found: Vec<_> =
        read_all(&storage, owner, Space::Log, 10_000).await.into_iter().map(|(n, _)| n).collect();
    assert!(acknowledged.iter().all(|number| found.contains(number)));
    // Beyond the acknowledged records, at most the unknown ones exist.
    assert!(found.len() <= acknowledged.len() + failures, "{failures}");
    storage.close().await;
    run(&["stop", &folder]);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_within_seconds() {
    let refused =
        PostgresStorage::open(&PostgresConfig::new("postgres://nobody@127.0.0.1:1/none".into())).await;
    assert!(matches!(refused, Err(StorageError::Unavailable(text)) if text.contains("cannot be reached")));
    let refused = PostgresStorage::open(&PostgresConfig::new("nonsense".into())).await;
    assert!(matches!(refused, Err(StorageError::Unavailable(text)) if text.contains("URL")));
}

/// A small random generator, with the same cases in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn vector(&mut self) -> Vec<f32> {
        (0..20).map(|_| (self.next() % 2001) as f32 / 1000.0 - 1.0).collect()
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[tokio::test]
async fn a_scan_finds_what_a_scan_in_memory_finds_with_the_same_statistics() {
    let Some(url) = url().await else { return };
    let storage = open(&url).await;
    let (owner, mut numbers) = (somebody(), Numbers(42));
    let rows: Vec<_> = (1..=500u64)
        .map(|number| {
            let mut terms: BTreeMap<u64, u16> = BTreeMap::new();
            for _ in 0..numbers.next() % 12 {
                *terms.entry(u64::MAX - numbers.next() % 40).or_default() += 1;
            }
            let length = terms.values().map(|count| u32::from(*count)).sum();
            let vector = (number % 10 != 0).then(|| numbers.vector());
            IndexRow {
                number,
                class: [(number % 5) as u8; 16],
                terms: terms.into_iter().collect(),
                length,
                vector,
            }
        })
        .collect();
    let rotated =
        |row: &IndexRow| IndexRow { vector: row.vector.as_ref().map(|v| rotate(&[3; 32], v)), ..row.clone() };
    let version = storage
        .commit(owner, 0, Batch { index: rows.iter().map(rotated).collect(), ..Batch::default() })
        .await
        .unwrap();
    // Another owner's rows, the same classes.
    storage
        .commit(somebody(), 0, Batch { index: rows.iter().map(rotated).collect(), ..Batch::default() })
        .await
        .unwrap();
    let terms: Vec<u64> = [3, 0, 17, 3, 99].iter().map(|term| u64::MAX - term).collect();
    let vector = numbers.vector();
    let classes = vec![([1; 16], u64::MAX), ([2; 16], 250), ([9; 16], u64::MAX)];
    let allowed =
        |row: &&IndexRow| classes.iter().any(|(class, upto)| row.class == *class && row.number <= *upto);
    let keyed = KeyedQuery {
        classes: classes.clone(),
        terms: terms.clone(),
        vector: Some(rotate(&[3; 32], &vector)),
    };
    let query = ScanQuery { keyed: vec![keyed.clone()], limit: None };
    let scan = storage.scan(owner, query.clone()).await.unwrap().unwrap();
    assert_eq!(scan.version, version);
    let seen: Vec<_> = rows.iter().filter(allowed).collect();
    let count = |row: &IndexRow, term: &u64| {
        row.terms.iter().find(|(found, _)| found == term).map_or(0, |(_, count)| *count)
    };
    assert_eq!(scan.documents, seen.len() as u64);
    assert_eq!(scan.total_length, seen.iter().map(|row| u64::from(row.length)).sum::<u64>());
    let spread: Vec<_> =
        terms.iter().map(|term| seen.iter().filter(|row| count(row, term) > 0).count() as u32).collect();
    assert_eq!(scan.document_counts, spread);
    let cosines: Vec<_> = seen.iter().filter_map(|row| Some(cosine(row.vector.as_ref()?, &vector))).collect();
    let mean = cosines.iter().sum::<f32>() / cosines.len() as f32;
    let deviation = (cosines.iter().map(|c| (c - mean).powi(2)).sum::<f32>() / cosines.len() as f32).sqrt();
    assert!((scan.cosine_mean - mean).abs() < 1e-4 && (scan.cosine_deviation - deviation).abs() < 1e-4);
    let matches = |row: &IndexRow| row.vector.is_some() || terms.iter().any(|term| count(row, term) > 0);
    let wanted: Vec<_> = seen.iter().filter(|row| matches(row)).collect();
    assert_eq!(scan.rows.len(), wanted.len());
    for (found, wanted) in scan.rows.iter().zip(wanted) {
        assert_eq!((found.number, found.length), (wanted.number, wanted.length));
        assert_eq!(found.counts, terms.iter().map(|term| count(wanted, term)).collect::<Vec<_>>());
        match (&found.cosine, &wanted.vector) {
            (Some(found), Some(wanted)) => assert!((found - cosine(wanted, &vector)).abs() < 1e-4),
            (found, wanted) => assert_eq!(found.is_some(), wanted.is_some()),
        }
    }
    // The limit applies to visible rows, and keeps the best by each.
    let few = storage.scan(owner, ScanQuery { limit: Some(3), ..query.clone() }).await.unwrap().unwrap();
    assert!((3..=6).contains(&few.rows.len()));
    let best = scan
        .rows
        .iter()
        .filter_map(|row| Some((row.cosine?, row.number)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap();
    assert!(few.rows.iter().any(|row| row.number == best.1));
    assert_eq!((few.documents, few.document_counts.clone()), (scan.documents, scan.document_counts.clone()));
    // No class, no rows; no query, no rows either.
    let asked = async |keyed| {
        storage.scan(owner, ScanQuery { keyed: vec![keyed], limit: None }).await.unwrap().unwrap()
    };
    let none = asked(KeyedQuery { classes: Vec::new(), ..keyed.clone() }).await;
    assert_eq!((none.documents, none.rows.len()), (0, 0));
    let none = asked(KeyedQuery { terms: Vec::new(), vector: None, ..keyed.clone() }).await;
    assert_eq!((none.documents, none.rows.len()), (scan.documents, 0));
    // Rows under two keys, half under each: the same answer as with one key.
    let other = [4; 32];
    let rekeyed = |row: &IndexRow| IndexRow {
        class: row.class.map(|byte| byte ^ 0x55),
        terms: row.terms.iter().map(|(term, count)| (term ^ (1 << 40), *count)).collect(),
        vector: row.vector.as_ref().map(|vector| rotate(&other, vector)),
        ..row.clone()
    };
    let moved: Vec<IndexRow> = rows.iter().step_by(2).map(rekeyed).collect();
    let batch = Batch { index: moved, ..Batch::default() };
    let version = storage.commit(owner, version, batch).await.unwrap();
    let again = KeyedQuery {
        classes: classes.iter().map(|(class, upto)| (class.map(|byte| byte ^ 0x55), *upto)).collect(),
        terms: terms.iter().map(|term| term ^ (1 << 40)).collect(),
        vector: Some(rotate(&other, &vector)),
    };
    for limit in [None, Some(3)] {
        let one = if limit.is_none() { &scan } else { &few };
        let both = ScanQuery { keyed: vec![keyed.clone(), again.clone()], limit };
        let both = storage.scan(owner, both).await.unwrap().unwrap();
        assert_eq!((both.documents, both.total_length), (one.documents, one.total_length));
        assert_eq!(both.document_counts, one.document_counts);
        let shape = |scan: &Scan| -> Vec<_> {
            scan.rows.iter().map(|row| (row.number, row.counts.clone(), row.cosine.is_some())).collect()
        };
        assert_eq!(shape(&both), shape(one));
        assert!((both.cosine_mean - one.cosine_mean).abs() < 1e-4);
    }
    // A vector of another width is not compared; removed rows are gone.
    let batch = Batch {
        unindex: rows.iter().skip(1).map(|row| row.number).collect(),
        index: vec![row(1)],
        ..Batch::default()
    };
    storage.commit(owner, version, batch).await.unwrap();
    let left = storage.scan(owner, query).await.unwrap().unwrap();
    assert_eq!((left.documents, left.rows.len(), left.cosine_mean), (1, 0, 0.0));
}
