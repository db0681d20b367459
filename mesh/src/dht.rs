//! Outcomes of a DHT query. The swarm task ([`crate::actor`]) runs the queries.

use baton_proto::ids::NodeId;

use crate::records::RecordSummary;

/// Why a DHT query failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DhtError {
    /// Discovery is off, so this mesh takes no part in the DHT.
    #[error("discovery is switched off")]
    Off,
    /// No other member is known yet.
    #[error("no member of the DHT was reached")]
    NoMembers,
    /// Too many queries are running; retry the same one later.
    #[error("too many queries of the DHT run in this process")]
    Busy,
    /// No member stored the record.
    #[error("no member of the DHT took the record")]
    Refused,
    /// The deadline passed.
    #[error("the DHT did not answer in time")]
    Timeout,
    /// The mesh was shut down.
    #[error("the mesh is shut down")]
    Closed,
}

/// The newest valid record found, with counts of the members that agreed or were behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LookupResult {
    pub(crate) value: Vec<u8>,
    pub(crate) summary: RecordSummary,
    /// Members that returned this record.
    pub(crate) agreeing: usize,
    /// Members that returned an older one.
    pub(crate) behind: usize,
}

/// Nodes that claim to serve a model.
pub(crate) type Providers = Vec<NodeId>;
