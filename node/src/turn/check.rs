//! Checks of earlier answers of the session, before the turn's own answer. They read the beginning of its prompt, so
//! they cost it little more than the logits. The turn pays for the prompt before the first check reads it, and for the
//! tokens that checks read beyond it.

use std::sync::Arc;

use baton_proto::{
    ErrorCode,
    chain::HistoryTurn,
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    export::OpenTurn,
    limits::CHECKED_TOKENS,
    receipt::{EngineKind, Receipt, commit_input, commit_output},
    record::RecordKind,
    turn::{CheckInput, TurnAuth},
};
use tokio_util::sync::CancellationToken;

use super::{
    DecryptedRequest,
    admission::AdmittedTurn,
    replay::{NotReplayable, ReplayTask},
    window::{TurnPrompt, texts},
};
use crate::{
    core::{Core, refusal::Refusal},
    engine::{AnswerComparison, SessionKey},
};

/// Checks the answers that the order names. Cancel safe.
///
/// # Errors
/// [`ErrorCode::PayloadRejected`] for data that do not belong to the answers.
pub(crate) async fn check_answers(
    core: &Core,
    admitted: &AdmittedTurn,
    opened: &Arc<DecryptedRequest>,
    turns: &Arc<Vec<HistoryTurn>>,
    turn_prompt: &TurnPrompt,
) -> Result<Vec<AnswerCheck>, Refusal> {
    let mut checks = Vec::new();
    let prompt_tokens = turn_prompt.input_tokens as usize + opened.payload.resume_tokens.len();
    if !admitted.auth.checks.is_empty() {
        admitted.charge.begin(prompt_tokens);
    }
    let mut computed = 0_usize;
    let session = core.log_key.cache_key(&admitted.auth.session_id);
    for (number, order) in admitted.auth.checks.iter().enumerate() {
        let (request, turns, auth) = (opened.clone(), turns.clone(), admitted.auth.clone());
        let window_from = turn_prompt.window_from;
        let prepared = tokio::task::spawn_blocking(move || {
            let order = auth.checks.get(number).ok_or(ErrorCode::PayloadRejected)?;
            let input = request.payload.checks.get(number).ok_or(ErrorCode::PayloadRejected)?;
            let task = prepare(order, input, (&*request, turns.as_slice()), (&*auth, window_from))?;
            let tokens = input.tokens.clone();
            Ok::<_, ErrorCode>(task.map(|task| (task, tokens)))
        });
        let verdict = match prepared.await.map_err(|_| Refusal::from(ErrorCode::Internal))?? {
            Ok((task, tokens)) => {
                let (verdict, read) = compare(admitted, opened, &session, order, (task, tokens)).await;
                computed += read as usize;
                admitted.charge.checked(computed.saturating_sub(prompt_tokens));
                verdict
            }
            Err(gap) => CheckVerdict::NotComparable(gap),
        };
        checks.push(AnswerCheck { order: *order, verdict });
    }
    Ok(checks)
}

/// Verifies the data of a check, and rebuilds the prompt of the answer.
fn prepare(
    order: &CheckOrder,
    input: &CheckInput,
    (opened, turns): (&DecryptedRequest, &[HistoryTurn]),
    (auth, window_from): (&TurnAuth, u64),
) -> Result<Result<ReplayTask, CheckGap>, ErrorCode> {
    let payload = &opened.payload;
    let turn = turns.iter().find(|turn| turn.link.receipt_hash == order.receipt);
    let turn = turn.ok_or(ErrorCode::PayloadRejected)?;
    let seq = turn.link.seq;
    let granted = payload.grant.records.iter().find(|read| read.seq == seq);
    let record_key = granted.ok_or(ErrorCode::PayloadRejected)?.key.record_key();
    let receipt = Receipt::of_check(input, order, &record_key, auth)?;
    let Some(record) = &turn.record else { return Ok(Err(CheckGap::Window)) };
    if receipt.model != auth.model {
        return Ok(Err(CheckGap::Model));
    }
    // Its prompt begins this turn's prompt only if the same turns are before it.
    let is_read = texts(turns, payload.kind, payload.supersedes_from).iter().any(|text| text.seq == seq);
    let (answer, new) = record.messages.split_last().ok_or(ErrorCode::PayloadRejected)?;
    let input_commitment = commit_input(&record_key, &payload.system, receipt.window_from, new);
    if !is_read
        || record.kind == RecordKind::Summary
        || receipt.window_from != window_from
        || receipt.commitments.input != input_commitment
    {
        return Ok(Err(CheckGap::Window));
    }
    if receipt.commitments.output != commit_output(&record_key, &answer.text, record.finish) {
        return Err(ErrorCode::PayloadRejected);
    }
    let before: Vec<HistoryTurn> = turns.iter().filter(|turn| turn.link.seq < seq).cloned().collect();
    let open = OpenTurn {
        link: turn.link.clone(),
        record: record.clone(),
        record_key,
        auth: None,
        receipt: Some(receipt),
        system: Some(payload.system.clone()),
        sampling: Some(input.sampling.clone()),
    };
    Ok(ReplayTask::after(&before, &open, &[], input.json_schema.as_deref()).map_err(|why| match why {
        NotReplayable::Memory { .. } => CheckGap::Memory,
        NotReplayable::Engine(_) => CheckGap::Model,
        _ => CheckGap::Refused,
    }))
}

/// The verdict on an answer, and the tokens that were computed for it.
async fn compare(
    admitted: &AdmittedTurn,
    opened: &DecryptedRequest,
    session: &SessionKey,
    order: &CheckOrder,
    (task, tokens): (ReplayTask, Vec<u32>),
) -> (CheckVerdict, u32) {
    let engine = &admitted.engine;
    if engine.info().kind != EngineKind::Native {
        return (CheckVerdict::NotComparable(CheckGap::Model), 0);
    }
    // The system text is the same, so the constraint by its tools is too.
    let is_known = !task.has_schema() && opened.payload.json_schema.is_none();
    let constraint =
        if is_known { Ok(opened.constraint.clone()) } else { task.constraint(engine.clone()).await };
    let cancel = CancellationToken::new();
    let _stopped = cancel.clone().drop_guard();
    let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let ends = order.probe.saturating_add(CHECKED_TOKENS) >= count;
    let ends_falsely = task.ends_falsely();
    let compared = match constraint {
        Ok(constraint) => {
            let (job, answer) = task.check_job(constraint, (session.clone(), cancel), (tokens, order.probe));
            engine.check(job, answer).await
        }
        Err(error) => Err(error),
    };
    match compared {
        Ok(AnswerComparison { differs_at, logits, computed }) => {
            let verdict = match differs_at.or_else(|| (ends && ends_falsely).then_some(count)) {
                None => CheckVerdict::Same { logits },
                Some(token) => CheckVerdict::Different { token, logits },
            };
            (verdict, computed)
        }
        Err(error) => {
            tracing::debug!(%error, "an earlier answer was not checked");
            (CheckVerdict::NotComparable(CheckGap::Refused), 0)
        }
    }
}
