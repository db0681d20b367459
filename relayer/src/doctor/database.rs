//! Checks the database: the embedded one opens or is the running relayer's, or Postgres can be reached. It
//! neither creates nor migrates one.

use std::time::Duration;

use baton_memory::{
    extraction::read_key,
    storage::embedded::{CheckReport, EmbeddedConfig, EmbeddedStorage},
};

use super::{Check, Subject, codes};
use crate::setup;

/// Time limit for reading every record.
const CHECK_TIME: Duration = Duration::from_secs(20);

pub(super) async fn check(subject: &Subject) -> Check {
    let mut check = Check::new("database");
    let config = setup::embedded_config(&subject.settings);
    let place = config.file().display().to_string();
    if let Some(path) = &subject.settings.options.postgres_url_file {
        match (cfg!(feature = "postgres"), read_key(path)) {
            (false, _) => check.found(codes::POSTGRES_NOT_BUILT, "postgres_url_file is set"),
            (true, Err(error)) => check.found(codes::POSTGRES_URL_BROKEN, error.to_string()),
            (true, Ok(url)) => check_postgres(&mut check, &url).await,
        }
    } else if subject.running().is_some() {
        check.saw("the running relayer uses it");
    } else if subject.in_use {
        check.found(codes::DATABASE_BUSY, place);
    } else if !config.file().exists() {
        check.saw(format!("there is none in {place}; the first start makes it"));
    } else {
        match open(config).await {
            Ok(report) if !report.damage.is_empty() => {
                check.found(codes::DATABASE_BROKEN, format!("{place}: {}", report.damage.join("; ")));
            }
            Ok(report) => {
                check.saw(format!("{place} opens"));
                check.saw(if report.is_complete {
                    "every record is intact"
                } else {
                    "20 s were too short to check all of it"
                });
            }
            Err(reason) => check.found(codes::DATABASE_BROKEN, format!("{place}: {reason}")),
        }
    }
    check
}

/// Opens the embedded database, checks it, and closes it.
async fn open(config: EmbeddedConfig) -> Result<CheckReport, String> {
    let checked = tokio::task::spawn_blocking(move || {
        let _open = EmbeddedStorage::open(&config)?;
        EmbeddedStorage::check(&config, CHECK_TIME)
    });
    checked.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

async fn check_postgres(check: &mut Check, url: &str) {
    match probe(url).await {
        Ok((version, has_vector)) => {
            check.saw(format!("Postgres {version} answers"));
            if !has_vector {
                check.found(codes::POSTGRES_NO_VECTOR, format!("Postgres {version}"));
            }
        }
        Err(reason) => check.found(codes::POSTGRES_SILENT, reason),
    }
}

/// The version of a Postgres server, and whether it has pgvector.
#[cfg(feature = "postgres")]
async fn probe(url: &str) -> Result<(String, bool), String> {
    use baton_memory::storage::postgres::PostgresStorage;
    PostgresStorage::probe(url).await.map_err(|error| error.to_string())
}

#[cfg(not(feature = "postgres"))]
async fn probe(_: &str) -> Result<(String, bool), String> {
    Err("this program has no Postgres".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{silent, subject},
        *,
    };

    #[tokio::test]
    async fn a_database_is_judged_as_it_lies_there_and_none_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let mut subject = subject("", silent());
        subject.settings.data_dir = folder.path().to_owned();
        let config = setup::embedded_config(&subject.settings);
        assert!(check(&subject).await.codes().is_empty() && !config.file().exists());
        drop(EmbeddedStorage::open(&config).unwrap());
        assert!(check(&subject).await.codes().is_empty());
        subject.in_use = true;
        assert_eq!(check(&subject).await.codes(), ["R201"]);
        subject.in_use = false;
        std::fs::write(config.file(), "no database ".repeat(1_000)).unwrap();
        assert_eq!(check(&subject).await.codes(), ["R202"]);
        subject.settings.options.postgres_url_file = Some(folder.path().join("missing"));
        let url_broken = if cfg!(feature = "postgres") { "R203" } else { "R206" };
        assert_eq!(check(&subject).await.codes(), [url_broken]);
    }
}
