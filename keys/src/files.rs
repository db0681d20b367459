//! Key files: 32 secret bytes in a file that its owner alone may read, in the clear or under a passphrase.
//!
//! Layout, text: line 1 `baton-key-v1 <kind>`, line 2 either `plain <hex>` or
//! `argon2id <m KiB> <t> <p> <salt hex> <sealed hex>`. The sealed form is `XChaCha20-Poly1305` under Argon2id
//! (RFC 9106) of the passphrase, with line 1 as associated data.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use zeroize::{Zeroize as _, Zeroizing};

use crate::{
    contexts::AT_REST,
    seal::{OpenError, open_random, seal_random},
    secret::{kdf, random_bytes, secret_key},
};

/// Largest key file: a real file has a few hundred bytes.
const MAX_FILE_LEN: usize = 4096;
/// Argon2id memory in KiB (RFC 9106's second recommended choice).
const ARGON2_MEMORY_KIB: u32 = 64 * 1024;
/// Argon2id passes.
const ARGON2_PASSES: u32 = 3;
/// Highest Argon2id cost that a key file may name, so that a hostile file cannot exhaust memory or time.
const ARGON2_MAX_MEMORY_KIB: u32 = 1024 * 1024;
const ARGON2_MAX_PASSES: u32 = 16;

/// The failure to read or write a key file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file system refused.
    #[error("cannot {action} key file {path}: {source}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users may read the file.
    #[error("key file {path} can be read by others (mode {mode:o}): run chmod 600 on it")]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is empty: the mark of a full disk or a power cut while it was made.
    #[error(
        "key file {path} is empty, so it holds no key: a full disk or a power cut may have stopped its making; remove it, \
         and the next start makes a new key (if a key was in use here before, put its copy in the file's place)"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a key file of this kind.
    #[error("{path} is not a key file for {kind}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The expected kind.
        kind: String,
    },
    /// The file is sealed, and the caller gave no passphrase.
    #[error("key file {path} is protected by a passphrase")]
    PassphraseNeeded {
        /// The file.
        path: PathBuf,
    },
    /// The passphrase does not open it.
    #[error("wrong passphrase for key file {path}")]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
}

secret_key!(
    /// A secret read from a key file.
    FileSecret
);

impl FileSecret {
    /// A fresh random secret.
    #[must_use]
    pub fn generate() -> Self {
        Self(random_bytes())
    }

    /// Seals bytes for this program's own disk.
    #[must_use]
    pub fn seal(&self, associated: &[u8], text: &[u8]) -> Vec<u8> {
        seal_random(&Zeroizing::new(kdf(AT_REST, &[&self.0])), associated, text)
    }

    /// Opens bytes sealed by [`FileSecret::seal`].
    ///
    /// # Errors
    /// [`OpenError`] when secret, associated data or bytes do not belong together.
    pub fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_random(&Zeroizing::new(kdf(AT_REST, &[&self.0])), associated, sealed)
    }
}

/// Writes a new key file with mode 0600, flushed with its folder; never overwrites an existing file.
///
/// # Errors
/// [`KeyFileError::Io`], also when the file exists.
pub fn create(
    path: &Path,
    kind: &str,
    secret: &FileSecret,
    passphrase: Option<&str>,
) -> Result<(), KeyFileError> {
    let header = header(kind);
    let body = match passphrase {
        None => Zeroizing::new(format!("plain {}", hex::encode(secret.0))),
        Some(passphrase) => {
            let salt = random_bytes::<16>();
            let key = stretch(passphrase, &salt, ARGON2_MEMORY_KIB, ARGON2_PASSES, 1)
                .expect("the built-in Argon2 parameters are valid");
            let sealed = seal_random(&key, header.as_bytes(), &secret.0);
            let (salt, sealed) = (hex::encode(salt), hex::encode(sealed));
            Zeroizing::new(format!("argon2id {ARGON2_MEMORY_KIB} {ARGON2_PASSES} 1 {salt} {sealed}"))
        }
    };
    let text = Zeroizing::new(format!("{header}\n{}\n", *body));
    write_private(path, text.as_bytes()).map_err(|source| io_error("create", path, source))
}

/// Reads a key file.
///
/// # Errors
/// [`KeyFileError`], by cause.
pub fn load(path: &Path, kind: &str, passphrase: Option<&str>) -> Result<FileSecret, KeyFileError> {
    let text = read_private(path, kind)?;
    let format_error = || KeyFileError::Format { path: path.to_owned(), kind: kind.to_owned() };
    let (first, second) = text.trim_end().split_once('\n').ok_or_else(format_error)?;
    if first != header(kind) {
        return Err(format_error());
    }
    let words: Vec<&str> = second.split(' ').collect();
    match words.as_slice() {
        ["plain", secret] => {
            let mut bytes = [0u8; 32];
            hex::decode_to_slice(secret, &mut bytes).map_err(|_| format_error())?;
            let secret = FileSecret(bytes);
            bytes.zeroize();
            Ok(secret)
        }
        ["argon2id", memory, passes, lanes, salt, sealed] => {
            let parse = |word: &str| word.parse::<u32>().map_err(|_| format_error());
            let (memory, passes, lanes) = (parse(memory)?, parse(passes)?, parse(lanes)?);
            if memory > ARGON2_MAX_MEMORY_KIB || passes > ARGON2_MAX_PASSES || lanes > 4 {
                return Err(format_error());
            }
            let salt = hex::decode(salt).map_err(|_| format_error())?;
            let sealed = hex::decode(sealed).map_err(|_| format_error())?;
            let passphrase =
                passphrase.ok_or_else(|| KeyFileError::PassphraseNeeded { path: path.to_owned() })?;
            let key = stretch(passphrase, &salt, memory, passes, lanes).ok_or_else(format_error)?;
            let opened = open_random(&key, first.as_bytes(), &sealed)
                .map_err(|OpenError| KeyFileError::WrongPassphrase { path: path.to_owned() })?;
            Ok(FileSecret(opened.as_slice().try_into().map_err(|_| format_error())?))
        }
        _ => Err(format_error()),
    }
}

/// Whether a key file needs a passphrase; does not open it.
///
/// # Errors
/// [`KeyFileError`] when the file cannot be read.
pub fn needs_passphrase(path: &Path) -> Result<bool, KeyFileError> {
    Ok(read_private(path, "any use")?.lines().nth(1).is_some_and(|line| line.starts_with("argon2id ")))
}

fn header(kind: &str) -> String {
    format!("baton-key-v1 {kind}")
}

fn stretch(
    passphrase: &str,
    salt: &[u8],
    memory: u32,
    passes: u32,
    lanes: u32,
) -> Option<Zeroizing<[u8; 32]>> {
    let params = argon2::Params::new(memory, passes, lanes, Some(32)).ok()?;
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let mut key = Zeroizing::new([0u8; 32]);
    argon2.hash_password_into(passphrase.as_bytes(), salt, &mut key[..]).ok()?;
    Some(key)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> KeyFileError {
    KeyFileError::Io { action, path: path.to_owned(), source }
}

fn read_private(path: &Path, kind: &str) -> Result<Zeroizing<String>, KeyFileError> {
    let format_error = || KeyFileError::Format { path: path.to_owned(), kind: kind.to_owned() };
    let file = File::open(path).map_err(|source| io_error("open", path, source))?;
    check_mode(path, &file)?;
    // Room for the longest key file: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_FILE_LEN + 1));
    // One byte more than the longest key file, to detect a longer file.
    match file.take(MAX_FILE_LEN as u64 + 1).read_to_string(&mut text) {
        Ok(0) => Err(KeyFileError::Empty { path: path.to_owned() }),
        Ok(length) if length <= MAX_FILE_LEN => Ok(text),
        Ok(_) => Err(format_error()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(format_error()),
        Err(source) => Err(io_error("read", path, source)),
    }
}

#[cfg(unix)]
fn check_mode(path: &Path, file: &File) -> Result<(), KeyFileError> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = file.metadata().map_err(|source| io_error("inspect", path, source))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(KeyFileError::Permissions { path: path.to_owned(), mode }) }
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &File) -> Result<(), KeyFileError> {
    Ok(())
}

/// Writes a new file that its owner alone may read (0600), and flushes file and folder.
///
/// The file appears whole or not at all: its bytes are first written and flushed under a temporary name
/// beside it. A failure leaves nothing behind.
///
/// # Errors
/// The errors of the file system, with `AlreadyExists` among them: an existing file stays as it is.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_new_by(path, |file| file.write_all(bytes))
}

fn write_new_by(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = write_temporary(path, write)?;
    let named = name_new(&temporary, path);
    // After a hard link the temporary name is a second name; after a rename it is gone.
    let _ = fs::remove_file(&temporary);
    named?;
    sync_parent(path)
}

/// Names a file, unless the name is taken. A hard link never replaces a file. On a file system without hard
/// links: a check, then a rename.
fn name_new(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if fs::symlink_metadata(path).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(temporary, path),
        Ok(()) => Ok(()),
    }
}

/// Writes and flushes a private file under a temporary name beside `path`. A failure leaves nothing behind.
fn write_temporary(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", hex::encode(random_bytes::<4>())));
    let temporary = path.with_file_name(name);
    let mut file = create_new_private(&temporary)?;
    write(&mut file).and_then(|()| file.sync_all()).inspect_err(|_| {
        // Removal is best effort; the caller gets the first error.
        let _ = fs::remove_file(&temporary);
    })?;
    Ok(temporary)
}

fn create_new_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)
}

/// Replaces a private file whole: writes and flushes a file beside it, then renames that over it. A failure
/// leaves the old file as it was and nothing beside it.
///
/// # Errors
/// The errors of the file system.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_by(path, |file| file.write_all(bytes))
}

fn replace_by(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let temporary = write_temporary(path, write)?;
    fs::rename(&temporary, path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })?;
    sync_parent(path)
}

/// As [`replace_private`], for a file whose old secrets must be destroyed.
///
/// 1. The new file is written under `path` with `.new` added, flushed, and renamed over the old file.
/// 2. The old bytes are overwritten, as far as the file system allows. A copy-on-write one keeps them until
///    it needs space.
///
/// Callers must exclude each other. A crash leaves at most the `.new` file, for [`discard_leftover`].
///
/// # Errors
/// The errors of the file system. Until the rename the old file is unchanged.
pub fn replace_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    discard_leftover(path)?;
    let old = match OpenOptions::new().write(true).open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let temporary = leftover_of(path);
    let mut file = create_new_private(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent(path)?;
    if let Some(old) = old {
        // The new file is in place and the old file has no name: a failed wipe of its blocks undoes nothing.
        let _ = overwrite(&old);
    }
    Ok(())
}

/// Removes the file that a crash in [`replace_secret`] left.
///
/// # Errors
/// The errors of the file system.
pub fn discard_leftover(path: &Path) -> io::Result<()> {
    remove_secret(&leftover_of(path))
}

/// Removes a file of secrets: overwrites its bytes as far as possible and flushes its folder. A missing file
/// counts as removed.
///
/// # Errors
/// The errors of the file system.
pub fn remove_secret(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(path) {
        Ok(file) => {
            // The removal counts; see `replace_secret`.
            let _ = overwrite(&file);
            fs::remove_file(path)?;
            sync_parent(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn leftover_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn overwrite(mut file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    io::copy(&mut io::repeat(0).take(length), &mut file)?;
    file.sync_all()
}

/// Reads a file of secrets that its owner alone may read; `None` if it does not exist.
///
/// # Errors
/// [`KeyFileError`], also when others may read the file or when it exceeds `limit` bytes.
pub fn read_secret(path: &Path, kind: &str, limit: u64) -> Result<Option<Zeroizing<Vec<u8>>>, KeyFileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("open", path, source)),
    };
    check_mode(path, &file)?;
    let length = file.metadata().map_err(|source| io_error("inspect", path, source))?.len();
    let format_error = || KeyFileError::Format { path: path.to_owned(), kind: kind.to_owned() };
    let room = usize::try_from(length).ok().filter(|_| length <= limit).ok_or_else(format_error)?;
    // Room for the whole file: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(room + 1));
    file.take(length).read_to_end(&mut bytes).map_err(|source| io_error("read", path, source))?;
    Ok(Some(bytes))
}

/// Makes a folder, with its parents, that its owner alone may enter (0700).
///
/// # Errors
/// The errors of the file system.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn plain_and_sealed_files_round_trip_with_mode_0600() {
        let folder = tempfile::tempdir().unwrap();
        for (name, passphrase) in [("plain", None), ("sealed", Some("correct horse"))] {
            let path = folder.path().join(name);
            let secret = FileSecret::generate();
            create(&path, "test", &secret, passphrase).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(needs_passphrase(&path).unwrap(), passphrase.is_some());
            assert_eq!(load(&path, "test", passphrase).unwrap(), secret);
            assert!(matches!(load(&path, "other", passphrase), Err(KeyFileError::Format { .. })));
        }
    }

    #[test]
    fn refuses_wrong_or_missing_passphrase() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        create(&path, "test", &FileSecret::generate(), Some("right")).unwrap();
        assert!(matches!(load(&path, "test", None), Err(KeyFileError::PassphraseNeeded { .. })));
        assert!(matches!(load(&path, "test", Some("wrong")), Err(KeyFileError::WrongPassphrase { .. })));
    }

    #[test]
    fn refuses_files_that_others_can_read_and_never_overwrites() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        create(&path, "test", &FileSecret::generate(), None).unwrap();
        assert!(matches!(
            create(&path, "test", &FileSecret::generate(), None),
            Err(KeyFileError::Io { action: "create", .. })
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(load(&path, "test", None), Err(KeyFileError::Permissions { mode: 0o640, .. })));
    }

    #[test]
    fn refuses_malformed_files_and_hostile_parameters() {
        let folder = tempfile::tempdir().unwrap();
        for (index, body) in [
            "".to_owned(),
            "baton-key-v1 test\nplain 00".to_owned(),
            "baton-key-v1 test\nargon2id 4294967295 3 1 00 00".to_owned(),
            format!("baton-key-v1 test\nargon2id 8 1 1 {} 00", "00".repeat(16)),
            format!("baton-key-v1 test\nplain {} trailing", "00".repeat(32)),
        ]
        .iter()
        .enumerate()
        {
            let path = folder.path().join(index.to_string());
            write_private(&path, body.as_bytes()).unwrap();
            assert!(load(&path, "test", Some("x")).is_err(), "{body}");
        }
    }

    #[test]
    fn refuses_a_file_that_is_too_long_instead_of_cutting_it() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("baton-key-v1 test\nplain {}", "00".repeat(32));
        let path_of = |length: usize| {
            let path = folder.path().join(length.to_string());
            let blank = "\n".repeat(length - line.len());
            write_private(&path, format!("{line}{blank}").as_bytes()).unwrap();
            path
        };
        let longest = path_of(MAX_FILE_LEN);
        assert!(load(&longest, "test", None).is_ok());
        assert!(!needs_passphrase(&longest).unwrap());
        let longer = path_of(MAX_FILE_LEN + 1);
        assert!(matches!(load(&longer, "test", None), Err(KeyFileError::Format { .. })));
        assert!(matches!(needs_passphrase(&longer), Err(KeyFileError::Format { .. })));
        let path = folder.path().join("binary");
        write_private(&path, &[0xff; 9000]).unwrap();
        assert!(matches!(load(&path, "test", None), Err(KeyFileError::Format { .. })));
    }

    #[test]
    fn a_new_file_that_meets_a_full_disk_is_not_there_and_can_be_made_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.key");
        for written in [&b""[..], b"baton-key-v1 te"] {
            let failed = write_new_by(&path, |file| {
                file.write_all(written)?;
                Err(io::ErrorKind::StorageFull.into())
            });
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        create(&path, "test", &FileSecret::generate(), None).unwrap();
        assert!(load(&path, "test", None).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let again = write_private(&path, b"other").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(load(&path, "test", None).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_empty_key_file_is_named_with_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device.key");
        write_private(&path, b"").unwrap();
        let refused = load(&path, "test", None).unwrap_err();
        assert!(matches!(refused, KeyFileError::Empty { .. }));
        let text = refused.to_string();
        assert!(text.contains("device.key is empty") && text.contains("remove it"), "{text}");
        assert!(matches!(needs_passphrase(&path), Err(KeyFileError::Empty { .. })));
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_file_and_no_temporary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        replace_private(&path, b"one").unwrap();
        let failed = replace_by(&path, |file| {
            file.write_all(b"tw")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // The rename fails: a file cannot replace a folder.
        let occupied = folder.path().join("folder");
        fs::create_dir(&occupied).unwrap();
        assert!(replace_private(&occupied, b"one").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_replaced_secret_is_overwritten_in_its_old_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        replace_secret(&path, b"first secret").unwrap();
        // A second name for the old bytes, to observe the overwrite.
        let watched = folder.path().join("watched");
        fs::hard_link(&path, &watched).unwrap();
        replace_secret(&path, b"second").unwrap();
        assert_eq!(fs::read(&watched).unwrap(), [0; 12]);
        assert_eq!(read_secret(&path, "test", 100).unwrap().unwrap().as_slice(), b"second");
        assert!(matches!(read_secret(&path, "test", 5), Err(KeyFileError::Format { .. })));

        fs::remove_file(&watched).unwrap();
        fs::hard_link(&path, &watched).unwrap();
        remove_secret(&path).unwrap();
        assert_eq!(fs::read(&watched).unwrap(), [0; 6]);
        assert!(read_secret(&path, "test", 100).unwrap().is_none());
        remove_secret(&path).unwrap();
    }

    #[test]
    fn what_a_crash_left_beside_a_secret_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        replace_secret(&path, b"one").unwrap();
        write_private(&folder.path().join("keys.new"), b"half of tw").unwrap();
        replace_secret(&path, b"two").unwrap();
        assert_eq!(read_secret(&path, "test", 100).unwrap().unwrap().as_slice(), b"two");
        write_private(&folder.path().join("keys.new"), b"half of three").unwrap();
        discard_leftover(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn replace_keeps_the_mode_and_leaves_no_temporary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        replace_private(&path, b"one").unwrap();
        replace_private(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
