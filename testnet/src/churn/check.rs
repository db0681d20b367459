//! The final check of every conversation, from three sources:
//!
//! - The client's journal with the store's blobs.
//! - Its export.
//! - A client that has only the root and the store.

use std::time::Duration;

use baton_client::{Client, ClientConfig, transfer};
use baton_proto::{chain::HistoryTurn, ids::SessionId, record::Role};

use super::{
    SHARDS,
    chat::{Talk, echo},
    report::ChurnReport,
};

/// Time for storing after the last turn: killed authors store at their next start, or the client does.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Checks all conversations; each failure becomes a violation.
pub(super) async fn all(report: &mut ChurnReport, talks: &[Talk], store_url: &str) -> anyhow::Result<()> {
    let root_client =
        Client::open(ClientConfig::with_http(None, store_url, store_url, Some(store_url), SHARDS)?).await?;
    for talk in talks {
        let what = |problem: String| format!("client {}: {problem}", talk.index);
        match from_journal(talk).await {
            Ok((turns, receipts)) => {
                report.turns_verified += turns;
                report.receipts_verified += receipts;
            }
            Err(problem) => report.violation(what(problem)),
        }
        match from_root(talk, &root_client).await {
            Ok(turns) => report.turns_recovered += turns,
            Err(problem) => report.violation(what(problem)),
        }
    }
    root_client.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

/// Checks the client's own view against the store, and its export against itself.
async fn from_journal(talk: &Talk) -> Result<(u64, u64), String> {
    if talk.results.said.is_empty() {
        return Ok((0, 0));
    }
    let failed = |error: baton_client::ClientError| error.to_string();
    let settled = talk.client.session(talk.session).wait_settled(SETTLE_TIMEOUT).await.map_err(failed)?;
    if !settled {
        return Err(format!("not everything is stored after {SETTLE_TIMEOUT:?}"));
    }
    let verified = talk.client.session(talk.session).verify(true).await.map_err(failed)?;
    if !verified.is_good() || verified.from_own > 0 || verified.receipts_missing > 0 {
        return Err(format!("verification found {verified:?}"));
    }
    let history = talk.client.session(talk.session).history().await.map_err(failed)?;
    let turns: Vec<HistoryTurn> = history.into_iter().map(|view| view.turn).collect();
    same_words(&talk.results.said, &turns)?;
    let export = talk.client.session(talk.session).export(false).await.map_err(failed)?;
    let checked = tokio::task::spawn_blocking(move || {
        let export = transfer::parse(&export).map_err(|error| error.to_string())?;
        transfer::verify_export(&export, true).map_err(|code| format!("the export does not verify: {code}"))
    });
    let checked = checked.await.map_err(|error| error.to_string())??;
    if checked.turns != talk.results.said.len() as u64 {
        return Err(format!("the export has {} turns of {}", checked.turns, talk.results.said.len()));
    }
    Ok((checked.turns, checked.receipts_checked))
}

/// Recovers the conversation with another client, without a journal, by its root and the store.
async fn from_root(talk: &Talk, root_client: &Client) -> Result<u64, String> {
    if talk.results.said.is_empty() {
        return Ok(0);
    }
    let failed = |error: baton_client::ClientError| format!("from the root alone: {error}");
    let root = talk.client.session(talk.session).backup().await.map_err(failed)?;
    let found: SessionId = root_client.recover(&root).await.map_err(failed)?;
    let history = root_client.session(found).history().await.map_err(failed)?;
    let turns: Vec<HistoryTurn> = history.into_iter().map(|view| view.turn).collect();
    same_words(&talk.results.said, &turns)?;
    Ok(turns.len() as u64)
}

/// Checks that each turn holds the sent message and the echo engine's answer.
fn same_words(said: &[String], turns: &[HistoryTurn]) -> Result<(), String> {
    if said.len() != turns.len() {
        return Err(format!("{} turns are there of {} that were accepted", turns.len(), said.len()));
    }
    for (said, turn) in said.iter().zip(turns) {
        let seq = turn.link.seq;
        let record = turn.record.as_ref().ok_or_else(|| format!("turn {seq} has no text"))?;
        let asked = record.messages.iter().find(|message| message.role == Role::User);
        if asked.is_none_or(|asked| asked.text != *said) {
            return Err(format!("turn {seq} holds another message than was said"));
        }
        if record.answer() != Some(echo(said).as_str()) {
            return Err(format!("turn {seq} holds another answer than the engine's"));
        }
    }
    Ok(())
}
