//! `baton-node doctor`: checks everything that a node needs, and reports problems with their fixes.
//!
//! Some facts come from the running node, such as its options; `doctor` checks the rest itself. It changes
//! nothing, except permissions with `--fix`. Each subject is a module; `codes` lists all problems.

mod codes;
mod keys;
mod machine;
mod model;
mod network;
mod peers;
mod ports;
mod store;

use baton_kit::{
    doctor::{Check, Report},
    output::span,
};
use clap::{ArgMatches, Args};

use super::{
    Exit, Failure, RunLike, Style,
    ask::{Admin, AskError, admin_address},
    say, say_result,
    time::now_ms,
};
use crate::{
    admin::Status,
    config::{AdminSetting, RunFlags, Settings, config_path, parse_running, read_config_text},
    daemon::data_dir::DataDir,
    identity::load_node_key,
};

pub(super) const AFTER_HELP: &str = "\
It asks the running node, where there is one, also for its options, and looks at the rest itself. Takes every option of `run`
as well, which count before those of the running node. docs/OPERATING.md lists every code.

Exit code 0 when there is no problem (warnings may be), 1 when there is one.

Examples:
  baton-node doctor
  baton-node doctor --fix
  baton-node doctor --json | jq '.checks[].findings[]'";

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    run: RunLike,
    /// Fix problems that can be fixed without loss: permissions of folders and key files
    #[arg(long)]
    fix: bool,
    /// Do not dial, query or resolve anything outside this machine
    #[arg(long)]
    offline: bool,
}

/// The subject of the checks.
struct Subject {
    settings: Settings,
    /// Status of the running node, if it is this one.
    running: Option<Status>,
    /// Options that the running node has and the configuration has not.
    differences: Vec<&'static str>,
    /// Another process uses the data directory.
    in_use: bool,
    /// Another program answers at the admin address.
    other_program: Option<String>,
    fix: bool,
    offline: bool,
    now_ms: u64,
}

pub(super) fn run(args: DoctorArgs, matches: &ArgMatches) -> Result<(), Failure> {
    let (flags, _, json) = args.run.given(matches)?;
    let report = check_all(flags, args.fix, args.offline)?;
    say_result(json, serde_json::json!(report), report.describe(Style::stdout()));
    match report.problems {
        0 => Ok(()),
        1 => Err(Failure::text(Exit::Failure, "there is 1 problem")),
        count => Err(Failure::text(Exit::Failure, format!("there are {count} problems"))),
    }
}

/// Checks everything, prints it, and returns the number of problems.
pub(super) fn check_and_print(flags: RunFlags, style: Style) -> Result<usize, Failure> {
    let report = check_all(flags, false, false)?;
    say(report.describe(style));
    Ok(report.problems)
}

fn check_all(flags: RunFlags, fix: bool, offline: bool) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut config = Check::new("config");
    let (path, named) = config_path(&flags);
    let settings = match read_config_text(&path, named) {
        Ok(text) => {
            match text {
                Some(_) => config.saw(path.display().to_string()),
                None => config.saw(format!("the defaults: there is no {}", path.display())),
            }
            let settings = Settings::load(flags.clone());
            if settings.is_err() {
                // Environment and flags may override some problems, but the first one remains.
                for problem in Settings::examine(&path, &text.unwrap_or_default()) {
                    config.found(codes::CONFIG_BROKEN, problem.to_string());
                }
            }
            settings
        }
        Err(error) => Err(error),
    };
    let mut checks = vec![config];
    match settings {
        Ok(settings) => {
            let subject = runtime.block_on(Subject::look(settings, flags, fix, offline))?;
            let checked = runtime.block_on(Box::pin(subject.check(&mut checks)));
            checked?;
        }
        Err(error) => {
            if checks.iter().all(|check| check.findings.is_empty())
                && let Some(config) = checks.first_mut()
            {
                config.found(codes::CONFIG_BROKEN, error.to_string());
            }
        }
    }
    runtime.shutdown_background();
    Ok(Report::new(checks))
}

impl Subject {
    /// Finds out whether the node runs, and with which options. Those in `flags` count before them.
    async fn look(
        mut settings: Settings,
        flags: RunFlags,
        fix: bool,
        offline: bool,
    ) -> Result<Self, Failure> {
        let own = load_node_key(&settings.data_dir()).ok().map(|key| key.node_id().to_string());
        let (mut running, mut other_program, mut differences) = (None, None, Vec::new());
        // A switched off admin port is not a problem.
        if let Ok(address) = admin_address(&settings, flags.admin.is_some()) {
            let admin = Admin::at(address)?;
            match admin.status().await {
                Ok(status) if own.as_ref().is_none_or(|own| *own == status.node) => {
                    running = Some(status);
                    // Only the process that holds the data directory may name files and servers: doctor sends
                    // tokens from those files to those servers.
                    if DataDir::running_admin(&settings.data_dir()) == Some(address)
                        && let Ok(text) = admin.settings().await
                        && let Ok(in_force) = Settings::load(flags.or(parse_running(&text)))
                    {
                        differences = in_force.differences(&settings);
                        settings = in_force;
                    }
                    settings.options.admin = Some(AdminSetting::At(address));
                }
                Ok(status) => other_program = Some(format!("the node {}", status.node)),
                Err(error @ AskError::OtherProgram(_)) => other_program = Some(error.to_string()),
                Err(AskError::Silent { .. }) => {}
            }
        }
        let in_use = DataDir::is_in_use(&settings.data_dir());
        Ok(Self { settings, running, differences, in_use, other_program, fix, offline, now_ms: now_ms() })
    }

    async fn check(&self, checks: &mut Vec<Check>) -> Result<(), Failure> {
        checks.push(self.check_node());
        checks.push(keys::check(self));
        checks.push(machine::check_disk(self));
        checks.push(model::check(self).await?);
        checks.push(ports::check(self));
        let (store, dates) = store::check(self).await;
        let (peers, records) = peers::check(self).await;
        checks.push(machine::check_clock(self, &dates, &records));
        checks.push(store);
        checks.push(network::check(self));
        checks.push(peers);
        Ok(())
    }

    fn check_node(&self) -> Check {
        let Some(status) = &self.running else {
            let mut check = Check::skipped("node", "no node runs here");
            if self.in_use && self.settings.admin() != AdminSetting::Off {
                let folder = self.settings.data_dir();
                check = Check::new("node");
                check.found(codes::ADMIN_SILENT, format!("{} is in use", folder.display()));
            }
            return check;
        };
        let mut check = Check::new("node");
        let node = status.node.get(..16).unwrap_or(&status.node);
        check.saw(format!("{node}... runs, up {}", span(status.uptime_seconds)));
        if !self.differences.is_empty() {
            check.saw(format!(
                "its own options count here: {} (by flags or environment at its start, or the file changed since)",
                self.differences.join(", ")
            ));
        }
        if !status.ready {
            check.found(codes::NOT_READY, status.not_ready.join("; "));
        }
        if status.version != env!("CARGO_PKG_VERSION") {
            let here = env!("CARGO_PKG_VERSION");
            check.found(codes::OTHER_VERSION, format!("{} runs, this is {here}", status.version));
        }
        check
    }
}
