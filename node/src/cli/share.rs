//! `baton-node share`: the settings that a client needs for this node and its store, as a file.

use baton_mesh::Reach;
use baton_walrus_client::http_client::is_loopback;
use clap::ArgMatches;

use super::{
    Exit, Failure, RunLike,
    ask::{Admin, block_on},
    say,
};
use crate::{admin::network::reach, config::parse_running};

pub(super) const AFTER_HELP: &str = "The file names the node, its publisher, aggregator and shards. It holds no token: if the publisher\n\
    wants one, give your friend their own.\n\n\
    Examples:\n  baton-node share > friend.toml\n  baton --config friend.toml";

pub(super) fn run(args: RunLike, matches: &ArgMatches) -> Result<(), Failure> {
    let (admin, settings, json) = Admin::of(args, matches)?;
    let (status, running) = block_on(async { Ok((admin.status().await?, admin.settings().await?)) })?;
    let external = status.network.map(|network| network.external_addrs).unwrap_or_default();
    let Some((to, address)) = shared_address(&external, &status.listen, &status.peer_id) else {
        return Err(Failure::text(Exit::Failure, "the node listens at no address, so nobody can reach it"));
    };
    let (publishers, aggregators) = (status.store.publishers, status.store.aggregators);
    // The options of the running node count, as in the other fields.
    let shards = parse_running(&running).shards.or(settings.shards);
    if json {
        say(serde_json::json!({
            "node": [address], "publisher": publishers, "aggregator": aggregators, "shards": shards,
        }));
        return Ok(());
    }
    let is_here = |url: &&String| url.parse::<reqwest::Url>().is_ok_and(|url| is_loopback(&url));
    let mut here = publishers.iter().chain(&aggregators).filter(is_here);
    match (to, here.next()) {
        (Reach::Loopback, _) => {
            say(
                "# Only this machine reaches the node: set listen, and external if a router forwards a port.",
            );
        }
        (_, Some(url)) => {
            say(format!("# Only this machine reaches {url}: write the address for others there."))
        }
        _ => {}
    }
    for (key, list) in [("node", &[address][..]), ("publisher", &publishers), ("aggregator", &aggregators)] {
        say(format!("{key} = {}", serde_json::json!(list)));
    }
    // Without a line, a client takes the number that the store announces, as the node does.
    if let Some(shards) = shards {
        say(format!("shards = {shards}"));
    }
    Ok(())
}

/// The address of a node to share: the one for most others, first the confirmed and configured ones.
fn shared_address(external: &[String], listen: &[String], peer_id: &str) -> Option<(Reach, String)> {
    let suffix = format!("/p2p/{peer_id}");
    let best = external.iter().chain(listen).min_by_key(|address| reach(address))?;
    let named = if best.ends_with(&suffix) { best.clone() } else { format!("{best}{suffix}") };
    Some((reach(best), named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_most_others_is_shared() {
        let (here, lan) = ("/ip4/127.0.0.1/tcp/4001/p2p/ID", "/ip4/192.168.1.5/tcp/4001/p2p/ID");
        for (external, listen, expected) in [
            (&[][..], &[here][..], Some((Reach::Loopback, here))),
            // A peer on the same machine confirmed a loopback address.
            (&["/ip4/127.0.0.1/tcp/4001"], &[here], Some((Reach::Loopback, here))),
            (&[], &[here, lan], Some((Reach::Local, lan))),
            (&["/dns4/n.example/tcp/1"], &[lan], Some((Reach::Public, "/dns4/n.example/tcp/1/p2p/ID"))),
            (&[], &[], None),
        ] {
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let shared = shared_address(&texts(external), &texts(listen), "ID");
            let shared = shared.as_ref().map(|(audience, address)| (*audience, address.as_str()));
            assert_eq!(shared, expected);
        }
    }
}
