//! Histories that are larger than a turn. A conversation that began elsewhere is carried in with the first turn of its
//! session; its oldest messages are left out where they do not fit. Pure.

use baton_client::TurnInput;
use baton_proto::record::{Message, Role};

/// Bytes between two places at which a history may begin. They are few and lie in the same places while a
/// conversation grows, so its next requests find the session that began there.
const STEP_BYTES: usize = 256 * 1024;
/// Bytes that a message counts for at least, since a turn has a limit of messages too.
const LEAST_MESSAGE_BYTES: usize = 256;

/// The places at which a history may begin, from the first message on: before messages of the user, and before the
/// new messages at `newest`.
pub(crate) fn starts(messages: &[Message], newest: usize) -> impl Iterator<Item = usize> {
    let (mut bytes, mut next) = (0, 0);
    let places = messages.iter().take(newest).enumerate().filter_map(move |(index, message)| {
        let is_start = bytes >= next && (index == 0 || message.role == Role::User);
        bytes += message.text.len().max(LEAST_MESSAGE_BYTES);
        if is_start {
            next = (bytes / STEP_BYTES + 1) * STEP_BYTES;
        }
        is_start.then_some(index)
    });
    places.collect::<Vec<_>>().into_iter()
}

/// Leaves out the oldest messages of a history that does not fit a turn together with the new messages at `newest`.
/// Returns their number.
pub(crate) fn fit(messages: &mut Vec<Message>, newest: usize) -> usize {
    let fits =
        |start: &usize| messages.get(*start..).is_some_and(|rest| TurnInput::check_messages(rest).is_ok());
    let left_out = starts(messages, newest).find(fits).unwrap_or(newest);
    messages.drain(..left_out);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_conversation_may_begin_in_the_same_places() {
        let history = |turns: usize, bytes: usize| {
            let pair = [Role::User, Role::Assistant].map(|role| Message::new(role, "x".repeat(bytes)));
            pair.iter().cycle().take(2 * turns).cloned().collect::<Vec<_>>()
        };
        let starts = |messages: &[Message]| starts(messages, messages.len()).collect::<Vec<_>>();
        assert_eq!(starts(&history(3, 10)), [0]);
        let long = starts(&history(1_000, 1_024));
        assert_eq!(long[..3], [0, 256, 512]);
        assert_eq!(starts(&history(1_500, 1_024))[..long.len()], long);
        assert_eq!(starts(&history(1_000, 10)), [0, 1024]);
        assert!(starts(&history(1_000, 1_024)).iter().all(|start| start % 2 == 0), "before the user's");
        assert!(starts(&[]).is_empty());
    }

    #[test]
    fn a_history_loses_its_oldest_messages_until_it_fits_a_turn() {
        let fitted = |count: usize, bytes: usize| {
            let pair = [Role::User, Role::Assistant].map(|role| Message::new(role, "x".repeat(bytes)));
            let mut messages: Vec<Message> = pair.iter().cycle().take(count).cloned().collect();
            messages.push(Message::new(Role::User, "new"));
            let left_out = fit(&mut messages, count);
            assert_eq!(left_out + messages.len(), count + 1);
            assert!(TurnInput::check_messages(&messages).is_ok());
            assert_eq!((messages[0].role, messages.last().unwrap().text.as_str()), (Role::User, "new"));
            left_out
        };
        assert_eq!((fitted(72, 10), fitted(4_000, 100), fitted(500, 1_000)), (0, 0, 0));
        assert_eq!((fitted(5_000, 10), fitted(600, 1_024), fitted(2, 512 * 1024)), (1024, 256, 2));
    }
}
