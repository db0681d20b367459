//! The program: dispatches commands, and sets log, crash policy and runtime.
//!
//! `main.rs` only calls [`main`], with the allocator that this policy needs.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use baton_kit::{
    crash::{self, Panic, PanicEnd},
    log,
    output::{self, print_line},
};

use crate::{
    backups,
    cli::{Cli, Command, ModelsCommand, OwnersCommand},
    commands,
    config::{CONFIG_FILE, Options, Settings},
    data_folder::{self, init, write_template},
    doctor, models, serve, stacks,
};

/// Idle time of a thread for blocking work. It wipes its stack as it ends.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_millis(250);

/// Runs the command line of `baton-relayer`.
///
/// The process should have an allocator that wipes memory as it is freed, since memory may contain a session's key.
pub fn main() -> ExitCode {
    let cli = Cli::read();
    start_log(&cli.log);
    crash::forbid_memory_dumps();
    end_on_panic();
    match command(cli).and_then(|()| Ok(output::check()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut stderr = std::io::stderr();
            let text = output::error_chain(error.chain());
            let _ = std::io::Write::write_fmt(&mut stderr, format_args!("error: {text}\n"));
            ExitCode::FAILURE
        }
    }
}

fn command(cli: Cli) -> anyhow::Result<()> {
    let folder = cli.data_dir.unwrap_or_else(data_folder::default_folder);
    let settings = |options: Options| Settings::load(&folder, options);
    match cli.command {
        Command::Init => {
            let key = init(&folder)?;
            write_template(&folder)?;
            print_line(format!("relayer key {}", key.public_key()));
            print_line(format!("data in {}, configuration in {CONFIG_FILE} there", folder.display()));
            print_line("next: baton-relayer models pull potion-base-8m, then baton-relayer run");
            Ok(())
        }
        Command::Run(args) => {
            let settings = settings(args.options)?;
            let key = init(&folder)?;
            block_on(serve::run(settings, key, args.json))
        }
        Command::Doctor(args) => block_on(doctor::run(&folder, args)),
        Command::Invite(args) => commands::invite(&args, &init(&folder)?),
        Command::Backup { path, options } => backups::back_up(&settings(options)?, &path),
        Command::Restore { path, with_keys, options } => {
            backups::restore(&settings(options)?, &path, with_keys)
        }
        Command::Owners(OwnersCommand::List { options }) => {
            block_on(commands::list_owners(&settings(options)?))
        }
        Command::Owners(OwnersCommand::AcceptLoss { account, yes, options }) => {
            block_on(commands::accept_loss(&settings(options)?, account.as_deref(), yes))
        }
        Command::Owners(OwnersCommand::Erase { account, yes, options }) => {
            block_on(commands::erase_owner(&settings(options)?, &account, yes))
        }
        Command::Models(ModelsCommand::Pull { name, options }) => models::pull(&settings(options)?, &name),
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_park(stacks::wipe_if_used)
        .on_thread_stop(stacks::wipe_if_used)
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .build();
    runtime.context("cannot start the async runtime")?.block_on(work)
}

/// Makes a panic end the process, and logs its location but never its text, which may quote a memory.
fn end_on_panic() {
    crash::end_on_panic(|Panic { place, .. }| {
        tracing::error!(place, "panic: this is a fault in the program; please report it");
        PanicEnd::Exit
    });
}

fn start_log(level: &str) {
    // Its logs of a refused request may quote arguments, which are memories.
    let no_arguments = "rmcp=off".parse().expect("the directive has the form of one");
    log::start(
        log::filter(&with_quiet_network(level), &with_quiet_network("info")).add_directive(no_arguments),
    );
}

/// The user's filter, with errors alone of the network library at the levels for operators.
///
/// At `info`, each start would print the library's states, such as a bootstrap without a known peer. `debug`,
/// `trace` and a filter with targets ask for details, and stay as they are.
fn with_quiet_network(level: &str) -> String {
    match level.trim().to_ascii_lowercase().as_str() {
        level @ ("info" | "warn") => format!("{level},libp2p=error"),
        _ => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_library_is_quiet_unless_the_user_asks() {
        for (level, filter) in [
            ("info", "info,libp2p=error"),
            ("WARN", "warn,libp2p=error"),
            ("off", "off"),
            ("debug", "debug"),
            ("info,libp2p_kad=warn", "info,libp2p_kad=warn"),
        ] {
            assert_eq!(with_quiet_network(level), filter);
        }
    }
}
