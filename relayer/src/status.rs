//! `baton-relayer status`: asks the running relayer, and shows it with the stores and models of these settings.

use anyhow::bail;
use baton_kit::output::span;
use serde_json::{Value, json};

use crate::{
    config::Settings,
    output::println,
    running::{self, RelayerAnswer, RunningRelayer, describe_memory},
};

/// Prints the status.
///
/// # Errors
/// If no relayer answers, or if it is not ready.
pub(crate) async fn run(settings: &Settings, as_json: bool) -> anyhow::Result<()> {
    let relayer = match running::ask(&settings.data_dir, settings.http).await {
        RelayerAnswer::Relayer(relayer) => relayer,
        RelayerAnswer::NoAddress(reason) => bail!("{reason}"),
        RelayerAnswer::Silent { url, reason } => bail!(
            "no relayer answers at {url} ({reason}): start it with `baton-relayer run`, or name its data folder with --data-dir, or its address with --http"
        ),
        RelayerAnswer::OtherProgram { reason, .. } => {
            bail!("another program is there: {reason}; name the relayer's address with --http")
        }
    };
    if as_json {
        println(&status_json(&relayer, settings).to_string());
    } else {
        describe(&relayer, settings).iter().for_each(|line| println(line));
    }
    match relayer.not_ready {
        None => Ok(()),
        Some(reason) => bail!("the relayer is not ready: {reason}"),
    }
}

/// The relayer's own answer, with its readiness and the addresses of these settings.
fn status_json(relayer: &RunningRelayer, settings: &Settings) -> Value {
    let stores = settings.walrus.as_ref();
    let urls = |urls: &[String]| urls.iter().map(|url| without_query(url).to_owned()).collect::<Vec<_>>();
    json!({
        "url": relayer.url,
        "ready": relayer.not_ready.is_none(),
        "not_ready": relayer.not_ready,
        "degraded": relayer.degraded,
        "relayer": relayer.identity,
        "configured": {
            "publishers": stores.map(|stores| urls(&stores.publishers)).unwrap_or_default(),
            "aggregators": stores.map(|stores| urls(&stores.aggregators)).unwrap_or_default(),
            "heads": stores.and_then(|stores| stores.heads.as_deref()).map(without_query),
            "model": settings.model.as_ref().map(|model| &model.model).or(settings.through_nodes.as_ref()),
        },
    })
}

/// The lines for people.
fn describe(relayer: &RunningRelayer, settings: &Settings) -> Vec<String> {
    let identity = &relayer.identity;
    let state = if relayer.not_ready.is_none() { "ready" } else { "not ready" };
    let mut lines = vec![
        format!("Relayer   {state}, up {}, version {}", span(identity.uptime_seconds), identity.version),
        format!("Identity  {}", identity.relayer),
        format!("Peer      {}", identity.peer_id),
        format!("HTTP      {}", relayer.url),
    ];
    lines.extend(identity.addresses.iter().map(|address| format!("Listens   {address}")));
    lines.push(format!("Peers     {} connected, {} known", identity.peers.connected, identity.peers.known));
    lines.extend(describe_memory(&identity.memory));
    if let Some(reason) = &relayer.degraded {
        lines.push(format!("Memory    does not work: {reason}"));
    }
    lines.push(match identity.conversations {
        true => "Chat      conversations over HTTP".to_owned(),
        false => "Chat      no conversations over HTTP: they need publishers and aggregators".to_owned(),
    });
    if let Some(stores) = &settings.walrus {
        let urls: Vec<_> = stores.publishers.iter().map(|url| without_query(url)).collect();
        lines.push(format!("Store     {} (as configured here)", urls.join(", ")));
    }
    lines
}

/// A URL without its query, which may hold a secret.
fn without_query(url: &str) -> &str {
    url.split_once('?').map_or(url, |(base, _)| base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_the_relayers_answer_and_no_secret_of_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let stores = "publishers = [\"http://p?token=secret\"]\naggregators = [\"http://a\"]";
        std::fs::write(folder.path().join("config.toml"), stores).unwrap();
        let settings = Settings::load(folder.path(), None, Default::default()).unwrap();
        let mut relayer = crate::doctor::running_relayer(&["/ip4/192.0.2.1/tcp/1/p2p/P"]);
        relayer.not_ready = Some("the disk is full".to_owned());
        let json = status_json(&relayer, &settings);
        assert_eq!((&json["ready"], &json["not_ready"]), (&json!(false), &json!("the disk is full")));
        assert_eq!(json["relayer"]["addresses"][0], "/ip4/192.0.2.1/tcp/1/p2p/P");
        assert_eq!(json["configured"]["publishers"], json!(["http://p"]));
        let text = describe(&relayer, &settings).join("\n");
        assert!(text.starts_with("Relayer   not ready, up 1 min 1 s"), "{text}");
        assert!(text.contains("Listens   /ip4/192.0.2.1") && !text.contains("secret"), "{text}");
    }
}
