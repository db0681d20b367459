//! The attacker: a separate process that offers a fixed rate of requests, from one client or from many. It connects as
//! a proxy of the node does, and names a client of another subnet in each lane.
//!
//! It keeps its own cost small: requests are made in advance, and connections are implemented by hand. One
//! thread of the lowest priority does all work.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use baton_keys::SecretSigningKey;
use baton_mesh::{Mesh, MeshConfig, Multiaddr, Reach};
use baton_proto::{codec, ids::NodeId, limits::MAX_NODE_FRAME_BYTES, wire::NodeFrame};
use clap::Args;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::identity::Keypair;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    AttackEvent,
    shots::{Numbers, Target, forged, signed},
    webrtc::{self, Shape},
    wire::{Piece, RefusalStage, connect, first_frame, handshake, next_piece, open_and_send, socket_address},
};
use crate::{output, process::cpu_seconds, raw};

/// Arguments of the attacker.
#[derive(Debug, Args)]
pub(crate) struct AttackArgs {
    /// Kind of attack
    #[arg(value_enum)]
    pub(crate) kind: Attack,
    /// Address of the node
    #[arg(long)]
    pub(crate) target: Multiaddr,
    /// Id of the node
    #[arg(long)]
    pub(crate) node: NodeId,
    #[arg(long)]
    pub(crate) rate: u32,
    #[arg(long)]
    pub(crate) seconds: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    /// Second byte of the clients' addresses 10.x.0.0
    #[arg(long)]
    pub(crate) network: u8,
    /// Number of clients' subnets
    #[arg(long)]
    pub(crate) subnets: usize,
    /// Requests of each identity
    #[arg(long)]
    pub(crate) each: u64,
    /// Fraction of a processor that the burner uses
    #[arg(long, default_value_t = 1.0)]
    pub(crate) duty: f64,
}

/// Concurrent connections of an attacker with one address. One with many addresses has one connection from
/// each.
const LANES: usize = 64;
/// Unanswered requests of one connection.
const IN_FLIGHT: usize = 16;
/// Requests made in advance. One is sent again only if the node refused it before learning of its session.
const SHOTS: u32 = 8000;
/// Tries to get the node's record, and the pause between two.
const MOST_ASKED: u32 = 40;
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// Time for a connection and its handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the last answers on a connection that sends no more.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Period of the burner's work and sleep.
const BURN_PERIOD: Duration = Duration::from_millis(10);

/// Kind of attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Attack {
    /// No requests: as much processor time as the attacks took, at the same priority.
    Burner,
    /// Requests with signatures that do not verify.
    Forged,
    /// Signed requests, each of a fresh session.
    Signed,
    /// Packets of SCTP over WebRTC with fragments of a byte, of messages that never end.
    #[serde(rename = "tiny-pieces")]
    TinyPieces,
    /// Packets of SCTP over WebRTC with chunks without data.
    #[serde(rename = "empty-chunks")]
    EmptyChunks,
}

impl Attack {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Burner => "burner",
            Self::Forged => "forged",
            Self::Signed => "signed",
            Self::TinyPieces => "tiny-pieces",
            Self::EmptyChunks => "empty-chunks",
        }
    }

    /// The shape of its packets, if it sends no requests but packets over WebRTC.
    pub(super) fn shape(self) -> Option<Shape> {
        match self {
            Self::TinyPieces => Some(Shape::TinyPieces),
            Self::EmptyChunks => Some(Shape::EmptyChunks),
            Self::Burner | Self::Forged | Self::Signed => None,
        }
    }
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
        let mut answers = lock(&self.answers);
        match answers.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(answers.insert(what.to_owned(), 1)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shared state of the lanes.
struct Plan {
    target: SocketAddr,
    shots: Vec<Vec<u8>>,
    /// Requests that are still unknown to the node.
    fresh: Mutex<VecDeque<usize>>,
    /// Whether a request may be sent again after any refusal.
    reusable: bool,
    seed: u64,
    /// Requests of one identity.
    each: u64,
    /// Time between two requests of one lane.
    gap: Duration,
    counts: AttackCounts,
    over: AtomicBool,
}

/// Runs the attacker process.
pub(crate) async fn run(args: AttackArgs) -> anyhow::Result<()> {
    let target = socket_address(&args.target)?;
    let shots = match args.kind {
        Attack::Burner | Attack::TinyPieces | Attack::EmptyChunks => Vec::new(),
        kind => make(&args, kind).await?,
    };
    output::line("{\"event\":\"ready\"}");
    let (duty, seconds) = (args.duty, Duration::from_secs(args.seconds));
    let began = (std::time::Instant::now(), cpu_seconds(std::process::id())?);
    let attacking = std::thread::spawn(move || {
        // The priority is this thread's own. The measurement is about the node, not about two local processes
        // that compete for a processor.
        let _ = rustix::process::nice(19);
        if args.kind == Attack::Burner {
            burn(duty, seconds);
            return anyhow::Ok(AttackCounts::default());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match args.kind.shape() {
            Some(shape) => runtime.block_on(webrtc::attack(&args, target, shape)),
            None => runtime.block_on(attack(&args, target, shots)),
        }
    });
    let counts = tokio::task::spawn_blocking(move || attacking.join()).await?;
    let counts = counts.ok().context("the attacker panicked")??;
    let seconds = began.0.elapsed().as_secs_f64();
    let cpus = (cpu_seconds(std::process::id())? - began.1) / seconds;
    let report = report(&counts, seconds, cpus);
    output::line(&serde_json::to_string(&AttackEvent { event: "done".to_owned(), report })?);
    Ok(())
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
        answers: lock(answers).clone(),
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

async fn make(args: &AttackArgs, kind: Attack) -> anyhow::Result<Vec<Vec<u8>>> {
    let seed = SecretSigningKey::generate().expose_seed();
    let near = MeshConfig {
        reach: Some(Reach::Loopback),
        discovery: false,
        nat: false,
        ..MeshConfig::dialer("flood")
    };
    let (mesh, _) = Mesh::spawn(seed, near).await?;
    let mut asked = 0;
    let record = loop {
        match raw::node_record(&mesh, args.node, std::slice::from_ref(&args.target)).await {
            Ok(record) => break record,
            // The honest clients may just have used the allowance of this address, which refills.
            Err(error) if asked >= MOST_ASKED => return Err(error),
            Err(_) => sleep(ASK_PAUSE).await,
        }
        asked += 1;
    };
    mesh.shutdown().await;
    let model = record.models.first().context("the node serves a model")?.model;
    let now_ms = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let target = Target { record: &record, model, now_ms };
    let mut numbers = Numbers::new(args.seed);
    let build = if kind == Attack::Forged { forged } else { signed };
    (0..SHOTS).map(|_| build(&target, &mut numbers)).collect()
}

async fn attack(args: &AttackArgs, target: SocketAddr, shots: Vec<Vec<u8>>) -> anyhow::Result<AttackCounts> {
    let lanes = if args.subnets > 1 { args.subnets } else { LANES };
    let count = u32::try_from(lanes)?;
    let plan = Arc::new(Plan {
        target,
        fresh: Mutex::new((0..shots.len()).collect()),
        shots,
        reusable: args.kind == Attack::Forged,
        seed: args.seed,
        each: args.each,
        gap: Duration::from_secs(1) * count / args.rate.max(1),
        counts: AttackCounts::default(),
        over: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    let now = Instant::now();
    for number in 0..count {
        let index = if args.subnets > 1 { number } else { 0 };
        let third = u8::try_from(index % 250)?;
        let second = u8::try_from(index / 250).ok().and_then(|more| more.checked_add(2 * args.network));
        let client = Ipv4Addr::new(10, second.context("too many subnets")?, third, 1);
        let begins = now + plan.gap * number / count;
        let numbers = Numbers::new(plan.seed ^ u64::from(number + 1).rotate_left(40));
        let pace = Pace { next: begins, gap: plan.gap };
        tasks.spawn(Lane { plan: plan.clone(), client, pace, numbers }.run());
    }
    sleep_until(now + Duration::from_secs(args.seconds)).await;
    plan.over.store(true, Relaxed);
    tasks.shutdown().await;
    let plan = Arc::into_inner(plan).context("every lane has ended")?;
    Ok(plan.counts)
}

/// Opens one connection after another, at an even pace.
struct Lane {
    plan: Arc<Plan>,
    client: Ipv4Addr,
    pace: Pace,
    numbers: Numbers,
}

/// The times of a lane's requests.
pub(super) struct Pace {
    pub(super) next: Instant,
    pub(super) gap: Duration,
}

impl Pace {
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
                let identity = Keypair::ed25519_from_bytes(self.numbers.bytes::<32>())
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
                let shot = if open.count() < IN_FLIGHT { lock(&plan.fresh).pop_front() } else { None };
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
    plan: Arc<Plan>,
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
        lock(&self.streams).len()
    }

    fn begin(&self, stream: u32, shot: usize) {
        lock(&self.streams).insert(stream, Stream { shot, bytes: Vec::new(), answered: false });
    }

    /// Reads every answer to its end, to make the node do all its work.
    fn receive(&self, piece: &Piece) {
        let mut streams = lock(&self.streams);
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

    /// AttackCounts a refusal. The request is reused if the node refused it before learning of its session.
    fn count_refusal(&self, shot: usize, what: &str) {
        self.plan.counts.answered(what);
        if self.plan.reusable || matches!(what, "none" | "RateLimited" | "Busy") {
            lock(&self.plan.fresh).push_back(shot);
        }
    }
}

impl Drop for OpenStreams {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *lock(&self.streams));
        for stream in streams.into_values().filter(|stream| !stream.answered) {
            self.count_refusal(stream.shot, "none");
        }
    }
}
