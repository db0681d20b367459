//! Wrong clocks, a store that forgets, and connections that say nothing.

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
    memories::Memories,
    plan::Program,
    world::World,
};

/// Turns before a store forgets.
const TURNS: u64 = 3;
/// Where silent connections come from: another address than that of honest ones.
const SILENT_SOURCE: &str = "127.0.0.9:0";
/// From a silent connection's end to the next one.
const RECONNECT: Duration = Duration::from_millis(50);
/// For all silent connections to be there. A server that is full by then leaves some of them waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an honest call may take beside silent connections.
const HONEST_CALL: Duration = Duration::from_secs(10);

/// The clock of client or node is wrong for a turn: it is served, or refused with a word about the clock.
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
    if !acknowledged && !answer.stderr.contains("clock") && !answer.stdout.contains("clock") {
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

/// The store forgets the newest blob of a session, or everything: that is seen, and mended from the device's own copy.
pub(super) async fn forgetful_store(world: &mut World, everything: bool) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, TURNS).await?;
    world.settle(&device).await?;
    let storage = world.clients().session(&device, "storage", &[]).await?;
    let storage = storage.json().with_context(|| format!("no list of blobs: {}", storage.brief()))?;
    let blobs = storage["blobs"].as_array().into_iter().flatten();
    let newest = blobs.filter_map(|blob| blob["blob_id"].as_str()).next_back();
    let newest = newest.context("the newest blob has an ID")?.parse()?;
    let forgotten = if everything { world.network.list_blobs().await? } else { vec![newest] };
    for id in forgotten {
        world.network.forget_blob(id).await?;
    }
    let verified = world.clients().session(&device, "verify", &["--full"]).await?;
    world.look_at(&verified);
    if verified.is_ok() {
        world.findings.undetected(&format!("the newest blob is gone: {}", verified.brief()));
    }
    world.check(&device).await
}

/// Silent connections to the store do not keep honest clients waiting.
pub(super) async fn silent_at_store(world: &mut World, connections: u64) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    world.settle(&device).await?;
    let silent = Silent::connect(world.network.store_url(), connections).await?;
    let verified = world.clients().session(&device, "verify", &["--full"]).await?;
    world.look_at(&verified);
    if let Some(what) = unserved(&verified) {
        world.findings.unserved(&format!("beside {connections} silent connections: {what}"));
    }
    world.say(&mut device, &[], Conditions::default()).await?;
    drop(silent);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Silent connections to the relayer do not keep honest clients waiting.
pub(super) async fn silent_at_relayer(memories: &mut Memories, connections: u64) -> anyhow::Result<()> {
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

/// What is wrong with an honest call, if anything is.
fn unserved(answer: &Answer) -> Option<String> {
    (!answer.is_ok() || answer.took > HONEST_CALL).then(|| answer.brief())
}

/// Connections that say nothing, and that are made again when they are closed. Dropped, they end.
struct Silent {
    _connections: JoinSet<()>,
}

impl Silent {
    /// Opens them, and waits until each was there once, or most of them were and the rest is left waiting.
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

/// One silent connection, again and again.
async fn stay(source: SocketAddr, target: SocketAddr, connected: Arc<AtomicU64>) {
    let mut is_first = true;
    loop {
        if let Ok(mut stream) = connect(source, target).await {
            if std::mem::take(&mut is_first) {
                connected.fetch_add(1, Relaxed);
            }
            // Until it is closed; what is said is not listened to.
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
