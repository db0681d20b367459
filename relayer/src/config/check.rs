//! Validates options against each other, and applies defaults.

use std::{net::SocketAddr, path::Path};

use baton_kit::config::OptionTable as _;

use super::{ConfigError, EmbedderEndpoint, EmbedderSetting, ModelSettings, Options, Settings};
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
        Ok(Self {
            http: options.http().parse().or_else(|_| conflict("http is no address"))?,
            public_url: options.public_url.as_deref().map(base_url),
            limits: limits(&options),
            addresses: ClientAddresses { proxies: options.trusted_proxies().into() },
            owners: owners(&options)?,
            budgets: BudgetLimits {
                max_bytes: options.max_bytes(),
                blobs_per_hour: options.blobs_per_hour(),
                model_calls_per_hour: options.model_calls_per_hour(),
            },
            keys_dir: options.keys_dir.clone().unwrap_or_else(|| data_dir.join("keys")),
            embedder_endpoint: embedder(&options)?,
            model_dir: options.model_dir.clone().unwrap_or_else(|| data_dir.join("models")),
            model: model(&options)?,
            has_stores: has_stores(&options)?,
            data_dir: data_dir.to_owned(),
            options,
            given,
        })
    }
}

fn conflict<T>(text: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(text.to_owned()))
}

fn embedder(options: &Options) -> Result<Option<EmbedderEndpoint>, ConfigError> {
    let given = (&options.embedder_url, &options.embedder_model, options.embedder_dimensions);
    match (options.embedder(), given) {
        (EmbedderSetting::Endpoint, (Some(url), Some(model), Some(dimensions))) => {
            let key_file = options.embedder_key_file.clone();
            let endpoint = ModelSettings { url: base_url(url), model: model.clone(), key_file };
            let roles = options.embedder_roles();
            Ok(Some(EmbedderEndpoint { endpoint, dimensions, roles }))
        }
        (EmbedderSetting::Endpoint, _) => {
            conflict("embedder = \"endpoint\" needs embedder_url, embedder_model and embedder_dimensions")
        }
        (_, (None, None, None)) => Ok(None),
        _ => conflict("embedder_url, embedder_model and embedder_dimensions are for embedder = \"endpoint\""),
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

fn has_stores(options: &Options) -> Result<bool, ConfigError> {
    if options.publishers().is_empty() != options.aggregators().is_empty() {
        return conflict("publishers and aggregators go together: contents are read back and checked");
    }
    if options.publisher_token_file.is_some() && options.publisher_secret_file.is_some() {
        return conflict("publisher_token_file and publisher_secret_file exclude each other");
    }
    Ok(!options.publishers().is_empty())
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

fn owners(options: &Options) -> Result<OwnerPolicy, ConfigError> {
    // A proxy on this machine makes a loopback address public.
    let has_proxy = options.public_url.is_some() || !options.trusted_proxies().is_empty();
    let address: Result<SocketAddr, _> = options.http().parse();
    let is_public = has_proxy || !address.is_ok_and(|address| address.ip().is_loopback());
    let by_address = if is_public { OwnerAdmission::Listed } else { OwnerAdmission::Open };
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

fn base_url(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
