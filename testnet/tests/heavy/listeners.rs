//! All listeners of all programs, while peers hold connections that ask nothing: an honest peer beside them, of
//! another address, is served in time. Each program has one crowd at its listeners, also with few open files.

use std::{path::Path, process::Stdio, time::Duration};

use crate::whole_machine;
use baton_testnet::{
    network::{Network, NodeOptions},
    process::sibling,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpSocket, TcpStream},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

/// Connections of the crowd to one listener.
const CROWD: usize = 120;
/// Far below the time after which silent connections end by themselves, and generous for a loaded machine.
const SOON: Duration = Duration::from_secs(10);
const READY: Duration = Duration::from_secs(60);

/// The bytes that a connection of the crowd sends at first, and then again and again.
const KINDS: [(&[u8], &[u8]); 4] = [
    (b"", b""),
    (b"GET /", b"x"),
    (b"GET / HTTP/1.1\r\nhost: localhost\r\nx-half:", b""),
    (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000\r\n\r\n", b"x"),
];

/// A program that has said that it is ready, and the line.
struct Program {
    child: Child,
    ready: Value,
}

/// Starts a program that may have this many files open.
async fn start(program: &str, files: Option<u32>, arguments: &str) -> Program {
    let limit = files.map_or(String::new(), |files| format!("ulimit -n {files}; "));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}exec \"$@\""), "sh"]).arg(sibling(program).unwrap());
    command.args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["event"] == "ready" {
                return event;
            }
        }
        panic!("{program} ended");
    };
    let ready = timeout(READY, ready).await.expect("the program is ready");
    // The program must be able to write more lines.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Program { child, ready }
}

/// The port in a URL or an address.
fn port_of(text: &Value) -> u16 {
    let text = text.as_str().unwrap().trim_end_matches("/v1");
    text.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
}

/// The port in a libp2p address over TCP; none over UDP.
fn libp2p_port(address: &str) -> Option<u16> {
    address.split("/tcp/").nth(1)?.split('/').next()?.parse().ok()
}

async fn connect(from: &str, port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{from}:0").parse().unwrap())?;
    socket.connect(([127, 0, 0, 1], port).into()).await
}

/// Holds connections of all kinds at a listener until it is dropped. Returns once each was tried.
async fn crowd(port: u16) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for (number, (first, more)) in KINDS.into_iter().cycle().take(CROWD).enumerate() {
        let connected = timeout(SOON, connect("127.0.0.1", port)).await;
        let Ok(Ok(mut stream)) = connected else { continue };
        crowd.spawn(async move {
            let _ = stream.write_all(first).await;
            let mut drips = tokio::time::interval(Duration::from_millis(500 + number as u64));
            loop {
                drips.tick().await;
                // A closed connection of the crowd is closed.
                if stream.write_all(more).await.is_err() {
                    return;
                }
            }
        });
    }
    crowd
}

/// Asserts that a listener answers honest peers beside the crowd: a hello with bytes that begin so.
async fn check(name: &str, port: u16, hello: &[u8], answer: &[u8]) {
    let crowd = crowd(port).await;
    let ask = async |from: &str| {
        let mut stream = connect(from, port).await?;
        stream.write_all(hello).await?;
        let mut answered = vec![0; answer.len()];
        stream.read_exact(&mut answered).await?;
        std::io::Result::Ok(answered)
    };
    for from in ["127.0.0.2", "127.0.0.1", "127.0.0.2"] {
        // A connection may be closed among those of the crowd, from the crowd's address. A client tries again.
        let asked = async {
            loop {
                match ask(from).await {
                    Ok(answered) => return answered,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let answered = timeout(SOON, asked).await;
        let answered = answered.unwrap_or_else(|_| panic!("{name}: {from} waits"));
        assert!(answered == answer, "{name}: {}", String::from_utf8_lossy(&answered));
    }
    drop(crowd);
}

/// The same, of an HTTP listener.
async fn check_http(name: &str, port: u16, path: &str) {
    let hello = format!("GET {path} HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\r\n");
    check(name, port, hello.as_bytes(), b"HTTP/1.1 200").await;
}

/// Asserts that a TLS listener shakes hands with an honest peer beside the crowd.
async fn check_tls(name: &str, port: u16) {
    let crowd = crowd(port).await;
    let mut client = Command::new("openssl");
    client.args(["s_client", "-bind", "127.0.0.2:0", "-tls1_3", "-connect", &format!("127.0.0.1:{port}")]);
    // It ends after the handshake, since it has nothing to send.
    let shaken = client.stdin(Stdio::null()).kill_on_drop(true).output();
    let shaken =
        timeout(SOON, shaken).await.unwrap_or_else(|_| panic!("{name}: an honest peer waits")).unwrap();
    assert!(shaken.status.success(), "{name}: {}", String::from_utf8_lossy(&shaken.stderr));
    drop(crowd);
}

/// A certificate for `localhost` and its key, by OpenSSL; none where it is not installed.
fn certificate(folder: &Path) -> Option<(String, String)> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (certificate, key) = (path("certificate.pem"), path("key.pem"));
    let arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"];
    let made = std::process::Command::new("openssl")
        .args(arguments)
        .args(names)
        .args(["-keyout", &key, "-out", &certificate])
        .output();
    made.is_ok_and(|made| made.status.success()).then_some((certificate, key))
}

async fn check_store(files: Option<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display();
    let arguments =
        format!("store --json --data-dir {data} --shards 10 --listen 127.0.0.1:0 --admin 127.0.0.1:0");
    let mut store = start("baton-testnet", files, &arguments).await;
    check_http("store", port_of(&store.ready["url"]), "/status").await;
    check_http("store's admin", port_of(&store.ready["admin"]), "/admin/usage").await;
    store.child.kill().await.unwrap();
}

async fn check_relayer(files: Option<u32>, bootstrap: &str) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("relayer");
    // The crowd and the honest peer share a subnet, whose rates other tests look at.
    let arguments = format!(
        "--data-dir {} run --json --mdns false --http 127.0.0.1:0 --embedder hashing --bootstrap {bootstrap} \
         --listen /ip4/127.0.0.1/tcp/0 --listen /ip4/127.0.0.1/tcp/0/ws --own-network 127.0.0.0/8",
        data.display()
    );
    let mut relayer = start("baton-relayer", files, &arguments).await;
    check_http("relayer", port_of(&relayer.ready["http"]), "/health").await;
    if files.is_none() {
        for address in relayer.ready["listen"].as_array().unwrap() {
            check_libp2p("relayer", address.as_str().unwrap()).await;
        }
    }
    relayer.child.kill().await.unwrap();
}

/// The same, of a libp2p listener over TCP or WebSocket.
async fn check_libp2p(name: &str, address: &str) {
    let Some(port) = libp2p_port(address) else { return };
    if address.contains("/ws") {
        let hello = format!(
            "GET / HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        check(&format!("{name}'s WebSocket"), port, hello.as_bytes(), b"HTTP/1.1 101").await;
    } else {
        let protocol = b"\x13/multistream/1.0.0\n";
        check(&format!("{name}'s libp2p"), port, protocol, protocol).await;
    }
}

async fn check_gateway(files: Option<u32>, node: &str, store: &str) {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let arguments = format!(
        "serve --json --listen 127.0.0.1:0 --home {} --node {node} --publisher {store} --shards 10",
        home.display()
    );
    let mut gateway = start("baton", files, &arguments).await;
    check_http("gateway", port_of(&gateway.ready["url"]), "/access").await;
    gateway.child.kill().await.unwrap();
    let Some((certificate, key)) = certificate(folder.path()) else { return };
    let arguments = format!("{arguments} --tls-cert {certificate} --tls-key {key}");
    let mut gateway = start("baton", files, &arguments).await;
    check_tls("gateway over TLS", port_of(&gateway.ready["url"])).await;
    gateway.child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_listener_is_held_by_peers_that_ask_nothing() {
    let _machine = whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let options = NodeOptions::echo().with(&["--listen", "/ip4/127.0.0.1/tcp/0/ws"]);
    let network = Network::start(folder.path(), 1, options).await.unwrap();
    let addresses: Vec<String> = network.addresses().iter().map(ToString::to_string).collect();
    let (node, store) = (addresses.first().unwrap(), network.store_url());
    for files in [None, Some(64)] {
        check_store(files).await;
        check_relayer(files, node).await;
        check_gateway(files, node, store).await;
    }
    let process = network.running().next().unwrap();
    check_http("node's admin", port_of(&process.process.ready["admin"]), "/healthz").await;
    for address in &process.addresses {
        check_libp2p("node", &address.to_string()).await;
    }
}
