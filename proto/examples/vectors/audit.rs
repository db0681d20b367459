//! Vectors of audits: one request, its hash, and a report of each kind.

use baton_proto::{
    ErrorCode, SignedObject,
    audit::{
        AUDIT_PROTOCOL, AuditAnswer, AuditBytes, AuditFrame, AuditGap, AuditReport, AuditRequest,
        AuditVerdict,
    },
    disclosure::Disclosure,
    limits::{AUDIT_REQUEST_VERSION, VERSION},
    memory::MemoryItem,
};
use serde_json::{Value, json};

use super::{
    counting, embed,
    objects::{frame, plain, signed},
    session::{START_MS, Session, node},
};

/// The request about the last turn of the session. Memory and schema are stand-ins: that turn has none.
pub(crate) fn request(made: &Session) -> AuditRequest {
    let receipt = &made.turns.last().expect("the session has turns").accepted.receipt;
    let memory = vec![MemoryItem {
        text: "sails on Sundays ⛵".to_owned(),
        source: "chat of May".to_owned(),
        time_ms: START_MS - 86_400_000,
    }];
    let schema = Some("{\"type\":\"object\"}".to_owned());
    AuditRequest {
        version: AUDIT_REQUEST_VERSION,
        nonce: counting(0xd0),
        audience: node(0).node_id(),
        receipt: receipt.receipt_hash(),
        model: receipt.model,
        tokens: receipt.tokens.output,
        disclosure: Disclosure::of(&made.export(false), receipt.seq, memory, schema)
            .expect("the session has all parts of the turn"),
    }
}

/// A report on a request with this verdict, signed by node 0.
pub(crate) fn report(request: &AuditRequest, verdict: AuditVerdict) -> SignedObject<AuditReport> {
    let report = AuditReport {
        version: VERSION,
        node: request.audience,
        request: AuditBytes::new(request).expect("the request is small").hash(),
        receipt: request.receipt,
        model: request.model,
        verdict,
        made_ms: START_MS + 5_000,
    };
    SignedObject::sign(report, &node(0))
}

/// All vectors of audits.
pub(crate) fn vectors(session: &Session) -> Value {
    let made = request(session);
    let bytes = AuditBytes::new(&made).expect("the request is small");
    // The frames carry a short request, which is right in form alone.
    let mut bare = made.clone();
    bare.disclosure.schema = None;
    bare.disclosure.segments.clear();
    let bare = AuditBytes::new(&bare).expect("the request is small");
    let quota = embed::made().request.quota;
    let verdicts = [
        AuditVerdict::Same { tokens: 40 },
        AuditVerdict::Different { token: Some(7) },
        AuditVerdict::Different { token: None },
        AuditVerdict::NotReplayable(AuditGap::Memory),
    ];
    let reports = verdicts.map(|verdict| report(&made, verdict));
    let [same, ..] = &reports;
    let mut objects: Vec<Value> = reports.iter().map(|report| signed("AuditReport", report, None)).collect();
    objects.push(plain("AuditRequest", &made, Some(bytes.hash().to_string())));
    json!({
        "protocol": AUDIT_PROTOCOL,
        "objects": objects,
        "frames": [
            frame("Request", "AuditFrame", &AuditFrame::Request { request: bare.clone(), quota: None }),
            frame("Request.Quota", "AuditFrame", &AuditFrame::Request { request: bare, quota }),
            frame("Report", "AuditAnswer", &AuditAnswer::Report(same.bytes().clone())),
            frame("Refused", "AuditAnswer", &AuditAnswer::Refused { code: ErrorCode::Busy, retry_after_ms: 1_500 }),
        ],
    })
}
