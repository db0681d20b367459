//! Calls with an idempotency key, which take effect once.

use zeroize::Zeroizing;

use super::Draft;
use crate::{
    api::{MemoryError, RememberRequest, Result},
    events::Event,
    ids::ItemId,
    owner::Owner,
};

/// Keyed hashes of an idempotency key and of its call.
#[derive(Clone, Copy)]
pub(super) struct IdempotentCall {
    key: [u8; 32],
    /// Of the key, the place and the text.
    call: [u8; 32],
}

impl Draft<'_> {
    /// The earlier answer to this very call with its idempotency key.
    pub(super) fn known_answer(&self, asked: IdempotentCall) -> Result<Option<ItemId>> {
        let here = self.events.iter().find_map(|event| match event {
            Event::Answered { key: known, call, item } if *known == asked.key => Some((*call, *item)),
            _ => None,
        });
        match here.or_else(|| self.owner.state.call_answer(&asked.key)) {
            None => Ok(None),
            Some((known, item)) if known == asked.call => Ok(Some(item)),
            Some(_) => Err(MemoryError::Conflict(
                "this idempotency key came with another text or place before; use a new one for each call"
                    .into(),
            )),
        }
    }

    /// Records the answer to a call.
    pub(super) fn answer(&mut self, answered: IdempotentCall, item: ItemId) {
        if self.known_answer(answered).is_ok_and(|known| known.is_none()) {
            let IdempotentCall { key, call } = answered;
            self.events.push(Event::Answered { key, call, item });
        }
    }
}

impl Owner {
    /// Keyed hashes of an idempotency key and of its call.
    pub(super) fn call(&self, key: &str, fact: &RememberRequest) -> IdempotentCall {
        let hash = |parts: &[&str]| {
            // No other input of this keyed hash begins with this byte.
            let mut bytes = Zeroizing::new(vec![u8::MAX]);
            for part in parts {
                bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
            self.keys().content_hash(&bytes)
        };
        let place = &fact.place;
        let part = |name: &Option<String>| name.clone().unwrap_or_default();
        let (session, project, persona) = (part(&place.session), part(&place.project), part(&place.persona));
        let call = hash(&[key, &fact.text, fact.layer.name(), &session, &project, &persona]);
        IdempotentCall { key: hash(&[key]), call }
    }
}
