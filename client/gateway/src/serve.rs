//! Serves the endpoint at a listener, with the tasks beside it.

pub(crate) mod acme;
pub(crate) mod tls;

use std::{future::Future, net::SocketAddr, time::Duration};

use baton_kit::listen::{self, serve_through};
use baton_proto::ids::SessionId;
use futures::future::join_all;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

use crate::{
    keys::accounts::NamedKeys,
    serve::{
        acme::AcmeSettings,
        tls::{TlsIdentity, open, watch_files},
    },
    state::{
        Gateway,
        ephemeral_sessions::{EphemeralSession, IDLE_TIME},
    },
};

/// Time after a session's last turn until its file is released to other processes.
const KEEP_OPEN: Duration = Duration::from_secs(30);
/// Interval between the checks for files to release.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two looks at the list of keys, and two writes of their usage.
const KEYS_INTERVAL: Duration = Duration::from_secs(1);

impl Gateway {
    /// Serves until `stop` is done, then waits for the running requests.
    ///
    /// # Errors
    /// The listener's errors.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        self.serve_beside_tasks(listen::serve(listener, self.router(), stop, Duration::MAX)).await
    }

    /// As [`Gateway::serve`], over TLS 1.3.
    ///
    /// # Errors
    /// The listener's errors.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        identity: TlsIdentity,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let watching = tokio::spawn(watch_files(identity.clone()));
        let open = move |stream| open(stream, identity.clone());
        let serving = serve_through(listener, self.router(), stop, Duration::MAX, open);
        let served = self.serve_beside_tasks(serving).await;
        watching.abort();
        served
    }

    /// As [`Gateway::serve_tls`], with a certificate that an authority gives for the settings' names, and renews. The
    /// authority must reach the listener at port 443 of each name. Before the first certificate, programs are refused.
    ///
    /// # Errors
    /// The listener's errors. Those of the authority are in the log, and tried again.
    pub async fn serve_acme(
        &self,
        listener: TcpListener,
        settings: AcmeSettings,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let identity = settings.identity();
        let keeping = tokio::spawn(acme::keep(settings, identity.clone()));
        let served = self.serve_tls(listener, identity, stop).await;
        keeping.abort();
        served
    }

    async fn serve_beside_tasks(
        &self,
        serving: impl Future<Output = std::io::Result<()>>,
    ) -> std::io::Result<()> {
        let release_task = tokio::spawn(release_idle_sessions(self.clone()));
        let keys_task = self.config().keys.clone().map(|keys| tokio::spawn(synchronise_keys(keys)));
        let served = serving.await;
        release_task.abort();
        self.inner.turns.close();
        self.inner.turns.wait().await;
        self.end_idle_sessions(Duration::ZERO).await;
        if let (Some(task), Some(keys)) = (keys_task, self.config().keys.clone()) {
            task.abort();
            // A write that the task began ends first: it has the only thread that writes.
            let _ = task.await;
            let _ = tokio::task::spawn_blocking(move || keys.synchronise()).await;
        }
        served
    }

    /// Ends the ephemeral sessions that nobody used for a time.
    async fn end_idle_sessions(&self, time: Duration) {
        let unused = self.inner.idle_sessions.unused(time, Instant::now());
        join_all(unused.into_iter().map(EphemeralSession::end)).await;
    }
}

/// Releases the files of sessions that are idle and have no unstored turns; ends ephemeral sessions that are idle.
async fn release_idle_sessions(gateway: Gateway) {
    loop {
        sleep(RELEASE_INTERVAL).await;
        gateway.end_idle_sessions(IDLE_TIME).await;
        let idle: Vec<SessionId> = {
            let open = gateway.inner.open.lock();
            open.iter().filter(|(_, used)| used.elapsed() >= KEEP_OPEN).map(|(id, _)| *id).collect()
        };
        for session in idle {
            let busy = gateway.client().session(session).info().await.is_ok_and(|info| info.unstored > 0);
            if !busy {
                gateway.client().session(session).release();
                gateway.inner.open.lock().retain(|(id, used)| *id != session || used.elapsed() < KEEP_OPEN);
            }
        }
    }
}

/// Learns changed keys, and saves their usage.
async fn synchronise_keys(keys: NamedKeys) {
    loop {
        sleep(KEYS_INTERVAL).await;
        let keys = keys.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || keys.synchronise()).await {
            tracing::warn!(%error, "the keys were not read again");
        }
    }
}

/// Whether only this machine can reach an address.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
