//! The attacker of a relayer: a separate process with one thread of the lowest priority, since on one machine it competes
//! for the processors, unlike an attacker over a network.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use baton_client::Relayer;
use baton_keys::account::{AccountKey, body_sha256};
use baton_mesh::{Mesh, MeshConfig, Multiaddr};
use baton_proto::ids::NodeId;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::Mutex,
    task::JoinSet,
};

use crate::output;

/// Connections, or streams, of the attacks that hold something.
const HELD: usize = 300;
/// Addresses of each attack.
const ADDRESSES: u8 = 8;
/// Bytes that a slow body announces.
const ANNOUNCED_BYTES: usize = 3 << 20;
/// Time limit of opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments of the attacker.
#[derive(Debug, Args)]
pub(crate) struct RelayerAttackArgs {
    /// Kind of attack
    #[arg(value_enum)]
    pub(crate) kind: RelayerAttack,
    /// Address of the HTTP endpoint
    #[arg(long)]
    pub(crate) http: SocketAddr,
    /// Id of the relayer
    #[arg(long)]
    pub(crate) relayer: NodeId,
    /// Addresses of the sealed endpoint
    #[arg(long)]
    pub(crate) sealed: Vec<Multiaddr>,
    /// Second byte of the source addresses 127.x.0.0
    #[arg(long)]
    pub(crate) network: u8,
    #[arg(long)]
    pub(crate) seconds: u64,
}

/// An attack on a relayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RelayerAttack {
    /// Rightly signed heads of imports, by fresh keys; the bodies arrive in drops.
    SlowBodies,
    /// Connections that say nothing, or half a head.
    Idle,
    /// Rightly signed requests, each by a fresh key.
    FreshKeys,
    /// Streams to the sealed endpoint that say nothing.
    IdleStreams,
}

impl RelayerAttack {
    pub(super) const ALL: [(&'static str, Self, u8); 4] = [
        ("slow-bodies", Self::SlowBodies, 11),
        ("idle", Self::Idle, 12),
        ("fresh-keys", Self::FreshKeys, 13),
        ("idle-streams", Self::IdleStreams, 14),
    ];
}

/// The event on the attacker's output pipe.
#[derive(Debug, Serialize, Deserialize)]
struct RelayerAttackEvent {
    event: String,
    outcomes: BTreeMap<String, u64>,
}

/// Runs the attacker process.
pub(crate) async fn run(args: RelayerAttackArgs) -> anyhow::Result<()> {
    output::line("{\"event\":\"ready\"}");
    let attacking = std::thread::spawn(move || {
        // The priority is this thread's own.
        let _ = rustix::process::nice(19);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let outcomes = Arc::new(Mutex::new(BTreeMap::new()));
            let sealed = Relayer { node: args.relayer, addrs: args.sealed };
            let target =
                Target { http: args.http, sealed, network: args.network, outcomes: outcomes.clone() };
            // The attack does not end by itself.
            let _ = tokio::time::timeout(Duration::from_secs(args.seconds), target.run(args.kind)).await;
            anyhow::Ok(outcomes.lock().await.clone())
        })
    });
    let outcomes = tokio::task::spawn_blocking(move || attacking.join()).await?;
    let outcomes = outcomes.ok().context("the attacker panicked")??;
    output::line(&serde_json::to_string(&RelayerAttackEvent { event: "done".to_owned(), outcomes })?);
    Ok(())
}

pub(super) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The aim of an attack.
#[derive(Clone)]
struct Target {
    http: SocketAddr,
    sealed: Relayer,
    /// Second byte of the attacker's addresses.
    network: u8,
    outcomes: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Target {
    async fn note(&self, outcome: &str) {
        *self.outcomes.lock().await.entry(outcome.to_owned()).or_default() += 1;
    }

    /// Attacks until it is dropped.
    async fn run(self, attack: RelayerAttack) {
        let mut tasks = JoinSet::new();
        for number in 0..HELD {
            let target = self.clone();
            match attack {
                RelayerAttack::IdleStreams if number >= 4 => {}
                RelayerAttack::IdleStreams => drop(tasks.spawn(async move { target.idle_streams().await })),
                _ => drop(tasks.spawn(async move {
                    loop {
                        let outcome = target.attempt(attack, number).await;
                        target.note(outcome.as_deref().unwrap_or("connection failed")).await;
                        // The attacker shares the processors with the relayer.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                })),
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn connect(&self, number: usize) -> std::io::Result<TcpStream> {
        let last = u8::try_from(number % usize::from(ADDRESSES)).unwrap_or(0) + 1;
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, self.network, 0, last)), 0))?;
        socket.connect(self.http).await
    }

    /// One connection of an attack; returns the status line of the answer.
    async fn attempt(&self, attack: RelayerAttack, number: usize) -> std::io::Result<String> {
        let mut stream = self.connect(number).await?;
        match attack {
            RelayerAttack::SlowBodies => {
                // The relayer compares the hash only once the body is there.
                stream.write_all(head("/v1/memory/import", b"x", ANNOUNCED_BYTES).as_bytes()).await?;
                let (mut from, mut to) = stream.split();
                let dripping = async {
                    while to.write_all(b" ").await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    answer = status_line(&mut from) => answer,
                    () = dripping => Ok(String::new()),
                }
            }
            RelayerAttack::FreshKeys => {
                let body = br#"{"facts":[{"text":"a fact of nobody"}]}"#;
                stream.write_all(head("/v1/memory/remember", body, body.len()).as_bytes()).await?;
                stream.write_all(body).await?;
                status_line(&mut stream).await
            }
            RelayerAttack::Idle | RelayerAttack::IdleStreams => {
                if number.is_multiple_of(2) {
                    stream.write_all(b"POST /v1/memory/recall HTTP/1.1\r\nhost:").await?;
                }
                status_line(&mut stream).await
            }
        }
    }

    /// Opens streams to the sealed endpoint, and says nothing on them.
    async fn idle_streams(&self) {
        let seed = AccountKey::generate().signing_key().expose_seed();
        let Ok((mesh, _incoming)) = Mesh::spawn(seed, MeshConfig::dialer("attacker")).await else {
            return;
        };
        let mut held = Vec::new();
        loop {
            let deadline = tokio::time::Instant::now() + OPEN_TIMEOUT;
            match mesh.open(self.sealed.node, &self.sealed.addrs, deadline).await {
                Ok(stream) => {
                    self.note("stream opened").await;
                    held.push(stream);
                }
                Err(_) => {
                    self.note("stream refused").await;
                    held.clear();
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The signed head of a request by a fresh key, which announces a length.
fn head(path: &str, body: &[u8], announced: usize) -> String {
    let key = AccountKey::generate();
    let headers = key.request_headers(&key.account_id(), "POST", path, body, now_seconds());
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {announced}\r\n{headers}x-body-sha256: {}\r\n\r\n",
        body_sha256(body)
    )
}

/// The status of an answer, or `closed` for none.
async fn status_line(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut first = [0; 12];
    match stream.read_exact(&mut first).await {
        Ok(_) => Ok(String::from_utf8_lossy(&first).into_owned()),
        Err(_) => Ok("closed".to_owned()),
    }
}
