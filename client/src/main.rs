//! The `baton` command: talk to language models over nodes that keep nothing.

mod cli;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = cli::args::Arguments::parse_from(cli::blob::args::with_ids_named(std::env::args_os()));
    let environment = cli::settings::Environment::read();
    let out = cli::out::Out::new(arguments.json, environment.no_color);
    start_logging(environment.log.as_deref());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            out.problem(&format!("the runtime cannot be started: {error}"), None);
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(Box::pin(cli::run(arguments, &environment, &out))) {
        Ok(()) => 0,
        Err(failure) => failure.report(&out),
    };
    // A prompt that still waits for a line must not hold up the end.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Warnings to the standard error only where asked for: a person at a prompt sees what concerns them anyway.
fn start_logging(filter: Option<&str>) {
    let filter = tracing_subscriber::EnvFilter::try_new(filter.unwrap_or("off"))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
