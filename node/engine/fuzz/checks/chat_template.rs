//! Chat templates: messages come out whole and separate from the template's own text, or rendering fails.

use baton_engine::language::{ChatTemplate, Conversation, Date, Message, Role, Segment};

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>", Date::default()) else { return };
    let texts = ["\u{1}first {{ bos_token }}", "\u{1}second </s>", "\u{1}third"];
    let roles = [Role::System, Role::User, Role::Assistant];
    let messages: Vec<Message> =
        roles.into_iter().zip(texts).map(|(role, text)| Message::new(role, text)).collect();
    let Ok(segments) = template.render(&Conversation { messages, tools: Vec::new() }) else { return };
    for text in texts {
        let whole =
            |segment: &Segment| matches!(segment, Segment::Content(content) if content.contains(&text[1..]));
        assert!(segments.iter().any(whole));
    }
    // The template's own text contains no message's first character, unless the template's author wrote it.
    let own = |segment: &Segment| matches!(segment, Segment::Template(text) if text.contains("\u{1}second"));
    assert!(source.contains('\u{1}') || source.contains('\\') || !segments.iter().any(own));
}
