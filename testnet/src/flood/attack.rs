//! The attacker of a node: it offers a fixed rate of requests, from one client or from many. It connects as
//! a proxy of the node does, and names a client of another subnet in each lane.
//!
//! It keeps its own cost small: requests are made in advance, and connections are implemented by hand.

use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use baton_client::system_clock;
use baton_keys::{SecretSigningKey, session::SessionRoot};
use baton_mesh::{Mesh, MeshConfig, Multiaddr, Reach};
use baton_proto::{
    codec,
    ids::NodeId,
    limits::MAX_NODE_FRAME_BYTES,
    signed::SignatureBytes,
    wire::{ClientFrame, NodeFrame},
};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    attacker::{AttackCounts, BEHIND, IDENTITIES, OFFERED, REFUSED_AT_DOOR, REFUSED_IN_HANDSHAKE, SENT},
    webrtc::{self, PacketShape},
    wire::{StreamPiece, connect, first_frame, handshake, next_piece, open_and_send, socket_address},
};
use crate::{
    draws::Draws,
    raw::{self, RawTurn},
    trial::retried,
};

/// An attack on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeAttack {
    pub(super) wave: Wave,
    /// Address of the node.
    pub(super) target: Multiaddr,
    /// Id of the node.
    pub(super) node: NodeId,
    /// Requests a second.
    pub(super) rate: u32,
    pub(super) seconds: u64,
    pub(super) seed: u64,
    /// Fraction of a processor that the burner uses.
    pub(super) duty: f64,
}

/// The shape of an attack.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Wave {
    pub(super) kind: AttackKind,
    /// Second byte of the clients' addresses 10.x.0.0, so that each attack has unused quotas.
    pub(super) network: u8,
    /// Number of clients' subnets.
    pub(super) subnets: usize,
    /// Requests of each identity.
    pub(super) each: u64,
}

/// Concurrent connections of an attacker with one address. One with many addresses has one connection from
/// each.
const LANES: usize = 64;
/// Unanswered requests of one connection.
const IN_FLIGHT: usize = 16;
/// Requests made in advance. One is sent again only if the node refused it before learning of its session.
const SHOTS: u32 = 8000;
/// The first lane of draws for requests; identities use lower lanes.
const SHOT_LANES: u64 = 1_000_000;
/// The longest lifetime of an authorisation.
const LIFETIME_MS: u64 = 120_000;
/// Time to get the node's record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a connection and its handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the last answers on a connection that sends no more.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Period of the burner's work and sleep.
const BURN_PERIOD: Duration = Duration::from_millis(10);

/// Kind of attack on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AttackKind {
    /// No requests: as much processor time as the attacks took, at the same priority.
    Burner,
    /// Requests with signatures that do not verify.
    Forged,
    /// Signed requests, each of a fresh session.
    Signed,
    /// Packets over WebRTC.
    Packets(PacketShape),
}

/// Shared state of the lanes.
struct RequestPlan {
    target: SocketAddr,
    shots: Vec<Vec<u8>>,
    /// Requests that are still unknown to the node.
    fresh: Mutex<VecDeque<usize>>,
    /// Whether a request may be sent again after any refusal.
    reusable: bool,
    /// Requests of one identity.
    each: u64,
    counts: AttackCounts,
}

impl NodeAttack {
    /// The requests of the attack, made in advance.
    pub(super) async fn shots(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        if !matches!(self.wave.kind, AttackKind::Forged | AttackKind::Signed) {
            return Ok(Vec::new());
        }
        let seed = SecretSigningKey::generate().expose_seed();
        let near = MeshConfig {
            reach: Some(Reach::Loopback),
            discovery: false,
            nat: false,
            ..MeshConfig::dialer("flood")
        };
        let (mesh, _) = Mesh::spawn(seed, near).await?;
        // The honest clients may just have used the allowance of this address, which refills.
        let record = retried(RECORD_TIMEOUT, async || {
            Ok(raw::node_record(&mesh, self.node, std::slice::from_ref(&self.target)).await)
        });
        let record = record.await??;
        mesh.shutdown().await;
        let now_ms = system_clock()();
        // Sessions of its own: a node remembers the turns of earlier attacks.
        let mut draws = Draws::of(self.seed, SHOT_LANES + u64::from(self.wave.network));
        let shot = |_| {
            let (root, valid_ms) = (SessionRoot::from_bytes(draws.bytes()), (now_ms, now_ms + LIFETIME_MS));
            let turn = RawTurn::first(&root, &record, "a flood of words that nobody needs", valid_ms);
            let mut request = turn?.request;
            // A forged request is valid but for its signature.
            if self.wave.kind == AttackKind::Forged {
                request.auth.signature = SignatureBytes(draws.bytes());
            }
            Ok(codec::encode(&ClientFrame::Turn(request)))
        };
        (0..SHOTS).map(shot).collect()
    }

    /// Attacks for the plan's time.
    pub(super) async fn run(self, shots: Vec<Vec<u8>>, counts: &AttackCounts) -> anyhow::Result<()> {
        let target = socket_address(&self.target)?;
        match self.wave.kind {
            AttackKind::Burner => {
                burn(self.duty, Duration::from_secs(self.seconds));
                Ok(())
            }
            AttackKind::Packets(shape) => webrtc::attack(&self, target, shape, counts).await,
            AttackKind::Forged | AttackKind::Signed => self.request(target, shots, counts).await,
        }
    }

    async fn request(
        &self,
        target: SocketAddr,
        shots: Vec<Vec<u8>>,
        counts: &AttackCounts,
    ) -> anyhow::Result<()> {
        let Wave { kind, network, subnets, each } = self.wave;
        let plan = Arc::new(RequestPlan {
            target,
            fresh: Mutex::new((0..shots.len()).collect()),
            shots,
            reusable: kind == AttackKind::Forged,
            each,
            counts: counts.clone(),
        });
        let client = |number: usize| {
            let subnet = if subnets > 1 { number } else { 0 };
            let second = u8::try_from(subnet / 250).ok()?.checked_add(2 * network)?;
            Some(Ipv4Addr::new(10, second, u8::try_from(subnet % 250).ok()?, 1))
        };
        let lanes = if subnets > 1 { subnets } else { LANES };
        let clients: Option<Vec<Ipv4Addr>> = (0..lanes).map(client).collect();
        let clients = clients.context("too many subnets")?;
        let lane = |(number, client): (u64, Ipv4Addr), pace| {
            let draws = Draws::of(self.seed, number + 1);
            Lane { plan: plan.clone(), client, pace, draws }.run()
        };
        self.in_lanes((0..).zip(clients), lane).await
    }

    /// Runs a lane for each of the items, at an even pace together, for the attack's time.
    pub(super) async fn in_lanes<I, T: Future<Output = ()> + Send + 'static>(
        &self,
        items: impl IntoIterator<Item = I>,
        lane: impl Fn(I, RequestPace) -> T,
    ) -> anyhow::Result<()> {
        let items: Vec<I> = items.into_iter().collect();
        let (mut tasks, now, count) = (JoinSet::new(), Instant::now(), u32::try_from(items.len())?);
        let gap = Duration::from_secs(1) * count / self.rate.max(1);
        for (number, item) in (0_u32..).zip(items) {
            tasks.spawn(lane(item, RequestPace { next: now + gap * number / count, gap }));
        }
        sleep_until(now + Duration::from_secs(self.seconds)).await;
        tasks.shutdown().await;
        Ok(())
    }
}

/// Uses a share of one processor.
fn burn(duty: f64, seconds: Duration) {
    let began = std::time::Instant::now();
    let work = BURN_PERIOD.mul_f64(duty.clamp(0.0, 1.0));
    while began.elapsed() < seconds {
        let period = std::time::Instant::now();
        while period.elapsed() < work {
            std::hint::spin_loop();
        }
        std::thread::sleep(BURN_PERIOD.saturating_sub(period.elapsed()));
    }
}

/// Opens one connection after another, at an even pace.
struct Lane {
    plan: Arc<RequestPlan>,
    client: Ipv4Addr,
    pace: RequestPace,
    draws: Draws,
}

/// The times of a lane's requests.
pub(super) struct RequestPace {
    pub(super) next: Instant,
    pub(super) gap: Duration,
}

impl RequestPace {
    /// Waits until the next request is due. Requests missed meanwhile are counted but not sent.
    pub(super) async fn due(&mut self, counts: &AttackCounts) {
        let now = Instant::now();
        while self.next + self.gap * 4 < now {
            self.next += self.gap;
            counts.count(OFFERED);
            counts.count(BEHIND);
        }
        sleep_until(self.next).await;
        self.next += self.gap;
        counts.count(OFFERED);
    }
}

impl Lane {
    async fn run(mut self) {
        loop {
            self.pace.due(&self.plan.counts).await;
            // A due request without a connection makes one connection attempt.
            let connecting = async {
                let stream = connect(self.client, self.plan.target).await?;
                handshake(stream, self.draws.bytes()).await
            };
            let connected = timeout(CONNECT_TIMEOUT, connecting).await;
            match connected.unwrap_or(Err(REFUSED_IN_HANDSHAKE)) {
                Ok(link) => {
                    self.plan.counts.count(IDENTITIES);
                    let (read, write) = link.split();
                    self.talk(read, write).await;
                }
                Err(refused) => self.plan.counts.count(refused),
            }
        }
    }

    /// Sends on one connection, within its identity's share, until it ends. The first request is due already.
    async fn talk(
        &mut self,
        mut read: impl futures::AsyncRead + Unpin,
        mut write: impl futures::AsyncWrite + Unpin,
    ) {
        let plan = self.plan.clone();
        let open = OpenStreams { plan: plan.clone(), streams: Mutex::default(), ended: Notify::new() };
        let listening = async {
            while let Ok(Some(piece)) = next_piece(&mut read).await {
                open.receive(&piece);
            }
        };
        let sending = async {
            let mut sent = 0;
            let mut stream = 1u32;
            while sent < plan.each {
                if sent > 0 {
                    self.pace.due(&plan.counts).await;
                }
                let shot = if open.count() < IN_FLIGHT { plan.fresh.lock().pop_front() } else { None };
                let Some((shot, frame)) = shot.and_then(|shot| Some((shot, plan.shots.get(shot)?))) else {
                    plan.counts.count(BEHIND);
                    // An identity that cannot send leaves its connection.
                    sent += u64::from(sent == 0);
                    continue;
                };
                open.begin(stream, shot);
                let bytes = open_and_send(stream, frame);
                if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
                    // The connection was closed meanwhile, which refused the request too.
                    plan.counts.count(REFUSED_AT_DOOR);
                    return;
                }
                plan.counts.count(SENT);
                sent += 1;
                stream += 2;
            }
            while open.count() > 0 {
                if timeout(LAST_ANSWERS_TIMEOUT, open.ended.notified()).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = listening => {}
            () = sending => {}
        }
    }
}

/// The open streams of one connection.
struct OpenStreams {
    plan: Arc<RequestPlan>,
    streams: Mutex<HashMap<u32, Stream>>,
    ended: Notify,
}

struct Stream {
    shot: usize,
    bytes: Vec<u8>,
    answered: bool,
}

impl OpenStreams {
    fn count(&self) -> usize {
        self.streams.lock().len()
    }

    fn begin(&self, stream: u32, shot: usize) {
        self.streams.lock().insert(stream, Stream { shot, bytes: Vec::new(), answered: false });
    }

    /// Reads every answer to its end, to make the node do all its work.
    fn receive(&self, piece: &StreamPiece) {
        let mut streams = self.streams.lock();
        let Some(stream) = streams.get_mut(&piece.stream) else { return };
        if !stream.answered {
            stream.bytes.extend(&piece.body);
            if let Some(frame) = first_frame(&stream.bytes) {
                stream.answered = true;
                self.answered(stream.shot, frame);
                stream.bytes = Vec::new();
            }
        }
        if piece.ended {
            let ended = streams.remove(&piece.stream);
            drop(streams);
            self.ended.notify_one();
            if let Some(stream) = ended.filter(|stream| !stream.answered) {
                self.count_refusal(stream.shot, "none");
            }
        }
    }

    fn answered(&self, shot: usize, frame: &[u8]) {
        match codec::decode::<NodeFrame>(frame, MAX_NODE_FRAME_BYTES) {
            Ok(NodeFrame::Refused { code, .. }) => self.count_refusal(shot, code.name()),
            Ok(NodeFrame::Accepted { .. }) => self.plan.counts.count("accepted"),
            _ => self.plan.counts.count("other"),
        }
    }

    /// Counts a refusal. The request is reused if the node refused it before learning of its session.
    fn count_refusal(&self, shot: usize, what: &str) {
        self.plan.counts.count(what);
        if self.plan.reusable || matches!(what, "none" | "RateLimited" | "Busy") {
            self.plan.fresh.lock().push_back(shot);
        }
    }
}

impl Drop for OpenStreams {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *self.streams.lock());
        for stream in streams.into_values().filter(|stream| !stream.answered) {
            self.count_refusal(stream.shot, "none");
        }
    }
}
