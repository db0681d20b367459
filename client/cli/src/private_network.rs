//! `baton try`: a chat on a private network of this machine, which is removed at the end.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use baton_kit::progress;
use clap::FromArgMatches as _;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, Command},
};

use crate::{
    args::{self, Arguments, DEFAULT_MODEL, TryArguments},
    failure::Failure,
    out::{Out, count},
    settings::{Environment, Settings},
    views,
};

/// Time for the network to start, with a model that is here.
const START_WAIT: Duration = Duration::from_secs(120);
/// Time for the network to stop before it is killed.
const STOP_WAIT: Duration = Duration::from_secs(15);

/// The line that `baton-testnet up --json` prints when the network is ready.
#[derive(Deserialize)]
struct Ready {
    store: String,
    shards: u16,
    nodes: Vec<String>,
}

/// A running network; it ends when its standard input closes.
struct PrivateNetwork {
    process: Child,
    input: Option<ChildStdin>,
    ready: Ready,
}

/// Runs a chat on a network of its own; `is_plain` wants it line by line.
pub(crate) async fn run(
    arguments: &TryArguments,
    is_plain: bool,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    tokio::select! {
        fetched = fetch_model(&arguments.model) => fetched?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted),
    }
    let began = Instant::now();
    let nodes = count(arguments.nodes as u64, "node");
    out.note(&format!("Starting a store and {nodes} on this machine …"));
    let spinner = progress::spinner("nodes load their model");
    let network = PrivateNetwork::start(arguments, folder.path()).await;
    spinner.finish_and_clear();
    let network = network?;
    let about_model = match arguments.model.as_str() {
        DEFAULT_MODEL => "The model is small: it shows how Baton works, and often errs. ",
        _ => "",
    };
    out.note(&format!(
        "Ready after {:.1} s. {about_model}All is removed when you leave.",
        began.elapsed().as_secs_f64()
    ));
    let plain = is_plain.then(|| "--plain".to_owned());
    let chat = [Some("chat".to_owned()), plain, arguments.text.clone()].into_iter().flatten().collect();
    let talked = Box::pin(talk(&network.ready, chat, folder.path(), environment, out)).await;
    network.stop().await;
    out.note("The private network is removed.");
    talked
}

/// Fetches the model with the node's own progress bar, unless it is here.
async fn fetch_model(model: &str) -> Result<(), Failure> {
    let mut pull = Command::new(sibling("baton-node")?);
    pull.args(["models", "pull", model]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let done = pull.status().await?;
    if done.success() {
        return Ok(());
    }
    Err(Failure::usage(
        "The model could not be fetched.",
        "the node's message above names the cause; a model file that you have: baton-node models add FILE.gguf --name NAME, then baton try --model NAME",
    ))
}

/// Chats with the network's nodes, in a home of its own.
async fn talk(
    ready: &Ready,
    chat: Vec<String>,
    folder: &Path,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let mut given: Vec<String> = vec!["baton".into(), "--config".into(), "/dev/null".into()];
    let mut flag = |name: &str, value: &str| given.extend([format!("--{name}"), value.to_owned()]);
    flag("home", &folder.join("home").display().to_string());
    flag("publisher", &ready.store);
    flag("aggregator", &ready.store);
    flag("heads", &ready.store);
    flag("shards", &ready.shards.to_string());
    ready.nodes.iter().for_each(|node| flag("node", node));
    given.extend(chat);
    let matches = args::command().try_get_matches_from(given);
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    let mut parsed = parsed.map_err(|error| Failure::Usage(error.to_string()))?;
    let settings = Settings::gather(&parsed, environment)?;
    let Some(args::Command::Chat(mut chat)) = parsed.command.take() else { return Ok(()) };
    // Settings of the environment are for other networks.
    (chat.answering.model.model, chat.memory.memory) = (None, false);
    let out = out.clone().with_command(None);
    Box::pin(views::run(&settings.on_private_network(), chat, &out)).await
}

impl PrivateNetwork {
    async fn start(arguments: &TryArguments, folder: &Path) -> Result<Self, Failure> {
        let mut up = Command::new(sibling("baton-testnet")?);
        let nodes = arguments.nodes.to_string();
        up.args(["up", "--json", "--while-stdin-open", "--nodes", &nodes, "--model", &arguments.model]);
        up.arg("--data-dir")
            .arg(folder.join("network"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // Ctrl-C is for the chat alone.
        #[cfg(unix)]
        up.process_group(0);
        let mut process = up.kill_on_drop(true).spawn()?;
        let failed =
            || Failure::usage("The private network did not start.", "see why: baton-testnet up --nodes 2");
        let output = process.stdout.take().ok_or_else(failed)?;
        let input = process.stdin.take();
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if let Ok(ready) = serde_json::from_str::<Ready>(&line) {
                    return Ok::<_, std::io::Error>(Some(ready));
                }
            }
            Ok(None)
        };
        let started = tokio::select! {
            ready = tokio::time::timeout(START_WAIT, ready) => match ready {
                Ok(ready) => ready.map_err(Failure::from).and_then(|ready| ready.ok_or_else(failed)),
                Err(_) => Err(failed()),
            },
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        };
        match started {
            Ok(ready) => Ok(Self { process, input, ready }),
            Err(failure) => {
                stop(process, input).await;
                Err(failure)
            }
        }
    }

    async fn stop(self) {
        stop(self.process, self.input).await;
    }
}

/// Ends a network, and waits until its nodes have ended.
async fn stop(mut process: Child, input: Option<ChildStdin>) {
    drop(input);
    if tokio::time::timeout(STOP_WAIT, process.wait()).await.is_err() {
        // Dropping it kills it.
        tracing::warn!("the private network did not stop by itself");
    }
}

/// A program of Baton: beside this one, or on the path.
fn sibling(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let beside = own.parent().map(|folder| folder.join(name)).filter(|path| path.is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    beside.or_else(on_path).ok_or_else(|| {
        Failure::usage(
            format!("{name} is not installed, and a private network needs it."),
            "install all programs of Baton together: README.md says how",
        )
    })
}
