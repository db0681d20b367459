//! `baton session restore` and `import`.

use baton_client::{Client, SessionRoot};
use baton_proto::ids::SessionId;
use serde_json::json;

use super::{backup, list::describe};
use crate::{
    failure::Failure,
    out::{Out, count, short_session, turn_number},
};

/// Recovers a session as far as it can be read.
pub(super) async fn restore(client: &Client, root: &SessionRoot, out: &Out) -> Result<(), Failure> {
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
pub(super) async fn show_ready(client: &Client, id: SessionId, out: &Out) -> Result<(), Failure> {
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
