//! Whether any node answers, after one could not be reached: otherwise each further attempt would wait in vain.

use std::{sync::Arc, time::Duration};

use baton_proto::{ids::NodeId, wire::ClientFrame};
use futures::{StreamExt as _, stream::FuturesUnordered};

use super::Progress;
use crate::{
    core::Core,
    error::short,
    network::exchange::{self, ExchangeError},
};

/// Limit for opening a substream directly at a node. A QUIC handshake gives up at the same time, so the error
/// has the cause of each address.
pub(super) const DIRECT_OPEN: Duration = Duration::from_secs(5);
/// Time for one of the other nodes to answer: a connection and a request, to the other side of the world.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Most nodes asked at once. Of more, some other attempt will find one that answers.
const MAX_ASKED: usize = 16;

/// Asks all other known nodes at once, and returns at the first answer. If none answers, the last failure's
/// reason names them all.
pub(super) async fn any_node_answers(core: &Arc<Core>, progress: &mut Progress) -> bool {
    let directory = &core.directory;
    let mesh = directory.mesh();
    let usable = directory.usable().into_iter().map(|info| info.record.node);
    let connected = mesh.peers().into_iter().filter(|peer| peer.connected).map(|peer| peer.node);
    let mut others: Vec<NodeId> = Vec::new();
    for node in usable.chain(connected) {
        if !progress.unreachable.contains(&node) && !others.contains(&node) {
            others.push(node);
        }
    }
    if others.len() > MAX_ASKED {
        return true;
    }
    let asked = others.into_iter().map(|node| async move {
        let addrs = directory.addrs(node);
        let answer = exchange::ask(mesh, node, &addrs, &ClientFrame::NodeRecord, ANSWER_WAIT);
        match tokio::time::timeout(ANSWER_WAIT, answer).await {
            Ok(Ok(_) | Err(ExchangeError::Refused { .. })) => Ok(node),
            Ok(Err(error)) => Err((node, error.to_string())),
            Err(_) => Err((node, format!("no answer in {} s", ANSWER_WAIT.as_secs()))),
        }
    });
    let mut answers: FuturesUnordered<_> = asked.collect();
    let mut silent = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(_) => return true,
            Err(failed) => silent.push(failed),
        }
    }
    if let Some((_, failure)) = &mut progress.last {
        for (node, reason) in silent {
            failure.reason.push_str(&format!("; node {}: {reason}", short(&node)));
        }
    }
    false
}
