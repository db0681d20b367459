//! Receipts that clients acknowledged: the node's proof of its credit. They outlive the journal's entries.
//! Two text files a month, one line a turn; no conversation text, no key. Receipts of paying clients have a
//! file of their own, since identities are free and anybody can fill the other one.
//!
//! The journal appends. [`read`] and [`Account`] serve `baton-node earnings`, also while the node runs. Each
//! line proves itself: the node signed the receipt, and the session's key signed the acknowledgement over the
//! receipt's hash. Lines without this proof do not count.

mod integrity;

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use baton_keys::files;
use baton_proto::{
    SignedBytes, SignedObject, codec,
    ids::{ModelId, NodeId, ReceiptHash},
    limits::MAX_SIGNED_BYTES,
    note::{TurnNote, TurnNoteKind},
    receipt::Receipt,
};
use serde::{Deserialize, Serialize};
use time::{Date, OffsetDateTime};

use integrity::Month;
pub(crate) use integrity::ReceiptsDamage;

/// Folder of the ledger in the data directory.
pub(crate) const LEDGER_FOLDER: &str = "receipts";
/// Months to keep, including the current one: a full year, plus the month in which the operator does the
/// accounts.
pub(crate) const KEPT_MONTHS: usize = 13;
/// Largest file of a month's paying clients: some three hundred thousand turns. Later receipts are dropped,
/// with a log message.
const MAX_MONTH_BYTES: u64 = 512 * 1024 * 1024;
/// Largest file of a month's other receipts.
const MAX_OTHER_BYTES: u64 = 64 * 1024 * 1024;
/// End of the name of a month's other receipts, before the extension.
const OTHER_SUFFIX: &str = "-other";
/// Prefix of each line.
const LINE_PREFIX: &str = "2 ";
/// Bytes of a line's checksum, which ends the line in hex.
const CHECKSUM_BYTES: usize = 8;
/// Longest line: two signed objects in hex, and a checksum.
const MAX_LINE_BYTES: u64 = 4 * (MAX_SIGNED_BYTES as u64 + 72) + 2 * CHECKSUM_BYTES as u64 + 16;
/// Maximum number of refused lines in the report by name; the others are only counted.
pub(crate) const MAX_REFUSED_NAMED: usize = 100;

/// Appends receipts.
#[derive(Debug)]
pub struct Ledger {
    folder: PathBuf,
    /// The files by month. Locked during an append, so that two lines never mix.
    writing: Mutex<BTreeMap<PathBuf, Month>>,
    damage: Vec<ReceiptsDamage>,
}

/// The file of a month that a receipt belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceiptKind {
    /// It has a price, and its client a grant or a history here.
    Paying,
    /// It has no price, or its client is an unknown peer.
    Other,
}

impl ReceiptKind {
    fn of_file(path: &Path) -> Self {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if stem.ends_with(OTHER_SUFFIX) { Self::Other } else { Self::Paying }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Paying => "",
            Self::Other => OTHER_SUFFIX,
        }
    }

    fn max_bytes(self) -> u64 {
        match self {
            Self::Paying => MAX_MONTH_BYTES,
            Self::Other => MAX_OTHER_BYTES,
        }
    }
}

/// A day of the Gregorian calendar, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day {
    /// Year.
    pub(crate) year: u64,
    /// Month, from 1.
    pub(crate) month: u64,
    /// Day of the month, from 1.
    pub(crate) day: u64,
}

impl Day {
    /// The day of a time in milliseconds since the Unix epoch; the last day of 9999 for later ones.
    #[must_use]
    pub(crate) fn of(time_ms: u64) -> Self {
        let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
        let date = OffsetDateTime::from_unix_timestamp(seconds).map_or(Date::MAX, OffsetDateTime::date);
        let (year, month, day) = date.to_calendar_date();
        Self { year: year.unsigned_abs().into(), month: u8::from(month).into(), day: day.into() }
    }

    /// Parses `YYYY-MM-DD`. Does not check that the month has such a day.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| part.parse::<u64>().ok());
        let (Some(year), Some(month), Some(day), None) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next())
        else {
            return None;
        };
        let valid = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        (valid && text.len() == 10).then_some(Self { year, month, day })
    }
}

impl std::fmt::Display for Day {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Ledger {
    /// Opens the folder, creates it if it is missing, and checks every line of its files. Blocking: a hundred
    /// thousand turns take some tenths of a second.
    ///
    /// # Errors
    /// When it cannot be created or read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        if !folder.is_dir() {
            files::create_private_folder(folder)?;
        }
        let (mut months, mut damage) = (BTreeMap::new(), Vec::new());
        for path in integrity::marked_months(folder)? {
            let (month, found) = Month::open(&path)?;
            months.insert(path, month);
            damage.extend(found);
        }
        Ok(Self { folder: folder.to_owned(), writing: Mutex::new(months), damage })
    }

    /// Damage found in the files at opening. The caller reports it to the operator.
    #[must_use]
    pub(crate) fn damage(&self) -> &[ReceiptsDamage] {
        &self.damage
    }

    /// Appends a receipt and its acknowledgement, flushed on return. Blocking. Readers count a repeated pair
    /// as one turn.
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
        let mut months = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let day = Day::of(time_ms);
        let path = self.folder.join(format!("{:04}-{:02}{}.txt", day.year, day.month, kind.suffix()));
        let fresh = !months.contains_key(&path);
        if fresh {
            months.insert(path.clone(), Month::create(&path)?);
        }
        let Some(month) = months.get_mut(&path) else { return Ok(()) };
        let line = line_of(receipt, ack);
        if month.bytes() + line.len() as u64 > kind.max_bytes() {
            if month.is_first_drop() {
                tracing::error!(file = %path.display(), "a month's receipts are full: later ones are lost");
            }
            return Ok(());
        }
        month.append(&line)?;
        if fresh {
            fs::File::open(&self.folder)?.sync_all()?;
            self.forget(kind)?;
        }
        Ok(())
    }

    /// Removes months beyond the limit.
    fn forget(&self, kind: ReceiptKind) -> io::Result<()> {
        let mut months = months(&self.folder)?;
        months.retain(|month| ReceiptKind::of_file(month) == kind);
        let old = months.len().saturating_sub(KEPT_MONTHS);
        for month in months.iter().take(old) {
            // The mark goes first: a mark without its file would count as damage.
            fs::remove_file(integrity::mark_path(month)).or_else(missing_is_fine)?;
            fs::remove_file(month)?;
        }
        Ok(())
    }
}

fn line_of(receipt: &SignedBytes, ack: &SignedBytes) -> String {
    let signed = [receipt, ack].map(|signed| hex::encode(codec::encode(signed)));
    let text = format!("{LINE_PREFIX}{}", signed.join(" "));
    format!("{text} {}\n", checksum(&text))
}

fn checksum(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes());
    hex::encode(hash.as_bytes().iter().take(CHECKSUM_BYTES).copied().collect::<Vec<u8>>())
}

/// A line without its checksum; `None` if the checksum does not match.
fn checked(line: &str) -> Option<&str> {
    let (text, sum) = line.rsplit_once(' ')?;
    (text.starts_with(LINE_PREFIX) && checksum(text) == sum).then_some(text)
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The files of a folder, oldest first.
fn months(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(".txt").map(|stem| stem.strip_suffix(OTHER_SUFFIX).unwrap_or(stem));
        if stem.and_then(|month| Day::parse(&format!("{month}-01"))).is_some() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Why a line does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It is cut or altered, and no longer parses.
    #[error("the line is damaged")]
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

/// A verified line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerifiedLine {
    /// The receipt's hash; one hash counts as one turn.
    pub(crate) hash: ReceiptHash,
    /// The receipt, claimed by this node and acknowledged by the client.
    pub(crate) receipt: Receipt,
}

/// Checks a line.
///
/// # Errors
/// [`Fault`].
pub(crate) fn check(line: &str, nodes: &[NodeId]) -> Result<VerifiedLine, Fault> {
    let text = checked(line.trim_end()).ok_or(Fault::Damaged)?;
    let rest = text.strip_prefix(LINE_PREFIX).ok_or(Fault::Damaged)?;
    let (receipt, ack) = rest.split_once(' ').ok_or(Fault::Damaged)?;
    let signed = |text: &str| -> Result<SignedBytes, Fault> {
        let bytes = hex::decode(text).map_err(|_| Fault::Damaged)?;
        codec::decode(&bytes, MAX_SIGNED_BYTES + 72).map_err(|_| Fault::Damaged)
    };
    let receipt = SignedObject::<Receipt>::verify(signed(receipt)?).map_err(|_| Fault::Receipt)?;
    if !nodes.contains(&receipt.node) {
        return Err(Fault::OtherNode);
    }
    let note = SignedObject::<TurnNote>::verify(signed(ack)?).map_err(|_| Fault::Ack)?;
    let TurnNoteKind::Ack(accepted) = &note.kind else { return Err(Fault::Ack) };
    let hash = receipt.receipt_hash();
    let same =
        accepted.receipt_hash == hash && note.session_id == receipt.session_id && note.seq == receipt.seq;
    if same { Ok(VerifiedLine { hash, receipt: receipt.into_value() }) } else { Err(Fault::OtherReceipt) }
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

/// A line that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidLine {
    /// Its file.
    pub(crate) file: String,
    /// Its line number, from 1.
    pub(crate) line: u64,
    /// The reason.
    pub(crate) fault: Fault,
}

/// The account of all receipts.
#[derive(Debug, Default)]
pub struct Account {
    /// Credits by day and model.
    pub(crate) credits: BTreeMap<(Day, ModelId), Credit>,
    /// The sum of all credits.
    pub total: Credit,
    /// The first lines that do not count.
    pub(crate) refused: Vec<InvalidLine>,
    /// Number of lines that do not count.
    pub refused_count: u64,
    /// Lines that repeat another line.
    pub(crate) repeated: u64,
    seen: HashSet<ReceiptHash>,
}

impl Account {
    fn take(&mut self, line: &str, (file, number): (&str, u64), nodes: &[NodeId], since: Option<Day>) {
        match check(line, nodes) {
            Ok(earned) if !self.seen.insert(earned.hash) => self.repeated += 1,
            Ok(earned) => {
                let day = Day::of(earned.receipt.time_ms);
                if since.is_none_or(|since| day >= since) {
                    self.credits.entry((day, earned.receipt.model)).or_default().add(&earned.receipt);
                    self.total.add(&earned.receipt);
                }
            }
            Err(fault) => {
                self.refused_count += 1;
                if self.refused.len() < MAX_REFUSED_NAMED {
                    self.refused.push(InvalidLine { file: file.to_owned(), line: number, fault });
                }
            }
        }
    }
}

/// Reads and checks all files of a folder. Blocking.
///
/// # Errors
/// When a file cannot be read. A missing folder counts as empty.
pub fn read(folder: &Path, nodes: &[NodeId], since: Option<Day>) -> io::Result<Account> {
    let mut account = Account::default();
    if !folder.exists() {
        return Ok(account);
    }
    for path in months(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut reader = BufReader::new(fs::File::open(&path)?);
        let mut number = 0;
        loop {
            let mut bytes = Vec::new();
            if (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            number += 1;
            let line = String::from_utf8(bytes).unwrap_or_default();
            account.take(&line, (&name, number), nodes, since);
        }
    }
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
    fn days_are_those_of_the_calendar() {
        for (time_ms, expected) in [
            (0, "1970-01-01"),
            (951_782_400_000, "2000-02-29"),
            (951_868_800_000, "2000-03-01"),
            (1_709_164_800_000, "2024-02-29"),
            (1_798_761_599_999, "2026-12-31"),
            (1_798_761_600_000, "2027-01-01"),
        ] {
            assert_eq!(Day::of(time_ms).to_string(), expected);
            assert_eq!(Day::parse(expected), Some(Day::of(time_ms)));
        }
        for wrong in ["", "2026", "2026-13-01", "2026-1-1", "2026-01-01-", "1960-01-01", "2026-00-10"] {
            assert_eq!(Day::parse(wrong), None, "{wrong}");
        }
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
        assert_eq!((day(&account.total), account.repeated), ((4, 400, 80, 28), 4));
        let since = Some(Day::of(DAY_ONE + DAY_MS));
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
        let line = |receipt: &SignedBytes, ack: &SignedBytes| check(&line_of(receipt, ack), &nodes).err();
        assert_eq!(line(first.bytes(), &acked), None);
        assert_eq!(line(&richer_body, &acked), Some(Fault::Receipt), "a price was changed");
        assert_eq!(line(resigned.bytes(), &acked), Some(Fault::OtherReceipt), "and signed anew by the node");
        assert_eq!(line(second.bytes(), &acked), Some(Fault::OtherReceipt));
        assert_eq!(line(foreign.bytes(), &acked), Some(Fault::OtherNode));
        assert_eq!(
            line(first.bytes(), &sign(&other, good)),
            Some(Fault::Ack),
            "the node made the ack itself"
        );
        assert_eq!(line(first.bytes(), &sign(&other, other_ack)), Some(Fault::Ack));
        assert_eq!(line(first.bytes(), &sign(&other, by_other)), Some(Fault::OtherReceipt));
        let whole = line_of(first.bytes(), &acked);
        for damaged in ["", "1 ", "2 00 00", &whole[..whole.len() / 2], &whole[3..]] {
            assert_eq!(check(damaged, &nodes).err(), Some(Fault::Damaged));
        }

        let folder = tempfile::tempdir().unwrap();
        let text = format!("{}half a line\n{}", whole, line_of(resigned.bytes(), &acked));
        fs::write(folder.path().join("2026-11.txt"), text).unwrap();
        fs::write(folder.path().join("notes.txt"), "not of the ledger").unwrap();
        let account = read(folder.path(), &nodes, None).unwrap();
        assert_eq!((account.total.turns, account.total.price, account.refused_count), (1, 7, 2));
        let named: Vec<_> = account.refused.iter().map(|refused| (refused.line, refused.fault)).collect();
        assert_eq!(named, [(2, Fault::Damaged), (3, Fault::OtherReceipt)]);
    }

    #[test]
    fn receipts_of_unknown_peers_cannot_fill_the_file_of_paying_clients() {
        let folder = tempfile::tempdir().unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        let other = folder.path().join("2026-11-other.txt");
        let ledger = Ledger::open(folder.path()).unwrap();
        let append = |seq, kind| {
            let receipt = receipt(&root, seq, DAY_ONE);
            ledger.append(receipt.bytes(), &sign(&root, ack(&root, &receipt)), kind).unwrap();
        };
        append(0, ReceiptKind::Other);
        ledger.writing.lock().unwrap().get_mut(&other).unwrap().fill(MAX_OTHER_BYTES);
        append(1, ReceiptKind::Other);
        append(2, ReceiptKind::Paying);
        let account = read(folder.path(), &[node().node_id()], None).unwrap();
        assert_eq!(account.total.turns, 2, "all but the one beyond the bound");
        assert!(folder.path().join("2026-11.txt").exists());
    }

    #[test]
    fn months_beyond_those_kept_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let root = SessionRoot::from_bytes([9; 32]);
        for month in 0..KEPT_MONTHS + 3 {
            let receipt = receipt(&root, month as u64, DAY_ONE + month as u64 * 31 * DAY_MS);
            let ack = sign(&root, ack(&root, &receipt));
            for kind in [ReceiptKind::Paying, ReceiptKind::Other] {
                ledger.append(receipt.bytes(), &ack, kind).unwrap();
            }
        }
        assert_eq!(months(folder.path()).unwrap().len(), 2 * KEPT_MONTHS);
        let account = read(folder.path(), &[node().node_id()], None).unwrap();
        assert_eq!(account.total.turns, KEPT_MONTHS as u64);
    }
}
