//! A transport that refuses to dial into narrower scopes than this mesh may use.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
};

use crate::address_scope::{Reach, reach_of_address};

/// A transport that refuses to dial addresses of narrower scope than `nearest`.
pub(crate) struct ScopedTransport<T> {
    inner: T,
    nearest: Reach,
}

impl<T> ScopedTransport<T> {
    pub(crate) fn new(inner: T, nearest: Reach) -> Self {
        Self { inner, nearest }
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
        match reach_of_address(&address) {
            Some(reach) if reach <= self.nearest => self.inner.dial(address, options),
            _ => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.inner).poll(context)
    }
}
