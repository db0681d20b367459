//! Text from tokens: every piece is the text of its tokens, in whole characters, and no stop string is ever
//! shown.

use baton_engine::language::{PushOutcome, StreamText};

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    // Input lines: two stop strings, if they are text, then tokens separated by 0xFE.
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let stop = |line: Option<&[u8]>| line.and_then(|line| std::str::from_utf8(line).ok()).map(str::to_owned);
    let stops: Vec<String> = [stop(lines.next()), stop(lines.next())].into_iter().flatten().collect();
    let tokens: Vec<&[u8]> = lines.next().unwrap_or_default().split(|byte| *byte == 0xFE).collect();

    let mut text = StreamText::new(&stops);
    let (mut shown, mut ids, mut stopped) = (String::new(), Vec::new(), false);
    for (id, bytes) in (0u32..).zip(&tokens) {
        let piece = match text.push(id, bytes) {
            PushOutcome::Held => continue,
            PushOutcome::Emit(piece) => piece,
            PushOutcome::Stopped(piece) => {
                stopped = true;
                piece
            }
        };
        shown.push_str(&piece.text);
        ids.extend(piece.ids);
        if stopped {
            break;
        }
    }
    if !stopped {
        let piece = text.finish();
        shown.push_str(&piece.text);
        ids.extend(piece.ids);
        assert_eq!(ids.len(), tokens.len());
    }
    assert!(ids.iter().copied().eq(0..ids.len() as u32));
    let all = tokens[..ids.len()].concat();
    let whole = all.len() - incomplete_tail(&all);
    let lossy = String::from_utf8_lossy(&all[..whole]).into_owned();
    assert!(stopped || shown == lossy);
    // Cutting a stop string out of broken bytes may leave the beginning of a character.
    assert!(lossy.starts_with(shown.trim_end_matches('\u{FFFD}')));
    for stop in stops.iter().filter(|stop| !stop.is_empty() && !stop.contains('\u{FFFD}')) {
        assert!(!shown.contains(stop.as_str()));
    }
}

/// Bytes at the end that begin a character and do not complete it: they have no text.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let invalid = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
    if is_incomplete { invalid.len() } else { 0 }
}
