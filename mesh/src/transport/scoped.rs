//! A transport that dials only the addresses that its mesh may dial.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
};

use crate::address_scope::DialScope;

/// A transport that refuses to dial addresses outside of a scope. It is around the resolver of names: a name is
/// resolved only if a person named it, and may then point anywhere.
pub(crate) struct ScopedTransport<T> {
    inner: T,
    /// `None` allows no address: the transport only accepts.
    scope: Option<Arc<DialScope>>,
}

impl<T> ScopedTransport<T> {
    pub(crate) fn new(inner: T, scope: Option<Arc<DialScope>>) -> Self {
        Self { inner, scope }
    }
}

impl<T: Transport + Unpin> Transport for ScopedTransport<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<T::Dial, TransportError<T::Error>> {
        if self.scope.as_ref().is_some_and(|scope| scope.allows(&address)) {
            self.inner.dial(address, options)
        } else {
            Err(TransportError::MultiaddrNotSupported(address))
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.inner).poll(context)
    }
}
