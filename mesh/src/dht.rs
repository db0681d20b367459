//! Outcomes of a query of the DHT. The swarm task ([`crate::actor`]) runs the queries.

use baton_proto::ids::NodeId;

use crate::records::Checked;

/// Why the DHT has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DhtError {
    /// This mesh takes no part in the DHT.
    #[error("discovery is switched off")]
    Off,
    /// No other member is known yet.
    #[error("no member of the DHT was reached")]
    NoMembers,
    /// Too many queries run; the same one later.
    #[error("too many queries of the DHT run in this process")]
    Busy,
    /// Nobody took the record.
    #[error("no member of the DHT took the record")]
    Refused,
    /// The deadline passed.
    #[error("the DHT did not answer in time")]
    Timeout,
    /// The mesh was shut down.
    #[error("the mesh is shut down")]
    Closed,
}

/// The newest valid record that was found, and how the members asked differed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) value: Vec<u8>,
    pub(crate) checked: Checked,
    /// Members that showed this one.
    pub(crate) agreeing: usize,
    /// Members that showed an older one.
    pub(crate) behind: usize,
}

/// Nodes that say that they serve a model.
pub(crate) type Providers = Vec<NodeId>;
