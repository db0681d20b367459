//! Stores content once, at any publisher that accepts it.
//!
//! Owns the course of a PUT. It asks publishers in the order of their health. After a PUT that may have
//! arrived, it searches for the blob before it sends anything else. [`retry`](super::retry) decides the next
//! step.
//!
//! Cancel safe: nothing stays half done here. A PUT dropped after it was sent may have been stored.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{SystemTime, UNIX_EPOCH},
};

use baton_proto::{
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{RequestBuilder, Url, header};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    HttpStoreInner, StoredBlob, StoredHow,
    answer::{PublisherStatement, PutFault, blob_stored, quilt_stored},
    fetch::{MAX_ANSWER_BYTES, after, failure},
    health::SourceOffence,
    join,
    payload::Payload,
    retry::{PutCourse, PutStep},
    verify::compute_id,
};
use crate::{
    http_client::{describe, next_location, read_bounded},
    jwt::TokenPurpose,
};

/// The ID that this client computes.
#[derive(Debug, Clone)]
pub(super) enum OwnId {
    Known(BlobId),
    Of(Bytes),
}

/// One PUT.
#[derive(Debug)]
pub(super) struct PutJob<'a> {
    pub(super) path: &'static str,
    pub(super) payload: Payload,
    pub(super) id: OwnId,
    /// Length of the blob; for a quilt it differs from the payload's.
    pub(super) length: u64,
    /// This client's patch IDs by identifier, for a quilt.
    pub(super) patches: Option<BTreeMap<String, String>>,
    pub(super) options: &'a PutOptions,
}

impl PutJob<'_> {
    fn read(&self, body: &[u8], id: BlobId) -> Result<PublisherStatement, PutFault> {
        match &self.patches {
            Some(patches) => quilt_stored(body, id, patches),
            None => blob_stored(body, id),
        }
    }
}

/// The current knowledge of a PUT, for its deadline.
#[derive(Debug)]
struct PutState {
    course: PutCourse,
    in_flight: bool,
}

impl HttpStoreInner {
    /// Runs a PUT, with its repetitions and the search for a lost one, within its time: twice the sum of the base
    /// timeout, the search and the slowest permitted transfer.
    pub(super) async fn put(&self, job: &PutJob<'_>) -> Result<StoredBlob, StoreError> {
        if job.options.epochs == 0 {
            return Err(StoreError::Refused { reason: "a blob is stored for at least one epoch".to_owned() });
        }
        let length = job.payload.length();
        let policy = &self.policy;
        let time = policy.transfer(length).saturating_add(policy.probe_window).saturating_mul(2);
        let deadline = after(Instant::now(), time);
        // A repeated PUT of a permanent blob buys nothing at the same publisher: it finds its registration again, or the
        // certified blob. Each PUT of a deletable blob buys it again.
        let course = PutCourse::new(length, policy.retries, job.options.permanent);
        let live = Mutex::new(PutState { course, in_flight: false });
        match timeout_at(deadline, Box::pin(self.course(job, &live, deadline))).await {
            Ok(result) => result,
            Err(_) => {
                let live = live.lock();
                Err(live.course.at_deadline(live.in_flight))
            }
        }
    }

    async fn course(
        &self,
        job: &PutJob<'_>,
        live: &Mutex<PutState>,
        deadline: Instant,
    ) -> Result<StoredBlob, StoreError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut own = job.id.clone();
        let mut queue = VecDeque::from(self.publishers.order());
        let mut lost_by = None;
        loop {
            let Some(publisher) = queue.pop_front() else {
                return Err(StoreError::Refused { reason: "no publisher is configured".to_owned() });
            };
            live.lock().in_flight = true;
            // The ID is needed only with the answer, which takes a while.
            let (id, answer) = tokio::join!(self.own_id(&own), self.send(job, publisher));
            let id = match (id, &answer) {
                (Ok(id), _) => id,
                (Err(error), Err(PutFault::Busy { .. } | PutFault::Refused { .. } | PutFault::TooLarge)) => {
                    return Err(error);
                }
                (Err(error), _) => return Err(StoreError::OutcomeUnknown { reason: error.to_string() }),
            };
            own = OwnId::Known(id);
            let fault = match answer.and_then(|body| job.read(&body, id)) {
                Ok(accepted) => return Ok(self.stored(id, Some(accepted))),
                Err(fault) => fault,
            };
            self.note_fault(publisher, &fault);
            if matches!(fault, PutFault::Ambiguous { .. }) {
                lost_by = Some(publisher);
            }
            let mut step = {
                let mut live = live.lock();
                live.in_flight = false;
                live.course.after_fault(fault, queue.len(), left(), rand::random())
            };
            if step == PutStep::Probe {
                let probed = self.probe(id, job.length).await;
                let next = live.lock().course.after_probe(probed, left(), rand::random());
                let Some(next) = next else { return Ok(self.stored(id, None)) };
                step = next;
            }
            match step {
                PutStep::Next => {}
                PutStep::Round(wait) => {
                    sleep(wait).await;
                    queue = self.publishers.order().into();
                    if live.lock().course.is_in_doubt() {
                        // Only the publisher that may have bought it can see its purchase.
                        queue.retain(|publisher| Some(*publisher) == lost_by);
                    } else {
                        // The publisher that lost a PUT comes last for the final try.
                        queue.make_contiguous().sort_by_key(|publisher| Some(*publisher) == lost_by);
                    }
                }
                PutStep::Fail(error) => return Err(error),
                PutStep::Probe => unreachable!("after a look there is no second one"),
            }
        }
    }

    async fn own_id(&self, own: &OwnId) -> Result<BlobId, StoreError> {
        match own {
            OwnId::Known(id) => Ok(*id),
            OwnId::Of(bytes) => compute_id(bytes.clone(), self.shards()).await,
        }
    }

    /// Sends one PUT, also to where the publisher redirects it; returns the body of its answer of success.
    async fn send(&self, job: &PutJob<'_>, publisher: usize) -> Result<Vec<u8>, PutFault> {
        let refused = |error: StoreError| PutFault::Refused { reason: error.to_string() };
        let mut url = join(self.publishers.url(publisher), job.path).map_err(refused)?;
        url.query_pairs_mut().extend_pairs(query(job.options));
        let asked = Instant::now();
        let exchange = async {
            let mut places = vec![url];
            let response = loop {
                let url = places.last().cloned().expect("it starts with one");
                let (request, fresh_token) = self.put_request(job, publisher, url.clone())?;
                let response = request.send().await.map_err(|error| send_fault(&error))?;
                if let Some(next) = next_location(&response, &places) {
                    places.push(next);
                    continue;
                }
                if response.status().is_success() {
                    break response;
                }
                let moved = response.url() != &url;
                let failure = failure(response).await;
                // After a 303, the publisher took the PUT, and its answer is not where it said.
                return Err(if moved {
                    PutFault::Ambiguous { reason: failure.reason() }
                } else {
                    failure.of_put(fresh_token)
                });
            };
            read_bounded(response, MAX_ANSWER_BYTES).await.map_err(|error| PutFault::Ambiguous {
                reason: error.map_or("the answer is too long".to_owned(), |error| describe(&error)),
            })
        };
        let time = self.policy.transfer(job.payload.length());
        let body = timeout(time, exchange)
            .await
            .unwrap_or_else(|_| Err(PutFault::Ambiguous { reason: "timed out".to_owned() }))?;
        self.publishers.note_answer(publisher, asked.elapsed());
        Ok(body)
    }

    fn put_request(
        &self,
        job: &PutJob<'_>,
        publisher: usize,
        url: Url,
    ) -> Result<(RequestBuilder, bool), PutFault> {
        // Another server gets no token.
        let token = self.token.as_ref().filter(|_| url.origin() == self.publishers.url(publisher).origin());
        let request = self
            .client(&url)
            .put(url)
            .header(header::CONTENT_TYPE, job.payload.content_type())
            .header(header::CONTENT_LENGTH, job.payload.length())
            .body(job.payload.open());
        let Some(token) = token else { return Ok((request, false)) };
        let purpose = TokenPurpose {
            epochs: job.options.epochs,
            // A publisher may count a form's size in its own way.
            size: job.patches.is_none().then_some(job.length),
            send_object_to: receiver(job.options),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let value = token.header(&purpose, now);
        let value = value.map_err(|error| PutFault::Refused { reason: error.to_string() })?;
        Ok((request.header(header::AUTHORIZATION, value), token.is_fresh()))
    }

    fn note_fault(&self, publisher: usize, fault: &PutFault) {
        let offence = match fault {
            PutFault::Busy { retry_after, .. } => SourceOffence::Failed(*retry_after),
            PutFault::Ambiguous { .. } => SourceOffence::Failed(None),
            PutFault::Refused { .. } | PutFault::TooLarge => SourceOffence::Refused,
            PutFault::WrongId => SourceOffence::WrongContent,
            PutFault::Invalid => return,
        };
        self.publishers.note_offence(publisher, offence);
    }

    fn stored(&self, id: BlobId, accepted: Option<PublisherStatement>) -> StoredBlob {
        self.recent().stored(id, Instant::now());
        StoredBlob {
            blob_id: id,
            how: match accepted {
                Some(PublisherStatement { newly_created: true, .. }) => StoredHow::Created,
                Some(_) => StoredHow::AlreadyCertified,
                None => StoredHow::Found,
            },
            end_epoch: accepted.and_then(|accepted| accepted.end_epoch),
        }
    }
}

/// The query of a PUT, in Walrus's terms.
fn query(options: &PutOptions) -> Vec<(&'static str, String)> {
    let kind = if options.permanent { "permanent" } else { "deletable" };
    let mut query = vec![("epochs", options.epochs.to_string()), (kind, "true".to_owned())];
    query.extend(receiver(options).map(|to| ("send_object_to", to)));
    query
}

/// The receiving address of the object, in Sui's form.
fn receiver(options: &PutOptions) -> Option<String> {
    options.send_object_to.map(|address| format!("0x{address}"))
}

/// The fault of a PUT without an answer. Only a failed connection proves that nothing was sent.
fn send_fault(error: &reqwest::Error) -> PutFault {
    let reason = describe(error);
    if error.is_connect() || error.is_builder() {
        PutFault::Busy { reason, retry_after: None }
    } else {
        PutFault::Ambiguous { reason }
    }
}
