//! Checks the data folder, its keys and its disk.

use std::{fs, io::ErrorKind, os::unix::fs::PermissionsExt as _};

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

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("files");
    let (folder, keys_dir) = (&subject.settings.data_dir, &subject.settings.keys_dir);
    let shown = folder.display();
    match try_to_write(folder) {
        Ok(()) => check.saw(format!("{shown} is writable")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            check.found(codes::NO_DATA_DIR, shown.to_string());
        }
        Err(error) => check.found(codes::DATA_DIR_BROKEN, format!("{shown}: {error}")),
    }
    for path in [folder, keys_dir] {
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
        if mode & 0o077 != 0 {
            let fix = format!("chmod 700 {}", shell_word(path));
            check.found_with(codes::DATA_DIR_OPEN, format!("{} (mode {mode:o})", path.display()), fix, false);
        }
    }
    let master = MasterKey::load(&folder.join(MASTER_FILE), None);
    let relayer_key = files::load(&folder.join(KEY_FILE), KEY_KIND, None);
    check_key(&mut check, subject, KEY_FILE, relayer_key.err());
    match master {
        Ok(master) => {
            check_key(&mut check, subject, MASTER_FILE, None);
            check_owner_keys(&mut check, subject, master);
        }
        Err(error) => check_key(&mut check, subject, MASTER_FILE, Some(error)),
    }
    if let Some(disk) = Disk::of(folder) {
        check_space(&mut check, (codes::DISK_FULL, codes::DISK_LOW), &disk, 0);
    }
    check
}

/// Judges a key by the error with which its file opens.
fn check_key(check: &mut Check, subject: &Subject, name: &str, error: Option<KeyFileError>) {
    let settings = &subject.settings;
    let database = crate::setup::embedded_config(settings);
    let has_memory = settings.keys_dir.join("check").exists() || database.file().exists();
    match error {
        None => check.saw(format!("{name} opens")),
        Some(KeyFileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => match has_memory {
            true => check.found(codes::KEY_MISSING, settings.data_dir.join(name).display().to_string()),
            false => check.saw(format!("there is no {name}; the first start makes it")),
        },
        Some(error @ KeyFileError::Permissions { .. }) => check.found(codes::KEY_READABLE, error.to_string()),
        Some(error) => check.found(codes::KEY_BROKEN, error.to_string()),
    }
}

/// Checks that the owners' keys belong to the master key, and open.
fn check_owner_keys(check: &mut Check, subject: &Subject, master: MasterKey) {
    let keys_dir = &subject.settings.keys_dir;
    match Vault::has_master(keys_dir, &master) {
        Ok(Some(true)) => check.saw(format!("{} belongs to {MASTER_FILE}", keys_dir.display())),
        Ok(Some(false)) => return check.found(codes::KEYS_OTHER, keys_dir.display().to_string()),
        Ok(None) | Err(_) => return,
    }
    match Vault::unreadable_keys(keys_dir, master) {
        Ok(unreadable) => {
            unreadable.iter().for_each(|reason| check.found(codes::OWNER_KEY_BROKEN, reason.to_string()))
        }
        Err(error) => check.found(codes::OWNER_KEY_BROKEN, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{silent, subject},
        *,
    };
    use crate::data_folder;

    #[test]
    fn files_are_judged_by_what_the_next_start_can_do_with_them() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("data");
        let mut subject = subject("", silent());
        (subject.settings.data_dir, subject.settings.keys_dir) = (folder.clone(), folder.join("keys"));
        let codes = || check(&subject).codes();
        assert_eq!(codes(), ["R102"], "a first start makes its keys");
        fs::write(&folder, "a file").unwrap();
        assert_eq!(codes(), ["R103", "R104", "R107", "R107"]);
        fs::remove_file(&folder).unwrap();
        data_folder::init(&folder).unwrap();
        let master = folder.join(MASTER_FILE);
        MasterKey::load_or_create(&master, None).unwrap();
        assert!(codes().is_empty());
        let chmod = |mode| fs::set_permissions(&master, fs::Permissions::from_mode(mode)).unwrap();
        chmod(0o644);
        assert_eq!(codes(), ["R106"]);
        chmod(0o600);
        fs::write(&master, b"damaged\n").unwrap();
        assert_eq!(codes(), ["R107"]);
        fs::remove_file(&master).unwrap();
        assert!(codes().is_empty(), "there is no memory that needs it");
        fs::create_dir(folder.join("keys")).unwrap();
        fs::write(folder.join("keys/check"), b"").unwrap();
        assert_eq!(codes(), ["R104", "R105"]);
    }
}
