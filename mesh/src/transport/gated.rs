//! A TCP transport that refuses connections at its listeners, and dials also where a listener's port cannot be reused.
//!
//! A connection that only the swarm refuses costs a round of all behaviours, and a FIN that leaves the socket in
//! TIME_WAIT for a minute. Thousands a second of them delay the turns of others. Here a refusal is one look at the
//! [gate](crate::gate) and a reset.
//!
//! A connection of a proxy begins with a header that names the client (`proxy_header`). From then on, the connection
//! has the client's address for all limits.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use baton_limits::Networks;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, ready},
    stream::FuturesUnordered,
};
use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, PortUse, TransportError, TransportEvent},
    multiaddr::Protocol,
    tcp::{self, tokio::TcpStream},
};
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::proxy_header::{self, HeaderProgress};
use crate::{
    gate::SharedGate,
    limits::{MAX_AWAITED_HEADERS, PROXY_HEADER_TIMEOUT},
    origin::ip_of,
    stats::Counters,
};

/// Connections refused, or begun with a proxy's header, in a row before other work of the swarm task gets its turn.
const REFUSED_AT_ONCE: usize = 32;

/// TCP, with a [gate](SharedGate) before its listeners.
pub(crate) struct GatedTransport {
    inner: tcp::tokio::Transport,
    gate: SharedGate,
    counters: Arc<Counters>,
    proxies: Networks,
    /// Connections of proxies, until their header has come.
    awaited: FuturesUnordered<BoxFuture<'static, io::Result<Arrival>>>,
}

/// An accepted connection, with its client's address.
struct Arrival {
    listener_id: ListenerId,
    stream: TcpStream,
    local_addr: Multiaddr,
    send_back_addr: Multiaddr,
}

impl GatedTransport {
    pub(crate) fn new(gate: SharedGate, counters: Arc<Counters>, proxies: Networks) -> Self {
        let inner = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true));
        Self { inner, gate, counters, proxies, awaited: FuturesUnordered::new() }
    }

    /// Takes one step: an accepted connection, if it has come so far, or another event of the listeners.
    fn poll_arrival(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Arrival>, TransportEvent<Upgrade, Error>>> {
        match self.awaited.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(arrival))) => return Poll::Ready(Ok(Some(arrival))),
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a proxy's connection is refused");
                return Poll::Ready(Ok(None));
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        let arrival = match ready!(Pin::new(&mut self.inner).poll(context)) {
            TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr } => {
                // The system has accepted it already.
                let Some(Ok(stream)) = upgrade.now_or_never() else { return Poll::Ready(Ok(None)) };
                Arrival { listener_id, stream, local_addr, send_back_addr }
            }
            event => return Poll::Ready(Err(event)),
        };
        if !ip_of(&arrival.send_back_addr).is_some_and(|ip| self.proxies.has(ip)) {
            return Poll::Ready(Ok(Some(arrival)));
        }
        if self.awaited.len() < MAX_AWAITED_HEADERS {
            self.awaited.push(named(arrival).boxed());
        } else {
            reset(&arrival.stream);
        }
        Poll::Ready(Ok(None))
    }
}

/// Reads a proxy's header, and takes the client's address from it.
async fn named(mut arrival: Arrival) -> io::Result<Arrival> {
    let reading = async {
        let mut header = Vec::new();
        loop {
            let read = header.len();
            match proxy_header::read(&header).map_err(io::Error::other)? {
                HeaderProgress::Complete(client) => return io::Result::Ok(client),
                HeaderProgress::Needs(more) => header.resize(read + more, 0),
            }
            let (_, missing) = header.split_at_mut(read);
            arrival.stream.0.read_exact(missing).await?;
        }
    };
    let client = timeout(PROXY_HEADER_TIMEOUT, reading).await??;
    if let Some(client) = client {
        arrival.send_back_addr = Multiaddr::from(client.ip()).with(Protocol::Tcp(client.port()));
    }
    Ok(arrival)
}

type Upgrade = <tcp::tokio::Transport as Transport>::ListenerUpgrade;
type Error = <tcp::tokio::Transport as Transport>::Error;

impl Transport for GatedTransport {
    type Output = tcp::tokio::TcpStream;
    type Error = Error;
    type ListenerUpgrade = Upgrade;
    type Dial = BoxFuture<'static, Result<tcp::tokio::TcpStream, Error>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<Error>> {
        let first = self.inner.dial(address.clone(), options)?;
        if options.port_use == PortUse::New {
            return Ok(first.boxed());
        }
        // It does nothing before it is polled.
        let again = self.inner.dial(address, DialOpts { port_use: PortUse::New, ..options })?;
        let dialling = async move {
            match first.await {
                // A connection of another program has the port of our listener, on some address of this machine.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => again.await,
                result => result,
            }
        };
        Ok(dialling.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TransportEvent<Upgrade, Error>> {
        for _ in 0..REFUSED_AT_ONCE {
            let arrival = match ready!(self.poll_arrival(context)) {
                Ok(arrival) => arrival,
                Err(event) => return Poll::Ready(event),
            };
            let Some(Arrival { listener_id, stream, local_addr, send_back_addr }) = arrival else { continue };
            let Err(refusal) = self.gate.check(&local_addr, &send_back_addr) else {
                let upgrade = ready(Ok(stream));
                return Poll::Ready(TransportEvent::Incoming {
                    listener_id,
                    upgrade,
                    local_addr,
                    send_back_addr,
                });
            };
            self.counters.count(|stats| stats.inbound_refused.refused(refusal));
            tracing::debug!(error = %refusal, "inbound connection refused");
            reset(&stream);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Closes an accepted connection by a reset, which leaves no state in the kernel.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.0.set_zero_linger() {
        tracing::debug!(%error, "a refused connection is closed without a reset");
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use libp2p::{
        core::Endpoint,
        multiaddr::Protocol,
        swarm::{ConnectionId, NetworkBehaviour as _},
    };
    use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

    use super::*;
    use crate::{gate::GateBehaviour, limits::MeshLimits};

    #[tokio::test]
    async fn a_refused_connection_is_reset_and_counted_and_never_reaches_the_swarm() {
        let limits = MeshLimits { new_connections_per_minute: 2, ..MeshLimits::default() };
        let mut swarm_side = GateBehaviour::new(&limits);
        let counters = Arc::new(Counters::default());
        let mut transport = GatedTransport::new(swarm_side.shared(), counters.clone(), Networks::default());
        transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let mut next = async || poll_fn(|context| Pin::new(&mut transport).poll(context)).await;
        let address = next().await.into_new_address().unwrap();
        let port = address.iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        let target = ("127.0.0.1", port.unwrap());
        let mut admitted = Vec::new();
        for number in 0..2 {
            admitted.push(TcpStream::connect(target).await.unwrap());
            let TransportEvent::Incoming { local_addr, send_back_addr, .. } = next().await else {
                panic!("the connection arrives");
            };
            let id = ConnectionId::new_unchecked(number);
            swarm_side.handle_pending_inbound_connection(id, &local_addr, &send_back_addr).unwrap();
        }
        let mut refused = TcpStream::connect(target).await.unwrap();
        assert!(timeout(Duration::from_millis(300), next()).await.is_err(), "the swarm hears nothing");
        let error = refused.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(counters.read().inbound_refused.subnet_rate, 1);
    }
    #[tokio::test]
    async fn a_port_that_another_connection_has_does_not_hinder_a_dial() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let port = other.local_addr().unwrap().port();
        let swarm_side = GateBehaviour::new(&MeshLimits::default());
        let mut transport = GatedTransport::new(swarm_side.shared(), Arc::default(), Networks::default());
        // A listener on another address can have the port, but its dials bind to all addresses.
        transport
            .listen_on(ListenerId::next(), format!("/ip4/127.0.0.2/tcp/{port}").parse().unwrap())
            .unwrap();
        poll_fn(|context| Pin::new(&mut transport).poll(context)).await.into_new_address().unwrap();
        let target: Multiaddr =
            format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
        let reusing = transport.inner.dial(target.clone(), options).unwrap().await;
        assert_eq!(reusing.unwrap_err().kind(), io::ErrorKind::AddrInUse, "a reused port alone fails");
        transport.dial(target, options).unwrap().await.unwrap();
    }
}
