//! Client of a node's admin port: reads its status, and changes it with the token of the data directory.

use std::{net::SocketAddr, path::Path, time::Duration};

use reqwest::{Client, RequestBuilder, StatusCode};
use zeroize::Zeroizing;

use super::{Exit, Failure};
use crate::{
    admin::{Status, control},
    config::{AdminSetting, Settings},
    daemon::data_dir::DataDir,
};

/// Timeout of the whole answer, which comes from this machine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer: a status has some lines for each model, address and peer.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

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
    /// The node refuses the request.
    #[error("the node at {address} refuses: {said}")]
    Refused {
        /// The admin address.
        address: SocketAddr,
        /// The node's message.
        said: String,
    },
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        Self::new(Exit::Failure, error)
    }
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
    pub(super) fn at(address: SocketAddr) -> Result<Self, Failure> {
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build();
        Ok(Self { address, client: client.map_err(|error| Failure::new(Exit::Failure, error))? })
    }

    /// Requests the status.
    pub(super) async fn status(&self) -> Result<Status, AskError> {
        let (status, body) = self.send(self.client.get(format!("http://{}/status", self.address))).await?;
        if !status.is_success() {
            return Err(AskError::OtherProgram(self.address));
        }
        serde_json::from_slice(&body).map_err(|_| AskError::OtherProgram(self.address))
    }

    /// Requests the options in force, as lines of a configuration file.
    pub(super) async fn settings(&self) -> Result<String, AskError> {
        let (status, body) = self.send(self.client.get(format!("http://{}/settings", self.address))).await?;
        // A node of an older version has no such route.
        let text = status.is_success().then(|| String::from_utf8(body).ok()).flatten();
        text.ok_or(AskError::OtherProgram(self.address))
    }

    /// Requests a change, and returns the status after it.
    pub(super) async fn change(&self, path: &str, token: &str) -> Result<Status, AskError> {
        let request = self.client.post(format!("http://{}{path}", self.address)).bearer_auth(token);
        let (status, body) = self.send(request).await?;
        let said = match status {
            StatusCode::UNAUTHORIZED => {
                "the token does not fit: --data-dir must name the data directory of the node at this address"
                    .to_owned()
            }
            StatusCode::NOT_FOUND => "it is of an older version".to_owned(),
            status if status.is_success() => {
                return serde_json::from_slice(&body).map_err(|_| AskError::OtherProgram(self.address));
            }
            _ => String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(500).collect(),
        };
        Err(AskError::Refused { address: self.address, said })
    }

    async fn send(&self, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), AskError> {
        let silent =
            |error: reqwest::Error| AskError::Silent { address: self.address, reason: root_cause(&error) };
        let mut answer = request.send().await.map_err(silent)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(silent)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER_BYTES {
                return Err(AskError::OtherProgram(self.address));
            }
        }
        Ok((answer.status(), body))
    }
}

/// The admin token in a node's data directory.
pub(super) fn token(data_dir: &Path) -> Result<Zeroizing<String>, Failure> {
    let token = control::read_token(data_dir).map_err(|error| Failure::new(Exit::Storage, error))?;
    token.ok_or_else(|| {
        let text = format!(
            "there is no {} in {}: a node makes it at its start; --data-dir must name the data directory of the \
             running node, and you must be its user",
            control::TOKEN_FILE,
            data_dir.display()
        );
        Failure::text(Exit::Storage, text)
    })
}

/// Runs an asynchronous command on its own runtime.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(Exit::Failure, error))?.block_on(work)
}

/// The innermost cause.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
