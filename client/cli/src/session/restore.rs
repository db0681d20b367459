//! `baton session restore` and `import`.

use std::ops::RangeInclusive;

use baton_client::{Client, ClientError, SessionRoot};
use baton_proto::ids::SessionId;
use serde_json::json;

use super::list::describe;
use crate::{
    failure::Failure,
    out::{Out, count, short_session, turn_number},
};

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
    let short_id = short_session(&id);
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
