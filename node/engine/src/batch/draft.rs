//! Guesses of the next tokens, out of the sequence's own: where the last few tokens stood before, what followed then.
//!
//! A guess costs a row; a right one saves a step. So guesses get longer while they are right, and stop for a while, each
//! time for longer, when they are not. What is guessed never changes what is chosen: the chooser is asked for each token
//! by the same logits, and rows after a wrong guess are thrown away.

/// Tokens that are guessed at once, at most: by measurement, seven rows take less than twice the time of one.
const LONGEST: usize = 6;

/// Tokens that must have stood before for a guess, longest first.
const PATTERNS: [usize; 2] = [3, 2];

/// How far back it is looked: some microseconds.
const LOOKBACK: usize = 8_192;

/// Steps without guesses after wrong ones, at most.
const LONGEST_PAUSE: u32 = 32;

/// Guesses of one sequence, and how right they were.
#[derive(Debug, Clone)]
pub(super) struct Drafter {
    /// Tokens to guess at once.
    length: usize,
    /// Steps without guesses still to come.
    pause: u32,
    /// Steps without guesses after the next wrong one.
    next_pause: u32,
}

impl Default for Drafter {
    fn default() -> Self {
        Self { length: 2, pause: 0, next_pause: 1 }
    }
}

impl Drafter {
    /// At most `most` tokens that may follow `tokens`.
    pub fn guess<'a>(&mut self, tokens: &'a [u32], most: usize) -> &'a [u32] {
        if most == 0 {
            return &[];
        }
        if self.pause > 0 {
            self.pause -= 1;
            return &[];
        }
        lookup(tokens, self.length.min(most))
    }

    /// Says how many of `guessed` tokens were right.
    pub fn learn(&mut self, guessed: usize, right: usize) {
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

/// What followed the last place where `tokens` had their last few tokens before.
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
    fn guesses_what_followed_last_time() {
        let check =
            |tokens: &[u32], most, wanted: &[u32]| assert_eq!(lookup(tokens, most), wanted, "{tokens:?}");
        check(&[], 4, &[]);
        check(&[1], 4, &[]);
        check(&[1, 1], 4, &[]);
        check(&[1, 2, 3, 9, 1, 2, 3], 2, &[9, 1]);
        check(&[1, 2, 3, 9, 1, 2, 3], 9, &[9, 1, 2, 3]);
        // The longer pattern first, and of equals the later place.
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
