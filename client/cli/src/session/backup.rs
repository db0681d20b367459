//! `baton session backup`: the 24 words that are a session, and what they restore.

use std::path::Path;

use baton_client::{Client, ClientError, SessionInfo};
use baton_proto::ids::SessionId;
use serde_json::json;

use crate::{
    clock,
    failure::Failure,
    home::find_session,
    out::{Out, count, short_session},
    words,
};

/// Shows the words of a session at a terminal, or writes them to a new file, and says what they restore.
pub(crate) async fn run(client: &Client, named: &str, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let root = client.session(id).backup().await?;
    // A damaged journal still gives the words, and nothing else.
    let info = client.session(id).info().await.ok();
    let words = root.to_words();
    words::give(
        &words,
        file,
        "These 24 words are the session. Write them down, and then clear the screen.",
        out,
    )?;
    if let Some(file) = file {
        let place = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        if out.json() {
            return Ok(out.value(&backup_report(&id, info.as_ref(), &place))?);
        }
        out.good(&format!("✓ 24 words of session {} written to {}", short_session(&id), place.display()));
    }
    if let Some(info) = &info {
        note_restorable(info, out);
    }
    out.note("  Whoever has these words can read and continue the session: keep them secret, and not on this machine.");
    let words_file = file.map_or_else(String::new, |_| " --words-file FILE".to_owned());
    out.note(&format!("  On another machine, with the same store: baton session restore{words_file}"));
    Ok(())
}

fn backup_report(id: &SessionId, info: Option<&SessionInfo>, file: &Path) -> serde_json::Value {
    json!({
        "session": id.to_string(),
        "words": 24,
        "file": file.display().to_string(),
        "turns": info.map(|info| info.effective_turns),
        "unstored": info.map(|info| info.unstored),
        "kept_until_ms": info.and_then(|info| info.kept_until_ms),
    })
}

/// The next step after a failed restore, if it differs from the error's own.
pub(crate) fn restore_hint(error: &ClientError, id: &SessionId, is_here: bool) -> Option<String> {
    match error {
        ClientError::SessionExists(_) => Some(format!(
            "continue it: baton chat -s {} (deleting it would also mark it deleted in the head index)",
            short_session(id)
        )),
        ClientError::Deleted if is_here => {
            Some(format!("remove it here: baton session delete {}", short_session(id)))
        }
        ClientError::Deleted => Some("its words restore nothing; begin another: baton chat".to_owned()),
        ClientError::Store(_) | ClientError::HeadMissing => Some(
            "name the store and the nodes of the device that wrote the session: --publisher, --heads, --node"
                .to_owned(),
        ),
        _ => None,
    }
}

/// What the words of a session restore, and until when.
fn note_restorable(info: &SessionInfo, out: &Out) {
    let turns = count(info.effective_turns, "turn");
    out.note(&format!("  \"{}\", {turns}", info.title));
    if info.deleted_elsewhere {
        return out.warn("  ⚠ Another device deleted this session: its words restore nothing.");
    }
    match info.kept_until_ms {
        _ if info.turns == 0 => out.warn("  ⚠ Nothing is stored yet: the words restore the session after its first answer."),
        _ if info.unstored > 0 => out.warn(&format!(
            "  ⚠ The store has not confirmed the newest turns: keep this device until baton session list shows a date, or \
             run baton session renew {}.",
            short_session(&info.id)
        )),
        Some(until_ms) => out.note(&format!(
            "  The words restore them while the store keeps them, at least until {}; baton session renew extends that.",
            clock::day(until_ms)
        )),
        None => {}
    }
}
