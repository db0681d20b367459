//! Opens the client of this home for a call, and finds the session that the call names.

use std::time::Duration;

use baton_client::{Client, ClientError};
use baton_proto::ids::SessionId;

use crate::{failure::Failure, settings::Settings};

/// Time after a single message's answer, or at the program's end, for acknowledgements, the head and the node's report
/// on storing. The journal holds the unfinished rest.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// Runs work with an open client, and closes the client properly after success or failure.
pub(crate) async fn with_client<T>(
    settings: &Settings,
    network: bool,
    work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if network {
        settings.ask_shards().await?;
    }
    let client = Client::open(settings.client(network)?).await?;
    let result = work(&client).await;
    let grace = if network { GRACE } else { Duration::ZERO };
    client.shutdown(grace).await;
    result
}

/// The named session: its id, a prefix of the id, or `last`.
pub(crate) async fn find_session(client: &Client, text: &str) -> Result<SessionId, Failure> {
    if text == "last" {
        let last = client.last_session().await?;
        return last.ok_or_else(|| ClientError::UnknownSession(text.to_owned()).into());
    }
    let wanted = text.to_lowercase();
    let ids = client.session_ids().await?;
    let mut found = ids.iter().filter(|id| id.to_string().starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(*id),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("Several sessions begin with {text}."), "give more digits of the id"))
        }
        (None, _) => Err(ClientError::UnknownSession(text.to_owned()).into()),
    }
}
