//! The service's own cost of a turn. The echo engine answers at once, the store is in memory, and the stream
//! is a pipe in this process. Run with
//! `cargo test -p baton-node --release --test it service::overhead -- --ignored --nocapture`.

use std::time::Instant;

use baton_mesh::TurnStream;
use baton_proto::{codec, ids::NodeId, wire::ClientFrame};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::service::network::{
    World,
    client::{Changes, Session, read_reply},
    node::Setup,
    world,
};

const TURNS: usize = 200;

#[expect(clippy::print_stdout, reason = "the figures are what it is run for")]
fn report(name: &str, mut millis: Vec<f64>) -> f64 {
    millis.sort_by(f64::total_cmp);
    let at = |share: usize| millis[(millis.len() - 1) * share / 100];
    println!("{name}: p50 {:.2} ms, p99 {:.2} ms over {} turns", at(50), at(99), millis.len());
    at(50)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: its figures mean something on an idle machine and in a release build"]
async fn a_turn_costs_little_besides_its_tokens() {
    let World { node, client, .. } = world(Setup::default()).await;
    for (name, over_mesh) in [("pipe", false), ("libp2p over TCP on loopback", true)] {
        let mut session = Session::new();
        let (mut committed, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let prepared = session.prepare(&node, "what is the time", Changes::default());
            let frame = ClientFrame::Turn(prepared.request.clone());
            let begin = Instant::now();
            let stream = if over_mesh {
                client.open(&node, &frame).await
            } else {
                let (near, far) = tokio::io::duplex(1 << 20);
                let reader = NodeId([8; 32]);
                node.service.serve(TurnStream::from_io(reader, "/baton/turn/2", near.compat()));
                let mut stream = TurnStream::from_io(node.node, "/baton/turn/2", far.compat());
                stream.send(&codec::encode(&frame)).await.unwrap();
                stream
            };
            let reply = read_reply(stream, &prepared).await;
            whole.push(begin.elapsed().as_secs_f64() * 1e3);
            let accepted = session.accept(&prepared, reply.committed().unwrap(), &reply.text(), &[]).unwrap();
            committed.push(f64::from(accepted.receipt.timings.first_token_ms));
        }
        report(&format!("{name}, first token by the receipt"), committed);
        assert!(
            report(&format!("{name}, whole turn"), whole) < 500.0,
            "a turn takes half a second by itself"
        );
    }
}
