//! Reads from any aggregator that has the content.
//!
//! Owns the course of a read. It asks aggregators in the order of their health, and a further one beside a
//! slow one. It asks all of them before it repeats any; the first right answer ends the read.
//! [`retry`](super::retry) decides after each round; [`fetch`](super::fetch) makes one request.
//!
//! Cancel safe: everything runs in the caller's future, and dropping it ends all requests.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use baton_proto::{ids::BlobId, store::StoreError};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    HttpStoreInner, RetryPolicy,
    answer::ReadFault,
    fetch::{Motion, after, bounded},
    retry::{ReadSituation, ReadStep, after_reads},
    verify::ContentCheck,
};

/// Most parallel requests for one object: each may send all of it.
const MAX_PARALLEL: usize = 3;

/// The kind of request.
#[derive(Debug)]
pub(super) enum Verb {
    Get,
    Head,
}

/// The request to every aggregator, and the conditions on the answer.
#[derive(Debug)]
pub(super) struct ReadPlan {
    pub(super) verb: Verb,
    pub(super) path: String,
    pub(super) limit: u64,
    pub(super) check: ContentCheck,
    /// The blob that a 404 refers to.
    pub(super) id: Option<BlobId>,
}

impl ReadPlan {
    /// A GET of a whole object.
    pub(super) fn get(path: String, check: ContentCheck, limit: u64) -> Self {
        Self { verb: Verb::Get, path, limit, check, id: None }
    }
}

/// The state that the requests of one read share.
#[derive(Debug)]
pub(super) struct ReadState {
    start: Instant,
    policy: RetryPolicy,
    /// Bytes that earn time: announced within the limit, or received.
    earned: AtomicU64,
}

impl ReadState {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Self { start: Instant::now(), policy, earned: AtomicU64::new(0) }
    }

    /// The end of the whole read, all repetitions included.
    fn deadline(&self) -> Instant {
        let moving = self.policy.moving(self.earned.load(Ordering::Relaxed));
        after(self.start, self.policy.base_timeout.saturating_mul(2).saturating_add(moving))
    }

    fn left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    pub(super) fn earn(&self, bytes: u64) {
        self.earned.fetch_max(bytes, Ordering::Relaxed);
    }
}

impl HttpStoreInner {
    /// Runs a plan within its deadline.
    pub(super) async fn read(&self, plan: &ReadPlan) -> Result<Vec<u8>, StoreError> {
        let run = ReadState::new(self.policy);
        let rounds = Box::pin(self.rounds(plan, &run));
        bounded(|| run.deadline(), rounds).await.unwrap_or_else(|| {
            Err(StoreError::Unavailable { reason: "timed out".to_owned(), retry_after: None })
        })
    }

    async fn rounds(&self, plan: &ReadPlan, run: &ReadState) -> Result<Vec<u8>, StoreError> {
        let mut order = self.aggregators.order();
        let mut faults = BTreeMap::new();
        let mut failed_rounds = 0;
        let mut round: u32 = 0;
        loop {
            let failed = match self.race(plan, run, &order).await {
                Ok(fetched) => return Ok(fetched),
                Err(failed) => failed,
            };
            let busy = failed
                .iter()
                .any(|(_, fault)| matches!(fault, ReadFault::Busy { .. } | ReadFault::Unreachable { .. }));
            faults.extend(failed);
            let situation = ReadSituation {
                round,
                failed_rounds,
                budget: self.policy.retries,
                missing_left: self.missing_left(plan),
                left: run.left(),
                jitter: rand::random(),
            };
            failed_rounds += u32::from(busy);
            match after_reads(&faults, situation) {
                ReadStep::Fail(error) => return Err(error),
                ReadStep::Again { wait, sources } => {
                    sleep(wait).await;
                    order = self.aggregators.order();
                    order.retain(|source| sources.contains(source));
                    round = round.saturating_add(1);
                }
            }
        }
    }

    /// How long a 404 may still be a cache's.
    fn missing_left(&self, plan: &ReadPlan) -> Duration {
        let now = Instant::now();
        let until = plan.id.and_then(|id| self.recent().until(id, now));
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Asks these aggregators until one has it or all fail. Adds the next when one fails or is slow.
    async fn race(
        &self,
        plan: &ReadPlan,
        run: &ReadState,
        order: &[usize],
    ) -> Result<Vec<u8>, Vec<(usize, ReadFault)>> {
        let motions: Vec<Motion> = order.iter().map(|_| Motion::default()).collect();
        let began = Instant::now();
        let mut lanes = order.iter().zip(&motions).enumerate().map(|(place, (source, motion))| {
            let attempt = Box::pin(self.attempt(plan, *source, run, motion));
            async move { (place, *source, attempt.await) }
        });
        let mut running = FuturesUnordered::new();
        let mut faults = Vec::new();
        running.extend(lanes.next());
        let delay = self.policy.hedge_delay(order.first().and_then(|first| self.aggregators.latency(*first)));
        let next_hedge = || after(Instant::now(), delay);
        let mut hedge_at = next_hedge();
        let mut moved = 0;
        loop {
            let may_hedge = lanes.len() > 0 && running.len() < MAX_PARALLEL;
            tokio::select! {
                biased;
                ended = running.next() => match ended {
                    Some((place, _, Ok(fetched))) => {
                        self.note_win(order, &faults, place, began);
                        return Ok(fetched);
                    }
                    Some((_, source, Err(fault))) => {
                        faults.push((source, fault));
                        running.extend(lanes.next());
                        hedge_at = next_hedge();
                    }
                    None => return Err(faults),
                },
                () = sleep_until(hedge_at), if may_hedge => {
                    hedge_at = next_hedge();
                    // Bytes that still arrive are better than another request for them.
                    let now_moved = motions.iter().map(Motion::bytes).sum();
                    let still = std::mem::replace(&mut moved, now_moved) == now_moved;
                    if still && !motions.iter().any(Motion::is_verifying) {
                        running.extend(lanes.next());
                    }
                }
            }
        }
    }

    /// Notes a longer latency for silent sources that were asked before the winner.
    fn note_win(&self, order: &[usize], faults: &[(usize, ReadFault)], winner: usize, began: Instant) {
        for source in order.iter().take(winner) {
            if !faults.iter().any(|(failed, _)| failed == source) {
                self.aggregators.note_overtaken(*source, began.elapsed());
            }
        }
    }
}
