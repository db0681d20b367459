//! `baton session`.

mod backup;
pub(crate) mod devices;
mod list;
mod show;
mod storage;
mod verify;

use std::path::Path;

use baton_client::{Client, ClientError, SessionHandle, SessionRoot, transfer};
use baton_proto::{export::ExportMemory, ids::SessionId};
use zeroize::Zeroizing;

pub(crate) use list::show_list;
pub(crate) use verify::{note_replaced, show_report};

use crate::{
    args::{SessionCommand, TurnChoice},
    failure::Failure,
    files::{read_bounded, write_private},
    home::{find_session, with_client},
    interrupt::confirmed,
    out::{Out, count, short, turn_number},
    settings::Settings,
    words,
};

/// Said while stores or head indexes do not answer at once.
const ASKING: &str = "Asking the stores …";

pub(crate) async fn run(settings: &Settings, command: &SessionCommand, out: &Out) -> Result<(), Failure> {
    use SessionCommand as C;
    let mut root = None;
    match command {
        C::Verify { file: Some(file), full, .. } => return verify::verify_file(file, *full, out).await,
        C::Restore { session: None, words_file } => {
            let words = words::read(words_file.as_deref())?;
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
    command: &SessionCommand,
    root: Option<SessionRoot>,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        // It begins a chat, which runs it.
        SessionCommand::Rekey(_) => Ok(()),
        SessionCommand::List { words } if words.is_empty() => show_list(client, out).await,
        SessionCommand::List { words } => list::search(client, &words.join(" "), out).await,
        SessionCommand::Show { session, all } => show::show(client, session, *all, out).await,
        SessionCommand::Rename { session, title } => {
            let handle = client.session(find_session(client, session).await?);
            handle.rename(title.as_deref()).await?;
            out.note(&format!("{}  {}", short(&handle.id()), handle.info().await?.title));
            Ok(())
        }
        SessionCommand::Verify { session, full, fix, .. } => {
            // Without a file, a session is required.
            verify::verify(client, session.as_deref().unwrap_or_default(), *full, *fix, out).await
        }
        SessionCommand::Export { session, out: file, with_root, memory: turn } => {
            let handle = client.session(find_session(client, session).await?);
            let text = match turn {
                Some(TurnChoice(turn)) => memory(&handle, *turn).await?,
                None => handle.export(*with_root).await?,
            };
            write(&text, file, out)
        }
        SessionCommand::Import { file } => {
            let text = read(file, transfer::MAX_EXPORT_BYTES as u64)?;
            let id = client.import(&text).await.map_err(verify::of_file)?;
            backup::show_ready(client, id, &[], out).await
        }
        SessionCommand::Renew { session, within_days } => {
            storage::renew(client, session.as_deref(), *within_days, out).await
        }
        SessionCommand::Sync { session, over } => devices::sync(client, session, *over, out).await,
        SessionCommand::Delete { sessions, yes } => delete(client, sessions, *yes, out).await,
        SessionCommand::Backup { session, out: file } => {
            backup::run(client, session, file.as_deref(), out).await
        }
        SessionCommand::Restore { session, .. } => {
            let root = match (root, session) {
                (Some(root), _) => root,
                (None, session) => {
                    let named = session.as_deref().unwrap_or_default();
                    client.session(find_session(client, named).await?).backup().await?
                }
            };
            backup::restore(client, &root, out).await
        }
    }
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

/// The memory of the answered turns, or of the turn with this number, in the form that `baton-node replay` reads.
async fn memory(handle: &SessionHandle, turn: Option<u64>) -> Result<Zeroizing<String>, Failure> {
    let turns = handle.history().await?.into_iter();
    let kept: Vec<ExportMemory> = turns
        .map(|view| ExportMemory { seq: view.turn.link.seq, items: view.memory })
        .filter(|one| !one.items.is_empty() && turn.is_none_or(|turn| turn == turn_number(one.seq)))
        .collect();
    if kept.is_empty() {
        return Err(Failure::wrong(match turn {
            Some(turn) => format!("turn {turn} was answered without memory, or there is no such turn"),
            None => "no turn of the session was answered with memory".to_owned(),
        }));
    }
    let text = serde_json::to_string(&kept).map_err(|error| Failure::wrong(error.to_string()))?;
    Ok(Zeroizing::new(text))
}

async fn delete(client: &Client, named: &[String], yes: bool, out: &Out) -> Result<(), Failure> {
    // All are named before the first is deleted, so that a wrong name deletes nothing.
    let mut ids = Vec::new();
    for named in named {
        ids.push(find_session(client, named).await?);
    }
    if !yes {
        let sessions = client.sessions().await?;
        for session in sessions.iter().filter(|session| ids.contains(&session.id)) {
            let turns = count(session.effective_turns, "turn");
            out.note(&format!("{}  {}  ({turns})", short(&session.id), session.title));
        }
    }
    let conversations = count(ids.len() as u64, "conversation");
    if !confirmed(&format!("Delete {conversations} on all devices? Its 24 words open it no more."), yes)? {
        out.note("Nothing is deleted.");
        return Ok(());
    }
    delete_all(client, &ids, out).await
}

/// Deletes sessions for all devices. A session whose head index was not informed is named, and is an error.
pub(crate) async fn delete_all(client: &Client, ids: &[SessionId], out: &Out) -> Result<(), Failure> {
    let mut unpublished = None;
    for id in ids {
        match out.while_slow(ASKING, client.session(*id).delete()).await?.unpublished {
            None => out.note(&format!("Deleted: {}", short(id))),
            Some(error) => {
                let id = short(id);
                out.warn(&format!(
                    "Deleted on this device: {id}. The head index was not informed, so its words still restore it."
                ));
                unpublished = Some(error);
            }
        }
    }
    unpublished.map_or(Ok(()), |error| Err(error.into()))
}

fn read(path: &Path, limit: u64) -> Result<Zeroizing<String>, Failure> {
    read_bounded(path, limit)
        .map_err(|source| ClientError::File { action: "read", path: path.to_owned(), source }.into())
}
