//! Keys with names, for the people and programs of a household: each with a project, quotas and an end.
//!
//! They are kept in a file of the home folder, which has only hashes of the keys. Another process may change
//! the file while the endpoint runs; the endpoint reads it again.

pub(crate) mod accounts;
pub(crate) mod usage;

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_keys::files::{self, KeyFileError};
use baton_proto::text::is_same_name;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Most keys with names.
pub const MAX_KEYS: usize = 100;
/// Longest name of a key or project, in bytes.
pub const MAX_KEY_NAME_BYTES: usize = 64;
/// Largest file of keys.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Prefix of a generated key, so that a leaked one is recognisable.
const KEY_PREFIX: &str = "sk-baton-";
/// The files' names in the home folder.
const KEYS_FILE: &str = "serve.keys.json";
const LOCK_FILE: &str = "serve.keys.lock";

/// A new random key: 32 bytes in hex, after a prefix.
#[must_use]
pub fn generate_key() -> Zeroizing<String> {
    let random = Zeroizing::new(baton_keys::secret::random_bytes::<32>());
    Zeroizing::new(format!("{KEY_PREFIX}{}", hex::encode(*random)))
}

/// A key with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NamedKey {
    /// Its name.
    pub name: String,
    /// BLAKE3 hash of the key, in hex. A key is random, so its hash tells nothing of it.
    hash: String,
    /// The project of its sessions: a key sees the sessions of its project alone.
    pub project: String,
    /// Whether its turns may recall memory and be remembered.
    pub memory: bool,
    /// Its quotas.
    pub quotas: KeyQuotas,
    /// When it was made, in seconds since the Unix epoch.
    pub created_s: u64,
    /// When it ends, in seconds since the Unix epoch.
    pub expires_s: Option<u64>,
}

/// Quotas of a key; none is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyQuotas {
    /// Most requests for turns and vectors that come in an hour (of UTC).
    pub requests_per_hour: Option<u64>,
    /// Most tokens in a day (of UTC): those of input and answers, as receipts count them.
    pub tokens_per_day: Option<u64>,
}

/// A failure with the file of keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyListError {
    /// The file may be read by others, or cannot be read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The file has another form.
    #[error("{path} is not a list of keys: {reason}; restore it, or remove it and add the keys again")]
    Form {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// No key has this name.
    #[error("no key is named {name:?}; {}", known_names(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The names of all keys.
        known: Vec<String>,
    },
    /// A key has this name already.
    #[error("a key is named {0:?} already; change it with baton serve keys change, or choose another name")]
    Exists(String),
    /// No more keys are kept.
    #[error("there are {MAX_KEYS} keys already; remove one of them first")]
    Full,
    /// Not a name of a key or project.
    #[error("{0:?} is no name: 1 to {MAX_KEY_NAME_BYTES} letters, digits, hyphens, dots and underscores")]
    Name(String),
}

fn known_names(known: &[String]) -> String {
    if known.is_empty() { "there are none".to_owned() } else { format!("known: {}", known.join(", ")) }
}

/// The keys as the file has them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyList {
    version: u32,
    keys: Vec<NamedKey>,
}

/// The version of the file's form.
const VERSION: u32 = 1;

/// The file with the keys of a home.
#[derive(Debug, Clone)]
pub struct KeyListFile {
    path: PathBuf,
}

impl KeyListFile {
    /// The file of a home folder; it may not exist yet.
    #[must_use]
    pub fn of_home(home: &Path) -> Self {
        Self { path: home.join(KEYS_FILE) }
    }

    /// The keys, by name.
    ///
    /// # Errors
    /// [`KeyListError::File`] and [`KeyListError::Form`].
    pub fn keys(&self) -> Result<Vec<NamedKey>, KeyListError> {
        let Some(bytes) = files::read_secret(&self.path, "a list of keys", MAX_FILE_BYTES)? else {
            return Ok(Vec::new());
        };
        let form = |reason: String| KeyListError::Form { path: self.path.clone(), reason };
        let list: KeyList = serde_json::from_slice(&bytes).map_err(|error| form(error.to_string()))?;
        if list.version != VERSION {
            return Err(form(format!("version {} is not known", list.version)));
        }
        if list.keys.len() > MAX_KEYS {
            return Err(form(format!("it has more than {MAX_KEYS} keys")));
        }
        Ok(list.keys)
    }

    /// Adds a key. Only the returned text has the key itself.
    ///
    /// # Errors
    /// [`KeyListError`], by cause.
    pub fn add(
        &self,
        name: &str,
        now_s: u64,
        change: impl FnOnce(&mut NamedKey),
    ) -> Result<(NamedKey, Zeroizing<String>), KeyListError> {
        check_name(name)?;
        let text = generate_key();
        let added = self.edit(|keys| {
            if keys.iter().any(|key| is_same_name(&key.name, name)) {
                return Err(KeyListError::Exists(name.to_owned()));
            }
            if keys.len() >= MAX_KEYS {
                return Err(KeyListError::Full);
            }
            let mut key = NamedKey {
                name: name.to_owned(),
                hash: hash(text.as_bytes()),
                project: name.to_owned(),
                memory: false,
                quotas: KeyQuotas::default(),
                created_s: now_s,
                expires_s: None,
            };
            change(&mut key);
            check_name(&key.project)?;
            keys.push(key.clone());
            Ok(key)
        });
        Ok((added?, text))
    }

    /// Changes a key.
    ///
    /// # Errors
    /// [`KeyListError`], by cause.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut NamedKey)) -> Result<NamedKey, KeyListError> {
        self.edit(|keys| {
            let mut key = take(keys, name)?;
            change(&mut key);
            check_name(&key.project)?;
            keys.push(key.clone());
            Ok(key)
        })
    }

    /// Removes a key. A running endpoint refuses it within a second.
    ///
    /// # Errors
    /// [`KeyListError`], by cause.
    pub fn remove(&self, name: &str) -> Result<NamedKey, KeyListError> {
        self.edit(|keys| take(keys, name))
    }

    /// Changes the list, while other processes that would change it wait. Returns the changed key.
    fn edit(
        &self,
        edit: impl FnOnce(&mut Vec<NamedKey>) -> Result<NamedKey, KeyListError>,
    ) -> Result<NamedKey, KeyListError> {
        let failed = |action, source| KeyFileError::Io { action, path: self.path.clone(), source };
        let _lock = self.lock().map_err(|source| failed("lock", source))?;
        let mut keys = self.keys()?;
        let edited = edit(&mut keys)?;
        keys.sort_by(|a, b| a.name.cmp(&b.name));
        let text = serde_json::to_string_pretty(&KeyList { version: VERSION, keys }).unwrap_or_default();
        files::replace_private(&self.path, format!("{text}\n").as_bytes())
            .map_err(|source| failed("write", source))?;
        Ok(edited)
    }

    /// Excludes other processes that change the file, until the lock is dropped.
    fn lock(&self) -> io::Result<File> {
        let path = self.path.with_file_name(LOCK_FILE);
        path.parent().map_or(Ok(()), files::create_private_folder)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        file.lock().map(|()| file)
    }
}

impl NamedKey {
    /// Whether a program sent this key. Takes the same time for each key.
    fn is_key(&self, hash: &str) -> bool {
        self.hash.as_bytes().ct_eq(hash.as_bytes()).into()
    }
}

/// The caller of a request.
#[derive(Debug, Clone, Default)]
pub(crate) enum Caller {
    /// The home's owner, who sees every session and has no quota.
    #[default]
    Owner,
    /// A program with a key that has a name.
    Key(Arc<NamedKey>),
}

impl Caller {
    /// The project whose sessions it sees; none for all.
    pub(crate) fn project(&self) -> Option<&str> {
        match self {
            Self::Owner => None,
            Self::Key(key) => Some(&key.project),
        }
    }

    /// Whether it may use memory, where the endpoint has any.
    pub(crate) fn may_use_memory(&self) -> bool {
        match self {
            Self::Owner => true,
            Self::Key(key) => key.memory,
        }
    }
}

/// Takes a key out of the list.
fn take(keys: &mut Vec<NamedKey>, name: &str) -> Result<NamedKey, KeyListError> {
    let place = keys.iter().position(|key| is_same_name(&key.name, name)).ok_or_else(|| {
        let known = keys.iter().map(|key| key.name.clone()).collect();
        KeyListError::Unknown { name: name.to_owned(), known }
    })?;
    Ok(keys.remove(place))
}

fn hash(key: &[u8]) -> String {
    blake3::hash(key).to_hex().to_string()
}

fn check_name(name: &str) -> Result<(), KeyListError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let fits = !name.is_empty() && name.len() <= MAX_KEY_NAME_BYTES && name.bytes().all(allowed);
    if fits { Ok(()) } else { Err(KeyListError::Name(name.chars().take(MAX_KEY_NAME_BYTES).collect())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, KeyListFile) {
        let home = tempfile::tempdir().unwrap();
        let file = KeyListFile::of_home(home.path());
        (home, file)
    }

    #[test]
    fn a_key_is_shown_once_and_the_file_has_only_its_hash() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_home, file) = file();
        assert!(file.keys().unwrap().is_empty(), "no file yet");
        let (key, text) = file.add("anna", 7, |_| {}).unwrap();
        assert_eq!((key.project.as_str(), key.memory, key.created_s), ("anna", false, 7));
        assert!(text.starts_with(KEY_PREFIX) && text.len() == KEY_PREFIX.len() + 64);
        let kept = std::fs::read_to_string(&file.path).unwrap();
        assert!(!kept.contains(text.as_str()) && !kept.contains(&text[KEY_PREFIX.len()..]));
        assert_eq!(std::fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(key.is_key(&hash(text.as_bytes())) && !key.is_key(&hash(b"other")));
        assert_eq!(file.keys().unwrap(), [key]);
    }

    #[test]
    fn keys_are_changed_and_removed_by_name() {
        let (_home, file) = file();
        let (before, _) = file.add("ben", 0, |_| {}).unwrap();
        file.add("anna", 0, |_| {}).unwrap();
        let again = file.add("Anna", 0, |_| {});
        assert!(
            matches!(again, Err(KeyListError::Exists(_))),
            "a name has no case: its project would be anna's"
        );
        let change = |key: &mut NamedKey| {
            key.project = "family".to_owned();
            (key.quotas.tokens_per_day, key.expires_s) = (Some(10), Some(5));
        };
        let after = file.change("ben", change).unwrap();
        assert_eq!((after.project.as_str(), after.quotas.tokens_per_day), ("family", Some(10)));
        assert_eq!(after.hash, before.hash, "the same key");
        let names: Vec<String> = file.keys().unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["anna", "ben"]);
        file.remove("ben").unwrap();
        let gone = file.remove("ben").unwrap_err().to_string();
        assert!(gone.contains("known: anna"), "{gone}");
    }

    #[test]
    fn wrong_names_and_too_many_keys_are_refused_and_change_nothing() {
        let (_home, file) = file();
        for name in ["", "a b", "é", "a/b", &"x".repeat(MAX_KEY_NAME_BYTES + 1)] {
            assert!(matches!(file.add(name, 0, |_| {}), Err(KeyListError::Name(_))), "{name}");
        }
        let project = |key: &mut NamedKey| key.project = "a/b".to_owned();
        assert!(matches!(file.add("a", 0, project), Err(KeyListError::Name(_))));
        assert!(file.keys().unwrap().is_empty());
        for number in 0..MAX_KEYS {
            file.add(&number.to_string(), 0, |_| {}).unwrap();
        }
        assert!(matches!(file.add("0", 0, |_| {}), Err(KeyListError::Exists(_))));
        assert!(matches!(file.add("one-more", 0, |_| {}), Err(KeyListError::Full)));
        assert_eq!(file.keys().unwrap().len(), MAX_KEYS);
    }

    #[test]
    fn a_damaged_or_readable_file_is_an_error_that_names_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_home, file) = file();
        for damaged in
            ["", "{", "[]", "{\"version\":2,\"keys\":[]}", "{\"version\":1,\"keys\":[],\"more\":1}"]
        {
            files::replace_private(&file.path, damaged.as_bytes()).unwrap();
            let error = file.keys().unwrap_err().to_string();
            assert!(error.contains("serve.keys.json"), "{error}");
            assert!(file.add("a", 0, |_| {}).is_err(), "nothing is overwritten");
        }
        std::fs::set_permissions(&file.path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(file.keys(), Err(KeyListError::File(KeyFileError::Permissions { .. }))));
    }
}
