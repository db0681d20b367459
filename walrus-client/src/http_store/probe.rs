//! Searches for a blob whose PUT is in doubt.
//!
//! The search asks all aggregators, for longer than caches on the way keep a 404. Its own first request may
//! have put a 404 there. [`retry`](super::retry) decides the result.

use std::time::Duration;

use baton_proto::ids::BlobId;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};

use super::{
    HttpStoreInner,
    answer::ReadFault,
    fetch::{Motion, after},
    read::{ReadPlan, ReadState},
    reads::head_plan,
    retry::{ProbeAnswer, ProbeOutcome, ProbeStep, after_probe_pass},
    verify::ContentCheck,
};

/// Longest wait for one aggregator in one pass: the others' answers may suffice.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

impl HttpStoreInner {
    /// Searches for a blob of this length at all aggregators.
    pub(super) async fn probe(&self, id: BlobId, length: u64) -> ProbeOutcome {
        let plan = head_plan(id, ContentCheck::Length(length));
        let until = after(Instant::now(), self.policy.probe_window);
        let mut pass: u32 = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let answers = self.ask_all(&plan).await;
            match after_probe_pass(&answers, pass, left, rand::random()) {
                ProbeStep::Done(probed) => return probed,
                ProbeStep::Again(wait) => {
                    sleep(wait.min(until.saturating_duration_since(Instant::now()))).await;
                    pass = pass.saturating_add(1);
                }
            }
        }
    }

    /// Asks all aggregators once, in parallel, until one has it.
    async fn ask_all(&self, plan: &ReadPlan) -> Vec<ProbeAnswer> {
        let run = ReadState::new(self.policy);
        let run = &run;
        let mut requests: FuturesUnordered<_> = self
            .aggregators
            .order()
            .into_iter()
            .map(|index| async move {
                let motion = Motion::default();
                let asked = self.attempt(plan, index, run, &motion);
                match timeout(LOOK_TIMEOUT.min(self.policy.base_timeout), asked).await {
                    Ok(Ok(_)) => ProbeAnswer::Present,
                    Ok(Err(ReadFault::Missing)) => ProbeAnswer::Absent,
                    Ok(Err(ReadFault::Unreachable { .. })) => ProbeAnswer::Unreachable,
                    Ok(Err(_)) | Err(_) => ProbeAnswer::Unknown,
                }
            })
            .collect();
        let mut answers = Vec::new();
        while let Some(one) = requests.next().await {
            answers.push(one);
            if one == ProbeAnswer::Present {
                break;
            }
        }
        answers
    }
}
