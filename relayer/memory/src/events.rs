//! The append-only log of an owner. The fold of its events, in the order of their numbers, is the owner's
//! state and the only truth.
//!
//! New variants go at the end only: their order is part of the stored format.

use baton_keys::master::DataKey;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    ids::{ItemId, PersonaId, ProjectId, SessionId},
    model::{Edge, Item, Text},
};

/// The place of a fact's content on Walrus: a patch of a quilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pointer {
    /// The quilt's blob.
    pub(crate) blob: [u8; 32],
    /// First sliver column of the patch.
    pub(crate) start: u16,
    /// The column after the last one of the patch.
    pub(crate) end: u16,
}

/// The random key of one fact's blob, as the log stores it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(crate) struct StoredKey(pub(crate) [u8; 32]);

impl StoredKey {
    pub(crate) fn generate() -> Self {
        Self(*DataKey::generate().expose())
    }

    pub(crate) fn key(&self) -> DataKey {
        DataKey::from_bytes(self.0)
    }
}

impl std::fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoredKey(..)")
    }
}

/// An item as the log stores it: with a compressed text if that is shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredItem {
    /// The item without its text.
    pub(crate) item: Item,
    /// Whether the text is compressed (zstd).
    pub(crate) compressed: bool,
    /// The text.
    #[serde(with = "serde_bytes")]
    pub(crate) text: Vec<u8>,
    /// Bytes of the original text.
    pub(crate) length: u32,
    /// Key of its blob on Walrus.
    pub(crate) key: StoredKey,
}

impl Drop for StoredItem {
    fn drop(&mut self) {
        self.text.zeroize();
    }
}

/// Shorter texts are not worth compressing.
const COMPRESS_FROM: usize = 160;
const COMPRESSION_LEVEL: i32 = 3;

/// A stored text that differs from the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored text cannot be unpacked")]
pub(crate) struct UnpackError;

impl StoredItem {
    pub(crate) fn pack(mut item: Item, key: StoredKey) -> Self {
        let text = std::mem::take(&mut item.text);
        let length = u32::try_from(text.len()).expect("texts are limited to 512 KiB");
        let packed = (text.len() >= COMPRESS_FROM)
            .then(|| zstd::bulk::compress(text.as_bytes(), COMPRESSION_LEVEL).ok())
            .flatten()
            .filter(|packed| packed.len() < text.len());
        match packed {
            Some(packed) => Self { item, compressed: true, text: packed, length, key },
            None => Self { item, compressed: false, text: text.as_bytes().to_vec(), length, key },
        }
    }

    /// The item with its exact text (C2).
    pub(crate) fn unpack(&self) -> Result<Item, UnpackError> {
        let length = self.length as usize;
        let bytes = if self.compressed {
            zstd::bulk::decompress(&self.text, length).map_err(|_| UnpackError)?
        } else {
            self.text.clone()
        };
        if bytes.len() != length {
            return Err(UnpackError);
        }
        let text = String::from_utf8(bytes).map_err(|_| UnpackError)?;
        Ok(Item { text: Text(text), ..self.item.clone() })
    }
}

/// A session's fork from its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    /// The parent.
    pub(crate) parent: SessionId,
    /// The last visible number of the parent's items.
    pub(crate) up_to: u64,
    /// Visible turns of the parent.
    pub(crate) turns: u64,
}

/// The result of a turn's extraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The gate found nothing to keep.
    Skipped,
    /// An item was kept, or waits for consent.
    Written,
    /// The judge refused, or the turn is off the record. The backstop does not read it again.
    Refused,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// The placeholder of an event whose content was deleted.
    Redacted,
    PersonaCreated {
        id: PersonaId,
        name: Text,
        at_ms: u64,
    },
    ProjectCreated {
        id: ProjectId,
        name: Text,
        at_ms: u64,
    },
    SessionCreated {
        id: SessionId,
        name: Text,
        project: Option<ProjectId>,
        persona: PersonaId,
        fork: Option<Fork>,
        at_ms: u64,
    },
    SessionMoved {
        id: SessionId,
        project: Option<ProjectId>,
        at_ms: u64,
    },
    /// An item; its number is this event's.
    Added(Box<StoredItem>),
    EdgeAdded(Edge),
    /// The same payload was repeated in the same branch (C3).
    Repeated {
        item: ItemId,
        at_ms: u64,
    },
    Superseded {
        old: ItemId,
        new: ItemId,
        at_ms: u64,
    },
    Archived {
        item: ItemId,
        archived: bool,
    },
    Consented {
        item: ItemId,
    },
    /// Both sides of an exchange were kept and wait for extraction; this event's number names the turn.
    TurnRecorded {
        session: SessionId,
        turn: u64,
        user: ItemId,
        assistant: ItemId,
        at_ms: u64,
    },
    ExtractionFailed {
        turn: u64,
        at_ms: u64,
    },
    Extracted {
        turn: u64,
        outcome: Outcome,
    },
    /// The backstop checked all turns of a session up to this number.
    Backstopped {
        session: SessionId,
        up_to: u64,
    },
    Stored {
        items: Vec<(ItemId, Pointer)>,
    },
    Unstored {
        items: Vec<ItemId>,
    },
    /// These items were deleted; the same commit redacted their events.
    Deleted {
        items: Vec<ItemId>,
    },
    /// The events of these numbers were replaced: read them again.
    Rewritten {
        numbers: Vec<u64>,
    },
    /// The session was deleted. Its remaining items belong to its last project, for good.
    SessionDeleted {
        id: SessionId,
        project: Option<ProjectId>,
    },
    ProjectDeleted {
        id: ProjectId,
    },
    PersonaDeleted {
        id: PersonaId,
    },
    /// Whether third-party nodes may read exchanges to extract facts from them.
    NodesAllowed {
        allowed: bool,
        at_ms: u64,
    },
    /// The answer to a call with an idempotency key. Both hashes use the owner's key; `call` covers the
    /// idempotency key, the place and the text. The event is redacted when the item is deleted or edited.
    Answered {
        key: [u8; 32],
        call: [u8; 32],
        item: ItemId,
    },
    /// These edges ended; the numbers name the events that added them.
    EdgesEnded {
        edges: Vec<u64>,
    },
    /// Consolidation checked the graph up to this number and had nothing left to do.
    Consolidated {
        up_to: u64,
        at_ms: u64,
    },
}

impl Event {
    /// A new item, with a key of its own for Walrus.
    pub(crate) fn added(item: Item) -> Self {
        Self::Added(Box::new(StoredItem::pack(item, StoredKey::generate())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::item;

    #[test]
    fn c2_raw_content_is_kept_compressed_and_comes_back_exactly() {
        let long = "naïve café \u{0}\r\n\t 🦊 ".repeat(400);
        for text in ["", "a", "short", long.as_str()] {
            let packed = StoredItem::pack(item(text), StoredKey([1; 32]));
            assert_eq!(packed.compressed, text.len() > COMPRESS_FROM);
            assert!(packed.item.text.is_empty(), "the text is not kept twice");
            assert_eq!(&*packed.unpack().unwrap().text, text);
        }
    }

    #[test]
    fn refuses_a_text_of_another_length() {
        let mut packed = StoredItem::pack(item(&"x".repeat(1000)), StoredKey([1; 32]));
        packed.length = 999;
        assert_eq!(packed.unpack().map(|item| item.id), Err(UnpackError));
        packed.length = 1001;
        assert_eq!(packed.unpack().map(|item| item.id), Err(UnpackError));
    }
}
