//! The final check of every conversation, from three sources:
//!
//! - The client's journal with the store's blobs.
//! - Its export.
//! - A client that has only the root and the store.

use std::time::Duration;

use baton_client::{Client, ClientError, transfer};
use baton_proto::{ids::SessionId, record::Role};

use super::{chat::ChurnClient, report::ChurnReport};
use crate::{network::Network, trial::ledger::Exchange};

/// Time for storing after the last turn: killed authors store at their next start, or the client does.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Checks all conversations; each failure becomes a violation.
pub(super) async fn all(
    report: &mut ChurnReport,
    clients: &[ChurnClient],
    network: &Network,
) -> anyhow::Result<()> {
    let root_client = Client::open(network.client_config(None)?).await?;
    for client in clients.iter().filter(|client| client.results.ledger.acknowledged() > 0) {
        let what = |problem: String| format!("client {}: {problem}", client.index);
        match from_journal(client).await {
            Ok((turns, receipts)) => {
                report.turns_verified += turns;
                report.receipts_verified += receipts;
            }
            Err(problem) => report.violation(what(problem)),
        }
        match from_root(client, &root_client).await {
            Ok(turns) => report.turns_recovered += turns,
            Err(problem) => report.violation(what(format!("from the root alone: {problem}"))),
        }
    }
    root_client.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

fn failed(error: ClientError) -> String {
    error.to_string()
}

/// Checks the client's own view against the store, and its export against itself.
async fn from_journal(client: &ChurnClient) -> Result<(u64, u64), String> {
    let session = client.client.session(client.session);
    if !session.wait_settled(SETTLE_TIMEOUT).await.map_err(failed)? {
        return Err(format!("not everything is stored after {SETTLE_TIMEOUT:?}"));
    }
    let verified = session.verify(true).await.map_err(failed)?;
    if !verified.is_good() || verified.from_own > 0 || verified.receipts_missing > 0 {
        return Err(format!("verification found {verified:?}"));
    }
    let turns = same_words(client, &client.client, client.session).await?;
    let export = session.export(false).await.map_err(failed)?;
    let checked = tokio::task::spawn_blocking(move || {
        let export = transfer::parse(&export).map_err(|error| error.to_string())?;
        transfer::verify_export(&export, true).map_err(|code| format!("the export does not verify: {code}"))
    });
    let checked = checked.await.map_err(|error| error.to_string())??;
    if checked.turns != turns {
        return Err(format!("the export has {} turns of {turns}", checked.turns));
    }
    Ok((checked.turns, checked.receipts_checked))
}

/// Recovers the conversation with another client, without a journal, by its root and the store.
async fn from_root(client: &ChurnClient, root_client: &Client) -> Result<u64, String> {
    let root = client.client.session(client.session).backup().await.map_err(failed)?;
    let found = root_client.recover(&root).await.map_err(failed)?;
    same_words(client, root_client, found).await
}

/// Checks that a history has each acknowledged turn with the echo engine's answer, and no other turn. Returns the number
/// of turns.
async fn same_words(of: &ChurnClient, reader: &Client, session: SessionId) -> Result<u64, String> {
    let mut exchanges = Vec::new();
    for view in reader.session(session).history().await.map_err(failed)? {
        let seq = view.turn.link.seq;
        let record = view.turn.record.as_ref().ok_or_else(|| format!("turn {seq} has no text"))?;
        let said = record.messages.iter().find(|message| message.role == Role::User);
        exchanges.push(Exchange {
            said: said.map(|message| message.text.clone()).unwrap_or_default(),
            answer: record.answer().unwrap_or_default().to_owned(),
            is_beside: false,
        });
    }
    let verdict = of.results.ledger.judge(&exchanges);
    if verdict.is_good() { Ok(exchanges.len() as u64) } else { Err(format!("{verdict:?}")) }
}
