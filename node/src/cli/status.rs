//! `baton-node status`: reads the status from a node's admin port.

use baton_kit::output::span;
use baton_mesh::Reach;
use clap::ArgMatches;

use super::{
    Exit, Failure, RunLike, Style,
    ask::{Admin, block_on},
    say_result,
};
use crate::{
    admin::{
        Status,
        network::{Nat, NetworkStatus, reach},
    },
    metrics::TurnCounts,
};

pub(super) fn run(args: RunLike, matches: &ArgMatches) -> Result<(), Failure> {
    let (admin, _, json) = Admin::of(args, matches)?;
    let status = block_on(async { Ok(admin.status().await?) })?;
    say_result(json, serde_json::json!(status), describe(&status, Style::stdout()));
    if status.ready {
        Ok(())
    } else {
        Err(Failure::text(Exit::Failure, format!("the node is not ready: {}", status.not_ready.join("; "))))
    }
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
    if let Some(network) = &status.network {
        lines.push(format!("Network   {}", describe_reach(network, &status.listen)));
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
    let TurnCounts { running, waiting, committed, failed, refused } = status.turns;
    let (slots, queue) = (status.slots, status.queue);
    lines.push(format!(
        "Turns     {running} of {slots} slots busy, {waiting} of {queue} waiting; {committed} committed, {failed} failed, \
         {refused} refused"
    ));
    lines.push(format!("Speed     {}", describe_speed(status)));
    lines.push(format!("Store     {} {store}", status.store.publishers.join(", ")));
    if let Some(bytes) = status.resident_bytes {
        lines.push(format!("Memory    {} MB", bytes / 1_000_000));
    }
    lines.join("\n")
}

fn describe_speed(status: &Status) -> String {
    let speed = status.speed;
    if speed.turns == 0 {
        return "no turn within the last minute".to_owned();
    }
    let mut text = format!("{:.1} tokens/s over the last minute", speed.tokens_per_second());
    if let Some(each) = speed.tokens_per_second_each() {
        text.push_str(&format!("; {each:.1} tokens/s to each reader"));
    }
    if let Some(wait) = speed.first_token_ms {
        text.push_str(&format!(", first token after {wait} ms"));
    }
    text
}

/// Reachability in words, also of a node that only this machine can reach.
fn describe_reach(network: &NetworkStatus, listen: &[String]) -> String {
    let all = || listen.iter().chain(&network.external_addrs);
    let is_here = |address: &String| reach(address) == Reach::Loopback;
    if all().next().is_some() && all().all(is_here) && network.relayed_via.is_empty() {
        return "only this machine reaches this node: it listens on loopback addresses".to_owned();
    }
    describe_network(network)
}

/// Reachability in words. Peers on this machine confirm loopback addresses too; those say nothing about others.
pub(super) fn describe_network(network: &NetworkStatus) -> String {
    let of_others = network.external_addrs.iter().map(|address| (reach(address), address.as_str()));
    let of_others: Vec<_> = of_others.filter(|(to, _)| *to != Reach::Loopback).collect();
    let is_local = !of_others.is_empty() && of_others.iter().all(|(to, _)| *to == Reach::Local);
    let is_only_here = of_others.is_empty() && !network.external_addrs.is_empty();
    let mut parts = vec![match network.nat {
        Nat::Public if is_only_here => "only this machine is known to reach this node".to_owned(),
        Nat::Public if is_local => "others on the local network reach this node".to_owned(),
        Nat::Public => "others reach this node".to_owned(),
        Nat::Unknown => "whether others reach this node is not known yet".to_owned(),
        Nat::Private => "behind a NAT".to_owned(),
    }];
    if !of_others.is_empty() {
        let addresses: Vec<_> = of_others.iter().map(|(_, address)| *address).collect();
        parts.push(format!("as {}", addresses.join(", ")));
    }
    if !network.relayed_via.is_empty() {
        parts.push(format!("through {} relays", network.relayed_via.len()));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_is_not_called_reachable_by_others() {
        let (here, lan, world) = ("/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1", "/ip4/8.8.8.8/tcp/1");
        for (nat, external, listen, expected) in [
            (
                Nat::Public,
                &[here][..],
                &[here][..],
                "only this machine reaches this node: it listens on loopback addresses",
            ),
            (
                Nat::Unknown,
                &[],
                &[here],
                "only this machine reaches this node: it listens on loopback addresses",
            ),
            (Nat::Public, &[here], &[here, lan], "only this machine is known to reach this node"),
            (
                Nat::Public,
                &[lan],
                &[lan],
                "others on the local network reach this node, as /ip4/10.0.0.2/tcp/1",
            ),
            (Nat::Public, &[here, world], &[lan], "others reach this node, as /ip4/8.8.8.8/tcp/1"),
            (Nat::Unknown, &[], &[lan], "whether others reach this node is not known yet"),
        ] {
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let network = NetworkStatus { nat, external_addrs: texts(external), ..NetworkStatus::default() };
            assert_eq!(describe_reach(&network, &texts(listen)), expected, "{nat:?} {external:?}");
        }
    }
}
