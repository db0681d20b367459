//! `baton session backup`, `restore` and `import`: the 24 words that are a session, and a session that comes from elsewhere.

use std::{ops::RangeInclusive, path::Path};

use baton_client::{Client, ClientError, SessionInfo, SessionRoot};
use baton_proto::ids::SessionId;
use serde_json::json;

use super::list::describe;
use crate::{
    clock,
    failure::Failure,
    home::find_session,
    out::{Out, count, short, turn_number},
    words,
};

/// Shows the words of a session at a terminal, or writes them to a new file, and says what they restore.
pub(crate) async fn run(client: &Client, named: &str, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let root = client.session(id).backup().await?;
    // A damaged journal still gives the words, and nothing else.
    let info = client.session(id).info().await.ok();
    let warning = "These 24 words are the session. Write them down, and then clear the screen.";
    words::give(&root.to_words(), file, warning, out)?;
    if let Some(file) = file {
        let place = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        if out.json() {
            let turns = info.map(|info| info.effective_turns);
            return Ok(
                out.value(&json!({ "session": id.to_string(), "words": 24, "file": place, "turns": turns }))?
            );
        }
        out.good(&format!("✓ 24 words of session {} written to {}", short(&id), place.display()));
    }
    if let Some(info) = &info {
        note_restorable(info, out);
    }
    out.note("  Whoever has these words can read and continue the session: keep them secret, and not on this machine.");
    let words_file = file.map_or("", |_| " --words-file FILE");
    out.note(&format!("  On another machine, with the same store: baton session restore{words_file}"));
    Ok(())
}

/// What the words of a session restore, and until when.
fn note_restorable(info: &SessionInfo, out: &Out) {
    out.note(&format!("  \"{}\", {}", info.title, count(info.effective_turns, "turn")));
    match info.kept_until_ms {
        _ if info.deleted_elsewhere => {
            out.warn("  ⚠ Another device deleted this session: its words restore nothing.");
        }
        Some(until_ms) if info.unstored == 0 => out.note(&format!(
            "  The words restore them while the store keeps them, at least until {}; baton session renew extends that.",
            clock::day(until_ms)
        )),
        _ => out.warn(&format!(
            "  ⚠ The store has not confirmed the newest turns: keep this device until baton session list shows a date, or \
             run baton session renew {}.",
            short(&info.id)
        )),
    }
}

/// Recovers a session as far as it can be read.
pub(super) async fn restore(client: &Client, root: &SessionRoot, out: &Out) -> Result<(), Failure> {
    let id = root.session_id();
    let is_here = client.session_ids().await?.contains(&id);
    let recovered = client.recover_available(root).await.map_err(|error| match error {
        ClientError::Deleted if !is_here => {
            let hint = "its words restore nothing; begin another: baton chat".to_owned();
            Failure::hinted(&error, hint)
        }
        error => Failure::of_session(error, &id),
    })?;
    show_ready(client, id, &recovered.lost, out).await
}

/// Shows a session that was imported or recovered, without these turns.
pub(super) async fn show_ready(
    client: &Client,
    id: SessionId,
    lost: &[RangeInclusive<u64>],
    out: &Out,
) -> Result<(), Failure> {
    let info = client.session(id).info().await?;
    let short_id = short(&id);
    if out.json() {
        let mut value = describe(&info);
        value["lost"] = lost.iter().map(|lost| json!({ "from": lost.start(), "to": lost.end() })).collect();
        out.value(&value)?;
    } else {
        let turns = count(info.effective_turns, "turn");
        out.good(&format!("✓ session {short_id} is here and verified: {turns}"));
        for lost in lost {
            out.warn(&format!(
                "turns {} to {} are missing: the store does not have their blobs",
                turn_number(*lost.start()),
                turn_number(*lost.end())
            ));
        }
        let Some(last) = lost.last() else {
            if let Some(command) = out.continuation(&short_id) {
                out.note(&format!("Continue with: {command}"));
            }
            return Ok(());
        };
        out.note(
            "  try: on a device that still has them, baton session verify SESSION --fix; then restore again here",
        );
        let over = Some(format!("baton session sync {short_id} --over"));
        let on = if *last.end() >= info.turns { over } else { out.continuation(&short_id) };
        if let Some(command) = on {
            out.note(&format!("  or continue without them: {command}"));
        }
    }
    if lost.is_empty() { Ok(()) } else { Err(Failure::NOT_STORED) }
}
