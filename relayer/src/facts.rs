//! The facts file: what the relayer's operator, or owner, lets it remember, signed so that a changed file is
//! refused instead of injected into somebody's conversation.

use std::path::Path;

use baton_keys::{
    SIGNATURE_LEN, SecretSigningKey, contexts::FACTS, files::replace_private, ids::PublicKey, sign,
};
use baton_proto::{
    codec,
    limits::{MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS},
    memory::MemoryItem,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Largest facts file: the most items of the largest size, with room for JSON's escapes.
const MAX_FILE_BYTES: u64 = 4 * (MAX_MEMORY_ITEMS * MAX_MEMORY_ITEM_BYTES * 2) as u64;

/// Why a facts file was not used.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The file system said no.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It is not a facts file.
    #[error("{path} is not a facts file: {reason}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It was changed after it was signed, or signed by another relayer.
    #[error(
        "{path} does not carry this relayer's signature; if the change is yours, run `baton-relayer facts sign`"
    )]
    Signature {
        /// The file.
        path: String,
    },
    /// A fact or the list is too large.
    #[error(
        "a facts file has at most {MAX_MEMORY_ITEMS} facts of at most {MAX_MEMORY_ITEM_BYTES} bytes each"
    )]
    TooLarge,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactsFile {
    format: String,
    facts: Vec<FactLine>,
    signature: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FactLine {
    text: String,
    source: String,
    time_ms: u64,
}

/// Most bytes of text that a token stands for on average.
const BYTES_PER_TOKEN: u64 = 6;

const FORMAT: &str = "baton-facts-v1";

/// Facts in the order of their importance, best first.
#[derive(Debug, Clone, Default)]
pub struct Facts(Vec<MemoryItem>);

impl Facts {
    /// Reads a facts file and checks its signature.
    ///
    /// # Errors
    /// [`FactsError`], by cause.
    pub fn load(path: &Path, relayer: &PublicKey) -> Result<Self, FactsError> {
        let (facts, signature) = Self::read(path)?;
        let refused = || FactsError::Signature { path: path.display().to_string() };
        let mut bytes = [0u8; SIGNATURE_LEN];
        hex::decode_to_slice(&signature, &mut bytes).map_err(|_| refused())?;
        sign::verify(FACTS, relayer, &codec::encode_secret(&facts.0), &bytes).map_err(|_| refused())?;
        Ok(facts)
    }

    /// Reads a facts file whatever its signature, for its owner to look at and sign.
    ///
    /// # Errors
    /// [`FactsError`], by cause.
    pub fn load_unverified(path: &Path) -> Result<Self, FactsError> {
        Self::read(path).map(|(facts, _)| facts)
    }

    fn read(path: &Path) -> Result<(Self, String), FactsError> {
        let io_error = |source| FactsError::Io { action: "read", path: path.display().to_string(), source };
        if std::fs::metadata(path).map_err(io_error)?.len() > MAX_FILE_BYTES {
            return Err(FactsError::TooLarge);
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(io_error)?);
        let format_error = |reason: String| FactsError::Format { path: path.display().to_string(), reason };
        // The error's own text may quote a fact, and this goes to logs.
        let file: FactsFile = serde_json::from_str(&text).map_err(|error| {
            format_error(format!("line {}, column {} is not as it should be", error.line(), error.column()))
        })?;
        if file.format != FORMAT {
            return Err(format_error(format!("its format is not {FORMAT}")));
        }
        let mut facts = Self::default();
        for line in file.facts {
            facts.add(line.text, line.source, line.time_ms)?;
        }
        Ok((facts, file.signature))
    }

    /// Adds a fact at the end.
    ///
    /// # Errors
    /// [`FactsError::TooLarge`].
    pub fn add(&mut self, text: String, source: String, time_ms: u64) -> Result<(), FactsError> {
        let fits = self.0.len() < MAX_MEMORY_ITEMS
            && text.len() <= MAX_MEMORY_ITEM_BYTES
            && source.len() <= MAX_MEMORY_ITEM_BYTES;
        if !fits {
            return Err(FactsError::TooLarge);
        }
        self.0.push(MemoryItem { text, source, time_ms });
        Ok(())
    }

    /// Signs and writes the file, readable by its owner only.
    ///
    /// # Errors
    /// [`FactsError::Io`].
    pub fn save(&self, path: &Path, key: &SecretSigningKey) -> Result<(), FactsError> {
        let signature = key.sign(FACTS, &codec::encode_secret(&self.0));
        let line = |item: &MemoryItem| FactLine {
            text: item.text.clone(),
            source: item.source.clone(),
            time_ms: item.time_ms,
        };
        let file = FactsFile {
            format: FORMAT.to_owned(),
            facts: self.0.iter().map(line).collect(),
            signature: hex::encode(signature),
        };
        let mut text = Zeroizing::new(
            serde_json::to_string_pretty(&file).expect("strings and numbers always have a JSON form"),
        );
        text.push('\n');
        replace_private(path, text.as_bytes()).map_err(|source| FactsError::Io {
            action: "write",
            path: path.display().to_string(),
            source,
        })
    }

    /// All facts, best first.
    #[must_use]
    pub fn items(&self) -> &[MemoryItem] {
        &self.0
    }

    /// The best facts that may fit a token budget, at a generous six bytes a token: the node cuts by its model's
    /// real counts, so too many cost a little bandwidth and too few would lose memory.
    #[must_use]
    pub fn within(&self, budget_tokens: u32) -> Vec<MemoryItem> {
        let mut left = u64::from(budget_tokens).saturating_mul(BYTES_PER_TOKEN);
        let mut chosen = Vec::new();
        for item in &self.0 {
            let cost = (item.text.len() + item.source.len()) as u64;
            if cost > left {
                break;
            }
            left -= cost;
            chosen.push(item.clone());
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Facts {
        let mut facts = Facts::default();
        facts.add("the user's dog is called Biscuit".to_owned(), "told on Monday".to_owned(), 1).unwrap();
        facts.add("the user lives in Lisbon".to_owned(), "told on Tuesday".to_owned(), 2).unwrap();
        facts
    }

    #[test]
    fn a_saved_file_loads_under_its_own_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.json");
        let key = SecretSigningKey::generate();
        sample().save(&path, &key).unwrap();
        assert_eq!(Facts::load(&path, &key.public_key()).unwrap().items(), sample().items());
        let other = SecretSigningKey::generate().public_key();
        assert!(matches!(Facts::load(&path, &other), Err(FactsError::Signature { .. })));
    }

    #[test]
    fn refuses_a_changed_fact_until_it_is_signed_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.json");
        let key = SecretSigningKey::generate();
        sample().save(&path, &key).unwrap();
        let changed = std::fs::read_to_string(&path).unwrap().replace("Biscuit", "Rex");
        std::fs::write(&path, changed).unwrap();
        assert!(matches!(Facts::load(&path, &key.public_key()), Err(FactsError::Signature { .. })));
        Facts::load_unverified(&path).unwrap().save(&path, &key).unwrap();
        assert!(Facts::load(&path, &key.public_key()).is_ok());
    }

    #[test]
    fn refuses_malformed_and_oversized_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.json");
        let key = SecretSigningKey::generate().public_key();
        assert!(matches!(Facts::load(&path, &key), Err(FactsError::Io { .. })));
        for text in ["", "[]", r#"{"format":"other","facts":[],"signature":""}"#, r#"{"format":1}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Facts::load(&path, &key), Err(FactsError::Format { .. })), "{text}");
        }
        let secret = r#"{"format":"baton-facts-v1","facts":[{"text":"a","my secret":1}],"signature":""}"#;
        std::fs::write(&path, secret).unwrap();
        let said = Facts::load(&path, &key).unwrap_err().to_string();
        assert!(!said.contains("secret") && said.contains("line 1, column"), "{said}");
        let long = "x".repeat(MAX_MEMORY_ITEM_BYTES + 1);
        assert!(matches!(Facts::default().add(long, String::new(), 0), Err(FactsError::TooLarge)));
    }

    #[test]
    fn a_budget_takes_whole_facts_best_first() {
        let facts = sample();
        assert_eq!(facts.within(512).len(), 2);
        let item = &facts.items()[0];
        let first = u32::try_from(item.text.len() + item.source.len()).unwrap();
        assert_eq!(facts.within(first.div_ceil(6)).len(), 1);
        assert!(facts.within(0).is_empty());
    }
}
