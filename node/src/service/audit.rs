//! An audit, from its frame to the signed report. The node recomputes a turn that its client disclosed, in a
//! slot for turns and under the rates of turns. Off unless the operator offers it. The disclosed conversation
//! is never written anywhere.

use std::sync::Arc;

use baton_mesh::{FrameError, FrameShare, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject,
    audit::{AuditAnswer, AuditBytes, AuditFrame, AuditGap, AuditReport, AuditRequest, AuditVerdict},
    codec,
    disclosure::DisclosedTurn,
    ids::AuthHash,
    limits::{MAX_AUDIT_FRAME_BYTES, VERSION},
    quota::QuotaUse,
    receipt::EngineKind,
};
use tokio::time::{Instant, timeout};

use crate::{
    core::{
        Core, frames,
        guard::Caller,
        limits::DRAIN_RETRY_MS,
        refusal::Refusal,
        slots::{DisplacedError, Ticket},
    },
    engine::Engine,
    lock::lock,
    observer::RequestKind,
    replay::{NotReplayable, ReplayTask, Verdict, replay_charged},
    turn::{
        charge::{self, Charge},
        model, window,
    },
};

/// Memory of a disclosure relative to its length on the wire: the bytes, the opened segments, and the opened
/// turns.
const MEMORY_FACTOR: usize = 3;

/// An admitted audit. Dropping it leaves the queue.
struct AdmittedAudit {
    engine: Arc<dyn Engine>,
    request: AuditRequest,
    hash: AuthHash,
    charge: Charge,
    ticket: Ticket,
    /// Share of the memory for disclosures.
    share: FrameShare,
}

/// Serves one request on its substream.
pub(crate) async fn serve(core: &Arc<Core>, mut stream: TurnStream, who: Caller) -> Result<(), FrameError> {
    let frame = frames::next_frame::<AuditFrame>(core, &mut stream, &who, MAX_AUDIT_FRAME_BYTES).await?;
    let AuditFrame::Request { request, quota } = match frame {
        Ok(frame) => frame,
        Err(refusal) => return frames::refuse(core, stream, who, refusal).await,
    };
    core.observer.requested(RequestKind::Audit);
    // This memory is separate from that of other requests, because the audit keeps it while it waits and
    // runs. The call does not wait, because the request's bytes are unaccounted until then.
    let share = core.audit_shares.take(MEMORY_FACTOR * request.len(), who.subnet, Instant::now()).await;
    let admitted = admit(core, who, &request, quota.as_ref(), share);
    // The admitted request has the decoded contents.
    drop(request);
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return frames::refuse(core, stream, who, refusal).await,
    };
    let (mut sender, mut receiver) = stream.split();
    let answered = tokio::select! {
        biased;
        answered = Box::pin(answer(core, admitted)) => answered,
        () = core.ending.cancelled() => Err(ErrorCode::Busy),
        error = frames::left(&mut receiver) => return Err(error),
    };
    let answer = match answered {
        Ok(report) => {
            core.observer.audited(&report.verdict);
            AuditAnswer::Report(report.bytes().clone())
        }
        Err(code) => {
            core.observer.refused(code);
            core.note_refusal(&who, code);
            tracing::debug!(code = code.name(), "an audit was refused");
            let Refusal { code, retry_after_ms, .. } = code.into();
            AuditAnswer::Refused { code, retry_after_ms }
        }
    };
    sender.send_by(&codec::encode(&answer), Instant::now() + core.limits.reader_stall).await?;
    sender.close().await
}

/// Checks a request, cheapest checks first. Never reads the disclosure.
fn admit(
    core: &Arc<Core>,
    who: Caller,
    bytes: &AuditBytes,
    quota: Option<&QuotaUse>,
    share: Result<FrameShare, ErrorCode>,
) -> Result<AdmittedAudit, Refusal> {
    let granted = quota.is_some_and(|used| lock(&core.quotas).knows(used));
    core.take_turn(&who, granted, core.now_ms())?;
    let share = share?;
    if !core.limits.audits {
        return Err(ErrorCode::UnsupportedVersion.into());
    }
    let request = bytes.open()?;
    if request.audience != core.node {
        return Err(ErrorCode::WrongAudience.into());
    }
    let engine = core.engine(&request.model)?;
    if engine.info().kind != EngineKind::Native {
        return Err(ErrorCode::ModelUnavailable.into());
    }
    if core.draining.is_cancelled() {
        return Err(ErrorCode::Busy.into());
    }
    if core.is_held() {
        return Err(Refusal::after(ErrorCode::Busy, DRAIN_RETRY_MS));
    }
    let hash = bytes.hash();
    let chain = charge::check_quota(core, quota, request.model, &hash)?;
    let requester = charge::requester(core, &who, chain.as_ref());
    let charge = Charge::take_all(core, who, request.tokens, chain.as_ref())?;
    let ticket = core.slots.enter(requester).map_err(|_| ErrorCode::Busy)?;
    Ok(AdmittedAudit { engine, request, hash, charge, ticket, share })
}

/// Waits for the slot, verifies the disclosure and recomputes the turn. Cancel safe: a dropped call stops the
/// work soon.
async fn answer(core: &Core, admitted: AdmittedAudit) -> Result<SignedObject<AuditReport>, ErrorCode> {
    let AdmittedAudit { engine, request, hash, charge, ticket, share: _share } = admitted;
    ticket.granted().await.map_err(|DisplacedError| ErrorCode::Busy)?;
    let _hold = model::hold(&engine, &ticket).await?;
    // During a wait for the model, another turn may have taken the slot.
    ticket.granted().await.map_err(|DisplacedError| ErrorCode::Busy)?;
    let AuditRequest { receipt, model, .. } = request;
    let judged = async {
        let prepared = tokio::task::spawn_blocking(move || prepare(request));
        let task = match prepared.await.map_err(|_| ErrorCode::Internal)?? {
            Ok(task) => task,
            Err(why) => return Ok(Verdict::NotReplayable(why)),
        };
        charge.hold_prompt(task.input_tokens()).map_err(|refusal| refusal.code)?;
        let replayed = replay_charged(engine.as_ref(), &task, Some(&charge)).await;
        replayed.map_err(|error| window::engine_code(&error))
    };
    let judged = timeout(core.limits.max_turn_time, judged).await.map_err(|_| ErrorCode::QuotaExceeded)??;
    // A turn that cannot be replayed costs its verification.
    charge.begin(0);
    charge.served(0);
    let report = AuditReport {
        version: VERSION,
        node: core.node,
        request: hash,
        receipt,
        model,
        verdict: verdict(judged)?,
        made_ms: core.now_ms(),
    };
    Ok(SignedObject::sign(report, core.identity.signing_key()))
}

/// Verifies a disclosure, and prepares the computation. Takes as long as its signatures.
fn prepare(request: AuditRequest) -> Result<Result<ReplayTask, NotReplayable>, ErrorCode> {
    let AuditRequest { receipt, model, tokens, disclosure, .. } = request;
    let DisclosedTurn { history, turn } = disclosure.open().map_err(|_| ErrorCode::PayloadRejected)?;
    let is_meant = turn.receipt.as_ref().is_some_and(|known| {
        (known.receipt_hash(), known.model, known.tokens.output) == (receipt, model, tokens)
    });
    if !is_meant {
        return Err(ErrorCode::PayloadRejected);
    }
    Ok(ReplayTask::after(&history, &turn, &disclosure.memory, disclosure.schema.as_deref()))
}

fn verdict(judged: Verdict) -> Result<AuditVerdict, ErrorCode> {
    Ok(match judged {
        Verdict::Same { tokens } => AuditVerdict::Same { tokens },
        Verdict::Different { token } => AuditVerdict::Different { token },
        Verdict::NotReplayable(why) => AuditVerdict::NotReplayable(match why {
            NotReplayable::NoAnswer => AuditGap::NoAnswer,
            NotReplayable::Engine(_) => AuditGap::Engine,
            NotReplayable::Memory { .. } => AuditGap::Memory,
            NotReplayable::Schema => AuditGap::Schema,
            NotReplayable::Refused(_) => AuditGap::Refused,
            // All were checked before.
            NotReplayable::NoTurn(_) | NotReplayable::Undisclosed(_) | NotReplayable::Model { .. } => {
                return Err(ErrorCode::Internal);
            }
        }),
    })
}
