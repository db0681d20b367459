//! `baton-node status`: asks the admin port of a running node.

use std::{net::SocketAddr, time::Duration};

use super::{Exit, Failure, StatusArgs, say, style::Style};
use crate::{
    admin::Status,
    config::{AdminSetting, Settings},
};

/// Time for the whole answer; it comes from this machine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: a status has some lines for each model and address.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

pub(super) fn run(args: StatusArgs) -> Result<(), Failure> {
    let mut flags = args.places.flags();
    if let Some(text) = &args.admin {
        let admin = crate::config::parse_admin(text);
        let admin = admin.map_err(|problem| Failure::text(Exit::Usage, format!("--admin: {problem}")))?;
        flags.admin = Some(admin);
    }
    let AdminSetting::At(address) = Settings::load(flags)?.admin else {
        return Err(Failure::text(
            Exit::Usage,
            "the admin port is switched off in the configuration (admin = \"none\"), so nobody can be asked",
        ));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failure, error))?;
    let status = runtime.block_on(ask(address))?;
    if args.json {
        say(serde_json::to_string(&status).expect("a status has nothing that JSON cannot hold"));
    } else {
        say(describe(&status, Style::stdout()));
    }
    if status.ready {
        Ok(())
    } else {
        Err(Failure::text(Exit::Failure, format!("the node is not ready: {}", status.not_ready.join("; "))))
    }
}

async fn ask(address: SocketAddr) -> Result<Status, Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::text(
            Exit::Failure,
            format!(
                "no node answers at {address} ({error}); start one with `baton-node run`, or name its --admin address"
            ),
        )
    };
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build();
    let client = client.map_err(|error| Failure::new(Exit::Failure, error))?;
    let answer = client.get(format!("http://{address}/status")).send().await;
    let mut answer = answer.map_err(|error| unreachable(&root_cause(&error)))?;
    let other = || {
        Failure::text(
            Exit::Failure,
            format!("something else than a baton-node of this version answers at {address}"),
        )
    };
    if !answer.status().is_success() {
        return Err(other());
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| unreachable(&root_cause(&error)))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(other());
        }
    }
    serde_json::from_slice(&body).map_err(|_| other())
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn describe(status: &Status, style: Style) -> String {
    let state = if status.ready { style.good("ready") } else { style.bad("not ready") };
    let store = match (status.store.reachable, status.store.answered_seconds_ago) {
        (true, Some(seconds)) => format!("{}, {seconds} s ago", style.good("answers")),
        (_, Some(seconds)) => style.bad(&format!("silent for {seconds} s")),
        (_, None) => style.bad("has not answered yet"),
    };
    let mut lines = vec![
        format!("Node      {state}, up {}, version {}", span(status.uptime_seconds), status.version),
        format!("Identity  {}", status.node),
        format!("Peer      {}", status.peer_id),
    ];
    for address in &status.listen {
        lines.push(format!("Listens   {address}"));
    }
    lines.push(format!("Peers     {} connected, {} known", status.peers.connected, status.peers.known));
    for model in &status.models {
        lines.push(format!(
            "Model     {} ({}, {} tokens of context, id {}...)",
            model.name,
            model.engine,
            model.context_tokens,
            model.model.get(..16).unwrap_or(&model.model)
        ));
    }
    let turns = status.turns;
    lines.push(format!(
        "Turns     {} of {} slots busy, {} of {} waiting; {} committed, {} failed, {} refused",
        turns.running,
        status.slots,
        turns.waiting,
        status.queue,
        turns.committed,
        turns.failed,
        turns.refused
    ));
    lines.push(format!("Store     {} {store}", status.store.publishers.join(", ")));
    if let Some(bytes) = status.resident_bytes {
        lines.push(format!("Memory    {} MB", bytes / 1_000_000));
    }
    lines.join("\n")
}

fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
