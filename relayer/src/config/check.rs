//! Validates options against each other, and applies defaults.

use std::path::Path;

use axum::http::HeaderName;
use baton_kit::config::OptionTable as _;

use super::{
    ConfigError, EmbedderEndpoint, EmbedderSetting, HttpSetting, ModelSettings, Options, RolesSetting,
    Settings, WalrusSettings,
};
use crate::{
    budgets::BudgetLimits,
    http::{ClientAddresses, Limits},
    owners::{OwnerAdmission, OwnerPolicy},
};

impl Settings {
    /// Checks options against each other and fills in the defaults.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`].
    pub(crate) fn resolve(data_dir: &Path, given: Options) -> Result<Self, ConfigError> {
        let options = given.clone().or(Options::defaults());
        let (embedder, embedder_endpoint) = embedder(&options)?;
        Ok(Self {
            http: options.http(),
            public_url: options.public_url.as_deref().map(base_url),
            limits: limits(&options),
            addresses: addresses(&options)?,
            owners: owners(&options)?,
            budgets: budgets(&options),
            require_audience: options.require_audience(),
            keys_dir: options.keys_dir.clone().unwrap_or_else(|| data_dir.join("keys")),
            embedder,
            embedder_endpoint,
            model_dir: options.model_dir.clone().unwrap_or_else(|| data_dir.join("models")),
            model: model(&options)?,
            shards: options.shards(),
            walrus: walrus(&options)?,
            listen: options.listen(),
            bootstrap: options.bootstrap(),
            mdns: options.mdns(),
            allow_echo: options.allow_echo(),
            drain_seconds: options.drain_seconds(),
            postgres_url_file: options.postgres_url_file,
            through_nodes: options.through_nodes,
            data_dir: data_dir.to_owned(),
            options: given,
        })
    }

    /// All options that exclude or require each other, where [`Self::resolve`] returns the first.
    pub(super) fn conflicts(options: &Options) -> Vec<ConfigError> {
        let found = [
            embedder(options).err(),
            model(options).err(),
            walrus(options).err(),
            addresses(options).err(),
            owners(options).err(),
        ];
        found.into_iter().flatten().collect()
    }
}

fn conflict<T>(text: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(text.to_owned()))
}

fn embedder(options: &Options) -> Result<(EmbedderSetting, Option<EmbedderEndpoint>), ConfigError> {
    let setting = options.embedder();
    let given = (&options.embedder_url, &options.embedder_model, options.embedder_dimensions);
    match (setting, given) {
        (EmbedderSetting::Endpoint, (Some(url), Some(model), Some(dimensions))) => {
            let endpoint = ModelSettings {
                url: base_url(url),
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
    match (options.embedder_roles(), given) {
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
            url: base_url(url),
            model: model.clone(),
            key_file: options.model_key_file.clone(),
        })),
        _ => conflict("model_url and model go together"),
    }
}

fn walrus(options: &Options) -> Result<Option<WalrusSettings>, ConfigError> {
    let (publishers, aggregators) = (options.publishers(), options.aggregators());
    if publishers.is_empty() && aggregators.is_empty() {
        return Ok(None);
    }
    if publishers.is_empty() || aggregators.is_empty() {
        return conflict("publishers and aggregators go together: contents are read back and checked");
    }
    if options.publisher_token_file.is_some() && options.publisher_secret_file.is_some() {
        return conflict("publisher_token_file and publisher_secret_file exclude each other");
    }
    Ok(Some(WalrusSettings {
        publishers,
        aggregators,
        token_file: options.publisher_token_file.clone(),
        secret_file: options.publisher_secret_file.clone(),
        shards: options.shards(),
        epochs: options.epochs(),
        heads: options.heads.as_deref().map(base_url),
    }))
}

fn limits(options: &Options) -> Limits {
    let owner_per_minute = options.requests_per_minute();
    Limits {
        owner_per_minute,
        subnet_per_minute: owner_per_minute.saturating_mul(5),
        own_networks: options.own_networks().into(),
        ..Limits::default()
    }
}

fn addresses(options: &Options) -> Result<ClientAddresses, ConfigError> {
    let proxies = options.trusted_proxies();
    let name = match (&options.client_address_header, !proxies.is_empty()) {
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
        Ok(header) if header != "forwarded" => {
            Ok(ClientAddresses { header: Some(header), proxies: proxies.into() })
        }
        _ => conflict(
            "client_address_header is the name of a header with addresses alone, such as x-forwarded-for or x-real-ip",
        ),
    }
}

fn owners(options: &Options) -> Result<OwnerPolicy, ConfigError> {
    // A proxy on this machine makes a loopback address public.
    let has_proxy = options.public_url.is_some() || options.client_address_header.is_some();
    let by_address = match options.http() {
        HttpSetting::At(address) if has_proxy || !address.ip().is_loopback() => OwnerAdmission::Listed,
        _ => OwnerAdmission::Open,
    };
    let policy = OwnerPolicy {
        owners: options.owners.unwrap_or(by_address),
        listed: options.allowed_owners(),
        revoked: options.revoked_invitations(),
        max_owners: options.max_owners() as usize,
    };
    if options.owners == Some(OwnerAdmission::Open) && !policy.listed.is_empty() {
        return conflict(
            "allowed_owners is for owners = \"listed\" or \"invited\": an open relayer serves everybody",
        );
    }
    Ok(policy)
}

fn budgets(options: &Options) -> BudgetLimits {
    BudgetLimits {
        max_bytes: options.max_bytes(),
        blobs_per_hour: options.blobs_per_hour(),
        model_calls_per_hour: options.model_calls_per_hour(),
        owner_model_calls_per_hour: options.owner_model_calls_per_hour(),
    }
}

fn base_url(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
