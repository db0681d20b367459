//! For fuzz targets only: reads an untrusted answer with every parser.

use std::collections::BTreeMap;

use baton_proto::ids::BlobId;

use super::answer::{Failure, PutFault, ReadFault, blob_stored, quilt_stored, retry_after};

/// Reads a body as every kind of answer; `status` serves for errors. Returns the texts that would enter
/// errors and logs.
#[must_use]
pub fn read_answer(status: u16, body: &[u8]) -> Vec<String> {
    let id = BlobId([7; 32]);
    let mut texts = Vec::new();
    let patches = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    for result in [blob_stored(body, id), quilt_stored(body, id, &patches)] {
        texts.extend(result.err().and_then(put_text));
    }
    let header = std::str::from_utf8(body).ok();
    let wait = header.and_then(|value| retry_after(value, None));
    let failure = Failure { status, retry_after: wait, body: body.to_vec(), way: String::new() };
    texts.extend([false, true].into_iter().filter_map(|fresh| put_text(failure.of_put(fresh))));
    if let ReadFault::Busy { reason, .. } | ReadFault::Refused { reason } = failure.of_get() {
        texts.push(reason);
    }
    texts.push(failure.of_publish(1).to_string());
    texts.extend(failure.of_resolve().map(|error| error.to_string()));
    texts
}

fn put_text(fault: PutFault) -> Option<String> {
    match fault {
        PutFault::Busy { reason, .. } | PutFault::Refused { reason } | PutFault::Ambiguous { reason } => {
            Some(reason)
        }
        _ => None,
    }
}
