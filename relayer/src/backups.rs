//! `backup` and `restore`: memory with its keys as one file. Blocking; no relayer is needed, and one may run.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use baton_keys::master::MasterKey;
use baton_kit::{
    output::print_line,
    progress::{self, BarStyle},
};
use baton_memory::backup::{self, BackupReport};

use crate::{config::Settings, data_folder::MASTER_FILE, setup};

/// Writes a backup, and prints its contents.
pub(crate) fn back_up(settings: &Settings, path: &Path) -> anyhow::Result<()> {
    let (master, config) = (master(settings)?, setup::embedded_config(settings));
    let report = with_bar(|step| backup::back_up(&config, &settings.keys_dir, master, path, step));
    let report = report.context("no backup was made")?;
    print_line(format!("backup {}: {}, checked", path.display(), describe(&report)));
    print_line(
        "it lacks master.key, without which it cannot be read, relayer.key and config.toml: keep copies elsewhere",
    );
    Ok(())
}

/// Puts a backup back, and prints the names of the replaced files.
pub(crate) fn restore(settings: &Settings, path: &Path, with_keys: bool) -> anyhow::Result<()> {
    let (master, config) = (master(settings)?, setup::embedded_config(settings));
    let report = with_bar(|step| backup::restore(&config, &settings.keys_dir, master, path, with_keys, step));
    let report = report.context("memory was not replaced")?;
    print_line(format!("restored {}: {}", path.display(), describe(&report.backup)));
    for (part, replaced) in [("database", &report.replaced), ("key files", &report.replaced_keys)] {
        if let Some(replaced) = replaced {
            print_line(format!("the {part} before: {}", replaced.display()));
        }
    }
    print_line(if report.are_keys_restored {
        "the key files are those of the backup"
    } else {
        "the key files stayed: data that was deleted since the backup stays deleted. Owners with later data are refused; \
         see `baton-relayer owners accept-loss`"
    });
    Ok(())
}

/// The master key, which must exist: a new one opens no backup.
fn master(settings: &Settings) -> anyhow::Result<MasterKey> {
    if settings.options.postgres_url_file.is_some() {
        bail!("memory is in Postgres: use pg_dump and pg_restore, and copy {}", settings.keys_dir.display());
    }
    let path = settings.data_dir.join(MASTER_FILE);
    MasterKey::load(&path, None)
        .map_err(|error| anyhow!("{error}; name the folder of the master key with --data-dir"))
}

/// Runs a copy with a bar of its progress.
fn with_bar<T>(copy: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let bar = progress::bar(BarStyle::Percent);
    bar.set_message("copying memory");
    let copied = copy(&mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    copied
}

fn describe(report: &BackupReport) -> String {
    let BackupReport { owners, records, key_files, bytes } = report;
    format!("{owners} owners, {records} records, {key_files} key files, {}", progress::size(*bytes))
}
