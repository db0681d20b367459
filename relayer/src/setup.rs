//! Builds memory from the settings: keys, storage, embedder, model, Walrus. Every error names the necessary
//! change.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use baton_client::{Client, ClientConfig};
use baton_keys::master::MasterKey;
use baton_kit::stores::{StoreOptions, token_file};
use baton_memory::{
    Memory, Parts, backup,
    content::WalrusContents,
    extraction::{Endpoint, EndpointConfig, ModelWriter, read_key},
    ids::OwnerId,
    storage::{Storage, embedded::EmbeddedConfig},
    vault::Vault,
};
use baton_mesh::MeshHandle;
use baton_models::embed::{Embedder, EmbedderConfig, RemoteConfig, models};
use baton_walrus_client::{HttpStore, ShardCount, http_store::RetryPolicy};

use crate::{
    budgets::{Budgets, CountedContents, CountedModel},
    config::{EmbedderSetting, ModelSettings, Options, Settings},
    data_folder::MASTER_FILE,
    node_model::NodeModel,
    time::now_ms,
};

/// Time limit for one answer of a language model.
const MODEL_TIMEOUT: Duration = Duration::from_secs(120);

/// Owners per read from the storage.
const OWNERS_PAGE: usize = 1_000;

/// Time limit for one request to an embedding endpoint, and the number of its texts.
const EMBEDDER_TIMEOUT_MS: u64 = 10_000;
const EMBEDDER_BATCH: usize = 64;

/// Memory, and the other parts that handlers need.
pub(crate) struct MemorySetup {
    pub(crate) memory: Memory,
    pub(crate) embedder: Arc<dyn Embedder>,
    pub(crate) writer: Option<ModelWriter>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) vault: Vault,
}

/// Opens memory; with a mesh, nodes can be used as a model if the settings say so.
pub(crate) async fn open(settings: &Settings, mesh: Option<&MeshHandle>) -> anyhow::Result<MemorySetup> {
    // A relayer that serves has the time to look at every record.
    let vault = vault_on(settings, storage(settings, mesh.is_some()).await?).await?;
    let embedder = baton_models::embed::open(&embedder_config(settings), &settings.model_dir).await?;
    tracing::info!(embedder = embedder.id(), "memory is open");
    let budgets = Arc::new(Budgets::new(settings.budgets, Arc::new(now_ms)));
    let writer = settings.model.as_ref().map(|model| writer(model, &budgets)).transpose()?;
    let mut parts = Parts::new(vault.clone(), embedder.clone(), Arc::new(now_ms));
    parts.writer.clone_from(&writer);
    if let (Some(model), Some(mesh)) = (&settings.options.through_nodes, mesh) {
        let shards = settings.options.shards.map_or(Ok(ShardCount::MAINNET), ShardCount::new)?;
        let echo = settings.options.allow_echo();
        let nodes = NodeModel::open(mesh.clone(), shards, model.clone(), echo).await?;
        if writer.is_some() {
            tracing::info!("nodes are not asked for what to keep: model_url goes before through_nodes");
        }
        parts.node_writer = Some(ModelWriter::new(Arc::new(nodes)));
    }
    if settings.has_stores {
        let (store, epochs) = (store(&settings.options).await?, settings.options.epochs());
        let contents = Arc::new(WalrusContents::new(Arc::new(store), epochs));
        parts.contents = Some(Arc::new(CountedContents::new(contents, budgets.clone())));
    }
    let memory = Memory::open(parts).await.context("the embedder cannot work; set another `embedder`")?;
    Ok(MemorySetup { memory, embedder, writer, budgets, vault })
}

/// Opens the sealed records with their keys.
pub(crate) async fn vault(settings: &Settings) -> anyhow::Result<Vault> {
    vault_on(settings, storage(settings, false).await?).await
}

/// All owners with memory.
pub(crate) async fn all_owners(vault: &Vault) -> anyhow::Result<Vec<OwnerId>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (owners, last) = vault.owners(after, OWNERS_PAGE).await?;
        all.extend(owners);
        if last.is_none() {
            return Ok(all);
        }
        after = last;
    }
}

async fn vault_on(settings: &Settings, storage: Arc<dyn Storage>) -> anyhow::Result<Vault> {
    let master = MasterKey::load_or_create(&settings.data_dir.join(MASTER_FILE), None)?;
    Vault::new(storage, &settings.keys_dir, master).await.with_context(|| {
        format!("the owners' keys in {} do not open this memory", settings.keys_dir.display())
    })
}

async fn storage(settings: &Settings, check: bool) -> anyhow::Result<Arc<dyn Storage>> {
    use baton_memory::storage::embedded::EmbeddedStorage;
    if let Some(path) = &settings.options.postgres_url_file {
        return postgres(path).await;
    }
    let config = embedded_config(settings);
    let path = config.path.display().to_string();
    if let Ok(master) = MasterKey::load(&settings.data_dir.join(MASTER_FILE), None) {
        let (config, keys) = (config.clone(), settings.keys_dir.clone());
        let finished =
            tokio::task::spawn_blocking(move || backup::finish_restore(&config, &keys, master)).await?;
        finished.context("a restore that was cut off cannot be finished")?;
    }
    let opened = tokio::task::spawn_blocking(move || EmbeddedStorage::open(&config)).await?;
    let storage = opened.with_context(|| format!("the memory in {path} cannot be opened"))?;
    if check {
        storage.check_in_background();
    }
    Ok(Arc::new(storage))
}

/// The place of the embedded database.
pub(crate) fn embedded_config(settings: &Settings) -> EmbeddedConfig {
    EmbeddedConfig::new(settings.data_dir.clone())
}

/// The language model behind an endpoint, with its calls counted.
fn writer(model: &ModelSettings, budgets: &Arc<Budgets>) -> anyhow::Result<ModelWriter> {
    let key = model.key_file.as_deref().map(read_key).transpose()?;
    let config = EndpointConfig {
        base_url: model.url.clone(),
        model: model.model.clone(),
        key,
        timeout: MODEL_TIMEOUT,
    };
    let endpoint = Endpoint::new(&config).map_err(|error| anyhow!("model_url: {error}"))?;
    Ok(ModelWriter::new(Arc::new(CountedModel::new(Arc::new(endpoint), budgets.clone()))))
}

/// The Walrus-compatible stores of contents.
async fn store(options: &Options) -> anyhow::Result<HttpStore> {
    store_options(options).open_asking(RetryPolicy::default()).await.map_err(anyhow::Error::from_boxed)
}

/// The stores that the options name.
pub(crate) fn store_options(options: &Options) -> StoreOptions {
    StoreOptions {
        publishers: options.publishers(),
        aggregators: options.aggregators(),
        heads: options.heads.iter().map(|url| url.trim_end_matches('/').to_owned()).collect(),
        shards: options.shards,
        token: token_file(options.publisher_token_file.clone(), options.publisher_secret_file.clone()),
    }
}

#[cfg(feature = "postgres")]
async fn postgres(path: &Path) -> anyhow::Result<Arc<dyn Storage>> {
    use baton_memory::storage::postgres::PostgresStorage;
    let url = read_key(path).context("postgres_url_file")?;
    Ok(Arc::new(PostgresStorage::open(&url).await?))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &Path) -> anyhow::Result<Arc<dyn Storage>> {
    Err(anyhow!(
        "this program was built without Postgres: build it with the feature `postgres`, or take the embedded storage"
    ))
}

/// The client for conversations over HTTP: its sessions live in memory, for the length of a request.
pub(crate) async fn client(settings: &Settings) -> anyhow::Result<Option<Client>> {
    if !settings.has_stores {
        return Ok(None);
    }
    let mut config = ClientConfig::with_store(None, store(&settings.options).await?);
    config.bootstrap = settings.options.bootstrap();
    config.mdns = settings.options.mdns();
    Ok(Some(Client::open(config).await.context("the network of conversations cannot be joined")?))
}

/// The embedder's configuration from the settings.
fn embedder_config(settings: &Settings) -> EmbedderConfig {
    match (settings.options.embedder(), &settings.embedder_endpoint) {
        (EmbedderSetting::Endpoint, Some(of)) => EmbedderConfig::Remote(RemoteConfig {
            base_url: of.endpoint.url.clone(),
            model: of.endpoint.model.clone(),
            dimensions: of.dimensions as usize,
            send_dimensions: false,
            api_key_file: of.endpoint.key_file.clone(),
            roles: of.roles.clone(),
            timeout_ms: EMBEDDER_TIMEOUT_MS,
            batch: EMBEDDER_BATCH,
        }),
        (EmbedderSetting::Static, _) => EmbedderConfig::Potion {},
        (EmbedderSetting::MiniLm, _) => EmbedderConfig::Minilm {},
        (EmbedderSetting::Auto, _) if models::POTION_BASE_8M.is_installed(&settings.model_dir) => {
            EmbedderConfig::Potion {}
        }
        // The configuration check refuses an endpoint without an address.
        (EmbedderSetting::Auto | EmbedderSetting::Hashing | EmbedderSetting::Endpoint, _) => {
            EmbedderConfig::Hashing {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_memory::storage::embedded::EmbeddedStorage;
    use baton_models::embed::Hashing;

    use super::*;

    /// A database in a temporary folder, which relayers share.
    pub(crate) struct SharedStorage {
        storage: Arc<EmbeddedStorage>,
        folder: tempfile::TempDir,
    }

    impl Default for SharedStorage {
        fn default() -> Self {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let config = EmbeddedConfig::new(folder.path().to_owned());
            Self { storage: Arc::new(EmbeddedStorage::open(&config).expect("a new database")), folder }
        }
    }

    impl SharedStorage {
        /// The memory of another relayer.
        pub(crate) async fn memory(&self) -> Memory {
            let (keys, master) = (self.folder.path().join("keys"), MasterKey::from_bytes([5; 32]));
            let vault = Vault::new(self.storage.clone(), &keys, master).await.expect("new keys");
            Memory::open(Parts::new(vault, Arc::new(Hashing), Arc::new(now_ms))).await.expect("it works")
        }
    }
}
