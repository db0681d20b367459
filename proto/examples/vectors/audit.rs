//! Vectors of audits: one request, its hash, and a report of each kind.

use baton_proto::{
    ErrorCode, SignedObject,
    audit::{
        AUDIT_PROTOCOL, AuditAnswer, AuditBytes, AuditFrame, AuditGap, AuditReport, AuditRequest,
        AuditVerdict, Disclosure,
    },
    ids::{ModelId, ReceiptHash},
    limits::VERSION,
    memory::MemoryItem,
};
use serde_json::{Value, json};

use super::{
    counting, embed,
    objects::{frame, plain, signed},
    session::{START_MS, node},
};

/// The request. Its export is a stand-in: export-20.json is a real export.
pub(crate) fn request() -> AuditRequest {
    AuditRequest {
        version: VERSION,
        nonce: counting(0xd0),
        audience: node(1).node_id(),
        receipt: ReceiptHash(counting(0xd1)),
        model: ModelId(counting(0xd2)),
        tokens: 40,
        disclosure: Disclosure {
            export: "{\"format\":\"baton-export-v2\"}".to_owned(),
            memory: vec![MemoryItem {
                text: "sails on Sundays ⛵".to_owned(),
                source: "chat of May".to_owned(),
                time_ms: START_MS - 86_400_000,
            }],
            schema: Some("{\"type\":\"object\"}".to_owned()),
        },
    }
}

/// A report with this verdict, signed by node 1.
pub(crate) fn report(verdict: AuditVerdict) -> SignedObject<AuditReport> {
    let request = request();
    let report = AuditReport {
        version: VERSION,
        node: request.audience,
        request: AuditBytes::new(&request).expect("the request is small").hash(),
        receipt: request.receipt,
        model: request.model,
        verdict,
        made_ms: START_MS + 5_000,
    };
    SignedObject::sign(report, &node(1))
}

/// All vectors of audits.
pub(crate) fn vectors() -> Value {
    let made = request();
    let bytes = AuditBytes::new(&made).expect("the request is small");
    let mut bare = made.clone();
    bare.disclosure.schema = None;
    let bare = AuditBytes::new(&bare).expect("the request is small");
    let quota = embed::made().request.quota;
    let verdicts = [
        AuditVerdict::Same { tokens: 40 },
        AuditVerdict::Different { token: Some(7) },
        AuditVerdict::Different { token: None },
        AuditVerdict::NotReplayable(AuditGap::Memory),
    ];
    let reports = verdicts.map(report);
    let [same, ..] = &reports;
    let mut objects: Vec<Value> = reports.iter().map(|report| signed("AuditReport", report, None)).collect();
    objects.push(plain("AuditRequest", &made, Some(bytes.hash().to_string())));
    json!({
        "protocol": AUDIT_PROTOCOL,
        "objects": objects,
        "frames": [
            frame("Request", "AuditFrame", &AuditFrame::Request { request: bare, quota: None }),
            frame("Request.Quota", "AuditFrame", &AuditFrame::Request { request: bytes, quota }),
            frame("Report", "AuditAnswer", &AuditAnswer::Report(same.bytes().clone())),
            frame("Refused", "AuditAnswer", &AuditAnswer::Refused { code: ErrorCode::Busy, retry_after_ms: 1_500 }),
        ],
    })
}
