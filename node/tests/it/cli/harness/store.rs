//! A store over HTTP in the test's process.

use std::path::Path;

use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore, JwtSecret};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A store over HTTP in this process, for as long as the value lives.
pub(crate) struct Store {
    pub url: String,
    _stop: DropGuard,
}

impl Store {
    pub(crate) async fn start(home: &Path, shards: u16) -> Self {
        Self::with_secret(home, shards, None).await
    }

    /// With a secret, the store takes only PUTs with a token that it signed.
    pub(crate) async fn with_secret(home: &Path, shards: u16, secret: Option<&[u8]>) -> Self {
        let config = EmbeddedConfig {
            shards: ShardCount::new(shards).unwrap(),
            jwt_secret: secret.map(|secret| JwtSecret::new(secret.to_vec()).unwrap()),
            ..EmbeddedConfig::new(home.join("store"))
        };
        let store = EmbeddedStore::open(config, |_| Err("no heads here".to_owned())).unwrap();
        let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let ended = stop.clone().cancelled_owned();
        tokio::spawn(async move { store.serve(listener, ended).await });
        Self { url, _stop: stop.drop_guard() }
    }
}
