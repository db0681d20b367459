//! `baton chat`: by one message, at a prompt, or in the full-screen view.

use std::io::{IsTerminal as _, stdin, stdout};

use baton_client::Client;
use baton_kit::terminal::can_redraw;

use crate::{
    args::ChatArguments,
    chat::{message, options::TurnOptions, prompt},
    failure::Failure,
    home::{find_session, with_client},
    out::Out,
    settings::Settings,
    tui,
};

pub(crate) async fn run(settings: &Settings, arguments: ChatArguments, out: &Out) -> Result<(), Failure> {
    let mut options = TurnOptions::from(settings, &arguments).await?;
    Box::pin(with_client(settings, true, async |client| {
        options.name_node(client, arguments.answering.only.as_deref()).await?;
        let arguments = with_session(client, arguments).await?;
        match &arguments.message {
            Some(message) => Box::pin(message::run(client, options, &arguments, message, out)).await,
            None if out.json() => Err(Failure::wrong("--json needs a message: baton chat TEXT")),
            None if arguments.schema.is_some() => {
                Err(Failure::wrong("--schema needs a message: baton chat TEXT"))
            }
            None if settings.options.plain() || !at_terminal() || !can_redraw(&stdout()) => {
                prompt::run(client, options, &arguments, out).await
            }
            None => Box::pin(tui::run(client, options, &arguments, out)).await,
        }
    }))
    .await
}

/// Whether input and output are both terminals.
pub(crate) fn at_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// The arguments with a session and a message in their own fields. A text that names a session of this home
/// continues it, as in earlier versions; all other text is a message.
async fn with_session(client: &Client, mut arguments: ChatArguments) -> Result<ChatArguments, Failure> {
    if arguments.continue_last {
        arguments.session = Some("last".to_owned());
    }
    if arguments.branch.is_some() && arguments.session.is_none() {
        return Err(Failure::usage(
            "--branch needs a session.",
            "name it: -s SESSION, or -c for the last one",
        ));
    }
    let Some(text) = arguments.text.take() else { return Ok(arguments) };
    let names_session = arguments.session.is_none()
        && (arguments.message.is_some() || may_be_id(&text) && find_session(client, &text).await.is_ok());
    match names_session {
        true => arguments.session = Some(text),
        false if arguments.message.is_some() => {
            return Err(Failure::wrong("one message at a time: give it as TEXT"));
        }
        false => arguments.message = Some(text),
    }
    Ok(arguments)
}

/// Whether a text may name a session: `last`, or enough digits of an id.
fn may_be_id(text: &str) -> bool {
    text == "last" || (text.len() >= 6 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
