//! `baton audit`: another node computes a turn again and signs its result.

use std::path::Path;

use baton_client::{AuditOutcome, AuditWish, Client};
use baton_proto::{audit::AuditVerdict, limits::MAX_SCHEMA_BYTES};
use serde_json::{Value, json};

use super::{
    Failure,
    args::AuditArguments,
    find_session,
    interrupt::cancellable,
    nodes::named_node,
    out::{Out, short, turn_number},
    settings::{Settings, read_bounded},
    with_client, write_private,
};

pub(crate) async fn run(settings: &Settings, arguments: &AuditArguments, out: &Out) -> Result<(), Failure> {
    let audited = with_client(settings, true, async |client| audit(client, arguments, out).await).await?;
    let statement = statement(&audited);
    if let Some(path) = &arguments.out {
        let text = serde_json::to_vec_pretty(&statement).expect("a JSON value has a text");
        write_private(path, &text)?;
    }
    if out.json() {
        out.value(&statement)?;
    } else {
        show(&audited, arguments.out.as_deref(), out)?;
    }
    match audited.report.verdict {
        AuditVerdict::Same { .. } => Ok(()),
        AuditVerdict::Different { .. } => Err(Failure::Unverified),
        AuditVerdict::NotReplayable(_) => Err(Failure::NotReplayable),
    }
}

async fn audit(client: &Client, arguments: &AuditArguments, out: &Out) -> Result<AuditOutcome, Failure> {
    let id = find_session(client, &arguments.session).await?;
    let usage = |error: String| Failure::Usage(error);
    let node = named_node(client, arguments.only.as_deref()).await?;
    let schema = match &arguments.schema {
        Some(path) => Some(
            read_bounded(path, MAX_SCHEMA_BYTES as u64)
                .map_err(|error| usage(format!("--schema {}: {error}", path.display())))?,
        ),
        None => None,
    };
    let wish = AuditWish {
        turn: arguments.turn.map(|number| number - 1),
        node,
        schema: schema.map(|schema| schema.to_string()),
    };
    out.note("asking a node to compute the turn again; it sees the turn and the part of the history that the turn was shown");
    cancellable(client.session(id).audit(&wish)).await
}

/// The node's signed statement, with its signature, for any reader to check.
fn statement(audited: &AuditOutcome) -> Value {
    let report = &audited.report;
    let (result, tokens, at, why) = match report.verdict {
        AuditVerdict::Same { tokens } => ("same", Some(tokens), None, None),
        AuditVerdict::Different { token } => ("different", None, token, None),
        AuditVerdict::NotReplayable(gap) => ("not-replayable", None, None, Some(gap.to_string())),
    };
    let refused: Vec<Value> = audited
        .refused
        .iter()
        .map(|(node, why)| json!({ "node": node.to_string(), "reason": why }))
        .collect();
    json!({
        "seq": audited.turn,
        "turn": turn_number(audited.turn),
        "author": audited.author.to_string(),
        "node": report.node.to_string(),
        "model": report.model.to_string(),
        "receipt": report.receipt.to_string(),
        "result": result,
        "tokens": tokens,
        "different_at": at,
        "reason": why,
        "made_ms": report.made_ms,
        "report": hex::encode(report.encode()),
        "refused": refused,
    })
}

fn show(audited: &AuditOutcome, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    for (node, why) in &audited.refused {
        out.note(&format!("node {} made no audit: {why}", short(node)));
    }
    let (turn, author, node) =
        (turn_number(audited.turn), short(&audited.author), short(&audited.report.node));
    let text = match audited.report.verdict {
        AuditVerdict::Same { tokens } => {
            format!("turn {turn} of node {author}: the same {tokens} tokens, says and signs node {node}")
        }
        AuditVerdict::Different { token: Some(token) } => {
            format!(
                "turn {turn} of node {author}: different from token {token} on, says and signs node {node}"
            )
        }
        AuditVerdict::Different { token: None } => {
            format!(
                "turn {turn} of node {author}: the same words of other tokens, says and signs node {node}"
            )
        }
        AuditVerdict::NotReplayable(gap) => {
            format!(
                "turn {turn} of node {author} cannot be computed again, says and signs node {node}: {gap}"
            )
        }
    };
    match audited.report.verdict {
        AuditVerdict::Same { .. } => out.good(&format!("✓ {text}")),
        _ => out.warn(&text),
    }
    if let Some(file) = file {
        out.note(&format!("the signed statement is in {}", file.display()));
    }
    Ok(())
}
