//! `baton session sync`, and reports about a session's other devices.

use std::time::Duration;

use baton_client::{Client, ClientError, HeadStatus, IndexAnswer, SessionBranch, SessionInfo};
use baton_proto::record::Message;
use serde_json::{Value, json};

use crate::{
    clock::now_ms,
    failure::Failure,
    home::find_session,
    interrupt::cancellable,
    out::{Out, count, role, short, turn_number},
    turn_display::TurnDisplay,
};

/// The remaining time of a lease is rounded up to hours.
const HOUR_MS: u64 = 3_600_000;

/// Time for the indexes to take a head that they lack.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// Merges the turns of a session's other devices; with `over`, publishes its head even if that fails.
pub(crate) async fn sync(client: &Client, named: &str, over: bool, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let mut view = TurnDisplay::new(out);
    let done = match cancellable(out, client.session(id).reconcile(|event| view.show(event))).await {
        Err(Failure::Client(error @ (ClientError::Store(_) | ClientError::Protocol(_)))) if over => {
            out.warn(&format!("The turns of other devices could not be merged: {error}"));
            client.session(id).publish_over().await?;
            out.note("This device's head is published. The other device merges both when it returns.");
            return Ok(());
        }
        other => other?,
    };
    let lacks = done.status == HeadStatus::Unpublished;
    let published = lacks && cancellable(out, client.session(id).wait_published(PUBLISH_WAIT)).await?;
    let info = client.session(id).info().await?;
    // Nodes alone are no index: they forget a record that is not published again.
    let mut servers = done.indexes.iter().filter(|one| one.name.contains("://")).peekable();
    let is_read = servers.peek().is_none() || servers.any(|one| one.shows.is_answer());
    let is_synced = is_read && (!lacks || published);
    if out.json() {
        out.value(&json!({
            "session": id.to_string(),
            "status": format!("{:?}", done.status).to_lowercase(),
            "published": published,
            "turns": info.turns,
            "caught_up": done.caught_up,
            "fork": done.fork.as_ref().map(|fork| {
                json!({ "at": fork.at, "won": fork.won, "turns": fork.turns, "branch": fork.branch })
            }),
            "indexes": done.indexes.iter().map(|one| json!({ "name": one.name, "shows": one.shows.to_string() }))
                .collect::<Vec<_>>(),
        }))?;
        return if is_synced { Ok(()) } else { Err(Failure::NOT_STORED) };
    }
    for index in &info.indexes {
        out.line(&format!("{}  {}", index.name, index.shows))?;
    }
    show_devices(&info, out);
    if !is_synced {
        out.warn(match is_read {
            true => "The head is not in the index yet; it is offered again.",
            false => "No head index answers, so turns of other devices may be missing here.",
        });
        return Err(Failure::NOT_STORED);
    }
    let turns = count(info.effective_turns, "turn");
    out.good(&format!("✓ session {} is up to date: {turns}", short(&id)));
    Ok(())
}

/// Names the indexes that did not show the newest head, if one did.
pub(crate) fn warn_of_indexes(info: &SessionInfo, out: &Out) {
    let newest = info.indexes.iter().any(|one| matches!(one.shows, IndexAnswer::Newest { .. }));
    for one in &info.indexes {
        // An index that is down costs nothing while another has the head; `baton session sync` names it.
        if newest && !matches!(one.shows, IndexAnswer::Newest { .. } | IndexAnswer::Unavailable { .. }) {
            out.warn(&format!("head index {}: {}", one.name, one.shows));
        }
    }
}

/// This device and the others that may also be writing.
pub(crate) fn describe_devices(info: &SessionInfo) -> Value {
    let others = info.others.iter();
    let others = others.map(
        |lease| json!({ "device": hex::encode(lease.device.0), "this": false, "until_ms": lease.expires_ms }),
    );
    let this = json!({ "device": hex::encode(info.device.0), "this": true });
    std::iter::once(this).chain(others).collect()
}

/// The same as lines; nothing for a lone device.
pub(crate) fn show_devices(info: &SessionInfo, out: &Out) {
    for lease in &info.others {
        let hours = lease.expires_ms.saturating_sub(now_ms()).div_ceil(HOUR_MS);
        let device: String = hex::encode(lease.device.0).chars().take(8).collect();
        if hours > 0 {
            out.note(&format!("device {device} may be writing too, for the next {}", count(hours, "hour")));
        }
    }
}

/// The branches that forks left, with the commands that go on from them.
pub(crate) fn show_branches(
    info: &SessionInfo,
    branches: &[SessionBranch],
    out: &Out,
) -> Result<(), Failure> {
    for branch in branches {
        let turns = count(branch.turns.len() as u64, "turn");
        out.note(&match branch.is_before_gap {
            false => format!(
                "branch {}: {turns} of another device, or that another device's replaced",
                branch.name
            ),
            true => format!("before a gap: {turns}, followed by turns that the store lost"),
        });
        for turn in &branch.turns {
            out.note(&format!("turn {} · node {}", turn_number(turn.seq), short(&turn.node)));
            show_messages(&turn.messages, out)?;
        }
        let (session, name) = (short(&info.id), &branch.name);
        out.note(&format!("  go on from it: baton chat -s {session} --branch={name}"));
    }
    Ok(())
}

/// The turns of a branch, for programs.
pub(crate) fn describe_branch(branch: &SessionBranch) -> impl Iterator<Item = Value> {
    branch.turns.iter().map(|turn| {
        json!({
            "seq": turn.seq,
            "turn": turn_number(turn.seq),
            "node": turn.node.to_string(),
            "link": turn.link_hash.to_string(),
            "receipt": turn.receipt.as_ref().map(|receipt| receipt.receipt_hash().to_string()),
            "branch": branch.name,
            "before_gap": branch.is_before_gap,
            "messages": describe_messages(&turn.messages),
        })
    })
}

/// Shows messages with their authors.
pub(super) fn show_messages(messages: &[Message], out: &Out) -> Result<(), Failure> {
    for message in messages {
        out.text(&format!("{}: {}\n", role(message.role), message.text))?;
    }
    Ok(())
}

/// Messages, for programs.
pub(super) fn describe_messages(messages: &[Message]) -> Vec<Value> {
    let messages = messages.iter();
    messages.map(|message| json!({ "role": role(message.role), "text": message.text })).collect()
}
