//! Features of a database alone: roles, row-level security, restarts, and its own search. Without a server
//! these tests print a note and pass; `scripts/postgres.sh run` starts one.

use std::{collections::BTreeMap, path::Path, process::Command};

use baton_keys::secret::random_bytes;
use baton_memory::storage::{
    Batch, JobChange, KeyedQuery, Pseudonym, Record, SearchRow, Signs, Space, Storage, StorageError,
    postgres::PostgresStorage,
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use crate::storage::support::{draw, new_database, puts, read_all, record, server, somebody};

async fn open(url: &str) -> PostgresStorage {
    PostgresStorage::open(url).await.unwrap()
}

async fn url() -> Option<String> {
    let url = new_database().await;
    if url.is_none() {
        println!("skipped: no BATON_TEST_POSTGRES");
    }
    url
}

fn row(number: u64) -> SearchRow {
    let signs = Some(Signs { embedder: 1, bits: vec![7] });
    SearchRow { number, key: 1, terms: vec![5], length: 1, signs }
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
        let job = Some(JobChange::Due(9));
        let batch = Batch { rows: vec![row(1)], job, ..puts(vec![record(Space::Log, 1, b"x")]) };
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
    let refused = PostgresStorage::open(&url).await.unwrap_err();
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
    let early = PostgresStorage::open(&format!("postgres://{role}_early:x@{host}/{database}")).await;
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
    let refused = PostgresStorage::open(&format!("postgres://{role}:x@{host}/{database}")).await;
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
    // One of them takes each job.
    for _ in 0..20 {
        let batch = Batch { job: Some(JobChange::Due(5)), ..Batch::default() };
        storages[1].commit(somebody(), 0, batch).await.unwrap();
    }
    let taken = futures::future::join_all(storages.iter().map(|storage| storage.take_due(10, 1000, 8))).await;
    let mut owners: Vec<_> = taken.into_iter().flat_map(Result::unwrap).collect();
    owners.sort_unstable();
    let count = owners.len();
    owners.dedup();
    assert_eq!(owners.len(), count);
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
    let refused = PostgresStorage::open("postgres://nobody@127.0.0.1:1/none").await;
    assert!(matches!(refused, Err(StorageError::Unavailable(text)) if text.contains("cannot be reached")));
    let refused = PostgresStorage::open("nonsense").await;
    assert!(matches!(refused, Err(StorageError::Unavailable(text)) if text.contains("URL")));
}

#[tokio::test]
async fn a_scan_compares_every_row_under_its_key_as_a_scan_in_memory_does() {
    let Some(url) = url().await else { return };
    let storage = open(&url).await;
    let (owner, mut drawn) = (somebody(), 0);
    let mut next = || {
        drawn += 1;
        draw(drawn, 4)
    };
    let rows: Vec<SearchRow> = (1..=500u64)
        .map(|number| {
            let mut terms: Vec<u32> =
                (0..next() % 12).map(|_| 1_000_000_000 - (next() % 80) as u32).collect();
            terms.sort_unstable();
            terms.dedup();
            let signs = (number % 10 != 0).then(|| Signs {
                embedder: u64::MAX - number % 7,
                bits: if number % 11 == 0 { Vec::new() } else { next().to_le_bytes().to_vec() },
            });
            SearchRow { number, key: u64::MAX - number % 5, terms, length: number as u32, signs }
        })
        .collect();
    let put: Vec<Record> = (1..=500).map(|number| record(Space::Features, number, b"sealed")).collect();
    let batch = Batch { rows: rows.clone(), ..puts(put) };
    let version = storage.commit(owner, 0, batch.clone()).await.unwrap();
    // Another owner's rows, under the same keys.
    storage.commit(somebody(), 0, batch).await.unwrap();
    let signs = Signs { embedder: u64::MAX - 3, bits: next().to_le_bytes().to_vec() };
    let keyed = |key: u64, terms: usize| KeyedQuery {
        key: u64::MAX - key,
        // Each key has other terms.
        terms: (0..terms).map(|term| 1_000_000_000 - (term as u32 * (key as u32 + 1)) % 80).collect(),
        signs: Some(signs.clone()),
    };
    for terms in [0, 1, 24, 25, 60] {
        let query = [0, 1, 3, 9].map(|key| keyed(key, terms)).to_vec();
        let scan = storage.rows().unwrap().scan(owner, query.clone()).await.unwrap();
        assert_eq!(scan.version, version);
        assert_eq!(scan.rows.len(), 300, "rows under two keys are left out");
        for (at, found) in scan.rows.iter().enumerate() {
            let row = &rows[found.number as usize - 1];
            let asked = query.iter().find(|keyed| keyed.key == row.key).unwrap();
            let has: Vec<usize> = scan.terms_of(at).collect();
            let last = |place: &usize| !asked.terms[place + 1..].contains(&asked.terms[*place]);
            let wanted: Vec<usize> =
                (0..terms).filter(|place| row.terms.contains(&asked.terms[*place])).collect();
            // Of a term that comes twice in a set, the last place counts.
            assert!(
                has.iter().all(|place| wanted.contains(place))
                    && wanted.iter().filter(|place| last(place)).all(|place| has.contains(place))
            );
            let same =
                row.signs.as_ref().filter(|row| row.embedder == signs.embedder && !row.bits.is_empty());
            let differ =
                |row: &Signs| row.bits.iter().zip(&signs.bits).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!((found.length, found.distance), (row.length, same.map(differ)));
        }
    }
    let search = storage.rows().unwrap();
    let none = search.scan(owner, Vec::new()).await.unwrap();
    assert_eq!((none.rows.len(), none.sets.len(), none.version), (0, 0, version));
    let with = |row: &&SearchRow| {
        row.number >= 100 && row.signs.as_ref().is_some_and(|row| row.embedder == signs.embedder)
    };
    let embedded: Vec<u64> = rows.iter().filter(with).map(|row| row.number).collect();
    assert_eq!(search.embedded(owner, signs.embedder, 100).await.unwrap(), embedded);
    let some = search.read_some(owner, Space::Features, vec![7, 3, 999]).await.unwrap();
    assert_eq!(some, [(3, b"sealed".to_vec()), (7, b"sealed".to_vec())]);
    // A row goes with its record, and another takes its place.
    let batch = Batch {
        remove: (2..=500).map(|number| (Space::Features, number)).chain([(Space::Log, 1)]).collect(),
        rows: vec![SearchRow { key: u64::MAX, length: 77, ..row(1) }],
        ..Batch::default()
    };
    storage.commit(owner, version, batch).await.unwrap();
    let left = search.scan(owner, vec![keyed(0, 3)]).await.unwrap();
    assert_eq!((left.rows.len(), left.rows[0].number, left.rows[0].length), (1, 1, 77));
}
