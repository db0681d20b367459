//! Backups beside a running relayer, and what becomes of deletions, keys and the replaced files.

use std::sync::Arc;

use super::*;
use crate::{
    ids::OwnerId,
    storage::{JobChange, Space, embedded::EmbeddedStorage},
    vault::{Changes, OwnerVault, Vault, VaultError},
};

const ANA: OwnerId = OwnerId([1; 32]);
const BEN: OwnerId = OwnerId([2; 32]);

/// The data folder of a relayer.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn config(&self) -> EmbeddedConfig {
        EmbeddedConfig::new(self.0.path().join("data"))
    }

    fn keys(&self) -> PathBuf {
        self.0.path().join("keys")
    }

    async fn vault(&self) -> Vault {
        let storage = Arc::new(EmbeddedStorage::open(&self.config()).unwrap());
        Vault::new(storage, &self.keys(), master()).await.unwrap()
    }

    fn back_up(&self, name: &str) -> Result<(PathBuf, BackupReport), BackupError> {
        let to = self.0.path().join(name);
        let report = back_up(&self.config(), &self.keys(), master(), &to, &mut |_, _| {})?;
        Ok((to, report))
    }

    fn restore(&self, from: &Path, with_keys: bool) -> Result<RestoreReport, BackupError> {
        restore(&self.config(), &self.keys(), master(), from, with_keys, &mut |_, _| {})
    }
}

fn master() -> MasterKey {
    MasterKey::from_bytes([5; 32])
}

fn text_of(number: u64) -> Vec<u8> {
    format!("event {number}").repeat(30).into_bytes()
}

async fn write_events(owner: &OwnerVault, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let put = vec![(Space::Log, number, Zeroizing::new(text_of(number)))];
        owner.commit(Changes { put, ..Changes::default() }).await.unwrap();
    }
}

async fn count(vault: &Vault, owner: OwnerId) -> Result<usize, VaultError> {
    let owner = vault.open(owner).await?;
    let rows = owner.read(Space::Log, 0).await?;
    assert!(rows.iter().all(|(number, text)| text.as_slice() == text_of(*number)));
    Ok(rows.len())
}

#[tokio::test]
async fn a_backup_beside_a_relayer_restores_a_lost_machine() {
    let home = Home::new();
    let vault = home.vault().await;
    write_events(&vault.open(ANA).await.unwrap(), 0..20).await;
    // An erased owner is in no backup, not even with rows that the erasure has yet to remove.
    let ben = vault.open(BEN).await.unwrap();
    write_events(&ben, 0..5).await;
    let rows = vault.storage().read(ben.pseudonym(), Space::Log, 0, usize::MAX).await.unwrap();
    ben.erase().await.unwrap();
    let put =
        rows.into_iter().map(|(number, bytes)| crate::storage::Record { space: Space::Log, number, bytes });
    let rows_again = crate::storage::Batch { put: put.collect(), ..Default::default() };
    vault.storage().commit(ben.pseudonym(), 0, rows_again).await.unwrap();
    fs::write(home.keys().join(format!("{}.erased", hex::encode(ben.pseudonym().0))), b"").unwrap();

    let (backup, report) = home.back_up("backup.baton").unwrap();
    assert_eq!(fs::read(&backup).unwrap()[18..20], [1, 1], "it has no log");
    assert_eq!((report.owners, report.records, report.key_files), (1, 20, 1));
    assert_eq!(report.bytes, fs::metadata(&backup).unwrap().len());
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(matches!(home.back_up("backup.baton"), Err(BackupError::Exists(_))));
    // A relayer that runs has the database: it is not replaced below it.
    let refused = home.restore(&backup, false).unwrap_err();
    assert!(refused.to_string().contains("another process"), "{refused}");

    let other = Home::new();
    let restored = other.restore(&backup, false).unwrap();
    assert!(restored.are_keys_restored && restored.replaced.is_none() && restored.replaced_keys.is_none());
    let vault = other.vault().await;
    assert_eq!(count(&vault, ANA).await.unwrap(), 20);
    assert_eq!(vault.owners(None, 10).await.unwrap().0, [ANA]);
    write_events(&vault.open(ANA).await.unwrap(), 20..25).await;
}

#[tokio::test]
async fn a_restore_keeps_the_replaced_files_and_deleted_data_stays_deleted_unless_keys_are_put_back() {
    let home = Home::new();
    let vault = home.vault().await;
    let ana = vault.open(ANA).await.unwrap();
    write_events(&ana, 0..20).await;
    let (backup, _) = home.back_up("backup").unwrap();
    ana.redact(Changes { remove: vec![(Space::Log, 3)], ..Changes::default() }).await.unwrap();
    write_events(&ana, 20..30).await;
    drop((ana, vault));

    let restored = home.restore(&backup, false).unwrap();
    assert!(!restored.are_keys_restored && restored.replaced_keys.is_none());
    assert!(restored.replaced.as_ref().is_some_and(|file| file.ends_with("memory.sqlite.replaced")));
    // Its key was destroyed with the deletion, and the key file says that the database had come further.
    let refused = count(&home.vault().await, ANA).await.unwrap_err();
    assert!(matches!(refused, VaultError::Behind { .. }), "{refused}");

    let restored = home.restore(&backup, true).unwrap();
    assert!(restored.are_keys_restored && restored.replaced_keys.unwrap().exists());
    assert!(restored.replaced.unwrap().ends_with("memory.sqlite.replaced-2"));
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 20);

    // The first replaced file is whole.
    fs::rename(home.config().path.join("memory.sqlite.replaced"), home.config().file()).unwrap();
    assert!(EmbeddedStorage::check(&home.config(), CHECK_TIME).unwrap().damage.is_empty());
}

#[tokio::test]
async fn a_damaged_database_is_replaced_and_kept_with_its_log() {
    let home = Home::new();
    let vault = home.vault().await;
    write_events(&vault.open(ANA).await.unwrap(), 0..20).await;
    let (backup, _) = home.back_up("backup").unwrap();
    drop(vault);
    fs::write(home.config().file(), b"no database").unwrap();
    fs::write(log_of(&home.config().file()), b"no log").unwrap();
    let restored = home.restore(&backup, true).unwrap();
    let replaced = restored.replaced.unwrap();
    assert_eq!(fs::read(&replaced).unwrap(), b"no database");
    assert_eq!(fs::read(log_of(&replaced)).unwrap(), b"no log");
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 20);
}

#[tokio::test]
async fn a_bad_backup_replaces_nothing() {
    let home = Home::new();
    let vault = home.vault().await;
    write_events(&vault.open(ANA).await.unwrap(), 0..50).await;
    let (backup, _) = home.back_up("backup").unwrap();
    drop(vault);
    let good = fs::read(&backup).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&backup, bytes).unwrap();
        home.restore(&backup, true).unwrap_err()
    };
    assert!(matches!(refused(b""), BackupError::NotBackup(_)));
    assert!(matches!(refused(&b"some text ".repeat(500)), BackupError::NotBackup(_)));
    assert!(matches!(refused(&good[..good.len() / 2]), BackupError::Damaged { .. }));
    // The live database is no backup.
    assert!(matches!(refused(&fs::read(home.config().file()).unwrap()), BackupError::NotBackup(_)));
    // A flipped bit in a record, found by its bytes.
    let changes = [
        "UPDATE record SET bytes = zeroblob(length(bytes)) WHERE rowid = 7",
        "UPDATE key_file SET bytes = zeroblob(80)",
    ];
    for change in changes {
        fs::write(&backup, &good).unwrap();
        Connection::open(&backup).unwrap().execute(change, []).unwrap();
        let error = home.restore(&backup, true).unwrap_err();
        assert!(matches!(&error, BackupError::Damaged { .. }), "{change}: {error}");
    }
    fs::write(&backup, &good).unwrap();
    let other = MasterKey::from_bytes([6; 32]);
    let elsewhere = Home::new();
    let error = restore(&elsewhere.config(), &elsewhere.keys(), other, &backup, false, &mut |_, _| {});
    assert!(matches!(error, Err(BackupError::OtherMaster(_))));
    // Nothing was replaced meanwhile.
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 50);
    assert!(!home.config().path.join("memory.sqlite.replaced").exists());
}

/// Backups while a relayer writes and deletes: each of them opens with its own keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_made_during_writes_and_deletions_open_whole() {
    let home = Home::new();
    let vault = home.vault().await;
    let writer = tokio::spawn({
        let owner = vault.open(ANA).await.unwrap();
        async move {
            for number in 0..120 {
                write_events(&owner, number..number + 1).await;
                if number % 4 == 3 {
                    let remove = vec![(Space::Features, number)];
                    let put = vec![(Space::Log, number - 2, Zeroizing::new(text_of(number - 2)))];
                    owner.redact(Changes { put, remove, ..Changes::default() }).await.unwrap();
                }
            }
        }
    });
    let mut backups = Vec::new();
    while !writer.is_finished() || backups.is_empty() {
        let (config, keys) = (home.config(), home.keys());
        let to = home.0.path().join(format!("backup-{}", backups.len()));
        backups.push(to.clone());
        tokio::task::spawn_blocking(move || back_up(&config, &keys, master(), &to, &mut |_, _| {}))
            .await
            .unwrap()
            .unwrap();
    }
    writer.await.unwrap();
    let mut last = 0;
    for backup in &backups {
        let other = Home::new();
        other.restore(backup, false).unwrap();
        let found = count(&other.vault().await, ANA).await.unwrap();
        assert!(found >= last && found <= 120, "{last}, then {found}");
        last = found;
    }
}

/// A relayer that goes on with a memory writes its search features and jobs. A backup from before them lacks nothing.
#[tokio::test]
async fn a_backup_from_before_derived_records_is_no_loss() {
    let home = Home::new();
    let vault = home.vault().await;
    let ana = vault.open(ANA).await.unwrap();
    write_events(&ana, 0..3).await;
    let (backup, _) = home.back_up("backup").unwrap();
    let put = vec![(Space::Features, 1, Zeroizing::new(b"features".to_vec()))];
    ana.commit(Changes { put, job: Some(JobChange::Due(5)), ..Changes::default() }).await.unwrap();
    if let Some(marker) = ana.marker() {
        marker.write().await.unwrap();
    }
    drop((ana, vault));
    home.restore(&backup, false).unwrap();
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 3);
}

#[tokio::test]
async fn a_restore_that_is_cut_off_is_finished_or_undone_at_the_next_start() {
    let home = Home::new();
    let vault = home.vault().await;
    let ana = vault.open(ANA).await.unwrap();
    write_events(&ana, 0..20).await;
    let (backup, _) = home.back_up("backup").unwrap();
    // From here on, neither keys nor records of the one fit the other.
    ana.redact(Changes { remove: vec![(Space::Log, 3)], ..Changes::default() }).await.unwrap();
    ana.redact(Changes { put: vec![(Space::Log, 3, Zeroizing::new(text_of(3)))], ..Changes::default() })
        .await
        .unwrap();
    write_events(&ana, 20..30).await;
    drop((ana, vault));
    let (config, part) = (home.config(), part_of(&home.config()));
    let finish = || finish_restore(&home.config(), &home.keys(), master()).unwrap();
    finish();

    // Cut off before the switch.
    copy_back(&backup, &part, true, &mut |_, _| {}).unwrap();
    finish();
    assert!(!part.exists(), "no copy of deleted data stays");
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 30);

    // In it: the old database is aside, with or without its log.
    copy_back(&backup, &part, true, &mut |_, _| {}).unwrap();
    archive(&config.file()).unwrap();
    finish();
    assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 20);
    write_events(&home.vault().await.open(ANA).await.unwrap(), 20..25).await;

    // After it, before the keys, and between their folders.
    for cut in 0..3 {
        copy_back(&backup, &part, true, &mut |_, _| {}).unwrap();
        replace(&config, &part).unwrap();
        if cut > 0 {
            archive(&home.keys()).unwrap();
        }
        if cut > 1 {
            fs::create_dir(home.0.path().join("keys.restored")).unwrap();
        }
        finish();
        assert_eq!(count(&home.vault().await, ANA).await.unwrap(), 20, "{cut}");
        assert!(!home.0.path().join("keys.restored").exists());
    }
}
