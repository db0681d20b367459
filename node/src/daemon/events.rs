//! Events of `--json` on standard output, for the program that started the node: one object a line.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use serde::Serialize;

use super::view::ServingNode;
use crate::{
    admin::ModelInfo,
    failure::{Exit, Failure},
    service::{PausePoints, Step},
};

/// One line. Programs read it: fields may be added, never changed.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum ProgramEvent<'a> {
    Ready {
        node: String,
        peer_id: String,
        listen: Vec<String>,
        admin: Option<String>,
        models: &'a [ModelInfo],
    },
    Paused {
        step: &'static str,
    },
    Stopped,
}

/// Prints events, if enabled.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventPrinter {
    enabled: bool,
}

impl EventPrinter {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled }
    }

    fn emit(self, event: &impl Serialize) {
        if self.enabled {
            let line = serde_json::to_string(event).expect("an event has nothing that JSON cannot hold");
            let mut out = io::stdout().lock();
            // The reader may be gone; the node continues to serve.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// The node listens and serves. Whether its store answers, `/readyz` and `status` say.
    pub(super) fn ready(self, running: &ServingNode, admin: Option<SocketAddr>) {
        self.emit(&ProgramEvent::Ready {
            node: running.identity.node_id().to_string(),
            peer_id: running.peer_id.to_string(),
            listen: running.mesh.bootstrap_addrs().iter().map(ToString::to_string).collect(),
            admin: admin.map(|address| address.to_string()),
            models: &running.models,
        });
    }

    /// The node stopped on request.
    pub(super) fn stopped(self) {
        self.emit(&ProgramEvent::Stopped);
    }

    /// Pauses turns at a step, and prints that.
    pub(super) fn pause_at(self, step: Step) -> PausePoints {
        PausePoints::at(step, move |step| self.emit(&ProgramEvent::Paused { step: step_name(step) }))
    }
}

fn step_name(step: Step) -> &'static str {
    match step {
        Step::Accepted => "accepted",
        Step::Fetched => "fetched",
        Step::MidToken => "mid-token",
        Step::Sealed => "sealed",
        Step::Journaled => "journaled",
        Step::ReceiptSent => "receipt-sent",
        Step::PutSent => "put-sent",
        Step::PutDone => "put-done",
    }
}

/// The step with this name; dashes, underscores and capitals do not matter.
pub(super) fn parse_step(text: &str) -> Result<Step, Failure> {
    let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    Step::ALL.into_iter().find(|step| plain(step_name(*step)) == plain(text)).ok_or_else(|| {
        let names = Step::ALL.map(step_name).join(", ");
        Failure::text(Exit::Usage, format!("--pause-at: there is no such step; the steps are {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_by_name_in_any_spelling() {
        for step in Step::ALL {
            assert_eq!(parse_step(step_name(step)).unwrap(), step);
            assert_eq!(parse_step(&format!("{step:?}")).unwrap(), step);
        }
        assert!(parse_step("later").unwrap_err().error.to_string().contains("mid-token"));
    }
}
