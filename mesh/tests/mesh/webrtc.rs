//! Listening on WebRTC, which browsers speak. `src/webrtc/tests.rs` tests connections.

use baton_mesh::{MeshConfig, OpenError, WebRtcCertificate};

use crate::support::*;

const WEBRTC: &str = "/ip4/127.0.0.1/udp/0/webrtc-direct";

#[tokio::test]
async fn the_addresses_name_the_configured_certificate() {
    let certificate = WebRtcCertificate::generate().unwrap();
    let hash = certificate.address_part();
    let config = MeshConfig {
        external: vec![addr("/ip4/203.0.113.7/udp/4002/webrtc-direct"), addr("/ip4/203.0.113.7/tcp/4001")],
        webrtc_certificate: Some(certificate),
        ..server_config(WEBRTC)
    };
    let (node, _incoming) = start(config).await;
    let listening = node.listen_addrs();
    assert_eq!(listening[0].iter().last(), Some(hash.clone()), "{listening:?}");
    let whole = addr("/ip4/203.0.113.7/udp/4002/webrtc-direct").with(hash);
    let announced = async {
        let mut status = node.network_changes();
        status.wait_for(|status| status.external.contains(&whole)).await.unwrap().external.clone()
    };
    let external = tokio::time::timeout_at(soon(), announced).await.expect("the address in time");
    assert!(external.contains(&addr("/ip4/203.0.113.7/tcp/4001")), "{external:?}");
}

#[tokio::test]
async fn a_listener_on_all_addresses_names_each() {
    let (node, _incoming) = server("/ip4/0.0.0.0/udp/0/webrtc-direct").await;
    let listening = node.listen_addrs();
    assert!(
        listening.iter().any(|address| address.to_string().starts_with("/ip4/127.0.0.1/udp/")),
        "{listening:?}"
    );
}

#[tokio::test]
async fn a_mesh_dials_no_webrtc() {
    let (node, _incoming) = server(WEBRTC).await;
    let refused = client().await.open(node.node_id(), &node.listen_addrs(), soon()).await;
    assert!(matches!(refused, Err(OpenError::Unreachable { .. })), "{:?}", refused.err());
}
