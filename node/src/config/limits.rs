//! Limits on the machine's resources, in the units of the mesh, the service and the journal.

use baton_mesh::MeshLimits;

use crate::journal::JournalLimits;

const MEGABYTE: usize = 1 << 20;

/// Limits on memory, connections and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    /// Process memory in megabytes above which new connections are refused; `None` means nine tenths of the
    /// machine's memory.
    pub(crate) max_memory_mb: Option<u32>,
    /// Maximum inbound connections.
    pub(crate) max_connections: u32,
    /// Maximum new inbound connections a second.
    pub(crate) new_connections_per_second: u32,
    /// Maximum connections with one peer.
    pub(crate) max_connections_per_peer: u32,
    /// Maximum inbound requests open at once.
    pub(crate) max_streams: u32,
    /// Maximum inbound requests of one peer open at once.
    pub(crate) max_streams_per_peer: u32,
    /// Megabytes of memory for recently read blobs.
    pub(crate) cache_mb: u32,
    /// Megabytes on disk for blobs in the journal.
    pub(crate) journal_mb: u32,
}

impl ResourceLimits {
    /// The limits for the mesh.
    #[must_use]
    pub(crate) fn mesh(&self) -> MeshLimits {
        MeshLimits {
            max_connections_in: self.max_connections,
            new_connections_per_second: self.new_connections_per_second,
            max_connections_per_peer: self.max_connections_per_peer,
            max_streams_in: self.max_streams as usize,
            max_streams_per_peer: self.max_streams_per_peer as usize,
            max_process_memory_bytes: self.max_memory_mb.map(|mb| (mb as usize).saturating_mul(MEGABYTE)),
            ..MeshLimits::default()
        }
    }

    /// The limits for the journal.
    #[must_use]
    pub(crate) fn journal(&self) -> JournalLimits {
        JournalLimits { max_blob_bytes: u64::from(self.journal_mb) << 20, ..JournalLimits::default() }
    }

    /// Bytes of cached blobs in memory.
    #[must_use]
    pub(crate) fn cache_bytes(&self) -> usize {
        (self.cache_mb as usize).saturating_mul(MEGABYTE)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{RunFlags, Settings},
        *,
    };
    use crate::service::ServiceLimits;

    #[test]
    fn the_defaults_are_those_of_mesh_service_and_journal() {
        let settings = Settings::resolve(RunFlags::default(), RunFlags::default(), None).unwrap();
        let resources = settings.resources;
        assert_eq!(resources.mesh(), MeshLimits::default());
        assert_eq!(resources.cache_bytes(), ServiceLimits::default().cache_bytes);
        assert_eq!(resources.journal().max_blob_bytes, JournalLimits::default().max_blob_bytes);
    }
}
