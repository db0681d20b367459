//! Generation: turns the engine's events into sealed reply events, one at a time, and collects the answer's
//! text, counts and running hash.

use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::RunningHash,
    limits::{MAX_MESSAGE_BYTES, MAX_RECORD_BUCKET, VERSION},
    receipt::ProgressNote,
    record::{FinishReason, Record},
    tools::{Definitions, read_answer},
    wire::{ReplyEvent, TokenLogprob},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    DecryptedRequest,
    admission::AdmittedTurn,
    charge::ChargedEvents,
    events::ReplyWriter,
    tally::Tally,
    window::{TurnPrompt, engine_refusal},
};
use crate::{
    core::{Core, pause::Step, refusal::Refusal},
    engine::{self, EngineEvent, GenerateHandle, GenerateJob, GenerateStats},
    prompt::Prompt,
};

/// A finished answer.
pub(crate) struct Answer {
    /// Its text, including that of a resumed prefix.
    pub(crate) text: Zeroizing<String>,
    /// The finish reason.
    pub(crate) finish: FinishReason,
    /// Tokens, including those of a resumed prefix.
    pub(crate) output_tokens: u32,
    /// The running hash over its tokens.
    pub(crate) running_hash: RunningHash,
    /// The engine's own figures.
    pub(crate) stats: GenerateStats,
    /// Time of the first token.
    pub(crate) first_token_at: Option<Instant>,
}

/// Generates the answer. Cancel safe: a dropped call stops the engine within a token.
///
/// # Errors
/// The engine's errors as wire codes; [`ErrorCode::FrameTooLarge`] when the messages leave no room in a
/// record.
pub(crate) async fn generate(
    core: &Core,
    admitted: &AdmittedTurn,
    opened: &DecryptedRequest,
    turn_prompt: &TurnPrompt,
    events: &mut ReplyWriter,
) -> Result<Answer, Refusal> {
    let room = answer_room(opened)?;
    let payload = &opened.payload;
    let auth_hash = admitted.auth.auth_hash();
    let record_key = payload.grant.record_key.record_key();
    let mut tally = Tally::new(&record_key, auth_hash);
    if !opened.has_answer(&admitted.auth) {
        admitted.charge.begin(0);
        return Ok(without_text(tally.hash(), FinishReason::None));
    }
    for token in &payload.resume_tokens {
        tally.step(*token);
    }
    let stop = CancellationToken::new();
    // The turn may end for any reason; the engine's job then stops.
    let _stopped = stop.clone().drop_guard();
    let handle = start(core, admitted, opened, turn_prompt, stop.clone())?;
    let job = ChargedEvents::new(handle, &admitted.charge, payload.resume_tokens.len());
    let mut listener = Listener { core, tally, text: Zeroizing::default(), room, first_token_at: None };
    listener.text.reserve_exact(room.min(MAX_MESSAGE_BYTES));
    let mut answer = listener.listen(job, &stop, events).await?;
    answer.finish = with_calls(answer.finish, &answer.text, &turn_prompt.prompt);
    Ok(answer)
}

/// The finish reason: an answer that ends by itself and calls tools ends with `ToolCall`.
pub(crate) fn with_calls(finish: FinishReason, text: &str, prompt: &Prompt) -> FinishReason {
    let calls = |tools: &Definitions| !read_answer(text, |name| tools.has(name)).calls.is_empty();
    if finish == FinishReason::Stop && prompt.tools().is_some_and(calls) {
        FinishReason::ToolCall
    } else {
        finish
    }
}

fn without_text(running_hash: RunningHash, finish: FinishReason) -> Answer {
    Answer {
        text: Zeroizing::default(),
        finish,
        output_tokens: 0,
        running_hash,
        stats: GenerateStats::default(),
        first_token_at: None,
    }
}

/// Maximum bytes of the answer within the limits of message and record.
fn answer_room(opened: &DecryptedRequest) -> Result<usize, ErrorCode> {
    let payload = &opened.payload;
    let finish = FinishReason::Length;
    let record = Record::of_turn(payload.kind, payload.supersedes_from, &payload.messages, "", finish);
    let taken = codec::encode_secret(&record).len() + 4;
    let left = MAX_RECORD_BUCKET.checked_sub(taken).ok_or(ErrorCode::FrameTooLarge)?;
    Ok(left.min(MAX_MESSAGE_BYTES))
}

fn start(
    core: &Core,
    admitted: &AdmittedTurn,
    opened: &DecryptedRequest,
    turn_prompt: &TurnPrompt,
    cancel: CancellationToken,
) -> Result<GenerateHandle, Refusal> {
    let job = GenerateJob {
        prompt: turn_prompt.prompt.clone(),
        sampling: opened.payload.sampling.clone(),
        max_tokens: turn_prompt.max_tokens,
        resume_tokens: opened.payload.resume_tokens.clone(),
        constraint: opened.constraint.clone(),
        cache_key: Some(core.log_key.cache_key(&admitted.auth.session_id)),
        cancel,
    };
    admitted.engine.generate(job).map_err(|error| engine_refusal(&error))
}

struct Listener<'a> {
    core: &'a Core,
    tally: Tally,
    text: Zeroizing<String>,
    room: usize,
    first_token_at: Option<Instant>,
}

impl Listener<'_> {
    async fn listen(
        mut self,
        mut job: ChargedEvents<'_>,
        stop: &CancellationToken,
        events: &mut ReplyWriter,
    ) -> Result<Answer, Refusal> {
        let mut cut = false;
        while let Some(event) = job.next().await {
            match event {
                EngineEvent::Started { .. } => {}
                EngineEvent::Resumed { text } => {
                    let text = Zeroizing::new(text);
                    if text.len() > self.room {
                        return Err(ErrorCode::PayloadRejected.into());
                    }
                    self.text.push_str(&text);
                }
                EngineEvent::Token { .. } if cut => {}
                EngineEvent::Token { index, ids, text, logprobs } => {
                    let text = Zeroizing::new(text);
                    if self.text.len() + text.len() > self.room {
                        // The record is full: the answer ends before this token.
                        cut = true;
                        stop.cancel();
                        continue;
                    }
                    self.take(index, ids, text, Zeroizing::new(logprobs), events).await?;
                }
                EngineEvent::Done { finish, stats } => return Ok(self.finish(finish, stats, cut)?),
                EngineEvent::Failed(error) => {
                    tracing::warn!(%error, "an engine failed");
                    return Err(engine_refusal(&error));
                }
            }
        }
        // The engine promises an end; its thread is gone.
        Err(ErrorCode::Internal.into())
    }

    async fn take(
        &mut self,
        index: u32,
        ids: Vec<u32>,
        mut text: Zeroizing<String>,
        mut logprobs: Zeroizing<Vec<TokenLogprob>>,
        events: &mut ReplyWriter,
    ) -> Result<(), ErrorCode> {
        self.first_token_at.get_or_insert_with(Instant::now);
        self.core.observer.tokens_made(ids.len().max(1));
        self.text.push_str(&text);
        let notes: Vec<_> = ids.iter().filter_map(|id| self.tally.step(*id)).collect();
        events.paced().await;
        events.send(ReplyEvent::Tokens {
            index,
            ids,
            text: std::mem::take(&mut *text),
            logprobs: std::mem::take(&mut *logprobs),
        })?;
        for (token_count, running_hash) in notes {
            let note = ProgressNote {
                version: VERSION,
                node: self.core.node,
                auth_hash: self.tally.auth_hash(),
                token_count,
                running_hash,
                time_ms: self.core.now_ms(),
            };
            let signed = SignedObject::sign(note, self.core.identity.signing_key());
            events.send(ReplyEvent::Progress(signed.bytes().clone()))?;
        }
        if self.core.pause.stops_at(Step::MidToken) {
            events.delivered().await;
            self.core.pause.pass(Step::MidToken).await;
        }
        Ok(())
    }

    fn finish(
        self,
        finish: engine::FinishReason,
        stats: GenerateStats,
        cut: bool,
    ) -> Result<Answer, ErrorCode> {
        let finish = match finish {
            _ if cut => FinishReason::Length,
            engine::FinishReason::Stop => FinishReason::Stop,
            engine::FinishReason::StopString => FinishReason::StopString,
            engine::FinishReason::Length => FinishReason::Length,
            // Only a stopped turn cancels its job, and then this result has no reader.
            engine::FinishReason::Cancelled => return Err(ErrorCode::Busy),
        };
        // A proxied engine reports a count and no token IDs.
        let output_tokens = if self.tally.count() > 0 { self.tally.count() } else { stats.output_tokens };
        Ok(Answer {
            text: self.text,
            finish,
            output_tokens,
            running_hash: self.tally.hash(),
            stats,
            first_token_at: self.first_token_at,
        })
    }
}
