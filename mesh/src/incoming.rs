//! The bounded queue of inbound turns, from the swarm task to the caller that serves them.

use baton_proto::ids::NodeId;
use tokio::sync::mpsc;

use crate::turn_stream::TurnStream;

/// The turns that others open with this mesh, in order of arrival.
///
/// Up to 512 wait here; further ones are reset and counted until some are taken. Dropping it makes the
/// mesh reset every inbound turn.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) queue: mpsc::Receiver<TurnStream>,
}

impl Incoming {
    /// The next turn and the authenticated node that opened it; `None` once the mesh has shut down.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<(NodeId, TurnStream)> {
        let turn = self.queue.recv().await?;
        Some((turn.remote(), turn))
    }
}
