//! Any answer of a publisher or aggregator gives only short and plain error texts.

use baton_walrus_client::http_store::fuzzing::read_answer;

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    let [high, low, body @ ..] = data else { return };
    for text in read_answer(u16::from_be_bytes([*high, *low]) % 600, body) {
        assert!(text.chars().count() < 300 && !text.chars().any(char::is_control), "{text:?}");
    }
}
