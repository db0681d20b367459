//! `baton-node earnings`: sums up acknowledged receipts from the ledger. It changes none, so it may run beside
//! the node.

use std::{collections::BTreeMap, path::Path};

use ::time::{Date, format_description::well_known::Iso8601};
use baton_proto::ids::ModelId;
use serde_json::{Value, json};

use super::{
    EarningsArgs, Exit, Failure, Style,
    ask::{Admin, block_on},
    say,
};
use crate::{
    config::{Settings, default_data_dir},
    daemon::data_dir::DataDir,
    identity::load_node_key,
    ledger::{self, Account, Credit, LEDGER_FOLDER},
};

pub(super) fn run(args: EarningsArgs) -> Result<(), Failure> {
    let since = match &args.since {
        None => None,
        Some(text) => Some(Date::parse(text, &Iso8601::DATE).map_err(|_| {
            Failure::text(Exit::Usage, format!("--since: \"{text}\" is no day; write one as 2026-11-22"))
        })?),
    };
    // A broken configuration does not keep anybody from the receipts.
    let settings = Settings::load(args.places.clone().flags()).ok();
    let json = args.places.json;
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let mut nodes = args.node;
    let own = load_node_key(&folder)?;
    nodes.push(own.node_id());
    let kept = folder.join(LEDGER_FOLDER);
    let account = ledger::read(&kept, &nodes, since).map_err(|error| {
        Failure::text(Exit::Storage, format!("cannot read the receipts in {}: {error}", kept.display()))
    })?;
    let names = model_names(&folder);
    if json {
        say(as_json(&account, &names, &own.node_id().to_string(), since));
    } else {
        say(describe(&account, &names, Style::stdout()));
        if account.credits.is_empty()
            && let Some(settings) = settings
        {
            say(about_prices(settings.input_price(), settings.output_price(), settings.storage_price()));
        }
    }
    if args.verify && account.refused_count > 0 {
        let text =
            format!("receipts that do not prove themselves, and were not counted: {}", account.refused_count);
        return Err(Failure::text(Exit::Failure, text));
    }
    Ok(())
}

/// The names of models by id. The running node knows those that it serves; a receipt has the id alone.
fn model_names(folder: &Path) -> BTreeMap<String, String> {
    let Some(address) = DataDir::running_admin(folder) else { return BTreeMap::new() };
    let status = Admin::at(address).and_then(|admin| block_on(async { Ok(admin.status().await?) }));
    let models = status.map(|status| status.models).unwrap_or_default();
    models.into_iter().map(|model| (model.model, model.name)).collect()
}

fn credit(credit: &Credit) -> Value {
    json!({
        "turns": credit.turns, "input_tokens": credit.input_tokens, "output_tokens": credit.output_tokens,
        "price": credit.price,
    })
}

fn as_json(account: &Account, names: &BTreeMap<String, String>, node: &str, since: Option<Date>) -> Value {
    let mut days = Vec::with_capacity(account.credits.len());
    for ((day, model), sum) in &account.credits {
        let mut line = credit(sum);
        line["day"] = json!(day.to_string());
        line["model"] = json!(model.to_string());
        line["model_name"] = json!(names.get(&model.to_string()));
        days.push(line);
    }
    let refused: Vec<_> = account
        .refused
        .iter()
        .map(|refused| json!({ "receipt": refused.number, "why": refused.error.to_string() }))
        .collect();
    json!({
        "node": node,
        "since": since.map(|day| day.to_string()),
        "days": days,
        "total": credit(&account.total),
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

/// A model's name, or the first digits of its id.
fn short_name(model: ModelId, names: &BTreeMap<String, String>) -> String {
    let id = model.to_string();
    names.get(&id).cloned().unwrap_or_else(|| id.get(..8).unwrap_or(&id).to_owned())
}

fn row(day: &str, (model, width): (&str, usize), sum: &Credit) -> String {
    let units = units(sum.price);
    let Credit { turns, input_tokens, output_tokens, .. } = sum;
    format!("{day:<10}  {model:<width$}  {turns:>7}  {input_tokens:>10}  {output_tokens:>10}  {units:>16}")
}

fn describe(account: &Account, names: &BTreeMap<String, String>, style: Style) -> String {
    let lines_of_models: Vec<_> = account
        .credits
        .iter()
        .map(|((day, model), sum)| (day.to_string(), short_name(*model, names), sum))
        .collect();
    let (day, model, turns, input, output) = ("day", "model", "turns", "tokens in", "tokens out");
    let width = lines_of_models.iter().map(|(_, name, _)| name.chars().count()).fold(model.len(), usize::max);
    let head = format!(
        "{day:<10}  {model:<width$}  {turns:>7}  {input:>10}  {output:>10}  {:>16}",
        "price in units"
    );
    let mut lines = vec![style.strong(&head)];
    lines.extend(lines_of_models.iter().map(|(day, name, sum)| row(day, (name.as_str(), width), sum)));
    lines.push(row("total", ("", width), &account.total));
    for refused in &account.refused {
        let text = format!("receipt {}: {}; not counted", refused.number, refused.error);
        lines.push(style.bad(&text));
    }
    let unnamed = account.refused_count.saturating_sub(account.refused.len() as u64);
    if unnamed > 0 {
        lines.push(style.bad(&format!("{unnamed} more receipts are not counted")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_where_the_node_knows_its_name() {
        let (known, other) = (ModelId([1; 32]), ModelId([2; 32]));
        let credit = |turns| Credit { turns, ..Credit::default() };
        let day = Date::parse("2026-11-22", &Iso8601::DATE).unwrap();
        let mut account = Account::default();
        account.credits.extend([((day, known), credit(3)), ((day, other), credit(4))]);
        let names = BTreeMap::from([(known.to_string(), "a-model-with-a-long-name".to_owned())]);
        let said = describe(&account, &names, Style::stdout());
        let columns = |part: &str| {
            let line = said.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{said}"));
            line.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(columns("long-name"), ["2026-11-22", "a-model-with-a-long-name", "3"]);
        assert_eq!(columns("02020202"), ["2026-11-22", "02020202", "4"]);
        let json = as_json(&account, &names, "n", None);
        assert_eq!(json["days"][0]["model_name"], "a-model-with-a-long-name");
        assert!(json["days"][1]["model_name"].is_null() && json["days"][1]["model"] == other.to_string());
    }

    #[test]
    fn an_operator_without_receipts_learns_how_prices_are_set() {
        assert!(about_prices(0, 0, 0).contains("charges nothing: input_price = 0"));
        assert!(
            about_prices(0, 5, 0).contains("charges input_price = 0, output_price = 5, storage_price = 0.")
        );
    }
}
