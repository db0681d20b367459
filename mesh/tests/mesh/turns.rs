use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use baton_mesh::{EMBED_PROTOCOL, FrameError, MeshConfig, OpenError, StreamProtocol, TURN_PROTOCOL};
use tokio::{task::JoinSet, time::timeout};

use crate::support::*;

#[tokio::test]
async fn frames_round_trip() {
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let (mut near, mut far) = connect(&client, &node, &mut incoming).await;
        let echo = tokio::spawn(async move {
            while let Some(frame) = far.recv(LIMIT).await.unwrap() {
                far.send(&frame).await.unwrap();
            }
            far.close().await.unwrap();
        });
        for len in [0usize, 1, 16 << 10, 64 << 10, 1 << 20] {
            let frame: Vec<u8> = (0..=252).cycle().take(len).collect();
            near.send_by(&frame, soon()).await.unwrap();
            assert!(near.recv_by(LIMIT, soon()).await.unwrap() == Some(frame), "{listen}: {len} bytes");
        }
        near.close().await.unwrap();
        assert_eq!(near.recv_by(LIMIT, soon()).await.unwrap(), None);
        echo.await.unwrap();
        assert_eq!(near.protocol(), TURN_PROTOCOL.as_ref());
    }
}

#[tokio::test]
async fn a_side_protocol_is_spoken_where_it_is_offered_and_turns_beside_it() {
    for listen in [TCP, QUIC] {
        let config = MeshConfig { side_protocols: vec![EMBED_PROTOCOL], ..server_config(listen) };
        let (node, mut incoming) = start(config).await;
        let client = client().await;
        let (turn, _) = connect(&client, &node, &mut incoming).await;
        assert_eq!(turn.protocol(), TURN_PROTOCOL.as_ref());
        let mut near =
            client.open_side(node.node_id(), &node.listen_addrs(), &EMBED_PROTOCOL, soon()).await.unwrap();
        near.send(b"hello").await.unwrap();
        let (from, mut far) = incoming.next().await.unwrap();
        assert_eq!((from, far.protocol()), (client.node_id(), EMBED_PROTOCOL.as_ref()));
        assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), Some(b"hello".to_vec()));
        let (plain, _incoming) = server(listen).await;
        let refused = client.open_side(plain.node_id(), &plain.listen_addrs(), &EMBED_PROTOCOL, soon()).await;
        assert!(matches!(refused, Err(OpenError::ProtocolUnsupported)), "{refused:?}");
    }
}

#[tokio::test]
async fn receiver_refuses_an_oversize_frame() {
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let (mut near, mut far) = connect(&client, &node, &mut incoming).await;
        near.send(&[7; 1001]).await.unwrap();
        match far.recv_by(1000, soon()).await {
            Err(FrameError::TooLarge(error)) => assert_eq!((error.len, error.limit), (1001, 1000)),
            other => panic!("{other:?}"),
        }
        drop(far);
        assert!(has_ended(&mut near).await);
    }
}

#[tokio::test]
async fn a_frame_cut_short_is_truncated() {
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let (mut near, mut far) = connect(&client, &node, &mut incoming).await;
        // More than any flow-control window, so that the send blocks while the peer does not read.
        let cut = timeout(Duration::from_millis(200), near.send(&vec![1; 8 << 20])).await;
        assert!(cut.is_err());
        drop(near);
        assert!(matches!(far.recv_by(LIMIT, soon()).await, Err(FrameError::Truncated)), "{listen}");
    }
}

#[tokio::test]
async fn many_turns_run_at_once() {
    const TURNS: u8 = 60;
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let serving = tokio::spawn(async move {
            let mut turns = JoinSet::new();
            for _ in 0..TURNS {
                let (_, mut turn) = incoming.next().await.unwrap();
                turns.spawn(async move {
                    while let Some(frame) = turn.recv(LIMIT).await.unwrap() {
                        turn.send(&frame).await.unwrap();
                    }
                });
            }
            turns.join_all().await;
        });
        let (id, addrs) = (node.node_id(), node.listen_addrs());
        let mut turns = JoinSet::new();
        for number in 0..TURNS {
            let (client, addrs) = (client.clone(), addrs.clone());
            turns.spawn(async move {
                let mut turn = client.open(id, &addrs, soon()).await.unwrap();
                for round in 0..5 {
                    let frame = vec![number; 1000 * round];
                    turn.send(&frame).await.unwrap();
                    assert_eq!(turn.recv_by(LIMIT, soon()).await.unwrap(), Some(frame));
                }
                turn.close().await.unwrap();
                assert_eq!(turn.recv_by(LIMIT, soon()).await.unwrap(), None);
            });
        }
        turns.join_all().await;
        serving.await.unwrap();
        assert_eq!(client.stats().connections, 1, "all on one connection");
        assert_eq!(node.stats().turns_accepted, u64::from(TURNS));
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_stalls_the_writer() {
    const FRAMES: usize = 200;
    const FRAME_BYTES: usize = 64 << 10;
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let (mut near, mut far) = connect(&client, &node, &mut incoming).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let mut writer = tokio::spawn(async move {
            for _ in 0..FRAMES {
                far.send(&[9; FRAME_BYTES]).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            far.close().await.unwrap();
        });
        assert!(timeout(Duration::from_secs(1), &mut writer).await.is_err(), "{listen}: never stalled");
        let buffered = sent.load(Ordering::Relaxed) * FRAME_BYTES;
        assert!(buffered <= 4 << 20, "{listen}: {buffered} bytes were taken from the writer");
        for _ in 0..FRAMES {
            assert_eq!(near.recv_by(LIMIT, soon()).await.unwrap().unwrap().len(), FRAME_BYTES);
        }
        assert_eq!(near.recv_by(LIMIT, soon()).await.unwrap(), None);
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_turn_is_seen_by_a_node_that_streams() {
    for listen in [TCP, QUIC] {
        let (node, mut incoming) = server(listen).await;
        let client = client().await;
        let (mut near, far) = connect(&client, &node, &mut incoming).await;
        let (mut sender, mut receiver) = far.split();
        let streaming = tokio::spawn(async move {
            let watching = async { matches!(receiver.recv(LIMIT).await, Ok(None) | Err(FrameError::Io(_))) };
            tokio::pin!(watching);
            loop {
                tokio::select! {
                    seen = &mut watching => break seen,
                    sent = sender.send(b"token") => if sent.is_err() { break true },
                }
            }
        });
        assert_eq!(near.recv_by(LIMIT, soon()).await.unwrap(), Some(b"token".to_vec()));
        drop(near);
        assert!(timeout(Duration::from_secs(10), streaming).await.unwrap().unwrap(), "{listen}");
    }
}

#[tokio::test]
async fn a_closed_sender_still_receives() {
    let (node, mut incoming) = server(TCP).await;
    let client = client().await;
    let (mut near, mut far) = connect(&client, &node, &mut incoming).await;
    near.send(b"question").await.unwrap();
    near.close().await.unwrap();
    assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), Some(b"question".to_vec()));
    assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), None);
    far.send(b"answer").await.unwrap();
    assert_eq!(near.recv_by(LIMIT, soon()).await.unwrap(), Some(b"answer".to_vec()));
}

#[tokio::test]
async fn mixed_versions_agree_on_the_older_one() {
    let newer = StreamProtocol::new("/baton/turn/3");
    let mut config = server_config(TCP);
    config.turn_protocols = vec![newer, TURN_PROTOCOL];
    let (node, mut incoming) = start(config).await;
    let client = client().await;
    let (near, far) = connect(&client, &node, &mut incoming).await;
    assert_eq!((near.protocol(), far.protocol()), ("/baton/turn/2", "/baton/turn/2"));
}
