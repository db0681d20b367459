//! Bearer tokens for agents, which sign nothing: an account's address, and the seed of a key that the account
//! delegates to. A relayer derives the key, and looks up its delegation.

use zeroize::{Zeroize as _, Zeroizing};

use crate::{secret::random_bytes, sign::SecretSigningKey};

/// The beginning of a token, so that a leaked one is recognisable.
const PREFIX: &str = "baton-token-";
/// Hex digits of the address, and of the seed.
const DIGITS: usize = 64;

/// A token, as text: `baton-token-`, then 64 hex digits of the account's address, then 64 of the seed.
#[derive(Clone)]
pub struct AgentToken {
    account: String,
    key: SecretSigningKey,
}

impl AgentToken {
    /// A new random token for an account: `0x` and 64 hex digits.
    #[must_use]
    pub fn generate(account: &str) -> Self {
        let seed = Zeroizing::new(random_bytes());
        Self { account: account.to_owned(), key: SecretSigningKey::from_seed(&seed) }
    }

    /// Reads a token; none if the text has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (account, digits) = text.strip_prefix(PREFIX)?.split_at_checked(DIGITS)?;
        let is_lower_hex = account.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut seed = [0; 32];
        hex::decode_to_slice(digits, &mut seed).ok()?;
        let key = SecretSigningKey::from_seed(&seed);
        seed.zeroize();
        is_lower_hex.then(|| Self { account: format!("0x{account}"), key })
    }

    /// The token's text, which is as secret as a key.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<String> {
        let seed = Zeroizing::new(hex::encode(*self.key.expose_seed()));
        Zeroizing::new(format!("{PREFIX}{}{}", self.account.trim_start_matches("0x"), *seed))
    }

    /// The account's address: `0x` and 64 hex digits.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// The key that the account delegates to.
    #[must_use]
    pub fn key(&self) -> &SecretSigningKey {
        &self.key
    }
}

impl std::fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentToken").field("account", &self.account).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_shows_no_secret() {
        let account = format!("0x{}", "0a".repeat(32));
        let token = AgentToken::generate(&account);
        let text = token.expose();
        assert_eq!(text.len(), PREFIX.len() + 2 * DIGITS);
        let read = AgentToken::parse(&text).unwrap();
        assert_eq!((read.account(), read.key().public_key()), (account.as_str(), token.key().public_key()));
        assert!(!format!("{token:?}").contains(&text[PREFIX.len() + DIGITS..]));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let text = AgentToken::generate(&format!("0x{}", "ab".repeat(32))).expose().to_string();
        for other in [
            "",
            "baton-token-",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}0"),
            &text.replace("ab", "AB"),
            &text.replace("ab", "é"),
        ] {
            assert!(AgentToken::parse(other).is_none(), "{other}");
        }
    }
}
