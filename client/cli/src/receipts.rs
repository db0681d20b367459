//! `baton receipts`: the nodes' receipts for the turns of this home, and their countersignatures.

use baton_client::{
    Client, CountersignatureStatus, TurnReceipt,
    evidence::{self, Equivocation},
};
use baton_proto::ids::SessionId;
use serde_json::{Value, json};

use crate::{
    args::ReceiptsArguments,
    failure::Failure,
    files::write_private,
    home::{find_session, with_client},
    out::{Out, count, short, turn_number},
    settings::Settings,
    turn_display::describe_receipt,
};

/// The table of a session's turns, by the values for programs.
const COLUMNS: [(&str, &str); 13] = [
    ("TURN", "/turn"),
    ("ACCEPTED (UTC)", "/accepted_ms"),
    ("NODE", "/node"),
    ("MODEL", "/receipt/model_name"),
    ("ENGINE", "/receipt/engine"),
    ("IN", "/receipt/input_tokens"),
    ("OUT", "/receipt/output_tokens"),
    ("RESUMED", "/receipt/resumed_tokens"),
    ("PRICE", "/receipt/price"),
    ("FIRST MS", "/receipt/first_token_ms"),
    ("DECODE MS", "/receipt/decode_ms"),
    ("COUNTERSIGNED", "/countersigned"),
    ("PROBLEM", "/problem"),
];

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
    if good { Ok(()) } else { Err(Failure::UNVERIFIED) }
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
                out.warn(&format!("session {}: {error}", short(&id)))
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
        let sessions = sessions.iter().map(
            |one| json!({ "session": one.id.to_string(), "turns": describe(client, one, arguments.verify) }),
        );
        out.value(&json!({
            "sessions": sessions.collect::<Vec<_>>(),
            "verified": arguments.verify.then_some(problems == 0),
            "signed_twice": twice.len(),
        }))?;
        return Ok(problems == 0);
    }
    for one in &sessions {
        show(one, &describe(client, one, arguments.verify), out)?;
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
            short(&one.accepted.session_id)
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

/// Shows the turns of a session, as [`describe`] has them.
fn show(session: &SessionReceipts, turns: &[Value], out: &Out) -> Result<(), Failure> {
    out.line(&format!("session {}", short(&session.id)))?;
    let shown: Vec<Value> = turns.iter().filter(|turn| !turn["receipt"].is_null()).cloned().collect();
    if !shown.is_empty() {
        out.table_of(&COLUMNS, &shown)?;
    }
    let missing = (turns.len() - shown.len()) as u64;
    if missing > 0 {
        out.note(&format!(
            "{} without a receipt: they were brought back from the store, which has none",
            count(missing, "turn")
        ));
    }
    Ok(())
}

/// The turns of a session, for programs.
fn describe(client: &Client, session: &SessionReceipts, verify: bool) -> Vec<Value> {
    let turns = session.turns.iter().map(|turn| {
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
    turns.collect()
}
