//! The end of a start for people at a terminal: whether others reach the node, and the settings that others use.
//!
//! `upkeep` prints it once, after the first request to the store. Decides only what to say; a loopback address
//! is never called reachable by others.

use crate::{
    admin::network::{Audience, Nat, NetworkStatus, audience},
    config::LogFormat,
};

/// The settings file of the client `baton`.
const CLIENT_SETTINGS: &str = "~/.config/baton/config.toml";

/// Facts about a node at the end of its start.
pub(super) struct StartSummary {
    /// The addresses that the node listens on.
    pub(super) listen: Vec<String>,
    pub(super) peer_id: String,
    pub(super) network: NetworkStatus,
    pub(super) store_answers: bool,
    /// Where the node stores and reads blobs: a client needs a store with the same blobs.
    pub(super) store: SharedStore,
}

/// The settings of a node's store that its clients need too.
#[derive(Debug, Clone)]
pub(crate) struct SharedStore {
    pub(crate) publishers: Vec<String>,
    pub(crate) aggregators: Vec<String>,
    pub(crate) shards: u16,
}

impl SharedStore {
    /// The lines of a client's settings file for a node at this address.
    pub(crate) fn client_settings(&self, node: &str) -> [String; 4] {
        let list =
            |urls: &[String]| urls.iter().map(|url| format!("\"{url}\"")).collect::<Vec<_>>().join(", ");
        [
            format!("node = [\"{node}\"]"),
            format!("publisher = [{}]", list(&self.publishers)),
            format!("aggregator = [{}]", list(&self.aggregators)),
            format!("shards = {}", self.shards),
        ]
    }
}

/// The address of a node to share: the one for most others, first the confirmed and configured ones.
pub(crate) fn shared_address(
    external: &[String],
    listen: &[String],
    peer_id: &str,
) -> Option<(Audience, String)> {
    let suffix = format!("/p2p/{peer_id}");
    let best = external.iter().chain(listen).min_by_key(|address| audience(address))?;
    let named = if best.ends_with(&suffix) { best.clone() } else { format!("{best}{suffix}") };
    Some((audience(best), named))
}

/// Whether somebody reads the end of a start: at a terminal, and neither as JSON log nor as events.
pub(super) fn is_for_people(format: LogFormat, prints_events: bool, is_terminal: bool) -> bool {
    is_terminal && format != LogFormat::Json && !prints_events
}

impl StartSummary {
    /// Whether others reach the node, in words.
    fn reach(&self, to: Audience) -> String {
        match (to, self.network.nat) {
            (Audience::ThisMachine, _) => {
                "only from this machine: every address is a loopback address; set listen to change it"
                    .to_owned()
            }
            (Audience::Everyone, Nat::Public) => "yes, as others confirm".to_owned(),
            (_, Nat::Private) if !self.network.relayed_via.is_empty() => "through a relay".to_owned(),
            (_, Nat::Private) => {
                "no, the node is behind a NAT without a relay: baton-node doctor has the fix".to_owned()
            }
            (Audience::LocalNetwork, _) => {
                "not known yet; the address below is for your own network: baton-node status".to_owned()
            }
            (Audience::Everyone, Nat::Unknown) => {
                "not known yet: baton-node status shows it later".to_owned()
            }
        }
    }

    /// The lines.
    pub(super) fn describe(&self) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("  {name:24}{text}"));
        if !self.store_answers {
            line("Store", "does not answer yet: baton-node doctor names the reason".to_owned());
        }
        match shared_address(&self.network.external_addrs, &self.listen, &self.peer_id) {
            Some((to, address)) => {
                line("Reachable from outside", self.reach(to));
                let who = if to == Audience::ThisMachine { "To chat, here" } else { "To chat, others type" };
                line(who, "baton --config FILE, with a file of these lines: baton-node share".to_owned());
                for (number, setting) in self.store.client_settings(&address).into_iter().enumerate() {
                    line(if number == 0 { "or set once" } else { "" }, setting);
                }
                line("", format!("in {CLIENT_SETTINGS}"));
            }
            None => line("Reachable from outside", "no: no address is listened on".to_owned()),
        }
        format!("\n{}\n", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(nat: Nat, external: &[&str], listen: &[&str]) -> StartSummary {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        StartSummary {
            listen: texts(listen),
            peer_id: "ID".to_owned(),
            network: NetworkStatus { nat, external_addrs: texts(external), ..NetworkStatus::default() },
            store_answers: true,
            store: SharedStore {
                publishers: vec!["https://publisher.example".to_owned()],
                aggregators: vec!["https://aggregator.example".to_owned()],
                shards: 10,
            },
        }
    }

    #[test]
    fn the_address_for_most_others_is_shared() {
        let (here, lan) = ("/ip4/127.0.0.1/tcp/4001/p2p/ID", "/ip4/192.168.1.5/tcp/4001/p2p/ID");
        for (nat, external, listen, shared, reach) in [
            (Nat::Unknown, &[][..], &[here][..], here, "only from this machine"),
            // A peer on the same machine confirmed a loopback address.
            (Nat::Public, &["/ip4/127.0.0.1/tcp/4001"], &[here], here, "only from this machine"),
            (Nat::Unknown, &[], &[here, lan], lan, "for your own network"),
            (
                Nat::Public,
                &["/ip4/8.8.8.8/tcp/1"],
                &[here, lan],
                "/ip4/8.8.8.8/tcp/1/p2p/ID",
                "others confirm",
            ),
            (
                Nat::Unknown,
                &["/dns4/n.example/tcp/1"],
                &[lan],
                "/dns4/n.example/tcp/1/p2p/ID",
                "not known yet",
            ),
            (Nat::Private, &[], &[here, lan], lan, "behind a NAT"),
        ] {
            let text = summary(nat, external, listen).describe();
            for part in [
                "baton --config FILE, with a file of these lines: baton-node share\n",
                &format!("node = [\"{shared}\"]"),
                "publisher = [\"https://publisher.example\"]",
                "aggregator = [\"https://aggregator.example\"]",
                "shards = 10\n",
                reach,
            ] {
                assert!(text.contains(part), "{part} is not in {text}");
            }
        }
        assert!(summary(Nat::Unknown, &[], &[]).describe().contains("no address is listened on"));
    }

    #[test]
    fn programs_and_json_logs_get_no_lines_for_people() {
        assert!(
            is_for_people(LogFormat::Pretty, false, true) && is_for_people(LogFormat::Compact, false, true)
        );
        for (format, prints_events, is_terminal) in [
            (LogFormat::Json, false, true),
            (LogFormat::Pretty, true, true),
            (LogFormat::Pretty, false, false),
        ] {
            assert!(!is_for_people(format, prints_events, is_terminal));
        }
    }
}
