//! Full disks, homes that go back in time, wrong clocks, lost blobs, and silent connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::{io::AsyncReadExt as _, net::TcpSocket, task::JoinSet, time::Instant};

use super::{
    call::Conditions,
    files::{self, FileChange},
    plan::Program,
    report::FindingKind,
    world::{ClientHome, RECOVERY, TrialWorld},
};
use crate::{process::DiskSpace, trial::retried};

/// Clock errors of a client, in seconds.
const CLIENT_OFFSETS: [i64; 8] = [-86_400, -3_600, -300, 45, 3_600, 86_400, 40 * 86_400, 400 * 86_400];
/// Clock errors of a node, in seconds.
const NODE_OFFSETS: [i64; 6] = [-300, 3, 8, 20, 90, 3_600];
/// Turns before a store loses blobs.
const TURNS: u64 = 3;
/// Tries of the turn after a truncation: a node may refuse the first try, and the next one has another
/// attempt number.
const TRIES: usize = 3;
/// Silent connections: more than a server accepts at once by default.
const SILENT_CONNECTIONS: u64 = 300;
/// Source address of silent connections; honest clients use another.
const SILENT_SOURCE: &str = "127.0.0.9:0";
/// Pause before a closed silent connection is reopened.
const RECONNECT: Duration = Duration::from_millis(50);
/// Time for all silent connections to open. A full server leaves some of them waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of an honest call beside silent connections.
const HONEST_CALL: Duration = Duration::from_secs(10);

/// A program's disk is full for a while. The program need not work meanwhile. Afterwards it works again by itself, or it
/// reports itself unhealthy and a restart fixes it.
pub(super) async fn full_disk(world: &mut TrialWorld) -> anyhow::Result<()> {
    let program = world.program;
    let mut device = world.device();
    world.say_turns(&mut device, 2).await?;
    let conditions = if program == Program::Client { Conditions::full_disk() } else { Conditions::default() };
    world.set_disk(program, DiskSpace::Full)?;
    for _ in 0..if program == Program::Relayer { 2 } else { 1 } {
        world.say(&mut device, &[], conditions).await?;
    }
    world.set_disk(program, DiskSpace::Roomy)?;
    recover(world, &mut device).await?;
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Waits until the program works again, and restarts it if it reports itself unhealthy.
async fn recover(world: &mut TrialWorld, device: &mut ClientHome) -> anyhow::Result<()> {
    let program = world.program;
    let recovered = retried(RECOVERY, async || {
        if program != Program::Store {
            let (works, outcome) = world.say(device, &[], Conditions::default()).await?;
            return Ok(if works { Ok(()) } else { Err(outcome) });
        }
        // A node serves turns without the store, so only verification shows if the store works.
        let session = ["session", "verify", device.session()?, "--full", "--fix"];
        let outcome = world.clients.call(&device.home, &session, Conditions::default()).await?;
        // The time of a refusal does not count: a broken store is a finding below.
        world.findings.find_panic(&outcome);
        Ok(outcome.or_failed(()))
    });
    let Err(refused) = recovered.await? else { return Ok(()) };
    if !world.restart_if_unwell(program).await? {
        let what = "did not work after its disk was freed, and its health said it did";
        world.findings.found(FindingKind::Unserved, format!("{program:?} {what}: {}", refused.brief()));
    }
    Ok(())
}

/// Restores an older copy of the home, then runs a turn.
pub(super) async fn older_home(world: &mut TrialWorld) -> anyhow::Result<()> {
    let (before, after) = (1 + world.draws.below(3), 1 + world.draws.below(4));
    let mut device = world.device();
    world.say_turns(&mut device, before).await?;
    let copy = world.folder.join("older-home");
    files::copy(&device.home, &copy)?;
    world.say_turns(&mut device, after).await?;
    files::put_back(&copy, &device.home)?;
    let mut device = device.in_lane(1);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Truncates the journal, then runs a turn.
pub(super) async fn cut_journal(world: &mut TrialWorld) -> anyhow::Result<()> {
    let (turns, kept) = (3 + world.draws.below(3), 300 + world.draws.below(700));
    let mut device = world.device();
    world.say_turns(&mut device, turns).await?;
    world.settle(&device).await?;
    let words = world.words(&device).await?;
    let journals = files::list(&device.home)?;
    let journal = journals.iter().find(|file| file.extension().is_some_and(|end| end == "journal"));
    files::change_file(journal.context("the home has a journal")?, FileChange::Cut { kept })?;
    let mut device = device.in_lane(1);
    for _ in 0..TRIES {
        let (acknowledged, _) = world.say(&mut device, &[], Conditions::default()).await?;
        if acknowledged {
            return world.check(&device).await;
        }
    }
    // The client refuses the damaged journal; the words still recover the session.
    world.check_by_words(&words, &device).await
}

/// The clock of client or node is wrong for a turn. The turn must succeed, or its error must mention the
/// clock.
pub(super) async fn wrong_clock(world: &mut TrialWorld) -> anyhow::Result<()> {
    let program = world.program;
    let of_node = program == Program::Node;
    let offsets: &[i64] = if of_node { &NODE_OFFSETS } else { &CLIENT_OFFSETS };
    let seconds = world.draws.one_of(offsets).unwrap_or_default();
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    let offset = format!("--clock-offset={seconds}");
    if of_node {
        world.stop(program).await?;
        world.start_node(&[&offset]).await?;
    }
    let more: &[&str] = if of_node { &[] } else { &[&offset] };
    let (acknowledged, outcome) = world.say(&mut device, more, Conditions::default()).await?;
    if !acknowledged && !names_clock(&outcome.stderr) && !names_clock(&outcome.stdout) {
        let what = format!("the clock of the {program:?} is off by {seconds} s: {}", outcome.brief());
        world.findings.found(FindingKind::Undetected, what);
    }
    if of_node {
        world.stop(program).await?;
        world.start_again(program).await?;
    }
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Whether a message says which clock is wrong and in which direction, or asks to check a clock.
fn names_clock(text: &str) -> bool {
    let names_any = |line: &str, wanted: &[&str]| wanted.iter().any(|wanted| line.contains(wanted));
    text.lines().any(|line| {
        names_any(line, &["check this machine's clock", "check the clock"])
            || names_any(line, &["machine's clock is", "clock of node"])
                && names_any(line, &["ahead of", "behind"])
    })
}

/// The store loses a session's newest blob, or all blobs. Verification must detect that, and the device's own
/// copy must fix it.
pub(super) async fn forgetful_store(world: &mut TrialWorld) -> anyhow::Result<()> {
    let everything = world.draws.below(2) == 0;
    let mut device = world.device();
    world.say_turns(&mut device, TURNS).await?;
    world.settle(&device).await?;
    let newest = world.newest_blob(&device).await?;
    let forgotten = if everything { world.network.list_blobs().await? } else { vec![newest] };
    for id in forgotten {
        world.network.forget_blob(id).await?;
    }
    let verified = world.session(&device, "verify", &["--full"]).await?;
    if verified.is_ok() {
        let what = format!("the newest blob is gone: {}", verified.brief());
        world.findings.found(FindingKind::Undetected, what);
    }
    world.settle(&device).await?;
    world.check(&device).await
}

/// Silent connections to store or relayer must not delay honest clients.
pub(super) async fn silent_peers(world: &mut TrialWorld) -> anyhow::Result<()> {
    let count = SILENT_CONNECTIONS + world.draws.below(100);
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    world.settle(&device).await?;
    let silent = connect_silently(&world.url(world.program), count).await?;
    let outcome = match world.program {
        Program::Relayer => world.call(&device.home, &["memory", "search", "item"]).await?,
        _ => world.session(&device, "verify", &["--full"]).await?,
    };
    if !outcome.is_ok() || outcome.took > HONEST_CALL {
        let what = format!("beside {count} silent connections: {}", outcome.brief());
        world.findings.found(FindingKind::Unserved, what);
    }
    world.say(&mut device, &[], Conditions::default()).await?;
    drop(silent);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Opens silent connections, and waits until each was open once; at the timeout, more than half must have been. They reopen
/// when they are closed, until the set is dropped.
async fn connect_silently(url: &str, count: u64) -> anyhow::Result<JoinSet<()>> {
    let target: SocketAddr = url.trim_start_matches("http://").parse().context("the URL is an address")?;
    let connected = Arc::new(AtomicU64::new(0));
    let mut connections = JoinSet::new();
    for _ in 0..count {
        connections.spawn(stay(SILENT_SOURCE.parse()?, target, connected.clone()));
    }
    let until = Instant::now() + CONNECT_TIMEOUT;
    while connected.load(Relaxed) < count && Instant::now() < until {
        tokio::time::sleep(RECONNECT).await;
    }
    let made = connected.load(Relaxed);
    ensure!(made * 2 > count, "only {made} silent connections of {count}");
    Ok(connections)
}

/// Opens one silent connection again and again.
async fn stay(source: SocketAddr, target: SocketAddr, connected: Arc<AtomicU64>) {
    let mut is_first = true;
    loop {
        if let Ok(mut stream) = connect(source, target).await {
            if std::mem::take(&mut is_first) {
                connected.fetch_add(1, Relaxed);
            }
            // Reads until it is closed, and ignores the bytes.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn connect(source: SocketAddr, target: SocketAddr) -> std::io::Result<tokio::net::TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(source)?;
    socket.connect(target).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_about_a_wrong_clock_names_it() {
        for text in [
            "error: this machine's clock is about 1 h 2 min behind that of http://s",
            "error: the clock of node 01 is about 20 s ahead of this machine's, which agrees with that of s",
            "error: the authorisation expired\n  try: check this machine's clock",
            "error: the authorisation is from the future; check the clock",
        ] {
            assert!(names_clock(text), "{text}");
        }
        for text in ["it is five o'clock, come again", "the clock struck", "no node was found, clock it", ""]
        {
            assert!(!names_clock(text), "{text}");
        }
    }
}
