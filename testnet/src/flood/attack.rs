//! The attacker of a node: it offers a fixed rate of requests, from one client or from many. It connects as
//! a proxy of the node does, and names a client of another subnet in each lane.
//!
//! It keeps its own cost small: requests are made in advance, and connections are implemented by hand.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use baton_client::system_clock;
use baton_keys::SecretSigningKey;
use baton_mesh::{Mesh, MeshConfig, Multiaddr, Reach};
use baton_proto::{codec, ids::NodeId, limits::MAX_NODE_FRAME_BYTES, wire::NodeFrame};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::identity::Keypair;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    shots::shot,
    webrtc::{self, PacketShape},
    wire::{
        RefusalStage, StreamPiece, connect, first_frame, handshake, next_piece, open_and_send, socket_address,
    },
};
use crate::{draws::Draws, process::cpu_seconds, raw, trial::retried};

/// An attack on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeAttack {
    pub(super) kind: AttackKind,
    /// Address of the node.
    pub(super) target: Multiaddr,
    /// Id of the node.
    pub(super) node: NodeId,
    /// Requests a second.
    pub(super) rate: u32,
    pub(super) seconds: u64,
    pub(super) seed: u64,
    /// Second byte of the clients' addresses 10.x.0.0.
    pub(super) network: u8,
    /// Number of clients' subnets.
    pub(super) subnets: usize,
    /// Requests of each identity.
    pub(super) each: u64,
    /// Fraction of a processor that the burner uses.
    pub(super) duty: f64,
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

/// The attacker's report.
///
/// A request is offered when it is due. It is at the node once it was written to a connection, or once the
/// connection opened for it was refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AttackReport {
    /// Due requests.
    pub offered_per_second: f64,
    /// Requests at the node: sent, or refused with their connection.
    pub at_node_per_second: f64,
    /// Part of these: written to a connection.
    pub sent_per_second: f64,
    /// Part of these: refused with their connection, before its handshake.
    pub refused_at_door_per_second: f64,
    /// Part of these: refused in or after the handshake.
    pub refused_in_handshake_per_second: f64,
    /// Requests that did not reach the node because the attacker was too slow.
    pub behind_per_second: f64,
    /// Identities that completed a handshake.
    pub identities: u64,
    /// Processors that it used, on average.
    pub cpus: f64,
    /// Answers by kind or error code; `none` for a stream that ended without an answer.
    pub answers: BTreeMap<String, u64>,
}

#[derive(Default)]
pub(super) struct AttackCounts {
    offered: AtomicU64,
    pub(super) sent: AtomicU64,
    before_handshake: AtomicU64,
    pub(super) during_handshake: AtomicU64,
    behind: AtomicU64,
    pub(super) identities: AtomicU64,
    answers: Mutex<BTreeMap<String, u64>>,
}

impl AttackCounts {
    pub(super) fn answered(&self, what: &str) {
        let mut answers = self.answers.lock();
        match answers.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(answers.insert(what.to_owned(), 1)),
        }
    }
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
    over: AtomicBool,
}

impl NodeAttack {
    /// The requests of the attack, made in advance.
    pub(super) async fn shots(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        if !matches!(self.kind, AttackKind::Forged | AttackKind::Signed) {
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
        let mut draws = Draws::of(self.seed, SHOT_LANES + u64::from(self.network));
        (0..SHOTS).map(|_| shot(&record, now_ms, &mut draws, self.kind == AttackKind::Forged)).collect()
    }

    /// Attacks for the plan's time.
    pub(super) async fn run(self, shots: Vec<Vec<u8>>) -> anyhow::Result<AttackReport> {
        let (began, cpus) = (Instant::now(), cpu_seconds(std::process::id())?);
        let target = socket_address(&self.target)?;
        let counts = match self.kind {
            AttackKind::Burner => burn(self.duty, Duration::from_secs(self.seconds)),
            AttackKind::Packets(shape) => webrtc::attack(&self, target, shape).await?,
            AttackKind::Forged | AttackKind::Signed => self.request(target, shots).await?,
        };
        let seconds = began.elapsed().as_secs_f64();
        Ok(report(&counts, seconds, (cpu_seconds(std::process::id())? - cpus) / seconds))
    }

    async fn request(&self, target: SocketAddr, shots: Vec<Vec<u8>>) -> anyhow::Result<AttackCounts> {
        let lanes = if self.subnets > 1 { self.subnets } else { LANES };
        let count = u32::try_from(lanes)?;
        let gap = Duration::from_secs(1) * count / self.rate.max(1);
        let plan = Arc::new(RequestPlan {
            target,
            fresh: Mutex::new((0..shots.len()).collect()),
            shots,
            reusable: self.kind == AttackKind::Forged,
            each: self.each,
            counts: AttackCounts::default(),
            over: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        let now = Instant::now();
        for number in 0..count {
            let index = if self.subnets > 1 { number } else { 0 };
            let third = u8::try_from(index % 250)?;
            let second = u8::try_from(index / 250).ok().and_then(|more| more.checked_add(2 * self.network));
            let client = Ipv4Addr::new(10, second.context("too many subnets")?, third, 1);
            let pace = RequestPace { next: now + gap * number / count, gap };
            let draws = Draws::of(self.seed, u64::from(number + 1));
            tasks.spawn(Lane { plan: plan.clone(), client, pace, draws }.run());
        }
        sleep_until(now + Duration::from_secs(self.seconds)).await;
        plan.over.store(true, Relaxed);
        tasks.shutdown().await;
        let plan = Arc::into_inner(plan).context("every lane has ended")?;
        Ok(plan.counts)
    }
}

fn report(counts: &AttackCounts, seconds: f64, cpus: f64) -> AttackReport {
    let per_second = |counts: &[&AtomicU64]| {
        let count: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
        (f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds).round()
    };
    let AttackCounts { offered, sent, before_handshake, during_handshake, behind, identities, answers } =
        counts;
    AttackReport {
        offered_per_second: per_second(&[offered]),
        at_node_per_second: per_second(&[sent, before_handshake, during_handshake]),
        sent_per_second: per_second(&[sent]),
        refused_at_door_per_second: per_second(&[before_handshake]),
        refused_in_handshake_per_second: per_second(&[during_handshake]),
        behind_per_second: per_second(&[behind]),
        identities: identities.load(Relaxed),
        cpus: (cpus * 100.0).round() / 100.0,
        answers: answers.lock().clone(),
    }
}

/// Uses a share of one processor.
fn burn(duty: f64, seconds: Duration) -> AttackCounts {
    let began = std::time::Instant::now();
    let work = BURN_PERIOD.mul_f64(duty.clamp(0.0, 1.0));
    while began.elapsed() < seconds {
        let period = std::time::Instant::now();
        while period.elapsed() < work {
            std::hint::spin_loop();
        }
        std::thread::sleep(BURN_PERIOD.saturating_sub(period.elapsed()));
    }
    AttackCounts::default()
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
            counts.offered.fetch_add(1, Relaxed);
            counts.behind.fetch_add(1, Relaxed);
        }
        sleep_until(self.next).await;
        self.next += self.gap;
        counts.offered.fetch_add(1, Relaxed);
    }
}

impl Lane {
    async fn run(mut self) {
        while !self.plan.over.load(Relaxed) {
            self.pace.due(&self.plan.counts).await;
            // A due request without a connection makes one connection attempt.
            let connecting = async {
                let stream = connect(self.client, self.plan.target).await?;
                let identity = Keypair::ed25519_from_bytes(self.draws.bytes::<32>())
                    .map_err(|_| RefusalStage::DuringHandshake)?;
                handshake(stream, &identity).await
            };
            let counts = &self.plan.counts;
            match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(link)) => {
                    counts.identities.fetch_add(1, Relaxed);
                    let (read, write) = link.split();
                    self.talk(read, write).await;
                }
                Ok(Err(RefusalStage::BeforeHandshake)) => drop(counts.before_handshake.fetch_add(1, Relaxed)),
                Ok(Err(RefusalStage::DuringHandshake)) | Err(_) => {
                    counts.during_handshake.fetch_add(1, Relaxed);
                }
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
            while sent < plan.each && !plan.over.load(Relaxed) {
                if sent > 0 {
                    self.pace.due(&plan.counts).await;
                }
                let shot = if open.count() < IN_FLIGHT { plan.fresh.lock().pop_front() } else { None };
                let Some((shot, frame)) = shot.and_then(|shot| Some((shot, plan.shots.get(shot)?))) else {
                    plan.counts.behind.fetch_add(1, Relaxed);
                    // An identity that cannot send leaves its connection.
                    sent += u64::from(sent == 0);
                    continue;
                };
                open.begin(stream, shot);
                let bytes = open_and_send(stream, frame);
                if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
                    // The connection was closed meanwhile, which refused the request too.
                    plan.counts.before_handshake.fetch_add(1, Relaxed);
                    return;
                }
                plan.counts.sent.fetch_add(1, Relaxed);
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
            Ok(NodeFrame::Accepted { .. }) => self.plan.counts.answered("accepted"),
            _ => self.plan.counts.answered("other"),
        }
    }

    /// Counts a refusal. The request is reused if the node refused it before learning of its session.
    fn count_refusal(&self, shot: usize, what: &str) {
        self.plan.counts.answered(what);
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
