//! Titles of sessions: one that the user gave, or else the beginning of the first message.

use baton_proto::record::{Message, Role};

use crate::session::state::State;

/// Most characters of a title that a message gives.
const TITLE_CHARS: usize = 60;
/// Most characters of a title that a user gives.
pub const MAX_TITLE_CHARS: usize = 200;

/// The title of a session; empty before the first message.
pub(crate) fn title(state: &State) -> String {
    if let Some(title) = &state.title {
        return title.clone();
    }
    of_messages(state)
}

/// The title that the messages of a session give.
pub(crate) fn of_messages(state: &State) -> String {
    if let Some(omitted) = state.omitted().filter(|omitted| !omitted.title.is_empty()) {
        return omitted.title.clone();
    }
    let records = state.history.iter().filter_map(|turn| turn.record.as_ref());
    let pending = state.pending.iter().flat_map(|pending| &pending.turn.messages);
    beginning(records.flat_map(|record| &record.messages).chain(pending))
}

/// The beginning of the first message of the user, in whole words and on one line.
#[must_use]
pub fn beginning<'a>(messages: impl IntoIterator<Item = &'a Message>) -> String {
    let mut said = messages.into_iter().filter(|message| message.role == Role::User);
    let Some(first) = said.find(|message| !message.text.trim().is_empty()) else { return String::new() };
    let mut title = String::new();
    for word in first.text.split_whitespace() {
        let word: String = word.chars().filter(|c| !c.is_control()).collect();
        let space = usize::from(!title.is_empty());
        let left = TITLE_CHARS.saturating_sub(title.chars().count() + space);
        let fits = word.chars().count() <= left;
        // The first word is cut where it must be; every other word is whole.
        if !fits && space == 1 {
            title.push_str(" …");
            break;
        }
        if space == 1 {
            title.push(' ');
        }
        title.extend(word.chars().take(left));
        if !fits {
            title.push('…');
            break;
        }
    }
    title
}

/// A title of the user without surrounding space and control characters; none if nothing is left.
///
/// # Errors
/// The number of characters, if there are more than [`MAX_TITLE_CHARS`].
pub(crate) fn checked(title: &str) -> Result<Option<String>, usize> {
    let title: String = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let title: String = title.chars().filter(|c| !c.is_control()).collect();
    match title.chars().count() {
        0 => Ok(None),
        1..=MAX_TITLE_CHARS => Ok(Some(title)),
        chars => Err(chars),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        beginning(&[Message::new(Role::System, "be brief"), Message::new(Role::User, text)])
    }

    #[test]
    fn a_title_is_the_beginning_of_the_first_message_in_whole_words() {
        assert_eq!(of("  hello\n  there "), "hello there");
        assert_eq!(of(""), "");
        let long = of(&"word ".repeat(40));
        assert!(long.ends_with("word …") && long.chars().count() <= TITLE_CHARS + 2, "{long}");
        assert_eq!(of(&"x".repeat(100)), format!("{}…", "x".repeat(TITLE_CHARS)));
    }

    #[test]
    fn a_title_of_the_user_is_one_line_of_bounded_length() {
        assert_eq!(checked(" a\n b\u{1b} "), Ok(Some("a b".to_owned())));
        assert_eq!(checked("  "), Ok(None));
        assert_eq!(checked(&"x".repeat(201)), Err(201));
    }
}
