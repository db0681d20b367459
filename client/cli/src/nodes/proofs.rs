//! `baton nodes --proofs`: contradictions between nodes about an answer.

use std::path::Path;

use baton_client::{ClientError, read_proof};
use baton_proto::{
    check::CheckVerdict,
    contradiction::{Contradiction, ContradictionReport},
    ids::NodeId,
};
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    home::with_client,
    out::{Out, short, turn_number},
    settings::Settings,
};

/// Checks a proof, and shows its content.
pub(crate) fn check(file: &Path, out: &Out) -> Result<(), Failure> {
    let proof = read(file)?;
    let report = proof.check().map_err(ClientError::from)?;
    if out.json() {
        out.value(&describe(&report))?;
        return Ok(());
    }
    show(&report, out)?;
    Ok(())
}

/// Lists the proofs of this home.
pub(crate) async fn list(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let paths = with_client(settings, false, async |client| Ok(client.proofs().await?)).await?;
    let (mut listed, mut found) = (Vec::new(), 0);
    for path in paths {
        // One damaged file must not hide the others.
        match read(&path).and_then(|proof| Ok(proof.check().map_err(ClientError::from)?)) {
            Ok(report) if out.json() => {
                found += 1;
                let mut value = describe(&report);
                value["file"] = json!(path.display().to_string());
                listed.push(value);
            }
            Ok(report) => {
                found += 1;
                out.line(&path.display().to_string())?;
                show(&report, out)?;
            }
            Err(_) => out.warn(&format!("{} is no valid proof", path.display())),
        }
    }
    if out.json() {
        out.value(&json!({ "proofs": listed }))?;
    } else if found == 0 {
        out.note("no node was found to contradict others");
    }
    Ok(())
}

fn read(file: &Path) -> Result<Contradiction, Failure> {
    Ok(read_proof(file).map_err(|source| ClientError::File {
        action: "read",
        path: file.to_owned(),
        source,
    })?)
}

fn describe(report: &ContradictionReport) -> Value {
    let ids = |nodes: &[NodeId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let verdict = |(node, verdict): &(NodeId, CheckVerdict)| {
        let differs_at = match verdict {
            CheckVerdict::Different { token, .. } => Some(*token),
            _ => None,
        };
        json!({ "node": node.to_string(), "differs_at": differs_at })
    };
    json!({
        "author": report.author.to_string(),
        "accused": ids(&report.accused),
        "witnesses": ids(&report.witnesses),
        "verdicts": report.verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "model": report.model.to_string(),
        "seq": report.seq,
        "turn": turn_number(report.seq),
        "decided": !report.accused.is_empty(),
    })
}

fn show(report: &ContradictionReport, out: &Out) -> Result<(), Failure> {
    let list = |nodes: &[NodeId]| nodes.iter().map(short).collect::<Vec<_>>().join(", ");
    let (author, turn) = (short(&report.author), turn_number(report.seq));
    if report.accused.is_empty() {
        let others: Vec<NodeId> = report.verdicts.iter().map(|(node, _)| *node).collect();
        let others = list(&others);
        out.line(&format!(
            "  nodes {author}, {others} contradict each other about the answer of turn {turn}"
        ))?;
        out.note("  some of them lied; a holder of the model can tell which: baton-node replay");
    } else {
        let (accused, witnesses) = (list(&report.accused), list(&report.witnesses));
        out.line(&format!(
            "  node {accused} contradicts nodes {witnesses}, which agree, about the answer of node {author} in turn {turn}"
        ))?;
    }
    Ok(())
}
