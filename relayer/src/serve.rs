//! `run`: serves memory, HTTP and libp2p together until a signal, then lets running work finish.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use baton_client::Client;
use baton_keys::{SecretSigningKey, account::sign_relayer_url};
use baton_kit::signals::StopSignals;
use baton_memory::Memory;
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{
    address_file::{AddressFile, RunningOptions},
    chat::{Chat, ChatConfig},
    config::{HttpSetting, Settings},
    http::{
        self, AppState, Audience, IdentitySource, MemoryFacts, PeerCounts, RelayerIdentity, ServerConfig,
    },
    injection::Recollection,
    output::println,
    owners::Owners,
    service::{Relayer, SealedLimits},
    setup,
    time::now_ms,
    upkeep::Upkeep,
};

/// How long an answer of `GET /relayer` is given again before it is read anew.
const IDENTITY_KEPT: Duration = Duration::from_secs(1);

/// Serves as the settings say.
pub(crate) async fn run(settings: Settings, key: SecretSigningKey, json: bool) -> anyhow::Result<()> {
    if settings.http == HttpSetting::Off && settings.bootstrap.is_empty() && !settings.mdns {
        bail!(
            "no node can be found, and HTTP is off: give --bootstrap with a node's address, leave mDNS on, or HTTP"
        );
    }
    // Before memory opens, so that a wrong address is reported at once.
    let listener = listen(settings.http).await?;
    let agent = concat!("baton/", env!("CARGO_PKG_VERSION"), " (relayer)");
    let mut config = MeshConfig::server(agent, settings.listen.clone());
    config.bootstrap.clone_from(&settings.bootstrap);
    config.mdns = settings.mdns;
    config.limits.own_networks = settings.limits.own_networks.clone();
    let (mesh, incoming) = Mesh::spawn(Zeroizing::new(*key.expose_seed()), config).await?;
    let opened = setup::open(&settings, Some(&mesh)).await?;
    let chat = Conversations::open(&settings, &opened.memory, &key).await?;
    // From here on, running work is let finish.
    let mut signals = StopSignals::listen().context("cannot listen for SIGTERM and Ctrl-C")?;
    let owners = Arc::new(Owners::new(settings.owners.clone()));
    let audience = Audience { relayer: key.public_key(), required: settings.require_audience };
    let upkeep = Upkeep::new(&settings, &opened, owners.clone());
    upkeep.count_owners().await?;
    let identity = identity_source(&settings, &opened, chat.is_open(), &key, mesh.clone());
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let running = |http| RunningOptions::new(http, &settings.options);
    let address_file = address.map(|http| AddressFile::write(&settings.data_dir, &running(http))).transpose();
    let address_file = address_file.context("the file with the relayer's address cannot be written")?;
    announce(&settings, &identity(), address, json);

    let shutdown = CancellationToken::new();
    let grace = Duration::from_secs(settings.drain_seconds.into());
    let recollection: Arc<dyn Recollection> = Arc::new(opened.memory.clone());
    let sealed_limits =
        SealedLimits { own_networks: settings.limits.own_networks.clone(), ..SealedLimits::default() };
    let relayer = Relayer::new(key, mesh.clone(), Arc::new(now_ms)).with_memory(recollection);
    let relayer = relayer.with_limits(sealed_limits).with_owners(owners.clone());
    let memory = opened.memory.clone();
    let jobs = memory.run_jobs(shutdown.clone());
    let sealed = relayer.run(incoming, shutdown.clone(), grace);
    let config = server_config(&settings, opened, owners, audience, identity);
    let http = serve_http(config, listener, chat.chat(), shutdown.clone());
    let upkeep = upkeep.run(shutdown.clone());
    let stopping = async {
        tokio::select! {
            () = signals.next() => tracing::info!("stopping: running turns and requests may end"),
            () = shutdown.cancelled() => {}
        }
        shutdown.cancel();
    };
    let ((), served, (), (), ()) =
        tokio::join!(Box::pin(sealed), Box::pin(http), Box::pin(jobs), Box::pin(upkeep), stopping);
    // Before the memory is free: a relayer that starts then writes its own.
    drop(address_file);
    chat.close(grace).await;
    memory.close_all().await;
    mesh.shutdown().await;
    served
}

/// Conversations over HTTP, if a store is configured.
struct Conversations(Option<(Client, Chat)>);

impl Conversations {
    async fn open(settings: &Settings, memory: &Memory, key: &SecretSigningKey) -> anyhow::Result<Self> {
        if settings.http == HttpSetting::Off {
            return Ok(Self(None));
        }
        let Some(client) = setup::client(settings).await? else {
            tracing::info!("no conversations over HTTP: they need publishers and aggregators");
            return Ok(Self(None));
        };
        let config = ChatConfig { allow_echo: settings.allow_echo };
        let memory: Arc<dyn Recollection> = Arc::new(memory.clone());
        let chat = Chat::new(client.clone(), memory, key.clone(), config, Arc::new(now_ms));
        Ok(Self(Some((client, chat))))
    }

    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    fn chat(&self) -> Option<Chat> {
        self.0.as_ref().map(|(_, chat)| chat.clone())
    }

    /// Lets running turns finish within the grace period.
    async fn close(self, grace: Duration) {
        let Some((client, chat)) = self.0 else { return };
        if tokio::time::timeout(grace, chat.finish()).await.is_err() {
            tracing::warn!("conversations still running at the end of the grace period are cut off");
        }
        client.shutdown(grace).await;
    }
}

async fn listen(setting: HttpSetting) -> anyhow::Result<Option<TcpListener>> {
    let HttpSetting::At(address) = setting else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        anyhow!(
            "cannot serve HTTP at {address}: {error}; give another --http address (port 0 takes a free one), or `--http off`"
        )
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "HTTP is served without TLS to other machines: put a TLS proxy in front");
    }
    Ok(Some(listener))
}

fn server_config(
    settings: &Settings,
    opened: setup::MemorySetup,
    owners: Arc<Owners>,
    audience: Audience,
    identity: IdentitySource,
) -> ServerConfig {
    ServerConfig {
        memory: opened.memory,
        embedder: opened.embedder,
        writer: opened.writer,
        limits: settings.limits.clone(),
        addresses: settings.addresses.clone(),
        owners,
        budgets: opened.budgets,
        audience,
        public_url: settings.public_url.clone(),
        identity,
        now_ms: Arc::new(now_ms),
    }
}

async fn serve_http(
    config: ServerConfig,
    listener: Option<TcpListener>,
    chat: Option<Chat>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(listener) = listener else { return Ok(()) };
    let app = AppState::new(config);
    let router = http::router(&app, chat);
    let served = http::serve(app, router, listener, shutdown.clone().cancelled_owned()).await;
    // Without its HTTP server, the relayer ends and reports the reason.
    shutdown.cancel();
    served.context("the HTTP server ended")
}

/// Reads the relayer's identity from its network, with the facts of its settings.
fn identity_source(
    settings: &Settings,
    opened: &setup::MemorySetup,
    conversations: bool,
    key: &SecretSigningKey,
    mesh: MeshHandle,
) -> IdentitySource {
    let url = settings.public_url.clone();
    let url_signature = url.as_deref().map(|url| hex::encode(sign_relayer_url(key, url)));
    let key = key.public_key();
    let memory = memory_facts(settings, opened.embedder.id());
    let peer_id = baton_mesh::peer_id_of(mesh.node_id()).map(|peer| peer.to_string()).unwrap_or_default();
    let started = Instant::now();
    let read = move || {
        let peers = mesh.peers();
        let connected = peers.iter().filter(|peer| peer.connected).count();
        RelayerIdentity {
            relayer: key.to_string(),
            url: url.clone(),
            url_signature: url_signature.clone(),
            peer_id: peer_id.clone(),
            addresses: addresses(&mesh.network().external, &mesh.listen_addrs(), &peer_id),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: started.elapsed().as_secs(),
            peers: PeerCounts { connected: connected as u64, known: peers.len() as u64 },
            memory: memory.clone(),
            conversations,
        }
    };
    // Anyone may ask, and each reading copies the table of peers.
    let kept: Mutex<Option<(Instant, RelayerIdentity)>> = Mutex::new(None);
    Arc::new(move || {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, identity)) if at.elapsed() < IDENTITY_KEPT => identity.clone(),
            _ => {
                let identity = read();
                *kept = Some((Instant::now(), identity.clone()));
                identity
            }
        }
    })
}

/// The parts of memory that these settings lead to.
pub(crate) fn memory_facts(settings: &Settings, embedder: &str) -> MemoryFacts {
    let judge = match (&settings.model, &settings.through_nodes) {
        (Some(_), _) => "endpoint",
        (None, Some(_)) => "nodes",
        (None, None) => "rules",
    };
    MemoryFacts {
        storage: if settings.postgres_url_file.is_some() { "postgres" } else { "embedded" }.to_owned(),
        embedder: embedder.to_owned(),
        judge: judge.to_owned(),
        contents: if settings.walrus.is_some() { "walrus" } else { "local" }.to_owned(),
    }
}

/// External and local addresses with the peer id, loopback last, each once.
fn addresses(external: &[Multiaddr], listen: &[Multiaddr], peer_id: &str) -> Vec<String> {
    let suffix = format!("/p2p/{peer_id}");
    let mut addresses: Vec<String> = Vec::new();
    for address in external.iter().chain(listen) {
        let mut text = address.to_string();
        if !text.ends_with(&suffix) {
            text.push_str(&suffix);
        }
        if !addresses.contains(&text) {
            addresses.push(text);
        }
    }
    // The sort is stable: external addresses stay first.
    addresses.sort_by_key(|address| is_loopback(address));
    addresses
}

fn is_loopback(address: &str) -> bool {
    address.starts_with("/ip4/127.") || address.starts_with("/ip6/::1/")
}

/// Reports the relayer's addresses once it listens: for a person, or as one JSON line for a program.
fn announce(settings: &Settings, identity: &RelayerIdentity, http: Option<SocketAddr>, json: bool) {
    if json {
        let ready = serde_json::json!({
            "event": "ready", "relayer": identity.relayer, "peer_id": identity.peer_id,
            "listen": identity.addresses, "http": http.map(|address| format!("http://{address}")),
        });
        println(&ready.to_string());
        return;
    }
    println(&format!("relayer {}, data in {}", identity.relayer, show(&settings.data_dir)));
    let url = http.map(|address| client_url(settings.public_url.as_deref(), address));
    closing_lines(identity, url.as_deref()).iter().for_each(|line| println(line));
}

/// The URL for clients: the configured one, or else the listener's. An address of all interfaces becomes the
/// loopback one, which a client of this machine can use.
pub(crate) fn client_url(public_url: Option<&str>, address: SocketAddr) -> String {
    if let Some(url) = public_url {
        return url.to_owned();
    }
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// The addresses, and the exact commands of clients.
fn closing_lines(identity: &RelayerIdentity, url: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(url) = url {
        lines.push(format!("  memory at {url}, described in {url}/openapi.json"));
    }
    lines.extend(identity.addresses.iter().map(|address| format!("  listening on {address}")));
    lines.push("use it from a client with:".to_owned());
    // The URL leads to the address for sealed turns, so one value serves both.
    if let Some(relayer) = url.or(identity.addresses.first().map(String::as_str)) {
        lines.push(format!("  baton chat --memory --relayer {relayer}"));
    }
    if let Some(url) = url {
        lines.push(format!("  baton memory list --all --relayer {url}"));
        lines.push("see how it does with: baton-relayer status".to_owned());
    }
    lines.push("look for problems with: baton-relayer doctor".to_owned());
    lines
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_name_the_peer_once_and_end_with_loopback() {
        let peer = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA";
        let external = parsed(&["/ip4/192.0.2.1/tcp/4101"]);
        let listen =
            parsed(&["/ip4/127.0.0.1/tcp/4101", "/ip4/10.0.0.2/tcp/4101", "/ip4/192.0.2.1/tcp/4101"]);
        let expected = ["192.0.2.1", "10.0.0.2", "127.0.0.1"];
        let expected = expected.map(|ip| format!("/ip4/{ip}/tcp/4101/p2p/{peer}"));
        assert_eq!(addresses(&external, &listen, peer), expected);
        let named = parsed(&[&expected[0]]);
        assert_eq!(addresses(&named, &[], peer), expected[..1]);
    }

    #[test]
    fn clients_get_an_address_that_they_can_dial() {
        for (public, address, url) in [
            (None, "0.0.0.0:8000", "http://127.0.0.1:8000"),
            (None, "[::]:1", "http://[::1]:1"),
            (None, "192.0.2.1:8000", "http://192.0.2.1:8000"),
            (Some("https://memory.example"), "0.0.0.0:8000", "https://memory.example"),
        ] {
            assert_eq!(client_url(public, address.parse().unwrap()), url);
        }
    }
}
