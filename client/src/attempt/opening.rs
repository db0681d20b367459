//! The opening of an attempt's substream, directly at its node.
//!
//! A node that does not answer is reported soon. Meanwhile the other known nodes are asked for any answer:
//! - One answers: the silent node is left soon, if another can serve the turn.
//! - None answers: further attempts would only wait in vain, one after the other, so the turn can end.

use std::{sync::Arc, time::Duration};

use baton_mesh::{MeshHandle, Multiaddr, OpenError, TurnStream};
use baton_proto::{ids::NodeId, wire::ClientFrame};
use futures::{StreamExt as _, stream};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::Events;
use crate::{
    event::{OtherNodes, TurnEvent},
    network::{
        exchange::{self, ExchangeError},
        nodes::Directory,
        reputation::NodeFailure,
        retry::{AttemptFailure, SilentNodes},
    },
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

/// The node at which a substream is opened.
pub(super) struct OpeningTarget<'a> {
    pub(super) node: NodeId,
    pub(super) addrs: &'a [Multiaddr],
    /// Whether another node could serve the turn.
    pub(super) has_substitute: bool,
}

/// Opens a substream, with `wait` for each dial. A node at its limits of connections is dialled again after pauses, if it
/// has no substitute.
async fn open(
    mesh: &MeshHandle,
    target: &OpeningTarget<'_>,
    wait: Duration,
) -> Result<TurnStream, OpenError> {
    let patience = Instant::now() + DECLINED_PATIENCE;
    let mut pause = FIRST_PAUSE;
    loop {
        let opened = mesh.open(target.node, target.addrs, Instant::now() + wait).await;
        let again = Instant::now() + pause;
        if target.has_substitute || again >= patience || !matches!(opened, Err(OpenError::Declined { .. })) {
            return opened;
        }
        sleep_until(again).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The answers of the other nodes.
enum OtherAnswers {
    /// One answered, or some could not be asked in time.
    Some,
    /// All were asked, and none answered. Each with the reason.
    None(Vec<(NodeId, String)>),
}

/// Opens a substream, with `wait` for each dial, and reports a silent node.
pub(super) async fn open_reported(
    directory: &Arc<Directory>,
    mesh: &MeshHandle,
    target: &OpeningTarget<'_>,
    wait: Duration,
    events: &mut Events<'_>,
) -> Result<TurnStream, AttemptFailure> {
    let node = target.node;
    let begun = Instant::now();
    let ask_now = Notify::new();
    let asking = async {
        tokio::select! {
            () = sleep(SILENCE) => {}
            () = ask_now.notified() => {}
        }
        ask_others(directory, node).await
    };
    let opening = open(mesh, target, wait);
    tokio::pin!(opening, asking);
    let mut answers = None;
    let mut reported = false;
    let opened = loop {
        let left = target.has_substitute && matches!(answers, Some(OtherAnswers::Some));
        tokio::select! {
            biased;
            opened = &mut opening => break opened,
            () = sleep_until(begun + SILENCE), if !reported => {
                reported = true;
                events(asked(directory, node));
            }
            found = &mut asking, if answers.is_none() => {
                report_silence(node, &found, events);
                answers = Some(found);
            }
            () = sleep_until(begun + PATIENCE), if left => break Err(OpenError::Timeout),
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
    if answers.is_none() {
        ask_now.notify_one();
        answers = timeout_at(begun + SILENCE, &mut asking).await.ok();
    }
    let answers = match answers {
        Some(answers) => answers,
        None => {
            if !reported {
                events(asked(directory, node));
            }
            let answers = asking.await;
            report_silence(node, &answers, events);
            answers
        }
    };
    if let OtherAnswers::None(silent) = answers {
        failure.silent_others = Some(Box::new(SilentNodes(silent)));
    }
    Err(failure)
}

fn asked(directory: &Directory, node: NodeId) -> TurnEvent {
    TurnEvent::NoAnswerYet { node, others: OtherNodes::Asked(directory.others(node).len()) }
}

fn report_silence(node: NodeId, answers: &OtherAnswers, events: &mut Events<'_>) {
    if let OtherAnswers::None(silent) = answers
        && !silent.is_empty()
    {
        events(TurnEvent::NoAnswerYet { node, others: OtherNodes::Silent(silent.len()) });
    }
}

/// Asks the other known nodes, those heard last first, and returns at the first answer.
async fn ask_others(directory: &Arc<Directory>, node: NodeId) -> OtherAnswers {
    let deadline = Instant::now() + ALL_ANSWERS_WAIT;
    let mut asked = stream::iter(directory.others(node))
        .map(|other| async move {
            let addrs = directory.addrs(other);
            let answer =
                exchange::ask(directory.mesh(), other, &addrs, &ClientFrame::NodeRecord, ANSWER_WAIT);
            match timeout_at(Instant::now() + ANSWER_WAIT, answer).await {
                Ok(Ok(_) | Err(ExchangeError::Refused { .. } | ExchangeError::Broken(_))) => {
                    directory.answered(other);
                    Ok(())
                }
                // This process is at a limit, so the silence is no evidence.
                Ok(Err(ExchangeError::Open(OpenError::Busy | OpenError::Closed))) => Ok(()),
                Ok(Err(ExchangeError::Open(OpenError::Timeout))) | Err(_) => {
                    Err((other, format!("no answer in {} s", ANSWER_WAIT.as_secs())))
                }
                Ok(Err(error)) => Err((other, error.to_string())),
            }
        })
        .buffer_unordered(PARALLEL_ASKS);
    let mut silent = Vec::new();
    loop {
        match timeout_at(deadline, asked.next()).await {
            Ok(Some(Err(failed))) => {
                directory.silent(failed.0);
                silent.push(failed);
            }
            Ok(Some(Ok(()))) | Err(_) => return OtherAnswers::Some,
            Ok(None) => return OtherAnswers::None(silent),
        }
    }
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
        let target = |has_substitute| OpeningTarget { node: node.node_id(), addrs: &addrs, has_substitute };
        let dialer = |agent| MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer(agent) };
        let (first, _first_turns) = member(dialer("first")).await;
        open(&first, &target(false), DIRECT_OPEN).await.unwrap();
        let (second, _second_turns) = member(dialer("second")).await;
        let declined = open(&second, &target(true), DIRECT_OPEN).await;
        assert!(matches!(declined, Err(OpenError::Declined { .. })), "{:?}", declined.err());
        open(&second, &target(false), DIRECT_OPEN).await.unwrap();
        assert!(node.stats().inbound_refused.rate > 0, "{:?}", node.stats());
        for mesh in [first, second, node] {
            mesh.shutdown().await;
        }
    }
}
