//! The lines of an export, and the check of their signatures.

use baton_keys::{SIGNATURE_LEN, account::export_digest, contexts::MEMORY_EXPORT, ids::PublicKey, sign};
use serde::{Deserialize, Serialize};

use crate::{
    api::{MemoryError, Result},
    ids::{ItemId, OwnerId},
    model::{Author, Consent, Edge, Kind, Layer, Role, Text},
};

/// The name of the export format.
pub(super) const FORMAT: &str = "baton-memory-export-v1";

/// One line of an export.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    Header {
        format: String,
        owner: String,
        exported_ms: u64,
        public_key: String,
    },
    Project {
        name: Text,
        created_ms: u64,
    },
    Persona {
        name: Text,
        created_ms: u64,
    },
    Session(SessionLine),
    Item(Box<ItemLine>),
    Edge(Edge),
    Turn {
        session: Text,
        turn: u64,
        user: ItemId,
        assistant: ItemId,
        time_ms: u64,
    },
    Signature {
        signature: String,
        lines: u64,
    },
    /// The account's own signature over all lines before it, added by the owner's client. It stays valid
    /// after the owner's keys here are erased.
    Endorsement {
        public_key: String,
        signature: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionLine {
    pub(super) name: Text,
    pub(super) project: Option<Text>,
    pub(super) persona: Option<Text>,
    pub(super) parent: Option<Text>,
    pub(super) parent_turns: u64,
    pub(super) created_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemLine {
    pub(super) id: ItemId,
    pub(super) kind: Kind,
    pub(super) layer: Layer,
    pub(super) role: Role,
    pub(super) author: Author,
    pub(super) text: Text,
    pub(super) stable_key: Option<Text>,
    /// The item's project tag, or its project without a session.
    pub(super) project: Option<Text>,
    pub(super) session: Option<Text>,
    pub(super) turn: Option<u64>,
    pub(super) persona: Option<Text>,
    pub(super) time_ms: u64,
    pub(super) valid_from_ms: u64,
    pub(super) valid_to_ms: Option<u64>,
    pub(super) superseded_by: Option<ItemId>,
    pub(super) sources: Vec<ItemId>,
    pub(super) consent: Consent,
    pub(super) intimate: bool,
    pub(super) salience: f32,
    pub(super) archived: bool,
}

pub(super) fn wrong(line: usize, what: &str) -> MemoryError {
    MemoryError::Invalid(format!("line {line} of the import {what}"))
}

pub(super) fn json(line: &Line) -> Text {
    Text(serde_json::to_string(line).expect("strings, numbers and lists always have a JSON form"))
}

/// The digest that a signature covers.
pub(super) fn digest<'a>(lines: impl Iterator<Item = &'a Text>) -> [u8; 32] {
    export_digest(lines.map(|line| &**line))
}

/// An import that was parsed whole and has a valid signature.
pub(super) struct VerifiedImport {
    pub(super) owner: OwnerId,
    pub(super) public_key: PublicKey,
    /// The account that signed all of it; `None` without an account's signature.
    pub(super) endorsed_by: Option<OwnerId>,
    /// Each with its number in the import.
    pub(super) lines: Vec<(usize, Line)>,
}

/// Checks a signature over lines.
fn verify(key: &PublicKey, signature: &str, lines: &[Text], at: usize) -> Result<()> {
    let mut bytes = [0; SIGNATURE_LEN];
    hex::decode_to_slice(signature, &mut bytes).map_err(|_| wrong(at, "is no signature"))?;
    sign::verify(MEMORY_EXPORT, key, &digest(lines.iter()), &bytes)
        .map_err(|_| wrong(at, "is a signature that does not fit: the export was changed"))
}

/// The account that endorses an export, and the endorsed lines: all but the endorsement line.
fn endorsement(lines: &[Text]) -> Result<(Option<OwnerId>, &[Text])> {
    let Some((last, before)) = lines.split_last() else { return Ok((None, lines)) };
    let Ok(Line::Endorsement { public_key, signature }) = serde_json::from_str::<Line>(last) else {
        return Ok((None, lines));
    };
    let at = lines.len();
    let public_key: PublicKey = public_key.parse().map_err(|_| wrong(at, "names no public key"))?;
    verify(&public_key, &signature, before, at)?;
    Ok((Some(OwnerId::of(&public_key)), before))
}

pub(super) fn parse(lines: &[Text]) -> Result<VerifiedImport> {
    let (endorsed_by, lines) = endorsement(lines)?;
    let [first, middle @ .., last] = lines else {
        return Err(MemoryError::Invalid("an import has at least a header and a signature".into()));
    };
    // The parser's error may quote a memory, so it is replaced.
    let read =
        |line: &Text, at: usize| serde_json::from_str::<Line>(line).map_err(|_| wrong(at, "cannot be read"));
    let Line::Header { format, owner, public_key, .. } = read(first, 1)? else {
        return Err(wrong(1, "is not a header"));
    };
    if format != FORMAT {
        return Err(wrong(1, "is of another format"));
    }
    let owner = owner.parse().map_err(|_| wrong(1, "names no owner"))?;
    let public_key: PublicKey = public_key.parse().map_err(|_| wrong(1, "names no public key"))?;
    let Line::Signature { signature, .. } = read(last, lines.len())? else {
        return Err(wrong(lines.len(), "is not a signature: the file may be cut off"));
    };
    verify(&public_key, &signature, &lines[..lines.len() - 1], lines.len())?;
    let lines = middle.iter().enumerate().map(|(at, line)| Ok((at + 2, read(line, at + 2)?)));
    Ok(VerifiedImport { owner, public_key, endorsed_by, lines: lines.collect::<Result<_>>()? })
}
