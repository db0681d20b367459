//! How a caller wants something read or stored.

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

/// A digest that the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// BLAKE3.
    Blake3(BlobDigest),
    /// SHA-256.
    Sha256(Sha256Digest),
}

/// How what is read is checked. What fails the check is thrown away and the next aggregator asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// Against a digest that the caller knows: of the whole blob, or of the patch when a patch is read. Costs least.
    Digest(Digest),
    /// Against the blob ID, which is computed anew: 0.1 s of CPU and more at a thousand shards.
    #[default]
    BlobId,
    /// Not at all: the aggregator can answer with anything.
    Off,
}

/// How consistently the aggregator is asked to check what it reads from the storage nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// As it does by itself.
    #[default]
    Default,
    /// Strictly, as before Walrus 1.37.
    Strict,
    /// Not at all; for blobs whose writer is trusted.
    Skip,
}

/// Bytes `start..start + length` of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte, from 0.
    pub start: u64,
    /// How many, at least 1.
    pub length: u64,
}

/// Which of Walrus's two ways is used to ask for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeRoute {
    /// The header `Range`, which caches on the way understand too.
    #[default]
    Header,
    /// The route `byte-range`.
    Query,
}

/// What goes on in a call that may take long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The blob ID is being computed.
    Hashing,
    /// Bytes are being sent.
    Uploading,
    /// The publisher has all bytes and works on them, or it is looked whether a PUT arrived.
    Waiting,
    /// Bytes are being read.
    Downloading,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// What goes on.
    pub phase: Phase,
    /// Bytes done in this phase. Begins anew when an upload is sent again; never goes back in a download.
    pub done: u64,
    /// Bytes in all, where known.
    pub total: Option<u64>,
}

/// Gets told how far a call is, many times a second and from any thread: it must not block.
#[derive(Clone)]
pub struct ProgressFn(Arc<dyn Fn(Progress) + Send + Sync>);

impl ProgressFn {
    /// Wraps a function.
    pub fn new(function: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    pub(super) fn tell(&self, phase: Phase, done: u64, total: Option<u64>) {
        (self.0)(Progress { phase, done, total });
    }
}

impl fmt::Debug for ProgressFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressFn")
    }
}

/// How something is read. Start from [`ReadOptions::new`].
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Most bytes taken of one answer. A hedged read may hold some answers of this size at once.
    pub limit: u64,
    /// Only these bytes, all of which must be in the blob. With a verification other than [`Verification::Off`] the whole blob is read and checked,
    /// since neither ID nor digest says anything of a part, and `limit` is that of the whole blob.
    pub range: Option<ByteRange>,
    /// How a range is asked for when nothing is verified.
    pub range_route: RangeRoute,
    /// How the bytes are checked; against the blob ID when not set.
    pub verification: Verification,
    /// What the aggregator is asked to check by itself.
    pub consistency: Consistency,
    /// Whether the caller knows that the blob was stored a moment ago (by another process, say): its 404 is then
    /// repeated for seconds, as for blobs that this store itself has just stored.
    pub known_stored: bool,
    /// The time for the whole call, all repetitions included. When not set: twice the base timeout, and for the
    /// bytes what the slowest permitted transfer takes.
    pub deadline: Option<Duration>,
    /// Gets told how far it is.
    pub progress: Option<ProgressFn>,
}

impl ReadOptions {
    /// A whole blob of at most so many bytes, checked against its ID.
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

    /// With another way of checking.
    #[must_use]
    pub fn verify(mut self, verification: Verification) -> Self {
        self.verification = verification;
        self
    }

    /// Only these bytes.
    #[must_use]
    pub fn range(mut self, start: u64, length: u64) -> Self {
        self.range = Some(ByteRange { start, length });
        self
    }

    /// Within this time.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Who gets the blob object on Sui. Its owner alone can delete a deletable blob or extend a lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectOwner {
    /// It stays with the publisher.
    #[default]
    Publisher,
    /// It is sent to this address.
    Address(#[serde(with = "address_text")] SuiAddress),
    /// It is shared: anybody may fund its extension.
    Shared,
}

/// An address as `0x` and hex digits.
mod address_text {
    use baton_proto::ids::SuiAddress;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(address: &SuiAddress, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("0x{address}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SuiAddress, D::Error> {
        let text = String::deserialize(deserializer)?;
        SuiAddress::parse_hex(text.strip_prefix("0x").unwrap_or(&text)).map_err(D::Error::custom)
    }
}

/// How a blob or quilt is stored. Start from [`WriteOptions::new`] or a [`PutOptions`].
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// For how many epochs, at least 1.
    pub epochs: u32,
    /// Whether nobody may delete it before it runs out.
    pub permanent: bool,
    /// Who gets the object.
    pub owner: ObjectOwner,
    /// Buys a new object even if the blob is stored for long enough already.
    pub force: bool,
    /// Whether the publisher may use storage that it has already; its default when not set.
    pub reuse_resources: Option<bool>,
    /// Whether the blob is known to be stored already, so that this PUT is to lengthen its time. Finding the blob
    /// after an answer got lost then proves nothing, and is not tried: the outcome stays unknown.
    pub renewal: bool,
    /// The time for the whole call, repetitions and looking for a lost PUT included. When not set: twice the base
    /// timeout and the time to look, and for the bytes twice what the slowest permitted transfer takes.
    pub deadline: Option<Duration>,
    /// Gets told how far it is.
    pub progress: Option<ProgressFn>,
}

impl WriteOptions {
    /// Deletable, for so many epochs, the object staying with the publisher.
    #[must_use]
    pub fn new(epochs: u32) -> Self {
        Self {
            epochs,
            permanent: false,
            owner: ObjectOwner::default(),
            force: false,
            reuse_resources: None,
            renewal: false,
            deadline: None,
            progress: None,
        }
    }

    /// Not to be deleted by anybody before it runs out.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// With the object for somebody else.
    #[must_use]
    pub fn owner(mut self, owner: ObjectOwner) -> Self {
        self.owner = owner;
        self
    }

    /// Within this time.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The query of the PUT, in Walrus's words.
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

    /// The address that the object is sent to, in Sui's form.
    pub(super) fn receiver(&self) -> Option<String> {
        match self.owner {
            ObjectOwner::Address(address) => Some(format!("0x{address}")),
            ObjectOwner::Publisher | ObjectOwner::Shared => None,
        }
    }

    /// Whether a PUT repeated at the same publisher buys nothing: it finds its registration again, or the certified
    /// blob. A deletable one is bought each time.
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

/// How it is known that a blob is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredHow {
    /// The publisher stored it anew.
    Created,
    /// The publisher had it certified for at least as long.
    AlreadyCertified,
    /// The publisher's answer was lost or wrong, and an aggregator has the blob. Whether this PUT or an earlier one
    /// stored it, and for how long, is not known.
    Found,
}

/// What is known of a blob that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its ID, computed here.
    pub blob_id: baton_proto::ids::BlobId,
    /// Its length in bytes.
    pub length: u64,
    /// How it is known.
    pub how: StoredHow,
    /// The first epoch in which it is no longer kept, where the publisher said.
    pub end_epoch: Option<u64>,
    /// The epoch in which it was stored, where the publisher's answer says.
    pub epoch: Option<u64>,
    /// The object on Sui, where the publisher said.
    pub object: Option<ObjectId>,
    /// What it cost without gas, in FROST (a billionth of a WAL), where the publisher said.
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

    #[test]
    fn owners_have_a_text_form() {
        let owner = ObjectOwner::Address(SuiAddress([7; 32]));
        let text = serde_json::to_string(&owner).unwrap();
        assert_eq!(text, format!(r#"{{"address":"0x{}"}}"#, "07".repeat(32)));
        assert_eq!(serde_json::from_str::<ObjectOwner>(&text).unwrap(), owner);
    }
}
