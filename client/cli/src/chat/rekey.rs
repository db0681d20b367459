//! `baton session rekey`: after a device or the 24 words were lost, the conversation goes on under a new root.
//!
//! A root can be neither changed nor taken back: every holder derives the same keys from it. So a new session
//! carries the old one in, and the old one is deleted. docs/DESIGN.md says why devices have no keys of their own.

use baton_client::{Client, ClientError, SessionHandle, SessionInfo};
use baton_kit::prompt;
use baton_proto::record::{Message, Role};

use crate::{
    args::{RekeyArguments, WHOLE},
    chat::{dialogue::Dialogue, message, opening::branch, options::TurnOptions},
    clock,
    failure::Failure,
    home::{find_session, with_client},
    interrupt::confirmed,
    out::{Out, count, short},
    session::delete_all,
    settings::Settings,
};

pub(crate) async fn run(settings: &Settings, arguments: &RekeyArguments, out: &Out) -> Result<(), Failure> {
    let mut options = TurnOptions::from(settings, &arguments.chat()).await?;
    with_client(settings, true, async |client| {
        options.name_node(client, arguments.answering.only.as_deref()).await?;
        rekey(client, options, arguments, out).await
    })
    .await
}

async fn rekey(
    client: &Client,
    options: TurnOptions,
    arguments: &RekeyArguments,
    out: &Out,
) -> Result<(), Failure> {
    let old = find_session(client, &arguments.session).await?;
    let handle = client.session(old);
    let info = whole_session(&handle).await?;
    if info.branches > 0 {
        let id = short(&old);
        out.warn(&format!(
            "Turns beside the conversation are deleted with the old session: baton session show {id}"
        ));
    }
    let question = "First message of the new session: ";
    let text = match &arguments.text {
        Some(text) => text.clone(),
        None => {
            prompt::line(&mut std::io::stdin().lock(), &mut std::io::stderr(), question)?.unwrap_or_default()
        }
    };
    let message = Message::new(Role::User, message::read(&text)?);
    out.note(&format!("{}  {}  ({})", short(&old), info.title, count(info.effective_turns, "turn")));
    let question = "Continue it under new keys, and delete the old session on all devices?";
    if !confirmed(question, arguments.yes)? {
        out.note("Nothing is changed.");
        return Ok(());
    }
    let (opened, _) = branch(client, old, WHOLE, None).await?;
    let new = opened.session;
    options.announce_nodes(out);
    let mut dialogue = Dialogue::of(client, options, opened, out.clone());
    let answered = Box::pin(message::send(&mut dialogue, message, true)).await?;
    let (from, to) = (short(&old), short(&new));
    if !answered.is_stored {
        out.warn(&format!("The store did not confirm the new session {to}, so {from} is not deleted."));
        out.note(&format!("  once baton session verify {to} succeeds: baton session delete {from}"));
        return Err(Failure::NOT_STORED);
    }
    let renewed = client.session(new);
    if renewed.info().await?.title != info.title {
        renewed.rename(Some(&info.title)).await?;
    }
    delete_all(client, &[old], out).await?;
    out.good(&format!("✓ {from} goes on as {to}, under new keys"));
    if let Some(until_ms) = info.kept_until_ms {
        out.note(&format!(
            "  Whoever has the old keys can read the old turns until the store drops them (after {}), and nothing \
             of the new session.",
            clock::day(until_ms)
        ));
    }
    out.note(&format!("  Write down its new 24 words: baton session backup {to}"));
    Ok(())
}

/// The session, with all turns that the head index shows and nothing unfinished.
async fn whole_session(handle: &SessionHandle) -> Result<SessionInfo, Failure> {
    let id = short(&handle.id());
    match handle.check_head().await {
        Ok(_) => {}
        Err(error @ ClientError::Store(_)) => {
            let hint =
                "the old session can be deleted for all devices only with its head index: baton doctor";
            return Err(Failure::hinted(&error, hint.to_owned()));
        }
        Err(error) => return Err(error.into()),
    }
    let info = handle.info().await?;
    if info.pending {
        return Err(Failure::usage(
            format!("A message of {id} has no answer yet."),
            format!("finish it first: baton chat -s {id} TEXT"),
        ));
    }
    if info.diverged {
        return Err(Failure::usage(
            format!("The head index has turns of {id} that are not here."),
            format!("take them in: baton session sync {id}"),
        ));
    }
    Ok(info)
}
