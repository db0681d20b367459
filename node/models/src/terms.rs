//! Terms of use that must be accepted before a model is fetched, and the record of the acceptance.
//!
//! The record lies beside the model's file and holds the accepted text: changed terms must be accepted anew.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{CatalogueEntry, ModelError, record};

/// Longest notice in a catalogue.
const MAX_NOTICE_BYTES: usize = 8 << 10;

/// Conditions of use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// URL of their text.
    pub url: String,
    /// The notice shown before acceptance.
    pub notice: String,
}

impl Terms {
    /// Whether they can be printed on a terminal as they are.
    pub(crate) fn is_plain(&self) -> bool {
        let printable = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
        self.url.starts_with("https://")
            && !self.url.contains(char::is_whitespace)
            && printable(&self.url)
            && (1..=MAX_NOTICE_BYTES).contains(&self.notice.len())
            && printable(&self.notice)
    }
}

/// An acceptance of terms.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Acceptance {
    model: String,
    licence: String,
    terms: Terms,
    /// SHA-256 of the model's file.
    sha256: String,
    /// Milliseconds of Unix time.
    accepted_ms: u64,
}

/// Path of a model's acceptance record.
pub(crate) fn record_file(entry: &CatalogueEntry, directory: &Path) -> PathBuf {
    record::path_of(&directory.join(&entry.file), "accepted")
}

/// Refuses a model whose current terms are not accepted.
pub(crate) fn require(entry: &CatalogueEntry, directory: &Path) -> Result<(), ModelError> {
    let Some(terms) = &entry.terms else { return Ok(()) };
    let accepted = record::read::<Acceptance>(&record_file(entry, directory));
    match accepted {
        Some(accepted) if accepted.terms == *terms && accepted.licence == entry.licence => Ok(()),
        _ => Err(ModelError::TermsNotAccepted { name: entry.name.clone(), licence: entry.licence.clone() }),
    }
}

/// Records that a model's terms were accepted.
pub(crate) fn accept(entry: &CatalogueEntry, directory: &Path, accepted_ms: u64) -> Result<(), ModelError> {
    let Some(terms) = &entry.terms else { return Ok(()) };
    let acceptance = Acceptance {
        model: entry.name.clone(),
        licence: entry.licence.clone(),
        terms: terms.clone(),
        sha256: entry.sha256.to_string(),
        accepted_ms,
    };
    let path = record_file(entry, directory);
    let written = fs::create_dir_all(directory).and_then(|()| record::write(&path, &acceptance));
    written.map_err(|source| ModelError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalogue;

    fn catalogue(notice: &str) -> Catalogue {
        let text = format!(
            "[[model]]\nname = \"m\"\nfile = \"m.gguf\"\ndescription = \"\"\nlicence = \"Terms of M\"\nsize = 5\nsha256 = \"{}\"\n\
             [model.terms]\nurl = \"https://m.example/terms\"\nnotice = \"{notice}\"\n\
             [[model.part]]\npackage = \"p\"\nversion = \"1.0\"\npath = \"p/m\"\nsize = 5\n",
            "00".repeat(32)
        );
        Catalogue::parse(&text).unwrap()
    }

    #[test]
    fn a_model_with_terms_is_refused_until_they_are_accepted_and_again_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("models");
        let first = catalogue("Be good.");
        let refused = first.pull("m", &directory, &mut |_| panic!("nothing is begun")).unwrap_err();
        assert!(matches!(refused, ModelError::TermsNotAccepted { .. }), "{refused}");
        assert!(
            refused.to_string().contains("Terms of M") && refused.to_string().contains("--accept-licence")
        );
        assert_eq!(first.unaccepted("m", &directory).unwrap().unwrap().notice, "Be good.");
        first.accept("m", &directory, 1_700_000_000_000).unwrap();
        assert_eq!(first.unaccepted("m", &directory).unwrap(), None);
        let noted = fs::read_to_string(directory.join("m.gguf.accepted.json")).unwrap();
        assert!(noted.contains("1700000000000") && noted.contains("Be good."), "{noted}");

        let changed = catalogue("Be better.");
        assert!(changed.unaccepted("m", &directory).unwrap().is_some());
        changed.accept("m", &directory, 1).unwrap();
        assert_eq!(changed.unaccepted("m", &directory).unwrap(), None);
        // Removing the model removes the record.
        assert!(changed.remove("m", &directory).unwrap());
        assert!(changed.unaccepted("m", &directory).unwrap().is_some());
    }

    #[test]
    fn a_note_that_cannot_be_read_accepts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue("Be good.");
        let path = folder.path().join("m.gguf.accepted.json");
        for text in ["", "{}", "yes", &" ".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            assert!(catalogue.unaccepted("m", folder.path()).unwrap().is_some(), "{text}");
        }
    }

    #[test]
    fn refuses_terms_that_cannot_be_shown() {
        let terms = |url: &str, notice: &str| Terms { url: url.to_owned(), notice: notice.to_owned() };
        assert!(terms("https://m.example/terms", "one\ntwo").is_plain());
        for (url, notice) in [
            ("http://m.example", "n"),
            ("https://m.example /x", "n"),
            ("https://m.example", ""),
            ("https://m.example", "\u{1b}[2J"),
            ("https://m.example", &"n".repeat(MAX_NOTICE_BYTES + 1)),
        ] {
            assert!(!terms(url, notice).is_plain(), "{url} {notice}");
        }
    }
}
