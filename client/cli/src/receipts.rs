//! `baton receipts`: the nodes' receipts for the turns of this home, and their countersignatures.

use baton_client::{
    Client, CountersignatureStatus, TurnReceipt,
    evidence::{self, Equivocation},
};
use baton_proto::{ids::SessionId, receipt::EngineKind};
use serde_json::{Value, json};

use crate::{
    args::ReceiptsArguments,
    clock::date_time,
    failure::Failure,
    files::write_private,
    home::{find_session, with_client},
    out::{Out, count, short, short_session, turn_number},
    settings::Settings,
    turn_display::describe_receipt,
};

/// The turns of one session.
struct SessionReceipts {
    id: SessionId,
    turns: Vec<TurnReceipt>,
}

pub(crate) async fn run(
    settings: &Settings,
    arguments: &ReceiptsArguments,
    out: &Out,
) -> Result<(), Failure> {
    let good = with_client(settings, false, async |client| list(client, arguments, out).await).await?;
    if good { Ok(()) } else { Err(Failure::Unverified) }
}

/// Whether no problem was found.
async fn list(client: &Client, arguments: &ReceiptsArguments, out: &Out) -> Result<bool, Failure> {
    let ids = match &arguments.session {
        Some(named) => vec![find_session(client, named).await?],
        None => client.session_ids().await?,
    };
    let mut sessions: Vec<SessionReceipts> = Vec::new();
    for id in ids {
        match client.session(id).receipts(arguments.verify).await {
            Ok(turns) => sessions.push(SessionReceipts { id, turns }),
            // One damaged journal must not hide the others.
            Err(error) if arguments.session.is_none() => {
                out.warn(&format!("session {}: {error}", short_session(&id)))
            }
            Err(error) => return Err(error.into()),
        }
    }
    sessions.retain(|one| arguments.session.is_some() || !one.turns.is_empty());
    sessions.sort_by_key(|one| (one.turns.first().map(|turn| turn.accepted_ms), one.id));
    let turns = || sessions.iter().flat_map(|one| &one.turns);
    let twice: Vec<Equivocation> = turns().filter_map(|turn| turn.equivocation.clone()).collect();
    let problems = turns().filter(|turn| turn.problem.is_some()).count();
    if let Some(path) = &arguments.evidence {
        let text = serde_json::to_vec_pretty(&evidence::export(&twice)).expect("a JSON value has a text");
        write_private(path, &text)?;
    }
    if out.json() {
        let sessions = sessions.iter().map(|one| describe(client, one, arguments.verify));
        out.value(&json!({
            "sessions": sessions.collect::<Vec<_>>(),
            "verified": arguments.verify.then_some(problems == 0),
            "signed_twice": twice.len(),
        }))?;
        return Ok(problems == 0);
    }
    for one in &sessions {
        show(client, one, arguments.verify, out)?;
    }
    show_twice(&twice, arguments, out);
    match (turns().count() as u64, arguments.verify, problems as u64) {
        (0, ..) => out.note("no receipts yet"),
        (_, false, _) => out.note("checked when each turn was accepted; check again with --verify"),
        (turns, true, 0) => out.good(&format!("✓ verified: {}", count(turns, "turn"))),
        (_, true, many) => out.warn(&format!("{} did not verify", count(many, "turn"))),
    }
    Ok(problems == 0)
}

/// Shows the pairs of links that one node signed for one turn.
fn show_twice(twice: &[Equivocation], arguments: &ReceiptsArguments, out: &Out) {
    for one in twice {
        out.warn(&format!(
            "node {} signed two different links for turn {} of {}",
            short(&one.node()),
            turn_number(one.accepted.seq),
            short_session(&one.accepted.session_id)
        ));
    }
    match &arguments.evidence {
        Some(path) => {
            let pairs = count(twice.len() as u64, "pair of links");
            out.note(&format!("{pairs} written to {}", path.display()));
        }
        None if !twice.is_empty() => {
            out.note("--evidence FILE writes the links down, for anybody to check");
        }
        None => {}
    }
}

fn countersigned(state: CountersignatureStatus) -> &'static str {
    match state {
        CountersignatureStatus::No => "no",
        CountersignatureStatus::Pending => "pending",
        CountersignatureStatus::Delivered => "yes",
        CountersignatureStatus::Moot => "moot",
    }
}

fn show(client: &Client, listed: &SessionReceipts, verify: bool, out: &Out) -> Result<(), Failure> {
    out.line(&format!("session {}", short_session(&listed.id)))?;
    let mut rows = Vec::new();
    for turn in &listed.turns {
        let Some(receipt) = &turn.receipt else { continue };
        let name = client.model_name(receipt.model);
        let name = name.unwrap_or_else(|| receipt.model.to_string().chars().take(8).collect());
        // Answers of other engines cannot be computed again.
        let engine = match receipt.engine {
            EngineKind::Native => String::new(),
            other => format!(" ({})", other.name()),
        };
        let (tokens, times) = (&receipt.tokens, &receipt.timings);
        let verdict = turn.problem.map(|code| code.name());
        rows.push(vec![
            turn_number(turn.seq).to_string(),
            date_time(turn.accepted_ms),
            short(&turn.node),
            format!("{name}{engine}"),
            tokens.input.to_string(),
            tokens.output.to_string(),
            tokens.resumed.to_string(),
            receipt.price.to_string(),
            times.first_token_ms.to_string(),
            times.decode_ms.to_string(),
            countersigned(turn.countersigned).to_owned(),
            verdict.unwrap_or(if verify { "yes" } else { "at acceptance" }).to_owned(),
        ]);
    }
    let missing = (listed.turns.len() - rows.len()) as u64;
    let heading = [
        "TURN",
        "ACCEPTED (UTC)",
        "NODE",
        "MODEL",
        "IN",
        "OUT",
        "RESUMED",
        "PRICE",
        "FIRST MS",
        "DECODE MS",
        "COUNTERSIGNED",
        "VERIFIED",
    ];
    if !rows.is_empty() {
        out.table(&heading, rows)?;
    }
    if missing > 0 {
        out.note(&format!(
            "{} without a receipt: they were brought back from the store, which has none",
            count(missing, "turn")
        ));
    }
    Ok(())
}

fn describe(client: &Client, SessionReceipts { id, turns }: &SessionReceipts, verify: bool) -> Value {
    let turns = turns.iter().map(|turn| {
        let receipt = turn.receipt.as_ref();
        let receipt =
            receipt.map(|receipt| describe_receipt(receipt, client.model_name(receipt.model).as_deref()));
        json!({
            "seq": turn.seq,
            "turn": turn_number(turn.seq),
            "node": turn.node.to_string(),
            "accepted_ms": turn.accepted_ms,
            "receipt": receipt,
            "countersigned": countersigned(turn.countersigned),
            "verified": verify.then_some(turn.problem.is_none()),
            "problem": turn.problem.map(|code| code.name()),
            "signed_twice": turn.equivocation.as_ref().map(Equivocation::to_json),
        })
    });
    json!({ "session": id.to_string(), "turns": turns.collect::<Vec<_>>() })
}
