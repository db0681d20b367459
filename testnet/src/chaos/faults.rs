//! Wrong clocks, lost blobs, and silent connections.

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
    call::{Answer, Conditions},
    memories::TrialMemory,
    plan::Program,
    world::World,
};

/// Turns before a store loses blobs.
const TURNS: u64 = 3;
/// Source address of silent connections; honest clients use another.
const SILENT_SOURCE: &str = "127.0.0.9:0";
/// Pause before a closed silent connection is reopened.
const RECONNECT: Duration = Duration::from_millis(50);
/// Time for all silent connections to open. A full server leaves some of them waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of an honest call beside silent connections.
const HONEST_CALL: Duration = Duration::from_secs(10);

/// The clock of client or node is wrong for a turn. The turn must succeed, or its error must mention the
/// clock.
pub(super) async fn wrong_clock(world: &mut World, program: Program, seconds: i64) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    let offset = format!("--clock-offset={seconds}");
    let of_node = program == Program::Node;
    if of_node {
        world.stop_node().await?;
        world.start_node(&[&offset]).await?;
    }
    let more: &[&str] = if of_node { &[] } else { &[&offset] };
    let (acknowledged, answer) = world.say(&mut device, more, Conditions::default()).await?;
    if !acknowledged && !names_clock(&answer.stderr) && !names_clock(&answer.stdout) {
        world
            .findings
            .undetected(&format!("the clock of the {program:?} is off by {seconds} s: {}", answer.brief()));
    }
    if of_node {
        world.stop_node().await?;
        world.start_node(&[]).await?;
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
pub(super) async fn forgetful_store(world: &mut World, everything: bool) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, TURNS).await?;
    world.settle(&device).await?;
    let newest = world.newest_blob(&device).await?;
    let forgotten = if everything { world.network.list_blobs().await? } else { vec![newest] };
    for id in forgotten {
        world.network.forget_blob(id).await?;
    }
    let verified = world.clients().session(&device, "verify", &["--full"]).await?;
    world.inspect(&verified);
    if verified.is_ok() {
        world.findings.undetected(&format!("the newest blob is gone: {}", verified.brief()));
    }
    world.settle(&device).await?;
    world.check(&device).await
}

/// Silent connections to the store must not delay honest clients.
pub(super) async fn silent_at_store(world: &mut World, connections: u64) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    world.settle(&device).await?;
    let silent = Silent::connect(world.network.store_url(), connections).await?;
    let verified = world.clients().session(&device, "verify", &["--full"]).await?;
    world.inspect(&verified);
    if let Some(what) = unserved(&verified) {
        world.findings.unserved(&format!("beside {connections} silent connections: {what}"));
    }
    world.say(&mut device, &[], Conditions::default()).await?;
    drop(silent);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Silent connections to the relayer must not delay honest clients.
pub(super) async fn silent_at_relayer(memories: &mut TrialMemory, connections: u64) -> anyhow::Result<()> {
    memories.add(None).await?;
    let silent = Silent::connect(&memories.url(), connections).await?;
    let searched = memories.search().await?;
    if let Some(what) = unserved(&searched) {
        memories.findings.unserved(&format!("beside {connections} silent connections: {what}"));
    }
    memories.add(None).await?;
    drop(silent);
    if let Err(answer) = memories.add_surely().await? {
        memories.findings.unserved(&answer.brief());
    }
    memories.check().await
}

/// The failure of an honest call, if it failed or took too long.
fn unserved(answer: &Answer) -> Option<String> {
    (!answer.is_ok() || answer.took > HONEST_CALL).then(|| answer.brief())
}

/// Silent connections that reopen when they are closed. Dropping this value ends them.
struct Silent {
    _connections: JoinSet<()>,
}

impl Silent {
    /// Opens them, and waits until each was open once. At the timeout, more than half must have been.
    async fn connect(url: &str, count: u64) -> anyhow::Result<Self> {
        let target: SocketAddr =
            url.trim_start_matches("http://").parse().context("the URL is an address")?;
        let source: SocketAddr = SILENT_SOURCE.parse()?;
        let connected = Arc::new(AtomicU64::new(0));
        let mut connections = JoinSet::new();
        for _ in 0..count {
            connections.spawn(stay(source, target, connected.clone()));
        }
        let until = Instant::now() + CONNECT_TIMEOUT;
        while connected.load(Relaxed) < count && Instant::now() < until {
            tokio::time::sleep(RECONNECT).await;
        }
        let made = connected.load(Relaxed);
        ensure!(made * 2 > count, "only {made} silent connections of {count}");
        Ok(Self { _connections: connections })
    }
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
