//! One flipped bit anywhere in the file: the damage is named, the rest is served, and no other bytes are
//! served as a record.

use std::{path::Path, sync::Arc, time::Duration};

use baton_keys::master::MasterKey;
use baton_memory::{
    ids::OwnerId,
    storage::{
        JobChange, Space,
        embedded::{EmbeddedConfig, EmbeddedStorage},
    },
    vault::{Changes, Vault},
};
use zeroize::Zeroizing;

use crate::storage::support::draw;

const OWNERS: u8 = 6;
const EVENTS: u64 = 60;
/// Flips, and with `BATON_FULL`.
const FLIPS: u64 = 40;
const ALL_FLIPS: u64 = 1_000;

fn text_of(owner: u8, number: u64) -> Vec<u8> {
    format!("owner {owner}, event {number}. ").repeat(1 + (number % 9) as usize * 12).into_bytes()
}

async fn vault_of(storage: EmbeddedStorage, folder: &Path) -> Vault {
    Vault::new(Arc::new(storage), &folder.join("keys"), MasterKey::from_bytes([5; 32])).await.unwrap()
}

/// Owners with events, whose writes lie between one another in the file; closed in order.
async fn fill(folder: &Path, config: &EmbeddedConfig) {
    let vault = vault_of(EmbeddedStorage::open(config).unwrap(), folder).await;
    let mut owners = Vec::new();
    for owner in 0..OWNERS {
        owners.push(vault.open(OwnerId([owner; 32])).await.unwrap());
    }
    for first in (0..EVENTS).step_by(10) {
        for (owner, handle) in (0..).zip(&owners) {
            let put = (first..first + 10)
                .map(|number| (Space::Log, number, Zeroizing::new(text_of(owner, number))))
                .collect();
            let job = Some(JobChange::Due(1_000 + first));
            handle.commit(Changes { put, job, ..Changes::default() }).await.unwrap();
        }
    }
}

/// What became of an owner.
#[derive(Debug, PartialEq)]
enum Outcome {
    Whole,
    /// Refused with an error.
    Named(String),
    /// Records are missing, and no error says so.
    Short(u64),
}

async fn read(vault: &Vault, owner: u8) -> Outcome {
    let handle = match vault.open(OwnerId([owner; 32])).await {
        Ok(handle) => handle,
        Err(error) => return Outcome::Named(error.to_string()),
    };
    let (mut from, mut count) = (0, 0);
    loop {
        match handle.read(Space::Log, from).await {
            Err(error) => return Outcome::Named(error.to_string()),
            Ok(page) => {
                for (number, text) in &page {
                    assert!(text.as_slice() == text_of(owner, *number), "other bytes for {owner}: {number}");
                    count += 1;
                }
                match page.last() {
                    Some((last, _)) => from = last + 1,
                    None if count == EVENTS => return Outcome::Whole,
                    None => return Outcome::Short(count),
                }
            }
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_is_named_and_the_rest_is_served() {
    let flips = if std::env::var_os("BATON_FULL").is_some() { ALL_FLIPS } else { FLIPS };
    let folder = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(folder.path().join("database"));
    fill(folder.path(), &config).await;
    let good = std::fs::read(config.file()).unwrap();
    let (mut refused, mut served_beside) = (0, 0);
    for flip in 0..flips {
        let mut bad = good.clone();
        let at = (draw(flip, 2) % good.len() as u64) as usize;
        bad[at] ^= 1 << (draw(flip, 3) % 8);
        // A log of the damaged database before would belong to none.
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", config.file().display()));
        }
        std::fs::write(config.file(), &bad).unwrap();
        let check = EmbeddedStorage::check(&config, Duration::from_secs(60));
        let is_named = check.as_ref().map_or(true, |report| !report.damage.is_empty());
        assert!(is_named || check.is_ok_and(|report| report.is_complete), "{at}");
        let Ok(storage) = EmbeddedStorage::open(&config) else { continue };
        let vault = vault_of(storage, folder.path()).await;
        let mut outcomes = Vec::new();
        for owner in 0..OWNERS {
            outcomes.push(read(&vault, owner).await);
        }
        let whole = outcomes.iter().filter(|outcome| **outcome == Outcome::Whole).count() as u64;
        let is_short = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Short(_)));
        assert!(!is_short || is_named, "{at}: silently short: {outcomes:?}");
        if whole < u64::from(OWNERS) {
            refused += u64::from(OWNERS) - whole;
            served_beside += whole;
        }
    }
    println!("{flips} flips of {} bytes: {refused} owners refused, {served_beside} served", good.len());
    assert!(refused > 0 && served_beside > refused, "{refused} refused, {served_beside} served");
}

/// A damaged owner does not keep others from writing, not even in the same transaction.
#[tokio::test]
async fn a_damaged_owner_is_named_and_others_go_on_writing() {
    let folder = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(folder.path().join("database"));
    fill(folder.path(), &config).await;
    let names: Vec<String> = {
        let vault = vault_of(EmbeddedStorage::open(&config).unwrap(), folder.path()).await;
        (0..OWNERS).map(|owner| hex::encode(vault.pseudonym(OwnerId([owner; 32])).0)).collect()
    };
    let damage = rusqlite::Connection::open(config.file()).unwrap();
    let of_owner = "owner = (SELECT id FROM owner WHERE hex(pseudonym) = upper(?1))";
    damage
        .execute(
            &format!(
                "UPDATE record SET bytes = zeroblob(90) WHERE number = -9223372036854775801 AND {of_owner}"
            ),
            [&names[2]],
        )
        .unwrap();
    drop(damage);
    let report = EmbeddedStorage::check(&config, Duration::from_secs(60)).unwrap();
    assert_eq!(report.damage, [format!("record 7 of space 0 of owner {}", names[2])]);
    assert_eq!((report.owners, report.records), (u64::from(OWNERS), u64::from(OWNERS) * EVENTS - 1));

    let vault = vault_of(EmbeddedStorage::open(&config).unwrap(), folder.path()).await;
    for owner in 0..OWNERS {
        let outcome = read(&vault, owner).await;
        match (owner, outcome) {
            (2, Outcome::Named(error)) => assert!(error.contains("record 7 of Log"), "{error}"),
            (2, other) => panic!("{other:?}"),
            (_, outcome) => assert_eq!(outcome, Outcome::Whole),
        }
        let handle = vault.open(OwnerId([owner; 32])).await.unwrap();
        let put = vec![(Space::Log, EVENTS, Zeroizing::new(text_of(owner, EVENTS)))];
        handle.commit(Changes { put, ..Changes::default() }).await.unwrap();
    }
}
