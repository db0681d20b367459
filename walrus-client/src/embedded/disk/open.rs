//! Opening the store: version, settings, and a check of everything.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::Path,
    sync::{Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use super::{
    super::config::{EmbeddedConfig, OpenError},
    BLOBS, CorruptEntry, Disk, EPOCHS_KEY, Epochs, HEADS, OBJECTS, SETTINGS, TOKENS, Totals,
    commit::Committer,
    files::{FileKey, Folder},
    record::{HeadEntry, Record},
};

const SHARDS_KEY: &str = "shards";
const LAYOUT_KEY: &str = "layout";
/// Records in sled and bytes in files. Version 1, which had no mark, kept both in sled.
const LAYOUT: &str = "2";
/// The folder of the blobs' files within the store's.
const FILES: &str = "files";
/// sled's log within the store's folder.
const LOG: &str = "db";
/// How long a lock that somebody holds is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl Disk {
    /// Opens or makes the store, removes what a crash left unfinished, and checks every entry.
    pub(in crate::embedded) fn open(config: &EmbeddedConfig) -> Result<(Self, Vec<CorruptEntry>), OpenError> {
        let path = &config.path;
        let no_path = |source| OpenError::Path { path: path.clone(), source };
        std::fs::create_dir_all(path).map_err(no_path)?;
        let failed = |error: sled::Error| match error {
            // sled has no variant for a held lock.
            sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => {
                OpenError::Locked { path: path.clone() }
            }
            sled::Error::Io(source) => OpenError::Path { path: path.clone(), source },
            source => OpenError::Damaged { path: path.clone(), source },
        };
        let db = open_database(config, failed)?;
        let settings = db.open_tree(SETTINGS).map_err(failed)?;
        check_settings(&settings, config, failed)?;
        let epochs = load_epochs(&settings, config).map_err(failed)?;
        let tree = |name: &str| db.open_tree(name).map_err(failed);
        let disk = Self {
            blobs: tree(BLOBS)?,
            objects: tree(OBJECTS)?,
            heads: tree(HEADS)?,
            tokens: tree(TOKENS)?,
            settings,
            folder: Folder::open(&path.join(FILES)).map_err(no_path)?,
            log: open_log(path).map_err(no_path)?,
            names: Committer::default(),
            records: Committer::default(),
            clock: config.clock.clone(),
            epochs: Mutex::new(epochs),
            epoch_reached: AtomicU64::new(0),
            collections: Mutex::default(),
            quota: config.quota_bytes,
            max_heads: config.max_heads,
            totals: Mutex::default(),
            db,
        };
        let (corrupt, files) = disk.check_entries().map_err(failed)?;
        let unfinished = disk.folder.remove_others(|number| files.contains(&number)).map_err(no_path)?;
        if unfinished > 0 {
            tracing::info!(unfinished, "files of unfinished uploads were removed");
        }
        Ok((disk, corrupt))
    }

    /// Counts and verifies everything. The second value names the files that records name.
    fn check_entries(&self) -> Result<(Vec<CorruptEntry>, HashSet<u64>), sled::Error> {
        let (mut corrupt, mut files, mut totals) = (Vec::new(), HashSet::new(), Totals::default());
        let mut report = |tree, key: &[u8]| corrupt.push(CorruptEntry { tree, key: hex::encode(key) });
        for entry in &self.blobs {
            let (key, value) = entry?;
            totals.blobs += 1;
            match Record::decode(&key, &value) {
                None => report(BLOBS, &key),
                Some(record) => {
                    totals.blob_bytes += record.file.length;
                    files.insert(record.file.number);
                    if !self.is_whole(record.file)? {
                        report(BLOBS, &key);
                    }
                }
            }
        }
        for entry in &self.heads {
            let (key, value) = entry?;
            totals.heads += 1;
            if HeadEntry::decode(&key, &value).is_none() {
                report(HEADS, &key);
            }
        }
        totals.tokens = self.tokens.len();
        *self.totals() = totals;
        Ok((corrupt, files))
    }

    /// Reads a whole file and verifies it.
    fn is_whole(&self, key: FileKey) -> Result<bool, sled::Error> {
        let check = || -> io::Result<bool> {
            let Some(file) = self.folder.read(key)? else { return Ok(false) };
            for number in 0..file.chunks() {
                if file.chunk(number)?.is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        match check() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            checked => Ok(checked?),
        }
    }
}

/// Opens sled. Its threads let go of the lock a moment after a store was closed, so a held one is tried again.
fn open_database(
    config: &EmbeddedConfig,
    failed: impl Fn(sled::Error) -> OpenError + Copy,
) -> Result<sled::Db, OpenError> {
    let begin = Instant::now();
    loop {
        let opened = sled::Config::new().path(&config.path).cache_capacity(config.cache_bytes).open();
        match opened.map_err(failed) {
            Err(OpenError::Locked { .. }) if begin.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PAUSE)
            }
            opened => return opened,
        }
    }
}

/// sled's log, for syncing it. sled has made it by now.
fn open_log(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path.join(LOG))
}

/// Compares layout and shard count with those that the store was made for, or notes them in a new store.
fn check_settings(
    settings: &sled::Tree,
    config: &EmbeddedConfig,
    failed: impl Fn(sled::Error) -> OpenError + Copy,
) -> Result<(), OpenError> {
    let wanted = config.shards.to_string();
    let text = |value: Option<sled::IVec>| value.map(|value| String::from_utf8_lossy(&value).into_owned());
    let layout = text(settings.get(LAYOUT_KEY).map_err(failed)?);
    let shards = text(settings.get(SHARDS_KEY).map_err(failed)?);
    match (layout.as_deref(), shards) {
        (Some(LAYOUT), Some(found)) if found == wanted => Ok(()),
        (Some(LAYOUT), Some(found)) => {
            Err(OpenError::Shards { path: config.path.clone(), found, wanted: config.shards })
        }
        // A layout without a shard count is a store that was being made.
        (Some(LAYOUT), None) | (None, None) => {
            let mut batch = sled::Batch::default();
            batch.insert(LAYOUT_KEY, LAYOUT);
            batch.insert(SHARDS_KEY, wanted.as_bytes());
            settings.apply_batch(batch).and_then(|()| settings.flush()).map(|_| ()).map_err(failed)
        }
        (found, _) => {
            let found = found.unwrap_or("1").to_owned();
            Err(OpenError::Layout { path: config.path.clone(), found, wanted: LAYOUT })
        }
    }
}

/// The epochs of the store: those that it had, or new ones that begin now.
fn load_epochs(settings: &sled::Tree, config: &EmbeddedConfig) -> Result<Epochs, sled::Error> {
    let now_ms = config.clock.now_ms();
    let known = settings.get(EPOCHS_KEY)?.and_then(|value| Epochs::decode(&value));
    let epochs = match known {
        Some(known) => known.with_duration(config.epoch_duration, now_ms),
        None => Epochs::new(config.first_epoch, config.epoch_duration, now_ms),
    };
    if known != Some(epochs) {
        settings.insert(EPOCHS_KEY, epochs.encode())?;
        settings.flush()?;
    }
    Ok(epochs)
}
