//! Servers of which only some have a head index, as one index.

use baton_proto::{
    ids::HeadIndexKey,
    store::{HeadIndex, StoreError, StoreFuture},
};

use super::{NamedIndex, unavailable};

/// The first of several servers that has a head index. A server without one refuses, and the next is asked.
/// A server that is down is not passed over: its successor may be the operator that is to learn least.
pub struct FirstIndex(Vec<NamedIndex>);

impl FirstIndex {
    /// These servers, in the order of preference.
    #[must_use]
    pub fn new(servers: Vec<NamedIndex>) -> Self {
        Self(servers)
    }

    async fn ask<'a, T>(
        &'a self,
        call: impl Fn(&'a dyn HeadIndex) -> StoreFuture<'a, T>,
    ) -> Result<T, StoreError> {
        let mut last = unavailable("no head index is configured");
        for server in &self.0 {
            match call(server.index.as_ref()).await {
                Err(StoreError::Refused { reason }) => {
                    last = StoreError::Refused { reason: format!("{}: {reason}", server.name) };
                }
                answer => return answer,
            }
        }
        Err(last)
    }
}

impl HeadIndex for FirstIndex {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.ask(|index| index.publish(record.clone())).await })
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(self.ask(move |index| index.resolve(key)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// An index that gives one answer.
    struct Answer(Result<Option<Vec<u8>>, StoreError>);

    impl HeadIndex for Answer {
        fn publish<'a>(&'a self, _: Vec<u8>) -> StoreFuture<'a, ()> {
            Box::pin(async { self.0.clone().map(drop) })
        }
        fn resolve<'a>(&'a self, _: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
            Box::pin(async { self.0.clone() })
        }
    }

    async fn resolve(
        answers: Vec<Result<Option<Vec<u8>>, StoreError>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let named = |answer| NamedIndex { name: "a server".to_owned(), index: Arc::new(Answer(answer)) };
        let first = FirstIndex::new(answers.into_iter().map(named).collect());
        let published = first.publish(Vec::new()).await;
        let resolved = first.resolve(HeadIndexKey([1; 32])).await;
        assert_eq!(published, resolved.clone().map(drop));
        resolved
    }

    #[tokio::test]
    async fn a_server_without_an_index_is_passed_over_and_one_that_is_down_or_has_nothing_is_not() {
        let none = || Err(StoreError::Refused { reason: "the store has no head index".to_owned() });
        let down = || Err(unavailable("down"));
        assert_eq!(resolve(vec![none(), Ok(Some(vec![1])), Ok(Some(vec![2]))]).await, Ok(Some(vec![1])));
        assert_eq!(resolve(vec![down(), Ok(Some(vec![2]))]).await, down());
        assert_eq!(resolve(vec![Ok(None), Ok(Some(vec![2]))]).await, Ok(None));
        let refused = resolve(vec![none(), none()]).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
        assert!(resolve(Vec::new()).await.is_err());
    }
}
