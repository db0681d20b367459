//! Checks the data folder, its keys and its disk.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
};

use baton_keys::{
    files::{self, KeyFileError},
    master::MasterKey,
};
use baton_kit::{
    doctor::{Disk, check_space, try_to_write},
    output::shell_word,
};
use baton_memory::vault::Vault;

use super::{Check, Subject, codes};
use crate::data_folder::{KEY_FILE, KEY_KIND, MASTER_FILE};

/// The state of a key's file.
#[derive(Debug)]
enum KeyState {
    Opens,
    Missing,
    Readable(String),
    Broken(String),
}

/// The observations of this module.
#[derive(Debug)]
struct FileFacts {
    folder: PathBuf,
    /// Why the folder cannot be used; its kind tells a missing one.
    folder_error: Option<io::Error>,
    /// Folders with permissions for others, with their modes.
    open_folders: Vec<(PathBuf, u32)>,
    /// The keys' files, by name.
    keys: Vec<(&'static str, KeyState)>,
    /// Whether memory exists here that needs the keys.
    has_memory: bool,
    keys_dir: PathBuf,
    /// Whether the key folder belongs to the master key, if both can be read.
    keys_match: Option<bool>,
    /// Why owners' key files do not open.
    unreadable: Vec<String>,
    disk: Option<Disk>,
}

pub(super) fn check(subject: &Subject) -> Check {
    judge(&look(subject))
}

fn look(subject: &Subject) -> FileFacts {
    let settings = &subject.settings;
    let folder = &settings.data_dir;
    let master = MasterKey::load(&folder.join(MASTER_FILE), None);
    let keys_match = master.as_ref().ok().map(|master| Vault::has_master(&settings.keys_dir, master));
    let unreadable = match (&keys_match, MasterKey::load(&folder.join(MASTER_FILE), None)) {
        (Some(Ok(Some(true))), Ok(master)) => Vault::unreadable_keys(&settings.keys_dir, master),
        _ => Ok(Vec::new()),
    };
    let relayer_key = files::load(&folder.join(KEY_FILE), KEY_KIND, None).map(drop);
    let open_folders = [folder, &settings.keys_dir].into_iter().filter_map(|path| {
        let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| (path.clone(), mode))
    });
    let database = crate::setup::embedded_config(settings);
    FileFacts {
        folder: folder.clone(),
        folder_error: try_to_write(folder).err(),
        open_folders: open_folders.collect(),
        has_memory: settings.keys_dir.join("check").exists() || database.file().exists(),
        keys: vec![(KEY_FILE, key_state(relayer_key)), (MASTER_FILE, key_state(master.map(drop)))],
        keys_dir: settings.keys_dir.clone(),
        unreadable: match unreadable {
            Ok(unreadable) => unreadable.iter().map(ToString::to_string).collect(),
            Err(error) => vec![error.to_string()],
        },
        keys_match: keys_match.and_then(Result::ok).flatten(),
        disk: Disk::of(folder),
    }
}

fn key_state(loaded: Result<(), KeyFileError>) -> KeyState {
    match loaded {
        Ok(()) => KeyState::Opens,
        Err(KeyFileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => KeyState::Missing,
        Err(error @ KeyFileError::Permissions { .. }) => KeyState::Readable(error.to_string()),
        Err(error) => KeyState::Broken(error.to_string()),
    }
}

fn judge(facts: &FileFacts) -> Check {
    let mut check = Check::new("files");
    let folder = facts.folder.display();
    match &facts.folder_error {
        None => check.saw(format!("{folder} is writable")),
        Some(error) if error.kind() == ErrorKind::NotFound => {
            check.found(codes::NO_DATA_DIR, folder.to_string());
        }
        Some(error) => check.found(codes::DATA_DIR_BROKEN, format!("{folder}: {error}")),
    }
    for (path, mode) in &facts.open_folders {
        let fix = format!("chmod 700 {}", shell_word(path));
        check.found_with(codes::DATA_DIR_OPEN, format!("{} (mode {mode:o})", path.display()), fix, false);
    }
    for (name, state) in &facts.keys {
        match state {
            KeyState::Opens => check.saw(format!("{name} opens")),
            KeyState::Missing if facts.has_memory => {
                check.found(codes::KEY_MISSING, facts.folder.join(name).display().to_string());
            }
            KeyState::Missing => check.saw(format!("there is no {name}; the first start makes it")),
            KeyState::Readable(reason) => check.found(codes::KEY_READABLE, reason.clone()),
            KeyState::Broken(reason) => check.found(codes::KEY_BROKEN, reason.clone()),
        }
    }
    match facts.keys_match {
        Some(true) => check.saw(format!("{} belongs to {MASTER_FILE}", facts.keys_dir.display())),
        Some(false) => check.found(codes::KEYS_OTHER, facts.keys_dir.display().to_string()),
        None => {}
    }
    for reason in &facts.unreadable {
        check.found(codes::OWNER_KEY_BROKEN, reason.clone());
    }
    if let Some(disk) = &facts.disk {
        check_space(&mut check, (codes::DISK_FULL, codes::DISK_LOW), disk, 0);
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> FileFacts {
        FileFacts {
            folder: "/d".into(),
            folder_error: None,
            open_folders: Vec::new(),
            keys: vec![(KEY_FILE, KeyState::Opens), (MASTER_FILE, KeyState::Opens)],
            has_memory: true,
            keys_dir: "/d/keys".into(),
            keys_match: Some(true),
            unreadable: Vec::new(),
            disk: None,
        }
    }

    #[test]
    fn files_are_judged_by_what_the_next_start_can_do_with_them() {
        let codes = |change: &dyn Fn(&mut FileFacts)| {
            let mut facts = facts();
            change(&mut facts);
            judge(&facts).codes()
        };
        assert!(codes(&|_| {}).is_empty());
        assert_eq!(codes(&|f| f.folder_error = Some(ErrorKind::NotFound.into())), ["R102"]);
        assert_eq!(codes(&|f| f.folder_error = Some(ErrorKind::PermissionDenied.into())), ["R103"]);
        assert_eq!(codes(&|f| f.open_folders = vec![("/d".into(), 0o755)]), ["R104"]);
        assert_eq!(codes(&|f| f.keys[1].1 = KeyState::Missing), ["R105"]);
        assert_eq!(codes(&|f| f.keys[0].1 = KeyState::Readable(String::new())), ["R106"]);
        assert_eq!(codes(&|f| f.keys[0].1 = KeyState::Broken(String::new())), ["R107"]);
        assert_eq!(codes(&|f| f.keys_match = Some(false)), ["R108"]);
        assert_eq!(codes(&|f| f.unreadable = vec![String::new()]), ["R111"]);
        let new = |f: &mut FileFacts| {
            f.has_memory = false;
            f.keys[1].1 = KeyState::Missing;
        };
        assert!(codes(&new).is_empty(), "a first start makes its keys");
    }

    #[test]
    fn a_key_file_for_others_is_found_and_a_lost_one_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(MASTER_FILE);
        assert!(matches!(key_state(MasterKey::load(&path, None).map(drop)), KeyState::Missing));
        MasterKey::load_or_create(&path, None).unwrap();
        assert!(matches!(key_state(MasterKey::load(&path, None).map(drop)), KeyState::Opens));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(key_state(MasterKey::load(&path, None).map(drop)), KeyState::Readable(_)));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"damaged\n").unwrap();
        assert!(matches!(key_state(MasterKey::load(&path, None).map(drop)), KeyState::Broken(_)));
    }
}
