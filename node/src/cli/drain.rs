//! `baton-node drain`: stops new turns while admitted ones finish.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use clap::Args;

use super::{
    Exit, Failure, NodeArgs,
    ask::{Admin, admin_address, block_on, token},
    say,
    status::as_json,
};
use crate::{
    admin::{Status, control},
    config::Settings,
};

/// Interval between status requests.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Consecutive answers without a turn before the node counts as drained: a turn may just have been admitted.
const QUIET_ANSWERS: u32 = 2;

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(super) struct DrainArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Wait until no turn is running
    #[arg(long, conflicts_with = "cancel")]
    wait: bool,
    /// With --wait: give up after this many seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u32>,
    /// Accept new turns again
    #[arg(long)]
    cancel: bool,
}

pub(super) fn run(args: DrainArgs) -> Result<(), Failure> {
    let settings = Settings::load(args.node.clone().flags()?)?;
    let admin = Admin::at(admin_address(&settings, args.node.admin.is_some())?)?;
    let path = if args.cancel { control::CANCEL_DRAIN } else { control::DRAIN };
    block_on(async {
        // A missing node is reported before a missing token.
        admin.status().await?;
        let mut status = admin.change(path, &token(&settings.data_dir())?).await?;
        if args.wait {
            status = wait(&admin, status, args.timeout).await?;
        }
        if args.node.places.json {
            say(as_json(&status));
        } else {
            say(describe(&status));
        }
        Ok(())
    })
}

fn describe(status: &Status) -> String {
    match status.drain {
        None => "new turns are taken".to_owned(),
        Some(drain) if drain.turns == 0 => {
            "drained: no turn is left, and new ones are refused. Stop the node, or take \
             turns again with `baton-node drain --cancel`."
                .to_owned()
        }
        Some(drain) => format!("draining: new turns are refused, {} are still being finished", drain.turns),
    }
}

async fn wait(admin: &Admin, mut status: Status, timeout: Option<u32>) -> Result<Status, Failure> {
    let begin = Instant::now();
    let (mut told, mut quiet) = (None, 0);
    loop {
        let Some(drain) = status.drain else {
            return Err(Failure::text(Exit::Failure, "somebody cancelled the drain: new turns are taken"));
        };
        quiet = if drain.turns == 0 { quiet + 1 } else { 0 };
        if quiet >= QUIET_ANSWERS {
            return Ok(status);
        }
        if timeout.is_some_and(|seconds| begin.elapsed() > Duration::from_secs(seconds.into())) {
            let text = format!(
                "{} turns are still being finished after {} s; the node goes on draining",
                drain.turns,
                begin.elapsed().as_secs()
            );
            return Err(Failure::text(Exit::Failure, text));
        }
        if drain.turns > 0 && told != Some(drain.turns) {
            told = Some(drain.turns);
            let _ = writeln!(io::stderr(), "waiting for {} turns to finish", drain.turns);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        status = admin.status().await?;
    }
}
