//! Range headers: an accepted value is one closed range with the stated bounds.

use baton_walrus_store::fuzzing::parse_range;

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    let Some(range) = parse_range(data) else { return };
    assert!(range.length > 0 && range.last() >= range.first);
    assert!(!range.is_within(range.last()));
    let canonical = format!("bytes={}-{}", range.first, range.last());
    assert_eq!(parse_range(canonical.as_bytes()), Some(range));
}
