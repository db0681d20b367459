//! Token probabilities of an answer, as its node reports them: checked for form and bounded. The numbers
//! cannot be verified, and are not signed.

use baton_proto::{ErrorCode, wire::TokenLogprob};
use zeroize::{Zeroize, Zeroizing};

/// Longest token of any vocabulary in use, many times over.
const MAX_TOKEN_BYTES: usize = 1024;
/// Bytes of all tokens of a reply: the longest answer with the most alternatives, at ordinary lengths.
const MAX_REPLY_TOKEN_BYTES: usize = 16 * 1024 * 1024;

/// A token with its bytes and its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct LikelyToken {
    /// Its number in the model's vocabulary.
    pub id: u32,
    /// Its bytes, not always whole characters; empty for a token without text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, to a thousandth.
    pub logprob: f64,
}

/// A token of an answer, with its alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenReport {
    /// The token.
    pub token: LikelyToken,
    /// The likeliest tokens at its position, likeliest first; often includes it.
    pub likeliest: Vec<LikelyToken>,
}

impl Zeroize for LikelyToken {
    fn zeroize(&mut self) {
        self.id.zeroize();
        self.bytes.zeroize();
        self.logprob.zeroize();
    }
}

impl Zeroize for TokenReport {
    fn zeroize(&mut self) {
        self.token.zeroize();
        self.likeliest.zeroize();
    }
}

/// The reports of one reply.
pub(crate) struct Reports {
    /// Requested alternatives; with none, nothing is reported.
    asked: u8,
    /// Arrived bytes of tokens.
    bytes: usize,
    /// Arrived reports, including those of another node that began the answer.
    pub(crate) taken: Zeroizing<Vec<TokenReport>>,
}

impl Reports {
    pub(crate) fn new(asked: u8) -> Self {
        Self { asked, bytes: 0, taken: Zeroizing::default() }
    }

    /// Takes the probabilities of these tokens, each with the requested number of alternatives; returns their
    /// reports.
    pub(crate) fn take(
        &mut self,
        ids: &[u32],
        logprobs: Vec<TokenLogprob>,
    ) -> Result<Vec<TokenReport>, ErrorCode> {
        if self.asked == 0 || ids.is_empty() {
            let nothing = logprobs.is_empty();
            // An engine without ids cannot report probabilities, and must not pretend to.
            return if nothing && self.asked == 0 { Ok(Vec::new()) } else { Err(ErrorCode::NonCanonical) };
        }
        let each = usize::from(self.asked) + 1;
        let fits = ids.len().checked_mul(each) == Some(logprobs.len());
        let sound = logprobs.iter().all(|one| one.millinats <= 0);
        if !fits || !sound {
            return Err(ErrorCode::NonCanonical);
        }
        self.bytes += logprobs.iter().map(|one| one.bytes.0.len()).sum::<usize>();
        let too_long = logprobs.iter().any(|one| one.bytes.0.len() > MAX_TOKEN_BYTES);
        if too_long || self.bytes > MAX_REPLY_TOKEN_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        let mut tokens = logprobs.into_iter().map(|one| LikelyToken {
            id: one.token,
            bytes: one.bytes.0,
            logprob: f64::from(one.millinats) / 1000.0,
        });
        let mut reports = Vec::with_capacity(ids.len());
        for id in ids {
            let token = tokens.next().filter(|token| token.id == *id).ok_or(ErrorCode::NonCanonical)?;
            let likeliest = tokens.by_ref().take(usize::from(self.asked)).collect();
            reports.push(TokenReport { token, likeliest });
        }
        self.taken.extend_from_slice(&reports);
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::wire::TokenBytes;

    use super::*;

    fn logprobs(all: &[(u32, i32, &[u8])]) -> Vec<TokenLogprob> {
        let logprob = |&(token, millinats, bytes): &(u32, i32, &[u8])| TokenLogprob {
            token,
            millinats,
            bytes: TokenBytes(bytes.to_vec()),
        };
        all.iter().map(logprob).collect()
    }

    #[test]
    fn each_token_comes_with_its_bytes_and_alternatives() {
        let mut reports = Reports::new(1);
        let reported = logprobs(&[(1, -125, b"a"), (2, -1, b"b"), (3, 0, b"\xe2"), (3, 0, b"\xe2")]);
        let taken = reports.take(&[1, 3], reported).unwrap();
        assert_eq!((taken.len(), taken[0].token.logprob, taken[0].likeliest[0].id), (2, -0.125, 2));
        assert_eq!((taken[1].token.bytes.as_slice(), taken[1].likeliest[0].logprob), (&b"\xe2"[..], 0.0));
        assert_eq!(*reports.taken, taken);
    }

    #[test]
    fn what_was_not_asked_for_or_does_not_fit_is_refused() {
        let take = |asked, ids: &[u32], all: &[(u32, i32, &[u8])]| {
            Reports::new(asked).take(ids, logprobs(all)).map(|taken| taken.len())
        };
        assert_eq!(take(0, &[1], &[]), Ok(0));
        assert_eq!(take(0, &[], &[]), Ok(0));
        assert_eq!(take(1, &[1], &[(1, 0, b"a"), (1, 0, b"a")]), Ok(1));
        /// Requested alternatives, ids, and reported probabilities.
        type Case<'a> = (u8, &'a [u32], &'a [(u32, i32, &'a [u8])]);
        let refused: [Case<'_>; 6] = [
            (0, &[1], &[(1, 0, b"a")]),
            (1, &[1], &[]),
            (1, &[], &[]),
            (1, &[1], &[(1, 0, b"a")]),
            (1, &[2], &[(1, 0, b"a"), (1, 0, b"a")]),
            (1, &[1], &[(1, 1, b"a"), (1, 0, b"a")]),
        ];
        for (asked, ids, all) in refused {
            assert_eq!(take(asked, ids, all), Err(ErrorCode::NonCanonical), "{ids:?} {all:?}");
        }
        let long = [b'x'; MAX_TOKEN_BYTES + 1];
        assert_eq!(take(1, &[1], &[(1, 0, &long), (1, 0, b"a")]), Err(ErrorCode::FrameTooLarge));
        let mut full = Reports { bytes: MAX_REPLY_TOKEN_BYTES - 1, ..Reports::new(1) };
        let two = logprobs(&[(1, 0, b"a"), (1, 0, b"a")]);
        assert_eq!(full.take(&[1], two), Err(ErrorCode::FrameTooLarge));
    }
}
