//! Devices that share one session, each with its own access to the head index.

use std::{path::Path, sync::Arc};

use baton_proto::ids::{AuthHash, LinkHash, SessionId};
use tempfile::TempDir;

use super::{
    GRACE, World, free,
    gate::{Gate, with_indexes},
    say_settled, session,
};
use crate::{Client, DeviceEvent, ReconcileReport, RouteOptions, SessionRoot, TurnEvent, TurnInput};

/// A device: its home, and its access to the head index.
pub struct Device {
    pub home: TempDir,
    pub gate: Arc<Gate>,
    pub client: Client,
}

impl Device {
    pub async fn new(world: &World) -> Self {
        let (home, gate) = (tempfile::tempdir().unwrap(), Gate::new(&world.store));
        let client = open(world, home.path(), &gate).await;
        Self { home, gate, client }
    }

    /// A device that recovered the session from its root alone.
    pub async fn second(world: &World, root: &SessionRoot) -> Self {
        let device = Self::new(world).await;
        device.client.recover(root).await.unwrap();
        device
    }

    /// Ends the process and starts it again.
    pub async fn restart(&mut self, world: &World) {
        self.client.shutdown(GRACE).await;
        self.client = open(world, self.home.path(), &self.gate).await;
    }

    pub async fn sync(&self, id: SessionId) -> ReconcileReport {
        self.client.session(id).reconcile(|_| {}).await.unwrap()
    }

    pub async fn links(&self, id: SessionId) -> Vec<LinkHash> {
        let history = self.client.session(id).history().await.unwrap();
        history.iter().map(|view| view.turn.link.link_hash()).collect()
    }

    /// What the fork rule compares of a turn: its authorisation.
    pub async fn auth_hash(&self, id: SessionId, turn: usize) -> AuthHash {
        self.client.session(id).history().await.unwrap()[turn].turn.link.auth_hash
    }

    /// The user messages, in the chain's order.
    pub async fn user_messages(&self, id: SessionId) -> Vec<String> {
        let history = self.client.session(id).history().await.unwrap();
        history.iter().map(|view| view.turn.record.as_ref().unwrap().messages[0].text.clone()).collect()
    }
}

pub async fn open(world: &World, home: &Path, gate: &Arc<Gate>) -> Client {
    let client = Client::open(with_indexes(world.config(home), std::slice::from_ref(gate))).await.unwrap();
    free(&client).await;
    client
}

pub fn options() -> RouteOptions {
    RouteOptions { reconcile: true, ..RouteOptions::default() }
}

/// A turn that first merges the other devices' turns.
pub fn input(text: &str) -> TurnInput {
    TurnInput::user(text).with_route(|route| route.reconcile = true)
}

pub fn device_events(events: &[TurnEvent]) -> Vec<DeviceEvent> {
    let told = events.iter().filter_map(|event| match event {
        TurnEvent::Devices(event) => Some(event.clone()),
        _ => None,
    });
    told.collect()
}

/// Two devices of a session with one turn; neither sees the other's publications.
pub async fn apart(world: &World) -> (Device, Device, SessionId) {
    let first = Device::new(world).await;
    let id = session(&first.client).await;
    say_settled(&first.client, id, "common").await;
    let root = first.client.session(id).backup().await.unwrap();
    let second = Device::second(world, &root).await;
    assert!(second.client.session(id).wait_delivered(GRACE).await.unwrap());
    first.gate.away();
    second.gate.away();
    (first, second, id)
}
