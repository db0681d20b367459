//! Client of a node's admin port.

use std::{net::SocketAddr, time::Duration};

use baton_kit::output::root_cause;
use baton_walrus_client::http_client::read_bounded;
use clap::ArgMatches;
use reqwest::Client;

use super::{Exit, Failure, RunLike};
use crate::{
    admin::Status,
    config::{AdminSetting, Settings},
    daemon::data_dir::DataDir,
};

/// Timeout of the whole answer, which comes from this machine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: a status has some lines for each model, address and peer.
const MAX_ANSWER_BYTES: u64 = 1024 * 1024;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// No process listens there, or it does not answer in time.
    #[error(
        "no node answers at {address} ({reason}); start one with `baton-node run`, or name its --admin address"
    )]
    Silent {
        /// The admin address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// Another program listens there.
    #[error("something else than a baton-node of this version answers at {0}")]
    OtherProgram(SocketAddr),
}

/// The address of the node's admin port: the given one, else that of the node that uses the data directory,
/// else the configured one.
pub(super) fn admin_address(settings: &Settings, is_given: bool) -> Result<SocketAddr, Failure> {
    let running = if is_given { None } else { DataDir::running_admin(&settings.data_dir()) };
    match running.map_or(settings.admin(), AdminSetting::At) {
        AdminSetting::At(address) => Ok(address),
        AdminSetting::Off => Err(Failure::text(
            Exit::Usage,
            "the admin port is switched off in the configuration (admin = \"none\"), so nobody can be asked",
        )),
    }
}

/// The admin port of one node.
pub(super) struct Admin {
    /// Its address.
    pub(super) address: SocketAddr,
    client: Client,
}

impl Admin {
    /// The node that the arguments mean, its settings as far as this command knows them, and whether the command
    /// prints JSON.
    pub(super) fn of(args: RunLike, matches: &ArgMatches) -> Result<(Self, Settings, bool), Failure> {
        let (flags, _, json) = args.given(matches)?;
        let is_given = flags.admin.is_some();
        let settings = Settings::load(flags)?;
        Ok((Self::at(admin_address(&settings, is_given)?)?, settings, json))
    }

    pub(super) fn at(address: SocketAddr) -> Result<Self, Failure> {
        Ok(Self { address, client: Client::builder().no_proxy().timeout(TIMEOUT).build()? })
    }

    /// Requests the status.
    pub(super) async fn status(&self) -> Result<Status, AskError> {
        let body = self.get("status").await?;
        serde_json::from_slice(&body).map_err(|_| AskError::OtherProgram(self.address))
    }

    /// Requests the options in force, as lines of a configuration file.
    pub(super) async fn settings(&self) -> Result<String, AskError> {
        String::from_utf8(self.get("settings").await?).map_err(|_| AskError::OtherProgram(self.address))
    }

    async fn get(&self, path: &str) -> Result<Vec<u8>, AskError> {
        let silent =
            |error: reqwest::Error| AskError::Silent { address: self.address, reason: root_cause(&error) };
        let request = self.client.get(format!("http://{}/{path}", self.address));
        let answer = request.send().await.map_err(silent)?;
        let (other, status) = (|| AskError::OtherProgram(self.address), answer.status());
        let body = read_bounded(answer, MAX_ANSWER_BYTES).await;
        let body = body.map_err(|error| error.map_or_else(other, silent))?;
        // A node of an older version may lack a route.
        if status.is_success() { Ok(body) } else { Err(other()) }
    }
}

/// Runs an asynchronous command on its own runtime.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
