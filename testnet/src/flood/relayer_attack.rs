//! The attacker of a relayer: silent or slow connections and streams, and rightly signed requests by fresh keys.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use baton_client::system_clock;
use baton_keys::account::{AccountKey, body_sha256};
use baton_mesh::{Mesh, MeshConfig, Multiaddr};
use baton_proto::ids::NodeId;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

use super::attacker::AttackCounts;

/// Connections of the attacks that hold something.
const HELD: usize = 300;
/// Peers that hold streams.
const STREAM_PEERS: usize = 4;
/// Addresses of each attack.
const ADDRESSES: u8 = 8;
/// Bytes that a slow body announces.
const ANNOUNCED_BYTES: usize = 3 << 20;
/// Time limit of opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// An attack on a relayer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RelayerAttack {
    pub(super) kind: RelayerAttackKind,
    /// Address of the HTTP endpoint.
    pub(super) http: SocketAddr,
    /// Id of the relayer.
    pub(super) relayer: NodeId,
    /// Addresses of the sealed endpoint.
    pub(super) sealed: Vec<Multiaddr>,
    /// Second byte of the source addresses 127.x.0.0.
    pub(super) network: u8,
    pub(super) seconds: u64,
}

/// Kind of attack on a relayer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RelayerAttackKind {
    /// Rightly signed heads of imports, by fresh keys; the bodies arrive in drops.
    SlowBodies,
    /// Connections that say nothing, or half a head.
    Idle,
    /// Rightly signed requests, each by a fresh key.
    FreshKeys,
    /// Streams to the sealed endpoint that say nothing.
    IdleStreams,
}

impl RelayerAttackKind {
    /// All kinds, each with the name of its part and the network of its addresses.
    pub(super) const ALL: [(&'static str, Self, u8); 4] = [
        ("slow-bodies", Self::SlowBodies, 11),
        ("idle", Self::Idle, 12),
        ("fresh-keys", Self::FreshKeys, 13),
        ("idle-streams", Self::IdleStreams, 14),
    ];
}

impl RelayerAttack {
    /// Attacks for the plan's time, and counts the outcomes of the attempts.
    pub(super) async fn run(self, outcomes: AttackCounts) {
        let seconds = Duration::from_secs(self.seconds);
        let attacker = RelayerAttacker { attack: Arc::new(self), outcomes };
        // The attack does not end by itself.
        let _ = tokio::time::timeout(seconds, attacker.run()).await;
    }
}

/// The attacks of all connections count their outcomes together.
#[derive(Clone)]
struct RelayerAttacker {
    attack: Arc<RelayerAttack>,
    outcomes: AttackCounts,
}

impl RelayerAttacker {
    /// Attacks until it is dropped.
    async fn run(self) {
        let kind = self.attack.kind;
        let mut tasks = JoinSet::new();
        let peers = if kind == RelayerAttackKind::IdleStreams { STREAM_PEERS } else { HELD };
        for number in 0..peers {
            let attacker = self.clone();
            tasks.spawn(async move {
                if kind == RelayerAttackKind::IdleStreams {
                    return attacker.idle_streams().await;
                }
                loop {
                    let outcome = attacker.attempt(kind, number).await;
                    attacker.outcomes.count(outcome.as_deref().unwrap_or("connection failed"));
                    // The attacker shares the processors with the relayer.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn connect(&self, number: usize) -> std::io::Result<TcpStream> {
        let last = u8::try_from(number % usize::from(ADDRESSES)).unwrap_or(0) + 1;
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, self.attack.network, 0, last)), 0))?;
        socket.connect(self.attack.http).await
    }

    /// One connection of an attack; returns the status line of the answer.
    async fn attempt(&self, kind: RelayerAttackKind, number: usize) -> std::io::Result<String> {
        let mut stream = self.connect(number).await?;
        match kind {
            RelayerAttackKind::SlowBodies => {
                // The relayer compares the hash only once the body is there.
                stream.write_all(head("/api/import", b"x", ANNOUNCED_BYTES).as_bytes()).await?;
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
            RelayerAttackKind::FreshKeys => {
                let body = br#"{"text":"a fact of nobody"}"#;
                stream.write_all(head("/api/remember", body, body.len()).as_bytes()).await?;
                stream.write_all(body).await?;
                status_line(&mut stream).await
            }
            RelayerAttackKind::Idle | RelayerAttackKind::IdleStreams => {
                if number.is_multiple_of(2) {
                    stream.write_all(b"POST /api/recall HTTP/1.1\r\nhost:").await?;
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
            match mesh.open(self.attack.relayer, &self.attack.sealed, deadline).await {
                Ok(stream) => {
                    self.outcomes.count("stream opened");
                    held.push(stream);
                }
                Err(_) => {
                    self.outcomes.count("stream refused");
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
    let headers = key.request_headers(&key.account_id(), "POST", path, body, system_clock()() / 1000);
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
