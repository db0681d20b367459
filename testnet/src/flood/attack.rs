//! The attacker: a process that sends requests from many identities, each with a connection of its own, as fast as it is
//! told to and can. It takes a fresh identity after some requests, and whenever the node will not have the old one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use baton_keys::SecretSigningKey;
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr};
use baton_proto::{
    codec,
    ids::NodeId,
    limits::MAX_NODE_FRAME_BYTES,
    wire::{ClientFrame, NodeFrame},
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    Done, cpu_seconds,
    shots::{Numbers, Target, forged, signed},
};
use crate::{cli::AttackArgs, output, raw};

/// Identities at once.
const PEERS: usize = 24;
/// Requests of one identity that may be under way.
const IN_FLIGHT: usize = 16;
/// Requests of one identity before it takes a fresh one.
const SHOTS_OF_ONE: u64 = 200;
/// Failed openings in a row after which an identity is given up.
const GIVE_UP_AFTER: u64 = 16;
/// Least life of an identity: making one costs the attacker more than a request.
const LEAST_LIFE: Duration = Duration::from_millis(250);
/// Requests made in advance.
const SHOTS: usize = 4000;
/// Time for one request.
const SHOT_TIMEOUT: Duration = Duration::from_secs(2);

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Attack {
    /// Nothing: as much processor time as one core gives, at the same priority.
    Spin,
    /// Requests with signatures that do not verify.
    Forged,
    /// Signed requests of fresh sessions.
    Signed,
}

impl Attack {
    /// Its name on the command line and in the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Forged => "forged",
            Self::Signed => "signed",
        }
    }
}

/// What an attacker did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AttackReport {
    /// Requests that it began, openings that failed included.
    pub tried_per_second: f64,
    /// Requests that a stream was opened for.
    pub reached_per_second: f64,
    /// Identities used.
    pub identities: u64,
    /// Processors that it used, on average.
    pub cpus: f64,
    /// Answers, by kind or error code; `none` where the stream ended without one.
    pub answers: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Counts {
    tried: AtomicU64,
    reached: AtomicU64,
    identities: AtomicU64,
    answers: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    fn answered(&self, what: &str) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(what.to_owned()).or_default() += 1;
    }
}

/// Everything that the attacker's tasks share.
struct Plan {
    node: NodeId,
    target: Multiaddr,
    shots: Vec<Vec<u8>>,
    seed: u64,
    rate: u32,
    counts: Counts,
    over: AtomicBool,
}

/// The process.
pub(crate) async fn run(args: AttackArgs) -> anyhow::Result<()> {
    // The clients are measured, not who of two local processes gets the processor.
    let _ = rustix::process::nice(19);
    let shots = match args.kind {
        Attack::Spin => Vec::new(),
        kind => make(&args, kind).await?,
    };
    let plan = Arc::new(Plan {
        node: args.node,
        target: args.target.clone(),
        shots,
        seed: args.seed,
        rate: args.rate.max(1),
        counts: Counts::default(),
        over: AtomicBool::new(false),
    });
    output::line("{\"event\":\"ready\"}");
    let began = (std::time::Instant::now(), cpu_seconds(std::process::id())?);
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut tasks = JoinSet::new();
    if args.kind == Attack::Spin {
        let plan = plan.clone();
        tasks.spawn_blocking(move || {
            while !plan.over.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
    } else {
        for number in 0..PEERS {
            tasks.spawn(peer(plan.clone(), number));
        }
    }
    sleep_until(end).await;
    plan.over.store(true, Relaxed);
    let seconds = began.0.elapsed().as_secs_f64();
    let cpus = (cpu_seconds(std::process::id())? - began.1) / seconds;
    let per_second = |count: &AtomicU64| {
        let count = u32::try_from(count.load(Relaxed)).unwrap_or(u32::MAX);
        (f64::from(count) / seconds).round()
    };
    let counts = &plan.counts;
    let report = AttackReport {
        tried_per_second: per_second(&counts.tried),
        reached_per_second: per_second(&counts.reached),
        identities: counts.identities.load(Relaxed),
        cpus: (cpus * 100.0).round() / 100.0,
        answers: counts.answers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    output::line(&serde_json::to_string(&Done { event: "done".to_owned(), report })?);
    // Whoever started this process ends it; what is still under way does not matter.
    tasks.shutdown().await;
    Ok(())
}

async fn make(args: &AttackArgs, kind: Attack) -> anyhow::Result<Vec<Vec<u8>>> {
    let seed = SecretSigningKey::generate().expose_seed();
    let (mesh, _) = Mesh::spawn(seed, MeshConfig::dialer("flood")).await?;
    let record = raw::node_record(&mesh, args.node, std::slice::from_ref(&args.target)).await?;
    mesh.shutdown().await;
    let model = record.models.first().context("the node serves a model")?.model;
    let now_ms = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let target = Target { record: &record, model, now_ms };
    let mut numbers = Numbers::new(args.seed);
    let build = if kind == Attack::Forged { forged } else { signed };
    (0..SHOTS).map(|_| build(&target, &mut numbers)).collect()
}

/// One attacker after another, until it is over.
async fn peer(plan: Arc<Plan>, number: usize) {
    let gap = Duration::from_secs(1) * u32::try_from(PEERS).unwrap_or(1) / plan.rate;
    let mut next = Instant::now();
    let mut shot = number;
    let mut generation = 0u64;
    while !plan.over.load(Relaxed) {
        let born = Instant::now();
        if let Ok(mesh) = identity(&plan, number, generation).await {
            plan.counts.identities.fetch_add(1, Relaxed);
            fire(&plan, &mesh, (gap, &mut next), &mut shot).await;
            mesh.shutdown().await;
        }
        generation += 1;
        sleep_until(born + LEAST_LIFE).await;
    }
}

/// A mesh with a fresh key.
async fn identity(plan: &Plan, number: usize, generation: u64) -> anyhow::Result<MeshHandle> {
    let mut numbers = Numbers::new(plan.seed ^ generation.rotate_left(32) ^ ((number as u64 + 1) << 16));
    let seed = SecretSigningKey::from_seed(&numbers.bytes()).expose_seed();
    let (mesh, _) = Mesh::spawn(seed, MeshConfig::dialer("flood")).await?;
    Ok(mesh)
}

/// Sends with one identity until it has sent its share or is no longer let in.
async fn fire(plan: &Arc<Plan>, mesh: &MeshHandle, (gap, next): (Duration, &mut Instant), shot: &mut usize) {
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let failed = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..SHOTS_OF_ONE {
        if plan.over.load(Relaxed) || failed.load(Relaxed) >= GIVE_UP_AFTER {
            break;
        }
        // Whoever is late does not catch up by a burst.
        *next = (*next + gap).max(Instant::now() - gap * 4);
        sleep_until(*next).await;
        let Ok(slot) = slots.clone().acquire_owned().await else { break };
        *shot = (*shot + PEERS) % plan.shots.len().max(1);
        let (plan, mesh, failed, shot) = (plan.clone(), mesh.clone(), failed.clone(), *shot);
        tasks.spawn(async move {
            let _slot = slot;
            plan.counts.tried.fetch_add(1, Relaxed);
            match send(&plan, &mesh, shot).await {
                Some(()) => failed.store(0, Relaxed),
                None => drop(failed.fetch_add(1, Relaxed)),
            }
        });
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

/// Sends one request and takes the first frame of its answer; none when no stream could be opened.
async fn send(plan: &Plan, mesh: &MeshHandle, shot: usize) -> Option<()> {
    let deadline = Instant::now() + SHOT_TIMEOUT;
    let addresses = std::slice::from_ref(&plan.target);
    let Ok(mut stream) = mesh.open(plan.node, addresses, deadline).await else {
        plan.counts.answered("not let in");
        return None;
    };
    plan.counts.reached.fetch_add(1, Relaxed);
    let sent = match plan.shots.get(shot) {
        Some(bytes) => stream.send_by(bytes, deadline).await,
        None => stream.send_by(&codec::encode(&ClientFrame::NodeRecord), deadline).await,
    };
    // A refusal may be there although the rest of the request was not wanted.
    drop(sent);
    let answer = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await;
    let frame = answer.ok().flatten().map(|bytes| codec::decode::<NodeFrame>(&bytes, MAX_NODE_FRAME_BYTES));
    match frame {
        Some(Ok(NodeFrame::Refused { code, .. })) => plan.counts.answered(code.name()),
        Some(Ok(NodeFrame::Accepted { .. })) => {
            plan.counts.answered("accepted");
            // It reads its answer, as somebody would who wants the node to work.
            while let Ok(Some(_)) = stream.recv_by(MAX_NODE_FRAME_BYTES, deadline).await {}
        }
        Some(_) => plan.counts.answered("other"),
        None => plan.counts.answered("none"),
    }
    Some(())
}
