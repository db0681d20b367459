//! Receipts that clients acknowledged: the node's proof of its credit. They outlive the journal's entries.
//! One database in two copies, with no conversation text and no key. Receipts of paying clients have a share of
//! their own, since identities are free and anybody can fill the other one.
//!
//! The journal appends. [`read`] and [`Account`] serve `baton-node earnings`, also while the node runs. Each
//! row proves itself: the node signed the receipt, and the session's key signed the acknowledgement over the
//! receipt's hash. Rows without this proof do not count.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use baton_keys::files;
use baton_kit::entries::{Change, Entry, EntryDatabase, EntryFiles, FileDamage, FoundEntries};
use baton_proto::{
    SignedBytes, SignedObject, codec,
    ids::{ModelId, NodeId, ReceiptHash},
    limits::MAX_SIGNED_BYTES,
    note::{TurnNote, TurnNoteKind},
    receipt::Receipt,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use time::{Date, OffsetDateTime};

/// Folder of the ledger in the data directory.
pub(crate) const LEDGER_FOLDER: &str = "receipts";
/// Months to keep, including the current one: a full year, plus the month in which the operator does the
/// accounts.
pub(crate) const KEPT_MONTHS: usize = 13;
/// Most bytes of a month's paying clients: some three hundred thousand turns. Later receipts are dropped,
/// with a log message.
const MAX_MONTH_BYTES: u64 = 256 * 1024 * 1024;
/// Most bytes of a month's other receipts: of all clients without a grant.
const MAX_OTHER_BYTES: u64 = 128 * 1024 * 1024;
/// Maximum number of refused rows in the report by name; the others are only counted.
pub(crate) const MAX_REFUSED_NAMED: usize = 100;

/// The database, in the ledger's folder.
const RECEIPT_FILES: EntryFiles =
    EntryFiles { names: ["a.sqlite", "b.sqlite"], layout: 1, kind_of_first: None, is_shared: true };
/// The folder of files that cannot be read, in the ledger's folder.
const QUARANTINE: &str = "quarantine";
/// Longest entry: two signed objects.
const MAX_ENTRY_BYTES: usize = 2 * (MAX_SIGNED_BYTES + 72);

/// Appends receipts.
#[derive(Debug)]
pub struct Ledger {
    folder: PathBuf,
    state: Mutex<LedgerState>,
    damages: Vec<String>,
}

#[derive(Debug)]
struct LedgerState {
    database: EntryDatabase,
    next: u64,
    /// Bytes by share, in the order of time.
    sizes: BTreeMap<Share, u64>,
    /// Whether a receipt was dropped because its share is full.
    has_dropped: bool,
}

/// The receipts of a kind and month; the months are counted from the year 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Share(ReceiptKind, u32);

impl Share {
    fn entry_kind(self) -> u32 {
        self.1 * 2 + u32::from(self.0 == ReceiptKind::Other)
    }

    fn of_entry(kind: u32) -> Self {
        Self(if kind.is_multiple_of(2) { ReceiptKind::Paying } else { ReceiptKind::Other }, kind / 2)
    }
}

/// The share of a month that a receipt belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReceiptKind {
    /// It has a price, and its client a grant.
    Paying,
    /// It has no price, or its client no grant.
    Other,
}

impl ReceiptKind {
    fn max_bytes(self) -> u64 {
        match self {
            Self::Paying => MAX_MONTH_BYTES,
            Self::Other => MAX_OTHER_BYTES,
        }
    }
}

/// The day (UTC) of a time in milliseconds since the Unix epoch; the last day of 9999 for later ones.
fn day_of(time_ms: u64) -> Date {
    let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_or(Date::MAX, OffsetDateTime::date)
}

/// The month of a time, counted from the year 0.
fn months(time_ms: u64) -> u32 {
    let day = day_of(time_ms);
    day.year().unsigned_abs() * 12 + u32::from(u8::from(day.month())) - 1
}

impl Ledger {
    /// Opens the folder, creates it if it is missing, and checks every receipt's checksum. Blocking: a hundred
    /// thousand turns take some tenths of a second.
    ///
    /// # Errors
    /// When it cannot be created or read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        if !folder.is_dir() {
            files::create_private_folder(folder)?;
        }
        let found = FoundEntries::read(folder, RECEIPT_FILES)?;
        let mut damages: Vec<_> =
            found.damages().into_iter().map(|damage| damage_text(folder, damage)).collect();
        if found.is_lost() {
            let target = folder.join(QUARANTINE);
            found.quarantine(&target, "")?;
            damages.push(format!(
                "no copy in {} can be read: the receipts are lost, and credit cannot be shown for them. The files as \
                 they were found are in {}",
                folder.display(),
                target.display()
            ));
        }
        let (mut next, mut sizes) = (1, BTreeMap::new());
        found.for_each(|entry| {
            next = entry.number.saturating_add(1).max(next);
            // An entry that is visited twice counts twice, until the next start.
            *sizes.entry(Share::of_entry(entry.key.0)).or_default() += entry.value.len() as u64;
        })?;
        found.renew()?;
        drop(found);
        let database = EntryDatabase::open(folder, RECEIPT_FILES)?;
        let state = LedgerState { database, next, sizes, has_dropped: false };
        Ok(Self { folder: folder.to_owned(), state: Mutex::new(state), damages })
    }

    /// Damage found at opening, in words. The caller reports it to the operator.
    #[must_use]
    pub(crate) fn damages(&self) -> &[String] {
        &self.damages
    }

    /// Appends a receipt and its acknowledgement, flushed on return. Blocking. A repeated receipt replaces the
    /// first.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn append(
        &self,
        receipt: &SignedBytes,
        ack: &SignedBytes,
        kind: ReceiptKind,
    ) -> io::Result<()> {
        let time_ms = SignedObject::<Receipt>::peek(receipt).map(|receipt| receipt.time_ms);
        // The node made this receipt, so parsing cannot fail; an unreadable one would be useless here.
        let Ok(time_ms) = time_ms else { return Ok(()) };
        let share = Share(kind, months(time_ms));
        let id = blake3::hash(&codec::encode(receipt)).into();
        let value = codec::encode(&(receipt, ack));
        let mut state = self.state.lock();
        let LedgerState { database, next, sizes, has_dropped } = &mut *state;
        database.settle()?;
        let bytes = sizes.get(&share).copied().unwrap_or(0) + value.len() as u64;
        if bytes > kind.max_bytes() {
            if !std::mem::replace(has_dropped, true) {
                tracing::error!(day = %day_of(time_ms), "a month's receipts are full: later ones are lost");
            }
            return Ok(());
        }
        let mut changes = vec![Change::Put(Entry { key: (share.entry_kind(), id), number: *next, value })];
        *next += 1;
        let mut months: Vec<_> = sizes.keys().filter(|known| known.0 == kind).copied().collect();
        if !months.contains(&share) {
            months.push(share);
            months.sort_unstable();
            months.truncate(months.len().saturating_sub(KEPT_MONTHS));
            changes.extend(months.iter().map(|old| Change::RemoveKind(old.entry_kind())));
        } else {
            months.clear();
        }
        database.write(&changes)?;
        EntryDatabase::sync(&self.folder, RECEIPT_FILES).inspect_err(|_| database.note_failed_sync())?;
        sizes.insert(share, bytes);
        for old in months {
            sizes.remove(&old);
        }
        Ok(())
    }
}

/// A file's damage and its consequence.
fn damage_text(folder: &Path, (damage, place): (FileDamage, String)) -> String {
    let consequence = match damage {
        FileDamage::Unreadable | FileDamage::Restorable => {
            "the other copy has every receipt, and this one is written again"
        }
        FileDamage::Lost => {
            "the other copy is damaged too. Every receipt that is whole in one of them is kept; credit cannot be shown \
             for a missing one"
        }
    };
    format!("{}: {consequence}", folder.join(place).display())
}

/// Why a row does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReceiptError {
    /// It is altered or unreadable.
    #[error("the receipt is damaged")]
    Damaged,
    /// The receipt's signature does not verify.
    #[error("the receipt's signature does not verify")]
    Receipt,
    /// The receipt is of another node.
    #[error("the receipt is of another node")]
    OtherNode,
    /// The acknowledgement's signature does not verify, or its key is not its session's.
    #[error("the acknowledgement's signature does not verify")]
    Ack,
    /// The acknowledgement is of another receipt.
    #[error("the acknowledgement is of another receipt")]
    OtherReceipt,
}

/// Checks an entry's value. The receipt is claimed by this node and acknowledged by the client.
fn check(value: &[u8], nodes: &[NodeId]) -> Result<SignedObject<Receipt>, ReceiptError> {
    let (receipt, ack): (SignedBytes, SignedBytes) =
        codec::decode(value, MAX_ENTRY_BYTES).map_err(|_| ReceiptError::Damaged)?;
    let receipt = SignedObject::<Receipt>::verify(receipt).map_err(|_| ReceiptError::Receipt)?;
    if !nodes.contains(&receipt.node) {
        return Err(ReceiptError::OtherNode);
    }
    let note = SignedObject::<TurnNote>::verify(ack).map_err(|_| ReceiptError::Ack)?;
    let TurnNoteKind::Ack(accepted) = &note.kind else { return Err(ReceiptError::Ack) };
    let same = accepted.receipt_hash == receipt.receipt_hash()
        && note.session_id == receipt.session_id
        && note.seq == receipt.seq;
    if same { Ok(receipt) } else { Err(ReceiptError::OtherReceipt) }
}

/// Credit for one model on one day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credit {
    /// Turns.
    pub turns: u64,
    /// Tokens of prompts.
    pub(crate) input_tokens: u64,
    /// Tokens of answers generated here, without tokens of other nodes.
    pub output_tokens: u64,
    /// Charged, in millionths of the node's unit.
    pub(crate) price: u64,
}

impl Credit {
    fn add(&mut self, receipt: &Receipt) {
        let made = receipt.tokens.output.saturating_sub(receipt.tokens.resumed);
        self.turns += 1;
        self.input_tokens = self.input_tokens.saturating_add(receipt.tokens.input.into());
        self.output_tokens = self.output_tokens.saturating_add(made.into());
        self.price = self.price.saturating_add(receipt.price);
    }
}

/// A row that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedReceipt {
    /// Its number in the database.
    pub(crate) number: u64,
    /// The reason.
    pub(crate) error: ReceiptError,
}

/// The account of all receipts.
#[derive(Debug, Default)]
pub struct Account {
    /// Credits by day and model.
    pub(crate) credits: BTreeMap<(Date, ModelId), Credit>,
    /// The sum of all credits.
    pub total: Credit,
    /// The first rows that do not count.
    pub(crate) refused: Vec<RefusedReceipt>,
    /// Number of rows that do not count.
    pub refused_count: u64,
    seen: HashSet<ReceiptHash>,
}

impl Account {
    fn take(&mut self, entry: &Entry, nodes: &[NodeId], since: Option<Date>) {
        match check(&entry.value, nodes) {
            // One hash counts as one turn.
            Ok(receipt) if !self.seen.insert(receipt.receipt_hash()) => {}
            Ok(receipt) => {
                let day = day_of(receipt.time_ms);
                if since.is_none_or(|since| day >= since) {
                    self.credits.entry((day, receipt.model)).or_default().add(&receipt);
                    self.total.add(&receipt);
                }
            }
            Err(error) => {
                self.refused_count += 1;
                if self.refused.len() < MAX_REFUSED_NAMED {
                    self.refused.push(RefusedReceipt { number: entry.number, error });
                }
            }
        }
    }
}

/// Reads and checks all receipts of a folder. Blocking.
///
/// # Errors
/// When the database cannot be read. A missing folder counts as empty.
pub fn read(folder: &Path, nodes: &[NodeId], since: Option<Date>) -> io::Result<Account> {
    let mut account = Account::default();
    FoundEntries::read(folder, RECEIPT_FILES)?.for_each(|entry| account.take(&entry, nodes, since))?;
    Ok(account)
}

#[cfg(test)]
mod tests {
    use baton_keys::{SecretSigningKey, session::SessionRoot};
    use baton_proto::{
        ids::{AuthHash, BlobDigest, Commitment, LinkHash, RunningHash, SamplingDigest, SessionId, TurnId},
        limits::RECEIPT_VERSION,
        note::Acknowledgement,
        receipt::{Commitments, EngineKind, Timings, TokenCounts},
    };

    use super::*;

    const DAY_MS: u64 = 24 * 3600 * 1000;
    const DAY_ONE: u64 = 1_795_305_600_000;

    fn node() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[1; 32])
    }

    fn receipt(root: &SessionRoot, seq: u64, time_ms: u64) -> SignedObject<Receipt> {
        let receipt = Receipt {
            version: RECEIPT_VERSION,
            session_id: root.session_id(),
            seq,
            turn_id: TurnId([u8::try_from(seq).unwrap(); 16]),
            attempt: 0,
            auth_hash: AuthHash([1; 32]),
            node: node().node_id(),
            model: ModelId([2; 32]),
            engine: EngineKind::Echo,
            sampling: SamplingDigest([3; 32]),
            seed: 0,
            window_from: 0,
            tokens: TokenCounts { input: 100, output: 30, memory: 0, resumed: 10 },
            memory_items: 0,
            commitments: Commitments {
                input: Commitment([4; 32]),
                output: Commitment([5; 32]),
                memory: None,
            },
            running_hash: RunningHash([6; 32]),
            checks: Vec::new(),
            timings: Timings::default(),
            price: 7,
            time_ms,
        };
        SignedObject::sign(receipt, &node())
    }

    fn ack(root: &SessionRoot, receipt: &SignedObject<Receipt>) -> TurnNote {
        TurnNote {
            version: 1,
            session_id: receipt.session_id,
            session_key: root.signing_key().public_key(),
            seq: receipt.seq,
            turn_id: receipt.turn_id,
            attempt: receipt.attempt,
            node: receipt.node,
            time_ms: receipt.time_ms,
            kind: TurnNoteKind::Ack(Acknowledgement {
                link_hash: LinkHash([7; 32]),
                blob_digest: BlobDigest([8; 32]),
                receipt_hash: receipt.receipt_hash(),
            }),
        }
    }

    fn sign(root: &SessionRoot, ack: TurnNote) -> SignedBytes {
        SignedObject::sign(ack, &root.signing_key()).bytes().clone()
    }

    #[test]
    fn credit_is_for_what_clients_acknowledged_by_day_and_model_and_each_turn_once() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("kept")).unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        for (seq, days) in [(0, 0), (1, 0), (2, 1), (3, 40)] {
            let receipt = receipt(&root, seq, DAY_ONE + days * DAY_MS);
            let ack = sign(&root, ack(&root, &receipt));
            ledger.append(receipt.bytes(), &ack, ReceiptKind::Paying).unwrap();
            ledger.append(receipt.bytes(), &ack, ReceiptKind::Paying).unwrap();
        }
        let nodes = [node().node_id()];
        let account = read(&folder.path().join("kept"), &nodes, None).unwrap();
        let day = |credit: &Credit| (credit.turns, credit.input_tokens, credit.output_tokens, credit.price);
        let days: Vec<_> = account.credits.values().map(day).collect();
        assert_eq!(days, [(2, 200, 40, 14), (1, 100, 20, 7), (1, 100, 20, 7)]);
        assert_eq!(day(&account.total), (4, 400, 80, 28));
        let since = Some(day_of(DAY_ONE + DAY_MS));
        assert_eq!(read(&folder.path().join("kept"), &nodes, since).unwrap().total.turns, 2);
        assert_eq!(read(&folder.path().join("none"), &nodes, None).unwrap().total, Credit::default());
    }

    #[test]
    fn what_was_tampered_with_or_is_not_acknowledged_does_not_count_and_is_named() {
        let (root, other) = (SessionRoot::from_bytes([9; 32]), SessionRoot::from_bytes([8; 32]));
        let first = receipt(&root, 0, DAY_ONE);
        let second = receipt(&root, 1, DAY_ONE);
        let good = ack(&root, &first);
        let richer = Receipt { price: 7000, ..Receipt::clone(&first) };
        let richer_body = SignedBytes { body: codec::encode(&richer), signature: first.bytes().signature };
        let resigned = SignedObject::sign(richer, &node());
        let foreign = SignedObject::sign(
            Receipt { node: SecretSigningKey::from_seed(&[5; 32]).node_id(), ..Receipt::clone(&first) },
            &SecretSigningKey::from_seed(&[5; 32]),
        );
        let other_ack = TurnNote {
            session_id: SessionId([1; 32]),
            session_key: other.signing_key().public_key(),
            ..good.clone()
        };
        let by_other =
            TurnNote { session_id: other.session_id(), session_key: other_ack.session_key, ..good.clone() };
        let acked = sign(&root, good.clone());
        let nodes = [node().node_id()];
        let value = |receipt: &SignedBytes, ack: &SignedBytes| codec::encode(&(receipt, ack));
        let error = |receipt: &SignedBytes, ack: &SignedBytes| check(&value(receipt, ack), &nodes).err();
        assert_eq!(error(first.bytes(), &acked), None);
        assert_eq!(error(&richer_body, &acked), Some(ReceiptError::Receipt), "a price was changed");
        assert_eq!(
            error(resigned.bytes(), &acked),
            Some(ReceiptError::OtherReceipt),
            "and signed anew by the node"
        );
        assert_eq!(error(second.bytes(), &acked), Some(ReceiptError::OtherReceipt));
        assert_eq!(error(foreign.bytes(), &acked), Some(ReceiptError::OtherNode));
        assert_eq!(
            error(first.bytes(), &sign(&other, good)),
            Some(ReceiptError::Ack),
            "the node made the ack itself"
        );
        assert_eq!(error(first.bytes(), &sign(&other, other_ack)), Some(ReceiptError::Ack));
        assert_eq!(error(first.bytes(), &sign(&other, by_other)), Some(ReceiptError::OtherReceipt));
        let whole = value(first.bytes(), &acked);
        assert_eq!(check(&whole[..whole.len() - 1], &nodes).err(), Some(ReceiptError::Damaged));

        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        for receipt in [first.bytes(), resigned.bytes()] {
            ledger.append(receipt, &acked, ReceiptKind::Paying).unwrap();
        }
        drop(ledger);
        let account = read(folder.path(), &nodes, None).unwrap();
        assert_eq!((account.total.turns, account.total.price, account.refused_count), (1, 7, 1));
        assert_eq!(account.refused, [RefusedReceipt { number: 2, error: ReceiptError::OtherReceipt }]);
    }

    #[test]
    fn receipts_of_unknown_peers_cannot_fill_the_share_of_paying_clients() {
        let folder = tempfile::tempdir().unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        let ledger = Ledger::open(folder.path()).unwrap();
        let append = |seq, kind| {
            let receipt = receipt(&root, seq, DAY_ONE);
            ledger.append(receipt.bytes(), &sign(&root, ack(&root, &receipt)), kind).unwrap();
        };
        append(0, ReceiptKind::Other);
        *ledger.state.lock().sizes.values_mut().next().unwrap() = MAX_OTHER_BYTES;
        append(1, ReceiptKind::Other);
        append(2, ReceiptKind::Paying);
        let account = read(folder.path(), &[node().node_id()], None).unwrap();
        assert_eq!(account.total.turns, 2, "all but the one beyond the bound");
    }

    #[test]
    fn months_beyond_those_kept_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        for month in 0..KEPT_MONTHS as u64 + 3 {
            let receipt = receipt(&root, month, DAY_ONE + month * 31 * DAY_MS);
            let ack = sign(&root, ack(&root, &receipt));
            for kind in [ReceiptKind::Paying, ReceiptKind::Other] {
                ledger.append(receipt.bytes(), &ack, kind).unwrap();
            }
        }
        let kept = |ledger: &Ledger| ledger.state.lock().sizes.clone();
        let sizes = kept(&ledger);
        assert_eq!(sizes.len(), 2 * KEPT_MONTHS);
        drop(ledger);
        let ledger = Ledger::open(folder.path()).unwrap();
        assert_eq!((kept(&ledger), ledger.damages().len()), (sizes, 0));
        let account = read(folder.path(), &[node().node_id()], None).unwrap();
        assert_eq!(account.total.turns, KEPT_MONTHS as u64, "a receipt counts once");
    }

    #[test]
    fn damage_is_named_and_costs_no_receipt_unless_both_copies_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        let append = |ledger: &Ledger, seq| {
            let receipt = receipt(&root, seq, DAY_ONE);
            let ack = sign(&root, ack(&root, &receipt));
            ledger.append(receipt.bytes(), &ack, ReceiptKind::Paying).unwrap();
        };
        let ledger = Ledger::open(folder.path()).unwrap();
        (0..9).for_each(|seq| append(&ledger, seq));
        drop(ledger);
        let turns = || read(folder.path(), &[node().node_id()], None).unwrap().total.turns;
        let paths = RECEIPT_FILES.names.map(|name| folder.path().join(name));
        for path in &paths {
            std::fs::write(path, b"garbage").unwrap();
            assert_eq!(turns(), 9);
            let ledger = Ledger::open(folder.path()).unwrap();
            let [damage] = ledger.damages() else { panic!("{:?}", ledger.damages()) };
            assert!(
                damage.starts_with(path.to_str().unwrap()) && damage.contains("has every receipt"),
                "{damage}"
            );
            drop(ledger);
            assert_eq!((turns(), Ledger::open(folder.path()).unwrap().damages().len()), (9, 0));
        }
        for path in &paths {
            std::fs::write(path, b"garbage").unwrap();
        }
        let ledger = Ledger::open(folder.path()).unwrap();
        assert!(ledger.damages().concat().contains("the receipts are lost"), "{:?}", ledger.damages());
        assert_eq!(std::fs::read(folder.path().join(QUARANTINE).join("b.sqlite")).unwrap(), b"garbage");
        append(&ledger, 3);
        assert_eq!(turns(), 1, "also beside the node");
    }
}
