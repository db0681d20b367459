//! `docs/THREATS.md` has a row for each field that a node or a relayer sends, or for some of one type (`Type.a, b`):
//! who checks it, and the cost of a lie. A new field without a row fails here.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/THREATS.md");

/// The wire objects that nodes and relayers make, by the source that defines them.
const OBJECTS: [(&str, &[&str]); 6] = [
    (include_str!("../../src/link.rs"), &["Link"]),
    (
        include_str!("../../src/receipt.rs"),
        &["Receipt", "TokenCounts", "Timings", "Commitments", "ProgressNote"],
    ),
    (
        include_str!("../../src/node_record.rs"),
        &["NodeRecord", "KeyWindow", "ModelOffer", "NodeLimits", "StorageOffer"],
    ),
    (
        include_str!("../../src/wire.rs"),
        &["Committed", "StoreState", "TurnStatus", "NodeFrame", "ReplyEvent"],
    ),
    (include_str!("../../src/embed.rs"), &["EmbedReply"]),
    (include_str!("../../src/memory.rs"), &["MemEnvelope"]),
];

/// The fields of a structure, or the variants of an enum, as `Type.name`.
fn fields(source: &str, name: &str) -> Vec<String> {
    let (is_enum, body) = ["struct", "enum"]
        .iter()
        .find_map(|kind| Some((*kind == "enum", source.split_once(&format!("pub {kind} {name} {{\n"))?.1)))
        .unwrap_or_else(|| panic!("{name} is not defined here"));
    let (body, _) = body.split_once("\n}\n").unwrap();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .filter_map(|line| {
            if is_enum {
                let end = line.find([',', '(', ' ']).unwrap_or(line.len());
                line.starts_with(char::is_uppercase).then(|| &line[..end])
            } else {
                line.strip_prefix("pub ").and_then(|line| line.split(':').next())
            }
        })
        .map(|field| format!("{name}.{field}"))
        .collect()
}

#[test]
fn each_field_that_a_node_sends_has_a_row() {
    let expected: BTreeSet<String> = OBJECTS
        .iter()
        .flat_map(|(source, names)| names.iter().flat_map(|name| fields(source, name)))
        .collect();
    assert!(expected.contains("Receipt.price") && expected.contains("ReplyEvent.Store"));
    let (_, table) = PAGE.split_once("<!-- fields -->").unwrap();
    let (table, _) = table.split_once("<!-- end fields -->").unwrap();
    let lines = table.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |line: &'static str| line.trim_matches('|').split(" | ").map(str::trim).collect();
    let rows: Vec<Vec<&str>> = lines.map(cells).collect();
    for row in &rows {
        assert!(row.len() == 4 && !row[1].is_empty() && !row[3].is_empty(), "incomplete: {row:?}");
    }
    let names = rows.iter().map(|row| row[0].split_once('.').unwrap());
    let names = names.flat_map(|(kind, fields)| fields.split(", ").map(move |name| format!("{kind}.{name}")));
    let named: BTreeSet<String> = names.clone().collect();
    assert_eq!(named.len(), names.count(), "a field has two rows");
    let missing: Vec<_> = expected.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&expected).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "without a row: {missing:?}; no such field: {unknown:?}"
    );
}
