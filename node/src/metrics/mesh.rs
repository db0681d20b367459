//! The mesh's own counts: connections and dials, accepted and refused gossip and DHT messages, and relayed traffic.

use baton_mesh::MeshStats;

use super::exposition::{Exposition, Kind};

/// Writes the mesh's present counts.
pub(super) fn write(text: &mut Exposition, now: &MeshStats) {
    let over = &now.transports;
    let about = ("connections", "Connections open now, by what they run over");
    let levels = [("tcp", over.tcp), ("quic", over.quic), ("relay", over.relayed)];
    text.by(Kind::Gauge, about, "over", &levels);
    let dials = &now.dials_failed;
    let about = ("dials_failed_total", "Dials that failed, by reason");
    let counts = [
        ("unreachable", dials.unreachable),
        ("wrong_identity", dials.wrong_identity),
        ("limits", dials.limits),
    ];
    text.by(Kind::Counter, about, "reason", &counts);
    let refused = &now.inbound_refused;
    let about = ("inbound_refused_total", "Inbound connections that failed or were refused, by reason");
    let counts = [
        ("subnet_rate", refused.subnet_rate),
        ("subnet_count", refused.subnet_count),
        ("rate", refused.rate),
        ("shut_out", refused.shut_out),
        ("limits", refused.limits),
        ("handshake", refused.handshake),
    ];
    text.by(Kind::Counter, about, "reason", &counts);
    let about = ("streams_total", "Inbound turn streams, by result");
    let counts = [
        ("accepted", now.turns_accepted),
        ("queue_full", now.turns_refused_queue),
        ("too_many", now.turns_refused_quota),
    ];
    text.by(Kind::Counter, about, "result", &counts);
    let about = ("hole_punches_total", "Attempts at a direct connection past two routers, by result");
    let counts = [("direct", now.holes_punched), ("failed", now.holes_failed)];
    text.by(Kind::Counter, about, "result", &counts);
    text.single(Kind::Gauge, "peers_shut_out", "Peers that may not connect for a while", now.shut_out);
    write_records(text, now);
    write_relay(text, now);
}

fn write_records(text: &mut Exposition, now: &MeshStats) {
    let heard = &now.gossip;
    let about = ("gossip_total", "Gossiped node records, by what became of them");
    let counts = [
        ("taken", heard.taken),
        ("known", heard.known),
        ("too_often", heard.too_often),
        ("out_of_time", heard.out_of_time),
        ("invalid", heard.invalid),
    ];
    text.by(Kind::Counter, about, "result", &counts);
    let dht = &now.dht;
    text.single(Kind::Gauge, "dht_records", "Records kept for others in the DHT now", dht.records);
    let about = ("dht_puts_total", "Records that others put into the DHT here, by result");
    let counts = [
        ("stored", dht.stored),
        ("too_often", dht.refused_rate),
        ("out_of_time", dht.refused_time),
        ("invalid", dht.refused_invalid),
        ("old", dht.refused_old),
        ("full", dht.refused_full),
    ];
    text.by(Kind::Counter, about, "result", &counts);
    let about = ("dht_queries_total", "Queries of the DHT that this node began, or could not begin");
    let counts = [("begun", dht.queries), ("too_many", dht.queries_refused)];
    text.by(Kind::Counter, about, "result", &counts);
    let help = "Requests of other members of the DHT";
    text.single(Kind::Counter, "dht_requests_total", help, dht.requests);
}

fn write_relay(text: &mut Exposition, now: &MeshStats) {
    let relay = &now.relay;
    let help = "Peers that are reachable through this node now";
    text.single(Kind::Gauge, "relay_reservations", help, relay.reservations);
    let help = "Circuits between others that this node carries now";
    text.single(Kind::Gauge, "relay_circuits", help, relay.circuits);
    let name = "relay_requests_total";
    text.family(Kind::Counter, name, "What others asked this node for as a relay, by kind and result");
    for (kind, result, count) in [
        ("reservation", "granted", relay.reservations_granted),
        ("reservation", "denied", relay.reservations_denied),
        ("circuit", "granted", relay.circuits_opened),
        ("circuit", "denied", relay.circuits_denied),
    ] {
        text.sample(name, [("kind", kind), ("result", result)], count);
    }
}

#[cfg(test)]
mod tests {
    use baton_mesh::{DhtStats, DialStats, GossipStats, InboundStats, RelayStats, TransportStats};

    use super::*;

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
        let mut text = Exposition::default();
        write(&mut text, &stats);
        let text = text.into_text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut values: Vec<u64> =
            samples.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        values.sort_unstable();
        assert_eq!(values, (1..=39).collect::<Vec<_>>(), "each once\n{text}");
        for line in [
            "baton_connections{over=\"quic\"} 2",
            "baton_inbound_refused_total{reason=\"rate\"} 39",
            "baton_dht_records 20",
            "baton_relay_requests_total{kind=\"circuit\",result=\"denied\"} 35",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
