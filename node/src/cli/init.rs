//! `baton-node init`.

mod questions;
mod store;

use std::{
    io::{self, IsTerminal as _},
    path::{PathBuf, absolute},
};

use baton_kit::{
    config::{Origin, Origins, Value},
    output::shell_word,
};

use super::{Exit, Failure, InitArgs, Style, doctor, say};
use crate::{
    config::{CONFIG_FILE, RunFlags, Settings, default_data_dir},
    daemon::data_dir::{self, PrepareReport},
    identity::{NODE_KEY_FILE, load_node_key, peer_id},
};
pub(super) use store::StoreChoice;
use store::StoreRequest;

pub(super) const AFTER_HELP: &str = "\
Without a store, `init` asks for one at a terminal, and else names the ways to set it; a later `init --store` sets it in
a configuration without lines of your own. A preset sets the shards and the head index of
its network. Neither of Walrus's networks has a publisher built in: name yours, since it pays for the blobs. With a store,
`init` ends with the checks of `baton-node doctor`.

Example:
  baton-node init --data-dir /var/lib/baton-node
  baton-node init --store walrus-testnet --publisher https://publisher.example --aggregator https://aggregator.example
  baton-node init --store https://store.example
  baton-node init --store embedded";

/// The result of `init`.
struct InitReport {
    folder: PathBuf,
    config: PathBuf,
    made: PrepareReport,
    /// The lines of the store, written unless the operator changed the configuration.
    lines: Vec<(&'static str, Value)>,
}

pub(super) fn run(args: InitArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let storage = |error: io::Error| Failure::new(Exit::Storage, error);
    let folder = absolute(&folder).map_err(storage)?;
    let config = args.places.config.unwrap_or_else(|| folder.join(CONFIG_FILE));
    let mut request = StoreRequest {
        store: args.store,
        publishers: args.publisher,
        aggregators: args.aggregator,
        token_file: args.publisher_token_file.map(absolute).transpose().map_err(storage)?,
        secret_file: args.publisher_secret_file.map(absolute).transpose().map_err(storage)?,
    };
    let is_interactive = io::stdin().is_terminal() && io::stdout().is_terminal() && !json;
    let is_open = !config.exists() || data_dir::is_untouched(&folder, &config);
    if is_interactive && !request.is_given() && is_open {
        request = questions::ask_store(&mut io::stdin().lock(), &mut io::stdout())?;
        say("");
    }
    let lines = request.lines().map_err(|problem| Failure::text(Exit::Usage, problem))?;
    let made = data_dir::prepare(&folder, Some(&config), &lines)?;
    let key = load_node_key(&folder)?;
    let (node, peer) = (key.node_id().to_string(), peer_id(key.node_id()).to_string());
    let report = InitReport { folder, config, made, lines };
    if json {
        say(serde_json::json!({
            "data_dir": report.folder, "config": report.config, "node": node, "peer_id": peer,
            "created": { "data_dir": made.folder, "key": made.key, "config": made.config },
            "store": report.has_store(),
        }));
        return Ok(());
    }
    let style = Style::stdout();
    say(report.describe(&node, &peer, style));
    if let Some(note) = request.store.as_ref().and_then(StoreChoice::note) {
        say(format!("\n{note}"));
    }
    report.check_and_end(style)
}

impl InitReport {
    fn flags(&self) -> RunFlags {
        RunFlags {
            data_dir: Some(self.folder.clone()),
            config: Some(self.config.clone()),
            ..RunFlags::default()
        }
    }

    /// A command with this folder and file.
    fn command(&self, name: &str) -> String {
        let mut command = format!("baton-node {name}");
        if self.folder != default_data_dir() {
            command.push_str(&format!(" --data-dir {}", shell_word(&self.folder)));
        }
        if self.config != self.folder.join(CONFIG_FILE) {
            command.push_str(&format!(" --config {}", shell_word(&self.config)));
        }
        command
    }

    /// The commands that name a store, one a line.
    fn store_commands(&self) -> String {
        let init = self.command("init");
        let stores = [
            "walrus-testnet --publisher URL --aggregator URL",
            "walrus-mainnet --publisher URL --aggregator URL",
            "https://store.example",
            "embedded    (`baton-testnet store` on this machine)",
        ];
        stores.map(|store| format!("  {init} --store {store}")).join("\n")
    }

    /// Whether the configuration names a store.
    fn has_store(&self) -> bool {
        let loaded = Settings::load_with_origins(self.flags(), Origins::default());
        // A file with errors is reported by `run` and `config`.
        loaded.is_ok_and(|(_, origins)| origins.of("publisher") != Origin::Default)
    }

    fn describe(&self, node: &str, peer: &str, style: Style) -> String {
        let state = |created: bool| if created { style.good("created") } else { "kept as it was".to_owned() };
        let mut text = format!(
            "Data directory  {}  {}\n\
             Node key        {}  {}\n\
             Configuration   {}  {}\n\
             Node            {node}\n\
             Peer            {peer}\n",
            self.folder.display(),
            state(self.made.folder),
            self.folder.join(NODE_KEY_FILE).display(),
            state(self.made.key),
            self.config.display(),
            state(self.made.config),
        );
        for (key, value) in &self.lines {
            // To be copied, if the file was not written.
            let line =
                if self.made.config { format!("{key:15} {value}\n") } else { format!("{key} = {value}\n") };
            text.push_str(&line);
        }
        text.push_str("\nThe node key is the node's identity: keep it, and keep it to yourself.");
        if !self.made.config && !self.lines.is_empty() {
            text.push_str(&format!(
                "\n{} the configuration has lines of yours and was not changed: set the lines above in {} yourself.",
                style.bad("note:"),
                self.config.display()
            ));
        }
        if let Some(mode) = self.made.open_mode {
            text.push_str(&format!(
                "\n{} others on this machine can look into {} (mode {mode:o}): run chmod 700 on it.",
                style.bad("note:"),
                self.folder.display()
            ));
        }
        text
    }

    /// Runs `doctor` if there is a store, and names the next command.
    fn check_and_end(&self, style: Style) -> Result<(), Failure> {
        let mut before = "Next: look at the configuration, then start the node with".to_owned();
        if !self.has_store() {
            say(format!(
                "\n{} no store is set, so the node cannot store its answers yet. Name one now or later:\n\n{}",
                style.bad("note:"),
                self.store_commands()
            ));
        } else if !self.lines.is_empty() && self.made.config {
            say(format!("\n{}", style.strong("baton-node doctor")));
            before = match doctor::check_and_print(self.flags(), style)? {
                0 => "Next: start the node with".to_owned(),
                1 => "Next: fix the problem above, then start the node with".to_owned(),
                count => format!("Next: fix the {count} problems above, then start the node with"),
            };
        }
        say(format!("\n{before}\n\n  {}", style.strong(&self.command("run"))));
        Ok(())
    }
}
