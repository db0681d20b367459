//! PUT of a blob, and the parts that it shares with PUT of a quilt.

use axum::{
    Json,
    body::{Body, HttpBody as _},
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use baton_proto::ids::SuiAddress;
use baton_walrus_client::wire::reason;
use serde::Deserialize;

use super::{
    super::{
        EmbeddedStore, PutPermits, acquire,
        answers::{self, Refusal},
        auth::{AuthorizationRequest, Claim},
        config::MAX_EPOCHS,
        disk::Term,
        upload::Upload,
    },
    bad_query, body,
};

/// The query of a PUT. An unknown key is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutQuery {
    #[serde(default = "one_epoch")]
    epochs: u32,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    deletable: bool,
    #[serde(default)]
    force: bool,
    /// Accepted without effect: this store has no resources to reuse, as may happen to a publisher.
    #[serde(default, rename = "reuse_resources")]
    _reuse_resources: bool,
    encoding_type: Option<String>,
    quilt_version: Option<String>,
    send_object_to: Option<String>,
    share: Option<bool>,
}

fn one_epoch() -> u32 {
    1
}

/// A PUT with good query and token, and with its permits.
pub(super) struct AdmittedPut {
    query: PutQuery,
    pub(super) claim: Option<Claim>,
    pub(super) permits: PutPermits,
}

impl PutQuery {
    /// Checks the form of the values. Walrus's extractor makes these refusals, in plain text.
    fn check_form(&self) -> Result<(), Refusal> {
        let text = |message: &str| Err(Refusal::text(StatusCode::BAD_REQUEST, message));
        if self.encoding_type.as_deref().is_some_and(|kind| kind != "RS2") {
            return text("encoding_type must be RS2");
        }
        if self.quilt_version.as_deref().is_some_and(|version| !matches!(version, "v1" | "V1" | "1")) {
            return text("quilt_version must be V1");
        }
        if let Some(owner) = &self.send_object_to {
            let address = owner.strip_prefix("0x").map(SuiAddress::parse_hex);
            if !matches!(address, Some(Ok(_))) {
                return text("send_object_to must be 0x and 64 hexadecimal characters");
            }
            if self.share.is_some() {
                return text("send_object_to and share exclude each other");
            }
        }
        Ok(())
    }

    /// Checks the meaning of the values. Walrus's handler makes these refusals after the body.
    fn term(&self) -> Result<Term, Refusal> {
        let refuse = |reason, message| Err(Refusal::json(StatusCode::BAD_REQUEST, reason, message));
        if self.permanent && self.deletable {
            let message = "a blob cannot be both permanent and deletable";
            return refuse(reason::INVALID_BLOB_PERSISTENCE, message);
        }
        if self.epochs == 0 || self.epochs > MAX_EPOCHS {
            return refuse(reason::MALFORMED_REQUEST, "the number of epochs must be from 1 to 53");
        }
        Ok(Term {
            permanent: self.permanent,
            force: self.force,
            share: self.share == Some(true),
            epochs: self.epochs,
        })
    }
}

/// Bytes of a body: the minimum, and the maximum if known.
pub(super) fn announced(body: &Body) -> (u64, Option<u64>) {
    let hint = body.size_hint();
    (hint.lower(), hint.upper())
}

/// Checks query and token, and gets a permit among the PUTs: at once, after a wait, or not at all.
pub(super) async fn admit(
    store: &EmbeddedStore,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: &HeaderMap,
    (at_least, at_most): (u64, Option<u64>),
) -> Result<AdmittedPut, Refusal> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    query.check_form()?;
    let asked = AuthorizationRequest {
        epochs: query.epochs,
        send_object_to: query.send_object_to.as_deref(),
        body: (at_least, at_most),
    };
    let claim = store.authorize(headers, &asked).await?;
    let admitted = store.inner.admitted_puts.clone().try_acquire_owned();
    let admitted = admitted.map_err(|_| Refusal::too_many())?;
    let running = acquire(&store.inner.running_puts).await;
    Ok(AdmittedPut { query, claim, permits: PutPermits { _admitted: admitted, _running: running } })
}

impl AdmittedPut {
    /// The blob's term, checked after the body.
    pub(super) fn term(&self) -> Result<Term, Refusal> {
        self.query.term()
    }
}

pub(super) async fn put_blob(
    State(store): State<EmbeddedStore>,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let announced = announced(&body);
    let admitted = match admit(&store, query, &headers, announced).await {
        Ok(admitted) => admitted,
        Err(refusal) => {
            body::discard_briefly(body).await;
            return Err(refusal);
        }
    };
    let mut upload = Upload::new(store.clone(), announced.0);
    body::receive(&headers, body, store.inner.config.max_put_bytes, &mut upload).await?;
    let length = upload.length();
    if let Some(claim) = &admitted.claim {
        claim.allows_size(length)?;
    }
    let term = admitted.term()?;
    let (id, stored) = upload.store(term, Some(admitted.permits)).await?;
    Ok(Json(answers::store_result(id, length, stored, term, store.shards())).into_response())
}
