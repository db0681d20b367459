//! `baton nodes`.

use baton_client::{ClientError, NodeInfo, choose::NoChoice};
use serde_json::json;

use super::{
    Failure,
    out::{Out, clean},
    settings::Settings,
    with_client,
};

pub async fn run(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let nodes = with_client(settings, true, async |client| Ok(client.nodes().await)).await?;
    if out.json() {
        let list: Vec<_> = nodes.iter().map(describe).collect();
        return Ok(out.value(&json!({ "nodes": list }))?);
    }
    if nodes.is_empty() {
        return Err(ClientError::NoNode(NoChoice::NoNodes).into());
    }
    for node in &nodes {
        out.line(&node.record.node.to_string())?;
        for offer in &node.record.models {
            let engine = format!("{:?}", offer.engine).to_lowercase();
            out.line(&clean(&format!(
                "  {} ({engine}, {} tokens of context, prices {} in, {} out per 1000)",
                offer.name, offer.context_tokens, offer.input_price, offer.output_price
            )))?;
        }
        for addr in &node.addrs {
            out.line(&format!("  {addr}"))?;
        }
    }
    Ok(())
}

fn describe(node: &NodeInfo) -> serde_json::Value {
    let models: Vec<_> = node
        .record
        .models
        .iter()
        .map(|offer| {
            json!({
                "id": offer.model.to_string(),
                "name": offer.name,
                "engine": format!("{:?}", offer.engine).to_lowercase(),
                "context_tokens": offer.context_tokens,
                "input_price": offer.input_price,
                "output_price": offer.output_price,
            })
        })
        .collect();
    json!({
        "node": node.record.node.to_string(),
        "models": models,
        "slots": node.record.limits.slots,
        "addresses": node.addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "connected": node.connected,
        "software": node.record.software,
        "expires_ms": node.record.expires_ms,
    })
}
