//! `baton-relayer doctor`: checks everything that a relayer needs, and reports problems with their fixes.
//!
//! Some facts come from the running relayer; `doctor` checks the rest itself. It changes nothing. Each subject
//! is a module; `codes` lists all problems.

mod codes;
mod database;
mod files;
mod models;
mod nodes;
mod ports;
mod relayer;
mod stores;

use std::path::Path;

use crate::{
    cli::RunArgs,
    config::{CONFIG_FILE, Options, Settings},
    data_folder::own_key,
    running::{self, RelayerAnswer, RunningRelayer},
    setup,
};
use anyhow::bail;
use baton_kit::{
    doctor::{Check, Report},
    output::print_line,
    terminal::Style,
};
use baton_memory::storage::embedded::EmbeddedStorage;

/// The subject of the checks.
struct Subject {
    settings: Settings,
    /// The answer at the settings' HTTP address.
    answer: RelayerAnswer,
    /// The public key in the data folder, if it can be read.
    own_key: Option<String>,
    /// Another process has the embedded database open.
    in_use: bool,
}

/// Checks, and prints the findings.
///
/// # Errors
/// If there is a problem.
pub(crate) async fn run(folder: &Path, args: RunArgs) -> anyhow::Result<()> {
    let mut config = Check::new("config");
    let path = folder.join(CONFIG_FILE);
    match path.exists() {
        true => config.saw(path.display().to_string()),
        false => config.saw(format!("the defaults: there is no {}", path.display())),
    }
    for problem in Settings::examine(folder, args.options.clone()) {
        config.found(codes::CONFIG_BROKEN, problem.to_string());
    }
    let mut checks = vec![config];
    if let Ok(settings) = Settings::load(folder, args.options.clone()) {
        Subject::look(settings, args.options).await.check(&mut checks).await;
    }
    let report = Report::new(checks);
    match args.json {
        true => print_line(serde_json::json!(report).to_string()),
        false => print_line(report.describe(Style::stdout())),
    }
    match report.problems {
        0 => Ok(()),
        1 => bail!("there is 1 problem; its fix is above"),
        count => bail!("there are {count} problems; their fixes are above"),
    }
}

impl Subject {
    /// Finds out whether the relayer runs. Its options count, except for those that `doctor` has itself.
    async fn look(mut settings: Settings, flags: Options) -> Self {
        let answer = running::ask(&settings).await;
        if let RelayerAnswer::Relayer(relayer) = &answer
            && let Some(options) = relayer.options.clone()
            && let Ok(in_force) = Settings::resolve(&settings.data_dir, flags.or(options))
        {
            settings = in_force;
        }
        let own_key = own_key(&settings.data_dir).map(|key| key.to_string());
        let is_embedded = settings.options.postgres_url_file.is_none();
        let in_use = is_embedded && EmbeddedStorage::is_in_use(&setup::embedded_config(&settings));
        Self { settings, answer, own_key, in_use }
    }

    /// The running relayer, if it is this one.
    fn running(&self) -> Option<&RunningRelayer> {
        match &self.answer {
            RelayerAnswer::Relayer(relayer)
                if self.own_key.as_ref().is_none_or(|own| *own == relayer.identity.relayer) =>
            {
                Some(relayer)
            }
            _ => None,
        }
    }

    async fn check(&self, checks: &mut Vec<Check>) {
        checks.push(relayer::check(self));
        checks.push(files::check(self));
        checks.push(database::check(self).await);
        checks.push(models::check_embedder(self).await);
        checks.push(models::check_model(self).await);
        let (store, clock) = stores::check(self).await;
        checks.push(store);
        checks.push(ports::check(self));
        checks.push(nodes::check(self).await);
        checks.push(clock);
    }
}

/// A subject for tests: these settings in a folder that does not exist.
#[cfg(test)]
fn subject(text: &str, answer: RelayerAnswer) -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(CONFIG_FILE), text).expect("a file in it");
    let settings = Settings::load(folder.path(), Options::default()).expect("valid settings");
    Subject { settings, answer, own_key: None, in_use: false }
}

/// The answer of no relayer, for tests.
#[cfg(test)]
fn silent() -> RelayerAnswer {
    RelayerAnswer::Silent(String::new())
}

/// A ready relayer for tests.
#[cfg(test)]
pub(crate) fn running_relayer(addresses: &[&str]) -> RunningRelayer {
    use crate::http::{MemoryFacts, PeerCounts, RelayerIdentity};
    RunningRelayer {
        url: "http://127.0.0.1:8000".to_owned(),
        identity: RelayerIdentity {
            relayer: "ab".repeat(32),
            url: None,
            url_signature: None,
            peer_id: "P".to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: 61,
            peers: PeerCounts { connected: 1, known: 2 },
            memory: MemoryFacts {
                storage: "embedded".to_owned(),
                embedder: "hashing-384".to_owned(),
                judge: "rules".to_owned(),
                contents: "local".to_owned(),
            },
            conversations: false,
        },
        degraded: None,
        not_ready: None,
        warning: None,
        options: None,
    }
}
