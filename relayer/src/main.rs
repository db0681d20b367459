//! The `baton-relayer` command.

mod cli;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret, create_private_folder},
};
use baton_mesh::{Mesh, MeshConfig};
use baton_relayer::{facts::Facts, service::Relayer};
use clap::Parser as _;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::cli::{Cli, Command, FactsCommand, RunArgs};

const KEY_KIND: &str = "relayer";
/// Exit code of a process that ended by a panic: a fault in the program.
const PANIC_EXIT_CODE: i32 = 101;

fn main() -> ExitCode {
    let cli = Cli::parse();
    init_logging(&cli.log);
    forbid_memory_dumps();
    end_on_panic();
    let folder = cli.data_dir.unwrap_or_else(default_folder);
    let result = match cli.command {
        Command::Init => init(&folder).map(|key| {
            println(&format!("relayer key {}", key.public_key()));
            println(&format!("data in {}", folder.display()));
            println("next: baton-relayer facts add \"...\", then baton-relayer run");
        }),
        Command::Facts(command) => facts(&folder, command),
        Command::Run(args) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")
            .and_then(|runtime| runtime.block_on(run(&folder, args))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut stderr = std::io::stderr();
            let _ = std::io::Write::write_fmt(&mut stderr, format_args!("error: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn init(folder: &Path) -> anyhow::Result<SecretSigningKey> {
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join("relayer.key");
    let secret = if path.exists() {
        files::load(&path, KEY_KIND, None)?
    } else {
        let secret = FileSecret::generate();
        files::create(&path, KEY_KIND, &secret, None)?;
        secret
    };
    let key = SecretSigningKey::from_seed(secret.expose());
    let facts = folder.join("facts.json");
    if !facts.exists() {
        Facts::default().save(&facts, &key)?;
    }
    Ok(key)
}

fn facts(folder: &Path, command: FactsCommand) -> anyhow::Result<()> {
    let key = init(folder)?;
    let path = folder.join("facts.json");
    match command {
        FactsCommand::Add { text, source } => {
            let mut facts = Facts::load(&path, &key.public_key())?;
            facts.add(text, source, now_ms())?;
            facts.save(&path, &key)?;
            println(&format!("{} facts in {}", facts.items().len(), path.display()));
        }
        FactsCommand::List => {
            for item in Facts::load(&path, &key.public_key())?.items() {
                println(&format!("- {} ({})", item.text, item.source));
            }
        }
        FactsCommand::Sign => {
            let facts = Facts::load_unverified(&path)?;
            facts.save(&path, &key)?;
            println(&format!("signed {} facts in {}", facts.items().len(), path.display()));
        }
    }
    Ok(())
}

async fn run(folder: &Path, args: RunArgs) -> anyhow::Result<()> {
    let key = init(folder)?;
    let path = args.facts.unwrap_or_else(|| folder.join("facts.json"));
    let facts = Facts::load(&path, &key.public_key())?;
    if args.bootstrap.is_empty() && !args.mdns {
        bail!("no node can be found: give --bootstrap with a node's address, or leave mDNS on");
    }
    let mut config =
        MeshConfig::server(concat!("baton/", env!("CARGO_PKG_VERSION"), " (relayer)"), args.listen);
    config.bootstrap = args.bootstrap;
    config.mdns = args.mdns;
    let (mesh, incoming) = Mesh::spawn(Zeroizing::new(*key.expose_seed()), config).await?;
    announce(&mesh, &key, facts.items().len(), args.json);
    let shutdown = CancellationToken::new();
    let relayer = Relayer::new(key, facts, mesh.clone(), Arc::new(now_ms));
    let serving = relayer.run(incoming, shutdown.clone(), Duration::from_secs(args.drain_seconds));
    let stopping = async {
        wait_for_signal().await;
        tracing::info!("stopping: running turns may end");
        shutdown.cancel();
    };
    tokio::join!(serving, stopping);
    mesh.shutdown().await;
    Ok(())
}

/// Says where the relayer is, once it listens: for a person, or one JSON line for a program.
fn announce(mesh: &baton_mesh::MeshHandle, key: &SecretSigningKey, facts: usize, json: bool) {
    let peer = baton_mesh::peer_id_of(mesh.node_id()).map(|peer| peer.to_string()).unwrap_or_default();
    let listen: Vec<String> =
        mesh.listen_addrs().iter().map(|address| format!("{address}/p2p/{peer}")).collect();
    if json {
        let ready = serde_json::json!({
            "event": "ready", "relayer": key.public_key().to_string(), "peer_id": peer, "listen": listen,
            "facts": facts,
        });
        println(&ready.to_string());
        return;
    }
    println(&format!("relayer {} with {facts} facts", key.public_key()));
    for address in listen {
        println(&format!("  listening on {address}"));
    }
    println("clients allow memory with: baton chat --relayer ADDRESS");
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => {
            tracing::warn!(%error, "cannot listen for SIGTERM");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

fn default_folder() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    home.join(".local/share/baton-relayer")
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Forbids core dumps and, on Linux, reading the process's memory by others of the same user: both would hold the key
/// and the facts. A system that refuses is told of, not fatal.
fn forbid_memory_dumps() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "cannot switch core dumps off");
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "the process could not be closed to debuggers");
        }
    }
}

/// Makes a panic end the process, and says where it was and never what: a panic's text may quote a fact.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic: this is a fault in the program; please report it");
        std::process::exit(PANIC_EXIT_CODE);
    }));
}

fn init_logging(level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr).init();
}

fn println(line: &str) {
    use std::io::Write as _;
    // A closed standard output is the reader's choice, not an error of ours.
    let _ = writeln!(std::io::stdout(), "{line}");
}
