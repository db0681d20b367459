//! `baton nodes`: the nodes found, and the reasons to choose each.

mod proofs;

use std::{sync::Arc, time::Instant};

use baton_client::{
    ClientError, NodeExplanation, NodeInfo, RouteOptions,
    choose::{Behind, Exclusion, GOOD_PART, OfferRank, Verdict},
};
use baton_proto::ids::NodeId;
use serde_json::{Value, json};

use crate::{
    args::{ModelArguments, NodesArguments},
    clock::now_ms,
    failure::Failure,
    home::{find_session, with_client},
    out::{Out, clean, short},
    search::{FAILURE_REMARK, unreachable_nodes, while_waiting},
    settings::Settings,
};

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
            unreachable_nodes(client).iter().for_each(|line| out.warn(line));
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
    for node in &nodes {
        let silent = if answers(node) { "" } else { "  does not answer" };
        out.line(&format!("{}{silent}", short(&node.record.node)))?;
        for offer in &node.record.models {
            let engine = offer.engine.name();
            out.line(&clean(&format!(
                "  {} ({engine}, {} tokens of context, prices {} in, {} out per 1000)",
                offer.name, offer.context_tokens, offer.input_price, offer.output_price
            )))?;
        }
        let storage = &node.record.storage;
        out.line(&format!(
            "  stores for {} epochs, {} under a grant, price {} per MiB and epoch",
            storage.epochs(false),
            storage.epochs(true),
            storage.price
        ))?;
        for addr in &node.addrs {
            out.line(&format!("  {addr}"))?;
        }
    }
    Ok(())
}

fn describe(node: &NodeInfo, answers: bool) -> Value {
    let models: Vec<_> = node
        .record
        .models
        .iter()
        .map(|offer| {
            json!({
                "id": offer.model.to_string(),
                "name": offer.name,
                "engine": offer.engine.name(),
                "context_tokens": offer.context_tokens,
                "input_price": offer.input_price,
                "output_price": offer.output_price,
            })
        })
        .collect();
    json!({
        "node": node.record.node.to_string(),
        "models": models,
        "slots": node.record.limits.slots,
        "storage": {
            "price": node.record.storage.price,
            "max_epochs": node.record.storage.epochs(true),
            "unknown_max_epochs": node.record.storage.epochs(false),
        },
        "addresses": node.addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "connected": node.connected,
        "answers": answers,
        "software": node.record.software,
        "expires_ms": node.record.expires_ms,
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
    if out.json() {
        let list: Vec<_> = explained.iter().map(|row| describe_explained(row, now)).collect();
        return Ok(out.value(&json!({ "nodes": list }))?);
    }
    let heading = ["NODE", "MODEL", "SHARE", "SCORE", "SUCCESS", "SPEED", "LOAD", "PRICE", "WARM", "WHY"];
    out.table(&heading, explained.iter().map(|row| cells(row, now)).collect())?;
    out.note("");
    for row in &explained {
        out.note(&evidence_line(row, now));
    }
    out.note("");
    out.note(
        "score = success x speed x load x price; the draw is weighted by score x warm (docs/CHOOSING.md)",
    );
    Ok(())
}

/// A row of the table.
fn cells(row: &NodeExplanation, now_ms: u64) -> Vec<String> {
    let model = row.offer.as_ref().map_or_else(|| "-".to_owned(), |offer| offer.name.clone());
    let mut cells = vec![short(&row.node), model];
    match &row.verdict {
        Verdict::Excluded(_) => cells.extend(["-"; 7].map(str::to_owned)),
        Verdict::Ranked(ranked) => {
            let factors = &ranked.factors;
            cells.push(format!("{:.1}%", ranked.share * 100.0));
            let numbers =
                [factors.score(), factors.success, factors.speed, factors.load, factors.price, factors.warm];
            cells.extend(numbers.map(|number| format!("{number:.2}")));
        }
    }
    cells.push(why(row, now_ms));
    cells
}

/// The reason that a node is in the draw, or not.
fn why(row: &NodeExplanation, now_ms: u64) -> String {
    let minutes = |until_ms: u64| {
        let seconds = until_ms.saturating_sub(now_ms) / 1000;
        if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) }
    };
    let ranked = match &row.verdict {
        Verdict::Excluded(exclusion) => return excluded(*exclusion),
        Verdict::Ranked(ranked) => ranked,
    };
    match ranked.behind {
        None if row.evidence.served < 0.5 => "in the draw, as a newcomer".to_owned(),
        None => "in the draw".to_owned(),
        Some(Behind::FailedNow) => "after others: it failed in this turn".to_owned(),
        Some(Behind::Gone) => "after others: it does not answer".to_owned(),
        Some(Behind::Lied { until_ms }) if row.last_fault == Some("equivocated") => {
            format!("last of all: it signed two different links for one turn; for {} more", minutes(until_ms))
        }
        Some(Behind::Lied { until_ms }) if row.last_fault == Some("contradicted") => {
            format!("last of all: other nodes contradict it about an answer; for {} more", minutes(until_ms))
        }
        Some(Behind::Lied { until_ms }) => {
            format!("last of all: what it sent or signed was not true; for {} more", minutes(until_ms))
        }
        Some(Behind::Paused { until_ms }) => {
            let fault = row.last_fault.unwrap_or("failed");
            format!("after others: it failed lately ({fault}); for {} more", minutes(until_ms))
        }
        Some(Behind::Engine) => "after others: their own engine is preferred".to_owned(),
        Some(Behind::Score) => format!("not in the draw: below {GOOD_PART:.2} of the best score"),
    }
}

fn excluded(exclusion: Exclusion) -> String {
    match exclusion {
        Exclusion::NotNamed => "no: another node was named".to_owned(),
        Exclusion::Version => "no: it speaks another version of the protocol".to_owned(),
        Exclusion::RanOut { by_ms } => format!("no: its record ran out {} s ago", by_ms / 1000),
        Exclusion::NotBegun { by_ms } => format!(
            "no: its record has not begun yet, for {} s more: its clock or this machine's is wrong",
            by_ms / 1000
        ),
        Exclusion::Model => "no: it does not serve the model".to_owned(),
        Exclusion::Purpose => "no: it embeds texts, and serves no turns".to_owned(),
        Exclusion::Echo => "no: a test engine, and those are not allowed (--allow-echo)".to_owned(),
        Exclusion::Price { price } => format!("no: a turn may cost {price}, which is above --max-price"),
    }
}

/// The evidence about a node, in a line.
fn evidence_line(row: &NodeExplanation, now_ms: u64) -> String {
    let evidence = &row.evidence;
    // Weights: misbehaviour counts as four failures, a refusal as half of one, and all of them fade.
    let mut parts =
        vec![format!("{:.1} turns served, failures weigh {:.1}", evidence.served, evidence.failed)];
    match &evidence.speed {
        None => parts.push("speed not measured".to_owned()),
        Some(speed) => {
            let rate = speed.tokens_per_second.map_or_else(
                || "answers too short for a rate".to_owned(),
                |rate| format!("{rate:.1} tokens/s"),
            );
            parts.push(format!("first text after {:.2} s, {rate}", speed.first_token_ms / 1000.0));
        }
    }
    parts.push(format!("{} of {} turns at once, busy {:.1}", row.in_flight, row.slots, evidence.busy));
    if let Verdict::Ranked(OfferRank { price, .. }) = &row.verdict {
        parts.push(format!("a turn costs at most {price}"));
    }
    if let Some(fault) = row.last_fault {
        parts.push(format!("last failure: {fault}"));
    }
    if row.gone {
        let heard = match row.heard_ms {
            0 => "never heard of".to_owned(),
            heard_ms => format!("last heard of {} s ago", now_ms.saturating_sub(heard_ms) / 1000),
        };
        parts.push(heard);
    }
    format!("{}: {}", short(&row.node), parts.join("; "))
}

fn describe_explained(row: &NodeExplanation, now_ms: u64) -> Value {
    let evidence = &row.evidence;
    let (mut probability, mut behind, mut exclusion, mut ranks) =
        (0.0, Value::Null, Value::Null, Value::Null);
    match &row.verdict {
        Verdict::Excluded(found) => {
            let price = match found {
                Exclusion::Price { price } => Some(price),
                _ => None,
            };
            exclusion = json!({ "condition": condition(*found), "price": price });
        }
        Verdict::Ranked(ranked) => {
            probability = ranked.share;
            behind = ranked.behind.map_or(Value::Null, |behind| json!(behind_name(behind)));
            let factors = &ranked.factors;
            ranks = json!({
                "score": factors.score(),
                "success": factors.success,
                "speed": factors.speed,
                "load": factors.load,
                "price": factors.price,
                "warm": factors.warm,
                "highest_price": ranked.price,
            });
        }
    }
    json!({
        "node": row.node.to_string(),
        "model": row.offer.as_ref().map(|offer| &offer.name),
        "model_id": row.offer.as_ref().map(|offer| offer.model.to_string()),
        "engine": row.offer.as_ref().map(|offer| offer.engine.name()),
        "probability": probability,
        "why": why(row, now_ms),
        "excluded": exclusion,
        "behind": behind,
        "factors": ranks,
        "seen": {
            "served": evidence.served,
            "failed": evidence.failed,
            "busy": evidence.busy,
            "turns_measured": evidence.speed.map(|speed| speed.turns),
            "first_token_ms": evidence.speed.map(|speed| speed.first_token_ms),
            "tokens_per_second": evidence.speed.and_then(|speed| speed.tokens_per_second),
            "in_flight": row.in_flight,
            "slots_claimed": row.slots,
            "last_fault": row.last_fault,
            "paused_until_ms": evidence.paused_until_ms,
            "lied_until_ms": evidence.lied_until_ms,
            "heard_ms": row.heard_ms,
            "gone": row.gone,
        },
    })
}

/// A stable name of an exclusion.
fn condition(exclusion: Exclusion) -> &'static str {
    match exclusion {
        Exclusion::NotNamed => "not_named",
        Exclusion::Version => "version",
        Exclusion::RanOut { .. } => "ran_out",
        Exclusion::NotBegun { .. } => "not_begun",
        Exclusion::Model => "model",
        Exclusion::Purpose => "purpose",
        Exclusion::Echo => "echo",
        Exclusion::Price { .. } => "price",
    }
}

/// A stable name of the reason for a lower rank.
fn behind_name(behind: Behind) -> &'static str {
    match behind {
        Behind::FailedNow => "failed_now",
        Behind::Gone => "gone",
        Behind::Lied { .. } => "lied",
        Behind::Paused { .. } => "paused",
        Behind::Engine => "engine",
        Behind::Score => "score",
    }
}
