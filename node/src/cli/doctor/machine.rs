//! Checks disk, files and clock.

use baton_kit::doctor::{ClockCodes, ClockReading, Disk, check_clock as compare, check_space, try_to_write};
use baton_proto::limits::MAX_CLOCK_SKEW_MS;
use rustix::process::{Resource, getrlimit};

use super::{Check, Subject, codes, peers::PeerRecord};
use crate::{cli::time::utc, models::Catalogue};

/// Open files besides peer connections: journal, model, log, the store's connections.
const OTHER_FILES: u64 = 256;
pub(super) fn check_disk(subject: &Subject) -> Check {
    let (settings, mut check) = (&subject.settings, Check::new("disk"));
    let folder = &settings.data_dir();
    if folder.is_dir() {
        match try_to_write(folder) {
            Ok(()) => check.saw(format!("{} is writable", folder.display())),
            Err(error) => check.found(codes::NOT_WRITABLE, format!("{}: {error}", folder.display())),
        }
    }
    let fetched = Catalogue::built_in().list(&settings.model_dir());
    let missing = fetched.iter().find(|model| model.entry.name == settings.model() && !model.is_installed());
    // A wheel and its unpacked file exist side by side for a while.
    let needed = missing.map_or(0, |model| 2 * model.entry.size);
    let (data, models) = (Disk::of(folder), Disk::of(&settings.model_dir()));
    let same_disk = data.as_ref().zip(models.as_ref()).is_some_and(|(data, models)| data.id == models.id);
    let models = models.filter(|_| !same_disk).map(|disk| (disk, needed));
    let data = data.map(|disk| (disk, if same_disk { needed } else { 0 }));
    for (disk, needed) in data.into_iter().chain(models) {
        check_space(&mut check, (codes::DISK_FULL, codes::DISK_LOW), &disk, needed);
    }
    // The node's own limit may differ, but the node usually starts from here.
    let wanted = u64::from(settings.max_connections()) + OTHER_FILES;
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

pub(super) fn check_clock(subject: &Subject, dates: &[ClockReading], records: &[PeerRecord]) -> Check {
    let (mut check, now) = (Check::new("clock"), utc(subject.now_ms));
    check.saw(now.clone());
    let codes = ClockCodes { absurd: codes::CLOCK_ABSURD, off: codes::CLOCK_OFF_STORE };
    if !compare(&mut check, codes, (subject.now_ms, &now), dates, MAX_CLOCK_SKEW_MS) {
        return check;
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
        check.found(codes::CLOCK_ALONE, "neither a store nor a bootstrap peer told the time");
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RunFlags, Settings};

    const NOW: u64 = 1_800_000_000_000;

    fn codes_of(now_ms: u64, dates: &[ClockReading], records: &[PeerRecord]) -> Vec<&'static str> {
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
        check_clock(&subject, dates, records).codes()
    }

    #[test]
    fn a_clock_is_wrong_beyond_what_the_protocol_allows() {
        let skew = i64::try_from(MAX_CLOCK_SKEW_MS).unwrap();
        let date = ClockReading { url: "http://s".to_owned(), ahead_ms: skew + 1, margin_ms: 0 };
        assert_eq!(codes_of(NOW, &[], &[]), ["D204"], "what nobody confirms is not well");
        assert_eq!(codes_of(NOW, &[date], &[]), ["D201"]);
        assert_eq!(codes_of(0, &[], &[]), ["D203"]);
        let record =
            |issued_ms, expires_ms| PeerRecord { peer: "p".to_owned(), issued_ms, expires_ms, asked_ms: NOW };
        assert!(codes_of(NOW, &[], &[record(NOW - 3_600_000, NOW + 3_600_000)]).is_empty());
        assert_eq!(codes_of(NOW, &[], &[record(NOW + MAX_CLOCK_SKEW_MS + 1, NOW * 2)]), ["D202"]);
        assert_eq!(codes_of(NOW, &[], &[record(0, NOW - MAX_CLOCK_SKEW_MS - 1)]), ["D202"]);
    }
}
