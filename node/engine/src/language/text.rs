//! From tokens to displayable text: whole characters only, and never a part of a stop string.
//!
//! An emitted piece's text is exactly the text of its ids, so a stream can be resumed after any piece.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Tokens and their text, ready to be emitted.
#[derive(Default, PartialEq, Eq)]
pub struct Piece {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their displayable text.
    pub text: String,
}

impl fmt::Debug for Piece {
    /// Without the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} tokens, {} bytes)", self.ids.len(), self.text.len())
    }
}

/// The result of [`StreamText::push`].
#[derive(Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// Nothing can be shown yet.
    Held,
    /// This can be shown now.
    Emit(Piece),
    /// A stop string is complete: show this piece, which ends before it, and stop.
    Stopped(Piece),
}

/// Holds back the text of tokens until it is safe to show.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct StreamText {
    stops: Vec<String>,
    held: Vec<u8>,
    /// Bytes at the beginning of `held` that were shown before a resume.
    shown: usize,
    /// Held tokens, each with the end of its text in `held`.
    tokens: Vec<(u32, usize)>,
}

impl StreamText {
    /// An empty stream. `stops` are texts that end an answer; empty texts are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: Vec::new(),
            shown: 0,
            tokens: Vec::new(),
        }
    }

    /// Takes a token of an answer's known prefix, whose whole characters have been shown. Returns `false` if
    /// the prefix already ends the answer.
    pub fn resume(&mut self, id: u32, bytes: &[u8]) -> bool {
        let pushed = self.push(id, bytes);
        self.tokens.clear();
        self.shown = self.held.len() - incomplete_tail(&self.held);
        !matches!(pushed, PushOutcome::Stopped(_))
    }

    /// Takes the next token and its bytes.
    pub fn push(&mut self, id: u32, bytes: &[u8]) -> PushOutcome {
        self.held.extend_from_slice(bytes);
        self.tokens.push((id, self.held.len()));
        let found = self.stops.iter().filter_map(|stop| find(&self.held, stop.as_bytes())).min();
        if let Some(begin) = found {
            let end = begin - incomplete_tail(&self.held[..begin]);
            let text = String::from_utf8_lossy(&self.held[self.shown.min(end)..end]).into_owned();
            let ids = self.tokens.drain(..).map(|(id, _)| id).collect();
            self.held.zeroize();
            return PushOutcome::Stopped(Piece { ids, text });
        }
        let longest_stop_tail =
            self.stops.iter().map(|stop| tail_that_begins(&self.held, stop.as_bytes())).max();
        let safe = self.held.len() - longest_stop_tail.unwrap_or(0);
        let complete = |&&(_, end): &&(u32, usize)| end <= safe && incomplete_tail(&self.held[..end]) == 0;
        let Some(&(_, end)) = self.tokens.iter().rev().find(complete) else { return PushOutcome::Held };
        PushOutcome::Emit(self.take(end))
    }

    /// Ends the answer: returns all held tokens and their text, without a character that is incomplete at the end.
    pub fn finish(&mut self) -> Piece {
        let end = self.held.len() - incomplete_tail(&self.held);
        for (_, token_end) in &mut self.tokens {
            *token_end = end.min(*token_end);
        }
        let piece = self.take(end);
        self.held.zeroize();
        piece
    }

    fn take(&mut self, end: usize) -> Piece {
        let count = self.tokens.iter().take_while(|(_, token_end)| *token_end <= end).count();
        let ids = self.tokens.drain(..count).map(|(id, _)| id).collect();
        for (_, token_end) in &mut self.tokens {
            *token_end -= end;
        }
        let text = String::from_utf8_lossy(&self.held[self.shown.min(end)..end]).into_owned();
        self.held.drain(..end);
        self.shown = self.shown.saturating_sub(end);
        Piece { ids, text }
    }
}

/// The displayed text of an answer's known prefix: whole characters only, cut before a stop string.
#[must_use]
pub fn shown_text(stops: &[String], bytes: &[u8]) -> String {
    let stop =
        stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| find(bytes, stop.as_bytes())).min();
    let end = stop.unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end - incomplete_tail(&bytes[..end])]).into_owned()
}

/// Index of the first `needle` in `haystack`.
fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Length of the longest end of `text` that is a beginning of `stop`.
fn tail_that_begins(text: &[u8], stop: &[u8]) -> usize {
    (1..stop.len().min(text.len() + 1)).rev().find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
}

/// Number of bytes of an incomplete character at the end of `text`.
fn incomplete_tail(text: &[u8]) -> usize {
    for length in 1..=text.len().min(3) {
        let tail = &text[text.len() - length..];
        if tail[0] & 0xC0 != 0x80 {
            let incomplete = std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none());
            return if incomplete { length } else { 0 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn emit(ids: &[u32], text: &str) -> PushOutcome {
        PushOutcome::Emit(Piece { ids: ids.to_vec(), text: text.into() })
    }

    #[test]
    fn a_character_split_over_tokens_comes_whole() {
        let mut text = StreamText::new(&[]);
        assert_eq!(text.push(1, "a".as_bytes()), emit(&[1], "a"));
        assert_eq!(text.push(2, &[0xF0, 0x9F]), PushOutcome::Held);
        assert_eq!(text.push(3, &[0x98]), PushOutcome::Held);
        assert_eq!(text.push(4, &[0x80, b'!']), emit(&[2, 3, 4], "😀!"));
        assert_eq!(text.push(5, &[b'x', 0xC3]), PushOutcome::Held);
        assert_eq!(text.finish(), Piece { ids: vec![5], text: "x".into() });
    }

    #[test]
    fn a_character_that_a_limit_or_a_stop_string_cuts_is_not_shown() {
        let all = "a😀".as_bytes();
        for cut in 2..all.len() {
            let mut text = StreamText::new(&["STOP".into()]);
            assert_eq!(text.push(1, &all[..1]), emit(&[1], "a"));
            assert_eq!(text.push(2, &all[1..cut]), PushOutcome::Held);
            assert_eq!(text.finish(), Piece { ids: vec![2], text: String::new() });
            let mut text = StreamText::new(&["STOP".into()]);
            let stopped = Piece { ids: vec![1], text: "a".into() };
            assert_eq!(text.push(1, &[&all[..cut], b"STOP"].concat()), PushOutcome::Stopped(stopped));
            assert_eq!(shown_text(&["STOP".into()], &[&all[..cut], b"STOP"].concat()), "a");
        }
    }

    #[test]
    fn bytes_that_can_never_become_text_do_not_block() {
        let mut text = StreamText::new(&[]);
        assert_eq!(text.push(1, &[0xFF]), emit(&[1], "\u{FFFD}"));
        assert_eq!(text.push(2, &[0x80, 0x80, 0x80, 0x80]), emit(&[2], "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"));
        assert_eq!(text.push(3, &[0xC3]), PushOutcome::Held);
        assert_eq!(text.push(4, b"a"), emit(&[3, 4], "\u{FFFD}a"));
    }

    #[test]
    fn a_part_of_a_stop_string_is_never_shown() {
        let mut text = StreamText::new(&["</end>".into(), "STOP".into()]);
        assert_eq!(text.push(1, b"so "), emit(&[1], "so "));
        assert_eq!(text.push(2, b"far </"), PushOutcome::Held);
        assert_eq!(text.push(3, b"en"), PushOutcome::Held);
        assert_eq!(text.push(4, b"ough</e"), emit(&[2, 3], "far </en"));
        assert_eq!(
            text.push(5, b"nd> rest"),
            PushOutcome::Stopped(Piece { ids: vec![4, 5], text: "ough".into() })
        );
    }

    #[test]
    fn the_earliest_stop_string_counts() {
        let mut text = StreamText::new(&["bb".into(), "ab".into()]);
        assert_eq!(text.push(1, b"xabb"), PushOutcome::Stopped(Piece { ids: vec![1], text: "x".into() }));
    }

    #[test]
    fn a_prefix_that_ends_the_answer_is_noticed() {
        let mut text = StreamText::new(&["END".into()]);
        assert!(text.resume(1, b"the E"));
        assert!(!text.resume(2, b"ND"));
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_of_their_ids_and_resume_anywhere(
            tokens in prop::collection::vec(prop::collection::vec(
                prop::sample::select(vec![b'a', b'b', b'c', 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80]), 0..4), 0..30),
        ) {
            let stops = ["abca".to_owned(), "cc".to_owned()];
            let mut text = StreamText::new(&stops);
            let mut pieces = Vec::new();
            let mut stopped = false;
            for (id, bytes) in (0u32..).zip(&tokens) {
                match text.push(id, bytes) {
                    PushOutcome::Held => {}
                    PushOutcome::Emit(piece) => pieces.push(piece),
                    PushOutcome::Stopped(piece) => { pieces.push(piece); stopped = true; break }
                }
            }
            if !stopped { pieces.push(text.finish()); }
            let ids: Vec<u32> = pieces.iter().flat_map(|piece| piece.ids.clone()).collect();
            prop_assert!(ids.iter().copied().eq(0..u32::try_from(ids.len()).unwrap()));
            let all: Vec<u8> = tokens[..ids.len()].concat();
            let lossy = String::from_utf8_lossy(&all[..all.len() - incomplete_tail(&all)]).into_owned();
            let shown: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
            prop_assert!(lossy.starts_with(&shown));
            prop_assert!(stops.iter().all(|stop| !shown.contains(stop.as_str())));
            if !stopped { prop_assert_eq!(&shown, &lossy); }
            // After a resume at any piece but the flushed last one, the rest is the same.
            let mut done = 0;
            for cut in 0..pieces.len() - 1 {
                done += pieces[cut].ids.len();
                let mut text = StreamText::new(&stops);
                for (id, bytes) in (0u32..).zip(&tokens[..done]) {
                    prop_assert!(text.resume(id, bytes));
                }
                let mut rest = String::new();
                for (id, bytes) in (0u32..).zip(&tokens[..ids.len()]).skip(done) {
                    match text.push(id, bytes) {
                        PushOutcome::Held => {}
                        PushOutcome::Emit(piece) | PushOutcome::Stopped(piece) => rest += &piece.text,
                    }
                }
                if !stopped { rest += &text.finish().text; }
                let expected: String = pieces[cut + 1..].iter().map(|piece| piece.text.as_str()).collect();
                prop_assert_eq!(rest, expected);
            }
        }
    }
}
