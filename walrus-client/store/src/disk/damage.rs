//! Damage that the full check finds.

use std::fmt;

/// Most damages in a report: some megabytes. Further ones are only counted.
const MAX_LISTED: usize = 10_000;

/// A kind of damage, and its fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// Bytes of a blob are missing or changed. It is not served until it is stored again.
    BlobBytes,
    /// The file of a blob is gone. It is not served until it is stored again.
    BlobMissing,
    /// A file's bytes are unreadable just now. It stays in place.
    BlobUnreadable,
    /// Neither the index nor the file itself names its blob: the file goes to the quarantine.
    BlobUnnamed,
    /// The hashes in a blob's file are changed, its bytes are right: the hashes are written again.
    BlobHashes,
    /// The trailer of a blob's file is damaged, but the index knows the blob: the trailer is written again.
    BlobTrailer,
    /// A copy of the index has no readable header or is missing: it is written again.
    IndexHeader,
    /// A damaged stretch in one copy of the index, whole in the other: it is written again.
    IndexEntry,
    /// A damaged stretch that the other copy of the index lacks too. Blobs come back from their files. A head
    /// is lost, or falls back to the entry before it.
    IndexEntryLost,
    /// Both copies of the index are unreadable: they are quarantined, and rebuilt from the blobs' files,
    /// without heads.
    IndexLost,
}

impl DamageKind {
    /// Whether it loses nothing.
    #[must_use]
    pub fn is_restorable(self) -> bool {
        use DamageKind as Kind;
        matches!(self, Kind::BlobHashes | Kind::BlobTrailer | Kind::IndexHeader | Kind::IndexEntry)
    }

    fn text(self) -> &'static str {
        match self {
            Self::BlobBytes => "bytes of the blob are missing or changed; store it again",
            Self::BlobMissing => "the blob's file is gone; store the blob again",
            Self::BlobUnreadable => "the file cannot be read; check the disk",
            Self::BlobUnnamed => "neither index nor trailer name the blob; the file goes to the quarantine",
            Self::BlobHashes => "hashes of the blob are changed and its bytes are right",
            Self::BlobTrailer => "the trailer is damaged and the index has what it said",
            Self::IndexHeader => "this copy of the index cannot be read and the other can",
            Self::IndexEntry => "this stretch is damaged and the other copy of the index has it",
            Self::IndexEntryLost => {
                "this stretch is damaged in both copies of the index; blobs come back from their files, a head may be lost"
            }
            Self::IndexLost => {
                "no copy of the index can be read; it is made again from the blobs' files, and heads have to be published again"
            }
        }
    }
}

/// One damage.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Damage {
    /// The kind of damage.
    pub kind: DamageKind,
    /// The file within the store's folder, with the byte range if only a part is damaged.
    pub place: String,
    /// The blob, if known.
    pub blob_id: Option<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.kind.text())?;
        self.blob_id.as_ref().map_or(Ok(()), |id| write!(f, " (blob {id})"))
    }
}

/// All damages: a bounded list, and their number.
#[derive(Debug, Clone, Default)]
pub(super) struct Damages {
    pub(super) listed: Vec<Damage>,
    pub(super) count: u64,
    /// Number of damages with a loss.
    pub(super) lost: u64,
    /// Whether each is logged.
    pub(super) is_logged: bool,
}

impl Damages {
    pub(super) fn add(&mut self, kind: DamageKind, place: String, blob_id: Option<String>) {
        let damage = Damage { kind, place, blob_id };
        match (self.is_logged, kind.is_restorable()) {
            (true, true) => tracing::warn!("{damage}"),
            (true, false) => tracing::error!("{damage}"),
            (false, _) => {}
        }
        self.count += 1;
        self.lost += u64::from(!kind.is_restorable());
        if self.listed.len() < MAX_LISTED {
            self.listed.push(damage);
        }
    }
}
