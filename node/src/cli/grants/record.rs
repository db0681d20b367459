//! The record of issued grants: one JSON line for each, beside the issuer's key. It has no grant, only its facts:
//! nobody can use a line of it.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use baton_proto::{
    ids::{PublicKey, QuotaSerial},
    quota::QuotaGrant,
};
use serde::{Deserialize, Serialize};

/// Largest record that is read: some ten thousand grants.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// An issued grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IssuedGrant {
    pub(super) serial: String,
    pub(super) holder: String,
    pub(super) turns_per_hour: u32,
    pub(super) tokens_per_hour: u64,
    pub(super) concurrent: u16,
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
}

/// Whether a grant counts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum GrantState {
    Valid,
    Expired,
    /// The configuration names it in `grants_revoked`.
    Revoked,
}

impl IssuedGrant {
    pub(super) fn of(grant: &QuotaGrant) -> Self {
        let (serial, holder): (&QuotaSerial, &PublicKey) = (&grant.serial, &grant.holder);
        Self {
            serial: serial.to_string(),
            holder: holder.to_string(),
            turns_per_hour: grant.turns_per_hour,
            tokens_per_hour: grant.tokens_per_hour,
            concurrent: grant.concurrent,
            from_ms: grant.from_ms,
            until_ms: grant.until_ms,
        }
    }

    pub(super) fn state(&self, revoked: &[QuotaSerial], now_ms: u64) -> GrantState {
        if revoked.iter().any(|serial| serial.to_string() == self.serial) {
            GrantState::Revoked
        } else if now_ms >= self.until_ms {
            GrantState::Expired
        } else {
            GrantState::Valid
        }
    }
}

/// The record of an issuer's key.
pub(super) fn path_of(issuer_key: &Path) -> PathBuf {
    let mut name = issuer_key.as_os_str().to_owned();
    name.push(".issued");
    PathBuf::from(name)
}

/// Adds a grant.
///
/// # Errors
/// The file cannot be written.
pub(super) fn add(path: &Path, grant: &IssuedGrant) -> io::Result<()> {
    let line = serde_json::to_string(grant).expect("a grant's facts have nothing that JSON cannot hold");
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.read(true).open(path)?;
    // A write that a crash cut off must not swallow this line.
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let begin = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{begin}{line}\n").as_bytes())?;
    file.sync_data()
}

/// All recorded grants, and the number of unreadable lines.
///
/// # Errors
/// The file exists and cannot be read, or is larger than [`MAX_RECORD_BYTES`].
pub(super) fn read(path: &Path) -> io::Result<(Vec<IssuedGrant>, usize)> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        opened => opened?,
    };
    let mut text = String::new();
    if file.take(MAX_RECORD_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_RECORD_BYTES {
        let message = format!(
            "{} has more than {} MiB: move it away, and the next grant begins a new record",
            path.display(),
            MAX_RECORD_BYTES >> 20
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let (mut grants, mut unreadable) = (Vec::new(), 0);
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(grant) => grants.push(grant),
            Err(_) => unreadable += 1,
        }
    }
    Ok((grants, unreadable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_too_large_is_refused_and_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("issuer.key.issued");
        File::create(&path).unwrap().set_len(MAX_RECORD_BYTES + 1).unwrap();
        let refused = read(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert!(refused.to_string().contains("more than 16 MiB"), "{refused}");
    }

    #[test]
    fn issued_grants_are_recorded_and_have_a_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_of(&folder.path().join("issuer.key"));
        assert_eq!(path, folder.path().join("issuer.key.issued"));
        assert_eq!(read(&path).unwrap(), (Vec::new(), 0));
        let serial = QuotaSerial([7; 16]);
        let grant = IssuedGrant {
            serial: serial.to_string(),
            holder: "h".to_owned(),
            turns_per_hour: 60,
            tokens_per_hour: 1000,
            concurrent: 2,
            from_ms: 10,
            until_ms: 20,
        };
        add(&path, &grant).unwrap();
        fs::write(&path, format!("{}cut off", fs::read_to_string(&path).unwrap())).unwrap();
        assert_eq!(read(&path).unwrap(), (vec![grant.clone()], 1));
        add(&path, &grant).unwrap();
        assert_eq!(read(&path).unwrap(), (vec![grant.clone(), grant.clone()], 1), "after the torn line");
        assert_eq!(grant.state(&[], 19), GrantState::Valid);
        assert_eq!(grant.state(&[], 20), GrantState::Expired);
        assert_eq!(grant.state(&[serial], 19), GrantState::Revoked);
    }
}
