//! A first turn of a fresh session, sent to a running `baton-node` over its own port.

use baton_mesh::{Multiaddr, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::NodeId,
    node_record::NodeRecord,
    wire::{ClientFrame, NodeFrame, TurnStatus},
};
use serde_json::Value;

use crate::service::network::{
    client::{self, Changes, PreparedTurn, Recipient, Reply, ReplyReader, Session, next_frame},
    now_ms,
};

/// A client of one node.
pub(crate) struct Client {
    client: client::Client,
    node: NodeId,
    addresses: Vec<Multiaddr>,
}

/// A turn in progress.
pub(crate) struct Turn {
    node: Recipient,
    session: Session,
    prepared: PreparedTurn,
    stream: TurnStream,
    reader: ReplyReader,
}

impl Client {
    /// Connects to the node of this ready event.
    pub(crate) async fn of(ready: &Value) -> Self {
        let addresses = vec![ready["listen"][0].as_str().unwrap().parse().unwrap()];
        let node = ready["node"].as_str().unwrap().parse().unwrap();
        Self { client: client::Client::start().await, node, addresses }
    }

    /// The node's record, verified.
    pub(crate) async fn record(&self) -> SignedObject<NodeRecord> {
        let frame = codec::encode(&ClientFrame::NodeRecord);
        let mut stream = self.client.open_at(self.node, &self.addresses, &frame).await;
        match next_frame(&mut stream).await.expect("an answer") {
            NodeFrame::NodeRecord(record) => SignedObject::verify(record).unwrap(),
            other => panic!("not a record: {other:?}"),
        }
    }

    /// Sends the first turn of a fresh session.
    pub(crate) async fn ask(&self, text: &str) -> Turn {
        let record = self.record().await;
        self.ask_with(&record, text).await
    }

    /// The same with a record that may be outdated.
    pub(crate) async fn ask_with(&self, record: &NodeRecord, text: &str) -> Turn {
        let exchange = record.current_key(now_ms()).unwrap().clone();
        let model = record.models[0].model;
        let node = Recipient { node: self.node, model, exchange, addresses: self.addresses.clone() };
        let session = Session::new();
        let prepared = session.prepare(&node, text, Changes::default());
        let stream = self.client.open(&node, &ClientFrame::Turn(prepared.request.clone())).await;
        Turn { node, session, prepared, stream, reader: ReplyReader::default() }
    }

    /// Sends the same request again and reads the answer to its end.
    pub(crate) async fn ask_again(&self, turn: &mut Turn) -> Reply {
        turn.stream = self.client.open(&turn.node, &ClientFrame::Turn(turn.prepared.request.clone())).await;
        turn.finish().await
    }

    /// The node's status of a turn.
    pub(crate) async fn status(&self, turn: &Turn) -> Result<TurnStatus, ErrorCode> {
        self.client.status(&turn.node, &turn.session, &turn.prepared).await
    }
}

impl Turn {
    /// Reads until the predicate holds or the stream ends, whichever comes first.
    pub(crate) async fn read_until(&mut self, enough: impl Fn(&Reply) -> bool) -> Reply {
        while let Some(frame) = next_frame(&mut self.stream).await {
            self.reader.take(&self.prepared, frame);
            if enough(&self.reader.reply) {
                break;
            }
        }
        std::mem::take(&mut self.reader.reply)
    }

    /// Reads to the end.
    pub(crate) async fn finish(&mut self) -> Reply {
        self.read_until(|_| false).await
    }
}
