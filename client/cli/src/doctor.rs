//! `baton doctor`: checks everything that a chat needs, and names problems with their fixes. It changes nothing.

use std::time::Duration;

use baton_client::{Client, Listing, NodeInfo, choose::NoChoice};
use baton_kit::{
    doctor::{Check, ClockCodes, ClockReading, Code, Report, StoreCodes, check_clock, check_stores},
    stores::StoreOptions,
    terminal::Style,
};
use baton_proto::{ids::NodeId, receipt::EngineKind};
use baton_walrus_client::http_client;
use serde_json::json;

use crate::{
    args::Arguments,
    clock,
    failure::Failure,
    out::{Out, clean, count, short},
    search::{self, served},
    settings::{Environment, Settings, settings_file},
};

/// Time for one server to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Largest difference of two clocks that no check notices.
const MAX_CLOCK_DIFFERENCE_MS: u64 = 30_000;
/// Blobs that expire within this time are named.
const SOON_MS: u64 = 3 * 24 * 60 * 60 * 1000;
const MAX_SHOWN: usize = 5;

/// Every problem that is found. docs/TROUBLESHOOTING.md lists them.
mod codes {
    baton_kit::problem_codes! {
        SETTINGS_BROKEN = problem("C101", "the settings cannot be used", "correct the named line; `baton config` shows all");
        HOME_LOCKED = problem("C201", "the home folder or its key cannot be opened", "check the folder, or name another with `--home`");
        JOURNAL_DAMAGED = problem("C202", "a session's journal is damaged", "`baton session restore SESSION` restores it from the store");
        CLOCK_WRONG = problem("C301", "this machine's clock differs from the nodes' or stores'", "set the clock, best by NTP");
        PUBLISHER_DOWN = problem("C401", "a publisher does not answer", "start the store, or name another with `--publisher`");
        AGGREGATOR_DOWN = problem("C402", "an aggregator does not answer", "start the store, or name another with `--aggregator`");
        PUT_REFUSED = warning("C403", "a publisher refuses this device's blobs", "name its secret or token: `--publisher-secret-file` or `--publisher-token-file`");
        SHARDS_DIFFER = problem("C404", "the store has another number of shards", "leave shards out of the settings, or set it to the number of the store");
        STORE_DOWN = problem("C405", "the store does not answer", "start it, or name another with `--publisher`");
        STORE_SLOW = warning("C406", "the store answers slowly", "name a nearer one first");
        INDEX_DOWN = warning("C501", "a head index does not answer", "start it, or name another with `--heads`");
        NODE_UNREACHABLE = warning("C601", "a named node cannot be reached", "check that the node runs, and its address");
        NO_NODE = problem("C602", "no node was found", "name a node with `--node`, or use a private network: `baton try`");
        ONLY_ECHO = warning("C603", "only test engines were found", "name another node; for a test, pass `--allow-echo`");
        NODE_SILENT = warning("C604", "a known node does not answer", "check that it runs; others serve meanwhile");
        RELAYER_DOWN = problem("C701", "the relayer does not answer", "start the relayer, or name another with `--relayer`");
        NOT_STORED = warning("C801", "turns wait to be stored", "store them: `baton session renew`; keep this device until then");
        EXPIRES_SOON = warning("C802", "blobs may expire within 3 days", "renew them: `baton session renew`");
        NOT_ANSWERED = warning("C803", "a message has no answer", "continue it: `baton chat -s SESSION`");
        DELETED_ELSEWHERE = warning("C804", "another device deleted a session", "remove it here: `baton session delete SESSION`");
        OTHER_SHARDS = warning("C805", "a session is for a store with another number of shards", "go on in a new conversation: `baton chat -s SESSION --branch TEXT`");
    }
}

const STORE_CODES: StoreCodes = StoreCodes {
    silent: codes::STORE_DOWN,
    publisher_silent: codes::PUBLISHER_DOWN,
    aggregator_silent: codes::AGGREGATOR_DOWN,
    heads_silent: codes::INDEX_DOWN,
    heads_missing: codes::INDEX_DOWN,
    slow: codes::STORE_SLOW,
    shards_differ: codes::SHARDS_DIFFER,
    unusable: codes::SETTINGS_BROKEN,
    refused: codes::PUT_REFUSED,
};

pub(crate) async fn run(
    settings: Result<Settings, Failure>,
    arguments: &Arguments,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let mut first = Check::new("settings");
    let checks = match settings {
        Ok(settings) => {
            let file =
                settings_file(arguments.config.as_deref(), environment).filter(|(path, _)| path.exists());
            let defaults = || "the defaults: there is no settings file".to_owned();
            first.saw(file.map_or_else(defaults, |(path, _)| path.display().to_string()));
            Box::pin(check(&settings, first, out)).await
        }
        Err(failure) => {
            first.found(codes::SETTINGS_BROKEN, failure.message().unwrap_or_default());
            vec![first]
        }
    };
    show(&Report::new(checks), out)
}

/// All checks, after that of the settings.
async fn check(settings: &Settings, mut first: Check, out: &Out) -> Vec<Check> {
    out.note("Looking for nodes and stores …");
    // A wrong number in the settings is found below.
    let _ = settings.ask_shards().await;
    let mut home = Check::new("home");
    let opened = match settings.client(true) {
        Ok(config) => Client::open(config).await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    let client = match opened {
        Ok(client) => client,
        Err(failure) => {
            let is_setting = failure.is_usage();
            let (check, code) = match is_setting {
                true => (&mut first, codes::SETTINGS_BROKEN),
                false => (&mut home, codes::HOME_LOCKED),
            };
            check.found(code, failure.message().unwrap_or_default());
            return if is_setting { vec![first] } else { vec![first, home] };
        }
    };
    let listing = client.listing().await;
    // At once: a server that hangs holds up no other's answer.
    let (nodes, (stores, times), relayer) = tokio::join!(nodes(&client), stores(settings), relayer(settings));
    let clock = clock_check(&client, &times).await;
    client.shutdown(Duration::ZERO).await;
    home.saw(settings.home().display().to_string());
    if settings.passphrase().is_none() {
        home.saw("the device key has no passphrase; `baton passphrase` sets one");
    }
    let mut sessions = Check::new("sessions");
    match listing {
        Ok(listing) => sessions_check(&listing, settings.shards().get(), &mut home, &mut sessions),
        Err(error) => home.found(codes::HOME_LOCKED, error.to_string()),
    }
    [first, home, clock, nodes, stores].into_iter().chain(relayer).chain([sessions]).collect()
}

async fn clock_check(client: &Client, stores: &[ClockReading]) -> Check {
    let mut check = Check::new("clock");
    if let Some(difference) = client.clock_difference().await {
        check.found(codes::CLOCK_WRONG, difference.to_string());
        return check;
    }
    let (now_ms, codes) =
        (client.now_ms(), ClockCodes { absurd: codes::CLOCK_WRONG, off: codes::CLOCK_WRONG });
    let now = clock::date_time(now_ms);
    let compared = check_clock(&mut check, codes, (now_ms, &now), stores, MAX_CLOCK_DIFFERENCE_MS);
    if compared && stores.is_empty() {
        check.saw("not compared: no store told the time");
    }
    check
}

async fn nodes(client: &Client) -> Check {
    let mut check = Check::new("nodes");
    let nodes = client.nodes().await;
    for line in search::unreachable_nodes(client) {
        check.found(codes::NODE_UNREACHABLE, line);
    }
    if nodes.is_empty() {
        let is_named = !client.mesh().network().bootstrap.is_empty();
        let detail = match client.why_no_node().await {
            NoChoice::NoNodes if is_named => "none of the named nodes answers".to_owned(),
            NoChoice::NoNodes if client.uses_multicast() => "the local network shows none".to_owned(),
            NoChoice::NoNodes => "none is named, and mdns is off".to_owned(),
            why => why.to_string(),
        };
        check.found(codes::NO_NODE, detail);
        return check;
    }
    let ids: Vec<NodeId> = nodes.iter().map(|node| node.record.node).collect();
    let answering = client.answering(&ids).await;
    let (nodes, silent): (Vec<&NodeInfo>, Vec<&NodeInfo>) =
        nodes.iter().partition(|node| answering.contains(&node.record.node));
    for node in &silent {
        check.found(codes::NODE_SILENT, format!("node {}", short(&node.record.node)));
    }
    if nodes.is_empty() {
        check.found(codes::NO_NODE, "no node answers");
        return check;
    }
    let offers = || nodes.iter().flat_map(|node| &node.record.models);
    let models = served(offers()).join(", ");
    let answer = if nodes.len() == 1 { "answers" } else { "answer" };
    check.saw(format!("{} {answer}, with {models}", count(nodes.len() as u64, "node")));
    if offers().all(|offer| offer.engine == EngineKind::Echo) {
        check.found(codes::ONLY_ECHO, "they repeat the message");
    }
    check
}

/// Also how this machine's clock compares with the stores'.
async fn stores(settings: &Settings) -> (Check, Vec<ClockReading>) {
    let mut check = Check::new("store");
    let options = StoreOptions { heads: settings.indexes(), ..settings.store_options() };
    // By default, the first server with an index is the index.
    let times = check_stores(&mut check, &STORE_CODES, &options, !settings.names_indexes()).await;
    (check, times)
}

async fn relayer(settings: &Settings) -> Option<Check> {
    let url = settings.options.relayer_url.as_ref()?;
    let mut check = Check::new("relayer");
    let http = http_client::builder_for(url).timeout(ANSWER_WAIT).build().unwrap_or_default();
    match http.get(format!("{}/health", url.trim_end_matches('/'))).send().await {
        Ok(answer) if answer.status().is_success() => check.saw(url.clone()),
        Ok(answer) => check.found(codes::RELAYER_DOWN, format!("{url}: it answers {}", answer.status())),
        Err(error) => {
            check.found(codes::RELAYER_DOWN, http_client::describe(&error));
        }
    }
    Some(check)
}

fn sessions_check(listing: &Listing, shards: u16, home: &mut Check, check: &mut Check) {
    for journal in &listing.unreadable {
        home.found(codes::JOURNAL_DAMAGED, journal.error.to_string());
    }
    let now_ms = clock::now_ms();
    let mut name = |code: Code, what: &str, of: &dyn Fn(&baton_client::SessionInfo) -> bool| {
        let found: Vec<String> =
            listing.sessions.iter().filter(|info| of(info)).map(|info| short(&info.id)).collect();
        if !found.is_empty() {
            let shown = found.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join(", ");
            let more = if found.len() > MAX_SHOWN { ", …" } else { "" };
            check.found(code, format!("{} {what}: {shown}{more}", count(found.len() as u64, "session")));
        }
    };
    let waits = |info: &baton_client::SessionInfo| info.unstored > 0;
    name(codes::NOT_STORED, "with turns that no store confirmed", &|info| {
        waits(info) && info.shards == shards
    });
    let other = format!("that a store with {shards} shards cannot keep");
    name(codes::OTHER_SHARDS, &other, &|info| waits(info) && info.shards != shards);
    name(codes::EXPIRES_SOON, "whose blobs may expire within 3 days", &|info| {
        info.kept_until_ms.is_some_and(|until_ms| until_ms < now_ms.saturating_add(SOON_MS))
    });
    name(codes::NOT_ANSWERED, "with a message that has no answer", &|info| info.pending);
    name(codes::DELETED_ELSEWHERE, "that another device deleted", &|info| info.deleted_elsewhere);
    check.saw(count(listing.sessions.len() as u64, "session"));
}

fn show(report: &Report, out: &Out) -> Result<(), Failure> {
    out.answer(&json!(report), &clean(&report.describe(Style::new(false))))?;
    if report.problems == 0 { Ok(()) } else { Err(Failure::Shown(1)) }
}

#[cfg(test)]
mod tests {
    use baton_kit::doctor::undocumented;

    use super::*;

    #[test]
    fn the_page_of_troubles_lists_every_code() {
        let wrong = undocumented(codes::ALL, include_str!("../../../docs/TROUBLESHOOTING.md"));
        assert!(wrong.is_empty(), "docs/TROUBLESHOOTING.md: {}", wrong.join("\n"));
    }
}
