//! Checks that nodes can be found: dials each bootstrap node as the relayer would, under a temporary identity.

use std::time::Duration;

use baton_keys::secret::random_bytes;
use baton_mesh::{DialOutcome, Mesh, Multiaddr};
use futures::future::join_all;
use zeroize::Zeroizing;

use super::{Check, Subject, codes};
use crate::config::Settings;

/// Timeout of one node.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// The software name of this command towards nodes.
const SOFTWARE: &str = concat!("baton/", env!("CARGO_PKG_VERSION"), " (relayer doctor)");

pub(super) async fn check(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let bootstrap = settings.options.bootstrap();
    let mut check = Check::new("nodes");
    judge_sources(&mut check, settings);
    if let Some(relayer) = subject.running() {
        let peers = relayer.identity.peers;
        check.saw(format!("{} connected, {} known", peers.connected, peers.known));
        if peers.connected == 0 && (settings.options.mdns() || !bootstrap.is_empty()) {
            check.found(codes::PEERS_NONE, format!("{} peers are known", peers.known));
        }
    }
    let dialled = join_all(bootstrap.iter().map(|address| {
        let seed = Zeroizing::new(random_bytes());
        Box::pin(Mesh::try_dial(seed, SOFTWARE, address, DIAL_TIMEOUT, async |_, _| ()))
    }));
    let addresses = bootstrap.iter().map(Multiaddr::to_string);
    let dialled: Vec<_> = addresses.zip(dialled.await).collect();
    judge_dials(&mut check, &dialled);
    check
}

fn judge_sources(check: &mut Check, settings: &Settings) {
    let options = &settings.options;
    let needs = match (settings.has_stores, &options.through_nodes, &settings.model) {
        (true, _, _) => Some("conversations over HTTP"),
        (false, Some(_), None) => Some("through_nodes"),
        _ => None,
    };
    match (options.bootstrap().is_empty(), options.mdns(), needs) {
        (true, false, Some(needs)) => check.found(codes::NODES_NEEDED, needs),
        (true, false, None) => check.found(codes::NODES_NONE, "bootstrap is empty and mdns is off"),
        (true, true, _) => {
            check.saw("no bootstrap node is configured; nodes of the local network are found by multicast");
        }
        (false, ..) => {}
    }
}

fn judge_dials(check: &mut Check, dialled: &[(String, DialOutcome<()>)]) {
    let mut answered = 0;
    for (address, outcome) in dialled {
        if !address.contains("/p2p/") {
            check.found(codes::BOOTSTRAP_ANONYMOUS, address.clone());
        }
        match outcome {
            DialOutcome::Answered(took, _) => {
                answered += 1;
                check.saw(format!("{address} answers in {} ms", took.as_millis()));
            }
            DialOutcome::Other => check.found(codes::BOOTSTRAP_OTHER, address.clone()),
            DialOutcome::Silent(reason) => {
                check.found(codes::BOOTSTRAP_SILENT, format!("{address}: {reason}"));
            }
        }
    }
    if answered == 0 && !dialled.is_empty() {
        check.found(codes::BOOTSTRAP_ALL_SILENT, format!("none of {}", dialled.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{running_relayer, silent, subject},
        *,
    };
    use crate::running::RelayerAnswer;

    fn codes_with(text: &str) -> Vec<&'static str> {
        let mut check = Check::new("nodes");
        judge_sources(&mut check, &subject(text, silent()).settings);
        check.codes()
    }

    #[test]
    fn nodes_are_missed_only_where_they_are_needed() {
        let alone = "mdns = false\n";
        let stores = "publishers = [\"http://x\"]\naggregators = [\"http://x\"]\n";
        assert!(codes_with("").is_empty());
        assert_eq!(codes_with(alone), ["R702"]);
        assert_eq!(codes_with(&format!("{alone}{stores}")), ["R701"]);
        let nodes = "through_nodes = \"m\"\n";
        assert_eq!(codes_with(&format!("{alone}{nodes}")), ["R701"]);
        let model = "model_url = \"http://x/v1\"\nmodel = \"m\"\n";
        assert_eq!(codes_with(&format!("{alone}{nodes}{model}")), ["R702"], "the endpoint goes first");
    }

    #[test]
    fn dials_are_judged_one_by_one_and_together() {
        let codes = |outcomes: Vec<DialOutcome<()>>| {
            let dialled: Vec<_> = outcomes
                .into_iter()
                .map(|outcome| ("/ip4/192.0.2.1/tcp/1/p2p/P".to_owned(), outcome))
                .collect();
            let mut check = Check::new("nodes");
            judge_dials(&mut check, &dialled);
            check.codes()
        };
        let silent = || DialOutcome::Silent(String::new());
        let answered = || DialOutcome::Answered(Duration::ZERO, None);
        assert!(codes(vec![]).is_empty() && codes(vec![answered()]).is_empty());
        assert_eq!(codes(vec![silent(), answered()]), ["R703"]);
        assert_eq!(codes(vec![DialOutcome::Other, answered()]), ["R704"]);
        assert_eq!(codes(vec![silent()]), ["R703", "R705"]);
        let mut check = Check::new("nodes");
        judge_dials(&mut check, &[("/ip4/192.0.2.1/tcp/1".to_owned(), answered())]);
        assert_eq!(check.codes(), ["R707"]);
    }

    #[tokio::test]
    async fn a_running_relayer_without_a_peer_is_noticed() {
        let mut relayer = running_relayer(&[]);
        relayer.identity.peers = crate::http::PeerCounts::default();
        let subject = subject("", RelayerAnswer::Relayer(Box::new(relayer)));
        assert_eq!(super::check(&subject).await.codes(), ["R706"]);
    }
}
