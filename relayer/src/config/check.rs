//! Validates options against each other, and applies defaults.

use std::path::{Path, PathBuf};

use axum::http::HeaderName;
use baton_memory::limits::MAX_ITEMS;
use baton_mesh::Networks;

use super::{
    ConfigError, DEFAULT_SHARDS, EmbedderEndpoint, EmbedderSetting, HttpSetting, ModelSettings, Options,
    RolesSetting, Settings, StorageSetting, WalrusSettings, values::NetworkSetting,
};
use crate::{
    budgets::BudgetLimits,
    http::{ClientAddresses, Limits},
    owners::{OwnerAdmission, OwnerPolicy},
};

/// Default address of the HTTP server: the `local` one of the `memwal` SDK.
const DEFAULT_HTTP: &str = "127.0.0.1:8000";
const DEFAULT_LISTEN: &str = "/ip4/0.0.0.0/tcp/4101";
/// The most epochs that Walrus sells at once.
const DEFAULT_EPOCHS: u32 = 53;
const DEFAULT_DRAIN_SECONDS: u32 = 30;

impl Settings {
    /// Checks options against each other and fills in the defaults.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`].
    pub(crate) fn resolve(data_dir: &Path, options: Options) -> Result<Self, ConfigError> {
        let given = options.clone();
        let postgres_url_file = postgres(&options)?;
        let (embedder, embedder_endpoint) = embedder(&options)?;
        let (model, walrus, limits) = (model(&options)?, walrus(&options)?, limits(&options)?);
        let through_nodes = through_nodes(&options)?;
        let addresses = addresses(&options)?;
        let (owners, budgets) = (owners(&options)?, budgets(&options));
        let default =
            |text: &str| text.parse().expect("the default has the form of the option, as a test shows");
        Ok(Self {
            http: options.http.unwrap_or_else(|| default_http(DEFAULT_HTTP)),
            public_url: public_url(options.public_url)?,
            limits,
            addresses,
            owners,
            budgets,
            require_audience: options.require_audience.unwrap_or(false),
            postgres_url_file,
            keys_dir: options.keys_dir.unwrap_or_else(|| data_dir.join("keys")),
            max_items: options.max_items.unwrap_or(MAX_ITEMS).max(1),
            embedder,
            embedder_endpoint,
            model_dir: options.model_dir.unwrap_or_else(|| data_dir.join("models")),
            model,
            through_nodes,
            walrus,
            listen: if options.listen.is_empty() { vec![default(DEFAULT_LISTEN)] } else { options.listen },
            bootstrap: options.bootstrap,
            mdns: options.mdns.unwrap_or(true),
            allow_echo: options.allow_echo.unwrap_or(false),
            drain_seconds: options.drain_seconds.unwrap_or(DEFAULT_DRAIN_SECONDS),
            data_dir: data_dir.to_owned(),
            options: given,
        })
    }

    /// All options that exclude or require each other, where [`Self::resolve`] returns the first.
    pub(super) fn conflicts(options: &Options) -> Vec<ConfigError> {
        let found = [
            postgres(options).err(),
            embedder(options).err(),
            model(options).err(),
            walrus(options).err(),
            limits(options).err(),
            addresses(options).err(),
            owners(options).err(),
            through_nodes(options).err(),
            public_url(options.public_url.clone()).err(),
        ];
        found.into_iter().flatten().collect()
    }
}

fn default_http(text: &str) -> HttpSetting {
    text.parse().expect("the default is an address, as a test shows")
}

fn conflict<T>(text: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(text.to_owned()))
}

fn postgres(options: &Options) -> Result<Option<PathBuf>, ConfigError> {
    match (options.storage.unwrap_or(StorageSetting::Embedded), &options.postgres_url_file) {
        (StorageSetting::Embedded, None) => Ok(None),
        (StorageSetting::Postgres, Some(path)) => Ok(Some(path.clone())),
        (StorageSetting::Postgres, None) => conflict(
            "storage = \"postgres\" needs postgres_url_file, a file (chmod 600) with postgres://user:password@host/database",
        ),
        (StorageSetting::Embedded, Some(_)) => conflict("postgres_url_file is for storage = \"postgres\""),
    }
}

fn embedder(options: &Options) -> Result<(EmbedderSetting, Option<EmbedderEndpoint>), ConfigError> {
    let setting = options.embedder.unwrap_or(EmbedderSetting::Auto);
    let given = (&options.embedder_url, &options.embedder_model, options.embedder_dimensions);
    match (setting, given) {
        (EmbedderSetting::Endpoint, (Some(url), Some(model), Some(dimensions))) => {
            let endpoint = ModelSettings {
                url: http_url("embedder_url", url)?,
                model: model.clone(),
                key_file: options.embedder_key_file.clone(),
            };
            let roles = roles(options)?;
            Ok((setting, Some(EmbedderEndpoint { endpoint, dimensions, roles })))
        }
        (EmbedderSetting::Endpoint, _) => {
            conflict("embedder = \"endpoint\" needs embedder_url, embedder_model and embedder_dimensions")
        }
        (_, (None, None, None)) => Ok((setting, None)),
        _ => conflict("embedder_url, embedder_model and embedder_dimensions are for embedder = \"endpoint\""),
    }
}

fn roles(options: &Options) -> Result<Option<(RolesSetting, String, String)>, ConfigError> {
    let given = (&options.embedder_query_role, &options.embedder_document_role);
    match (options.embedder_roles.unwrap_or(RolesSetting::None), given) {
        (RolesSetting::None, (None, None)) => Ok(None),
        (by @ (RolesSetting::Prefix | RolesSetting::InputType), (Some(query), Some(document))) => {
            Ok(Some((by, query.clone(), document.clone())))
        }
        _ => conflict(
            "embedder_roles = \"prefix\" or \"input_type\" goes with embedder_query_role and embedder_document_role",
        ),
    }
}

fn model(options: &Options) -> Result<Option<ModelSettings>, ConfigError> {
    match (&options.model_url, &options.model) {
        (None, None) => Ok(None),
        (Some(url), Some(model)) => Ok(Some(ModelSettings {
            url: http_url("model_url", url)?,
            model: model.clone(),
            key_file: options.model_key_file.clone(),
        })),
        _ => conflict("model_url and model go together"),
    }
}

fn through_nodes(options: &Options) -> Result<Option<String>, ConfigError> {
    match (options.through_nodes.unwrap_or(false), &options.through_nodes_model) {
        (false, None) => Ok(None),
        (true, Some(model)) => Ok(Some(model.clone())),
        (true, None) => conflict(
            "through_nodes = true needs through_nodes_model, the name of a model that follows instructions (baton nodes lists them)",
        ),
        (false, Some(_)) => conflict("through_nodes_model is for through_nodes = true"),
    }
}

fn walrus(options: &Options) -> Result<Option<WalrusSettings>, ConfigError> {
    if options.publishers.is_empty() && options.aggregators.is_empty() {
        return Ok(None);
    }
    if options.publishers.is_empty() || options.aggregators.is_empty() {
        return conflict("publishers and aggregators go together: contents are read back and checked");
    }
    if options.publisher_token_file.is_some() && options.publisher_secret_file.is_some() {
        return conflict("publisher_token_file and publisher_secret_file exclude each other");
    }
    for url in options.publishers.iter().chain(&options.aggregators) {
        http_url("a publisher or aggregator", url)?;
    }
    Ok(Some(WalrusSettings {
        publishers: options.publishers.clone(),
        aggregators: options.aggregators.clone(),
        token_file: options.publisher_token_file.clone(),
        secret_file: options.publisher_secret_file.clone(),
        shards: options.shards.unwrap_or(DEFAULT_SHARDS),
        epochs: options.epochs.unwrap_or(DEFAULT_EPOCHS).max(1),
        heads: options.heads.as_deref().map(|url| http_url("heads", url)).transpose()?,
    }))
}

fn limits(options: &Options) -> Result<Limits, ConfigError> {
    let defaults = Limits::default();
    let requests = options.max_requests.map_or(defaults.requests, |most| most as usize);
    let large_bodies = options.max_large_bodies.map_or(defaults.large_bodies, |most| most as usize);
    let limits = Limits {
        owner_per_minute: options.requests_per_minute.unwrap_or(defaults.owner_per_minute),
        key_per_minute: options.key_requests_per_minute.unwrap_or(defaults.key_per_minute),
        subnet_per_minute: options.subnet_requests_per_minute.unwrap_or(defaults.subnet_per_minute),
        own_networks: networks(&options.own_networks),
        requests,
        large_bodies,
        ..defaults
    };
    let rates = [limits.owner_per_minute, limits.key_per_minute, limits.subnet_per_minute];
    if rates.contains(&0) || !(1..=65_536).contains(&requests) || !(1..=requests).contains(&large_bodies) {
        return conflict(
            "requests_per_minute, key_requests_per_minute, subnet_requests_per_minute, max_requests (up to 65536) and \
             max_large_bodies (up to max_requests) are at least 1",
        );
    }
    Ok(limits)
}

fn networks(settings: &[NetworkSetting]) -> Networks {
    settings.iter().map(|network| network.0).collect::<Vec<_>>().into()
}

fn addresses(options: &Options) -> Result<ClientAddresses, ConfigError> {
    let proxies = networks(&options.trusted_proxies);
    let (name, named) = (&options.client_address_header, !options.trusted_proxies.is_empty());
    let name = match (name, named) {
        (Some(name), true) => name,
        (None, false) => return Ok(ClientAddresses::default()),
        (None, true) => {
            return conflict("trusted_proxies needs client_address_header, such as x-forwarded-for");
        }
        (Some(_), false) => {
            return conflict(
                "client_address_header needs trusted_proxies: the proxy's address, such as 127.0.0.1",
            );
        }
    };
    match name.to_ascii_lowercase().parse::<HeaderName>() {
        // Its values are no plain addresses.
        Ok(header) if header != "forwarded" => Ok(ClientAddresses { header: Some(header), proxies }),
        _ => conflict(
            "client_address_header is the name of a header with addresses alone, such as x-forwarded-for or x-real-ip",
        ),
    }
}

fn owners(options: &Options) -> Result<OwnerPolicy, ConfigError> {
    let defaults = OwnerPolicy::default();
    let http = options.http.unwrap_or_else(|| default_http(DEFAULT_HTTP));
    // A proxy on this machine makes a loopback address public.
    let has_proxy = options.public_url.is_some() || options.client_address_header.is_some();
    let by_address = match http {
        HttpSetting::At(address) if has_proxy || !address.ip().is_loopback() => OwnerAdmission::Listed,
        _ => OwnerAdmission::Open,
    };
    let policy = OwnerPolicy {
        owners: options.owners.unwrap_or(by_address),
        listed: options.allowed_owners.iter().map(|account| account.0).collect(),
        revoked: options.revoked_invitations.iter().map(|serial| serial.0).collect(),
        max_owners: options.max_owners.map_or(defaults.max_owners, |most| most as usize),
    };
    if policy.max_owners == 0 {
        return conflict("max_owners is at least 1");
    }
    if options.owners == Some(OwnerAdmission::Open) && !policy.listed.is_empty() {
        return conflict(
            "allowed_owners is for owners = \"listed\" or \"invited\": an open relayer serves everybody",
        );
    }
    Ok(policy)
}

fn budgets(options: &Options) -> BudgetLimits {
    let defaults = BudgetLimits::default();
    BudgetLimits {
        max_bytes: options.max_bytes.unwrap_or(defaults.max_bytes),
        blobs_per_hour: options.blobs_per_hour.unwrap_or(defaults.blobs_per_hour),
        model_calls_per_hour: options.model_calls_per_hour.unwrap_or(defaults.model_calls_per_hour),
        owner_model_calls_per_hour: options
            .owner_model_calls_per_hour
            .unwrap_or(defaults.owner_model_calls_per_hour),
    }
}

fn public_url(url: Option<String>) -> Result<Option<String>, ConfigError> {
    url.map(|url| http_url("public_url", &url)).transpose()
}

fn http_url(name: &str, url: &str) -> Result<String, ConfigError> {
    match reqwest::Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
            Ok(url.trim_end_matches('/').to_owned())
        }
        _ => conflict(&format!("{name} begins with http:// or https:// and names a host")),
    }
}
