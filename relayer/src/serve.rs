//! `run`: serves memory, HTTP and libp2p together until a signal, then lets running work finish.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use baton_client::Client;
use baton_keys::{SecretSigningKey, account::sign_relayer_url};
use baton_kit::{output::print_line, signals::StopSignals};
use baton_memory::Memory;
use baton_mesh::{Mesh, MeshConfig, MeshHandle, Multiaddr, Reach, reach_of_address};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{
    address_file::{AddressFile, RunningOptions},
    chat::Chat,
    config::Settings,
    http::{
        self, AppState, Audience, IdentitySource, MemoryFacts, PeerCounts, RelayerIdentity, ServerConfig,
    },
    owners::Owners,
    service::{Relayer, SealedLimits},
    setup,
    time::now_ms,
    upkeep::Upkeep,
};

/// Time for running turns to finish at shutdown.
const GRACE: Duration = Duration::from_secs(30);

/// Serves as the settings say.
pub(crate) async fn run(settings: Settings, key: SecretSigningKey, json: bool) -> anyhow::Result<()> {
    let options = &settings.options;
    // Before memory opens, so that a wrong address is reported at once.
    let listener = listen(settings.http).await?;
    let agent = concat!("baton/", env!("CARGO_PKG_VERSION"), " (relayer)");
    let mut config = MeshConfig::server(agent, options.listen());
    config.bootstrap = options.bootstrap();
    config.mdns = options.mdns();
    config.limits.own_networks = settings.limits.own_networks.clone();
    let (mesh, incoming) = Mesh::spawn(Zeroizing::new(*key.expose_seed()), config).await?;
    let opened = setup::open(&settings, Some(&mesh)).await?;
    let memory = opened.memory.clone();
    let conversations = conversations(&settings, memory.clone(), &key).await?;
    // From here on, running work is let finish.
    let mut signals = StopSignals::listen().context("cannot listen for SIGTERM and Ctrl-C")?;
    let owners = Arc::new(Owners::new(settings.owners.clone()));
    let upkeep = Upkeep::new(&settings, &opened, owners.clone());
    upkeep.count_owners().await?;
    let identity = identity_source(&settings, &opened, conversations.is_some(), &key, mesh.clone());
    let address = listener.local_addr()?;
    let running = RunningOptions::new(address, &settings.given);
    let address_file = AddressFile::write(&settings.data_dir, &running)
        .context("the file with the relayer's address cannot be written")?;
    announce(&settings, &identity(), address, json);

    let shutdown = CancellationToken::new();
    let config = ServerConfig {
        memory: memory.clone(),
        embedder: opened.embedder,
        writer: opened.writer,
        limits: settings.limits.clone(),
        addresses: settings.addresses.clone(),
        owners: owners.clone(),
        budgets: opened.budgets,
        audience: Audience { relayer: key.public_key(), required: options.require_audience() },
        public_url: settings.public_url.clone(),
        identity,
        now_ms: Arc::new(now_ms),
    };
    let sealed_limits = SealedLimits::new(settings.limits.own_networks.clone());
    let relayer = Relayer::new(key, mesh.clone(), memory.clone(), owners, sealed_limits, Arc::new(now_ms));
    let chat = conversations.as_ref().map(|(_, chat)| chat.clone());
    let stopping = async {
        tokio::select! {
            () = signals.next() => tracing::info!("stopping: running turns and requests may end"),
            () = shutdown.cancelled() => {}
        }
        shutdown.cancel();
    };
    let ((), served, (), (), ()) = tokio::join!(
        Box::pin(relayer.run(incoming, shutdown.clone(), GRACE)),
        Box::pin(serve_http(config, listener, chat, shutdown.clone())),
        Box::pin(memory.run_jobs(shutdown.clone())),
        Box::pin(upkeep.run(shutdown.clone())),
        stopping
    );
    // Before the memory is free: a relayer that starts then writes its own.
    drop(address_file);
    if let Some((client, chat)) = conversations {
        if tokio::time::timeout(GRACE, chat.finish()).await.is_err() {
            tracing::warn!("conversations still running at the end of the grace period are cut off");
        }
        client.shutdown(GRACE).await;
    }
    memory.close_all().await;
    mesh.shutdown().await;
    served
}

/// Conversations over HTTP with their client, if a store is configured.
async fn conversations(
    settings: &Settings,
    memory: Memory,
    key: &SecretSigningKey,
) -> anyhow::Result<Option<(Client, Chat)>> {
    let Some(client) = setup::client(settings).await? else {
        tracing::info!("no conversations over HTTP: they need publishers and aggregators");
        return Ok(None);
    };
    let echo = settings.options.allow_echo();
    let chat = Chat::new(client.clone(), memory, key.clone(), echo, Arc::new(now_ms));
    Ok(Some((client, chat)))
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        anyhow!(
            "cannot serve HTTP at {address}: {error}; give another --http address (port 0 takes a free one)"
        )
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "HTTP is served without TLS to other machines: put a TLS proxy in front");
    }
    Ok(listener)
}

async fn serve_http(
    config: ServerConfig,
    listener: TcpListener,
    chat: Option<Chat>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
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
    Arc::new(move || {
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
    })
}

/// The parts of memory that these settings lead to.
pub(crate) fn memory_facts(settings: &Settings, embedder: &str) -> MemoryFacts {
    let judge = match (&settings.model, &settings.options.through_nodes) {
        (Some(_), _) => "endpoint",
        (None, Some(_)) => "nodes",
        (None, None) => "rules",
    };
    MemoryFacts {
        storage: if settings.options.postgres_url_file.is_some() { "postgres" } else { "embedded" }
            .to_owned(),
        embedder: embedder.to_owned(),
        judge: judge.to_owned(),
        contents: if settings.has_stores { "walrus" } else { "local" }.to_owned(),
    }
}

/// External and local addresses with the peer id, loopback last, each once.
fn addresses(external: &[Multiaddr], listen: &[Multiaddr], peer_id: &str) -> Vec<String> {
    let suffix = format!("/p2p/{peer_id}");
    let mut addresses: Vec<String> = Vec::new();
    let mut all: Vec<&Multiaddr> = external.iter().chain(listen).collect();
    // The sort is stable: external addresses stay first.
    all.sort_by_key(|address| reach_of_address(address) == Some(Reach::Loopback));
    for address in all {
        let mut text = address.to_string();
        if !text.ends_with(&suffix) {
            text.push_str(&suffix);
        }
        if !addresses.contains(&text) {
            addresses.push(text);
        }
    }
    addresses
}

/// Reports the relayer's addresses once it listens: for a person, or as one JSON line for a program.
fn announce(settings: &Settings, identity: &RelayerIdentity, http: SocketAddr, json: bool) {
    if json {
        let ready = serde_json::json!({
            "event": "ready", "relayer": identity.relayer, "peer_id": identity.peer_id,
            "listen": identity.addresses, "http": format!("http://{http}"),
        });
        print_line(ready.to_string());
        return;
    }
    let url = client_url(settings.public_url.as_deref(), http);
    print_line(format!("relayer {}, data in {}", identity.relayer, settings.data_dir.display()));
    print_line(format!("  memory at {url}, described in {url}/openapi.json"));
    identity.addresses.iter().for_each(|address| print_line(format!("  listening on {address}")));
    // The URL leads to the address for sealed turns, so one value serves both.
    print_line(format!(
        "use it from a client with:\n  baton chat --memory --relayer {url}\n  baton memory list --all --relayer {url}\n\
         look for problems with: baton-relayer doctor"
    ));
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
