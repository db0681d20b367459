//! Checks disk, files and clock.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_proto::limits::MAX_CLOCK_SKEW_MS;
use rustix::process::{Resource, getrlimit};

use super::{Subject, codes, peers::PeerRecord, report::Check, store::StoreDate};
use crate::{cli::time::utc, models::Catalogue};

/// Free space below which the journal soon fails: each turn of a burst takes a few megabytes, and sled
/// rewrites its log.
const FULL_BYTES: u64 = 256 << 20;
/// Free space below which `doctor` warns.
const LOW_BYTES: u64 = 2 << 30;
/// Bytes of the journal besides its blobs: entries, and sled's uncollected garbage.
const JOURNAL_EXCESS_BYTES: u64 = 512 << 20;
/// Open files besides peer connections: journal, model, log, the store's connections.
const OTHER_FILES: u64 = 256;
/// Maximum folder depth in the journal; sled has two levels.
const MAX_DEPTH: u32 = 4;
/// Earliest plausible time, before this program existed: 2025-01-01.
const EARLIEST_MS: u64 = 1_735_689_600_000;
/// Latest plausible time: 2100-01-01.
const LATEST_MS: u64 = 4_102_444_800_000;

pub(super) fn check_disk(subject: &Subject) -> Check {
    let (settings, mut check) = (&subject.settings, Check::new("disk"));
    let folder = &settings.data_dir;
    if folder.is_dir() {
        match try_to_write(folder) {
            Ok(()) => check.saw(format!("{} is writable", folder.display())),
            Err(error) => check.found(codes::NOT_WRITABLE, format!("{}: {error}", folder.display())),
        }
    }
    let fetched = Catalogue::built_in().list(&settings.model_dir);
    let missing = fetched.iter().find(|model| model.entry.name == settings.model && !model.is_installed());
    // A wheel and its unpacked file exist side by side for a while.
    let needed = missing.map_or(0, |model| 2 * model.entry.size);
    let (data, models) = (Space::at(folder), Space::at(&settings.model_dir));
    let same_disk = data.as_ref().zip(models.as_ref()).is_some_and(|(data, models)| data.disk == models.disk);
    if same_disk {
        check_space(&mut check, data, needed);
    } else {
        check_space(&mut check, data, 0);
        check_space(&mut check, models, needed);
    }
    let journal = folder_bytes(&folder.join("journal"), 0);
    let limit = u64::from(settings.resources.journal_mb) << 20;
    check.saw(format!("journal {} MB", journal / 1_000_000));
    if journal > limit.saturating_mul(2) + JOURNAL_EXCESS_BYTES {
        let detail =
            format!("{} MB, with journal_mb = {}", journal / 1_000_000, settings.resources.journal_mb);
        check.found(codes::JOURNAL_LARGE, detail);
    }
    // The node's own limit may differ, but the node usually starts from here.
    let wanted = u64::from(settings.resources.max_connections) + OTHER_FILES;
    if let Some(files) = getrlimit(Resource::Nofile).current
        && files < wanted
    {
        check.found(
            codes::FEW_FILES,
            format!("{files} files, with max_connections = {wanted} less {OTHER_FILES}"),
        );
    }
    check
}

fn try_to_write(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".doctor-{}", std::process::id()));
    let written = fs::write(&path, b"a test by baton-node doctor\n");
    // A failed write leaves no file.
    let removed = fs::remove_file(&path);
    written.and(removed)
}

fn check_space(check: &mut Check, space: Option<Space>, needed: u64) {
    let Some(Space { folder, free, .. }) = space else { return };
    let detail = format!("{} MB free at {}", free / 1_000_000, folder.display());
    if free < FULL_BYTES.saturating_add(needed) {
        let detail = match needed {
            0 => detail,
            needed => format!("{detail}, and the model needs {} MB", needed / 1_000_000),
        };
        check.found(codes::DISK_FULL, detail);
    } else if free < LOW_BYTES {
        check.found(codes::DISK_LOW, detail);
    } else {
        check.saw(detail);
    }
}

/// Free space on a disk.
struct Space {
    /// An existing folder on it.
    folder: PathBuf,
    /// The disk's ID.
    disk: u64,
    /// Free bytes for users other than root.
    free: u64,
}

impl Space {
    /// The space at a folder, or at its nearest existing ancestor.
    fn at(place: &Path) -> Option<Self> {
        let folder = place.ancestors().find(|folder| folder.is_dir())?;
        let stat = rustix::fs::statvfs(folder).ok()?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Some(Self { folder: folder.to_owned(), disk: stat.f_fsid, free })
    }
}

fn folder_bytes(folder: &Path, depth: u32) -> u64 {
    if depth > MAX_DEPTH {
        return 0;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path(), depth + 1),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

pub(super) fn check_clock(subject: &Subject, dates: &[StoreDate], records: &[PeerRecord]) -> Check {
    let mut check = Check::new("clock");
    check.saw(utc(subject.now_ms));
    if !(EARLIEST_MS..LATEST_MS).contains(&subject.now_ms) {
        check.found(codes::CLOCK_ABSURD, utc(subject.now_ms));
        return check;
    }
    for StoreDate { url, ahead_ms, margin_ms } in dates {
        let off = ahead_ms.unsigned_abs().saturating_sub(*margin_ms);
        if off > MAX_CLOCK_SKEW_MS {
            let which = if *ahead_ms > 0 { "ahead of" } else { "behind" };
            let detail = format!("it is {} s {which} that of {url}", off / 1000);
            check.found(
                codes::CLOCK_OFF_STORE,
                format!("{detail}; {} s are allowed", MAX_CLOCK_SKEW_MS / 1000),
            );
        } else {
            check.saw(format!("within {} s of {url}", (off + margin_ms).div_ceil(1000)));
        }
    }
    for record in records {
        // Records are old by design. Only a record from the future, or an expired one, shows a wrong clock.
        let future = record.issued_ms.saturating_sub(record.asked_ms);
        let past = record.asked_ms.saturating_sub(record.expires_ms);
        if future > MAX_CLOCK_SKEW_MS {
            let detail = format!("{} signed its record {} s from now", record.peer, future / 1000);
            check.found(codes::CLOCK_OFF_PEERS, detail);
        } else if past > MAX_CLOCK_SKEW_MS {
            let detail = format!("{} gives a record that ended {} s ago", record.peer, past / 1000);
            check.found(codes::CLOCK_OFF_PEERS, detail);
        }
    }
    if !dates.is_empty() || !records.is_empty() {
        return check;
    }
    if subject.offline {
        check.saw("offline: no other clock was compared");
    } else {
        let asked = subject.settings.aggregators.len() + subject.settings.publishers.len();
        let detail =
            format!("{asked} stores and {} peers are configured here", subject.settings.bootstrap.len());
        check.found(codes::CLOCK_ALONE, detail);
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::doctor::report::Finding,
        config::{RunFlags, Settings},
    };

    const NOW: u64 = 1_800_000_000_000;

    fn codes_of(now_ms: u64, dates: &[StoreDate], records: &[PeerRecord]) -> Vec<String> {
        let settings = Settings::resolve(RunFlags::default(), RunFlags::default(), None).unwrap();
        let subject = Subject {
            settings,
            running: None,
            differences: Vec::new(),
            in_use: false,
            other_program: None,
            fix: false,
            offline: false,
            now_ms,
        };
        let check = check_clock(&subject, dates, records);
        let code =
            |finding: &Finding| serde_json::to_value(finding).unwrap()["code"].as_str().unwrap().to_owned();
        check.findings().iter().map(code).collect()
    }

    #[test]
    fn a_clock_is_wrong_beyond_what_the_protocol_allows() {
        let date = |ahead_ms| StoreDate { url: "http://s".to_owned(), ahead_ms, margin_ms: 1500 };
        assert_eq!(codes_of(NOW, &[], &[]), ["D204"], "what nobody confirms is not well");
        let skew = i64::try_from(MAX_CLOCK_SKEW_MS).unwrap();
        assert!(codes_of(NOW, &[date(skew + 1500), date(-skew)], &[]).is_empty());
        assert_eq!(codes_of(NOW, &[date(skew + 1501)], &[]), ["D201"]);
        assert_eq!(codes_of(NOW, &[date(-skew - 1501)], &[]), ["D201"]);
        assert_eq!(codes_of(0, &[], &[]), ["D203"]);
        let record =
            |issued_ms, expires_ms| PeerRecord { peer: "p".to_owned(), issued_ms, expires_ms, asked_ms: NOW };
        assert!(codes_of(NOW, &[], &[record(NOW - 3_600_000, NOW + 3_600_000)]).is_empty());
        assert_eq!(codes_of(NOW, &[], &[record(NOW + MAX_CLOCK_SKEW_MS + 1, NOW * 2)]), ["D202"]);
        assert_eq!(codes_of(NOW, &[], &[record(0, NOW - MAX_CLOCK_SKEW_MS - 1)]), ["D202"]);
    }
}
