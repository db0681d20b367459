//! The bounded queue of inbound turns, from the swarm task to the handler.

use baton_proto::ids::NodeId;
use tokio::sync::mpsc;

use crate::turn_stream::TurnStream;

/// The turns that peers open with this mesh, in order of arrival.
///
/// It holds up to 512. When it is full, the mesh resets and counts further turns. When it is dropped, the
/// mesh resets every inbound turn.
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
