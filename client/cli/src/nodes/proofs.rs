//! `baton nodes --proofs`: contradictions between nodes about an answer.

use std::path::Path;

use baton_client::{ClientError, read_proof};
use baton_proto::{contradiction::ContradictionReport, ids::NodeId};
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    home::with_client,
    out::{Out, short, turn_number},
    settings::Settings,
};

/// Checks a proof, and shows its content.
pub(crate) fn check(file: &Path, out: &Out) -> Result<(), Failure> {
    let report = read(file)?;
    Ok(out.answer(&describe(&report), &words(&report))?)
}

/// Lists the proofs of this home.
pub(crate) async fn list(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let paths = with_client(settings, false, async |client| Ok(client.proofs().await?)).await?;
    let mut listed = Vec::new();
    for path in paths {
        let file = path.display().to_string();
        // One damaged file must not hide the others.
        let Ok(report) = read(&path) else {
            out.warn(&format!("{file} is no valid proof"));
            continue;
        };
        if !out.json() {
            out.line(&format!("{file}\n  {}", words(&report)))?;
        }
        let mut value = describe(&report);
        value["file"] = file.into();
        listed.push(value);
    }
    if out.json() {
        out.value(&json!({ "proofs": listed }))?;
    } else if listed.is_empty() {
        out.note("no node was found to contradict others");
    }
    Ok(())
}

/// Reads and checks a proof.
fn read(file: &Path) -> Result<ContradictionReport, Failure> {
    let failed = |source| ClientError::File { action: "read", path: file.to_owned(), source };
    Ok(read_proof(file).map_err(failed)?.check().map_err(ClientError::from)?)
}

fn describe(report: &ContradictionReport) -> Value {
    let ids = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "author": report.author.to_string(),
        "accused": ids(&report.accused),
        "witnesses": ids(&report.witnesses),
        "model": report.model.to_string(),
        "turn": turn_number(report.seq),
        "decided": !report.accused.is_empty(),
    })
}

fn words(report: &ContradictionReport) -> String {
    let list = |nodes: &[NodeId]| nodes.iter().map(short).collect::<Vec<_>>().join(", ");
    let (author, turn) = (short(&report.author), turn_number(report.seq));
    if report.accused.is_empty() {
        let others: Vec<NodeId> = report.verdicts.iter().map(|(node, _)| *node).collect();
        return format!(
            "nodes {author}, {} contradict each other about the answer of turn {turn}; some of them lied, and a holder \
             of the model can tell which: baton-node replay",
            list(&others)
        );
    }
    format!(
        "node {} contradicts nodes {}, which agree, about the answer of node {author} in turn {turn}",
        list(&report.accused),
        list(&report.witnesses)
    )
}
