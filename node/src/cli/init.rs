//! `baton-node init`.

use std::{
    io,
    path::{Path, PathBuf, absolute},
};

use baton_kit::{
    config::{Origin, Origins, REDACTED, Value, shown},
    output::shell_word,
};
use clap::ArgMatches;

use super::{Exit, Failure, RunLike, Style, doctor, say};
use crate::{
    config::{CONFIG_FILE, RunFlags, Settings, default_data_dir},
    daemon::data_dir::{self, PrepareReport},
    identity::{NODE_KEY_FILE, load_node_key, peer_id},
};

pub(super) const AFTER_HELP: &str = "\
Takes every option of `run`, and writes those of the command line into a configuration without lines of your own.
No publisher is built in: name yours, since it pays for the blobs. Walrus has no head index: set --heads none.
With options, `init` ends with the checks of `baton-node doctor`.

Examples:
  baton-node init --data-dir /var/lib/baton-node
  baton-node init --publisher https://publisher.example --aggregator https://aggregator.example --heads none
  baton-node init --publisher http://127.0.0.1:31415";

/// The result of `init`.
struct InitReport {
    folder: PathBuf,
    config: PathBuf,
    made: PrepareReport,
    /// The lines of the given options, written unless the operator changed the configuration.
    lines: Vec<(&'static str, Value)>,
    /// The command that starts the node.
    next: String,
}

pub(super) fn run(args: RunLike, matches: &ArgMatches) -> Result<(), Failure> {
    let (mut flags, origins, json) = args.given(matches)?;
    let storage = |error: io::Error| Failure::new(Exit::Storage, error);
    let folder = absolute(flags.data_dir.take().unwrap_or_else(default_data_dir)).map_err(storage)?;
    let elsewhere = flags.config.is_some();
    let config = flags.config.take().unwrap_or_else(|| folder.join(CONFIG_FILE));
    for path in flags.paths().into_iter().flatten() {
        *path = absolute(&*path).map_err(storage)?;
    }
    let lines = lines(&flags, &origins)?;
    let made = data_dir::prepare(&folder, Some(&config), &lines);
    let made = made.map_err(data_dir::DataDirError::into_failure)?;
    let key = load_node_key(&folder).map_err(|error| Failure::new(Exit::Storage, error))?;
    let (node, peer) = (key.node_id().to_string(), peer_id(key.node_id()).to_string());
    let next = next_command(&folder, elsewhere.then_some(config.as_path()));
    let report = InitReport { folder, config, made, lines, next };
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
    report.check_and_end(style)
}

/// The options of the command line, as lines of the configuration.
fn lines(flags: &RunFlags, origins: &Origins) -> Result<Vec<(&'static str, Value)>, Failure> {
    Settings::resolve(flags.clone(), RunFlags::default(), None)?;
    let given = shown(flags).into_iter().filter(|option| origins.of(option.key) == Origin::Flag);
    let lines: Vec<_> = given.filter_map(|option| Some((option.key, option.value?))).collect();
    match lines.iter().find(|(_, value)| value.to_string().contains(REDACTED)) {
        Some((key, _)) => {
            let problem = format!("{key} has a URL with a query: write it into the configuration yourself");
            Err(Failure::text(Exit::Usage, problem))
        }
        None => Ok(lines),
    }
}

/// The command that starts the node with this folder and file.
fn next_command(folder: &Path, config: Option<&Path>) -> String {
    match config {
        Some(config) => format!("baton-node run --config {}", shell_word(config)),
        None if folder != default_data_dir() => format!("baton-node run --data-dir {}", shell_word(folder)),
        None => "baton-node run".to_owned(),
    }
}

impl InitReport {
    fn flags(&self) -> RunFlags {
        RunFlags {
            data_dir: Some(self.folder.clone()),
            config: Some(self.config.clone()),
            ..RunFlags::default()
        }
    }

    /// The command that names a store.
    fn store_command(&self) -> String {
        let mut init = "baton-node init".to_owned();
        if self.folder != default_data_dir() {
            init.push_str(&format!(" --data-dir {}", shell_word(&self.folder)));
        }
        if self.config != self.folder.join(CONFIG_FILE) {
            init.push_str(&format!(" --config {}", shell_word(&self.config)));
        }
        format!("{init} --publisher URL")
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
                "\n{} no store is set, so the node cannot store its answers yet. Name one now or later:\n\n  {}",
                style.bad("note:"),
                self.store_command()
            ));
        } else if !self.lines.is_empty() && self.made.config {
            say(format!("\n{}", style.strong("baton-node doctor")));
            before = match doctor::check_and_print(self.flags(), style)? {
                0 => "Next: start the node with".to_owned(),
                1 => "Next: fix the problem above, then start the node with".to_owned(),
                count => format!("Next: fix the {count} problems above, then start the node with"),
            };
        }
        say(format!("\n{before}\n\n  {}", style.strong(&self.next)));
        Ok(())
    }
}
