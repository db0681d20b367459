//! An ephemeral client: for a conversation of one turn, in memory alone, that leaves the store as soon as
//! possible.

use std::sync::Arc;

use baton_keys::files::FileSecret;
use baton_proto::{
    ids::HeadIndexKey,
    store::{HeadIndex, StoreFuture},
    turn::StoragePolicy,
};

use crate::{
    client::Client,
    config::ClientConfig,
    error::ClientError,
    network::heads::{HeadIndexes, NamedIndex},
    session::journal::JournalLocation,
};

/// The shortest time for which a blob is bought.
const SHORTEST_EPOCHS: u32 = 1;

/// A head index that publishes nothing.
struct NoHeadIndex;

impl HeadIndex for NoHeadIndex {
    fn publish<'a>(&'a self, _record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn resolve<'a>(&'a self, _key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Ok(None) })
    }
}

impl Client {
    /// A separate ephemeral client on the same network, with the same knowledge of nodes, for single
    /// requests. Its sessions are in no journal, list or head index, and its blobs are bought for the
    /// shortest time. [`Client::shutdown`] ends it and wipes its sessions' keys; the network and this client
    /// stay as they are.
    ///
    /// # Errors
    /// [`ClientError::Config`], which a configuration already accepted does not give.
    pub fn ephemeral(&self) -> Result<Self, ClientError> {
        let storage = StoragePolicy {
            open_epochs: SHORTEST_EPOCHS,
            closed_epochs: SHORTEST_EPOCHS,
            ..self.inner.config.storage
        };
        let config =
            ClientConfig { home: None, passphrase: None, renew: false, storage, ..self.inner.config.clone() };
        let index = NamedIndex { name: "nowhere".to_owned(), index: Arc::new(NoHeadIndex) };
        let heads = HeadIndexes::new(vec![index], config.timeouts.heads)?;
        Ok(self.sharing_network(config, FileSecret::generate(), JournalLocation::Memory, Arc::new(heads)))
    }
}
