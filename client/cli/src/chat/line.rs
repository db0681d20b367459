//! The lines that a user types: messages and commands. Pure.

use baton_kit::nearest::nearest;

/// The commands.
pub(crate) const HELP: &str = "\
/new            begin a conversation
/sessions       list the conversations
/switch ID      continue another conversation (an id, its first digits, or last)
/rename TITLE   give this conversation a title
/delete         delete this conversation, after a question
/edit [TEXT]    replace your last message; alone, it puts the message into the line
/regenerate     ask for the last answer again
/continue       continue an answer that was stopped, or that the limit cut
/retry          send a message again that was not answered
/drop           discard a message that was not answered
/model [NAME]   use another model, or show the models
/system [TEXT]  set the system text, or show it
/params [..]    set temperature=, max_tokens= or seed=, or show them
/export FILE    write this conversation: as Markdown to FILE.md, otherwise with all proofs
/verify [full]  check this conversation against the store
/memory         show the memories of the last turn
/copy           copy the last answer to the clipboard
/help           this list
/quit           leave (also Ctrl-D); Ctrl-C stops an answer";

/// A parsed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Say(&'a str),
    New,
    Sessions,
    Switch(&'a str),
    Rename(&'a str),
    Delete { sure: bool },
    Continue,
    Model(&'a str),
    System(&'a str),
    Params(&'a str),
    Export(&'a str),
    Copy,
    Edit(&'a str),
    Regenerate,
    Retry,
    Drop,
    Verify { full: bool },
    Memory,
    Help,
    Quit,
    Nothing,
    Unknown(&'a str),
}

/// Parses a line.
pub(crate) fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    let Some(command) = line.strip_prefix('/') else {
        return if line.is_empty() { Line::Nothing } else { Line::Say(line) };
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, rest.trim()) {
        ("new", "") => Line::New,
        ("sessions", "") => Line::Sessions,
        ("switch", id) if !id.is_empty() => Line::Switch(id),
        ("rename", title) if !title.is_empty() => Line::Rename(title),
        ("delete", "") => Line::Delete { sure: false },
        ("delete", "yes") => Line::Delete { sure: true },
        ("continue", "") => Line::Continue,
        ("model", name) => Line::Model(name),
        ("system", text) => Line::System(text),
        ("params", values) => Line::Params(values),
        ("export", file) if !file.is_empty() => Line::Export(file),
        ("copy", "") => Line::Copy,
        ("edit", text) => Line::Edit(text),
        ("regenerate", "") => Line::Regenerate,
        ("retry", "") => Line::Retry,
        ("drop", "") => Line::Drop,
        ("verify", "") => Line::Verify { full: false },
        ("verify", "full") => Line::Verify { full: true },
        ("memory", "") => Line::Memory,
        ("help", _) => Line::Help,
        ("quit" | "exit", "") => Line::Quit,
        // Two slashes at the beginning send a message that begins with one.
        _ if command.starts_with('/') => Line::Say(command),
        _ => Line::Unknown(line),
    }
}

/// A command with its arguments, and its description.
pub(crate) type CommandHelp = (&'static str, &'static str);

/// The commands, from the help.
pub(crate) fn commands() -> impl Iterator<Item = CommandHelp> {
    HELP.lines().filter_map(|line| line.split_once("  ")).map(|(name, what)| (name, what.trim()))
}

/// A command's name, without its argument.
pub(crate) fn name_of(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or_default()
}

/// States that there is no such command, with the one that it may mean, or the form of the named one.
pub(crate) fn unknown_command(line: &str) -> String {
    let name = name_of(line);
    if let Some((full, _)) = commands().find(|(full, _)| name_of(full) == name) {
        return format!("This command is: {full}");
    }
    let near = nearest(name, commands().map(|(full, _)| name_of(full)));
    let near = near.map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
    format!("There is no {name}.{near} /help lists the commands; // begins a message with /")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_unless_they_name_a_command() {
        let cases = [
            ("hello /new", Line::Say("hello /new")),
            ("  ", Line::Nothing),
            ("/new", Line::New),
            ("/new now", Line::Unknown("/new now")),
            ("/switch", Line::Unknown("/switch")),
            ("/switch ab12", Line::Switch("ab12")),
            ("/rename my title", Line::Rename("my title")),
            ("/delete", Line::Delete { sure: false }),
            ("/delete yes", Line::Delete { sure: true }),
            ("/model", Line::Model("")),
            ("/params temperature=0", Line::Params("temperature=0")),
            ("/edit say it again", Line::Edit("say it again")),
            ("/edit", Line::Edit("")),
            ("/verify full", Line::Verify { full: true }),
            ("/verify fully", Line::Unknown("/verify fully")),
            ("//etc/hosts is a file", Line::Say("/etc/hosts is a file")),
            ("/etc", Line::Unknown("/etc")),
            ("/quit", Line::Quit),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line}");
        }
    }

    #[test]
    fn a_mistyped_command_names_the_nearest() {
        assert!(unknown_command("/verfy full").contains("There is no /verfy. Did you mean /verify?"));
        assert_eq!(unknown_command("/switch"), "This command is: /switch ID");
        assert!(!unknown_command("/weather").contains("Did you mean"));
    }
}
