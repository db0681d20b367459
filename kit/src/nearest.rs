//! The likeliest meaning of a mistyped word.

/// Most letters of a word that are compared.
const COMPARED_CHARS: usize = 64;

/// The candidate with the fewest typing errors, if they are few for the word's length; case does not count.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = word.to_lowercase();
    let most = match wanted.chars().count() {
        0 => return None,
        1..=3 => 1,
        4..=7 => 2,
        _ => 3,
    };
    let distance = |candidate: &str| edits(&candidate.to_lowercase(), &wanted);
    let measured = candidates.into_iter().map(|candidate| (distance(candidate), candidate));
    measured
        .filter(|(edits, _)| *edits <= most)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance of two short texts.
pub(crate) fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(COMPARED_CHARS).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().take(COMPARED_CHARS).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let above = row[column + 1];
            let replaced = diagonal + usize::from(letter != *other);
            row[column + 1] = replaced.min(above + 1).min(row[column] + 1);
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_is_taken_for_the_nearest_and_a_strange_one_for_none() {
        let commands = ["edit", "export", "verify", "drop"];
        for (word, expected) in [
            ("verfiy", Some("verify")),
            ("Edit", Some("edit")),
            ("exprt", Some("export")),
            ("dorp", Some("drop")),
            ("weather", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, commands), expected, "{word}");
        }
    }
}
