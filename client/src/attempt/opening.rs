//! The opening of an attempt's substream, directly at its node.
//!
//! A node that does not answer is reported soon. Meanwhile the other known nodes are asked for any answer:
//! - One answers: the silent node is left soon, if another can serve the turn.
//! - None answers: further attempts would only wait in vain, one after the other, so the turn can end.

use std::{pin::pin, time::Duration};

use baton_mesh::{MeshHandle, Multiaddr, OpenError, TurnStream};
use baton_proto::ids::NodeId;
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::{AttemptContext, Events};
use crate::{
    event::{OtherNodes, TurnEvent},
    network::{exchange::ExchangeError, nodes::Directory, reputation::NodeFailure, retry::AttemptFailure},
};

/// Limit for opening a substream directly at a node. A QUIC handshake gives up after 5 s, so that the error has the
/// cause of each address.
pub(crate) const DIRECT_OPEN: Duration = Duration::from_millis(5500);
/// A node that has not answered for this long is reported, and the others are asked.
const SILENCE: Duration = Duration::from_secs(1);
/// A silent node is left after this long, if another answers and can serve the turn. It is a few round trips to the
/// other side of the world.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for one of the other nodes to answer: a connection and a request, to the other side of the world.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Time for all of them: twice as many as are asked at once.
const ALL_ANSWERS_WAIT: Duration = Duration::from_secs(4);
/// Most nodes asked at once.
const PARALLEL_ASKS: usize = 16;

/// First pause before a node that declined is dialled again; each further pause is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A node that declines is dialled again for this long. It is there, so this is longer than the wait for a silent one.
const DECLINED_PATIENCE: Duration = Duration::from_secs(10);

/// Opens a substream, with `wait` for each dial. A node at its limits of connections is dialled again after pauses, if it
/// has no substitute.
async fn open(
    mesh: &MeshHandle,
    node: NodeId,
    addrs: &[Multiaddr],
    wait: Duration,
    has_substitute: bool,
) -> Result<TurnStream, OpenError> {
    let patience = Instant::now() + DECLINED_PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        let opened = mesh.open(node, addrs, Instant::now() + wait).await;
        let again = Instant::now() + pause;
        if has_substitute || again >= patience || !matches!(opened, Err(OpenError::Declined { .. })) {
            return opened;
        }
        sleep_until(again).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens a substream, and reports a silent node.
pub(super) async fn open_reported(
    context: &AttemptContext<'_>,
    node: NodeId,
    addrs: &[Multiaddr],
    events: &mut Events<'_>,
) -> Result<TurnStream, AttemptFailure> {
    let (directory, begun) = (&context.core.directory, Instant::now());
    let others = directory.others(node);
    let mut opening =
        pin!(open(context.session_mesh, node, addrs, context.timeouts.open, context.substitute));
    let mut asking = pin!(one_answers(directory, others.clone()));
    let mut answer = None;
    let opened = match timeout_at(begun + SILENCE, &mut opening).await {
        Ok(opened) => opened,
        Err(_) => {
            events(TurnEvent::NoAnswerYet { node, others: OtherNodes::Asked(others.len()) });
            loop {
                let left = context.substitute && answer == Some(true);
                tokio::select! {
                    biased;
                    opened = &mut opening => break opened,
                    found = &mut asking, if answer.is_none() => answer = Some(found),
                    () = sleep_until(begun + PATIENCE), if left => break Err(OpenError::Timeout),
                }
            }
        }
    };
    let error = match opened {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let is_timeout = error == OpenError::Timeout;
    let mut failure = AttemptFailure::from(ExchangeError::from(error));
    if failure.fault != NodeFailure::Unreachable {
        return Err(failure);
    }
    if is_timeout {
        failure.reason = format!("no answer in {} s", begun.elapsed().as_secs());
    }
    let one_answers = match answer {
        Some(found) => found,
        None => asking.await,
    };
    if !one_answers {
        if !others.is_empty() {
            events(TurnEvent::NoAnswerYet { node, others: OtherNodes::Silent(others.len()) });
        }
        failure.silent_others = Some(others);
    }
    Err(failure)
}

/// Asks these nodes; whether one of them answers, or some could not be asked in time.
async fn one_answers(directory: &Directory, nodes: Vec<NodeId>) -> bool {
    let asked = stream::iter(nodes).map(|node| directory.answers(node, ANSWER_WAIT));
    let answers = asked.buffer_unordered(PARALLEL_ASKS).any(|answers| async move { answers });
    timeout(ALL_ANSWERS_WAIT, answers).await.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;
    use baton_mesh::{Incoming, Mesh, MeshConfig, Reach};

    use super::*;

    async fn member(config: MeshConfig) -> (MeshHandle, Incoming) {
        Mesh::spawn(SecretSigningKey::generate().expose_seed(), config).await.unwrap()
    }

    /// A node that admits one new connection a second.
    async fn narrow_node() -> (MeshHandle, Incoming) {
        let mut config = MeshConfig::server("node", vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()]);
        config.limits.new_connections_per_second = 1;
        member(config).await
    }

    #[tokio::test]
    async fn the_only_node_is_dialled_again_when_it_declined_and_another_is_left_at_once() {
        let (node, _turns) = narrow_node().await;
        let addrs = node.listen_addrs();
        let open = async |dialer: &MeshHandle, has_substitute| {
            open(dialer, node.node_id(), &addrs, DIRECT_OPEN, has_substitute).await
        };
        let dialer = |agent| MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer(agent) };
        let (first, _first_turns) = member(dialer("first")).await;
        open(&first, false).await.unwrap();
        let (second, _second_turns) = member(dialer("second")).await;
        let declined = open(&second, true).await;
        assert!(matches!(declined, Err(OpenError::Declined { .. })), "{:?}", declined.err());
        open(&second, false).await.unwrap();
        assert!(node.stats().inbound_refused.rate > 0, "{:?}", node.stats());
        for mesh in [first, second, node] {
            mesh.shutdown().await;
        }
    }
}
