//! Decoys: throw-away sessions with ordinary messages, sent to several nodes to compare their answers.
//!
//! A decoy takes the path of every turn, so a node cannot tell it from the owner's turns. It begins at a random
//! time after the budget allows it. If two nodes contradict each other, more nodes decide; the liar is avoided,
//! and a file proves the contradiction. Nothing of the owner's sessions is in it. The client calls this module,
//! and [`crate::decoy_ledger`] decides for it.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use baton_keys::{files::FileSecret, session::SessionRoot};
use baton_proto::{
    contradiction::{Contradiction, MAX_CONTRADICTION_SESSIONS, SignedAnswer},
    ids::NodeId,
};
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    core::{Core, new_device},
    decoy_ledger::{
        DecoyAccount,
        draws::Draws,
        file,
        plan::DecoyPlan,
        verdict::{Answers, DecoyVerdict, judge},
    },
    error::ClientError,
    event::{TurnInput, TurnOutcome},
    network::{choose::output_cap, nodes::native::NativeNode, reputation::NodeFailure},
    session::{
        journal::{JournalLocation, file_error},
        open_session::Session,
        state::SessionHeader,
    },
    sync::transfer,
    turn,
};

/// Most nodes that one decoy is sent to: two, and those that decide between them.
const MAX_NODES: usize = 6;
/// The ledger is written at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// How often the idle task looks whether its client still exists.
const IDLE_TICK: Duration = Duration::from_secs(60 * 60);
/// Time for the background work of a decoy's last turn, beyond its author's time to store it.
const SETTLE_GRACE: Duration = Duration::from_secs(30);

/// The result of one decoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecoyReport {
    /// The nodes that answered at least one turn, in the order of asking.
    pub nodes: Vec<NodeId>,
    /// Turns of all sessions.
    pub turns: u64,
    /// Tokens of all turns.
    pub tokens: u64,
    /// Nodes that contradict at least two others. The client avoids them for 30 days.
    pub liars: Vec<NodeId>,
    /// Nodes that cut the history openly, although it fits their context. The client avoids them for a day.
    pub cutters: Vec<NodeId>,
    /// Two nodes that contradict each other, without a third to decide.
    pub undecided: Option<(NodeId, NodeId)>,
    /// The files that prove it; none for a client without a home.
    pub proofs: Vec<PathBuf>,
}

/// Starts the task that sends decoys, unless the client sends none.
pub(crate) fn spawn(core: &Arc<Core>) {
    let Some(account) = core.decoys.clone().filter(|account| account.policy().share > 0) else { return };
    let task: JoinHandle<()> = tokio::spawn(run(Arc::downgrade(core), account, core.cancel.clone()));
    core.keep_endless(task);
}

/// Sends decoys when they are due, until the client ends. Holds no client while it waits.
async fn run(core: Weak<Core>, account: Arc<DecoyAccount>, cancel: CancellationToken) {
    let (policy, mut draws) = (account.policy(), Draws::random());
    // The budget may be left from an earlier process.
    let mut look = true;
    while core.strong_count() > 0 {
        if !look {
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                () = account.noted.notified() => {}
                () = sleep(IDLE_TICK) => continue,
            }
        }
        look = false;
        let ready = account.is_ready();
        let wait = if ready { draws.time_between(policy.min_delay, policy.max_delay) } else { WRITE_EVERY };
        save(&account).await;
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            () = sleep(wait) => {}
        }
        if !ready {
            continue;
        }
        let Some(core) = core.upgrade() else { break };
        let sent = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            sent = Box::pin(run_if_due(&core)) => sent,
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a decoy ended early");
        }
    }
    save(&account).await;
}

async fn save(account: &Arc<DecoyAccount>) {
    let account = account.clone();
    if let Err(error) = tokio::task::spawn_blocking(move || account.save()).await {
        tracing::warn!(%error, "the ledger of decoys was not written");
    }
}

/// As [`Client::proofs`](crate::Client::proofs). Blocking.
pub(crate) fn proofs(core: &Core) -> Result<Vec<PathBuf>, ClientError> {
    let Some(home) = &core.config.home else { return Ok(Vec::new()) };
    file::proofs(home).map_err(|source| file_error("list", home, source))
}

/// As [`Client::check_nodes`](crate::Client::check_nodes).
pub(crate) async fn run_if_due(core: &Arc<Core>) -> Result<Option<DecoyReport>, ClientError> {
    let Some(account) = core.decoys.clone() else { return Ok(None) };
    let Ok(_running) = account.running.try_lock() else { return Ok(None) };
    if !account.is_due() {
        return Ok(None);
    }
    let (policy, mut draws) = (account.policy(), Draws::random());
    let Some(plan) = account.ledger().plan(policy.max_pause, &mut draws) else { return Ok(None) };
    core.directory.refresh().await;
    let candidates = core.directory.native_nodes(plan.model);
    let ids = candidates.iter().map(|candidate| candidate.node).collect();
    let order = account.ledger().order_to_check(ids, &mut draws);
    if order.len() < 2 {
        return Ok(None);
    }
    account.ledger().note_start();
    let mut decoy = Decoy {
        core,
        account: &account,
        max_output_tokens: plan.max_output_tokens,
        plan,
        candidates,
        testimonies: Vec::new(),
    };
    let result = decoy.ask_until_decided(order, &mut draws).await;
    let report = match result {
        Ok(verdict) => decoy.conclude(&verdict).await.map(Some),
        Err(error) => Err(error),
    };
    decoy.settle();
    report
}

/// The answers of one node, with the session that has them.
struct Testimony {
    node: NativeNode,
    core: Arc<Core>,
    session: Arc<Session>,
    outcomes: Vec<TurnOutcome>,
}

impl Testimony {
    /// Its answers up to the first for which the node used only a part of the history: from there on, its
    /// request was another.
    fn answers(&self) -> Answers<'_> {
        let whole = self.outcomes.iter().take_while(|outcome| outcome.receipt.window_from == 0);
        whole
            .map(|outcome| SignedAnswer {
                text: &outcome.text,
                finish: outcome.finish,
                tokens: outcome.receipt.tokens.output,
            })
            .collect()
    }

    /// Whether it used only a part of the history in a turn, although the tokens that another node counted
    /// fit its context with the answer.
    fn cut_openly(&self, others: &[Self], max_output_tokens: u32) -> bool {
        let context = self.node.context_tokens;
        let room = context.saturating_sub(max_output_tokens.min(context / 2));
        self.outcomes.iter().enumerate().any(|(turn, outcome)| {
            let whole = others.iter().filter_map(|other| other.outcomes.get(turn));
            let mut whole = whole.filter(|other| other.receipt.window_from == 0);
            outcome.receipt.window_from > 0 && whole.any(|other| other.receipt.tokens.input <= room)
        })
    }
}

/// A decoy under way.
struct Decoy<'a> {
    core: &'a Arc<Core>,
    account: &'a DecoyAccount,
    plan: DecoyPlan,
    /// The same for all nodes, or the requests would differ.
    max_output_tokens: u32,
    candidates: Vec<NativeNode>,
    testimonies: Vec<Testimony>,
}

impl Decoy<'_> {
    /// Asks two nodes, and more while their answers leave a contradiction open.
    async fn ask_until_decided(
        &mut self,
        order: Vec<NodeId>,
        draws: &mut Draws,
    ) -> Result<DecoyVerdict, ClientError> {
        let mut left = order;
        let mut asked = 0;
        loop {
            let verdict = self.judge();
            let turns = match verdict {
                DecoyVerdict::Decided { .. } => return Ok(verdict),
                DecoyVerdict::Agreed if self.answered() >= 2 => return Ok(verdict),
                DecoyVerdict::Agreed => self.plan.turns.len(),
                DecoyVerdict::Open { turn, .. } => {
                    left = self.account.ledger().order_to_decide(left, draws);
                    turn + 1
                }
            };
            let Some(node) = self.next_of(&mut left) else { return Ok(verdict) };
            if asked == MAX_NODES {
                return Ok(verdict);
            }
            if asked > 0 {
                // The same messages at the same time would show that they belong together.
                sleep(draws.time_between(Duration::ZERO, self.account.policy().max_pause)).await;
            }
            asked += 1;
            let testimony = Box::pin(self.ask(node, turns)).await?;
            self.testimonies.push(testimony);
        }
    }

    /// Nodes that answered at least one turn. A node that answered none is no witness.
    fn answered(&self) -> usize {
        self.testimonies.iter().filter(|testimony| !testimony.outcomes.is_empty()).count()
    }

    /// Takes the next node. The first sets the limit of tokens for all.
    fn next_of(&mut self, left: &mut Vec<NodeId>) -> Option<NativeNode> {
        while !left.is_empty() {
            let node = left.remove(0);
            let Some(native) = self.candidates.iter().find(|candidate| candidate.node == node).copied()
            else {
                continue;
            };
            let cap = output_cap(self.max_output_tokens, native.max_output_tokens);
            if self.answered() == 0 {
                self.max_output_tokens = cap;
            }
            if cap == self.max_output_tokens {
                return Some(native);
            }
        }
        None
    }

    /// Sends the first turns of the decoy to one node. A failed turn ends the session.
    async fn ask(&self, node: NativeNode, turns: usize) -> Result<Testimony, ClientError> {
        let core = decoy_core(self.core);
        let now_ms = core.now_ms();
        let header = SessionHeader {
            n_shards: core.config.shards.get(),
            branch: None,
            device_id: new_device(),
            created_ms: now_ms,
            system: self.plan.system.clone(),
            project: None,
        };
        let session = core.begin(SessionRoot::generate(), header).await?;
        // A new session has no other writer.
        session.indexes(|view| view.note_look(now_ms, true));
        self.account.ledger().note_decoy_session();
        let mut outcomes = Vec::new();
        for planned in self.plan.turns.iter().take(turns) {
            sleep(planned.pause).await;
            let input = TurnInput {
                sampling: self.plan.sampling.clone(),
                max_output_tokens: self.max_output_tokens,
                model: Some(self.plan.model.to_string()),
                node: Some(node.node),
                // An answer that another attempt continued would be another request.
                max_attempts: 1,
                ..TurnInput::user(planned.text.clone())
            };
            match turn::turn(&core, &session, input, |_| {}).await {
                Ok(outcome) => {
                    let tokens = tokens_of(&outcome);
                    self.account.ledger().note_decoy_turn(tokens, outcome.receipt.price);
                    outcomes.push(outcome);
                }
                Err(error) => {
                    tracing::debug!(node = %node.node, %error, "a node did not answer a decoy");
                    turn::abandon(&core, &session).await?;
                    break;
                }
            }
        }
        Ok(Testimony { node, core, session, outcomes })
    }

    fn judge(&self) -> DecoyVerdict {
        judge(&self.testimonies.iter().map(Testimony::answers).collect::<Vec<_>>())
    }

    /// Acts on the verdict: records agreement, avoids liars, and keeps proofs.
    async fn conclude(&self, verdict: &DecoyVerdict) -> Result<DecoyReport, ClientError> {
        let now_ms = self.core.now_ms();
        let all = || self.testimonies.iter().filter(|testimony| !testimony.outcomes.is_empty());
        let node_of = |position: usize| self.testimonies.get(position).map(|testimony| testimony.node.node);
        let mut report = DecoyReport {
            nodes: all().map(|testimony| testimony.node.node).collect(),
            turns: all().map(|testimony| testimony.outcomes.len() as u64).sum(),
            tokens: all().flat_map(|testimony| testimony.outcomes.iter().map(tokens_of)).sum(),
            liars: Vec::new(),
            cutters: Vec::new(),
            undecided: None,
            proofs: Vec::new(),
        };
        let cuts = |testimony: &&Testimony| testimony.cut_openly(&self.testimonies, self.max_output_tokens);
        for cutter in all().filter(cuts) {
            tracing::warn!(node = %cutter.node.node, "a node used only a part of a history that fits its context");
            self.core.directory.failed(cutter.node.node, NodeFailure::Lied, 0);
            report.cutters.push(cutter.node.node);
        }
        match verdict {
            DecoyVerdict::Agreed if self.answered() >= 2 => {
                let turns = self.plan.turns.len();
                let mut ledger = self.account.ledger();
                for testimony in all().filter(|testimony| testimony.outcomes.len() == turns) {
                    match testimony.answers().len() == turns {
                        true => ledger.note_agreement(testimony.node.node, now_ms),
                        // A small context: its later answers are to other requests.
                        false => ledger.note_check(testimony.node.node, now_ms),
                    }
                }
            }
            DecoyVerdict::Agreed => {}
            DecoyVerdict::Decided { turn, witnesses, liars } => {
                for liar in liars {
                    let (proof, decided) = self.proof(*liar, witnesses, *turn).await?;
                    report.proofs.extend(self.keep(*liar, proof).await?);
                    if let Some(node) = node_of(*liar).filter(|_| decided) {
                        tracing::warn!(%node, "a node's answer contradicts those of others; `baton nodes --proofs` lists the proof");
                        self.account.ledger().note_contradiction(true);
                        self.core.directory.failed(node, NodeFailure::Contradicted, 0);
                        report.liars.push(node);
                    }
                }
                for node in witnesses.iter().filter_map(|witness| node_of(*witness)) {
                    self.account.ledger().note_agreement(node, now_ms);
                }
            }
            DecoyVerdict::Open { turn, pair } => {
                let (proof, _) = self.proof(pair.0, &[pair.1], *turn).await?;
                report.proofs.extend(self.keep(pair.0, proof).await?);
                self.account.ledger().note_contradiction(false);
                report.undecided = node_of(pair.0).zip(node_of(pair.1));
                for node in [pair.0, pair.1].into_iter().filter_map(node_of) {
                    self.account.ledger().note_check(node, now_ms);
                }
            }
        }
        Ok(report)
    }

    /// The proof against one node, checked as anyone would check it, and whether it decides.
    async fn proof(
        &self,
        accused: usize,
        witnesses: &[usize],
        turn: usize,
    ) -> Result<(Contradiction, bool), ClientError> {
        let mut exports = Vec::new();
        let positions = std::iter::once(&accused).chain(witnesses).take(MAX_CONTRADICTION_SESSIONS);
        for testimony in positions.filter_map(|position| self.testimonies.get(*position)) {
            exports.push(transfer::export_until(&testimony.session, turn as u64).await?);
        }
        let mut exports = exports.into_iter();
        let accused = exports.next().ok_or(ClientError::TaskEnded)?;
        let proof = Contradiction::new(accused, exports);
        self.core
            .blocking(move |_| {
                let decided = proof.check()?.is_decided();
                Ok((proof, decided))
            })
            .await
    }

    /// Writes a proof into the home; none without one.
    async fn keep(&self, accused: usize, proof: Contradiction) -> Result<Option<PathBuf>, ClientError> {
        let (Some(home), Some(accused)) = (self.core.config.home.clone(), self.testimonies.get(accused))
        else {
            return Ok(None);
        };
        let (node, now_ms) = (accused.node.node, self.core.now_ms());
        let kept = move |_: &Core| {
            file::keep_proof(&home, node, now_ms, &proof)
                .map_err(|source| file_error("write a proof in", &home, source))
        };
        self.core.blocking(kept).await.map(Some)
    }

    /// Leaves the background work of all sessions to a task, which then forgets them.
    fn settle(self) {
        for Testimony { core, .. } in self.testimonies {
            let grace = core.config.timeouts.author_stores + SETTLE_GRACE;
            self.core.spawn(async move { core.shutdown(grace).await });
        }
    }
}

fn tokens_of(outcome: &TurnOutcome) -> u64 {
    u64::from(outcome.receipt.tokens.input) + u64::from(outcome.receipt.tokens.output)
}

/// The core of a client for one session of a decoy, on the same network and with the same settings. The session
/// is in memory alone, and ends with the client.
fn decoy_core(core: &Arc<Core>) -> Arc<Core> {
    let mut config = core.config.clone();
    (config.home, config.passphrase, config.renew) = (None, None, false);
    let journals = (FileSecret::generate(), JournalLocation::Memory);
    let mut decoy = core.sharing_network(config, journals, None);
    decoy.cancel = core.cancel.child_token();
    // Decoys pay for no decoys.
    decoy.decoys = None;
    Arc::new(decoy)
}
