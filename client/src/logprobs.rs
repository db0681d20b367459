//! Token probabilities of an answer, as its node reports them: checked for form and bounded. The numbers
//! cannot be verified, and are not signed.

use baton_proto::{
    ErrorCode,
    wire::{TokenBytes, TokenLogprob},
};
use zeroize::{Zeroize, Zeroizing};

/// Longest token of any vocabulary in use, many times over.
const MAX_TOKEN_BYTES: usize = 1024;
/// Bytes of all tokens of a reply: the longest answer with the most alternatives, at ordinary lengths.
const MAX_SPELLED_BYTES: usize = 16 * 1024 * 1024;

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
    /// Bytes of the next event's tokens.
    spelled: Option<Vec<TokenBytes>>,
    bytes: usize,
    /// Arrived reports, including those of another node that began the answer.
    pub(crate) taken: Zeroizing<Vec<TokenReport>>,
}

impl Reports {
    pub(crate) fn new(asked: u8) -> Self {
        Self { asked, spelled: None, bytes: 0, taken: Zeroizing::default() }
    }

    /// Takes the bytes of the next event's tokens.
    pub(crate) fn spell(&mut self, tokens: Vec<TokenBytes>) -> Result<(), ErrorCode> {
        if self.asked == 0 || self.spelled.is_some() || tokens.is_empty() {
            return Err(ErrorCode::NonCanonical);
        }
        self.bytes += tokens.iter().map(|token| token.0.len()).sum::<usize>();
        if self.bytes > MAX_SPELLED_BYTES || tokens.iter().any(|token| token.0.len() > MAX_TOKEN_BYTES) {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.spelled = Some(tokens);
        Ok(())
    }

    /// Takes the probabilities of these tokens, each with the requested number of alternatives; returns their
    /// reports.
    pub(crate) fn take(
        &mut self,
        ids: &[u32],
        logprobs: &[TokenLogprob],
    ) -> Result<Vec<TokenReport>, ErrorCode> {
        let spelled = self.spelled.take().unwrap_or_default();
        if self.asked == 0 || ids.is_empty() {
            let nothing = logprobs.is_empty() && spelled.is_empty();
            // An engine without ids cannot report probabilities, and must not pretend to.
            return if nothing && self.asked == 0 { Ok(Vec::new()) } else { Err(ErrorCode::NonCanonical) };
        }
        let each = usize::from(self.asked) + 1;
        let fits = ids.len().checked_mul(each) == Some(logprobs.len()) && logprobs.len() == spelled.len();
        let sound = logprobs.iter().all(|one| one.millinats <= 0);
        if !fits || !sound {
            return Err(ErrorCode::NonCanonical);
        }
        let mut tokens = logprobs.iter().zip(spelled).map(|(one, TokenBytes(bytes))| LikelyToken {
            id: one.token,
            bytes,
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
    use super::*;

    fn logprobs(all: &[(u32, i32)]) -> Vec<TokenLogprob> {
        all.iter().map(|&(token, millinats)| TokenLogprob { token, millinats }).collect()
    }

    fn bytes(all: &[&[u8]]) -> Vec<TokenBytes> {
        all.iter().map(|bytes| TokenBytes(bytes.to_vec())).collect()
    }

    #[test]
    fn each_token_comes_with_its_bytes_and_alternatives() {
        let mut reports = Reports::new(1);
        reports.spell(bytes(&[b"a", b"b", b"\xe2", b"\xe2"])).unwrap();
        let taken = reports.take(&[1, 3], &logprobs(&[(1, -125), (2, -1), (3, 0), (3, 0)])).unwrap();
        assert_eq!((taken.len(), taken[0].token.logprob, taken[0].likeliest[0].id), (2, -0.125, 2));
        assert_eq!((taken[1].token.bytes.as_slice(), taken[1].likeliest[0].logprob), (&b"\xe2"[..], 0.0));
        assert_eq!(*reports.taken, taken);
    }

    #[test]
    fn what_was_not_asked_for_or_does_not_fit_is_refused() {
        let take = |asked, spelled: &[&[u8]], ids: &[u32], all: &[(u32, i32)]| {
            let mut reports = Reports::new(asked);
            if !spelled.is_empty() {
                reports.spell(bytes(spelled))?;
            }
            reports.take(ids, &logprobs(all)).map(|taken| taken.len())
        };
        assert_eq!(take(0, &[], &[1], &[]), Ok(0));
        assert_eq!(take(0, &[], &[], &[]), Ok(0));
        assert_eq!(take(1, &[b"a", b"a"], &[1], &[(1, 0), (1, 0)]), Ok(1));
        /// Requested alternatives, spelled bytes, ids, and reported probabilities.
        type Case<'a> = (u8, &'a [&'a [u8]], &'a [u32], &'a [(u32, i32)]);
        let refused: [Case<'_>; 8] = [
            (0, &[], &[1], &[(1, 0)]),
            (0, &[b"a"], &[1], &[]),
            (1, &[], &[1], &[]),
            (1, &[], &[], &[]),
            (1, &[], &[1], &[(1, 0), (1, 0)]),
            (1, &[b"a"], &[1], &[(1, 0), (1, 0)]),
            (1, &[b"a", b"a"], &[2], &[(1, 0), (1, 0)]),
            (1, &[b"a", b"a"], &[1], &[(1, 1), (1, 0)]),
        ];
        for (asked, spelled, ids, all) in refused {
            assert_eq!(
                take(asked, spelled, ids, all),
                Err(ErrorCode::NonCanonical),
                "{spelled:?} {ids:?} {all:?}"
            );
        }
        let long = [b'x'; MAX_TOKEN_BYTES + 1];
        assert_eq!(Reports::new(1).spell(bytes(&[&long])), Err(ErrorCode::FrameTooLarge));
        let mut twice = Reports::new(1);
        twice.spell(bytes(&[b"a"])).unwrap();
        assert_eq!(twice.spell(bytes(&[b"a"])), Err(ErrorCode::NonCanonical));
    }
}
