//! `baton session verify`: of a session here and in the store, or of an exported file.

use std::path::Path;

use baton_client::{Client, ClientError, SessionInfo, VerifyReport, transfer};
use baton_proto::ErrorCode;
use serde_json::json;

use super::{devices, read};
use crate::{
    failure::Failure,
    home::find_session,
    interrupt::cancellable,
    out::{Out, count, short, turn_number},
};

/// The next step for a file of another format.
const OTHER_FORMAT: &str = "the file's format is another one: export the session again with baton session export, or update \
                            baton if a newer one wrote it";
/// The next step for a file that differs from its signatures.
const CHANGED_FILE: &str = "the file was changed or damaged after the export: take another copy of it, or export the session \
                            again with baton session export";

pub(super) async fn verify(
    client: &Client,
    named: &str,
    full: bool,
    fix: bool,
    out: &Out,
) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let handle = client.session(id);
    // At once: a store that is silent is so for both.
    let checks = async { Ok(tokio::join!(Box::pin(handle.verify(full)), Box::pin(handle.check_head()))) };
    let (report, compared) = cancellable(out, checks).await?;
    let mut report = report?;
    if fix && !report.not_stored.is_empty() {
        let many = report.not_stored.len();
        cancellable(out, handle.put_back_blobs(&report.not_stored)).await?;
        out.note(&format!("Restored to the store: {many} of {}. Checking again.", report.segments));
        report = cancellable(out, handle.verify(full)).await?;
    }
    show_report(&report, out)?;
    note_replaced(&handle.info().await?, out);
    if !report.not_stored.is_empty() && !fix && !out.json() {
        out.note(&format!("  try: baton session verify {} --fix", short(&id)));
    }
    match compared {
        Ok(_) => devices::warn_of_indexes(&handle.info().await?, out),
        Err(error @ ClientError::Store(_)) => out.warn(&format!("Not compared with other devices: {error}.")),
        Err(error) => return Err(error.into()),
    }
    match (report.is_good(), report.not_stored.is_empty()) {
        (false, _) => Err(Failure::UNVERIFIED),
        (true, false) => Err(Failure::NOT_STORED),
        (true, true) => Ok(()),
    }
}

/// The results of a verification.
pub(crate) fn show_report(report: &VerifyReport, out: &Out) -> Result<(), Failure> {
    if out.json() {
        let problems = report.problems.iter().map(|problem| {
            json!({ "seq": problem.seq, "turn": turn_number(problem.seq), "code": problem.code.name() })
        });
        let mut value = json!(report);
        value["verified"] = report.is_good().into();
        value["stored"] = report.not_stored.is_empty().into();
        value["problems"] = problems.collect();
        return Ok(out.value(&value)?);
    }
    for problem in &report.problems {
        out.warn(&format!("turn {}: {}", turn_number(problem.seq), problem.code));
    }
    let turns = count(report.turns, "turn");
    match (report.is_good(), report.not_stored.len()) {
        (true, 0) => {
            out.good(&format!("✓ {turns} verified: signatures, hashes, receipts and stored copies all match"))
        }
        (true, missing) => out.warn(&format!(
            "⚠ {turns} intact on this device, but {missing} of {} stored copies cannot be read",
            report.segments
        )),
        (false, _) => out.warn(&format!("✗ {turns} checked: not all match")),
    }
    if let Some(error) = &report.unavailable {
        out.warn(&format!("The store was not read: {}", ClientError::from(error.clone())));
    }
    Ok(())
}

/// Why a verification counts more turns than the conversation has.
pub(crate) fn note_replaced(info: &SessionInfo, out: &Out) {
    let replaced = info.turns.saturating_sub(info.effective_turns);
    if replaced > 0 && !out.json() {
        let (turns, replaced) = (count(info.effective_turns, "turn"), count(replaced, "turn"));
        out.note(&format!(
            "  the conversation has {turns}; the chain keeps {replaced} that an edit replaced"
        ));
    }
}

/// The failure of an exported file, which no node and no store can change.
pub(super) fn of_file(error: ClientError) -> Failure {
    match error.code() {
        Some(ErrorCode::UnsupportedVersion) => Failure::hinted(&error, OTHER_FORMAT.to_owned()),
        Some(_) => Failure::hinted(&error, CHANGED_FILE.to_owned()),
        None => error.into(),
    }
}

pub(super) async fn verify_file(file: &Path, full: bool, out: &Out) -> Result<(), Failure> {
    let text = read(file, transfer::MAX_EXPORT_BYTES as u64)?;
    let export = transfer::parse(&text)?;
    let checked = tokio::task::spawn_blocking(move || transfer::verify_export(&export, full));
    let checked = checked.await.map_err(|_| ClientError::TaskEnded)?;
    let report = checked.map_err(|code| of_file(code.into()))?;
    let value = json!({
        "verified": true,
        "head": report.head.to_string(),
        "turns": report.turns,
        "segments": report.segments,
        "receipts_checked": report.receipts_checked,
        "acks_checked": report.acks_checked,
    });
    let text = format!(
        "✓ {} verified in {}, with {} and {}",
        count(report.turns, "turn"),
        count(report.segments, "segment"),
        count(report.receipts_checked, "receipt"),
        count(report.acks_checked, "acknowledgement")
    );
    Ok(out.answer(&value, &text)?)
}
