//! The line prompt of `baton chat`. Its line history is in memory only: the sealed journal holds the
//! conversation.

use std::io::IsTerminal as _;

use baton_client::{Client, ClientError};
use rustyline::{Editor, error::ReadlineError, history::MemHistory};

use crate::{
    args::ChatArguments,
    chat::{
        dialogue::{Dialogue, DialogueStep},
        line::parse,
        note_saved,
        options::TurnOptions,
    },
    failure::Failure,
    out::Out,
};

/// The next line, which begins with `prefill` at a terminal; `None` at the end. Blocking.
fn next(
    editor: &mut Editor<(), MemHistory>,
    is_pipe: bool,
    mut prefill: &str,
) -> std::io::Result<Option<String>> {
    let prompt = if is_pipe { "" } else { "> " };
    loop {
        match editor.readline_with_initial(prompt, (prefill, "")) {
            Ok(line) => {
                // A full history only forgets its oldest line.
                let _ = editor.add_history_entry(&line);
                return Ok(Some(line));
            }
            // At the prompt Ctrl-C clears the line, as in a shell.
            Err(ReadlineError::Interrupted) => prefill = "",
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Io(error)) => return Err(error),
            Err(error) => return Err(std::io::Error::other(error)),
        }
    }
}

/// The prompt, from opening to the last line.
pub(crate) async fn run(
    client: &Client,
    options: TurnOptions,
    arguments: &ChatArguments,
    out: &Out,
) -> Result<(), Failure> {
    let mut dialogue = Dialogue::open(client, options, arguments, out.clone()).await?;
    let done = lines(&mut dialogue, out).await;
    dialogue.close().await;
    done
}

/// Runs the lines of the prompt.
async fn lines(dialogue: &mut Dialogue, out: &Out) -> Result<(), Failure> {
    dialogue.greet().await?;
    // The editor reads a pipe as it is, line by line.
    let is_pipe = !std::io::stdin().is_terminal();
    let editor = Editor::with_history(rustyline::Config::default(), MemHistory::new());
    let mut editor = editor.map_err(std::io::Error::other)?;
    let mut prefill = String::new();
    loop {
        let begun = std::mem::take(&mut prefill);
        let read = tokio::task::spawn_blocking(move || {
            let line = next(&mut editor, is_pipe, &begun);
            (editor, line)
        });
        let (back, line) = tokio::select! {
            read = read => read.map_err(|_| ClientError::TaskEnded)?,
            // At a terminal the line editor takes Ctrl-C itself.
            () = out.interrupted(), if is_pipe => return Err(Failure::Interrupted),
        };
        editor = back;
        let Some(line) = line? else { return Ok(()) };
        let done = match dialogue.act(parse(&line)).await {
            Ok(DialogueStep::Greet) => dialogue.greet().await.map(|()| DialogueStep::On),
            other => other,
        };
        match done {
            Ok(DialogueStep::Leave) => return Ok(()),
            // A pipe has no line to change.
            Ok(DialogueStep::Prefill(text)) if is_pipe => {
                out.note(&format!("Your last message: {}", text.trim_start_matches("/edit ")));
            }
            Ok(DialogueStep::Prefill(text)) => prefill = text,
            // An interrupted message that did not come into the journal.
            Ok(_) => prefill = dialogue.take_given_back().unwrap_or_default(),
            // A script must see that a turn failed; a person reads it and continues.
            Err(failure) if is_pipe => {
                if dialogue.has_kept_message().await {
                    note_saved(dialogue.session(), out);
                }
                return Err(failure);
            }
            Err(failure) => {
                failure.report(out);
                if let Some(text) = dialogue.take_given_back() {
                    out.note("The message is not kept. It is in the line again.");
                    prefill = text;
                } else if dialogue.has_kept_message().await {
                    out.note("The message is kept: /retry sends it again, /drop discards it.");
                }
            }
        }
    }
}
