//! `baton receipts`: the nodes' receipts for the turns of this home, and their countersignatures.

use std::collections::BTreeMap;

use baton_client::{
    Client, CountersignatureStatus, TurnReceipt,
    evidence::{self, Equivocation},
};
use baton_proto::{
    ids::{ModelId, NodeId, SessionId},
    receipt::EngineKind,
};
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

/// Sums over turns.
#[derive(Default)]
struct Total {
    turns: u64,
    input: u64,
    output: u64,
    resumed: u64,
    price: u64,
    delivered: u64,
}

impl Total {
    fn add(&mut self, turn: &TurnReceipt) {
        let Some(receipt) = &turn.receipt else { return };
        self.turns += 1;
        self.input += u64::from(receipt.tokens.input);
        self.output += u64::from(receipt.tokens.output);
        self.resumed += u64::from(receipt.tokens.resumed);
        self.price = self.price.saturating_add(receipt.price);
        self.delivered += u64::from(turn.countersigned == CountersignatureStatus::Delivered);
    }

    fn describe(&self, source: &Source, client: &Client) -> Value {
        json!({
            "node": source.node.to_string(),
            "model": source.model.to_string(),
            "name": client.model_name(source.model),
            "engine": source.engine,
            "turns": self.turns,
            "input_tokens": self.input,
            "output_tokens": self.output,
            "resumed_tokens": self.resumed,
            "price": self.price,
            "countersigned": self.delivered,
        })
    }

    fn row(&self, source: &Source, client: &Client) -> Vec<String> {
        let numbers = [self.turns, self.input, self.output, self.resumed, self.price, self.delivered];
        let names = [short(&source.node), model_cell(client, source.model, source.engine)];
        names.into_iter().chain(numbers.map(|number| number.to_string())).chain([String::new()]).collect()
    }
}

/// A node's model, on an engine.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    node: NodeId,
    model: ModelId,
    engine: &'static str,
}

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

/// The receipts that are shown, with their sums.
struct ReceiptList {
    sessions: Vec<SessionReceipts>,
    totals: BTreeMap<Source, Total>,
    /// Pairs of links that one node signed for one turn.
    twice: Vec<Equivocation>,
    problems: usize,
}

impl ReceiptList {
    fn of(mut sessions: Vec<SessionReceipts>) -> Self {
        sessions.sort_by_key(|listed| (listed.turns.first().map(|turn| turn.accepted_ms), listed.id));
        let mut list = Self { sessions, totals: BTreeMap::new(), twice: Vec::new(), problems: 0 };
        for turn in list.sessions.iter().flat_map(|listed| &listed.turns) {
            list.problems += usize::from(turn.problem.is_some());
            list.twice.extend(turn.equivocation.clone());
            if let Some(receipt) = &turn.receipt {
                let (model, engine) = (receipt.model, receipt.engine.name());
                list.totals.entry(Source { node: turn.node, model, engine }).or_default().add(turn);
            }
        }
        list
    }

    fn describe(&self, client: &Client, verify: bool) -> Value {
        let totals = self.totals.iter().map(|(source, total)| total.describe(source, client));
        let sessions = self.sessions.iter().map(|listed| describe(client, listed, verify));
        json!({
            "sessions": sessions.collect::<Vec<_>>(),
            "totals": totals.collect::<Vec<_>>(),
            "verified": verify.then_some(self.problems == 0),
            "signed_twice": self.twice.len(),
        })
    }

    /// The table of the sums.
    fn show_sums(&self, client: &Client, out: &Out) -> Result<(), Failure> {
        let rows = self.totals.iter().map(|(source, total)| total.row(source, client));
        let heading = ["NODE", "MODEL", "TURNS", "TOKENS IN", "OUT", "RESUMED", "PRICE", "COUNTERSIGNED", ""];
        out.line("")?;
        Ok(out.table(&heading, rows.collect())?)
    }

    /// The pairs of links, and the outcome of the check.
    fn show_problems(&self, arguments: &ReceiptsArguments, out: &Out) {
        for one in &self.twice {
            let (node, session) = (one.node(), one.accepted.session_id);
            out.warn(&format!(
                "node {} signed two different links for turn {} of {}",
                short(&node),
                turn_number(one.accepted.seq),
                short_session(&session)
            ));
        }
        match &arguments.evidence {
            Some(path) => {
                let pairs = count(self.twice.len() as u64, "pair of links");
                out.note(&format!("{pairs} written to {}", path.display()));
            }
            None if !self.twice.is_empty() => {
                out.note("--evidence FILE writes the links down, for anybody to check");
            }
            None => {}
        }
        let turns = self.sessions.iter().map(|listed| listed.turns.len() as u64).sum();
        match (arguments.verify, self.problems) {
            (false, _) => out.note("checked when each turn was accepted; check again with --verify"),
            (true, 0) => out.good(&format!("✓ verified: {}", count(turns, "turn"))),
            (true, many) => out.warn(&format!("{} did not verify", count(many as u64, "turn"))),
        }
    }
}

/// Whether no problem was found.
async fn list(client: &Client, arguments: &ReceiptsArguments, out: &Out) -> Result<bool, Failure> {
    let ids = match &arguments.session {
        Some(named) => vec![find_session(client, named).await?],
        None => client.session_ids().await?,
    };
    let mut listed: Vec<SessionReceipts> = Vec::new();
    for id in ids {
        match client.session(id).receipts(arguments.verify).await {
            Ok(turns) => listed.push(SessionReceipts { id, turns }),
            // One damaged journal must not hide the others.
            Err(error) if arguments.session.is_none() => {
                out.warn(&format!("session {}: {error}", short_session(&id)))
            }
            Err(error) => return Err(error.into()),
        }
    }
    listed.retain(|one| arguments.session.is_some() || !one.turns.is_empty());
    let list = ReceiptList::of(listed);
    if let Some(path) = &arguments.evidence {
        let text =
            serde_json::to_vec_pretty(&evidence::export(&list.twice)).expect("a JSON value has a text");
        write_private(path, &text)?;
    }
    if out.json() {
        out.value(&list.describe(client, arguments.verify))?;
        return Ok(list.problems == 0);
    }
    for listed in &list.sessions {
        show(client, listed, arguments.verify, out)?;
    }
    if list.totals.is_empty() {
        out.note("no receipts yet");
        return Ok(list.problems == 0);
    }
    list.show_sums(client, out)?;
    list.show_problems(arguments, out);
    Ok(list.problems == 0)
}

fn model_name(client: &Client, model: ModelId) -> String {
    client.model_name(model).unwrap_or_else(|| model.to_string().chars().take(8).collect())
}

/// A model, with its engine if answers of that engine cannot be computed again.
fn model_cell(client: &Client, model: ModelId, engine: &str) -> String {
    let name = model_name(client, model);
    if engine == EngineKind::Native.name() { name } else { format!("{name} ({engine})") }
}

fn countersigned(state: CountersignatureStatus) -> &'static str {
    match state {
        CountersignatureStatus::No => "no",
        CountersignatureStatus::Pending => "pending",
        CountersignatureStatus::Delivered => "yes",
        CountersignatureStatus::Moot => "moot",
    }
}

fn verdict(turn: &TurnReceipt, verify: bool) -> String {
    match (turn.problem, verify) {
        (Some(code), _) => code.name().to_owned(),
        (None, true) => "yes".to_owned(),
        (None, false) => "at acceptance".to_owned(),
    }
}

fn show(client: &Client, listed: &SessionReceipts, verify: bool, out: &Out) -> Result<(), Failure> {
    let turns = &listed.turns;
    out.line(&format!("session {}", short_session(&listed.id)))?;
    let missing = turns.iter().filter(|turn| turn.receipt.is_none()).count() as u64;
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
    let mut rows = Vec::new();
    for turn in turns {
        let Some(receipt) = &turn.receipt else { continue };
        let mut row = vec![turn_number(turn.seq).to_string(), date_time(turn.accepted_ms), short(&turn.node)];
        row.push(model_cell(client, receipt.model, receipt.engine.name()));
        let (tokens, times) = (&receipt.tokens, &receipt.timings);
        row.extend([tokens.input, tokens.output, tokens.resumed].map(|number| number.to_string()));
        row.push(receipt.price.to_string());
        row.extend([times.first_token_ms, times.decode_ms].map(|number| number.to_string()));
        row.extend([countersigned(turn.countersigned).to_owned(), verdict(turn, verify)]);
        rows.push(row);
    }
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
    let missing = turns.iter().filter(|turn| turn.receipt.is_none()).count();
    let turns: Vec<_> = turns.iter().map(|turn| describe_turn(client, turn, verify)).collect();
    json!({ "session": id.to_string(), "without_receipt": missing, "turns": turns })
}

fn describe_turn(client: &Client, turn: &TurnReceipt, verify: bool) -> Value {
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
}
