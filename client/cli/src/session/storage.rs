//! `baton session renew`, and the end of storage of blobs.

use std::time::Duration;

use baton_client::{BlobLifetime, Client, ClientError, RenewReport};
use baton_proto::ids::SessionId;
use serde_json::{Value, json};

use crate::{
    clock::day,
    failure::Failure,
    home::find_session,
    interrupt::cancellable,
    out::{Out, count, short, turn_number},
};

const DAY_S: u64 = 24 * 60 * 60;

/// Renews one session, or all of this home.
pub(crate) async fn renew(
    client: &Client,
    named: Option<&str>,
    within_days: Option<u32>,
    out: &Out,
) -> Result<(), Failure> {
    let within = within_days.map(|days| Duration::from_secs(DAY_S * u64::from(days)));
    let ids = match named {
        Some(named) => vec![find_session(client, named).await?],
        None => client.sessions().await?.iter().map(|session| session.id).collect(),
    };
    let mut worst = None;
    for id in ids {
        match cancellable(out, client.session(id).renew(within)).await {
            Ok(report) => {
                show_renewal(id, &report, out)?;
                worst = failure_of(id, report, out).or(worst);
            }
            // A session that another process has open does not stop the others; a store that is away does.
            Err(Failure::Client(error)) if named.is_none() && !matches!(error, ClientError::Store(_)) => {
                out.warn(&format!("{}  {error}", short(&id)));
                worst = Some(error.into());
            }
            Err(failure) => return Err(failure),
        }
        if named.is_none() {
            client.session(id).release();
        }
    }
    worst.map_or(Ok(()), Err)
}

/// The failure of a renewal that left something unstored, with the way on.
fn failure_of(session: SessionId, report: RenewReport, out: &Out) -> Option<Failure> {
    if let Some((_, error)) = report.failed.into_iter().next() {
        return Some(Failure::of_session(error, &session));
    }
    let left = report.blobs.iter().find(|blob| !blob.stored)?;
    let wait_s = report.waiting.iter().map(|(_, wait)| wait.as_secs() + 1).max().unwrap_or_default();
    let id = short(&session);
    out.warn(&format!(
        "{id}  turn {} is not stored yet: the node that answered has {wait_s} s more to store it. Then: baton session renew {id}",
        turn_number(left.seq)
    ));
    Some(Failure::NOT_STORED)
}

fn show_renewal(session: SessionId, report: &RenewReport, out: &Out) -> Result<(), Failure> {
    let id = short(&session);
    let first = report.blobs.iter().filter(|blob| blob.stored).map(|blob| blob.kept_until_ms).min();
    if out.json() {
        let failed = report.failed.iter().map(|(seq, error)| {
            json!({ "seq": seq, "turn": turn_number(*seq), "error": error.name(), "message": error.to_string() })
        });
        return Ok(out.value(&json!({
            "session": session.to_string(),
            "renewed": report.renewed,
            "put_back": report.put_back,
            "stored": report.stored,
            "waiting": report.waiting.iter().map(|(seq, _)| seq).collect::<Vec<_>>(),
            "published": report.published,
            "failed": failed.collect::<Vec<_>>(),
            "kept_until_ms": first,
            "blobs": report.blobs.iter().map(describe).collect::<Vec<_>>(),
        }))?);
    }
    for seq in &report.stored {
        out.note(&format!("{id}  the store has the blob of turn {} now", turn_number(*seq)));
    }
    for seq in &report.put_back {
        out.warn(&format!("{id}  the store lacked the blob of turn {}; it is restored", turn_number(*seq)));
    }
    if report.published {
        out.note(&format!("{id}  the head index lacked this device's head; it is published again"));
    }
    for (seq, error) in &report.failed {
        out.warn(&format!("{id}  the blob of turn {} was not stored: {error}", turn_number(*seq)));
    }
    let kept =
        first.map_or_else(|| "nothing stored".to_owned(), |first| format!("stored until {}", day(first)));
    Ok(out.line(&format!("{id}  {} renewed, {kept}", count(report.renewed.len() as u64, "blob")))?)
}

/// Until when the blobs of a session are stored, a line each.
pub(super) fn note_lifetimes(blobs: &[BlobLifetime], out: &Out) {
    for blob in blobs.iter().filter(|blob| blob.stored) {
        let id = blob.blob_id.map(|id| format!(", blob {id}")).unwrap_or_default();
        let due = if blob.due { "; it is due for baton session renew" } else { "" };
        let (turn, until) = (turn_number(blob.seq), day(blob.kept_until_ms));
        out.note(&format!("up to turn {turn}: stored until {until}, {} bytes{id}{due}", blob.length));
    }
}

/// A blob, for programs.
pub(crate) fn describe(blob: &BlobLifetime) -> Value {
    json!({
        "seq": blob.seq,
        "turn": turn_number(blob.seq),
        "blob_id": blob.blob_id.map(|id| id.to_string()),
        "bytes": blob.length,
        "stored": blob.stored,
        "end_epoch": blob.end_epoch,
        "kept_until_ms": blob.kept_until_ms,
        "gone_by_ms": blob.gone_by_ms,
        "due": blob.due,
    })
}
