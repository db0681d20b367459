//! kill -9 at random points of the journal's writes.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use baton_node::journal::{EntryState, Journal, JournalLimits};
use baton_proto::wire::StoreState;

use crate::service::journal::{STORED, key, seal};

const FOLDER: &str = "BATON_TEST_JOURNAL_FOLDER";
/// Kills, and with `BATON_FULL`.
const KILLS: u32 = 12;
const ALL_KILLS: u32 = 300;
/// Kills of one journal, which grows meanwhile.
const KILLS_EACH: u32 = 30;

fn open(folder: &Path) -> Journal {
    // Small limits, so that pruning runs too.
    let limits = JournalLimits { max_blob_bytes: 100_000, ..JournalLimits::default() };
    Journal::open(folder, limits, 1000).unwrap()
}

fn draw(step: u32, lane: u8) -> u64 {
    let hash = blake3::hash(format!("journal/{step}/{lane}").as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap())
}

fn blob(turn: u32) -> Vec<u8> {
    turn.to_le_bytes().repeat(500)
}

/// Seals turns until it is killed. Prints the number of each turn once its seal is on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by kill_9_loses_no_seal_and_breaks_no_index"]
async fn seals_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let journal = open(Path::new(&folder));
    let mut turn = 0;
    while journal.look_up(key(turn)).await.unwrap().is_some() {
        turn += 1;
    }
    loop {
        let state = if turn.is_multiple_of(3) { StoreState::Pending } else { STORED };
        let digest = seal(&journal, turn, blob(turn), state, 2000).await;
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\nsealed {turn} {}\n", hex::encode(digest.0)).as_bytes()).unwrap();
        out.flush().unwrap();
        drop(out);
        if turn.is_multiple_of(3) {
            journal.set_store(key(turn), STORED).await.unwrap();
        }
        turn += 1;
    }
}

/// The numbers of the turns that a killed process had sealed.
fn killed_writer(folder: &Path, kill: u32) -> Vec<u32> {
    let patience = 1 + draw(kill, 0) % 25;
    let pause = Duration::from_micros(draw(kill, 1) % 4000);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["service::kills::seals_until_killed", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut sealed, mut is_killed) = (Vec::new(), false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
        let ["sealed", turn, _] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        sealed.push(turn.parse().unwrap());
        if sealed.len() as u64 >= patience && !is_killed {
            std::thread::sleep(pause);
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    assert!(is_killed, "the writer ended by itself");
    sealed
}

#[tokio::test]
async fn kill_9_loses_no_seal_and_breaks_no_index() {
    let kills = if std::env::var_os("BATON_FULL").is_some() { ALL_KILLS } else { KILLS };
    let (mut folder, mut sealed) = (tempfile::tempdir().unwrap(), BTreeMap::new());
    let mut seals = 0;
    for kill in 0..kills {
        if kill.is_multiple_of(KILLS_EACH) {
            folder = tempfile::tempdir().unwrap();
            sealed.clear();
        }
        let path = folder.path().join("journal");
        for turn in killed_writer(&path, kill) {
            seals += 1;
            sealed.insert(turn, kill);
        }
        let journal = open(&path);
        assert_eq!(journal.damage(), None, "kill {kill}");
        for (turn, of) in &sealed {
            let entry = journal.look_up(key(*turn)).await.unwrap();
            let entry = entry.unwrap_or_else(|| panic!("kill {kill}: turn {turn} of kill {of} is missing"));
            assert!(matches!(entry.state, EntryState::Sealed(_)), "kill {kill}: turn {turn}: {entry:?}");
        }
    }
    println!("{kills} kills: {seals} seals on the disk, 0 lost, no index broken");
    assert!(seals > kills);
}
