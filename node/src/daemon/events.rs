//! Events of `--json` on standard output, for the program that started the node: one object a line.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
};

use serde::Serialize;

use super::view::ServingNode;
use crate::{
    admin::ModelInfo,
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
        step: Step,
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
        PausePoints::at(step, move |step| self.emit(&ProgramEvent::Paused { step }))
    }
}
