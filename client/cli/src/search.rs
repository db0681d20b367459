//! The search for nodes: what is said while it lasts, where it looked, and the node that a call names.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use baton_client::{Client, ClientError};
use baton_proto::{ids::NodeId, node_record::ModelOffer};

use crate::{
    failure::Failure,
    out::{Out, count},
};

/// A turn without an event for this long is said to look for nodes.
const SEARCH_REMARK: Duration = Duration::from_millis(700);
/// A turn without an event for this long names the nodes that cannot be reached.
pub(crate) const FAILURE_REMARK: Duration = Duration::from_secs(3);
/// Fewest digits that name a node.
const MIN_ID_DIGITS: usize = 6;

/// Runs a turn. While none of its events arrives, says what it waits for: soon, and then the nodes that cannot
/// be reached.
pub(crate) async fn while_waiting<T>(
    client: &Client,
    out: &Out,
    started: Arc<AtomicBool>,
    turn: impl Future<Output = T>,
) -> T {
    let remarks = async {
        tokio::time::sleep(SEARCH_REMARK).await;
        if !started.load(Ordering::Relaxed) {
            let named = client.mesh().network().bootstrap.len();
            out.note(&search_line(named, client.uses_multicast()));
        }
        tokio::time::sleep(FAILURE_REMARK.saturating_sub(SEARCH_REMARK)).await;
        if !started.load(Ordering::Relaxed) {
            warn_of_unreachable_nodes(client, out);
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = turn => done,
        () = remarks => unreachable!("the remarks do not end"),
    }
}

/// The places where nodes are looked for, with this many named nodes. The network's own list is empty in its
/// first moments.
pub(crate) fn search_line(named: usize, multicast: bool) -> String {
    match (named, multicast) {
        (0, true) => "Looking for nodes on the local network …".to_owned(),
        (0, false) => "Looking for nodes: no node is named, and mdns is off …".to_owned(),
        (named, _) => format!("Looking for nodes: {} …", count(named as u64, "named node")),
    }
}

/// Says why there is no node, and what to do.
pub(crate) async fn explain_lack_of_nodes(client: &Client, out: &Out) {
    let error = ClientError::NoNode(client.why_no_node().await);
    out.warn(&format!("0 nodes: {error}"));
    warn_of_unreachable_nodes(client, out);
    if let Some(hint) = error.hint() {
        out.note(&format!("  try: {hint}"));
    }
}

/// The names of offered models, each once.
pub(crate) fn served<'a>(offers: impl Iterator<Item = &'a ModelOffer>) -> Vec<&'a str> {
    let mut names: Vec<&str> = offers.map(|offer| offer.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The named nodes that cannot be reached, each with the reason.
pub(crate) fn unreachable_nodes(client: &Client) -> Vec<String> {
    let named = client.mesh().network().bootstrap.into_iter().filter(|node| !node.connected);
    let reason = |failure: Option<String>| failure.unwrap_or_else(|| "no answer so far".to_owned());
    named.map(|node| format!("{}: {}", node.address, reason(node.failure))).collect()
}

/// Says which named nodes cannot be reached, and why.
pub(crate) fn warn_of_unreachable_nodes(client: &Client, out: &Out) {
    unreachable_nodes(client).iter().for_each(|line| out.warn(&format!("Could not reach {line}")));
}

/// The node of `--only`: a whole ID, or the first digits of the ID of a found node.
pub(crate) async fn named_node(client: &Client, named: Option<&str>) -> Result<Option<NodeId>, Failure> {
    let Some(text) = named else { return Ok(None) };
    if let Ok(node) = text.parse::<NodeId>() {
        return Ok(Some(node));
    }
    if text.len() < MIN_ID_DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::usage(
            format!("--only: {text} is no node ID."),
            format!("give its first {MIN_ID_DIGITS} digits or more: baton nodes"),
        ));
    }
    let found: Vec<NodeId> = client.nodes().await.iter().map(|node| node.record.node).collect();
    node_with_prefix(&found, text).map(Some)
}

/// The one node whose ID begins with these hexadecimal digits.
fn node_with_prefix(found: &[NodeId], digits: &str) -> Result<NodeId, Failure> {
    let wanted = digits.to_lowercase();
    let mut matching = found.iter().filter(|node| node.to_string().starts_with(&wanted));
    match (matching.next(), matching.next()) {
        (Some(node), None) => Ok(*node),
        (Some(_), Some(_)) => Err(Failure::usage(
            format!("--only: several nodes begin with {digits}."),
            "give more digits of the ID",
        )),
        (None, _) => Err(Failure::usage(
            format!("--only: no found node begins with {digits}."),
            "see who is there: baton nodes",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_the_first_digits_of_its_id() {
        let found = [NodeId([0xab; 32]), NodeId([0xac; 32])];
        assert_eq!(node_with_prefix(&found, "ABABAB").ok(), Some(found[0]));
        for (digits, expected) in [("a", "several nodes"), ("acab", "no found node")] {
            let message = node_with_prefix(&found, digits).unwrap_err().message().unwrap();
            assert!(message.contains(expected), "{message}");
        }
    }
}
