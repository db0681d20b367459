//! `backup` and `restore`: memory with its keys as one file. Blocking; no relayer is needed, and one may run.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use baton_keys::master::MasterKey;
use baton_kit::progress::{self, BarStyle, ProgressBar};
use baton_memory::backup::{self, BackupReport};
use serde_json::{Value, json};

use crate::{config::Settings, data_folder::MASTER_FILE, output::println, setup};

/// Writes a backup, and prints its contents.
pub(crate) fn back_up(settings: &Settings, path: &Path, json: bool) -> anyhow::Result<()> {
    let master = master(settings)?;
    let bar = bar(json, "copying memory");
    let report = backup::back_up(
        &setup::embedded_config(settings),
        &settings.keys_dir,
        master,
        path,
        &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        },
    );
    bar.finish_and_clear();
    let report = report.context("no backup was made")?;
    if json {
        println(&contents(&report, path).to_string());
        return Ok(());
    }
    println(&format!("backup {}: {}, checked", path.display(), describe(&report)));
    println(
        "it lacks master.key, without which it cannot be read, relayer.key and config.toml: keep copies elsewhere",
    );
    Ok(())
}

/// Puts a backup back, and prints the names of the replaced files.
pub(crate) fn restore(settings: &Settings, path: &Path, with_keys: bool, json: bool) -> anyhow::Result<()> {
    let master = master(settings)?;
    let bar = bar(json, "copying memory");
    let report = backup::restore(
        &setup::embedded_config(settings),
        &settings.keys_dir,
        master,
        path,
        with_keys,
        &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        },
    );
    bar.finish_and_clear();
    let report = report.context("memory was not replaced")?;
    if json {
        let mut line = contents(&report.backup, path);
        line["replaced"] = json!(report.replaced);
        line["keys_restored"] = json!(report.are_keys_restored);
        line["replaced_keys"] = json!(report.replaced_keys);
        println(&line.to_string());
        return Ok(());
    }
    println(&format!("restored {}: {}", path.display(), describe(&report.backup)));
    for (part, replaced) in [("database", &report.replaced), ("key files", &report.replaced_keys)] {
        if let Some(replaced) = replaced {
            println(&format!("the {part} before: {}", replaced.display()));
        }
    }
    if report.are_keys_restored {
        println("the key files are those of the backup");
    } else {
        println(
            "the key files stayed: data that was deleted since the backup stays deleted. Owners with later data are refused; \
             see `baton-relayer owners accept-loss`",
        );
    }
    Ok(())
}

/// The master key, which must exist: a new one opens no backup.
fn master(settings: &Settings) -> anyhow::Result<MasterKey> {
    if settings.postgres_url_file.is_some() {
        bail!("memory is in Postgres: use pg_dump and pg_restore, and copy {}", settings.keys_dir.display());
    }
    let path = settings.data_dir.join(MASTER_FILE);
    MasterKey::load(&path, None)
        .map_err(|error| anyhow!("{error}; name the folder of the master key with --data-dir"))
}

fn bar(json: bool, text: &'static str) -> ProgressBar {
    let bar = if json { progress::hidden() } else { progress::bar(BarStyle::Percent) };
    bar.set_message(text);
    bar
}

fn describe(report: &BackupReport) -> String {
    let BackupReport { owners, records, key_files, bytes } = report;
    format!("{owners} owners, {records} records, {key_files} key files, {}", progress::size(*bytes))
}

fn contents(report: &BackupReport, path: &Path) -> Value {
    let BackupReport { owners, records, key_files, bytes } = report;
    json!({ "path": path, "owners": owners, "records": records, "key_files": key_files, "bytes": bytes })
}
