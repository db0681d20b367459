//! Checks the node's keys and their folder.

use std::{fs, io::ErrorKind, os::unix::fs::PermissionsExt as _, path::Path};

use baton_keys::files::KeyFileError;
use baton_kit::output::shell_word;

use super::{Check, Subject, codes};
use crate::{
    cli::time::utc,
    daemon::data_dir::open_mode,
    identity::{EXCHANGE_KEYS_FILE, IdentityError, NODE_KEY_FILE, exchange_keys, load_node_key},
};

pub(super) fn check(subject: &Subject) -> Check {
    let folder = &subject.settings.data_dir();
    let mut check = Check::new("keys");
    let shown = folder.display();
    let missing = match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {
            if let Some(mode) = open_mode(&metadata) {
                let fixed = subject.fix && set_mode(folder, 0o700);
                let fix = format!("chmod 700 {}", shell_word(folder));
                check.found_with(codes::DATA_DIR_OPEN, format!("{shown} (mode {mode:o})"), fix, fixed);
            }
            None
        }
        Ok(_) => Some(format!("{shown} is no folder")),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("there is no {shown}")),
        Err(error) => Some(format!("{shown}: {error}")),
    };
    if let Some(missing) = missing {
        check.found(codes::NO_DATA_DIR, missing);
        return check;
    }
    for file in [NODE_KEY_FILE, EXCHANGE_KEYS_FILE] {
        check_mode(&mut check, subject, &folder.join(file));
    }
    check_node_key(&mut check, subject);
    check_exchange_keys(&mut check, subject);
    check
}

fn set_mode(path: &Path, mode: u32) -> bool {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).is_ok()
}

fn check_mode(check: &mut Check, subject: &Subject, path: &Path) {
    let Some(mode) = fs::metadata(path).ok().as_ref().and_then(open_mode) else { return };
    let fixed = subject.fix && set_mode(path, 0o600);
    let fix = match fixed {
        true => format!("chmod 600 {}; whoever could read it until now may have", shell_word(path)),
        false => {
            format!("chmod 600 {}, then stop the node and run `baton-node keys rotate`", shell_word(path))
        }
    };
    check.found_with(codes::KEY_READABLE, format!("{} (mode {mode:o})", path.display()), fix, fixed);
}

fn check_node_key(check: &mut Check, subject: &Subject) {
    let folder = &subject.settings.data_dir();
    let node = match load_node_key(folder) {
        Ok(key) => key.node_id(),
        Err(KeyFileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            check.found(codes::KEY_MISSING, format!("there is no {}", folder.join(NODE_KEY_FILE).display()));
            return;
        }
        // Already reported.
        Err(KeyFileError::Permissions { .. }) => return,
        Err(error) => {
            check.found(codes::KEY_BROKEN, error.to_string());
            return;
        }
    };
    let name = node.to_string();
    check.saw(format!("node key of {}... opens", name.get(..16).unwrap_or(&name)));
}

fn check_exchange_keys(check: &mut Check, subject: &Subject) {
    let windows = match exchange_keys(&subject.settings.data_dir()) {
        Ok(windows) => windows,
        Err(IdentityError::NodeKey(KeyFileError::Permissions { .. })) => return,
        Err(error) => {
            check.found(codes::EXCHANGE_BROKEN, error.to_string());
            return;
        }
    };
    let now = subject.now_ms;
    match windows.iter().rfind(|key| key.from_ms <= now && now <= key.until_ms) {
        Some(key) => check.saw(format!("exchange key good until {}", utc(key.until_ms))),
        None if subject.running.is_some() => {
            check.found(codes::EXCHANGE_EXPIRED, "none of them holds now");
        }
        None => check.saw("no exchange key holds now; the next start makes one"),
    }
}
