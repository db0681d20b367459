//! Guesses of the next tokens from the sequence itself: the tokens that followed an earlier occurrence of its
//! last few.
//!
//! A guess costs a row; a correct one saves a step. So guesses get longer while they are correct. After wrong
//! guesses they pause, each time for longer. Guesses never change the chosen tokens. The chooser sees the
//! same logits for each token, and rows after a wrong guess are discarded.

/// Maximum number of tokens guessed at once: by measurement, seven rows take less than twice the time of one
/// row.
const LONGEST: usize = 6;

/// How many last tokens must occur earlier for a guess, longest first.
const PATTERNS: [usize; 2] = [3, 2];

/// How many tokens back the search goes: it takes some microseconds.
const LOOKBACK: usize = 8_192;

/// Maximum number of steps without guesses after wrong guesses.
const LONGEST_PAUSE: u32 = 32;

/// The guesses of one sequence, and their success.
#[derive(Debug, Clone)]
pub(super) struct Drafter {
    /// Tokens to guess at once.
    length: usize,
    /// Remaining steps without guesses.
    pause: u32,
    /// Steps without guesses after the next wrong guess.
    next_pause: u32,
}

impl Default for Drafter {
    fn default() -> Self {
        Self { length: 2, pause: 0, next_pause: 1 }
    }
}

impl Drafter {
    /// Guesses at most `most` tokens that may follow `tokens`.
    pub(super) fn guess<'a>(&mut self, tokens: &'a [u32], most: usize) -> &'a [u32] {
        if most == 0 {
            return &[];
        }
        if self.pause > 0 {
            self.pause -= 1;
            return &[];
        }
        lookup(tokens, self.length.min(most))
    }

    /// Records how many of `guessed` tokens were right.
    pub(super) fn learn(&mut self, guessed: usize, right: usize) {
        if guessed == 0 {
            return;
        }
        if right == guessed {
            self.length = (self.length * 2).min(LONGEST);
            self.next_pause = 1;
        } else if right == 0 {
            self.length = 1;
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        } else {
            self.length = right;
        }
    }
}

/// The tokens after the latest earlier occurrence of the last few `tokens`.
fn lookup(tokens: &[u32], most: usize) -> &[u32] {
    let tokens = &tokens[tokens.len().saturating_sub(LOOKBACK)..];
    for length in PATTERNS {
        let Some((_, pattern)) = tokens.split_at_checked(tokens.len().wrapping_sub(length)) else { continue };
        let earlier = &tokens[..tokens.len() - 1];
        if let Some(at) = earlier.windows(length).rposition(|window| window == pattern) {
            let follows = &tokens[at + length..];
            return &follows[..follows.len().min(most)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_the_continuation_of_last_time() {
        let check =
            |tokens: &[u32], most, wanted: &[u32]| assert_eq!(lookup(tokens, most), wanted, "{tokens:?}");
        check(&[], 4, &[]);
        check(&[1], 4, &[]);
        check(&[1, 1], 4, &[]);
        check(&[1, 2, 3, 9, 1, 2, 3], 2, &[9, 1]);
        check(&[1, 2, 3, 9, 1, 2, 3], 9, &[9, 1, 2, 3]);
        // The longer pattern wins; of equal patterns, the later place.
        check(&[1, 2, 3, 8, 5, 2, 3, 9, 1, 2, 3], 1, &[8]);
        check(&[2, 3, 8, 2, 3, 9, 4, 2, 3], 1, &[9]);
        // A run continues itself.
        check(&[7, 7, 7], 3, &[7]);
        check(&[1, 2, 3, 4, 5], 3, &[]);
    }

    #[test]
    fn wrong_guesses_pause_longer_and_longer_and_right_ones_grow() {
        let tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];
        let mut drafter = Drafter::default();
        for expected in [2, 4, 6, 6] {
            let guessed = drafter.guess(&tokens, 99).len();
            assert_eq!(guessed, expected);
            drafter.learn(guessed, guessed);
        }
        for pause in [1, 2, 4, 8, 16, 32, 32] {
            let guessed = drafter.guess(&tokens, 99).len();
            drafter.learn(guessed, 0);
            for _ in 0..pause {
                assert!(drafter.guess(&tokens, 99).is_empty());
            }
        }
        assert_eq!(drafter.guess(&tokens, 99).len(), 1);
        assert!(drafter.guess(&tokens, 0).is_empty());
    }
}
