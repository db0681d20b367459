//! `baton-relayer doctor`: checks everything that a relayer needs, and reports problems with their fixes.
//!
//! Some facts come from the running relayer; `doctor` checks the rest itself. It changes nothing. Each subject
//! is a module that first looks and then judges; `codes` lists all problems.

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
    cli::DoctorArgs,
    config::{CONFIG_FILE, Options, Settings},
    data_folder::own_key,
    output::println,
    running::{self, RelayerAnswer, RunningRelayer},
    setup,
    time::now_ms,
};
use anyhow::bail;
use baton_kit::{
    doctor::{Check, Report},
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
    offline: bool,
    now_ms: u64,
}

/// Checks, and prints the findings.
///
/// # Errors
/// If there is a problem.
pub(crate) async fn run(folder: &Path, config: Option<&Path>, args: DoctorArgs) -> anyhow::Result<()> {
    let mut config_check = check_config(folder, config, &args);
    let settings = Settings::load(folder, config, args.options.clone());
    if let Err(error) = &settings
        && config_check.findings.is_empty()
    {
        config_check.found(codes::CONFIG_BROKEN, error.to_string());
    }
    let mut checks = vec![config_check];
    if let Ok(settings) = settings {
        let subject = Subject::look(settings, args.options, args.offline).await;
        subject.check(&mut checks).await;
    }
    let report = Report::new(checks);
    match args.json {
        true => println(&serde_json::json!(report).to_string()),
        false => println(&report.describe(Style::stdout())),
    }
    match report.problems {
        0 => Ok(()),
        1 => bail!("there is 1 problem; its fix is above"),
        count => bail!("there are {count} problems; their fixes are above"),
    }
}

fn check_config(folder: &Path, config: Option<&Path>, args: &DoctorArgs) -> Check {
    let mut check = Check::new("config");
    let path = config.map_or_else(|| folder.join(CONFIG_FILE), Path::to_owned);
    match path.exists() {
        true => check.saw(path.display().to_string()),
        false => check.saw(format!("the defaults: there is no {}", path.display())),
    }
    for problem in Settings::examine(folder, config, args.options.clone()) {
        check.found(codes::CONFIG_BROKEN, problem.to_string());
    }
    check
}

impl Subject {
    /// Finds out whether the relayer runs. Its options count, except for those that `doctor` has itself.
    async fn look(mut settings: Settings, flags: Options, offline: bool) -> Self {
        let answer = running::ask(&settings.data_dir, settings.http).await;
        if let RelayerAnswer::Relayer(relayer) = &answer
            && let Some(options) = relayer.options.clone()
            && let Ok(in_force) = Settings::resolve(&settings.data_dir, flags.or(options))
        {
            settings = in_force;
        }
        let own_key = own_key(&settings.data_dir).map(|key| key.to_string());
        let database = setup::embedded_config(&settings);
        let in_use = settings.postgres_url_file.is_none() && EmbeddedStorage::is_in_use(&database);
        Self { settings, answer, own_key, in_use, offline, now_ms: now_ms() }
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
        let (embedder, model) = models::check(self).await;
        checks.extend([embedder, model]);
        let (store, clock) = stores::check(self).await;
        checks.push(store);
        checks.push(ports::check(self));
        checks.push(nodes::check(self).await);
        checks.push(clock);
    }
}

/// A subject for tests of the judging: the default settings in a folder that does not exist.
#[cfg(test)]
fn subject(text: &str, answer: RelayerAnswer) -> Subject {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(CONFIG_FILE), text).expect("a file in it");
    let settings = Settings::load(folder.path(), None, Options::default()).expect("valid settings");
    Subject { settings, answer, own_key: None, in_use: false, offline: true, now_ms: 1_800_000_000_000 }
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
