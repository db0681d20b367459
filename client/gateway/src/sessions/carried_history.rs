//! Histories that are larger than a turn, or than a model's context. A conversation that began elsewhere is carried in with
//! the first turn of its session; its oldest messages are left out where they do not fit. Pure.

use baton_client::TurnInput;
use baton_proto::record::{Message, Role};

/// Bytes between two places at which a history may begin. They lie in the same places while a conversation grows, so its
/// next requests find the session that began there.
const STEP_BYTES: usize = 4 * 1024;
/// Bytes that a message counts for at least, since a turn has a limit of messages too.
const LEAST_MESSAGE_BYTES: usize = 256;

/// The messages of a turn that may carry a history in.
pub(crate) struct CarriedMessages {
    pub(crate) messages: Vec<Message>,
    /// The number of older messages that were left out.
    pub(crate) left_out: usize,
    /// The later places at which the messages may begin instead, counted with those left out; at the last one, only the
    /// new messages are left.
    starts: Vec<usize>,
}

impl CarriedMessages {
    /// Messages of which none is to be left out.
    pub(crate) fn new(messages: Vec<Message>, left_out: usize) -> Self {
        Self { messages, left_out, starts: Vec::new() }
    }

    /// A history with the new messages at `newest`: as many of them as fit a turn.
    pub(crate) fn fit(mut messages: Vec<Message>, newest: usize) -> Self {
        let mut starts: Vec<usize> = starts(&messages, newest).chain([newest]).collect();
        let fits = |start: &&usize| {
            messages.get(**start..).is_some_and(|rest| TurnInput::check_messages(rest).is_ok())
        };
        let left_out = starts.iter().rev().take_while(fits).last().copied().unwrap_or(newest);
        messages.drain(..left_out);
        starts.retain(|start| *start > left_out);
        Self { messages, left_out, starts }
    }

    /// Leaves out the older half, for a model with a smaller context. Returns whether there was an older message.
    pub(crate) fn halve(&mut self) -> bool {
        let half = size(&self.messages) / 2;
        let is_half =
            |start: &&usize| size(self.messages.get(**start - self.left_out..).unwrap_or_default()) <= half;
        let Some(start) = self.starts.iter().find(is_half).or(self.starts.last()).copied() else {
            return false;
        };
        self.messages.drain(..start - self.left_out);
        self.left_out = start;
        self.starts.retain(|later| *later > start);
        true
    }
}

fn size(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.text.len().max(LEAST_MESSAGE_BYTES)).sum()
}

/// The places at which a history may begin, from the first message on: before messages of the user, and before the
/// new messages at `newest`.
pub(crate) fn starts(messages: &[Message], newest: usize) -> impl Iterator<Item = usize> {
    let (mut bytes, mut next) = (0, 0);
    let places = messages.iter().take(newest).enumerate().filter_map(move |(index, message)| {
        let is_start = bytes >= next && (index == 0 || message.role == Role::User);
        bytes += size(std::slice::from_ref(message));
        if is_start {
            next = (bytes / STEP_BYTES + 1) * STEP_BYTES;
        }
        is_start.then_some(index)
    });
    places.collect::<Vec<_>>().into_iter()
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
        assert_eq!(long[..3], [0, 4, 8]);
        assert_eq!(starts(&history(1_500, 1_024))[..long.len()], long);
        assert_eq!(starts(&history(1_000, 10))[..3], [0, 16, 32]);
        assert!(starts(&history(1_000, 1_500)).iter().all(|start| start % 2 == 0), "before the user's");
        assert!(starts(&[]).is_empty());
    }

    #[test]
    fn a_history_loses_its_oldest_messages_until_it_fits_a_turn_and_then_by_halves() {
        let fitted = |count: usize, bytes: usize| {
            let pair = [Role::User, Role::Assistant].map(|role| Message::new(role, "x".repeat(bytes)));
            let mut messages: Vec<Message> = pair.iter().cycle().take(count).cloned().collect();
            messages.push(Message::new(Role::User, "new"));
            let mut carried = CarriedMessages::fit(messages, count);
            let begun = carried.left_out;
            loop {
                assert_eq!(carried.left_out + carried.messages.len(), count + 1);
                assert!(TurnInput::check_messages(&carried.messages).is_ok());
                assert_eq!(carried.messages[0].role, Role::User);
                assert_eq!(carried.messages.last().unwrap().text, "new");
                let before = size(&carried.messages);
                if !carried.halve() {
                    break;
                }
                assert!(size(&carried.messages) <= before / 2 || carried.messages.len() == 1);
            }
            assert_eq!(carried.messages.len(), 1);
            begun
        };
        assert_eq!((fitted(72, 10), fitted(4_000, 100), fitted(500, 1_000), fitted(0, 1)), (0, 0, 0, 0));
        assert_eq!((fitted(5_000, 10), fitted(600, 1_024), fitted(2, 512 * 1024)), (912, 92, 2));
    }
}
