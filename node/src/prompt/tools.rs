//! Tool calls in a prompt: parsed from the answers' texts, and matched with the results that follow them.
//! Pure.

use baton_proto::tools::{Call, call_id_of, call_position, read_answer};
use zeroize::Zeroizing;

use super::{ChatMessage, Prompt, Role};

/// A message for a reader that supports tools.
pub(crate) struct ToolMessage<'a> {
    /// The message; its text and its name may differ from the fields here.
    pub(crate) message: &'a ChatMessage,
    /// Its text, without calls.
    pub(crate) content: Zeroizing<String>,
    /// Its original text, with calls in the model's syntax.
    pub(crate) text: Zeroizing<String>,
    /// Its calls.
    pub(crate) calls: Vec<SpokenCall>,
    /// The call that it answers, if the prompt has it: the call's ID, and the tool's name.
    pub(crate) answers: Option<(String, String)>,
}

/// A call with an ID, to which its result refers.
pub(crate) struct SpokenCall {
    /// Nine letters and digits, generated here: templates and servers never see a peer's ID.
    pub(crate) id: String,
    /// The call.
    pub(crate) call: Call,
}

/// A call without a result so far.
struct Open {
    id: String,
    name: String,
    answered: bool,
}

impl Prompt {
    /// The messages of [`Prompt::rendered`], with their calls. A call without a marker counts only if its
    /// tool is defined.
    #[must_use]
    pub(crate) fn spoken(&self) -> Vec<ToolMessage<'_>> {
        let known = |name: &str| self.tools().is_some_and(|tools| tools.has(name));
        let mut open: Vec<Open> = Vec::new();
        let spoken = self.rendered().map(|(message, text)| {
            let mut spoken =
                ToolMessage { message, content: text.clone(), text, calls: Vec::new(), answers: None };
            match message.role {
                Role::Assistant => {
                    let said = read_answer(&spoken.text, known);
                    let calls = said.calls.into_iter().enumerate();
                    let with_id = |(place, call)| SpokenCall { id: call_id_of(&spoken.text, place), call };
                    spoken.calls = calls.map(with_id).collect();
                    if !spoken.calls.is_empty() {
                        spoken.content = said.content;
                    }
                    let waiting = |call: &SpokenCall| Open {
                        id: call.id.clone(),
                        name: call.call.name.clone(),
                        answered: false,
                    };
                    open = spoken.calls.iter().map(waiting).collect();
                }
                Role::Tool => spoken.answers = answered(&mut open, message.call_id.as_deref()),
                Role::System | Role::User => {}
            }
            spoken
        });
        spoken.collect()
    }
}

/// The call that a result answers: the call at its ID's position, else the first open one.
fn answered(open: &mut [Open], call_id: Option<&str>) -> Option<(String, String)> {
    let named = call_id
        .and_then(call_position)
        .filter(|&position| open.get(position).is_some_and(|call| !call.answered));
    let place = named.or_else(|| open.iter().position(|call| !call.answered))?;
    let call = open.get_mut(place)?;
    call.answered = true;
    Some((call.id.clone(), call.name.clone()))
}

#[cfg(test)]
mod tests {
    use baton_proto::tools::{call_id, write_call};

    use super::*;

    fn result(call_id: Option<String>) -> ChatMessage {
        let mut message = ChatMessage::new(Role::Tool, "r");
        message.call_id = call_id;
        message
    }

    /// The names of the calls that the results with these IDs answer.
    fn answers(ids: [Option<String>; 3]) -> Vec<Option<String>> {
        let calls = ["a", "b"].map(|name| write_call(name, "{}").to_string()).concat();
        let mut messages = vec![ChatMessage::new(Role::User, "u"), ChatMessage::new(Role::Assistant, calls)];
        messages.extend(ids.map(result));
        let prompt = Prompt::new(messages);
        let spoken = prompt.spoken();
        let ids: Vec<&str> = spoken[1].calls.iter().map(|call| call.id.as_str()).collect();
        assert!(ids.iter().all(|id| id.len() == 9) && ids[0] != ids[1]);
        for answer in spoken.iter().filter_map(|spoken| spoken.answers.as_ref()) {
            assert_eq!(answer.0, ids[usize::from(answer.1 == "b")]);
        }
        spoken[2..].iter().map(|spoken| Some(spoken.answers.as_ref()?.1.clone())).collect()
    }

    #[test]
    fn a_result_answers_the_call_whose_place_its_id_names_or_the_next_that_waits() {
        let of = |place| Some(call_id([1; 8], place));
        let [a, b] = ["a", "b"].map(|name| Some(name.to_owned()));
        assert_eq!(answers([None, None, None]), [a.clone(), b.clone(), None]);
        assert_eq!(answers([of(1), of(0), None]), [b.clone(), a.clone(), None]);
        assert_eq!(answers([of(1), of(1), of(0)]), [b.clone(), a.clone(), None]);
        assert_eq!(answers([Some("call_x".into()), of(61), None]), [a, b, None]);
    }

    #[test]
    fn an_answer_without_calls_keeps_its_text() {
        let text = "  <tool_call>nothing</tool_call> ";
        let prompt = Prompt::new(vec![ChatMessage::new(Role::Assistant, text), result(None)]);
        let spoken = prompt.spoken();
        assert_eq!((spoken[0].content.as_str(), spoken[0].calls.len()), (text, 0));
        assert!(spoken[1].answers.is_none());
    }
}
