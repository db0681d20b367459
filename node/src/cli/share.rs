//! `baton-node share`: the settings that a client needs for this node and its store, as a file.

use baton_walrus_client::http_client::is_loopback;

use super::{
    Exit, Failure, NodeArgs,
    ask::{Admin, admin_address, block_on},
    say,
};
use crate::{
    admin::network::Audience,
    config::{Settings, parse_running},
    daemon::start::{SharedStore, shared_address},
};

pub(super) const AFTER_HELP: &str = "The file names the node, its publisher, aggregator and shards. It holds no token: if the publisher\n\
    wants one, give your friend their own.\n\n\
    Examples:\n  baton-node share > friend.toml\n  baton --config friend.toml";

pub(super) fn run(args: NodeArgs) -> Result<(), Failure> {
    let (is_given, json) = (args.admin.is_some(), args.places.json);
    let settings = Settings::load(args.flags()?)?;
    let admin = Admin::at(admin_address(&settings, is_given)?)?;
    let (status, running) = block_on(async { Ok((admin.status().await?, admin.settings().await?)) })?;
    let external = status.network.map(|network| network.external_addrs).unwrap_or_default();
    let Some((to, address)) = shared_address(&external, &status.listen, &status.peer_id) else {
        return Err(Failure::text(Exit::Failure, "the node listens at no address, so nobody can reach it"));
    };
    let store = SharedStore {
        publishers: status.store.publishers,
        aggregators: status.store.aggregators,
        // The options of the running node count, as in the other fields.
        shards: parse_running(&running).shards.unwrap_or(settings.shards()),
    };
    if json {
        say(serde_json::json!({
            "node": [address], "publisher": store.publishers, "aggregator": store.aggregators, "shards": store.shards,
        }));
        return Ok(());
    }
    let is_here = |url: &&String| url.parse::<reqwest::Url>().is_ok_and(|url| is_loopback(&url));
    let mut here = store.publishers.iter().chain(&store.aggregators).filter(is_here);
    match (to, here.next()) {
        (Audience::ThisMachine, _) => {
            say(
                "# Only this machine reaches the node: set listen, and external if a router forwards a port.",
            );
        }
        (_, Some(url)) => {
            say(format!("# Only this machine reaches {url}: write the address for others there."))
        }
        _ => {}
    }
    store.client_settings(&address).into_iter().for_each(say);
    Ok(())
}
