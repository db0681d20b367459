//! The data directory: created once, private, and used by one process at a time.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use baton_keys::files;
use baton_kit::config::Value;

use crate::{
    config::{CONFIG_FILE, Settings, commented_file},
    failure::{Exit, Failure},
    identity::{NODE_KEY_FILE, create_node_key},
};

/// Lock file of the process that uses the directory.
const LOCK_FILE: &str = "node.lock";
/// File with the admin address of that process.
const ADMIN_FILE: &str = "admin.address";
/// Largest such file: an IPv6 address with its port.
const MAX_ADMIN_BYTES: u64 = 64;

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room on the disk, then start again"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; this user may not write there: change the owner, or name another folder with --data-dir"
        }
        _ => "",
    }
}

/// A file operation that failed.
fn failed(action: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let text = format!("cannot {action} {}", path.display());
    move |error| Failure::text(Exit::Storage, format!("{text}: {error}{}", hint(&error)))
}

/// The result of [`prepare`]: `true` for created parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrepareReport {
    /// The folder.
    pub(crate) folder: bool,
    /// The node key.
    pub(crate) key: bool,
    /// The configuration file.
    pub(crate) config: bool,
    /// The folder's permission bits, if other users can read it.
    pub(crate) open_mode: Option<u32>,
}

/// Creates the missing parts of folder, node key and configuration file. A new configuration sets the options
/// of `given`. Overwrites nothing of the operator's: only a configuration that is as an earlier call without
/// options wrote it takes the options later.
///
/// # Errors
/// [`Failure`], by cause.
pub(crate) fn prepare(
    folder: &Path,
    config: Option<&Path>,
    given: &[(&'static str, Value)],
) -> Result<PrepareReport, Failure> {
    let mut made = PrepareReport::default();
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => made.open_mode = open_mode(&metadata),
        Ok(_) => {
            let text = format!("{} is not a folder; name another with --data-dir", folder.display());
            return Err(Failure::text(Exit::Storage, text));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::create_private_folder(folder).map_err(failed("make the data directory", folder))?;
            made.folder = true;
        }
        Err(error) => return Err(failed("look into", folder)(error)),
    }
    made.key = create_node_key(folder)?;
    if let Some(config) = config {
        // A file elsewhere must name the data's location; the folder's own file needs no such entry.
        let elsewhere = (config != folder.join(CONFIG_FILE)).then_some(folder);
        match files::write_private(config, commented_file(elsewhere, given).as_bytes()) {
            Ok(()) => made.config = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !given.is_empty() && is_untouched(folder, config) {
                    files::replace_private(config, commented_file(elsewhere, given).as_bytes())
                        .map_err(failed("write the configuration", config))?;
                    made.config = true;
                }
            }
            Err(error) => return Err(failed("write the configuration", config)(error)),
        }
    }
    Ok(made)
}

/// Whether a configuration is as [`prepare`] writes it without options: nothing in it is the operator's.
#[must_use]
pub(crate) fn is_untouched(folder: &Path, config: &Path) -> bool {
    let elsewhere = (config != folder.join(CONFIG_FILE)).then_some(folder);
    let fresh = commented_file(elsewhere, &[]);
    let same_length = fs::metadata(config).is_ok_and(|metadata| metadata.len() == fresh.len() as u64);
    same_length && fs::read_to_string(config).is_ok_and(|text| text == fresh)
}

/// The permission bits of a file or folder, if other users can read it.
pub(crate) fn open_mode(metadata: &fs::Metadata) -> Option<u32> {
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// A data directory in use by this process.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Opens the directory of these settings. If it is missing, does the work of `init` and logs it.
    ///
    /// # Errors
    /// [`Failure`], by cause.
    pub(crate) fn open_or_prepare(settings: &Settings) -> Result<Self, Failure> {
        let path = &settings.data_dir();
        let config = (settings.config.is_none() && !path.exists()).then(|| path.join(CONFIG_FILE));
        let made = prepare(path, config.as_deref(), &[])?;
        if made.folder {
            tracing::info!(data_dir = %path.display(), "first start: made a data directory, a node key and a configuration file");
        } else if made.key {
            tracing::info!(key = %path.join(NODE_KEY_FILE).display(), "made a node key");
        }
        if let Some(mode) = made.open_mode {
            tracing::warn!(data_dir = %path.display(), mode = format!("{mode:o}"), "others on this machine can look into the data directory: run chmod 700 on it");
        }
        let home = Self::lock(path)?;
        // A killed process left it.
        let _ = fs::remove_file(path.join(ADMIN_FILE));
        Ok(home)
    }

    /// Notes the admin address of this process, for commands with this data directory. They find the node
    /// without the note too, if they are given the address: so a failure is only logged.
    pub(crate) fn note_admin(&self, address: SocketAddr) {
        let path = self.path.join(ADMIN_FILE);
        if let Err(error) = fs::write(&path, format!("{address}\n")) {
            tracing::warn!(%error, path = %path.display(), "cannot note the admin address: commands need --admin");
        }
    }

    /// The admin address of the process that uses the directory, if it noted one.
    #[must_use]
    pub(crate) fn running_admin(path: &Path) -> Option<SocketAddr> {
        if !Self::is_in_use(path) {
            return None;
        }
        let mut text = String::new();
        File::open(path.join(ADMIN_FILE)).ok()?.take(MAX_ADMIN_BYTES).read_to_string(&mut text).ok()?;
        // Only a node of this machine is believed.
        text.trim().parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback())
    }

    /// Locks an existing directory for this process.
    ///
    /// # Errors
    /// Another process holds it, or it cannot be written.
    pub(crate) fn lock(path: &Path) -> Result<Self, Failure> {
        let file = path.join(LOCK_FILE);
        let mut options = File::options();
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file)
            .map_err(failed("write", &file))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The owner only improves the message.
                let _ = (&lock).take(32).read_to_string(&mut owner);
                let owner =
                    owner.trim().parse::<u32>().map(|id| format!(" (process {id})")).unwrap_or_default();
                let text = format!(
                    "another baton-node{owner} uses {}; stop it, or give this one its own --data-dir",
                    path.display()
                );
                return Err(Failure::text(Exit::Storage, text));
            }
            Err(TryLockError::Error(error)) => return Err(failed("write", &file)(error)),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .and_then(|()| lock.sync_all())
            .map_err(failed("write", &file))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Whether another process uses the directory. Creates and changes no file: the caller may be another
    /// user, and the node could not use that user's files.
    #[must_use]
    pub(crate) fn is_in_use(path: &Path) -> bool {
        let file = File::open(path.join(LOCK_FILE));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The folder.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunFlags;

    #[test]
    fn a_configuration_elsewhere_names_the_folder() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, config) = (parent.path().join("data"), parent.path().join("node.toml"));
        let publisher = [("publisher", Value::Array(vec![Value::String("https://p".to_owned())]))];
        prepare(&folder, Some(&config), &publisher).unwrap();
        let flags = RunFlags { config: Some(config), ..RunFlags::default() };
        let settings = Settings::load(flags).unwrap();
        assert_eq!((settings.data_dir(), settings.publisher()), (folder, vec!["https://p".to_owned()]));
    }

    #[test]
    fn a_second_process_learns_who_has_it() {
        let parent = tempfile::tempdir().unwrap();
        let held = DataDir::lock(parent.path()).unwrap();
        let refused = DataDir::lock(parent.path()).unwrap_err();
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        assert!(DataDir::is_in_use(parent.path()));
        assert_eq!(DataDir::running_admin(parent.path()), None);
        let admin = "127.0.0.1:9464".parse().unwrap();
        held.note_admin(admin);
        assert_eq!(DataDir::running_admin(parent.path()), Some(admin));
        drop(held);
        assert_eq!(DataDir::running_admin(parent.path()), None, "the note of a process that ended");
        assert!(!DataDir::is_in_use(parent.path()));
        DataDir::lock(parent.path()).unwrap();
        let empty = tempfile::tempdir().unwrap();
        assert!(!DataDir::is_in_use(empty.path()));
        assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_is_named_with_the_next_step() {
        assert!(hint(&io::ErrorKind::StorageFull.into()).contains("make room"));
    }
}
