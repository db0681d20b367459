//! Admission of jobs: bounds their number, then renders and tokenises them one by one on its own thread. So
//! neither the caller nor the batch waits.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use baton_engine::{
    batch::{Batcher, Request},
    language::{Grammar, Language, Sampler, StreamText, text::shown_text},
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    answer::AnswerState,
    batch_job::{BatchJob, Outlet, SharedJob},
    check::CheckState,
    choice::TokenChoice,
    encode, small,
};
use crate::engine::{
    AnswerComparison, EVENT_CAPACITY, EngineError, EngineEvent, FinishReason, GenerateHandle, GenerateJob,
    GenerateStats, GivenAnswer,
    language::{Constraint, ConstraintKind, sampling},
};

/// Limits on the number and length of jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// All jobs, including running ones.
    pub(crate) present: usize,
    /// Waiting jobs; refusals name this limit.
    pub(crate) queue: usize,
    /// Tokens of prompt and answer together.
    pub(crate) context: usize,
}

/// An answer to check, and the receiver of the result.
pub(super) type CheckRequest = (GivenAnswer, oneshot::Sender<AnswerComparison>);

struct QueuedJob {
    job: GenerateJob,
    /// The answer that the job checks instead of making one.
    given: Option<CheckRequest>,
    outlet: Outlet,
}

/// The thread that prepares jobs, and its queue.
pub(super) struct PromptQueue {
    /// Bounded by the number of permits.
    queue: Mutex<Option<Sender<QueuedJob>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    present: Arc<Semaphore>,
    limits: Limits,
}

impl PromptQueue {
    pub(super) fn open(
        name: &str,
        limits: Limits,
        language: Arc<Language>,
        batcher: Arc<Batcher>,
    ) -> std::io::Result<Self> {
        let (queue, jobs) = channel();
        let stop = CancellationToken::new();
        let worker = PromptWorker { language, batcher, limits, stop: stop.clone() };
        let thread =
            std::thread::Builder::new().name(format!("desk-{name}")).spawn(move || worker.work(&jobs))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            stop,
            present: Arc::new(Semaphore::new(limits.present)),
            limits,
        })
    }

    /// Queues a job; never blocks.
    pub(super) fn submit(
        &self,
        job: GenerateJob,
        given: Option<CheckRequest>,
    ) -> Result<GenerateHandle, EngineError> {
        let queue = self.queue.lock();
        let queue = queue.as_ref().ok_or(EngineError::ShutDown)?;
        let queue_limit = self.limits.queue;
        let permit = Arc::clone(&self.present).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::Busy { limit: queue_limit })?;
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY + 1);
        let last = events.clone().try_reserve_owned().expect("a new channel has room");
        let cancel = job.cancel.clone();
        let outlet = Outlet { events, last: Some(last), cancel, _permit: permit, queue_limit };
        queue.send(QueuedJob { job, given, outlet }).map_err(|_| EngineError::ShutDown)?;
        Ok(GenerateHandle { events: receiver })
    }

    /// Fails the jobs that have not reached the batch, and joins the thread. Idempotent.
    pub(super) fn shutdown(&self) {
        self.stop.cancel();
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("an engine thread ended by a panic");
        }
    }
}

/// The state of the thread.
struct PromptWorker {
    language: Arc<Language>,
    batcher: Arc<Batcher>,
    limits: Limits,
    stop: CancellationToken,
}

impl PromptWorker {
    fn work(&self, jobs: &Receiver<QueuedJob>) {
        while let Ok(QueuedJob { job, given, mut outlet }) = jobs.recv() {
            let none = GenerateStats::default();
            if self.stop.is_cancelled() {
                outlet.end(Err(EngineError::ShutDown), none);
            } else if outlet.is_cancelled() {
                outlet.end(Ok(FinishReason::Cancelled), none);
            } else {
                self.serve(&job, given, outlet);
            }
        }
    }

    fn serve(&self, job: &GenerateJob, given: Option<CheckRequest>, mut outlet: Outlet) {
        // A job leaves no state that a later job reads, so continuing is sound.
        let prepared = catch_unwind(AssertUnwindSafe(|| match &given {
            Some((answer, _)) => self.prepare_check(job, answer),
            None => self.prepare(job, &outlet),
        }));
        let prepared = prepared.unwrap_or_else(|_| {
            tracing::error!("an engine job panicked");
            Err(EngineError::Compute { reason: "it panicked on this job".to_owned() })
        });
        match prepared {
            Err(error) => outlet.end(Err(error), GenerateStats::default()),
            Ok(Preparation::Over { input, finish }) => {
                let stats = GenerateStats { input_tokens: small(input), ..GenerateStats::default() };
                outlet.end(Ok(finish), stats);
            }
            Ok(Preparation::Goes(ready)) => match given {
                Some(given) => self.hand_on_check(job, *ready, given, outlet),
                None => self.hand_on(job, *ready, outlet),
            },
        }
    }

    /// Prepares the check of an answer: its tokens follow the prompt.
    fn prepare_check(&self, job: &GenerateJob, answer: &GivenAnswer) -> Result<Preparation, EngineError> {
        let tokenizer = self.language.tokenizer();
        let mut ids = encode(&self.language, &job.prompt)?;
        let input = ids.len();
        // No model chooses the others.
        let known = |&&id: &&u32| (id as usize) < tokenizer.vocabulary() && !tokenizer.is_stop(id);
        ids.extend(answer.covered().iter().take_while(known));
        let (context, given) = (self.limits.context, ids.len() - input);
        if ids.len() >= context || input == 0 {
            return Err(EngineError::ContextOverflow { needed: small(ids.len() + 1), limit: small(context) });
        }
        let resumed = answer.tokens.get(..answer.resumed.min(given)).unwrap_or_default();
        let mut text = StreamText::new(&self.stops(job));
        for &id in resumed {
            text.resume(id, tokenizer.token_bytes(id));
        }
        let mut grammar = grammar(job);
        if let Some(grammar) = &mut grammar {
            grammar.resume(resumed)?;
        }
        Ok(Preparation::Goes(Box::new(PreparedJob { ids, input, max_tokens: 1, text, grammar })))
    }

    /// The texts that end an answer.
    fn stops(&self, job: &GenerateJob) -> Vec<String> {
        let own = self.language.stops().iter().map(|stop| (*stop).to_owned());
        job.sampling.stop.iter().cloned().chain(own).collect()
    }

    /// Prepares a job up to its first computed token.
    fn prepare(&self, job: &GenerateJob, outlet: &Outlet) -> Result<Preparation, EngineError> {
        let tokenizer = self.language.tokenizer();
        let mut ids = encode(&self.language, &job.prompt)?;
        let input = ids.len();
        let known = |&id: &u32| (id as usize) < tokenizer.vocabulary() && !tokenizer.is_stop(id);
        if !job.resume_tokens.iter().all(known) {
            return Err(EngineError::InvalidResume);
        }
        ids.extend_from_slice(&job.resume_tokens);
        let context = self.limits.context;
        if ids.len() >= context || ids.is_empty() {
            return Err(EngineError::ContextOverflow { needed: small(ids.len() + 1), limit: small(context) });
        }
        outlet.send(EngineEvent::Started { input_tokens: small(input) });

        let stops = self.stops(job);
        let mut text = StreamText::new(&stops);
        let resumed = shown_text(&stops, &tokenizer.decode(&job.resume_tokens));
        if !resumed.is_empty() {
            outlet.send(EngineEvent::Resumed { text: resumed });
        }
        let over = |finish| Ok(Preparation::Over { input, finish });
        for &id in &job.resume_tokens {
            if !text.resume(id, tokenizer.token_bytes(id)) {
                return over(FinishReason::StopString);
            }
        }
        let mut grammar = grammar(job);
        if let Some(grammar) = &mut grammar {
            grammar.resume(&job.resume_tokens)?;
            if grammar.is_complete() {
                return over(FinishReason::Stop);
            }
        }
        let longest = (context - input).min(job.max_tokens as usize);
        if job.resume_tokens.len() >= longest {
            return over(FinishReason::Length);
        }
        let max_tokens = longest - job.resume_tokens.len();
        Ok(Preparation::Goes(Box::new(PreparedJob { ids, input, max_tokens, text, grammar })))
    }

    fn choice(&self, job: &GenerateJob, ready: PreparedJob) -> (Zeroizing<Vec<u32>>, usize, TokenChoice) {
        let PreparedJob { ids, input, max_tokens, text, grammar } = ready;
        let choice = TokenChoice {
            language: Arc::clone(&self.language),
            sampler: Sampler::new(&sampling(&job.sampling)),
            text,
            grammar,
            input,
            scratch: Zeroizing::default(),
        };
        (ids, max_tokens, choice)
    }

    fn hand_on_check(&self, job: &GenerateJob, ready: PreparedJob, given: CheckRequest, outlet: Outlet) {
        let (ids, max_tokens, choice) = self.choice(job, ready);
        let (given, result) = given;
        let computable = ids.len() - choice.input;
        let (resumed, before) = (given.resumed.min(computable), given.probe.min(computable));
        let shown = self.language.tokenizer().decode(given.tokens.get(..resumed).unwrap_or_default());
        let shown = Zeroizing::new(shown_text(&self.stops(job), &shown));
        let begins = given.text.starts_with(shown.as_str());
        let mut check = CheckState {
            outlet,
            choice,
            read: shown.len(),
            ended: None,
            differs_at: (!begins).then_some(small(resumed)),
            logits: [0; 32],
            failed: None,
            result: Some(result),
            given,
        };
        // Only the engine's choice of these tokens is not checked.
        for (position, id) in ids.iter().skip(check.choice.input).take(before).enumerate().skip(resumed) {
            check.append(small(position), *id);
        }
        self.submit(job, (ids, computable - before, max_tokens), check);
    }

    fn hand_on(&self, job: &GenerateJob, ready: PreparedJob, outlet: Outlet) {
        let (ids, max_tokens, choice) = self.choice(job, ready);
        let answer = AnswerState {
            outlet,
            choice,
            next_index: small(job.resume_tokens.len()),
            logprobs: job.sampling.logprobs,
            reported: Zeroizing::default(),
            output_tokens: 0,
            ended: None,
        };
        self.submit(job, (ids, 0, max_tokens), answer);
    }

    /// Passes a job to the batch, with its prompt, the number of tokens to compare and the number to make.
    fn submit(
        &self,
        job: &GenerateJob,
        (prompt, scored, max_tokens): (Zeroizing<Vec<u32>>, usize, usize),
        state: impl BatchJob + 'static,
    ) {
        let shared = SharedJob::new(state);
        let submitted = self.batcher.submit(Request {
            session: job.cache_key.clone(),
            prompt,
            scored,
            max_tokens,
            chooser: Box::new(shared.clone()),
            sink: Box::new(shared.clone()),
        });
        if let Err(error) = submitted {
            shared.refuse(&error);
        }
    }
}

/// The allowed continuations, at the beginning of an answer.
fn grammar(job: &GenerateJob) -> Option<Grammar> {
    match &job.constraint {
        Some(Constraint(ConstraintKind::Grammar(grammar))) => Some(Grammar::clone(grammar)),
        _ => None,
    }
}

/// Outcome of a job's preparation.
enum Preparation {
    /// The job is already over: the resumed prefix is the whole answer.
    Over { input: usize, finish: FinishReason },
    /// The job continues.
    Goes(Box<PreparedJob>),
}

/// A job with a rendered prompt.
struct PreparedJob {
    /// Prompt and resumed prefix.
    ids: Zeroizing<Vec<u32>>,
    /// Tokens of the prompt.
    input: usize,
    /// Tokens to generate.
    max_tokens: usize,
    text: StreamText,
    grammar: Option<Grammar>,
}
