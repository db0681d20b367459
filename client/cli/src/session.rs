//! `baton session`.

use std::{collections::HashSet, path::Path};

use baton_client::{
    Client, ClientError, Listing, SessionInfo, SessionRoot, UnreadableSession, VerifyReport, transfer,
};
use baton_kit::prompt;
use baton_proto::{export::ExportMemory, ids::SessionId};
use serde_json::json;
use zeroize::Zeroizing;

use super::{
    Failure,
    account::words,
    args::{SessionCommand, TurnChoice},
    backup, clock, devices, find_session, graph,
    interrupt::cancellable,
    out::{self, Out, count, role, short, short_session, turn_number},
    settings::{Settings, read_bounded},
    storage, with_client, write_private,
};

/// Characters of a title in the list.
const TITLE_CHARS: usize = 48;

/// Said while stores or head indexes do not answer at once.
const ASKING: &str = "Asking the stores …";

pub(crate) async fn run(settings: &Settings, command: SessionCommand, out: &Out) -> Result<(), Failure> {
    use SessionCommand as C;
    let mut root = None;
    match &command {
        // It begins a chat.
        C::Rekey(_) => return Ok(()),
        C::Verify { file: Some(file), full, .. } => return verify_file(file, *full, out).await,
        C::Renew { .. } => settings.ask_shards().await?,
        C::Restore { session: None, words_file } => {
            let words = words(words_file.as_deref())?;
            root = Some(SessionRoot::from_words(&words).map_err(ClientError::from)?);
        }
        _ => {}
    }
    let uses_nodes = matches!(
        command,
        C::Verify { .. } | C::Import { .. } | C::Sync { .. } | C::Delete { .. } | C::Restore { .. }
    );
    let asks_stores =
        matches!(command, C::Verify { .. } | C::Renew { .. } | C::Sync { .. } | C::Restore { .. });
    with_client(settings, uses_nodes, async |client| {
        let work = Box::pin(run_with(client, command, root, out));
        if asks_stores { out.while_slow(ASKING, work).await } else { work.await }
    })
    .await
}

/// Runs a command that needs a client. `root` is that of the words of a restoration.
async fn run_with(
    client: &Client,
    command: SessionCommand,
    root: Option<SessionRoot>,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        SessionCommand::Rekey(_) => Ok(()),
        SessionCommand::List { words } if words.is_empty() => show_list(client, out).await,
        SessionCommand::List { words } => search(client, &words.join(" "), out).await,
        SessionCommand::Show { session, graph: true, .. } if !out.json() => {
            show_graph(client, &session, out).await
        }
        SessionCommand::Show { session, all, .. } => show(client, &session, all, out).await,
        SessionCommand::Rename { session, title } => {
            let id = find_session(client, &session).await?;
            client.session(id).rename(title.as_deref()).await?;
            let title = client.session(id).info().await?.title;
            out.note(&format!("{}  {title}", short_session(&id)));
            Ok(())
        }
        SessionCommand::Verify { session, full, fix, .. } => {
            let named = session.ok_or_else(|| {
                Failure::usage("No session is named.", "name one, or last: baton session list shows them")
            })?;
            verify(client, &named, full, fix, out).await
        }
        SessionCommand::Export { session, out: file, memory: Some(turn), .. } => {
            write(&memory(client, &session, turn).await?, &file, out)
        }
        SessionCommand::Export { session, out: file, with_root, .. } => {
            let id = find_session(client, &session).await?;
            write(&client.session(id).export(with_root).await?, &file, out)
        }
        SessionCommand::Import { file } => {
            let text = read(&file, transfer::MAX_EXPORT_BYTES as u64)?;
            show_ready(client, client.import(&text).await?, out).await
        }
        SessionCommand::Renew { session, within_days } => {
            storage::renew(client, session.as_deref(), within_days, out).await
        }
        SessionCommand::Sync { session, over } => devices::sync(client, &session, over, out).await,
        SessionCommand::Delete { sessions, yes } => delete(client, &sessions, yes, out).await,
        SessionCommand::Backup { session, out: file } => {
            backup::run(client, &session, file.as_deref(), out).await
        }
        SessionCommand::Restore { session, .. } => {
            let root = match (root, session) {
                (Some(root), _) => root,
                (None, session) => {
                    let named = session.unwrap_or_default();
                    client.session(find_session(client, &named).await?).backup().await?
                }
            };
            restore(client, &root, out).await
        }
    }
}

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
        let mut rows =
            vec![["ID", "TITLE", "TURNS", "LAST USED", "STORED UNTIL"].map(str::to_owned).to_vec()];
        rows.extend(sessions.iter().map(|session| row(session, clock::now_ms())));
        out.table(&rows)?;
    }
    let gone: Vec<String> =
        sessions.iter().filter(|one| one.deleted_elsewhere).map(|one| short_session(&one.id)).collect();
    if !gone.is_empty() {
        out.note(&format!("Remove what another device deleted: baton session delete {}", gone.join(" ")));
    }
    for journal in &unreadable {
        if let Some(id) = &journal.id {
            out.line(&format!("{}  cannot be read", short_session(id)))?;
        }
        out.warn(&journal.error.to_string());
        if let Some(hint) = journal.error.hint() {
            out.note(&format!("  try: {hint}"));
        }
    }
    Ok(())
}

/// A session as a row of the list.
fn row(session: &SessionInfo, now_ms: u64) -> Vec<String> {
    let mut title: String = session.title.chars().take(TITLE_CHARS).collect();
    if title.len() < session.title.len() {
        title.push('…');
    }
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
        _ if session.deleted_elsewhere => "-".to_owned(),
        _ if session.unstored > 0 => "not stored yet".to_owned(),
        Some(until_ms) if until_ms < now_ms => "may have expired".to_owned(),
        Some(until_ms) => clock::day(until_ms),
        None => "-".to_owned(),
    };
    vec![
        short_session(&session.id),
        title,
        session.effective_turns.to_string(),
        clock::age(used, now_ms),
        stored,
    ]
}

fn describe_unreadable(journal: &UnreadableSession) -> serde_json::Value {
    json!({
        "session": journal.id.map(|id| id.to_string()),
        "error": { "name": journal.error.name(), "message": journal.error.to_string() },
    })
}

fn describe(session: &SessionInfo) -> serde_json::Value {
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

async fn search(client: &Client, words: &str, out: &Out) -> Result<(), Failure> {
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
        out.line(&format!("{}  {}", short_session(&one.session.id), one.session.title))?;
        out.note(&format!("          {}", one.snippet));
    }
    Ok(())
}

/// Shows the chain of a session as a picture.
async fn show_graph(client: &Client, named: &str, out: &Out) -> Result<(), Failure> {
    let handle = client.session(find_session(client, named).await?);
    let (history, blobs) = (handle.history().await?, handle.lifetimes().await?);
    let due = blobs.iter().any(|blob| blob.due);
    let effective = handle.conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    for line in graph::lines(&history, &effective, &blobs) {
        out.line(&out::clean(&line))?;
    }
    if due {
        out.note(&format!("  try: baton session renew {}", short_session(&handle.id())));
    }
    Ok(())
}

/// Shows a conversation; with `all`, also the turns that an edit replaced.
async fn show(client: &Client, named: &str, all: bool, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let handle = client.session(id);
    let (history, branches) = (handle.history().await?, handle.branches().await?);
    let info = handle.info().await?;
    let effective: HashSet<u64> = handle.conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    let mut turns = Vec::new();
    for view in &history {
        let replaced = !effective.contains(&view.turn.link.seq);
        if replaced && !all && !out.json() {
            continue;
        }
        let link = &view.turn.link;
        let Some(record) = &view.turn.record else { continue };
        if out.json() {
            let messages: Vec<_> = record
                .messages
                .iter()
                .map(|message| json!({ "role": role(message.role), "text": message.text }))
                .collect();
            turns.push(json!({
                "seq": link.seq,
                "turn": turn_number(link.seq),
                "kind": format!("{:?}", record.kind).to_lowercase(),
                "supersedes_from": record.supersedes_from,
                "node": link.author.to_string(),
                "link": link.link_hash().to_string(),
                "receipt": view.receipt.as_ref().map(|receipt| receipt.receipt_hash().to_string()),
                "stored": view.stored,
                "replaced": replaced,
                "branch": null,
                "messages": messages,
            }));
            continue;
        }
        let replaced = if replaced { " · replaced by a later turn" } else { "" };
        let (number, node) = (turn_number(link.seq), short(&link.author));
        let replaces = out::replaces(link.seq, record.supersedes_from);
        out.note(&format!("turn {number} · node {node}{replaces}{replaced}"));
        for message in &record.messages {
            out.text(&format!("{}: {}\n", role(message.role), message.text))?;
        }
    }
    if out.json() {
        turns.extend(branches.iter().flat_map(devices::describe_branch));
        out.value(&json!({
            "session": id.to_string(),
            "turns": turns,
            "torn_end_bytes": info.torn_end_bytes,
            "devices": devices::describe_devices(&info),
            "blobs": handle.lifetimes().await?.iter().map(storage::describe).collect::<Vec<_>>(),
        }))?;
        return Ok(());
    }
    let hidden = info.turns.saturating_sub(info.effective_turns);
    if hidden > 0 && !all {
        out.note(&format!("{} replaced by an edit; --all shows them too", count(hidden, "turn")));
    }
    devices::show_branches(&info, &branches, out)?;
    devices::show_devices(&info, out);
    if info.torn_end_bytes > 0 {
        out.warn(&format!(
            "the end of this session's journal was cut off ({}): turns that followed may be missing here",
            count(info.torn_end_bytes, "byte")
        ));
        out.note(&format!("  try: baton session sync {}", short_session(&id)));
    }
    Ok(())
}

/// Writes a text that is as secret as the conversation to a file, or to standard output.
pub(crate) fn write(text: &str, file: &Path, out: &Out) -> Result<(), Failure> {
    if file == Path::new("-") {
        return Ok(out.line(text)?);
    }
    write_private(file, text.as_bytes())?;
    out.note(&format!("written to {}; it is as secret as the conversation", file.display()));
    Ok(())
}

/// The memory of the answered turns, in the form that `baton-node replay` reads.
async fn memory(
    client: &Client,
    named: &str,
    TurnChoice(turn): TurnChoice,
) -> Result<Zeroizing<String>, Failure> {
    let id = find_session(client, named).await?;
    let turns = client.session(id).history().await?.into_iter();
    let kept: Vec<ExportMemory> = turns
        .map(|view| ExportMemory { seq: view.turn.link.seq, items: view.memory })
        .filter(|one| !one.items.is_empty() && turn.is_none_or(|turn| turn == turn_number(one.seq)))
        .collect();
    if kept.is_empty() {
        return Err(Failure::Usage(match turn {
            Some(turn) => format!("turn {turn} was answered without memory, or there is no such turn"),
            None => "no turn of the session was answered with memory".to_owned(),
        }));
    }
    let text = serde_json::to_string(&kept).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Zeroizing::new(text))
}

async fn verify(client: &Client, named: &str, full: bool, fix: bool, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let mut report = cancellable(client.session(id).verify(full)).await?;
    if fix && !report.not_stored.is_empty() {
        let many = report.not_stored.len();
        cancellable(client.session(id).put_back_blobs(&report.not_stored)).await?;
        out.note(&format!("Restored to the store: {many} of {}. Checking again.", report.segments));
        report = cancellable(client.session(id).verify(full)).await?;
    }
    show_report(&report, out)?;
    note_replaced(&client.session(id).info().await?, out);
    if !report.not_stored.is_empty() && !fix && !out.json() {
        out.note(&format!("  try: baton session verify {} --fix", short_session(&id)));
    }
    match client.session(id).check_head().await {
        Ok(_) => devices::warn_of_indexes(&client.session(id).info().await?, out),
        Err(error @ ClientError::Store(_)) => out.warn(&format!("Not compared with other devices: {error}.")),
        Err(error) => return Err(error.into()),
    }
    match (report.is_good(), report.not_stored.is_empty()) {
        (false, _) => Err(Failure::Unverified),
        (true, false) => Err(Failure::NotStored),
        (true, true) => Ok(()),
    }
}

/// The results of a verification.
pub(crate) fn show_report(report: &VerifyReport, out: &Out) -> Result<(), Failure> {
    if out.json() {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|problem| {
                let turn = turn_number(problem.seq);
                json!({ "seq": problem.seq, "turn": turn, "code": problem.code.name() })
            })
            .collect();
        return Ok(out.value(&json!({
            "verified": report.is_good(),
            "stored": report.not_stored.is_empty(),
            "not_stored": report.not_stored,
            "turns": report.turns,
            "segments": report.segments,
            "blobs_checked": report.blobs_checked,
            "ids_checked": report.ids_checked,
            "from_store": report.from_store,
            "from_own": report.from_own,
            "receipts_checked": report.receipts_checked,
            "receipts_missing": report.receipts_missing,
            "problems": problems,
        }))?);
    }
    for problem in &report.problems {
        out.warn(&format!("turn {}: {}", turn_number(problem.seq), problem.code));
    }
    let turns = count(report.turns, "turn");
    match (report.is_good(), report.not_stored.len()) {
        (true, 0) => {
            out.good(&format!(
                "✓ {turns} verified: signatures, hashes, receipts and stored copies all match"
            ));
        }
        (true, missing) => out.warn(&format!(
            "⚠ {turns} intact on this device, but {missing} of {} stored copies cannot be read",
            report.segments
        )),
        (false, _) => out.warn(&format!("✗ {turns} checked: not all match")),
    }
    let parts = [
        (report.from_store, "segment", " from the store"),
        (report.from_own, "segment", " from this device"),
        (report.blobs_checked, "blob", ""),
        (report.ids_checked, "blob ID", ""),
        (report.receipts_checked, "receipt", ""),
        (report.receipts_missing, "turn", " without a receipt"),
    ];
    let parts = parts.iter().filter(|(number, ..)| *number > 0);
    let parts: Vec<String> =
        parts.map(|(number, thing, place)| format!("{}{place}", count(*number, thing))).collect();
    out.note(&format!("  checked: {}", parts.join(", ")));
    Ok(())
}

/// Why a verification counts more turns than the conversation has.
pub(crate) fn note_replaced(info: &SessionInfo, out: &Out) {
    let replaced = info.turns.saturating_sub(info.effective_turns);
    if replaced > 0 && !out.json() {
        let (turns, replaced) = (count(info.effective_turns, "turn"), count(replaced, "turn"));
        out.note(&format!(
            "  the conversation has {turns}; an edit replaced {replaced}, which stay in the chain"
        ));
    }
}

async fn verify_file(file: &Path, full: bool, out: &Out) -> Result<(), Failure> {
    let text = read(file, transfer::MAX_EXPORT_BYTES as u64)?;
    let export = transfer::parse(&text)?;
    let checked = tokio::task::spawn_blocking(move || transfer::verify_export(&export, full));
    let report = checked.await.map_err(|_| ClientError::TaskEnded)?.map_err(ClientError::from)?;
    if out.json() {
        out.value(&json!({
            "verified": true,
            "head": report.head.to_string(),
            "turns": report.turns,
            "segments": report.segments,
            "receipts_checked": report.receipts_checked,
            "acks_checked": report.acks_checked,
        }))?;
    } else {
        out.good(&format!(
            "✓ {} verified in {}, with {} and {}",
            count(report.turns, "turn"),
            count(report.segments, "segment"),
            count(report.receipts_checked, "receipt"),
            count(report.acks_checked, "acknowledgement")
        ));
    }
    Ok(())
}

async fn delete(client: &Client, named: &[String], yes: bool, out: &Out) -> Result<(), Failure> {
    // All are named before the first is deleted, so that a wrong name deletes nothing.
    let mut ids = Vec::new();
    for named in named {
        ids.push(find_session(client, named).await?);
    }
    if !yes {
        if !prompt::is_interactive() {
            return Err(Failure::usage("Not running at a terminal.", "pass --yes to delete"));
        }
        let sessions = client.sessions().await?;
        for session in sessions.iter().filter(|session| ids.contains(&session.id)) {
            let turns = count(session.effective_turns, "turn");
            out.line(&format!("{}  {}  ({turns})", short_session(&session.id), session.title))?;
        }
        let question = format!(
            "Delete {} on all devices? Its 24 words open it no more.",
            count(ids.len() as u64, "conversation")
        );
        if prompt::confirm_at_terminal(&question)? != Some(true) {
            out.note("Nothing is deleted.");
            return Ok(());
        }
    }
    delete_all(client, &ids, out).await
}

/// Deletes sessions for all devices. A session whose head index was not informed is named, and is an error.
pub(crate) async fn delete_all(client: &Client, ids: &[SessionId], out: &Out) -> Result<(), Failure> {
    let mut unpublished = None;
    for id in ids {
        match out.while_slow(ASKING, client.session(*id).delete()).await?.unpublished {
            None => out.note(&format!("Deleted: {}", short_session(id))),
            Some(error) => {
                let id = short_session(id);
                out.warn(&format!(
                    "Deleted on this device: {id}. The head index was not informed, so its words still restore it."
                ));
                unpublished = Some(error);
            }
        }
    }
    unpublished.map_or(Ok(()), |error| Err(error.into()))
}

/// Recovers a session as far as it can be read.
async fn restore(client: &Client, root: &SessionRoot, out: &Out) -> Result<(), Failure> {
    let id = root.session_id();
    let is_here = client.session_ids().await?.contains(&id);
    let recovered = client.recover_available(root).await;
    let recovered = recovered.map_err(|error| match backup::restore_hint(&error, &id, is_here) {
        Some(hint) => Failure::Hinted { error, hint },
        None => error.into(),
    })?;
    if recovered.lost.is_empty() {
        return show_ready(client, id, out).await;
    }
    let info = client.session(id).info().await?;
    if out.json() {
        let mut value = describe(&info);
        let lost = recovered.lost.iter();
        value["lost"] = lost.map(|lost| json!({ "from": lost.start(), "to": lost.end() })).collect();
        out.value(&value)?;
    } else {
        out.good(&format!(
            "✓ session {} is here and verified: {}",
            short_session(&id),
            count(info.effective_turns, "turn")
        ));
        for lost in &recovered.lost {
            out.warn(&format!(
                "turns {} to {} are missing: the store does not have their blobs",
                turn_number(*lost.start()),
                turn_number(*lost.end())
            ));
        }
        out.note(
            "  try: on a device that still has them, baton session verify SESSION --fix; then restore again here",
        );
        let ends_early = recovered.lost.last().is_some_and(|lost| *lost.end() >= info.turns);
        let command = if ends_early {
            Some(format!("baton session sync {} --over", short_session(&id)))
        } else {
            out.continuation(&short_session(&id))
        };
        if let Some(command) = command {
            out.note(&format!("  or continue without them: {command}"));
        }
    }
    Err(Failure::NotStored)
}

/// Shows a session that was imported or recovered.
async fn show_ready(client: &Client, id: SessionId, out: &Out) -> Result<(), Failure> {
    let info = client.session(id).info().await?;
    if out.json() {
        out.value(&describe(&info))?;
    } else {
        out.good(&format!(
            "✓ session {} is here and verified: {}",
            short_session(&id),
            count(info.effective_turns, "turn")
        ));
        if let Some(command) = out.continuation(&short_session(&id)) {
            out.note(&format!("Continue with: {command}"));
        }
    }
    Ok(())
}

fn read(path: &Path, limit: u64) -> Result<Zeroizing<String>, Failure> {
    read_bounded(path, limit)
        .map_err(|source| ClientError::File { action: "read", path: path.to_owned(), source }.into())
}
