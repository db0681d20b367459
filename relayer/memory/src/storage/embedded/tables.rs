//! The contents of the database, and the only code that accesses it. All calls block.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use baton_command::group_commit::GroupCommit;

use super::{EmbeddedConfig, PanicScope, TableError, disk_error, keys};
use crate::storage::{Batch, DueJob, Pseudonym, Space, StorageError, check_sizes, first_version};

/// Bytes of a value. sled puts a page of up to about twenty values beyond 128 KiB into a file that it never
/// flushes. Chunks of this size avoid that.
const CHUNK_BYTES: usize = 4096;
/// Locks that owners share by hash. A commit reads, decides and writes under one lock; a read never sees half
/// a commit.
const OWNER_LOCKS: usize = 64;
/// Most stored nonces: a thousand requests a second for ten minutes. Beyond it, requests are refused.
const MAX_NONCES: usize = 600_000;
/// Expired nonces that one request removes, so that no request pays for many.
const EXPIRED_AT_ONCE: usize = 16;
/// Time limit for a lock that is held elsewhere: a closed database releases it a moment later.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Tables {
    db: sled::Db,
    /// sled's log. sled's own flush starts the write and waits, but does not sync the file's length and the
    /// disk's cache.
    log: File,
    flushes: GroupCommit,
    owners: Vec<RwLock<()>>,
    nonces: Mutex<()>,
    nonce_count: AtomicUsize,
}

type TableResult<T> = Result<T, TableError>;

impl Tables {
    pub(super) fn open(config: &EmbeddedConfig) -> Result<Self, StorageError> {
        let path = config.path.display();
        let io_error = |error: std::io::Error| {
            StorageError::Unavailable(format!("the folder {path} cannot be used: {error}"))
        };
        baton_keys::files::create_private_folder(&config.path).map_err(io_error)?;
        let db = open_database(config)?;
        let found = db.get(keys::LAYOUT).map_err(|error| disk_error(&error))?;
        match found.as_deref() {
            Some(keys::LAYOUT_VERSION) => {}
            None if db.is_empty() => {
                db.insert(keys::LAYOUT, keys::LAYOUT_VERSION).map_err(|error| disk_error(&error))?;
            }
            _ => {
                return Err(StorageError::Damaged(format!(
                    "{path} holds another database, or one of another version: configure an empty folder"
                )));
            }
        }
        let log = File::options().read(true).write(true).open(config.path.join("db")).map_err(io_error)?;
        let nonce_count = AtomicUsize::new(db.scan_prefix([keys::NONCES]).count());
        let owners = (0..OWNER_LOCKS).map(|_| RwLock::default()).collect();
        let tables =
            Self { db, log, flushes: GroupCommit::default(), owners, nonces: Mutex::default(), nonce_count };
        tables.release_taken().map_err(StorageError::from)?;
        tables.flush().map_err(StorageError::from)?;
        Ok(tables)
    }

    /// Makes taken jobs due again. Only one process at a time has the database, so their former taker is
    /// gone.
    fn release_taken(&self) -> TableResult<()> {
        let mut changes = sled::Batch::default();
        for entry in self.db.scan_prefix([keys::DUE]) {
            let (key, value) = entry?;
            if value.is_empty() {
                continue;
            }
            let job = keys::due_of(&key).ok_or_else(|| damaged("a job's time"))?;
            let due_ms = number(&value)?;
            changes.remove(key);
            changes.insert(keys::due(DueJob { due_ms, ..job }), &[]);
            changes.insert(keys::job(job.owner, job.job), &due_ms.to_be_bytes());
        }
        self.db.apply_batch(changes)?;
        Ok(())
    }

    /// Another handle on the database.
    pub(super) fn handle(&self) -> sled::Db {
        self.db.clone()
    }

    fn lock_of(&self, owner: Pseudonym) -> &RwLock<()> {
        let mut hasher = DefaultHasher::new();
        owner.hash(&mut hasher);
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let index = hasher.finish() as usize % OWNER_LOCKS;
        &self.owners[index]
    }

    fn flush(&self) -> TableResult<()> {
        self.flushes.commit(|| {
            self.db.flush()?;
            self.log.sync_data().map_err(sled::Error::from)?;
            Ok(())
        })
    }

    pub(super) fn version(&self, owner: Pseudonym) -> TableResult<u64> {
        match self.db.get(keys::owner(owner))? {
            Some(value) => number(&value),
            None => Ok(0),
        }
    }

    pub(super) fn read(
        &self,
        owner: Pseudonym,
        space: Space,
        from: u64,
        max_bytes: usize,
    ) -> TableResult<Vec<(u64, Vec<u8>)>> {
        let _reading = self.lock_of(owner).read().unwrap_or_else(PoisonError::into_inner);
        let mut end = keys::space(owner, space);
        end.extend_from_slice(&[0xff; 13]);
        let (mut rows, mut length) = (Vec::<(u64, Vec<u8>)>::new(), 0);
        for entry in self.db.range(keys::record(owner, space, from)..end) {
            let (key, value) = entry?;
            let (number, chunk) = keys::number_and_chunk(&key).ok_or_else(|| damaged("a record's key"))?;
            if chunk == 0 {
                if length >= max_bytes && !rows.is_empty() {
                    break;
                }
                rows.push((number, value.to_vec()));
            } else {
                match rows.last_mut() {
                    Some((last, bytes)) if *last == number => bytes.extend_from_slice(&value),
                    _ => return Err(damaged("a record's beginning").into()),
                }
            }
            length += value.len();
        }
        Ok(rows)
    }

    pub(super) fn commit(&self, owner: Pseudonym, expected: u64, batch: &Batch) -> TableResult<u64> {
        check_sizes(batch)?;
        let version = {
            let _writing = self.lock_of(owner).write().unwrap_or_else(PoisonError::into_inner);
            let version = self.version(owner)?;
            if version != expected {
                return Err(StorageError::Conflict.into());
            }
            let version = if version == 0 { first_version() } else { version + 1 };
            let mut changes = sled::Batch::default();
            changes.insert(keys::owner(owner), &version.to_be_bytes());
            for (space, number) in &batch.remove {
                self.remove_from(&mut changes, &keys::record(owner, *space, *number))?;
            }
            for record in &batch.put {
                self.remove_from(&mut changes, &keys::record(owner, record.space, record.number))?;
                for (index, bytes) in chunks(&record.bytes) {
                    changes.insert(keys::chunk(owner, record.space, record.number, index), bytes);
                }
            }
            self.change_jobs(&mut changes, owner, batch)?;
            self.db.apply_batch(changes)?;
            version
        };
        self.flush()?;
        Ok(version)
    }

    fn remove_from(&self, changes: &mut sled::Batch, prefix: &[u8]) -> TableResult<()> {
        for key in self.db.scan_prefix(prefix).keys() {
            changes.remove(key?);
        }
        Ok(())
    }

    fn change_jobs(&self, changes: &mut sled::Batch, owner: Pseudonym, batch: &Batch) -> TableResult<()> {
        let jobs = batch.done.iter().map(|job| (*job, None));
        for (job, due_ms) in jobs.chain(batch.jobs.iter().map(|(job, due)| (*job, Some(*due)))) {
            let key = keys::job(owner, job);
            if let Some(old) = self.db.get(&key)? {
                changes.remove(keys::due(DueJob { owner, job, due_ms: number(&old)? }));
            }
            match due_ms {
                Some(due_ms) => {
                    changes.insert(keys::due(DueJob { owner, job, due_ms }), &[]);
                    changes.insert(key, &due_ms.to_be_bytes());
                }
                None => changes.remove(key),
            }
        }
        Ok(())
    }

    pub(super) fn erase(&self, owner: Pseudonym) -> TableResult<()> {
        {
            let _writing = self.lock_of(owner).write().unwrap_or_else(PoisonError::into_inner);
            let mut changes = sled::Batch::default();
            changes.remove(keys::owner(owner));
            self.remove_from(&mut changes, &keys::prefix(keys::RECORDS, owner))?;
            for entry in self.db.scan_prefix(keys::prefix(keys::JOBS, owner)) {
                let (key, value) = entry?;
                let job = keys::job_of(&key).ok_or_else(|| damaged("a job's key"))?;
                changes.remove(keys::due(DueJob { owner, job, due_ms: number(&value)? }));
                changes.remove(key);
            }
            self.db.apply_batch(changes)?;
        }
        self.flush()
    }

    pub(super) fn owners(&self, after: Option<Pseudonym>, limit: usize) -> TableResult<Vec<Pseudonym>> {
        let mut start = vec![keys::OWNERS];
        if let Some(after) = after {
            start = keys::owner(after);
            start.push(0);
        }
        let mut owners = Vec::new();
        for key in self.db.range(start..vec![keys::OWNERS + 1]).keys().take(limit) {
            owners.push(keys::owner_of(&key?).ok_or_else(|| damaged("an owner's key"))?);
        }
        Ok(owners)
    }

    pub(super) fn take_due(&self, now_ms: u64, again_ms: u64, limit: usize) -> TableResult<Vec<DueJob>> {
        let mut end = vec![keys::DUE];
        end.extend_from_slice(&now_ms.saturating_add(1).to_be_bytes());
        let mut due = Vec::new();
        for key in self.db.range(vec![keys::DUE]..end).keys().take(limit) {
            due.push(keys::due_of(&key?).ok_or_else(|| damaged("a job's time"))?);
        }
        let mut taken = Vec::new();
        for job in due {
            let _writing = self.lock_of(job.owner).write().unwrap_or_else(PoisonError::into_inner);
            let key = keys::job(job.owner, job.job);
            // It may have been finished, moved or taken since it was listed.
            if self.db.get(&key)?.as_deref() == Some(&job.due_ms.to_be_bytes()) {
                let mut changes = sled::Batch::default();
                changes.remove(keys::due(job));
                // The due time before the take, to restore it after a crash.
                let taken_from = job.due_ms.to_be_bytes();
                changes.insert(keys::due(DueJob { due_ms: again_ms, ..job }), &taken_from);
                changes.insert(key, &again_ms.to_be_bytes());
                self.db.apply_batch(changes)?;
                taken.push(job);
            }
        }
        if !taken.is_empty() {
            self.flush()?;
        }
        Ok(taken)
    }

    pub(super) fn take_nonce(&self, nonce: [u8; 32], now_ms: u64, until_ms: u64) -> TableResult<bool> {
        {
            let _taking: MutexGuard<'_, ()> = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = sled::Batch::default();
            let mut end = vec![keys::EXPIRY];
            end.extend_from_slice(&now_ms.to_be_bytes());
            let (mut expired, mut listed) = (0, false);
            for key in self.db.range(vec![keys::EXPIRY]..end).keys().take(EXPIRED_AT_ONCE) {
                let key = key?;
                let (_, old) = keys::expiry_of(&key).ok_or_else(|| damaged("a nonce's time"))?;
                changes.remove(keys::nonce(&old));
                changes.remove(key);
                expired += 1;
                listed |= old == nonce;
            }
            let known = self.db.get(keys::nonce(&nonce))?.map(|until| number(&until)).transpose()?;
            if known.is_some_and(|until| until >= now_ms) {
                return Ok(false);
            }
            let count = self.nonce_count.load(Ordering::Relaxed) - expired;
            if count >= MAX_NONCES {
                return Err(StorageError::Unavailable("too many requests in the last minutes".into()).into());
            }
            if let Some(until) = known {
                // An expired nonce that was not removed yet.
                changes.remove(keys::expiry(until, &nonce));
            }
            let added = usize::from(known.is_none() || listed);
            changes.insert(keys::nonce(&nonce), &until_ms.to_be_bytes());
            changes.insert(keys::expiry(until_ms, &nonce), &[]);
            self.db.apply_batch(changes)?;
            self.nonce_count.store(count + added, Ordering::Relaxed);
        }
        self.flush()?;
        Ok(true)
    }
}

/// Opens sled. Its threads release the lock a moment after a close, so a held lock is retried.
fn open_database(config: &EmbeddedConfig) -> Result<sled::Db, StorageError> {
    let begin = Instant::now();
    loop {
        let open = || sled::Config::new().path(&config.path).cache_capacity(config.cache_bytes).open();
        // sled reports some damage by a panic. The half-opened database is never used afterwards.
        let catching = PanicScope::begin();
        let opened = std::panic::catch_unwind(open);
        drop(catching);
        let Ok(opened) = opened else {
            return Err(damaged(&format!("the database in {}", config.path.display())));
        };
        match opened {
            // sled has no variant for a held lock.
            Err(sled::Error::Io(io)) if io.to_string().contains("could not acquire lock") => {
                if begin.elapsed() >= LOCK_PATIENCE {
                    return Err(StorageError::Unavailable(format!(
                        "another process has {} open: end it, or configure another folder",
                        config.path.display()
                    )));
                }
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened.map_err(|error| disk_error(&error)),
        }
    }
}

/// A record's chunks with their numbers; an empty record has one.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let empty = bytes.is_empty().then_some(bytes);
    (0..).zip(empty.into_iter().chain(bytes.chunks(CHUNK_BYTES)))
}

fn number(bytes: &[u8]) -> Result<u64, TableError> {
    let bytes = bytes.try_into().map_err(|_| damaged("a number"))?;
    Ok(u64::from_be_bytes(bytes))
}

fn damaged(what: &str) -> StorageError {
    StorageError::Damaged(format!("{what} cannot be read; put the folder back from a backup"))
}
