//! Asks the relayer that runs with these settings, over its open HTTP routes. `doctor` calls it.
//! It signs nothing, and sees no memory.

use std::{net::SocketAddr, time::Duration};

use baton_kit::output::root_cause;
use baton_walrus_client::http_client::read_bounded;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;

use crate::{
    address_file::AddressFile,
    config::{Options, Settings},
    data_folder::own_key,
    http::RelayerIdentity,
    serve::client_url,
};

/// Timeout of one answer. The relayer's own readiness check waits ten seconds for its storage.
const TIMEOUT: Duration = Duration::from_secs(12);
/// Largest answer that is read; real ones have about a kilobyte.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// A relayer that answered.
#[derive(Clone, Debug)]
pub(crate) struct RunningRelayer {
    /// Its URL.
    pub(crate) url: String,
    pub(crate) identity: RelayerIdentity,
    /// The reason of `/health` why it is degraded.
    pub(crate) degraded: Option<String>,
    /// The reason of `/readyz` why it is not ready.
    pub(crate) not_ready: Option<String>,
    /// The warning of `/readyz`.
    pub(crate) warning: Option<String>,
    /// Its options, if it is the relayer of the data folder.
    pub(crate) options: Option<Options>,
}

/// The answer at the HTTP address of the settings.
#[derive(Clone, Debug)]
pub(crate) enum RelayerAnswer {
    /// Nothing answers at this URL.
    Silent(String),
    /// A program answers that is no relayer with an identity.
    OtherProgram {
        /// The URL.
        url: String,
        /// Its answer, in words.
        reason: String,
    },
    /// A relayer.
    Relayer(Box<RunningRelayer>),
}

/// Asks the relayer of a data folder for identity, health and readiness: at the address in its file, else at
/// that of the settings. After a crash the file stays, so another relayer there does not count.
pub(crate) async fn ask(settings: &Settings) -> RelayerAnswer {
    let data_dir = &settings.data_dir;
    if let Some(running) = AddressFile::read(data_dir)
        && let RelayerAnswer::Relayer(mut relayer) = ask_at(running.http).await
        && own_key(data_dir).is_some_and(|own| own.to_string() == relayer.identity.relayer)
    {
        relayer.options = Some(running.options());
        return RelayerAnswer::Relayer(relayer);
    }
    ask_at(settings.http).await
}

async fn ask_at(address: SocketAddr) -> RelayerAnswer {
    let url = client_url(None, address);
    let Ok(client) = Client::builder().timeout(TIMEOUT).no_proxy().build() else {
        return RelayerAnswer::Silent(url);
    };
    let Ok(response) = client.get(format!("{url}/relayer")).send().await else {
        return RelayerAnswer::Silent(url);
    };
    let status = response.status();
    let identity = match read_json(response).await.map(serde_json::from_value::<RelayerIdentity>) {
        Ok(Ok(identity)) if status.is_success() => identity,
        _ => {
            let reason = format!("{url}/relayer answers {status} without a relayer's identity");
            return RelayerAnswer::OtherProgram { url, reason };
        }
    };
    let degraded = match get(&client, &format!("{url}/health")).await {
        Ok((_, body)) => degraded_reason(&body),
        Err(reason) => Some(format!("/health: {reason}")),
    };
    let (not_ready, warning) = match get(&client, &format!("{url}/readyz")).await {
        Ok((status, body)) => (not_ready_reason(status, &body), body["warning"].as_str().map(str::to_owned)),
        Err(reason) => (Some(format!("/readyz: {reason}")), None),
    };
    RelayerAnswer::Relayer(Box::new(RunningRelayer {
        url,
        identity,
        degraded,
        not_ready,
        warning,
        options: None,
    }))
}

async fn get(client: &Client, url: &str) -> Result<(StatusCode, Value), String> {
    let response = client.get(url).send().await.map_err(|error| root_cause(&error))?;
    Ok((response.status(), read_json(response).await?))
}

/// The JSON of an answer of limited length.
pub(crate) async fn read_json(response: Response) -> Result<Value, String> {
    let too_long = || format!("the answer is longer than {MAX_ANSWER_BYTES} bytes");
    let bytes = read_bounded(response, MAX_ANSWER_BYTES).await;
    let bytes = bytes.map_err(|error| error.map_or_else(too_long, |error| root_cause(&error)))?;
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

fn degraded_reason(health: &Value) -> Option<String> {
    match health["status"].as_str() {
        Some("ok") => None,
        _ => Some(health["memory"].as_str().unwrap_or("/health gives no reason").to_owned()),
    }
}

fn not_ready_reason(status: StatusCode, body: &Value) -> Option<String> {
    if status.is_success() {
        return None;
    }
    let texts = [&body["message"], &body["hint"]].into_iter().filter_map(Value::as_str);
    let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    Some(if texts.is_empty() { format!("/readyz answers {status}") } else { texts.join("; ") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasons_come_from_health_and_readiness() {
        assert_eq!(degraded_reason(&json!({ "status": "ok" })), None);
        let full = json!({ "status": "degraded", "memory": "the disk is full" });
        assert_eq!(degraded_reason(&full).unwrap(), "the disk is full");
        assert!(degraded_reason(&json!({})).is_some());
        let refused = json!({ "message": "the disk is full", "hint": "make space" });
        assert_eq!(not_ready_reason(StatusCode::OK, &json!({ "ready": true })), None);
        assert_eq!(
            not_ready_reason(StatusCode::SERVICE_UNAVAILABLE, &refused).unwrap(),
            "the disk is full; make space"
        );
        assert!(not_ready_reason(StatusCode::NOT_FOUND, &Value::Null).unwrap().contains("404"));
    }
}
