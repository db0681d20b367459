//! `docs/PROTOCOL.md` and `docs/EXTENSIONS.md` agree with the code: this test compares the whole lists of contexts and
//! labels, and the whole tables of sizes, errors and limits, with the code.

use std::collections::BTreeMap;

use baton_keys::contexts::{ALL_CONTEXTS, ALL_LABELS};
use baton_proto::{
    ErrorCode, Retry, codec,
    ids::{Commitment, LinkHash, NodeId, PublicKey, SessionId},
    limits::{
        ALL_LIMITS, HEAD_PERIOD_MS, MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS, MAX_HEAD_LIFETIME_MS,
        MAX_HEAD_PERIODS, MAX_READ_BLOBS, MAX_READ_RECORDS, MODEL_MANIFEST_VERSION, PAYLOAD_VERSION,
        SEGMENT_BYTES, SEGMENT_TURNS,
    },
    link::BranchPoint,
    record::{FinishReason, Record, RecordKind},
    segment::{SEGMENT_HEADER_LEN, Segment},
    signed::Signable,
    turn::ResumePrefix,
};
use serde::Serialize;

use crate::generate::{self, session};

const PAGE: &str =
    concat!(include_str!("../../../docs/PROTOCOL.md"), include_str!("../../../docs/EXTENSIONS.md"));

fn marked(name: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("<!-- {name} -->")).unwrap_or_else(|| panic!("no mark {name}"));
    rest.split_once(&format!("<!-- end {name} -->")).unwrap().0
}

/// Rows of a marked table as cells, without its two header lines.
fn table(name: &str) -> Vec<Vec<String>> {
    let rows = marked(name).lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// The leading cells of a table must be exactly these rows, in order.
fn check(name: &str, expected: &[Vec<String>]) {
    let width = expected.first().unwrap().len();
    let found: Vec<Vec<String>> = table(name).iter().map(|row| row[..width].to_vec()).collect();
    let text = |rows: &[Vec<String>]| {
        rows.iter().map(|row| format!("| {} |", row.join(" | "))).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(text(&found), text(expected), "table {name}");
}

#[test]
fn the_error_table_is_the_code() {
    let rows: Vec<Vec<String>> = ErrorCode::WIRE
        .iter()
        .map(|code| {
            let retry = match code.retry() {
                Retry::Here => "here",
                Retry::Elsewhere => "elsewhere",
                Retry::Never => "never",
            };
            vec![code.number().to_string(), code.name().to_owned(), code.to_string(), retry.to_owned()]
        })
        .collect();
    check("errors", &rows);
    let rows: Vec<Vec<String>> = ErrorCode::LOCAL
        .iter()
        .map(|code| vec![code.name().to_owned(), code.to_string(), code.on_wire().name().to_owned()])
        .collect();
    check("local errors", &rows);
}

#[test]
fn the_contexts_and_labels_are_the_code() {
    let texts = |list, pattern: &str| -> Vec<String> {
        assert!(PAGE.contains(&format!("`{pattern}`")), "{pattern}");
        marked(list).split('`').skip(1).step_by(2).map(|name| pattern.replace("NAME", name)).collect()
    };
    let contexts: Vec<_> = ALL_CONTEXTS.iter().map(|(_, context)| context.as_str()).collect();
    assert_eq!(texts("contexts", "baton 2026-11-21 NAME v1"), contexts);
    let labels: Vec<_> = ALL_LABELS.iter().map(|(_, label)| label.as_str()).collect();
    assert_eq!(texts("labels", "baton/v1/NAME"), labels);
}

/// Objects of the page's tables with the version that each row `version` gives, in the page's order.
fn versions_of_the_page() -> Vec<(String, u8)> {
    let mut found = Vec::new();
    let mut heading = "";
    let mut header: Option<Vec<&str>> = None;
    for line in PAGE.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            heading = title.split([' ', ',']).next().unwrap();
        }
        let Some(row) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            header = None;
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let header = header.get_or_insert_with(|| cells.clone());
        // Tables beside each other have an empty column between them.
        for (names, group) in header.split(|cell| cell.is_empty()).zip(cells.split(|cell| cell.is_empty())) {
            let [first, rest @ ..] = group else { continue };
            if first.split(' ').next() != Some("version") {
                continue;
            }
            let text = if first.contains(", ") { first } else { rest.last().unwrap() };
            let version = text.rsplit(' ').next().unwrap().parse();
            let name = if names[0] == "field" { heading } else { names[0] };
            found.push((name.to_owned(), version.unwrap_or_else(|_| panic!("no version: {line}"))));
        }
    }
    found
}

#[test]
fn the_versions_of_the_object_tables_are_the_code() {
    macro_rules! signed {
        ($($path:ident::$object:ident),* $(,)?) => {
            vec![$((stringify!($object), <baton_proto::$path::$object as Signable>::VERSION)),*]
        };
    }
    let mut expected = signed![
        link::Link,
        turn::TurnAuth,
        receipt::Receipt,
        receipt::ProgressNote,
        note::TurnNote,
        head::HeadRecord,
        memory::MemEnvelope,
        memory::RecallHint,
        node_record::NodeRecord,
        right::Right,
        right::QuotaProof,
        export::ExportStatement,
        embed::EmbedAuth,
        embed::EmbedReply,
    ];
    expected.extend([
        ("Record", Record::of_turn(RecordKind::Turn, None, &[], "", FinishReason::Stop).version),
        ("Payload", PAYLOAD_VERSION),
        ("Segment", Segment::empty(SessionId([0; 32]), 0).version),
        ("ModelManifest", MODEL_MANIFEST_VERSION),
        ("EmbedTexts", baton_proto::embed::EmbedTexts::new(Vec::new()).version),
    ]);
    let mut found = versions_of_the_page();
    found.sort();
    let mut expected: Vec<(String, u8)> =
        expected.into_iter().map(|(name, version)| (name.to_owned(), version)).collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn the_limits_are_the_code() {
    let expected: BTreeMap<_, _> =
        ALL_LIMITS.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
    let rows = table("limits");
    let found: BTreeMap<_, _> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!((found.len(), found), (rows.len(), expected));
}

/// One row: object, bytes with every option absent, bytes with every option present.
fn row<T: Serialize>(name: &str, absent: &T, present: &T) -> Vec<String> {
    let length = |value: &T| codec::encode(value).len().to_string();
    vec![name.to_owned(), length(absent), length(present)]
}

fn fixed<T: Serialize>(name: &str, value: &T) -> Vec<String> {
    row(name, value, value)
}

#[test]
fn the_sizes_are_the_code() {
    let made = session::make();
    let parent = BranchPoint { session_id: SessionId([0; 32]), link_hash: LinkHash([0; 32]) };
    let resume = ResumePrefix { author: NodeId([0; 32]), attempt: 0, token_count: 0, tokens_hash: [0; 32] };

    let link = (*made.done[1].accepted.link).clone();
    let mut first_link = link.clone();
    first_link.prev_blob = None;
    let mut auth = (*made.done[1].requested.auth).clone();
    (auth.branch, auth.memory_from, auth.resume) = (Some(parent), Some(PublicKey([0; 32])), Some(resume));
    let mut bare_auth = auth.clone();
    (bare_auth.prev_blob, bare_auth.branch, bare_auth.memory_from, bare_auth.resume) =
        (None, None, None, None);
    let mut receipt = (*made.done[1].accepted.receipt).clone();
    receipt.commitments.memory = None;
    let mut full_receipt = receipt.clone();
    full_receipt.commitments.memory = Some(Commitment([0; 32]));
    let turn = &made.done[2];

    check(
        "sizes",
        &[
            fixed("BlobRef", &turn.blob),
            fixed("BranchPoint", &parent),
            fixed("ResumePrefix", &resume),
            row("Link", &first_link, &link),
            row("TurnAuth", &bare_auth, &auth),
            row("Receipt", &receipt, &full_receipt),
            fixed("ProgressNote", &*generate::objects::progress(&made)),
            row("TurnNote", &*generate::objects::abort(&made), &*session::ack(turn)),
            fixed("ExportStatement", &*generate::objects::export_statement(&made)),
            fixed("QuotaProof", &*generate::objects::quota_proof(&made)),
            fixed("EmbedAuth", &*generate::embed::made().auth),
            fixed("Segment without entries", &Segment::empty(SessionId([0; 32]), 0)),
            vec![
                "SignedBytes around a Link".into(),
                (8 + codec::encode(&first_link).len() + 64).to_string(),
                { codec::encode(made.done[1].accepted.link.bytes()).len().to_string() },
            ],
            vec![
                "identity of a record".into(),
                "100".into(),
                turn.accepted.link.record_identity().to_bytes().len().to_string(),
            ],
            vec![
                "binding of embeddings".into(),
                "113".into(),
                generate::embed::made().auth.binding().to_bytes().len().to_string(),
            ],
            vec![
                "binding of a turn".into(),
                "125".into(),
                turn.requested.auth.binding().to_bytes().len().to_string(),
            ],
        ],
    );
    assert_eq!(SEGMENT_HEADER_LEN, codec::encode(&Segment::empty(SessionId([0; 32]), 0)).len());
}

/// Figures that the text repeats outside its tables.
#[test]
fn figures_in_the_text_are_the_code() {
    for text in [
        format!("`{}`", baton_proto::wire::TURN_PROTOCOL),
        format!("`{}`", baton_proto::embed::EMBED_PROTOCOL),
        format!("`{}`", baton_proto::export::EXPORT_FORMAT),
        format!("`{}`", baton_proto::export::EVIDENCE_FORMAT),
        "has at least 262,144 bytes".to_owned(),
        "1 to 16 entries".to_owned(),
        "at most 9 |".to_owned(),
        "at most 144 |".to_owned(),
        "more than 30 s ahead".to_owned(),
        "longer than 120 s".to_owned(),
        "at most 400 days".to_owned(),
        "`period = sequence / 604,800,000`".to_owned(),
        format!("at most {MAX_HEAD_PERIODS} places"),
    ] {
        assert!(PAGE.contains(&text), "{text}");
    }
    let engine = include_str!("../../../node/engine/src/lib.rs");
    let (_, revision) = engine.split_once("ENGINE_REVISION: u32 = ").unwrap();
    let revision = revision.split(';').next().unwrap();
    assert!(PAGE.contains(&format!("`engine_revision` is {revision}")), "the engine's revision");
    // Names in the code of crates above this one.
    for (name, code) in [
        ("/baton/kad/1", include_str!("../../../mesh/src/behaviour.rs")),
        ("/baton/gossip", include_str!("../../../mesh/src/gossip.rs")),
        ("/baton/nodes/1", include_str!("../../../mesh/src/gossip.rs")),
    ] {
        assert!(PAGE.contains(&format!("`{name}`")) && code.contains(&format!("{name:?}")), "{name}");
    }
    // A label stands beside the object that it signs, or beside the words for it.
    for (_, label) in ALL_LABELS {
        let name = label.as_str().trim_start_matches("baton/v1/");
        let is_explained =
            PAGE.contains(&format!("label `{name}`")) || PAGE.contains(&format!("`{name}` signs "));
        assert!(is_explained, "label {name}");
    }
    assert_eq!((SEGMENT_BYTES, SEGMENT_TURNS, MAX_READ_BLOBS, MAX_READ_RECORDS), (262_144, 16, 9, 144));
    assert_eq!((MAX_CLOCK_SKEW_MS, MAX_AUTH_LIFETIME_MS), (30_000, 120_000));
    assert_eq!(HEAD_PERIOD_MS, 604_800_000);
    assert_eq!(MAX_HEAD_LIFETIME_MS, 400 * 86_400_000);
}
