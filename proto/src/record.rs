//! Records: the text of one turn.

use baton_keys::{
    OpenError,
    contexts::RECORD_HASH,
    seal::DETERMINISTIC_OVERHEAD,
    secret::kdf,
    session::{RecordIdentity, RecordKey},
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    codec,
    error::ErrorCode,
    ids::RecordHash,
    limits::{
        MAX_MESSAGE_BYTES, MAX_MESSAGES, MAX_NAME_BYTES, MAX_RECORD_BUCKET, MIN_RECORD_BUCKET, VERSION,
    },
};

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Instructions that frame the conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool,
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The speaker.
    #[zeroize(skip)]
    pub role: Role,
    /// Name of the speaker or tool, at most 128 bytes. In JSON it is present, and perhaps `null`.
    #[serde(deserialize_with = "crate::export::text::present")]
    pub name: Option<String>,
    /// The tool call that this message makes or answers, at most 128 bytes. As the name in JSON.
    #[serde(deserialize_with = "crate::export::text::present")]
    pub call_id: Option<String>,
    /// The text, at most 512 KiB.
    pub text: String,
}

impl Message {
    /// A message with a role and a text.
    #[must_use]
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, name: None, call_id: None, text: text.into() }
    }

    /// Checks the limits of one message.
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`].
    pub fn check(&self) -> Result<(), ErrorCode> {
        let short = |name: &Option<String>| name.as_ref().is_none_or(|name| name.len() <= MAX_NAME_BYTES);
        if self.text.len() <= MAX_MESSAGE_BYTES && short(&self.name) && short(&self.call_id) {
            Ok(())
        } else {
            Err(ErrorCode::FrameTooLarge)
        }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({:?}, {} bytes)", self.role, self.text.len())
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordKind {
    /// An ordinary turn.
    Turn,
    /// A turn that replaces earlier turns, from `supersedes_from` on.
    Edit,
    /// A summary that stands for earlier turns, from `supersedes_from` on.
    Summary,
    /// A withdrawal of earlier turns, from `supersedes_from` on.
    Tombstone,
}

/// The reason for an answer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string was reached.
    StopString,
    /// The token cap or the context was reached.
    Length,
    /// The model asks for a tool call.
    ToolCall,
    /// No answer: the record only edits the chain.
    None,
}

/// The text of one turn: the client's messages and the model's answer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Record {
    /// Format version, 1.
    pub version: u8,
    /// The kind of the record.
    #[zeroize(skip)]
    pub kind: RecordKind,
    /// First seq that this record replaces. The chain stays linear; the window skips superseded records.
    pub supersedes_from: Option<u64>,
    /// The turn's messages in order, the answer last.
    pub messages: Vec<Message>,
    /// Why the answer ended.
    #[zeroize(skip)]
    pub finish: FinishReason,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Record({:?}, {} messages)", self.kind, self.messages.len())
    }
}

impl Record {
    /// The record of a turn: the client's new messages and the answer.
    #[must_use]
    pub fn of_turn(
        kind: RecordKind,
        supersedes_from: Option<u64>,
        new: &[Message],
        answer: &str,
        finish: FinishReason,
    ) -> Self {
        let mut messages = new.to_vec();
        messages.push(Message::new(Role::Assistant, answer));
        Self { version: VERSION, kind, supersedes_from, messages, finish }
    }

    /// Checks the limits. Only kinds other than [`RecordKind::Turn`] may supersede, and only earlier turns.
    ///
    /// # Errors
    /// [`ErrorCode::UnsupportedVersion`], [`ErrorCode::FrameTooLarge`], [`ErrorCode::BadSequence`].
    pub fn check(&self, seq: u64) -> Result<(), ErrorCode> {
        if self.version != VERSION {
            return Err(ErrorCode::UnsupportedVersion);
        }
        if self.messages.len() > MAX_MESSAGES {
            return Err(ErrorCode::FrameTooLarge);
        }
        self.messages.iter().try_for_each(Message::check)?;
        check_supersedes(self.kind, self.supersedes_from, seq)
    }

    /// Pads and seals the record.
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`] when it exceeds the largest bucket.
    pub fn seal(&self, key: &RecordKey, identity: &RecordIdentity) -> Result<SealedRecord, ErrorCode> {
        let encoded = codec::encode_secret(self);
        let padded = codec::pad(&encoded, MIN_RECORD_BUCKET, MAX_RECORD_BUCKET)?;
        Ok(SealedRecord(key.seal(identity, &padded)))
    }

    /// Bytes of the sealed record.
    ///
    /// # Errors
    /// As [`Record::seal`].
    pub fn sealed_len(&self) -> Result<usize, ErrorCode> {
        let padded = codec::pad(&codec::encode_secret(self), MIN_RECORD_BUCKET, MAX_RECORD_BUCKET)?;
        Ok(padded.len() + DETERMINISTIC_OVERHEAD)
    }

    /// The answer: the last message, if it is the model's.
    #[must_use]
    pub fn answer(&self) -> Option<&str> {
        self.messages.last().filter(|last| last.role == Role::Assistant).map(|last| last.text.as_str())
    }
}

/// The rule of `supersedes_from`: none for an ordinary turn, an earlier seq for any other kind.
///
/// # Errors
/// [`ErrorCode::BadSequence`].
pub fn check_supersedes(kind: RecordKind, from: Option<u64>, seq: u64) -> Result<(), ErrorCode> {
    match (kind, from) {
        (RecordKind::Turn, None) => Ok(()),
        (RecordKind::Edit | RecordKind::Summary | RecordKind::Tombstone, Some(from)) if from < seq => Ok(()),
        _ => Err(ErrorCode::BadSequence),
    }
}

/// A stored record: sealed under its record key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedRecord(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl SealedRecord {
    /// `KDF("record-hash", sealed bytes)`.
    #[must_use]
    pub fn hash(&self) -> RecordHash {
        RecordHash(kdf(RECORD_HASH, &[&self.0]))
    }

    /// Opens, unpads, decodes and checks the record.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] when the key belongs to another record, and the codes of the codec and
    /// of [`Record::check`].
    pub fn open(&self, key: &RecordKey, identity: &RecordIdentity) -> Result<Record, ErrorCode> {
        let padded = key.open(identity, &self.0).map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let record: Record = codec::decode(codec::unpad(&padded, MIN_RECORD_BUCKET)?, MAX_RECORD_BUCKET)?;
        record.check(identity.seq)?;
        Ok(record)
    }
}

impl std::fmt::Debug for SealedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedRecord({} bytes)", self.0.len())
    }
}
