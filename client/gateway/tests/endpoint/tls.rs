//! The endpoint over TLS.

use std::{net::SocketAddr, path::Path, time::Duration};

use baton_client::TurnInput;
use baton_client::testkit::{GRACE, World, fake::MODEL};
use baton_gateway::{Gateway, GatewayConfig, TlsIdentity};
use reqwest::Certificate;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Writes a certificate and its key to a folder. Returns the certificate.
fn identity(folder: &Path) -> (TlsIdentity, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (TlsIdentity::read(&certificate, &key).unwrap(), made.cert.pem())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_trusts_the_certificate_is_served_and_silent_connections_hold_nobody_up() {
    let (world, folder) = (World::new(1).await, tempfile::tempdir().unwrap());
    let (identity, certificate) = identity(folder.path());
    let client = world.client().await;
    let config = GatewayConfig::new(TurnInput::new(Vec::new()));
    let gateway = Gateway::open(client.clone(), config).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served =
        tokio::spawn(
            async move { gateway.serve_tls(listener, identity, async { drop(stopped.await) }).await },
        );
    // Connections without a handshake.
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let trusted = Certificate::from_pem(certificate.as_bytes()).unwrap();
    let http = reqwest::Client::builder().tls_certs_only([trusted]).build().unwrap();
    let url = format!("https://localhost:{}/v1/chat/completions", address.port());
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "a" }] });
    let origin = format!("https://localhost:{}", address.port());
    let asked = http.post(&url).header("origin", origin).json(&body).timeout(Duration::from_secs(20));
    let answer: Value = asked.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "a (0)", "{answer}");

    let stranger = reqwest::Client::new().post(&url).json(&body).send().await.unwrap_err();
    assert!(stranger.is_connect(), "a client that does not trust the certificate sends nothing");
    // Plain HTTP gets no answer in the clear.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(GRACE, plain.read_to_end(&mut bytes)).await.unwrap();
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");

    drop((http, stop, silent));
    served.await.unwrap().unwrap();
    client.shutdown(GRACE).await;
}
