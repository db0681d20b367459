//! `baton nodes`: the nodes found, and the reasons to choose each.

mod proofs;

use std::{sync::Arc, time::Instant};

use baton_client::{
    ClientError, NodeExplanation, NodeInfo, RouteOptions,
    choose::{Behind, Exclusion, GOOD_PART, Verdict},
};
use baton_proto::ids::NodeId;
use serde_json::{Value, json};

use crate::{
    args::{ModelArguments, NodesArguments},
    clock::now_ms,
    failure::Failure,
    home::{find_session, with_client},
    out::{Out, short},
    search::{FAILURE_REMARK, warn_of_unreachable_nodes, while_waiting},
    settings::Settings,
};

/// The table of explanations, by the values for programs.
const EXPLANATION: [(&str, &str); 9] = [
    ("NODE", "/node"),
    ("MODEL", "/model"),
    ("SHARE", "/probability"),
    ("SUCCESS", "/factors/success"),
    ("SPEED", "/factors/speed"),
    ("LOAD", "/factors/load"),
    ("PRICE", "/factors/price"),
    ("WARM", "/factors/warm"),
    ("WHY", "/why"),
];

pub(crate) async fn run(settings: &Settings, arguments: &NodesArguments, out: &Out) -> Result<(), Failure> {
    if let Some(session) = &arguments.explain {
        return explain(settings, session.as_deref(), &arguments.model, out).await;
    }
    match &arguments.proofs {
        Some(Some(file)) => return proofs::check(file, out),
        Some(None) => return proofs::list(settings, out).await,
        None => {}
    }
    let (nodes, answering) = with_client(settings, true, async |client| {
        let begun = Instant::now();
        let nodes = while_waiting(client, out, Arc::default(), client.nodes()).await;
        // After a longer wait they are said already.
        if begun.elapsed() < FAILURE_REMARK {
            warn_of_unreachable_nodes(client, out);
        }
        if nodes.is_empty() && !out.json() {
            return Err(ClientError::NoNode(client.why_no_node().await).into());
        }
        let ids: Vec<NodeId> = nodes.iter().map(|node| node.record.node).collect();
        Ok((nodes, client.answering(&ids).await))
    })
    .await?;
    let answers = |node: &NodeInfo| answering.contains(&node.record.node);
    if out.json() {
        let list: Vec<_> = nodes.iter().map(|node| describe(node, answers(node))).collect();
        return Ok(out.value(&json!({ "nodes": list }))?);
    }
    let mut rows = Vec::new();
    for node in &nodes {
        let silent = if answers(node) { "" } else { "does not answer" };
        for offer in &node.record.models {
            let (node, engine) = (short(&node.record.node), offer.engine.name());
            let numbers = [u64::from(offer.context_tokens), offer.input_price, offer.output_price];
            let mut row = vec![node.into(), offer.name.as_str().into(), engine.into()];
            row.extend(numbers.map(Value::from));
            row.push(silent.into());
            rows.push(row);
        }
    }
    out.table(&["NODE", "MODEL", "ENGINE", "CONTEXT", "PRICE IN", "PRICE OUT", ""], &rows)?;
    out.note("prices are for 1000 tokens; addresses and terms of storage: baton nodes --json");
    Ok(())
}

fn describe(node: &NodeInfo, answers: bool) -> Value {
    let record = &node.record;
    let models = record.models.iter().map(|offer| {
        json!({
            "id": offer.model.to_string(),
            "name": offer.name,
            "engine": offer.engine.name(),
            "context_tokens": offer.context_tokens,
            "input_price": offer.input_price,
            "output_price": offer.output_price,
        })
    });
    json!({
        "node": record.node.to_string(),
        "models": models.collect::<Vec<_>>(),
        "slots": record.limits.slots,
        "storage": {
            "price": record.storage.price,
            "max_epochs": record.storage.epochs(true),
            "unknown_max_epochs": record.storage.epochs(false),
        },
        "addresses": node.addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "connected": node.connected,
        "answers": answers,
        "software": record.software,
        "expires_ms": record.expires_ms,
    })
}

async fn explain(
    settings: &Settings,
    session: Option<&str>,
    model: &ModelArguments,
    out: &Out,
) -> Result<(), Failure> {
    let explained = with_client(settings, true, async |client| {
        let session = match session {
            Some(named) => Some(find_session(client, named).await?),
            None => None,
        };
        let options = RouteOptions {
            model: model.model.clone(),
            allow_echo: model.allow_echo,
            ..RouteOptions::default()
        };
        let explained = client.explain(session, &options).await?;
        if explained.is_empty() && !out.json() {
            return Err(ClientError::NoNode(client.why_no_node().await).into());
        }
        Ok(explained)
    })
    .await?;
    let now = now_ms();
    let list: Vec<Value> = explained.iter().map(|row| describe_explained(row, now)).collect();
    if out.json() {
        return Ok(out.value(&json!({ "nodes": list }))?);
    }
    out.table_of(&EXPLANATION, &list)?;
    out.note(
        "score = success x speed x load x price; the draw is weighted by score x warm; evidence: --json",
    );
    Ok(())
}

/// The reason that a node is in the draw, or not: a stable name, and words.
fn reason(row: &NodeExplanation, now_ms: u64) -> (&'static str, String) {
    let more = |until_ms: u64| {
        let seconds = until_ms.saturating_sub(now_ms) / 1000;
        if seconds < 120 { format!("for {seconds} s more") } else { format!("for {} min more", seconds / 60) }
    };
    let ranked = match &row.verdict {
        Verdict::Excluded(exclusion) => return excluded(*exclusion),
        Verdict::Ranked(ranked) => ranked,
    };
    let (name, words) = match ranked.behind {
        None if row.evidence.served < 0.5 => ("drawn", "in the draw, as a newcomer"),
        None => ("drawn", "in the draw"),
        Some(Behind::FailedNow) => ("failed_now", "after others: it failed in this turn"),
        Some(Behind::Gone) => ("gone", "after others: it does not answer"),
        Some(Behind::Lied { until_ms }) => {
            let lie = match row.last_fault {
                Some("equivocated") => "it signed two different links for one turn",
                Some("contradicted") => "other nodes contradict it about an answer",
                _ => "what it sent or signed was not true",
            };
            return ("lied", format!("last of all: {lie}; {}", more(until_ms)));
        }
        Some(Behind::Paused { until_ms }) => {
            let fault = row.last_fault.unwrap_or("failed");
            return ("paused", format!("after others: it failed lately ({fault}); {}", more(until_ms)));
        }
        Some(Behind::Engine) => ("engine", "after others: their own engine is preferred"),
        Some(Behind::Score) => {
            return ("score", format!("not in the draw: below {GOOD_PART:.2} of the best score"));
        }
    };
    (name, words.to_owned())
}

fn excluded(exclusion: Exclusion) -> (&'static str, String) {
    let (name, words) = match exclusion {
        Exclusion::NotNamed => ("not_named", "another node was named".to_owned()),
        Exclusion::Version => ("version", "it speaks another version of the protocol".to_owned()),
        Exclusion::RanOut { by_ms } => ("ran_out", format!("its record ran out {} s ago", by_ms / 1000)),
        Exclusion::NotBegun { by_ms } => {
            let clock = "its clock or this machine's is wrong";
            ("not_begun", format!("its record begins in {} s: {clock}", by_ms / 1000))
        }
        Exclusion::Model => ("model", "it does not serve the model".to_owned()),
        Exclusion::Purpose => ("purpose", "it embeds texts, and serves no turns".to_owned()),
        Exclusion::Echo => ("echo", "a test engine, and those are not allowed (--allow-echo)".to_owned()),
        Exclusion::Price { price } => {
            ("price", format!("a turn may cost {price}, which is above --max-price"))
        }
    };
    (name, format!("no: {words}"))
}

fn describe_explained(row: &NodeExplanation, now_ms: u64) -> Value {
    let (reason, why) = reason(row, now_ms);
    let ranked = match &row.verdict {
        Verdict::Excluded(_) => None,
        Verdict::Ranked(ranked) => Some(ranked),
    };
    json!({
        "node": row.node.to_string(),
        "model": row.offer.as_ref().map(|offer| &offer.name),
        "engine": row.offer.as_ref().map(|offer| offer.engine.name()),
        "probability": ranked.map_or(0.0, |ranked| ranked.share),
        "reason": reason,
        "why": why,
        "factors": ranked.map(|ranked| ranked.factors),
        "highest_price": ranked.map(|ranked| ranked.price),
        "evidence": row.evidence,
        "in_flight": row.in_flight,
        "slots": row.slots,
        "last_fault": row.last_fault,
        "heard_ms": row.heard_ms,
    })
}
