//! `baton try`: a chat on a private network of this machine, which is removed at the end.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use baton_kit::progress;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, Command},
};

use crate::{
    args::{self, Arguments, ChatArguments, DEFAULT_MODEL, TryArguments},
    failure::Failure,
    options::ClientOptions,
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
    /// The settings file of a client of the network.
    config: PathBuf,
}

/// A running network; it ends when its standard input closes.
struct PrivateNetwork {
    process: Child,
    input: Option<ChildStdin>,
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
    let mut network = PrivateNetwork::start(arguments, folder.path())?;
    let ready = network.ready().await;
    spinner.finish_and_clear();
    let talked = match ready {
        Ok(ready) => {
            let about_model = match arguments.model.as_str() {
                DEFAULT_MODEL => "The model is small: it shows how Baton works, and often errs. ",
                _ => "",
            };
            out.note(&format!(
                "Ready after {:.1} s. {about_model}All is removed when you leave.",
                began.elapsed().as_secs_f64()
            ));
            let chat = ChatArguments { text: arguments.text.clone(), ..ChatArguments::default() };
            Box::pin(talk(ready.config, is_plain, chat, environment, out)).await
        }
        Err(failure) => Err(failure),
    };
    network.stop().await;
    out.note("The private network is removed.");
    talked
}

/// Fetches the model with the node's own progress bar, unless it is here.
async fn fetch_model(model: &str) -> Result<(), Failure> {
    let mut pull = start("baton-node", |pull| {
        pull.args(["models", "pull", model]).stdin(Stdio::null()).stdout(Stdio::null())
    })?;
    if pull.wait().await?.success() {
        return Ok(());
    }
    Err(Failure::usage(
        "The model could not be fetched.",
        "the node's message above names the cause; a model file that you have: baton-node models add FILE.gguf --name NAME, then baton try --model NAME",
    ))
}

/// Chats with the settings of this file alone: those of the environment are for other networks.
async fn talk(
    config: PathBuf,
    is_plain: bool,
    chat: ChatArguments,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let arguments = Arguments {
        command: Some(args::Command::Chat(chat.clone())),
        options: ClientOptions { plain: Some(is_plain), ..ClientOptions::default() },
        config: Some(config),
        passphrase_file: None,
        json: out.json(),
        clock_offset: None,
    };
    let settings = Settings::gather(&arguments, environment)?;
    Box::pin(views::run(&settings, chat, &out.clone().with_command(None))).await
}

impl PrivateNetwork {
    fn start(arguments: &TryArguments, folder: &Path) -> Result<Self, Failure> {
        let nodes = arguments.nodes.to_string();
        let mut process = start("baton-testnet", |up| {
            up.args(["up", "--json", "--while-stdin-open", "--nodes", &nodes, "--model", &arguments.model]);
            up.arg("--data-dir").arg(folder);
            // Ctrl-C is for the chat alone.
            #[cfg(unix)]
            up.process_group(0);
            up.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null())
        })?;
        Ok(Self { input: process.stdin.take(), process })
    }

    /// Waits until the network is ready.
    async fn ready(&mut self) -> Result<Ready, Failure> {
        let failed =
            || Failure::usage("The private network did not start.", "see why: baton-testnet up --nodes 2");
        let output = self.process.stdout.take().ok_or_else(failed)?;
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if let Ok(ready) = serde_json::from_str::<Ready>(&line) {
                    return Ok(ready);
                }
            }
            Err(failed())
        };
        tokio::select! {
            ready = tokio::time::timeout(START_WAIT, ready) => ready.unwrap_or_else(|_| Err(failed())),
            _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted),
        }
    }

    /// Ends the network, and waits until its nodes have ended.
    async fn stop(mut self) {
        drop(self.input);
        if tokio::time::timeout(STOP_WAIT, self.process.wait()).await.is_err() {
            // Dropping it kills it.
            tracing::warn!("the private network did not stop by itself");
        }
    }
}

/// Starts a program of Baton: beside this one, or on the path.
fn start(name: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) -> Result<Child, Failure> {
    let beside = std::env::current_exe()?.with_file_name(name);
    let mut program = if beside.is_file() { Command::new(beside) } else { Command::new(name) };
    prepare(program.kill_on_drop(true)).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::usage(
            format!("{name} is not installed, and a private network needs it."),
            "install all programs of Baton together: README.md says how",
        ),
        _ => error.into(),
    })
}
