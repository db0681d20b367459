//! `baton nodes --proofs` and `--proof`: contradictions between nodes that decoys found; and the cost of decoys.

use std::path::Path;

use baton_client::{ClientError, DecoyTotals, read_proof};
use baton_proto::contradiction::{Contradiction, ContradictionReport};
use serde_json::{Value, json};

use super::{
    Failure,
    out::{Out, count, short, turn_number},
    settings::Settings,
    with_client,
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
    json!({
        "accused": report.accused.to_string(),
        "witnesses": report.witnesses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "model": report.model.to_string(),
        "seq": report.seq,
        "turn": turn_number(report.seq),
        "differs_at": report.differs_at,
        "decided": report.is_decided(),
    })
}

fn show(report: &ContradictionReport, out: &Out) -> Result<(), Failure> {
    let others: Vec<String> = report.witnesses.iter().map(short).collect();
    let (accused, others, turn) = (short(&report.accused), others.join(", "), turn_number(report.seq));
    if report.is_decided() {
        out.line(&format!("  node {accused} contradicts nodes {others}, which agree, in turn {turn}"))?;
    } else {
        out.line(&format!("  node {accused} and node {others} contradict each other in turn {turn}"))?;
        out.note("  one of both lied; a holder of the model can tell which: baton-node replay");
    }
    Ok(())
}

/// The sums over decoys, for machines.
pub(crate) fn describe_totals(totals: &DecoyTotals) -> Value {
    json!({
        "sessions": totals.sessions,
        "turns": totals.turns,
        "tokens": totals.decoy_tokens,
        "own_tokens": totals.real_tokens,
        "price": totals.price,
        "contradictions": totals.contradictions,
        "undecided": totals.undecided,
    })
}

/// The sums over decoys in a line; none before the first decoy.
pub(crate) fn note_totals(totals: &DecoyTotals, out: &Out) {
    if totals.turns == 0 {
        return;
    }
    out.note(&format!(
        "decoys: {} in {}, {} of {} at nodes with their own engine, price {}; {}",
        count(totals.turns, "turn"),
        count(totals.sessions, "session"),
        count(totals.decoy_tokens, "token"),
        count(totals.real_tokens.saturating_add(totals.decoy_tokens), "token"),
        totals.price,
        count(totals.contradictions, "contradiction"),
    ));
}
