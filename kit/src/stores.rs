//! The stores that a program's options name, as its client and its doctor read them.

use std::{error::Error, path::PathBuf, time::Duration};

use baton_walrus_client::{HttpStore, ShardCount, TokenFile, http_store::RetryPolicy};

/// Time for a store to announce its number of shards: three round trips to the other side of the world.
pub const SHARDS_WAIT: Duration = Duration::from_millis(750);

/// The options.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Base URLs of publishers, preferred first.
    pub publishers: Vec<String>,
    /// Base URLs of aggregators, preferred first.
    pub aggregators: Vec<String>,
    /// Base URLs of head indexes; a client of the stores has the first.
    pub heads: Vec<String>,
    /// Shards of the network.
    pub shards: u16,
    /// The file of the publishers' token, or of the secret that makes them.
    pub token: Option<TokenFile>,
}

impl StoreOptions {
    /// A client of the stores.
    ///
    /// # Errors
    /// An option or a file cannot be used; the text names it.
    pub fn open(&self, policy: RetryPolicy) -> Result<HttpStore, Box<dyn Error + Send + Sync>> {
        let [publishers, aggregators] = [&self.publishers, &self.aggregators]
            .map(|urls| urls.iter().map(String::as_str).collect::<Vec<_>>());
        let shards = ShardCount::new(self.shards)?;
        let mut builder = HttpStore::endpoints(&publishers, &aggregators, shards).policy(policy);
        if let Some(heads) = self.heads.first() {
            builder = builder.heads(heads);
        }
        if let Some(file) = &self.token {
            builder = builder.token(file.read()?);
        }
        Ok(builder.build()?)
    }

    /// A client of the stores, once they were asked for their number of shards. Stores that announce none, or do not
    /// answer soon, delay nothing.
    ///
    /// # Errors
    /// As [`StoreOptions::open`], and for stores with another number of shards: they would keep nothing under its IDs.
    pub async fn open_asking(&self, policy: RetryPolicy) -> Result<HttpStore, Box<dyn Error + Send + Sync>> {
        let asking = self.open(RetryPolicy { base_timeout: SHARDS_WAIT, ..policy })?;
        match asking.announced_shards().await.map(ShardCount::get) {
            Some(theirs) if theirs != self.shards => {
                let ours = self.shards;
                Err(format!(
                    "the store has {theirs} shards, and the settings have {ours}; set shards = {theirs}"
                )
                .into())
            }
            _ => self.open(policy),
        }
    }
}

/// The file of two options that exclude each other: of a token, or of a secret.
#[must_use]
pub fn token_file(token: Option<PathBuf>, secret: Option<PathBuf>) -> Option<TokenFile> {
    token.map(TokenFile::Bearer).or(secret.map(TokenFile::Secret))
}
