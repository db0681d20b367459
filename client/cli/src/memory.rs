//! `baton memory`: lets an account's owner see and change its memory at a relayer.

mod agent_pipe;

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    args::{ContextArguments, DeleteArguments, MemoryCommand, MemoryCommands},
    failure::Failure,
    files::{read_bounded, write_private},
    interrupt::confirmed,
    out::{Out, clean, count, wrap},
    relayer::{
        client::RelayerClient,
        items::{ItemSelection, PAGE, escaped, items_of},
    },
    settings::Settings,
};

/// Largest export that is sent back.
const MAX_IMPORT_BYTES: u64 = 64 * 1024 * 1024;
/// Cells of a text in a table.
const SHOWN_CELLS: usize = 100;

pub(crate) async fn run(settings: &Settings, commands: &MemoryCommands, out: &Out) -> Result<(), Failure> {
    let relayer = RelayerClient::open(settings)?;
    match (&commands.command, commands.extract_through_nodes) {
        (Some(command), None) => run_command(&relayer, command, out).await,
        (Some(_), Some(_)) => Err(Failure::usage(
            "--extract-through-nodes changes a setting, and goes with no other command.",
            "baton memory --extract-through-nodes on|off",
        )),
        (None, Some(allowed)) => {
            let body = json!({ "extract_through_nodes": allowed });
            let settings = relayer.json(Method::PUT, "/api/settings", Some(&body)).await?;
            if out.json() { Ok(out.value(&settings)?) } else { show_settings(&settings, out) }
        }
        (None, None) => overview(&relayer, out).await,
    }
}

/// Shows the settings, the projects and the sessions of an account.
async fn overview(relayer: &RelayerClient, out: &Out) -> Result<(), Failure> {
    let settings = relayer.json(Method::GET, "/api/settings", None).await?;
    let projects = relayer.json(Method::GET, "/api/projects", None).await?;
    let sessions = relayer.json(Method::GET, "/api/sessions", None).await?;
    let (projects, sessions) = (&projects["places"], &sessions["places"]);
    if out.json() {
        let all = json!({ "settings": settings, "projects": projects, "sessions": sessions });
        return Ok(out.value(&all)?);
    }
    show_settings(&settings, out)?;
    show_groups("project", projects, out)?;
    show_groups("session", sessions, out)
}

async fn run_command(relayer: &RelayerClient, command: &MemoryCommand, out: &Out) -> Result<(), Failure> {
    match command {
        MemoryCommand::List { context, all, words, kind, limit } => {
            let mut body = context_json(context);
            body["everything"] = (*all).into();
            body["limit"] = (*limit).into();
            body["words"] = json!(Some(words.join(" ")).filter(|words| !words.is_empty()));
            body["filters"] = json!(kind.as_ref().map(|kind| json!({ "kinds": [kind] })));
            let nothing = match all {
                true => "Nothing is remembered that fits.",
                false => "Nothing is remembered here. All places: baton memory list --all",
            };
            show_items(&relayer.json(Method::POST, "/api/list", Some(&body)).await?, nothing, out)
        }
        MemoryCommand::Search { query: None, context, .. } => {
            let path = format!("/api/profile{}", context_query(context));
            show_items(&relayer.json(Method::GET, &path, None).await?, "No profile is remembered here.", out)
        }
        MemoryCommand::Search { query: Some(query), context, limit } => {
            let mut body = context_json(context);
            body["query"] = query.as_str().into();
            body["limit"] = (*limit).into();
            let nothing = "No memory matches. A search compares words and meaning; baton memory list --all shows all of them.";
            show_items(&relayer.json(Method::POST, "/api/recall", Some(&body)).await?, nothing, out)
        }
        MemoryCommand::Add { text, context, relationship } => {
            let mut fact = context_json(context);
            fact["text"] = text.as_str().into();
            fact["layer"] = if *relationship { "relationship" } else { "profile" }.into();
            show_added(&relayer.json(Method::POST, "/api/remember", Some(&fact)).await?, out)
        }
        MemoryCommand::Edit { id, text, keep_old, others } => {
            let body = json!({ "text": text, "others": others });
            let path = format!("/api/items/{}", relayer.item_id(id).await?);
            let answer = match keep_old {
                true => relayer.json(Method::POST, &format!("{path}/supersede"), Some(&body)).await?,
                false => relayer.json(Method::PATCH, &path, Some(&body)).await?,
            };
            out.answer(&answer, &row(&answer))?;
            show_holders(&answer, out);
            Ok(())
        }
        MemoryCommand::Delete(given) => delete(relayer, given, out).await,
        MemoryCommand::Export { out: file, context } => export(relayer, file, context, out).await,
        MemoryCommand::Import { file } => import(relayer, file, out).await,
        MemoryCommand::Consent { ids } if ids.is_empty() => {
            let pending = json!({ "everything": true, "consent": "pending", "limit": PAGE });
            let waiting = relayer.json(Method::POST, "/api/list", Some(&pending)).await?;
            show_items(&waiting, "No memory waits for your consent.", out)
        }
        MemoryCommand::Consent { ids } => {
            let body = json!({ "ids": relayer.item_ids(ids).await?, "decision": "grant" });
            let answer = relayer.json(Method::POST, "/api/consent", Some(&body)).await?;
            let kept = count(answer["count"].as_u64().unwrap_or_default(), "memory");
            Ok(out.answer(&answer, &format!("{kept} kept"))?)
        }
        MemoryCommand::Redeem { invitation } => {
            let body = json!({ "invitation": invitation });
            let answer = relayer.json(Method::POST, "/api/invitation", Some(&body)).await?;
            let until = clean(answer["until"].as_str().unwrap_or_default());
            Ok(out.answer(&answer, &format!("the relayer serves {} until {until}", relayer.owner()))?)
        }
        MemoryCommand::Mcp => agent_pipe::run(relayer).await,
    }
}

/// The named parts of a context.
fn context_parts(context: &ContextArguments) -> impl Iterator<Item = (&str, &String)> {
    let parts = [("project", &context.project), ("session", &context.session), ("persona", &context.persona)];
    parts.into_iter().filter_map(|(name, part)| Some((name, part.as_ref()?)))
}

fn context_json(context: &ContextArguments) -> Value {
    context_parts(context).map(|(name, part)| (name.to_owned(), Value::from(part.as_str()))).collect()
}

fn context_query(context: &ContextArguments) -> String {
    let given = context_parts(context).map(|(name, part)| format!("{name}={}", escaped(part)));
    let query = given.collect::<Vec<_>>().join("&");
    if query.is_empty() { query } else { format!("?{query}") }
}

/// Deletes memories by their ids, or all of a project, of a kind or of the account.
async fn delete(relayer: &RelayerClient, given: &DeleteArguments, out: &Out) -> Result<(), Failure> {
    let DeleteArguments { ids, project, kind, others, everything, yes } = given;
    if !ids.is_empty() {
        let body = json!({ "ids": relayer.item_ids(ids).await?, "others": others });
        let answer = relayer.json(Method::POST, "/api/delete", Some(&body)).await?;
        let deleted = count(answer["count"].as_u64().unwrap_or_default(), "memory");
        out.answer(&answer, &format!("{deleted} deleted for good"))?;
        show_holders(&answer, out);
        return Ok(());
    }
    let kind_name = kind.as_ref().map(|kind| format!(" of the kind {kind}")).unwrap_or_default();
    let place = match project {
        _ if *everything => "of this account, with their keys,".to_owned(),
        Some(project) => format!("in the project {}", clean(project)),
        None => "in the shared pool of no project".to_owned(),
    };
    if !confirmed(&format!("Delete all memories{kind_name} {place} for good?"), *yes)? {
        out.note("Nothing is deleted.");
        return Ok(());
    }
    if *everything {
        // The account once more: a path alone deletes nothing.
        let confirm = json!({ "confirm": relayer.owner() });
        relayer.text(Method::POST, "/api/erase", confirm.to_string()).await?;
        return Ok(out.answer(&json!({ "deleted": "everything" }), "everything is deleted")?);
    }
    let selection = ItemSelection { project: project.as_deref(), kind: kind.as_deref(), everything: false };
    let deleted = relayer.delete_items(&selection, others.as_deref()).await?;
    Ok(out.answer(&json!({ "count": deleted }), &format!("{} deleted for good", count(deleted, "memory")))?)
}

async fn import(relayer: &RelayerClient, file: &Path, out: &Out) -> Result<(), Failure> {
    let text = read_bounded(file, MAX_IMPORT_BYTES)?;
    let answer = relayer.text(Method::POST, "/api/import", text.to_string()).await?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    let said = format!("{} added, {} known already", answer["added"], answer["skipped"]);
    Ok(out.answer(&answer, &said)?)
}

/// Other holders of the words: the number deleted with them, and the ids of the rest.
fn show_holders(answer: &Value, out: &Out) {
    if out.json() {
        return;
    }
    let all = answer["others"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (gone, left): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|holder| holder["deleted"].as_bool().unwrap_or_default());
    if !gone.is_empty() {
        out.note(&format!("{} with the same words went along", count(gone.len() as u64, "item")));
    }
    for holder in &left {
        out.note(&format!("left, with the same words: {}", holder_line(holder)));
    }
    if let Some(more) = answer["more"].as_u64().filter(|more| *more > 0) {
        out.note(&format!("{more} more are not shown"));
    }
    if !left.is_empty() {
        out.note("delete them by their ids: baton memory delete ID…");
    }
}

/// A holder of the words, in a line.
fn holder_line(holder: &Value) -> String {
    let text = |field: &str| holder[field].as_str().unwrap_or_default();
    let session = if text("session").is_empty() { "" } else { "  in " };
    clean(&format!("{}  {} of {}{session}{}", text("id"), text("kind"), text("author"), text("session")))
        .replace('\n', " ")
}

async fn export(
    relayer: &RelayerClient,
    file: &Path,
    context: &ContextArguments,
    out: &Out,
) -> Result<(), Failure> {
    let path = format!("/api/export{}", context_query(context));
    let mut text = relayer.text(Method::GET, &path, String::new()).await?;
    if let Some(line) = relayer.endorsement(&text) {
        text.push_str(&line);
        text.push('\n');
    }
    if file.as_os_str() == "-" {
        for line in text.lines() {
            out.line(line)?;
        }
        return Ok(());
    }
    write_private(file, text.as_bytes())?;
    let items = exported_items(&text);
    let written = format!("{} written to {}; they are in the clear", count(items, "memory"), file.display());
    Ok(out.answer(&json!({ "items": items, "file": file }), &written)?)
}

/// Items among the lines of an export. Other lines name places, turns, and connections of items.
fn exported_items(text: &str) -> u64 {
    text.lines().filter(|line| line.starts_with("{\"item\":")).count() as u64
}

/// The owner's decisions, and their effects.
fn show_settings(answer: &Value, out: &Out) -> Result<(), Failure> {
    let allowed = answer["extract_through_nodes"].as_bool().unwrap_or_default();
    let offered = answer["nodes_offered"].as_bool().unwrap_or_default();
    let by = match answer["written_by"].as_str() {
        Some("endpoint") => "rules, and a model of the relayer's operator",
        Some("nodes") => "rules, and a model on nodes of strangers",
        _ => "rules alone",
    };
    out.line(&format!("extract through nodes  {}", if allowed { "on" } else { "off" }))?;
    out.line(&format!("written by             {by}"))?;
    if allowed && !offered {
        out.note("this relayer's operator offers no nodes");
    }
    Ok(())
}

/// Shows listed items, or found ones with their scores, or says that there are none.
fn show_items(answer: &Value, nothing: &str, out: &Out) -> Result<(), Failure> {
    if out.json() {
        return Ok(out.value(answer)?);
    }
    let found = answer["results"].as_array().map(Vec::as_slice);
    let shown = found.unwrap_or_else(|| items_of(answer));
    if shown.is_empty() {
        out.note(nothing);
    }
    for item in shown {
        let score = item["score"].as_f64().map(|score| format!("{score:.2}  ")).unwrap_or_default();
        out.line(&format!("{score}{}", row(item)))?;
    }
    if let Some(degraded) = answer["degraded"].as_str() {
        out.warn(degraded);
    }
    if answer["next"].is_string() {
        out.note("there are more; ask for them with a higher --limit, or narrow it with words");
    }
    Ok(())
}

/// One line of a table.
fn row(item: &Value) -> String {
    let text = |field: &str| item[field].as_str().unwrap_or_default();
    let day: String = text("time").chars().take(10).collect();
    let shown = wrap::fit(&wrap::clean_line(text("text")), SHOWN_CELLS);
    let asks = if text("consent") == "pending" { "  [asks for consent]" } else { "" };
    let project = if text("project").is_empty() { "-" } else { text("project") };
    let (id, kind, author) = (text("id"), text("kind"), text("author"));
    clean(&format!("{id}  {day}  {kind:<8} {author:<9} {project:<12} {shown}{asks}")).replace('\n', " ")
}

fn show_added(answer: &Value, out: &Out) -> Result<(), Failure> {
    let id = answer["id"].as_str().unwrap_or_default();
    let text = match (answer["existed"].as_bool(), answer["superseded"].as_str()) {
        (Some(true), _) => format!("{id}  was known already"),
        (_, Some(old)) => format!("{id}  remembered, in the place of {old}"),
        _ => format!("{id}  remembered"),
    };
    Ok(out.answer(answer, &text)?)
}

/// Shows the projects or the sessions of an account, a line each.
fn show_groups(kind: &str, groups: &Value, out: &Out) -> Result<(), Failure> {
    for group in groups.as_array().into_iter().flatten() {
        let text = |field: &str| group[field].as_str().unwrap_or_default();
        let items = count(group["items"].as_u64().unwrap_or_default(), "item");
        let within =
            if text("project").is_empty() { String::new() } else { format!("  in {}", text("project")) };
        out.line(&clean(&format!("{kind}  {}  {items}{within}", text("name"))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_counts_its_items_and_nothing_else() {
        let lines = [
            r#"{"header":{"format":"baton-memory-export-v1"}}"#,
            r#"{"project":{"name":"{\"item\":","created_ms":1}}"#,
            r#"{"session":{"name":"s"}}"#,
            r#"{"item":{"text":"one"}}"#,
            r#"{"item":{"text":"two"}}"#,
            r#"{"edge":{"from":"a"}}"#,
            r#"{"turn":{"turn":0}}"#,
            r#"{"signature":{"lines":7}}"#,
        ];
        assert_eq!(exported_items(&lines.join("\n")), 2);
        assert_eq!(exported_items(""), 0);
    }

    #[test]
    fn names_are_escaped_in_a_query() {
        let context = ContextArguments {
            project: Some("a b&c".to_owned()),
            session: None,
            persona: Some("é".to_owned()),
        };
        assert_eq!(context_query(&context), "?project=a%20b%26c&persona=%C3%A9");
        assert_eq!(context_query(&ContextArguments::default()), "");
    }

    #[test]
    fn a_holder_of_words_is_named_in_one_line() {
        let mut holder = json!({
            "id": "ab", "kind": "episode", "author": "assistant", "session": "work\u{1b}[31m\nx", "deleted": false,
        });
        assert_eq!(holder_line(&holder), "ab  episode of assistant  in work[31m x");
        holder["session"] = Value::Null;
        assert_eq!(holder_line(&holder), "ab  episode of assistant");
    }

    #[test]
    fn a_row_is_one_line_without_control_characters() {
        let item = json!({
            "id": "ab", "time": "2026-11-21T10:00:00Z", "kind": "fact", "author": "user", "consent": "pending",
            "text": format!("likes\n\u{1b}[31mtea{}", "!".repeat(200)),
        });
        let row = super::row(&item);
        assert!(row.starts_with("ab  2026-11-21  fact     user      -            likes [31mtea!"), "{row}");
        assert!(row.ends_with("…  [asks for consent]") && !row.contains('\n'));
    }
}
