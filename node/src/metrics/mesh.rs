//! The mesh's own counts, copied into series on request: connections and dials, accepted and refused gossip
//! and DHT messages, and relayed traffic.

use baton_mesh::MeshStats;
use prometheus_client::{metrics::family::Family, registry::Registry};

use super::{Count, Labels, Labels2, Level, add, counter, counters, gauge};

/// Series of the mesh.
#[derive(Debug)]
pub(super) struct MeshSeries {
    connections: Family<Labels, Level>,
    dials_failed: Family<Labels, Count>,
    inbound_refused: Family<Labels, Count>,
    streams: Family<Labels, Count>,
    gossip: Family<Labels, Count>,
    dht_records: Level,
    dht_puts: Family<Labels, Count>,
    dht_queries: Family<Labels, Count>,
    dht_requests: Count,
    relay_reservations: Level,
    relay_circuits: Level,
    relay_requests: Family<Labels2, Count>,
    hole_punches: Family<Labels, Count>,
    shut_out: Level,
}

impl MeshSeries {
    pub(super) fn new(all: &mut Registry) -> Self {
        let mut family = |name, help| counters(all, name, help, "", &[]);
        Self {
            dials_failed: family("dials_failed", "Dials that failed, by reason"),
            inbound_refused: family(
                "inbound_refused",
                "Inbound connections that failed or were refused, by reason",
            ),
            streams: family("streams", "Inbound turn streams, by result"),
            gossip: family("gossip", "Gossiped node records, by what became of them"),
            dht_puts: family("dht_puts", "Records that others put into the DHT here, by result"),
            dht_queries: family("dht_queries", "Queries of the DHT that this node began, or could not begin"),
            hole_punches: family(
                "hole_punches",
                "Attempts at a direct connection past two routers, by result",
            ),
            relay_requests: add(
                all,
                "relay_requests",
                "What others asked this node for as a relay, by kind and result",
                Family::default(),
            ),
            dht_requests: counter(all, "dht_requests", "Requests of other members of the DHT"),
            connections: add(
                all,
                "connections",
                "Connections open now, by what they run over",
                Family::default(),
            ),
            dht_records: gauge(all, "dht_records", "Records kept for others in the DHT now"),
            relay_reservations: gauge(
                all,
                "relay_reservations",
                "Peers that are reachable through this node now",
            ),
            relay_circuits: gauge(
                all,
                "relay_circuits",
                "Circuits between others that this node carries now",
            ),
            shut_out: gauge(all, "peers_shut_out", "Peers that may not connect for a while"),
        }
    }

    /// Copies the mesh's current counts.
    pub(super) fn set(&self, now: &MeshStats) {
        let over = &now.transports;
        set_levels(
            &self.connections,
            "over",
            &[("tcp", over.tcp), ("quic", over.quic), ("relay", over.relayed)],
        );
        let dials = &now.dials_failed;
        set_counts(
            &self.dials_failed,
            "reason",
            &[
                ("unreachable", dials.unreachable),
                ("wrong_identity", dials.wrong_identity),
                ("limits", dials.limits),
            ],
        );
        let refused = &now.inbound_refused;
        set_counts(
            &self.inbound_refused,
            "reason",
            &[
                ("subnet_rate", refused.subnet_rate),
                ("subnet_count", refused.subnet_count),
                ("rate", refused.rate),
                ("shut_out", refused.shut_out),
                ("limits", refused.limits),
                ("handshake", refused.handshake),
            ],
        );
        set_counts(
            &self.streams,
            "result",
            &[
                ("accepted", now.turns_accepted),
                ("queue_full", now.turns_refused_queue),
                ("too_many", now.turns_refused_quota),
            ],
        );
        let holes = [("direct", now.holes_punched), ("failed", now.holes_failed)];
        set_counts(&self.hole_punches, "result", &holes);
        self.shut_out.set(level(now.shut_out));
        self.set_records(now);
        self.set_relay(now);
    }

    fn set_records(&self, now: &MeshStats) {
        let heard = &now.gossip;
        set_counts(
            &self.gossip,
            "result",
            &[
                ("taken", heard.taken),
                ("known", heard.known),
                ("too_often", heard.too_often),
                ("out_of_time", heard.out_of_time),
                ("invalid", heard.invalid),
            ],
        );
        let dht = &now.dht;
        self.dht_records.set(level(dht.records));
        set_counts(
            &self.dht_puts,
            "result",
            &[
                ("stored", dht.stored),
                ("too_often", dht.refused_rate),
                ("out_of_time", dht.refused_time),
                ("invalid", dht.refused_invalid),
                ("old", dht.refused_old),
                ("full", dht.refused_full),
            ],
        );
        set_counts(&self.dht_queries, "result", &[("begun", dht.queries), ("too_many", dht.queries_refused)]);
        set_count(&self.dht_requests, dht.requests);
    }

    fn set_relay(&self, now: &MeshStats) {
        let relay = &now.relay;
        self.relay_reservations.set(level(relay.reservations));
        self.relay_circuits.set(level(relay.circuits));
        for (kind, result, count) in [
            ("reservation", "granted", relay.reservations_granted),
            ("reservation", "denied", relay.reservations_denied),
            ("circuit", "granted", relay.circuits_opened),
            ("circuit", "denied", relay.circuits_denied),
        ] {
            set_count(&self.relay_requests.get_or_create(&[("kind", kind), ("result", result)]), count);
        }
    }
}

/// A count as a gauge value; large counts are capped.
pub(super) fn level(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn set_count(counter: &Count, count: u64) {
    counter.inner().store(count, std::sync::atomic::Ordering::Relaxed);
}

fn set_counts(family: &Family<Labels, Count>, label: &'static str, counts: &[(&'static str, u64)]) {
    for (value, count) in counts {
        set_count(&family.get_or_create(&[(label, *value)]), *count);
    }
}

fn set_levels(family: &Family<Labels, Level>, label: &'static str, levels: &[(&'static str, u64)]) {
    for (value, count) in levels {
        family.get_or_create(&[(label, *value)]).set(level(*count));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_mesh::{DhtStats, DialStats, GossipStats, InboundStats, RelayStats, TransportStats};

    use super::{
        super::{Metrics, Snapshot},
        *,
    };

    #[test]
    fn every_count_of_the_mesh_is_shown_under_its_reason() {
        let stats = MeshStats {
            connections: 6,
            transports: TransportStats { tcp: 1, quic: 2, relayed: 3 },
            dials_failed: DialStats { unreachable: 4, wrong_identity: 5, limits: 6 },
            inbound_refused: InboundStats {
                subnet_rate: 7,
                subnet_count: 8,
                rate: 39,
                shut_out: 9,
                limits: 10,
                handshake: 11,
            },
            turns_accepted: 12,
            turns_refused_queue: 13,
            turns_refused_quota: 14,
            gossip: GossipStats { taken: 15, known: 16, too_often: 17, out_of_time: 18, invalid: 19 },
            dht: DhtStats {
                records: 20,
                stored: 21,
                refused_rate: 22,
                refused_time: 23,
                refused_invalid: 24,
                refused_old: 25,
                refused_full: 26,
                queries: 27,
                queries_refused: 28,
                requests: 29,
            },
            relay: RelayStats {
                reservations: 30,
                circuits: 31,
                reservations_granted: 32,
                reservations_denied: 33,
                circuits_opened: 34,
                circuits_denied: 35,
            },
            holes_punched: 36,
            holes_failed: 37,
            shut_out: 38,
        };
        let metrics = Metrics::new(1, 1);
        // The series show the mesh's counts, not their sum over several requests.
        for _ in 0..2 {
            drop(metrics.render(&Snapshot { mesh: stats, ..Snapshot::default() }, Duration::ZERO));
        }
        let text = metrics.render(&Snapshot { mesh: stats, ..Snapshot::default() }, Duration::ZERO);
        for line in [
            "baton_connections{over=\"tcp\"} 1",
            "baton_connections{over=\"quic\"} 2",
            "baton_connections{over=\"relay\"} 3",
            "baton_dials_failed_total{reason=\"unreachable\"} 4",
            "baton_dials_failed_total{reason=\"wrong_identity\"} 5",
            "baton_dials_failed_total{reason=\"limits\"} 6",
            "baton_inbound_refused_total{reason=\"subnet_rate\"} 7",
            "baton_inbound_refused_total{reason=\"subnet_count\"} 8",
            "baton_inbound_refused_total{reason=\"rate\"} 39",
            "baton_inbound_refused_total{reason=\"shut_out\"} 9",
            "baton_inbound_refused_total{reason=\"limits\"} 10",
            "baton_inbound_refused_total{reason=\"handshake\"} 11",
            "baton_streams_total{result=\"accepted\"} 12",
            "baton_streams_total{result=\"queue_full\"} 13",
            "baton_streams_total{result=\"too_many\"} 14",
            "baton_gossip_total{result=\"taken\"} 15",
            "baton_gossip_total{result=\"known\"} 16",
            "baton_gossip_total{result=\"too_often\"} 17",
            "baton_gossip_total{result=\"out_of_time\"} 18",
            "baton_gossip_total{result=\"invalid\"} 19",
            "baton_dht_records 20",
            "baton_dht_puts_total{result=\"stored\"} 21",
            "baton_dht_puts_total{result=\"too_often\"} 22",
            "baton_dht_puts_total{result=\"out_of_time\"} 23",
            "baton_dht_puts_total{result=\"invalid\"} 24",
            "baton_dht_puts_total{result=\"old\"} 25",
            "baton_dht_puts_total{result=\"full\"} 26",
            "baton_dht_queries_total{result=\"begun\"} 27",
            "baton_dht_queries_total{result=\"too_many\"} 28",
            "baton_dht_requests_total 29",
            "baton_relay_reservations 30",
            "baton_relay_circuits 31",
            "baton_relay_requests_total{kind=\"reservation\",result=\"granted\"} 32",
            "baton_relay_requests_total{kind=\"reservation\",result=\"denied\"} 33",
            "baton_relay_requests_total{kind=\"circuit\",result=\"granted\"} 34",
            "baton_relay_requests_total{kind=\"circuit\",result=\"denied\"} 35",
            "baton_hole_punches_total{result=\"direct\"} 36",
            "baton_hole_punches_total{result=\"failed\"} 37",
            "baton_peers_shut_out 38",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
