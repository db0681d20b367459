//! Options of reads and writes.

use std::{fmt, sync::Arc, time::Duration};

use baton_proto::{
    ids::{BlobDigest, SuiAddress},
    store::PutOptions,
};

use super::ObjectId;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Digest(pub [u8; 32]);

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({})", hex::encode(self.0))
    }
}

/// A digest known to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// BLAKE3.
    Blake3(BlobDigest),
    /// SHA-256.
    Sha256(Sha256Digest),
}

/// The check of received content. Content that fails is discarded, and the next aggregator is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// Against a known digest: of the whole blob, or of the patch when a patch is read. Costs least.
    Digest(Digest),
    /// Against the blob ID, computed again: 0.1 s of CPU and more at a thousand shards.
    #[default]
    BlobId,
    /// No check: the aggregator can answer with anything.
    Off,
}

/// The consistency check that the aggregator is asked to make of storage nodes' data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// The aggregator's default.
    #[default]
    Default,
    /// Strict, as before Walrus 1.37.
    Strict,
    /// None; for blobs whose writer is trusted.
    Skip,
}

/// Bytes `start..start + length` of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte, from 0.
    pub start: u64,
    /// Number of bytes, at least 1.
    pub length: u64,
}

/// The form of a range request; Walrus has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeRoute {
    /// The header `Range`, which caches on the way also understand.
    #[default]
    Header,
    /// The route `byte-range`.
    Query,
}

/// The present step of a long call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The blob ID is being computed.
    Hashing,
    /// Bytes are being sent.
    Uploading,
    /// The publisher has all bytes and works on them, or the client looks for a doubtful PUT.
    Waiting,
    /// Bytes are being read.
    Downloading,
}

/// The progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The present step.
    pub phase: Phase,
    /// Bytes done in this phase. Restarts when an upload is sent again; never decreases in a download.
    pub done: u64,
    /// Bytes in all, if known.
    pub total: Option<u64>,
}

/// A callback for the progress of a call, called many times a second from any thread. It must not block.
#[derive(Clone)]
pub struct ProgressFn(Arc<dyn Fn(Progress) + Send + Sync>);

impl ProgressFn {
    /// Wraps a function.
    pub fn new(function: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    pub(super) fn report(&self, phase: Phase, done: u64, total: Option<u64>) {
        (self.0)(Progress { phase, done, total });
    }
}

impl fmt::Debug for ProgressFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressFn")
    }
}

/// Options of a read. Start from [`ReadOptions::new`].
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Most bytes of one answer. A hedged read may hold several answers of this size at once.
    pub limit: u64,
    /// Only these bytes, all of which must be in the blob. Unless the verification is [`Verification::Off`],
    /// the whole blob is read and checked, since neither ID nor digest covers a part. `limit` then bounds the
    /// whole blob.
    pub range: Option<ByteRange>,
    /// The form of a range request without verification.
    pub range_route: RangeRoute,
    /// The check of the bytes; against the blob ID when not set.
    pub verification: Verification,
    /// The check that the aggregator makes.
    pub consistency: Consistency,
    /// Whether the caller knows that the blob was just stored (by another process, say). A 404 is then
    /// repeated for seconds, as for blobs that this store itself just stored.
    pub known_stored: bool,
    /// The time for the whole call, all repetitions included. When not set: twice the base timeout, plus the
    /// slowest permitted transfer of the bytes.
    pub deadline: Option<Duration>,
    /// Receives the progress.
    pub progress: Option<ProgressFn>,
}

impl ReadOptions {
    /// A whole blob of at most `limit` bytes, checked against its ID.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            range: None,
            range_route: RangeRoute::default(),
            verification: Verification::default(),
            consistency: Consistency::default(),
            known_stored: false,
            deadline: None,
            progress: None,
        }
    }

    /// Sets another check.
    #[must_use]
    pub fn verify(mut self, verification: Verification) -> Self {
        self.verification = verification;
        self
    }

    /// Reads only these bytes.
    #[must_use]
    pub fn range(mut self, start: u64, length: u64) -> Self {
        self.range = Some(ByteRange { start, length });
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// The owner of the blob object on Sui. Only the owner can delete a deletable blob or extend a lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObjectOwner {
    /// The publisher keeps it.
    #[default]
    Publisher,
    /// The publisher sends it to this address.
    Address(SuiAddress),
    /// Shared: any account may fund its extension.
    Shared,
}

/// Options of a PUT of a blob or quilt. Start from [`WriteOptions::new`] or a [`PutOptions`].
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Lifetime in epochs, at least 1.
    pub epochs: u32,
    /// Whether the blob cannot be deleted before it expires.
    pub permanent: bool,
    /// The owner of the object.
    pub owner: ObjectOwner,
    /// Buys a new object even if the blob is already stored for long enough.
    pub force: bool,
    /// Whether the publisher may use storage that it already has; its default when not set.
    pub reuse_resources: Option<bool>,
    /// The time for the whole call, with repetitions and the search for a lost PUT. When not set: twice the
    /// sum of base timeout, search time and the slowest permitted transfer.
    pub deadline: Option<Duration>,
    /// Receives the progress.
    pub progress: Option<ProgressFn>,
}

impl WriteOptions {
    /// Deletable, for this many epochs; the publisher owns the object.
    #[must_use]
    pub fn new(epochs: u32) -> Self {
        Self {
            epochs,
            permanent: false,
            owner: ObjectOwner::default(),
            force: false,
            reuse_resources: None,
            deadline: None,
            progress: None,
        }
    }

    /// Forbids deletion before it expires.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// Sets another owner of the object.
    #[must_use]
    pub fn owner(mut self, owner: ObjectOwner) -> Self {
        self.owner = owner;
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The query of the PUT, in Walrus's terms.
    pub(super) fn query(&self) -> Vec<(&'static str, String)> {
        let kind = if self.permanent { "permanent" } else { "deletable" };
        let mut query = vec![("epochs", self.epochs.to_string()), (kind, "true".to_owned())];
        match self.owner {
            ObjectOwner::Publisher => {}
            ObjectOwner::Address(_) => query.extend(self.receiver().map(|to| ("send_object_to", to))),
            ObjectOwner::Shared => query.push(("share", "true".to_owned())),
        }
        if self.force {
            query.push(("force", "true".to_owned()));
        }
        if let Some(reuse) = self.reuse_resources {
            query.push(("reuse_resources", reuse.to_string()));
        }
        query
    }

    /// The receiving address of the object, in Sui's form.
    pub(super) fn receiver(&self) -> Option<String> {
        match self.owner {
            ObjectOwner::Address(address) => Some(format!("0x{address}")),
            ObjectOwner::Publisher | ObjectOwner::Shared => None,
        }
    }

    /// Whether a repeated PUT at the same publisher buys nothing: it finds its registration again, or the
    /// certified blob. Each PUT of a deletable blob buys it again.
    pub(super) fn is_repeatable(&self) -> bool {
        self.permanent && !self.force
    }
}

impl From<PutOptions> for WriteOptions {
    fn from(options: PutOptions) -> Self {
        let owner = options.send_object_to.map_or(ObjectOwner::Publisher, ObjectOwner::Address);
        Self { permanent: options.permanent, owner, ..Self::new(options.epochs) }
    }
}

/// The evidence that a blob is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredHow {
    /// The publisher newly stored it.
    Created,
    /// The publisher already had it certified for at least as long.
    AlreadyCertified,
    /// The publisher's answer was lost or wrong, but an aggregator has the blob. This PUT or an earlier one
    /// stored it; the end of its lifetime is unknown.
    Found,
}

/// The known facts of a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlob {
    /// Its ID, computed by this client.
    pub blob_id: baton_proto::ids::BlobId,
    /// Its length in bytes.
    pub length: u64,
    /// The evidence.
    pub how: StoredHow,
    /// The first epoch without it, if the publisher said.
    pub end_epoch: Option<u64>,
    /// The object on Sui, if the publisher said.
    pub object: Option<ObjectId>,
    /// Its cost without gas, in FROST (a billionth of a WAL), if the publisher said.
    pub cost: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_says_what_was_asked_for_and_nothing_else() {
        let text = |options: &WriteOptions| {
            options.query().iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("&")
        };
        assert_eq!(text(&WriteOptions::new(1)), "epochs=1&deletable=true");
        let address = SuiAddress([7; 32]);
        let sent = WriteOptions::new(2).permanent().owner(ObjectOwner::Address(address));
        assert_eq!(text(&sent), format!("epochs=2&permanent=true&send_object_to=0x{}", "07".repeat(32)));
        let shared = WriteOptions { force: true, reuse_resources: Some(false), ..WriteOptions::new(3) }
            .owner(ObjectOwner::Shared);
        assert_eq!(text(&shared), "epochs=3&deletable=true&share=true&force=true&reuse_resources=false");
    }

    #[test]
    fn only_permanent_puts_without_force_may_be_repeated() {
        assert!(!WriteOptions::new(1).is_repeatable());
        assert!(WriteOptions::new(1).permanent().is_repeatable());
        assert!(!WriteOptions { force: true, ..WriteOptions::new(1).permanent() }.is_repeatable());
    }
}
