//! The relayer that a setting or a flag names: by its libp2p address, or by the URL of its HTTP server, which is
//! asked for that address. `settings.rs` and the commands with turns call it.

use std::time::Duration;

use baton_client::{Multiaddr, Relayer};
use baton_kit::endpoint::is_protected;
use baton_walrus_client::http_client;
use serde::Deserialize;

use crate::failure::Failure;

/// Time for a relayer to name its address.
const RELAYER_WAIT: Duration = Duration::from_secs(10);
/// Largest answer of a relayer about itself.
const MAX_IDENTITY_BYTES: u64 = 64 * 1024;

/// Whether a relayer is named by the URL of its HTTP server.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// The name of a relayer for people: the host of its URL or address.
pub(crate) fn relayer_name(named: &str) -> String {
    let url = reqwest::Url::parse(named).ok().filter(|_| is_url(named));
    let host = url.as_ref().and_then(reqwest::Url::host_str);
    // The parts of an address are its protocols, each with its value.
    let host = host.or_else(|| named.split('/').nth(2)).filter(|host| !host.is_empty());
    host.unwrap_or(named).to_owned()
}

/// Whether an answer from a URL is surely its server's.
fn is_authentic(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| is_protected(&url))
}

/// The relayer that is named, if one is: by its address, or by its URL, under which it tells its address.
pub(crate) async fn named_relayer(named: Option<&String>) -> Result<Option<Relayer>, Failure> {
    match named {
        None => Ok(None),
        // Over plain HTTP another party of the network could name itself.
        Some(url) if is_url(url) && !is_authentic(url) => Err(Failure::usage(
            format!("{url} cannot prove which relayer it names."),
            "use https://, a loopback address, or the relayer's libp2p address with /p2p/ID",
        )),
        Some(url) if is_url(url) => ask_relayer(url.trim_end_matches('/')).await.map(Some),
        Some(address) => relayer(address).map(Some),
    }
}

/// Asks a relayer for its address.
async fn ask_relayer(url: &str) -> Result<Relayer, Failure> {
    let failed = |message: String| {
        let message = format!("the relayer at {url} does not name its address: {message}");
        Failure::of_relayer("Unreachable", message, Some("is it running? baton doctor".to_owned()))
    };
    let http = http_client::builder_for(url).timeout(RELAYER_WAIT);
    let http = http.redirect(reqwest::redirect::Policy::none()).build();
    let http = http.map_err(|error| failed(error.to_string()))?;
    let identity = ask_identity(&http, url).await.map_err(failed)?;
    let mut parsed = identity.addresses.iter().filter_map(|address| relayer(address).ok());
    let mut first = parsed.next().ok_or_else(|| failed("it listens at no address".to_owned()))?;
    first.addrs.extend(parsed.filter(|other| other.node == first.node).flat_map(|other| other.addrs));
    Ok(first)
}

/// The parts of a relayer's `/relayer` that a client needs.
#[derive(Deserialize)]
pub(crate) struct RelayerIdentity {
    #[serde(default)]
    addresses: Vec<String>,
    /// The relayer's key.
    pub relayer: Option<String>,
    /// Its signature over the URL at which it serves.
    pub url_signature: Option<String>,
}

/// Asks the relayer at a URL who it is; or gives the reason that it does not say so.
pub(crate) async fn ask_identity(http: &reqwest::Client, url: &str) -> Result<RelayerIdentity, String> {
    let answer =
        http.get(format!("{url}/relayer")).send().await.and_then(reqwest::Response::error_for_status);
    let answer = answer.map_err(|error| match error.status() {
        Some(status) => format!("it answers {status}"),
        None => http_client::describe(&error),
    })?;
    let too_long = || "its answer is too long".to_owned();
    let body = http_client::read_bounded(answer, MAX_IDENTITY_BYTES).await;
    let body = body.map_err(|error| error.map_or_else(too_long, |error| http_client::describe(&error)))?;
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

/// A relayer from its address, which must contain its identity.
fn relayer(text: &str) -> Result<Relayer, Failure> {
    let mut addr: Multiaddr = text.parse().map_err(|error| {
        Failure::wrong(format!(
            "--relayer {text}: {error}; an address looks like /ip4/192.0.2.1/tcp/4001/p2p/ID"
        ))
    })?;
    let peer = addr.to_string().rsplit_once("/p2p/").map(|(_, id)| id.to_owned());
    let node = peer
        .and_then(|id| id.parse::<baton_mesh::PeerId>().ok())
        .and_then(|peer| baton_mesh::node_id_of(&peer))
        .ok_or_else(|| Failure::wrong("--relayer needs an address that ends with /p2p/ID"))?;
    addr.pop();
    Ok(Relayer { node, addrs: vec![addr] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relayer_is_named_by_a_url_that_proves_its_server() {
        for url in
            ["https://r.example", "http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"]
        {
            assert!(is_authentic(url), "{url}");
        }
        for url in ["http://r.example", "http://192.168.1.2:8000", "http://localhost.example", "http://"] {
            assert!(!is_authentic(url), "{url}");
        }
    }

    #[test]
    fn people_read_the_host_of_a_relayer() {
        for (named, host) in [
            ("https://r.example", "r.example"),
            ("http://127.0.0.1:8000/", "127.0.0.1"),
            ("http://[::1]:8000", "[::1]"),
            ("/dns4/r.example/tcp/4001/p2p/ID", "r.example"),
            ("/ip4/192.0.2.1/udp/4001/quic-v1/p2p/ID", "192.0.2.1"),
            ("other", "other"),
        ] {
            assert_eq!(relayer_name(named), host);
        }
    }

    #[test]
    fn a_relayer_is_named_by_an_address_with_its_identity() {
        let node = baton_keys::SecretSigningKey::generate().node_id();
        let peer = baton_mesh::peer_id_of(node).unwrap();
        let parsed = relayer(&format!("/ip4/127.0.0.1/tcp/1/p2p/{peer}")).unwrap();
        assert_eq!(parsed.node, node);
        assert_eq!(parsed.addrs, ["/ip4/127.0.0.1/tcp/1".parse().unwrap()]);
        assert!(relayer("/ip4/127.0.0.1/tcp/1").is_err_and(|error| error.is_usage()));
    }
}
