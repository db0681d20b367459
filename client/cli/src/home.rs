//! Opens the client of this home for a call, and finds the session that the call names.

use std::time::Duration;

use baton_client::{Client, ClientError, SessionInfo};
use baton_kit::nearest::nearest;
use baton_proto::{ids::SessionId, text::searchable};

use crate::{failure::Failure, out::short_session, settings::Settings};

/// Time after a single message's answer, or at the program's end, for acknowledgements, the head and the node's report
/// on storing. The journal holds the unfinished rest.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// Shortest part of a title that is looked for when no session has the given name.
const MIN_TITLE_BYTES: usize = 3;

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
        (None, _) => {
            let error = ClientError::UnknownSession(text.to_owned());
            Err(match likely_session(client, &wanted).await {
                Some(hint) => Failure::Hinted { error, hint },
                None => error.into(),
            })
        }
    }
}

/// The session that an unknown name may mean, as a next step: by its id, or by its title.
async fn likely_session(client: &Client, wanted: &str) -> Option<String> {
    let sessions = client.sessions().await.ok()?;
    let short = |session: &SessionInfo| short_session(&session.id);
    let ids: Vec<String> = sessions.iter().map(short).collect();
    let near = nearest(wanted.get(..8).unwrap_or(wanted), ids.iter().map(String::as_str));
    let titled = |session: &&SessionInfo| searchable(&session.title).contains(&searchable(wanted));
    let found = match near {
        Some(near) => sessions.iter().find(|session| short(session) == near),
        None => sessions.iter().find(|session| wanted.len() >= MIN_TITLE_BYTES && titled(session)),
    }?;
    Some(format!("did you mean {} \"{}\"? all: baton session list", short(found), found.title))
}
