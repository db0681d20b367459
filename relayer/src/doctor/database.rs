//! Checks the database: the embedded one opens or is the running relayer's, or Postgres can be reached. It
//! neither creates nor migrates one.

use std::{path::Path, sync::Arc, time::Duration};

use baton_memory::storage::{
    Storage,
    embedded::{CheckReport, EmbeddedConfig, EmbeddedStorage},
};

use super::{Check, Subject, codes};
use crate::{running::RelayerAnswer, setup};

/// Owners per read from the storage.
const OWNERS_PAGE: usize = 1_000;
/// Time limit for reading every record.
const CHECK_TIME: Duration = Duration::from_secs(20);

/// The state of the database.
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "some states are those of Postgres"))]
#[derive(Debug)]
enum DatabaseState {
    /// The running relayer uses it, and reports on it.
    OfTheRelayer,
    /// A process has it open, and the settings give no address to ask it.
    NotAsked,
    /// Another process has it open.
    Busy(String),
    /// It does not exist yet.
    New(String),
    /// It opens, with this many owners.
    Opens { place: String, owners: usize, is_checked: bool },
    /// It opens, and parts of it are damaged.
    Damaged { place: String, damage: Vec<String> },
    /// It does not open.
    Broken(String),
    /// The file with the URL of Postgres cannot be used.
    UrlBroken(String),
    /// The program has no Postgres.
    NotBuilt,
    /// Postgres cannot be used.
    Silent(String),
    /// Postgres answers.
    Answers { version: String, has_vector: bool },
    /// Not asked.
    Offline,
}

pub(super) async fn check(subject: &Subject) -> Check {
    judge(look(subject).await)
}

async fn look(subject: &Subject) -> DatabaseState {
    if let Some(path) = &subject.settings.postgres_url_file {
        if !cfg!(feature = "postgres") {
            return DatabaseState::NotBuilt;
        }
        return postgres(path, subject.offline).await;
    }
    let config = setup::embedded_config(&subject.settings);
    let place = config.file().display().to_string();
    match (subject.running(), subject.in_use) {
        (Some(_), _) => DatabaseState::OfTheRelayer,
        (None, true) if matches!(subject.answer, RelayerAnswer::NoAddress(_)) => DatabaseState::NotAsked,
        (None, true) => DatabaseState::Busy(place),
        (None, false) if !config.file().exists() => DatabaseState::New(place),
        (None, false) => match open(config).await {
            Ok((_, report)) if !report.damage.is_empty() => {
                DatabaseState::Damaged { place, damage: report.damage }
            }
            Ok((owners, report)) => DatabaseState::Opens { place, owners, is_checked: report.is_complete },
            Err(reason) => DatabaseState::Broken(format!("{place}: {reason}")),
        },
    }
}

/// Opens the embedded database, counts its owners, checks it, and closes it.
async fn open(config: EmbeddedConfig) -> Result<(usize, CheckReport), String> {
    let place = config.clone();
    let opened = tokio::task::spawn_blocking(move || EmbeddedStorage::open(&place)).await;
    let opened = opened.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let storage: Arc<dyn Storage> = Arc::new(opened);
    let (mut after, mut count) = (None, 0);
    loop {
        let page = storage.owners(after, OWNERS_PAGE).await.map_err(|error| error.to_string())?;
        count += page.len();
        let Some(last) = page.last() else { break };
        after = Some(*last);
    }
    let checked = tokio::task::spawn_blocking(move || EmbeddedStorage::check(&config, CHECK_TIME)).await;
    let report = checked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    Ok((count, report))
}

#[cfg(feature = "postgres")]
async fn postgres(path: &Path, offline: bool) -> DatabaseState {
    use baton_memory::{
        extraction::read_key,
        storage::postgres::{PostgresConfig, PostgresStorage},
    };
    let url = match read_key(path) {
        Ok(url) => url,
        Err(error) => return DatabaseState::UrlBroken(error.to_string()),
    };
    if offline {
        return DatabaseState::Offline;
    }
    match PostgresStorage::probe(&PostgresConfig::new(url.to_string())).await {
        Ok((version, has_vector)) => DatabaseState::Answers { version, has_vector },
        Err(error) => DatabaseState::Silent(error.to_string()),
    }
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &Path, _: bool) -> DatabaseState {
    DatabaseState::NotBuilt
}

fn judge(state: DatabaseState) -> Check {
    let mut check = Check::new("database");
    match state {
        DatabaseState::OfTheRelayer => check.saw("the running relayer uses it"),
        DatabaseState::NotAsked => check.saw("a process uses it, probably a relayer, which cannot be asked"),
        DatabaseState::Busy(place) => check.found(codes::DATABASE_BUSY, place),
        DatabaseState::New(place) => check.saw(format!("there is none in {place}; the first start makes it")),
        DatabaseState::Opens { place, owners, is_checked } => {
            check.saw(format!("{place} opens, with {owners} owner{}", if owners == 1 { "" } else { "s" }));
            check.saw(if is_checked {
                "every record is intact"
            } else {
                "20 s were too short to check all of it"
            });
        }
        DatabaseState::Damaged { place, damage } => {
            check.found(codes::DATABASE_BROKEN, format!("{place}: {}", damage.join("; ")));
        }
        DatabaseState::Broken(reason) => check.found(codes::DATABASE_BROKEN, reason),
        DatabaseState::UrlBroken(reason) => check.found(codes::POSTGRES_URL_BROKEN, reason),
        DatabaseState::NotBuilt => check.found(codes::POSTGRES_NOT_BUILT, "postgres_url_file is set"),
        DatabaseState::Silent(reason) => check.found(codes::POSTGRES_SILENT, reason),
        DatabaseState::Answers { version, has_vector } => {
            check.saw(format!("Postgres {version} answers"));
            if !has_vector {
                check.found(codes::POSTGRES_NO_VECTOR, format!("Postgres {version}"));
            }
        }
        DatabaseState::Offline => return Check::skipped("database", "offline: Postgres was not asked"),
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_the_database_has_its_code() {
        let text = String::new;
        for (state, codes) in [
            (DatabaseState::OfTheRelayer, vec![]),
            (DatabaseState::NotAsked, vec![]),
            (DatabaseState::Busy(text()), vec!["R201"]),
            (DatabaseState::New(text()), vec![]),
            (DatabaseState::Opens { place: text(), owners: 1, is_checked: true }, vec![]),
            (DatabaseState::Damaged { place: text(), damage: vec![text()] }, vec!["R202"]),
            (DatabaseState::Broken(text()), vec!["R202"]),
            (DatabaseState::UrlBroken(text()), vec!["R203"]),
            (DatabaseState::Silent(text()), vec!["R204"]),
            (DatabaseState::Answers { version: text(), has_vector: true }, vec![]),
            (DatabaseState::Answers { version: text(), has_vector: false }, vec!["R205"]),
            (DatabaseState::NotBuilt, vec!["R206"]),
            (DatabaseState::Offline, vec![]),
        ] {
            let name = format!("{state:?}");
            assert_eq!(judge(state).codes(), codes, "{name}");
        }
    }

    #[tokio::test]
    async fn a_database_opens_for_one_at_a_time_and_none_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(folder.path().join("memory"));
        assert!(!EmbeddedStorage::is_in_use(&config) && !config.path.exists());
        let storage = EmbeddedStorage::open(&config).unwrap();
        assert!(EmbeddedStorage::is_in_use(&config));
        drop(storage);
        let (owners, report) = open(config).await.unwrap();
        assert!(owners == 0 && report.is_complete && report.damage.is_empty());
    }
}
