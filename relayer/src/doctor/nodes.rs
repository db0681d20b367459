//! Checks that nodes can be found: dials each bootstrap node as the relayer would, under a temporary identity.

use std::time::Duration;

use baton_keys::SecretSigningKey;
use baton_mesh::{Mesh, MeshConfig, Multiaddr, OpenError, PeerId, Reach, node_id_of};
use futures::future::join_all;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Subject, codes, report::Check};
use crate::config::{HttpSetting, Settings};

/// Timeout of one node.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// The software name of this command towards nodes.
const SOFTWARE: &str = concat!("baton/", env!("CARGO_PKG_VERSION"), " (relayer doctor)");

/// Outcome of one dial.
#[derive(Debug)]
enum DialOutcome {
    Answered(Duration),
    Other,
    Silent(String),
}

pub(super) async fn check(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let mut check = Check::new("nodes");
    judge_sources(&mut check, settings, needs(settings));
    if let Some(relayer) = subject.running() {
        let peers = relayer.identity.peers;
        check.saw(format!("{} connected, {} known", peers.connected, peers.known));
        if peers.connected == 0 && (settings.mdns || !settings.bootstrap.is_empty()) {
            check.found(codes::PEERS_NONE, format!("{} peers are known", peers.known));
        }
    }
    if subject.offline && !settings.bootstrap.is_empty() {
        check.saw("offline: bootstrap nodes were not dialled");
        return check;
    }
    let dialled = join_all(settings.bootstrap.iter().map(|address| Box::pin(dial(address)))).await;
    let dialled: Vec<_> = settings.bootstrap.iter().map(Multiaddr::to_string).zip(dialled).collect();
    judge_dials(&mut check, &dialled);
    check
}

/// The parts of the configuration that need a node, in words.
fn needs(settings: &Settings) -> Vec<&'static str> {
    let conversations = settings.walrus.is_some() && settings.http != HttpSetting::Off;
    let needs = [
        (conversations, "conversations over HTTP"),
        (settings.through_nodes.is_some() && settings.model.is_none(), "through_nodes"),
        (settings.http == HttpSetting::Off, "sealed turns, since HTTP is off"),
    ];
    needs.into_iter().filter_map(|(needed, name)| needed.then_some(name)).collect()
}

fn judge_sources(check: &mut Check, settings: &Settings, needs: Vec<&str>) {
    match (settings.bootstrap.is_empty(), settings.mdns, needs.is_empty()) {
        (true, false, false) => check.found(codes::NODES_NEEDED, needs.join(" and ")),
        (true, false, true) => check.found(codes::NODES_NONE, "bootstrap is empty and mdns is off"),
        (true, true, _) => {
            check.saw("no bootstrap node is configured; nodes of the local network are found by multicast");
        }
        (false, ..) => {}
    }
}

fn judge_dials(check: &mut Check, dialled: &[(String, DialOutcome)]) {
    let mut answered = 0;
    for (address, outcome) in dialled {
        if !address.contains("/p2p/") {
            check.found(codes::BOOTSTRAP_ANONYMOUS, address.clone());
        }
        match outcome {
            DialOutcome::Answered(took) => {
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

/// The address without its last part, and the peer in that part.
fn named_peer(address: &Multiaddr) -> Option<(Multiaddr, PeerId)> {
    let text = address.to_string();
    let (place, peer) = text.rsplit_once("/p2p/")?;
    Some((place.parse().ok()?, peer.parse().ok()?))
}

async fn dial(address: &Multiaddr) -> DialOutcome {
    let named = named_peer(address);
    // The operator named the address, so any range is allowed, even loopback.
    let mut config = MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer(SOFTWARE) };
    if named.is_none() {
        config.bootstrap = vec![address.clone()];
    }
    let seed = Zeroizing::new(*SecretSigningKey::generate().expose_seed());
    let (mesh, _incoming) = match Box::pin(Mesh::spawn(seed, config)).await {
        Ok(mesh) => mesh,
        Err(error) => return DialOutcome::Silent(error.to_string()),
    };
    let begin = Instant::now();
    let deadline = begin + DIAL_TIMEOUT;
    let outcome = match named {
        Some((place, peer)) => match node_id_of(&peer) {
            Some(node) => match mesh.open(node, &[place], deadline).await {
                // Without the turn protocol, it is a relay or only a bootstrap peer.
                Ok(_) | Err(OpenError::ProtocolUnsupported) => DialOutcome::Answered(begin.elapsed()),
                Err(OpenError::WrongIdentity { .. }) => DialOutcome::Other,
                Err(error) => DialOutcome::Silent(error.to_string()),
            },
            None => DialOutcome::Silent("its name is not that of an Ed25519 key".to_owned()),
        },
        None => match mesh.wait_for_peers(deadline, |peers| peers.iter().any(|peer| peer.connected)).await {
            Some(_) => DialOutcome::Answered(begin.elapsed()),
            None => DialOutcome::Silent(format!("no connection within {} s", DIAL_TIMEOUT.as_secs())),
        },
    };
    mesh.shutdown().await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::{
        super::{report::codes_of, running_relayer, subject},
        *,
    };
    use crate::running::RelayerAnswer;

    fn codes_with(text: &str) -> Vec<&'static str> {
        let subject = subject(text, RelayerAnswer::NoAddress("a test"));
        let mut check = Check::new("nodes");
        judge_sources(&mut check, &subject.settings, needs(&subject.settings));
        codes_of(&check)
    }

    #[test]
    fn nodes_are_missed_only_where_they_are_needed() {
        let alone = "mdns = false\n";
        let stores = "publishers = [\"http://x\"]\naggregators = [\"http://x\"]\n";
        assert!(codes_with("").is_empty());
        assert_eq!(codes_with(alone), ["R702"]);
        assert_eq!(codes_with(&format!("{alone}{stores}")), ["R701"]);
        assert_eq!(codes_with(&format!("{alone}http = \"off\"")), ["R701"]);
        let nodes = "through_nodes = true\nthrough_nodes_model = \"m\"\n";
        assert_eq!(codes_with(&format!("{alone}{nodes}")), ["R701"]);
        let model = "model_url = \"http://x/v1\"\nmodel = \"m\"\n";
        assert_eq!(codes_with(&format!("{alone}{nodes}{model}")), ["R702"], "the endpoint goes first");
    }

    #[test]
    fn dials_are_judged_one_by_one_and_together() {
        let codes = |outcomes: Vec<DialOutcome>| {
            let dialled: Vec<_> = outcomes
                .into_iter()
                .map(|outcome| ("/ip4/192.0.2.1/tcp/1/p2p/P".to_owned(), outcome))
                .collect();
            let mut check = Check::new("nodes");
            judge_dials(&mut check, &dialled);
            codes_of(&check)
        };
        let silent = || DialOutcome::Silent(String::new());
        let answered = || DialOutcome::Answered(Duration::ZERO);
        assert!(codes(vec![]).is_empty() && codes(vec![answered()]).is_empty());
        assert_eq!(codes(vec![silent(), answered()]), ["R703"]);
        assert_eq!(codes(vec![DialOutcome::Other, answered()]), ["R704"]);
        assert_eq!(codes(vec![silent()]), ["R703", "R705"]);
        let mut check = Check::new("nodes");
        judge_dials(&mut check, &[("/ip4/192.0.2.1/tcp/1".to_owned(), answered())]);
        assert_eq!(codes_of(&check), ["R707"]);
    }

    #[tokio::test]
    async fn a_running_relayer_without_a_peer_is_noticed() {
        let mut relayer = running_relayer(&[]);
        relayer.identity.peers = crate::http::PeerCounts::default();
        let subject = subject("", RelayerAnswer::Relayer(Box::new(relayer)));
        assert_eq!(codes_of(&super::check(&subject).await), ["R706"]);
    }
}
