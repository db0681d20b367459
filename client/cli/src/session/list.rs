//! `baton session list`, and a session's data for programs.

use baton_client::{Client, Listing, SessionInfo, UnreadableSession};
use serde_json::{Value, json};

use crate::{
    clock,
    failure::Failure,
    out::{Out, short, wrap},
};

/// Cells of a title in the list.
const TITLE_CELLS: usize = 48;

/// The sessions, a line each.
pub(crate) async fn show_list(client: &Client, out: &Out) -> Result<(), Failure> {
    let Listing { sessions, unreadable } = client.listing().await?;
    if out.json() {
        let list: Vec<_> = sessions.iter().map(describe).collect();
        let unreadable: Vec<_> = unreadable.iter().map(describe_unreadable).collect();
        return Ok(out.value(&json!({ "sessions": list, "unreadable": unreadable }))?);
    }
    if sessions.is_empty() && unreadable.is_empty() {
        out.note("There are no conversations yet. Begin with: baton chat");
    }
    if !sessions.is_empty() {
        let rows: Vec<_> = sessions.iter().map(|session| row(session, clock::now_ms())).collect();
        out.table(&["ID", "TITLE", "TURNS", "LAST USED", "STORED UNTIL"], &rows)?;
    }
    let gone: Vec<String> =
        sessions.iter().filter(|one| one.deleted_elsewhere).map(|one| short(&one.id)).collect();
    if !gone.is_empty() {
        out.note(&format!("Remove what another device deleted: baton session delete {}", gone.join(" ")));
    }
    for journal in &unreadable {
        if let Some(id) = &journal.id {
            out.line(&format!("{}  cannot be read", short(id)))?;
        }
        out.warn(&journal.error.to_string());
        if let Some(hint) = journal.error.hint() {
            out.note(&format!("  try: {hint}"));
        }
    }
    Ok(())
}

/// A session as a row of the list.
fn row(session: &SessionInfo, now_ms: u64) -> Vec<Value> {
    let mut title = wrap::fit(&session.title, TITLE_CELLS);
    if session.deleted_elsewhere {
        title = format!("(deleted on another device) {title}");
    } else if session.pending {
        title = format!("(not answered) {title}");
    }
    if let Some(project) = &session.project {
        title = format!("{title} [{project}]");
    }
    if session.torn_end_bytes > 0 {
        title = format!("{title} (turns may be missing: baton session sync)");
    }
    let used = session.last_ms.unwrap_or(session.created_ms);
    let stored = match session.kept_until_ms {
        _ if session.deleted_elsewhere => None,
        _ if session.unstored > 0 => Some("not stored yet".to_owned()),
        Some(until_ms) if until_ms < now_ms => Some("may have expired".to_owned()),
        until_ms => until_ms.map(clock::day),
    };
    vec![
        short(&session.id).into(),
        title.into(),
        session.effective_turns.into(),
        clock::age(used, now_ms).into(),
        stored.into(),
    ]
}

fn describe_unreadable(journal: &UnreadableSession) -> Value {
    json!({
        "session": journal.id.map(|id| id.to_string()),
        "error": { "name": journal.error.name(), "message": journal.error.to_string() },
    })
}

/// A session, for programs.
pub(super) fn describe(session: &SessionInfo) -> Value {
    json!({
        "session": session.id.to_string(),
        "title": session.title,
        "project": session.project,
        "turns": session.turns,
        "effective_turns": session.effective_turns,
        "head": session.head.to_string(),
        "created_ms": session.created_ms,
        "last_ms": session.last_ms,
        "last_node": session.last_node.map(|node| node.to_string()),
        "pending": session.pending,
        "deleted_elsewhere": session.deleted_elsewhere,
        "torn_end_bytes": session.torn_end_bytes,
        "unstored": session.unstored,
        "kept_until_ms": session.kept_until_ms,
    })
}

/// The sessions that have all these words, each with its place.
pub(super) async fn search(client: &Client, words: &str, out: &Out) -> Result<(), Failure> {
    let found = client.search(words, None).await?;
    if out.json() {
        let found = found.iter().map(|one| {
            let mut value = describe(&one.session);
            value["snippet"] = json!(one.snippet);
            value
        });
        return Ok(out.value(&json!({ "sessions": found.collect::<Vec<_>>() }))?);
    }
    if found.is_empty() {
        out.note(&format!("No conversation has: {words}"));
    }
    for one in &found {
        out.line(&format!("{}  {}", short(&one.session.id), one.session.title))?;
        out.note(&format!("          {}", one.snippet));
    }
    Ok(())
}
