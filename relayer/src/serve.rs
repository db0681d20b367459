//! `run`: serves memory, HTTP and libp2p together until a signal, then lets running work finish.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use baton_client::Client;
use baton_command::signals::StopSignals;
use baton_keys::SecretSigningKey;
use baton_memory::Memory;
use baton_mesh::{Mesh, MeshConfig, MeshHandle};
use baton_relayer::{
    chat::{Chat, ChatConfig},
    config::{HttpSetting, Settings},
    http::{self, AppState, ServerConfig},
    injection::Recollection,
    service::Relayer,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use zeroize::Zeroizing;

use crate::{println, setup};

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
    let (mesh, incoming) = Mesh::spawn(Zeroizing::new(*key.expose_seed()), config).await?;
    let opened = setup::open(&settings, Some(&mesh)).await?;
    let chat = Conversations::open(&settings, &opened.memory, &key).await?;
    // From here on, running work is let finish.
    let mut signals = StopSignals::listen().context("cannot listen for SIGTERM and Ctrl-C")?;
    announce(&settings, &mesh, &key, listener.as_ref(), json)?;

    let shutdown = CancellationToken::new();
    let grace = Duration::from_secs(settings.drain_seconds.into());
    let recollection: Arc<dyn Recollection> = Arc::new(opened.memory.clone());
    let relayer = Relayer::new(key, mesh.clone(), Arc::new(crate::now_ms)).with_memory(recollection);
    let memory = opened.memory.clone();
    let jobs = memory.run_jobs(shutdown.clone());
    let sealed = relayer.run(incoming, shutdown.clone(), grace);
    let http = serve_http(&settings, opened, listener, chat.routes(), shutdown.clone());
    let stopping = async {
        tokio::select! {
            () = signals.next() => tracing::info!("stopping: running turns and requests may end"),
            () = shutdown.cancelled() => {}
        }
        shutdown.cancel();
    };
    let ((), served, (), ()) = tokio::join!(Box::pin(sealed), Box::pin(http), Box::pin(jobs), stopping);
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
        let chat = Chat::new(client.clone(), memory, key.clone(), config, Arc::new(crate::now_ms));
        Ok(Self(Some((client, chat))))
    }

    fn routes(&self) -> OpenApiRouter<AppState> {
        match &self.0 {
            Some((_, chat)) => http::chat::routes(chat.clone()),
            None => OpenApiRouter::new(),
        }
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
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve HTTP at {address}; give another --http address (port 0 takes a free one), or `--http off`")
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "HTTP is served without TLS to other machines: put a TLS proxy in front");
    }
    Ok(Some(listener))
}

async fn serve_http(
    settings: &Settings,
    opened: setup::MemorySetup,
    listener: Option<TcpListener>,
    more: OpenApiRouter<AppState>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(listener) = listener else { return Ok(()) };
    let app = AppState::new(ServerConfig {
        memory: opened.memory,
        embedder: opened.embedder,
        writer: opened.writer,
        limits: settings.limits,
        public_url: settings.public_url.clone(),
        now_ms: Arc::new(crate::now_ms),
    });
    let router = http::router(&app, more);
    let served = http::serve(app, router, listener, shutdown.clone().cancelled_owned()).await;
    // Without its HTTP server, the relayer ends and reports the reason.
    shutdown.cancel();
    served.context("the HTTP server ended")
}

/// Reports the relayer's addresses once it listens: for a person, or as one JSON line for a program.
fn announce(
    settings: &Settings,
    mesh: &MeshHandle,
    key: &SecretSigningKey,
    listener: Option<&TcpListener>,
    json: bool,
) -> anyhow::Result<()> {
    let peer = baton_mesh::peer_id_of(mesh.node_id()).map(|peer| peer.to_string()).unwrap_or_default();
    let listen: Vec<String> =
        mesh.listen_addrs().iter().map(|address| format!("{address}/p2p/{peer}")).collect();
    let http = listener.map(TcpListener::local_addr).transpose()?.map(|address| format!("http://{address}"));
    if json {
        let ready = serde_json::json!({
            "event": "ready", "relayer": key.public_key().to_string(), "peer_id": peer, "listen": listen,
            "http": http,
        });
        println(&ready.to_string());
        return Ok(());
    }
    println(&format!("relayer {}, data in {}", key.public_key(), show(&settings.data_dir)));
    if let Some(http) = http {
        println(&format!("  memory at {http}, described in {http}/openapi.json"));
    }
    for address in listen {
        println(&format!("  listening on {address}"));
    }
    println("clients use it with: baton chat --memory --relayer ADDRESS");
    Ok(())
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
