//! Words without information about a text's subject.

use std::{collections::HashSet, sync::LazyLock};

/// English function words. `may` is missing on purpose: it is a month. In a memory in another language, its function
/// words are frequent, and so get a low weight.
static STOP_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "a about above after again against all also am an and any are aren as at be because been before being \
     below between both but by can cannot could couldn d did didn do does doesn doing don down during each \
     few for from further had hadn has hasn have haven having he her here hers herself him himself his how i \
     if in into is isn it its itself just ll m me might more most must my myself no nor not now of off on \
     once only or other our ours ourselves out over own re s same shall she should shouldn so some such t \
     than that the their theirs them themselves then there these they this those through to too under until \
     up us ve very was wasn we were weren what when where which while who whom whose why will with won would \
     wouldn you your yours yourself yourselves"
        .split(' ')
        .collect()
});

/// Whether a lower-case word is one of them.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_not_in_the_list() {
        assert_eq!(STOP_WORDS.len(), 154);
        assert!(is_stop_word("the") && is_stop_word("yourselves") && is_stop_word("a"));
        assert!(!is_stop_word("may") && !is_stop_word("march") && !is_stop_word(""));
    }
}
