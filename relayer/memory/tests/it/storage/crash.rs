//! kill -9 at any point of the write path, and a full disk.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use baton_keys::master::MasterKey;
use baton_memory::{
    ids::OwnerId,
    storage::{
        Space, Storage,
        embedded::{EmbeddedConfig, EmbeddedStorage},
        postgres::PostgresStorage,
    },
    vault::{Changes, OwnerVault, Vault},
};
use rustix::process::{Resource, Rlimit, setrlimit};
use zeroize::Zeroizing;

use crate::storage::support::{draw, new_database};

const FOLDER: &str = "BATON_TEST_CRASH_FOLDER";
const DATABASE: &str = "BATON_TEST_CRASH_DATABASE";
/// Kills of the embedded storage, and with `BATON_FULL`; kills of Postgres.
const KILLS: u64 = 20;
const ALL_KILLS: u64 = 1_000;
const POSTGRES_KILLS: u64 = 8;
/// Kills of one database, which grows meanwhile.
const KILLS_EACH: u64 = 50;
/// Owners that write at once, so that they share transactions.
const OWNERS: [u8; 3] = [8, 9, 10];

async fn open(folder: &Path, url: &str) -> Vault {
    let storage: Arc<dyn Storage> = if url.is_empty() {
        Arc::new(EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("database"))).unwrap())
    } else {
        Arc::new(PostgresStorage::open(url).await.unwrap())
    };
    Vault::new(storage, &folder.join("keys"), MasterKey::from_bytes([5; 32])).await.unwrap()
}

async fn owner_of(vault: &Vault, owner: u8) -> Arc<OwnerVault> {
    vault.open(OwnerId([owner; 32])).await.unwrap()
}

fn text_of(number: u64) -> Vec<u8> {
    format!("event {number} ").repeat(40 + (number % 7) as usize * 100).into_bytes()
}

fn put(number: u64, text: Vec<u8>) -> Changes {
    Changes { put: vec![(Space::Log, number, Zeroizing::new(text))], ..Changes::default() }
}

async fn contents(owner: &OwnerVault) -> BTreeMap<u64, Vec<u8>> {
    let (mut all, mut from) = (BTreeMap::new(), 0);
    loop {
        let page = owner.read(Space::Log, from).await.unwrap();
        let Some((last, _)) = page.last() else { return all };
        from = last + 1;
        all.extend(page.into_iter().map(|(number, text)| (number, text.to_vec())));
    }
}

/// Writes until it is killed: appends events, and sometimes redacts an earlier one. Prints a line before and
/// after each write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by kill_9_loses_nothing_acknowledged_and_doubles_nothing"]
async fn writes_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let vault = open(Path::new(&folder), &std::env::var(DATABASE).unwrap()).await;
    let mut writers = tokio::task::JoinSet::new();
    for who in OWNERS {
        let owner = owner_of(&vault, who).await;
        writers.spawn(async move {
            let events = contents(&owner).await;
            let say = |what: &str, number: u64| {
                let mut out = std::io::stdout().lock();
                out.write_all(format!("\nsaid {what} {who} {number}\n").as_bytes()).unwrap();
                out.flush().unwrap();
            };
            let mut next = events.last_key_value().map_or(0, |(last, _)| last + 1);
            loop {
                if next % 3 == 2 {
                    let number = next / 2;
                    say("redacting", number);
                    owner.redact(put(number, b"deleted".to_vec())).await.unwrap();
                    say("redacted", number);
                }
                say("appending", next);
                owner.commit(put(next, text_of(next))).await.unwrap();
                say("appended", next);
                next += 1;
            }
        });
    }
    writers.join_next().await;
}

/// The lines of a writer that was killed after some of them.
fn killed_writer(folder: &Path, url: &str, kill: u64) -> Vec<(String, u8, u64)> {
    // Killed after a random number of lines and a random pause: before, within and after writes alike.
    let patience = 4 + draw(kill, 0) % 60;
    let pause = Duration::from_micros(draw(kill, 1) % 6000);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["storage::crash::writes_until_killed", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .env(DATABASE, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut said, mut is_killed) = (Vec::new(), false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let ["said", what, owner, number] = words[..] else { continue };
        said.push((what.to_owned(), owner.parse().unwrap(), number.parse().unwrap()));
        if said.len() as u64 >= patience && !is_killed {
            std::thread::sleep(pause);
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    assert!(is_killed, "the writer ended by itself");
    said
}

#[tokio::test]
async fn kill_9_loses_nothing_acknowledged_and_doubles_nothing() {
    let kills = if std::env::var_os("BATON_FULL").is_some() { ALL_KILLS } else { KILLS };
    let mut databases = vec![(String::new(), kills)];
    databases.extend(new_database().await.map(|url| (url, POSTGRES_KILLS)));
    for (url, kills) in databases {
        let mut folder = tempfile::tempdir().unwrap();
        let mut wanted = BTreeMap::<(u8, u64), Vec<u8>>::new();
        let (mut acknowledged, mut unanswered, mut made) = (0, 0, 0);
        for kill in 0..kills {
            if kill % KILLS_EACH == 0 && url.is_empty() {
                folder = tempfile::tempdir().unwrap();
                wanted.clear();
            }
            let mut doubtful = BTreeMap::new();
            for (what, owner, number) in killed_writer(folder.path(), &url, kill) {
                doubtful.remove(&owner);
                acknowledged += u64::from(what.ends_with("ed"));
                match what.as_str() {
                    "appended" => drop(wanted.insert((owner, number), text_of(number))),
                    "redacted" => drop(wanted.insert((owner, number), b"deleted".to_vec())),
                    "appending" => drop(doubtful.insert(owner, (number, text_of(number)))),
                    "redacting" => drop(doubtful.insert(owner, (number, b"deleted".to_vec()))),
                    other => panic!("{other}"),
                }
            }
            let vault = open(folder.path(), &url).await;
            let mut found = BTreeMap::new();
            for owner in OWNERS {
                let events = contents(&*owner_of(&vault, owner).await).await;
                found.extend(events.into_iter().map(|(number, text)| ((owner, number), text)));
            }
            for (owner, (number, text)) in doubtful {
                unanswered += 1;
                if found.get(&(owner, number)) == Some(&text) {
                    made += 1;
                    wanted.insert((owner, number), text);
                }
            }
            assert!(found == wanted, "kill {kill}: {} records, {} wanted", found.len(), wanted.len());
        }
        println!(
            "{kills} kills: {acknowledged} writes acknowledged, 0 lost; {unanswered} under way, {made} of them made"
        );
        assert!(acknowledged > kills);
    }
}

/// Limits the size of files; a write beyond it fails like one beyond a quota.
fn limit_files(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

/// Writes until the disk is full, reads, and writes again once there is space. Prints the outcomes.
#[tokio::test]
#[ignore = "run by the test of a full disk"]
async fn writes_until_the_disk_is_full() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    limit_files(Some(3 * 1024 * 1024));
    let vault = open(folder, "").await;
    let owner = owner_of(&vault, 8).await;
    let mut appended = 0;
    for round in 0..2 {
        loop {
            match owner.commit(put(appended, text_of(appended))).await {
                Ok(_) => appended += 1,
                Err(error) => {
                    println!("\nsaid refused {error}");
                    break;
                }
            }
        }
        // Not even a write of one page.
        while owner.commit(Changes::default()).await.is_ok() {}
        println!("\nsaid unready {}", vault.storage().ready().await.unwrap_err());
        // Reading goes on.
        owner.refresh().await.unwrap();
        assert!(contents(&owner).await.len() as u64 >= appended);
        limit_files((round == 0).then_some(5 * 1024 * 1024));
        vault.storage().ready().await.unwrap();
    }
    appended = contents(&owner).await.len() as u64;
    owner.commit(put(appended, text_of(appended))).await.unwrap();
    println!("\nsaid appended {}", appended + 1);
}

/// Runs the writer, and compares its outcomes with the database.
#[tokio::test]
async fn a_full_disk_is_named_and_loses_nothing_and_writing_goes_on_with_space() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let output = Command::new("bash")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["storage::crash::writes_until_the_disk_is_full", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let said = |what: &str| {
        let lines =
            text.lines().filter_map(|line| line.strip_prefix("said ")?.strip_prefix(what)?.strip_prefix(' '));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for error in said("refused").into_iter().chain(said("unready")) {
        assert!(error.contains("disk") && error.contains("full") && error.contains("again"), "{error}");
    }
    assert_eq!((said("refused").len(), said("unready").len()), (2, 2), "{text}");
    let appended: u64 = said("appended")[0].parse().unwrap();
    assert!(appended > 100, "{text}");
    println!("{appended} records; refused meanwhile: {}", said("refused")[0]);
    let vault = open(folder, "").await;
    let found = contents(&*owner_of(&vault, 8).await).await;
    assert!((0..appended).all(|number| found.get(&number) == Some(&text_of(number))), "{text}");
}
