//! `baton audit`: a node checks the last answer, and signs the result.

use baton_client::AuditOutcome;
use baton_proto::check::CheckVerdict;
use serde_json::json;

use crate::{
    args::AuditArguments,
    failure::Failure,
    home::{find_session, with_client},
    interrupt::cancellable,
    out::{Out, short, turn_number},
    search::named_node,
    settings::Settings,
};

pub(crate) async fn run(settings: &Settings, arguments: &AuditArguments, out: &Out) -> Result<(), Failure> {
    let audited = with_client(settings, true, async |client| {
        let id = find_session(client, &arguments.session).await?;
        let named = named_node(client, Some(&arguments.only)).await?;
        let node = named.ok_or_else(|| Failure::wrong("--only names a node"))?;
        cancellable(out, client.session(id).audit(node)).await
    });
    let AuditOutcome { turn, author, verdict, receipt } = audited.await?;
    let (number, by) = (turn_number(turn), format!("says and signs node {}", short(&receipt.node)));
    let answer = format!("turn {number} of node {}", short(&author));
    let (result, differs_at, words, ended) = match verdict {
        CheckVerdict::Same { .. } => {
            ("same", None, format!("✓ {answer}: the model gives this answer, {by}"), Ok(()))
        }
        CheckVerdict::Different { token, .. } => {
            let words = format!("{answer}: the model gives another answer from token {token} on, {by}");
            ("different", Some(token), words, Err(Failure::UNVERIFIED))
        }
        CheckVerdict::NotComparable(_) => {
            ("not-comparable", None, format!("{answer} cannot be compared, {by}"), Err(Failure::Shown(10)))
        }
    };
    match &ended {
        _ if out.json() => out.value(&json!({
            "seq": turn,
            "turn": number,
            "author": author.to_string(),
            "node": receipt.node.to_string(),
            "model": receipt.model.to_string(),
            "result": result,
            "different_at": differs_at,
            "receipt": hex::encode(receipt.encode()),
        }))?,
        Ok(()) => out.good(&words),
        Err(_) => out.warn(&words),
    }
    ended
}
