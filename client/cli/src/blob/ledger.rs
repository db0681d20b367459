//! The ledger of blobs stored with `baton blob`, in the home folder, and `baton blob renew`.
//!
//! Walrus's HTTP API does not report a blob's end, so this file records the publishers' answers.

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use baton_client::ClientError;
use baton_keys::files::{create_private_folder, replace_private};
use baton_proto::{ids::BlobId, store::StoreError};
use baton_walrus_client::{
    http_store::{StoredBlob, WriteOptions},
    lifetime::{BlobLine, Checkpoint, Ledger, RenewOptions, Renewal, RenewalEnded},
};
use serde_json::json;

use super::{
    super::{Failure, clock, out::Out, settings::Settings},
    Bar, blob, failed, store,
};

/// Name of the ledger in the home folder.
const FILE: &str = "blobs.json";
/// Name of the file whose lock keeps two processes from writing the ledger at once.
const LOCK: &str = "blobs.lock";
/// Pause between two attempts to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// Largest ledger that is read: more than a full one takes.
const MAX_BYTES: u64 = 128 * 1024 * 1024;
/// Largest blob that is read back for a renewal.
const MAX_BLOB_BYTES: u64 = 1024 * 1024 * 1024;

/// The ledger, locked against other processes.
struct LockedLedger {
    path: PathBuf,
    ledger: Ledger,
    _lock: File,
}

impl LockedLedger {
    /// Opens it, and waits for a process that has the lock.
    async fn open(settings: &Settings, out: &Out) -> Result<Self, Failure> {
        let home = settings.home();
        create_private_folder(home).map_err(|source| file_error("create", home, source))?;
        let lock = home.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
        let file = file.map_err(|source| file_error("create", &lock, source))?;
        let mut is_noted = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(file_error("lock", &lock, source)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !std::mem::replace(&mut is_noted, true) {
                out.note("waiting for another baton blob to finish writing");
            }
            tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted),
                () = tokio::time::sleep(LOCK_PAUSE) => {}
            }
        }
        Ok(Self { path: home.join(FILE), ledger: load(settings)?, _lock: file })
    }

    fn save(&self) -> Result<(), Failure> {
        write(&self.path, &self.ledger).map_err(|source| file_error("write", &self.path, source))
    }
}

fn write(path: &Path, ledger: &Ledger) -> std::io::Result<()> {
    replace_private(path, &serde_json::to_vec(ledger)?)
}

/// Reads the ledger without the lock.
pub(super) fn load(settings: &Settings) -> Result<Ledger, Failure> {
    use std::io::Read as _;
    let path = settings.home().join(FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Ledger::new(settings.epoch()));
        }
        Err(source) => return Err(file_error("read", &path, source)),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| file_error("read", &path, source))?;
    serde_json::from_slice(&bytes).map_err(|error| file_error("read", &path, error.into()))
}

/// Records a stored blob.
pub(super) async fn record(
    settings: &Settings,
    stored: &StoredBlob,
    options: &WriteOptions,
    out: &Out,
) -> Result<(), Failure> {
    let mut locked = LockedLedger::open(settings, out).await?;
    let recorded = locked.ledger.record(stored, options, clock::now_ms());
    recorded.map_err(|error| {
        let stored = StoreError::Refused { reason: format!("stored, but not written down: {error}") };
        failed(stored)
    })?;
    locked.save()
}

/// The ledger's entry for a blob.
pub(super) fn lifetime(ledger: &Ledger, id: BlobId) -> Option<BlobLine> {
    ledger.get(id)?;
    ledger.report(clock::now_ms()).blobs.into_iter().find(|line| line.blob_id == id)
}

/// Shows the whole ledger.
pub(super) fn show(ledger: &Ledger, out: &Out) -> Result<(), Failure> {
    let report = ledger.report(clock::now_ms());
    if out.json() {
        return Ok(out.value(&json!(report))?);
    }
    if report.blobs.is_empty() {
        out.note("nothing was stored with this command yet");
        return Ok(());
    }
    Ok(out.line(report.to_string().trim_end())?)
}

/// Options of `renew`.
pub(super) struct RenewRequest {
    /// The named blobs; empty for all that are due.
    pub ids: Vec<String>,
    /// Days that must be left; by default an epoch.
    pub within_days: Option<u32>,
    /// Epochs to renew for.
    pub epochs: u32,
    /// Whether to pay again if the last renewal's payment is uncertain.
    pub retry_uncertain: bool,
}

/// Stores blobs again that run out.
pub(super) async fn renew(settings: &Settings, request: RenewRequest, out: &Out) -> Result<(), Failure> {
    let store = store(settings)?;
    let mut locked = LockedLedger::open(settings, out).await?;
    let margin = match request.within_days {
        Some(days) => Duration::from_secs(u64::from(days) * 24 * 3600),
        None => settings.epoch(),
    };
    let ids = if request.ids.is_empty() {
        locked.ledger.due(clock::now_ms(), margin).iter().map(|blob| blob.blob_id).collect()
    } else {
        request.ids.iter().map(|text| recorded_id(&locked.ledger, text)).collect::<Result<Vec<_>, _>>()?
    };
    let mut options = RenewOptions::new(request.epochs, MAX_BLOB_BYTES);
    options.retry_uncertain = request.retry_uncertain;
    let path = locked.path.clone();
    options.checkpoint = Some(Checkpoint::new(move |ledger| write(&path, ledger)));
    let mut unrenewed = false;
    for (done, id) in ids.iter().enumerate() {
        let renewals = {
            let bar = Bar::new(out);
            bar.working(&format!("renewing {id} ({} of {})", done + 1, ids.len()));
            let renewing = store.renew(&mut locked.ledger, std::slice::from_ref(id), &options, |_| None);
            tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => None,
                renewals = renewing => Some(renewals),
            }
        };
        // Interrupted renewals are in the ledger too: they may have been paid.
        locked.save()?;
        for renewal in renewals.ok_or(Failure::Interrupted)? {
            unrenewed |= !matches!(renewal.ended, RenewalEnded::Renewed { .. });
            show_renewal(&renewal, out)?;
        }
    }
    if ids.is_empty() {
        out.note("nothing is due");
    }
    if unrenewed { Err(Failure::NotStored) } else { Ok(()) }
}

fn recorded_id(ledger: &Ledger, text: &str) -> Result<BlobId, Failure> {
    let id = blob(text)?;
    let unknown = || Failure::Usage(format!("{id} was not stored from here; store it with baton blob put"));
    ledger.get(id).map(|_| id).ok_or_else(unknown)
}

fn show_renewal(renewal: &Renewal, out: &Out) -> Result<(), Failure> {
    if out.json() {
        return Ok(out.value(&json!(renewal))?);
    }
    let id = renewal.blob_id;
    match &renewal.ended {
        RenewalEnded::Renewed { end_epoch } => {
            let end = end_epoch.map_or_else(String::new, |epoch| format!(", kept until epoch {epoch}"));
            out.line(&format!("{id}  renewed{end}"))?;
        }
        RenewalEnded::Failed { reason, .. } => out.warn(&format!("{id}  not renewed: {reason}")),
        RenewalEnded::Uncertain { reason } => {
            out.warn(&format!("{id}  perhaps renewed: {reason}"));
            out.note("  try: --retry-uncertain, which may pay for it twice");
        }
        RenewalEnded::Lost => {
            out.warn(&format!("{id}  lost: no aggregator has it"));
            out.note("  try: baton blob put, if you still have the file");
        }
    }
    Ok(())
}

fn file_error(action: &'static str, path: &Path, source: std::io::Error) -> Failure {
    ClientError::File { action, path: path.to_owned(), source }.into()
}
