//! `baton-node earnings`: sums up acknowledged receipts from the ledger. Only reads files, so it may run
//! beside the node.

use serde_json::{Value, json};

use super::{EarningsArgs, Exit, Failure, say, style::Style};
use crate::{
    config::{Settings, default_data_dir},
    identity::load_node_key,
    ledger::{self, Account, Credit, Day, LEDGER_FOLDER},
};

pub(super) fn run(args: EarningsArgs) -> Result<(), Failure> {
    let since = match &args.since {
        None => None,
        Some(text) => Some(Day::parse(text).ok_or_else(|| {
            Failure::text(Exit::Usage, format!("--since: \"{text}\" is no day; write one as 2026-11-22"))
        })?),
    };
    // A broken configuration does not keep anybody from the receipts.
    let settings = Settings::load(args.places.clone().flags()).ok();
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let mut nodes = args.node;
    let own = load_node_key(&folder).map_err(|error| Failure::new(Exit::Storage, error))?;
    nodes.push(own.node_id());
    let kept = folder.join(LEDGER_FOLDER);
    let account = ledger::read(&kept, &nodes, since).map_err(|error| {
        Failure::text(Exit::Storage, format!("cannot read the receipts in {}: {error}", kept.display()))
    })?;
    if args.json {
        say(as_json(&account, &own.node_id().to_string(), since));
    } else {
        say(describe(&account, Style::stdout()));
        if account.credits.is_empty()
            && let Some(Settings { input_price, output_price, storage_price, .. }) = settings
        {
            say(about_prices(input_price, output_price, storage_price));
        }
    }
    if args.verify && account.refused_count > 0 {
        let text =
            format!("lines that do not prove themselves, and were not counted: {}", account.refused_count);
        return Err(Failure::text(Exit::Failure, text));
    }
    Ok(())
}

fn credit(credit: &Credit) -> Value {
    json!({
        "turns": credit.turns, "input_tokens": credit.input_tokens, "output_tokens": credit.output_tokens,
        "price": credit.price,
    })
}

fn as_json(account: &Account, node: &str, since: Option<Day>) -> Value {
    let mut days = Vec::with_capacity(account.credits.len());
    for ((day, model), sum) in &account.credits {
        let mut line = credit(sum);
        line["day"] = json!(day.to_string());
        line["model"] = json!(model.to_string());
        days.push(line);
    }
    let refused: Vec<_> = account
        .refused
        .iter()
        .map(
            |refused| json!({ "file": refused.file, "line": refused.line, "why": refused.fault.to_string() }),
        )
        .collect();
    json!({
        "node": node,
        "since": since.map(|day| day.to_string()),
        "days": days,
        "total": credit(&account.total),
        "repeated": account.repeated,
        "refused_count": account.refused_count,
        "refused": refused,
    })
}

/// Millionths of a unit as a decimal number.
fn units(price: u64) -> String {
    format!("{}.{:06}", price / 1_000_000, price % 1_000_000)
}

/// How an operator without receipts sets prices.
fn about_prices(input: u64, output: u64, storage: u64) -> String {
    let charges = if (input, output, storage) == (0, 0, 0) { "charges nothing:" } else { "charges" };
    format!(
        "\nNo client has acknowledged a turn yet.\n\
         This node {charges} input_price = {input}, output_price = {output}, storage_price = {storage}.\n\
         They are options: prices of a thousand tokens and of a mebibyte for an epoch, in millionths of your unit."
    )
}

fn row(day: &str, model: &str, sum: &Credit) -> String {
    let units = units(sum.price);
    let Credit { turns, input_tokens, output_tokens, .. } = sum;
    format!("{day:<10}  {model:<16}  {turns:>7}  {input_tokens:>10}  {output_tokens:>10}  {units:>16}")
}

fn describe(account: &Account, style: Style) -> String {
    let (day, model, turns, input, output) = ("day", "model", "turns", "tokens in", "tokens out");
    let head =
        format!("{day:<10}  {model:<16}  {turns:>7}  {input:>10}  {output:>10}  {:>16}", "price in units");
    let mut lines = vec![style.strong(&head)];
    for ((day, model), sum) in &account.credits {
        let model = model.to_string();
        lines.push(row(&day.to_string(), model.get(..16).unwrap_or(&model), sum));
    }
    lines.push(row("total", "", &account.total));
    for refused in &account.refused {
        let text = format!("{} line {}: {}; not counted", refused.file, refused.line, refused.fault);
        lines.push(style.bad(&text));
    }
    let unnamed = account.refused_count.saturating_sub(account.refused.len() as u64);
    if unnamed > 0 {
        lines.push(style.bad(&format!("{unnamed} more lines are not counted")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_without_receipts_learns_how_prices_are_set() {
        assert!(about_prices(0, 0, 0).contains("charges nothing: input_price = 0"));
        assert!(
            about_prices(0, 5, 0).contains("charges input_price = 0, output_price = 5, storage_price = 0.")
        );
    }
}
