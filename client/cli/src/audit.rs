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
        let node = named.ok_or_else(|| Failure::Usage("--only names a node".to_owned()))?;
        cancellable(client.session(id).audit(node)).await
    });
    let AuditOutcome { turn, author, verdict, receipt } = audited.await?;
    let (result, token) = match verdict {
        CheckVerdict::Same { .. } => ("same", None),
        CheckVerdict::Different { token, .. } => ("different", Some(token)),
        CheckVerdict::NotComparable(_) => ("not-comparable", None),
    };
    if out.json() {
        out.value(&json!({
            "seq": turn,
            "turn": turn_number(turn),
            "author": author.to_string(),
            "node": receipt.node.to_string(),
            "model": receipt.model.to_string(),
            "result": result,
            "different_at": token,
            "receipt": hex::encode(receipt.encode()),
        }))?;
    } else {
        let by = format!("says and signs node {}", short(&receipt.node));
        let (turn, author) = (turn_number(turn), short(&author));
        match verdict {
            CheckVerdict::Same { .. } => {
                out.good(&format!("✓ turn {turn} of node {author}: the model gives this answer, {by}"));
            }
            CheckVerdict::Different { token, .. } => out.warn(&format!(
                "turn {turn} of node {author}: the model gives another answer from token {token} on, {by}"
            )),
            CheckVerdict::NotComparable(_) => {
                out.warn(&format!("turn {turn} of node {author} cannot be compared, {by}"));
            }
        }
    }
    match verdict {
        CheckVerdict::Same { .. } => Ok(()),
        CheckVerdict::Different { .. } => Err(Failure::Unverified),
        CheckVerdict::NotComparable(_) => Err(Failure::NotCompared),
    }
}
