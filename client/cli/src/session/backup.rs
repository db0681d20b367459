//! `baton session backup`: the 24 words that are a session, and what they restore.

use std::path::Path;

use baton_client::{Client, SessionInfo};
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
        out.good(&format!("✓ 24 words of session {} written to {}", short_session(&id), place.display()));
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
            short_session(&info.id)
        )),
    }
}
