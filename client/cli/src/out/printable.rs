//! Foreign text without the characters that act on a terminal.

/// Removes characters that act on a terminal or on the order of a line, except line ends and tabs.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| !acts(*c) || matches!(c, '\n' | '\t')).collect()
}

/// Whether a character shows nothing, but acts:
/// - C0 and C1 controls;
/// - changes of text direction, which can make a line read as another;
/// - characters that hide text.
pub(crate) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks, embeddings, overrides and isolates of direction.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Line and paragraph separators, and characters of no width; joiners stay, since scripts need
            // them.
            | '\u{2028}' | '\u{2029}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            // Tags, which can hide whole sentences.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\r\u{9b}31mc\n\td\u{7}"), "a[2Jb31mc\n\td");
        assert_eq!(clean("pay \u{202e}001\u{202c} \u{2067}now\u{2069}\u{e0041}"), "pay 001 now");
        assert_eq!(
            clean("\u{646}\u{200c}\u{647} 👩\u{200d}👧"),
            "\u{646}\u{200c}\u{647} 👩\u{200d}👧",
            "joiners stay"
        );
    }
}
