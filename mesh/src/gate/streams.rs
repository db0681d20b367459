//! Streams that peers open: how many a subnet has at once, and how fast an unknown subnet opens them.

use baton_limits::{Bucket, Rate, Subnet};
use libp2p::PeerId;

use super::SharedGate;
use crate::{limits::MeshLimits, origin::Origin};

/// An inbound stream's share, given back when the stream is dropped.
pub(crate) struct StreamPermit {
    gate: SharedGate,
    peer: PeerId,
    subnet: Option<Subnet>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut gate = self.gate.lock();
        gate.streams.give_back(self.subnet);
        gate.busy.give_back(Some(self.peer));
    }
}

impl SharedGate {
    /// Admits a stream of a peer, unless its subnet has too many, or all have.
    pub(crate) fn admit_stream(&self, peer: PeerId, origin: Origin) -> Option<StreamPermit> {
        let mut gate = self.lock();
        let subnet = origin.counted(&gate.own_networks);
        let may = gate.streams.take(subnet);
        may.then(|| {
            gate.busy.add(Some(peer));
            StreamPermit { gate: self.clone(), peer, subnet }
        })
    }
}

/// The rate of new streams on one connection of an unknown subnet.
///
/// The connection's own task enforces it, so a flood of streams on accepted connections never reaches the swarm task.
pub(crate) struct StreamRate {
    gate: SharedGate,
    subnet: Option<Subnet>,
    rate: Rate,
    bucket: Bucket,
}

impl StreamRate {
    /// The rate of a connection from here.
    pub(crate) fn new(gate: SharedGate, origin: Origin, limits: &MeshLimits) -> Self {
        let subnet = origin.counted(&limits.own_networks);
        let rate = Rate::per_second(limits.new_streams_per_second.into());
        let rate = rate.in_bursts_of(limits.new_streams_at_once.into());
        Self { gate, subnet, rate, bucket: Bucket::default() }
    }

    /// Whether the peer may open one more stream now.
    pub(crate) fn take(&mut self) -> bool {
        let now_ms = self.gate.now_ms();
        // The gate is shared, so it is asked only when the rate is exceeded.
        self.subnet.is_none()
            || self.bucket.take(&self.rate, 1, now_ms).is_ok()
            || self.gate.lock().is_trusted(self.subnet, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_identities_of_one_subnet_share_its_streams() {
        let gate = SharedGate::new(&MeshLimits {
            max_streams_in: 10,
            max_streams_per_subnet: 3,
            own_networks: vec!["192.168.0.0/24".parse().unwrap()].into(),
            ..MeshLimits::default()
        });
        let admit = |ip: [u8; 4]| gate.admit_stream(PeerId::random(), Origin::Direct(ip.into()));
        let held: Vec<_> = (1..4).map(|last| admit([203, 0, 113, last]).unwrap()).collect();
        assert!(admit([203, 0, 113, 9]).is_none());
        let elsewhere = admit([198, 51, 100, 1]).unwrap();
        let own: Vec<_> = (0..6).map(|_| admit([192, 168, 0, 1]).unwrap()).collect();
        assert!(admit([192, 168, 0, 1]).is_none(), "not counted by subnet, but in all");
        assert_eq!(gate.lock().busy.of(&held[0].peer), 1);
        drop((held, own));
        assert!(admit([203, 0, 113, 9]).is_some());
        drop(elsewhere);
        assert_eq!(gate.lock().busy.all(), 0);
    }
}
