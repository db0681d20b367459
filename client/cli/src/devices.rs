//! `baton session check` and `sync`, and reports about a session's other devices.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_client::{
    ChainConflict, ChainSide, Client, ClientError, DisplacedTurn, HeadStatus, IndexAnswer, IndexStatus,
    ReconcileReport, ResumeOptions, SessionInfo, TurnEvent, TurnFate,
};
use baton_proto::{ErrorCode, ids::SessionId};
use serde_json::{Value, json};

use super::{
    Failure, find_session,
    interrupt::cancellable,
    out::{Out, count, role, short, short_session, turn_number},
    settings::Settings,
    talk::TurnDisplay,
};

/// The remaining time of a lease is rounded up to hours.
const HOUR: Duration = Duration::from_secs(3600);

/// Options for replayed turns.
pub(crate) fn options(settings: &Settings, model: Option<String>, allow_echo: bool) -> ResumeOptions {
    ResumeOptions::of(&settings.turn(model, allow_echo))
}

/// Time that a check waits until a missing head is published.
const PUBLISH_WAIT: Duration = Duration::from_secs(5);

/// Compares a session with the head indexes, and merges nothing. Publishes a head that they lack.
pub(crate) async fn check(client: &Client, named: &str, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let result = client.session(id).check_head().await;
    let lacks = matches!(
        result,
        Ok(HeadStatus::Unpublished) | Err(ClientError::Protocol(ErrorCode::RollbackDetected))
    );
    let published = lacks && cancellable(client.session(id).wait_published(PUBLISH_WAIT)).await?;
    let info = client.session(id).info().await?;
    if out.json() {
        out.value(&json!({
            "session": id.to_string(),
            "published": published,
            "status": result.as_ref().map_or_else(ClientError::name, |status| name(*status)),
            "indexes": info.indexes.iter().map(describe_index).collect::<Vec<_>>(),
            "devices": describe_devices(&info),
            "waiting": info.waiting_replays,
            "diverged": info.conflict.as_ref().map(describe_conflict),
        }))?;
    } else {
        for index in &info.indexes {
            out.line(&format!("{}  {}", index.name, index.shows))?;
        }
        show_devices(&info, out);
        show_conflict(&info, out);
        if info.waiting_replays > 0 {
            out.warn(&format!("{} displaced and not sent again yet", count(info.waiting_replays, "turn")));
            out.note(&format!("  try: baton session sync {}", short_session(&id)));
        }
        match &result {
            Ok(HeadStatus::Current) => out.good("✓ the head index has this device's head"),
            _ if published => {
                out.note("The head index lacked this device's last turns; its head is published again.");
            }
            Ok(HeadStatus::Unpublished) => {
                out.warn("The head index lacks this device's last turns; they are offered again.");
            }
            Ok(HeadStatus::None) => out.note("Nothing is published yet."),
            Err(_) => {}
        }
    }
    Ok(result.map(drop)?)
}

/// Merges the turns of a session's other devices; with `over`, publishes its head even if that fails.
pub(crate) async fn sync(
    client: &Client,
    named: &str,
    options: &ResumeOptions,
    over: bool,
    out: &Out,
) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let mut view = TurnDisplay::new(out);
    let on_event = |event| {
        // A replayed turn shows only its end.
        if let TurnEvent::Devices(_) = event {
            view.show(event);
        }
    };
    let done = match cancellable(client.session(id).reconcile(options, on_event)).await {
        Err(Failure::Client(error @ (ClientError::Store(_) | ClientError::Protocol(_)))) if over => {
            out.warn(&format!("The turns of other devices could not be merged: {error}"));
            client.session(id).publish_over().await?;
            out.note("This device's head is published. The other device merges both when it returns.");
            return Ok(());
        }
        other => other?,
    };
    show_merged(client, &done, id, out).await
}

/// Decides which chain stays, and merges as [`sync`].
pub(crate) async fn resolve(
    client: &Client,
    named: &str,
    side: ChainSide,
    options: &ResumeOptions,
    out: &Out,
) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    if client.session(id).info().await?.conflict.is_none() {
        return Err(Failure::Usage(format!(
            "nothing of this session waits for a decision: baton session sync {} merges what can be merged",
            short_session(&id)
        )));
    }
    let mut view = TurnDisplay::new(out);
    let on_event = |event| {
        if let TurnEvent::Devices(_) = event {
            view.show(event);
        }
    };
    let done = cancellable(client.session(id).resolve(side, options, on_event)).await?;
    show_merged(client, &done, id, out).await
}

/// Shows the outcome of a merge.
async fn show_merged(
    client: &Client,
    done: &ReconcileReport,
    id: SessionId,
    out: &Out,
) -> Result<(), Failure> {
    let info = client.session(id).info().await?;
    warn_of_indexes(&info, out);
    if out.json() {
        let moved = done.replayed.iter().map(|moved| json!({ "from": moved.from, "to": moved.to }));
        return Ok(out.value(&json!({
            "session": id.to_string(),
            "status": name(done.status),
            "turns": info.turns,
            "caught_up": done.caught_up,
            "fork": done.fork.map(|(at, won)| json!({ "at": at, "won": won })),
            "moved": moved.collect::<Vec<_>>(),
            "indexes": done.indexes.iter().map(describe_index).collect::<Vec<_>>(),
        }))?);
    }
    match done.status {
        HeadStatus::Unpublished => out.warn("The head is not in the index yet; it is offered again."),
        HeadStatus::Current | HeadStatus::None => {
            out.good(&format!(
                "✓ session {} is up to date: {}",
                short_session(&id),
                count(info.effective_turns, "turn")
            ));
        }
    }
    Ok(())
}

fn name(status: HeadStatus) -> &'static str {
    match status {
        HeadStatus::Current => "current",
        HeadStatus::Unpublished => "unpublished",
        HeadStatus::None => "none",
    }
}

/// Names the indexes that did not show the newest head, if one did.
pub(crate) fn warn_of_indexes(info: &SessionInfo, out: &Out) {
    let newest = info.indexes.iter().any(|one| matches!(one.shows, IndexAnswer::Newest { .. }));
    for one in &info.indexes {
        // An index that is down costs nothing while another has the head; `baton session check` names it.
        if newest && !matches!(one.shows, IndexAnswer::Newest { .. } | IndexAnswer::Unavailable { .. }) {
            out.warn(&format!("head index {}: {}", one.name, one.shows));
        }
    }
}

fn describe_index(index: &IndexStatus) -> Value {
    let (shows, detail) = match &index.shows {
        IndexAnswer::Newest { sequence } => ("newest", json!(sequence)),
        IndexAnswer::Behind { sequence } => ("behind", json!(sequence)),
        IndexAnswer::Nothing => ("nothing", Value::Null),
        IndexAnswer::Wrong { code } => ("wrong", json!(code.name())),
        IndexAnswer::Unavailable { reason } => ("unavailable", json!(reason)),
    };
    json!({ "name": index.name, "shows": shows, "detail": detail })
}

/// A merge that waits for the owner's decision, and the decisions.
pub(crate) fn show_conflict(info: &SessionInfo, out: &Out) {
    let Some(conflict) = &info.conflict else { return };
    let id = short_session(&info.id);
    out.warn(&conflict.to_string());
    out.note(&format!(
        "  keep its {}, and send {} again after them, for at most {}: baton session resolve {id} --take theirs",
        count(conflict.theirs, "turn"),
        count(conflict.replays, "turn"),
        conflict.highest_price,
    ));
    out.note(&format!(
        "  keep the {} of this device: baton session resolve {id} --take ours",
        count(conflict.ours, "turn")
    ));
}

/// The same for programs.
pub(crate) fn describe_conflict(conflict: &ChainConflict) -> Value {
    json!({
        "at": conflict.at,
        "ours": conflict.ours,
        "theirs": conflict.theirs,
        "displaced": conflict.displaced,
        "replays": conflict.replays,
        "highest_price": conflict.highest_price,
    })
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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for lease in &info.others {
        let left = Duration::from_millis(lease.expires_ms).saturating_sub(now);
        let hours = left.as_secs().div_ceil(HOUR.as_secs());
        let device: String = hex::encode(lease.device.0).chars().take(8).collect();
        if hours > 0 {
            out.note(&format!("device {device} may be writing too, for the next {}", count(hours, "hour")));
        }
    }
}

/// Displaced turns, with their former answers.
pub(crate) fn show_displaced(displaced: &[DisplacedTurn], out: &Out) -> Result<(), Failure> {
    for turn in displaced {
        let what = match turn.fate {
            TurnFate::Waits => "waits to be sent again: baton session sync".to_owned(),
            TurnFate::Replayed { to } => format!("sent again as turn {}", turn_number(to)),
            TurnFate::Dropped => "not sent again".to_owned(),
            TurnFate::Theirs => "written by another device, which sends it again".to_owned(),
            TurnFate::BeforeGap => "before turns that the store lost; no part of the chain here".to_owned(),
            TurnFate::TakenOut => "written by another device, and taken out of the chain here".to_owned(),
        };
        out.note(&format!("displaced: turn {} · node {} · {what}", turn_number(turn.seq), short(&turn.node)));
        for message in &turn.messages {
            out.text(&format!("{}: {}\n", role(message.role), message.text))?;
        }
    }
    Ok(())
}

/// The same for programs.
pub(crate) fn describe_displaced(turn: &DisplacedTurn) -> Value {
    let (fate, to) = match turn.fate {
        TurnFate::Waits => ("waits", None),
        TurnFate::Replayed { to } => ("moved", Some(to)),
        TurnFate::Dropped => ("left_out", None),
        TurnFate::Theirs => ("theirs", None),
        TurnFate::TakenOut => ("taken_out", None),
        TurnFate::BeforeGap => ("before_gap", None),
    };
    let messages = turn.messages.iter();
    let messages = messages.map(|message| json!({ "role": role(message.role), "text": message.text }));
    json!({
        "seq": turn.seq,
        "turn": turn_number(turn.seq),
        "link": turn.link_hash.to_string(),
        "node": turn.node.to_string(),
        "receipt": turn.receipt.as_ref().map(|receipt| receipt.receipt_hash().to_string()),
        "fate": fate,
        "moved_to": to,
        "messages": messages.collect::<Vec<_>>(),
    })
}
