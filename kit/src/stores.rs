//! The stores that a program's options name, as its client and its doctor read them.

use std::{error::Error, path::PathBuf};

use baton_proto::store::BlobStore as _;
use baton_walrus_client::{HttpStore, SHARDS_WAIT, ShardCount, TokenFile, http_store::RetryPolicy};

/// The options.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Base URLs of publishers, preferred first.
    pub publishers: Vec<String>,
    /// Base URLs of aggregators, preferred first.
    pub aggregators: Vec<String>,
    /// Base URLs of head indexes; a client of the stores has the first.
    pub heads: Vec<String>,
    /// Shards of the network; none for the number that the stores announce, or else Walrus's.
    pub shards: Option<u16>,
    /// The file of the publishers' token, or of the secret that makes them.
    pub token: Option<TokenFile>,
}

impl StoreOptions {
    /// A client of the stores, which takes the number of shards that they announce.
    ///
    /// # Errors
    /// An option or a file cannot be used; the text names it.
    pub fn open(&self, policy: RetryPolicy) -> Result<HttpStore, Box<dyn Error + Send + Sync>> {
        let [publishers, aggregators] = [&self.publishers, &self.aggregators]
            .map(|urls| urls.iter().map(String::as_str).collect::<Vec<_>>());
        let shards = self.shards.map_or(Ok(ShardCount::MAINNET), ShardCount::new)?;
        let mut builder =
            HttpStore::endpoints(&publishers, &aggregators, shards).policy(policy).adopt_shards();
        if let Some(heads) = self.heads.first() {
            builder = builder.heads(heads);
        }
        if let Some(file) = &self.token {
            builder = builder.token(file.read()?);
        }
        Ok(builder.build()?)
    }

    /// A client of the stores, once they were asked for their number of shards. Stores that do not answer soon delay
    /// nothing; they are asked again before the first PUT.
    ///
    /// # Errors
    /// As [`StoreOptions::open`], and for stores with another number of shards than the set one.
    pub async fn open_asking(&self, policy: RetryPolicy) -> Result<HttpStore, Box<dyn Error + Send + Sync>> {
        let store = self.open(policy)?;
        match (store.announced_shards(SHARDS_WAIT).await, self.shards) {
            (Ok(Some(theirs)), Some(ours)) if theirs != ours => Err(format!(
                "the store has {theirs} shards, and the settings have {ours}; set shards = {theirs}, or leave it out"
            )
            .into()),
            _ => Ok(store),
        }
    }
}

/// The file of two options that exclude each other: of a token, or of a secret.
#[must_use]
pub fn token_file(token: Option<PathBuf>, secret: Option<PathBuf>) -> Option<TokenFile> {
    token.map(TokenFile::Bearer).or(secret.map(TokenFile::Secret))
}
